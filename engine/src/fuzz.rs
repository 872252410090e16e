//! Entry points for fuzzers: any bytes, no panic, and what must hold of whatever is accepted.

use std::error::Error;

use s3engine_ring::record_from_bytes;
use s3engine_s3::Path;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::control::{Frames, Hello, LARGEST_ASKED, Request, encode};
use crate::get::Ticket;
use crate::wire::{self, Asked};

/// Reads the bytes, after one that says in what pieces they come, as what a client says to a host service:
/// who it is, and what it asks for. Whether it asks for something.
pub fn fuzz_requests(data: &[u8]) -> bool {
    let [piece, stream @ ..] = data else {
        return false;
    };
    let whole = said(&[stream]);
    let pieces: Vec<_> = stream.chunks(usize::from(*piece).max(1)).collect();
    assert_eq!(whole, said(&pieces), "in pieces of {piece}");
    whole.0.len() > 1
}

/// Its messages as they are written again, and why it is heard no longer.
fn said(pieces: &[&[u8]]) -> (Vec<Vec<u8>>, Option<String>) {
    let mut frames = Frames::new(LARGEST_ASKED);
    let mut messages = Vec::new();
    for piece in pieces {
        frames.extend(piece);
        loop {
            let next = match messages.is_empty() {
                true => next::<Hello>(&mut frames),
                false => next::<Request>(&mut frames),
            };
            match next {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break,
                Err(why) => return (messages, Some(why)),
            }
        }
    }
    (messages, None)
}

/// The next message, written again: read once more it is the same.
fn next<T: Serialize + DeserializeOwned>(frames: &mut Frames) -> Result<Option<Vec<u8>>, String> {
    let Some((message, fds)) = frames.next::<T>().map_err(|why| why.to_string())? else {
        return Ok(None);
    };
    assert!(fds.is_empty(), "descriptors out of nothing");
    let written = encode(&message, 0);
    let mut again = Frames::new(written.len());
    again.extend(&written);
    let (read, _) = again
        .next::<T>()
        .expect("what was written is readable")
        .expect("what was written is whole");
    assert_eq!(encode(&read, 0), written);
    Ok(Some(written))
}

/// Reads the bytes, and zeros after them, as a completion with its detail record. Whether it is a success.
pub fn fuzz_completion(data: &[u8]) -> bool {
    let len = s3engine_ring::CQE_SIZE + s3engine_ring::DETAIL_SIZE;
    let mut bytes = data[..data.len().min(len)].to_vec();
    bytes.resize(len, 0);
    let (cqe, detail) = record_from_bytes(&bytes).expect("as many bytes as there must be");
    let asked = Asked {
        ticket: Ticket(1),
        bucket: "bucket",
        key: "key",
        endpoint: "http://127.0.0.1:9000",
    };
    let completion = wire::heard(&cqe, &detail, &asked);
    let by_path = completion.bytes_by_path();
    let most = by_path.rdma.max(by_path.http).max(by_path.cache);
    assert!(completion.bytes() >= most);
    assert!(completion.buffer.is_none());
    // What is no code of a path or reason is no success either.
    let readable = s3engine_ring::path_name(cqe.path).is_some()
        && s3engine_ring::reason_name(cqe.reason).is_some();
    assert_eq!(completion.is_ok(), cqe.error == 0 && readable);
    let Some(error) = completion.error() else {
        return completion.path() != Path::None;
    };
    assert_eq!((error.bucket(), error.key()), ("bucket", "key"));
    assert!(!error.to_string().is_empty());
    assert!(
        error
            .source()
            .is_none_or(|cause| !cause.to_string().is_empty())
    );
    // Another end can be told of it.
    wire::told(&completion);
    false
}
