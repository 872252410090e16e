//! Large bodies, by each driver: what the kernel receives by itself, and what is read, is what the server has sent.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::Instant;

use s3engine_pool::uring;

use super::server::Step::{Answer, Close, Reset, Silence};
use super::server::{Server, answer, ok, partial};
use super::*;
use crate::checksum::{Algorithm, Sum};
use crate::endpoint::Endpoint;
use crate::network::Network;
use crate::timeouts::Timeouts;
use crate::upstream::Upstream;

/// Of several receives, and no round number.
const SIZE: usize = 3_000_001;

fn object() -> Vec<u8> {
    (0..SIZE).map(|i| (i % 251) as u8).collect()
}

/// Runs work on a thread of each driver that can be used here.
fn by_each<F: Future<Output = ()>>(work: impl Fn() -> F) {
    run(work());
    if let Err(why) = uring::probe() {
        return eprintln!("skipped, by io_uring: {why}");
    }
    uring::Runtime::new().unwrap().block_on(async {
        let bounded = tokio::time::timeout(Duration::from_secs(20), Box::pin(work()));
        bounded.await.expect("bounded");
    });
}

fn bytes(landing: Landing) -> Vec<u8> {
    let buffer = landing.finish().expect("nothing is under way");
    buffer.as_slice().unwrap()[..SIZE].to_vec()
}

/// A server that treats its only connection as it likes, once a request has come.
fn treating(treat: impl FnOnce(TcpStream) + Send + 'static) -> Endpoint {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 8 << 10]).unwrap();
        treat(stream);
    });
    Endpoint::parse(&format!("http://127.0.0.1:{port}")).unwrap()
}

fn client(endpoint: Endpoint, timeouts: Timeouts) -> Client {
    let nobody = crate::credentials::Credentials::anonymous();
    Client::new(Upstream::new(endpoint, nobody, timeouts, Network::default()).unwrap())
}

#[test]
fn they_land_whole_and_leave_the_connection_to_the_next_request() {
    let object = object();
    by_each(|| async {
        let chunks = object.chunks(200_000).map(|chunk| {
            let size = format!("{:x}\r\n", chunk.len());
            [size.as_bytes(), chunk, b"\r\n"].concat()
        });
        let chunked: Vec<u8> = chunks.flatten().chain(*b"0\r\n\r\n").collect();
        let server = Server::start(vec![vec![
            Answer(ok(&object)),
            Answer(answer("200 OK", &["Transfer-Encoding: chunked"], &chunked)),
            Answer(ok(b"a small one")),
            Answer(ok(&object)),
        ]]);
        let client = server.client();
        for len in [SIZE, SIZE, 11, SIZE] {
            let (landing, mut window) = landing(4 << 20);
            let received = client.get(&whole(), &mut window).await.unwrap();
            assert_eq!(received.bytes, len as u64);
            assert_eq!(client.idle_connections(), 1);
            drop(window);
            assert!(len < SIZE || bytes(landing) == object);
        }
    });
}

#[test]
fn they_are_summed_up() {
    let object = object();
    let mut sum = Sum::new(Algorithm::Crc64Nvme);
    sum.update(&object);
    let sum = sum.finish();
    by_each(|| async {
        let length = format!("Content-Length: {SIZE}");
        let told = format!("x-amz-checksum-crc64nvme: {}", sum.to_base64());
        let kind = "x-amz-checksum-type: FULL_OBJECT";
        let server = Server::one(Answer(answer("200 OK", &[&length, &told, kind], &object)));
        let (_landing, mut window) = landing(4 << 20);
        let received = server.client().get(&whole(), &mut window).await.unwrap();
        assert_eq!(received.sum, Some(sum));
    });
}

#[test]
fn one_that_breaks_off_goes_on_from_the_byte_after_the_last_one() {
    let object = object();
    by_each(|| async {
        let (first, second, third) = (1_500_000, 1_500_001, 2_900_000);
        let begins = |from: usize, to: usize| {
            let range = format!("Content-Range: bytes {from}-{}/{SIZE}", SIZE - 1);
            let length = format!("Content-Length: {}", SIZE - from);
            let headers = [&*range, &length, "ETag: \"a\""];
            answer("206 Partial Content", &headers, &object[from..to])
        };
        let whole_length = format!("Content-Length: {SIZE}");
        let cut = answer("200 OK", &[&whole_length, "ETag: \"a\""], &object[..first]);
        let rest = format!("{third}-{}/{SIZE}", SIZE - 1);
        let server = Server::start(vec![
            vec![Close(cut)],
            vec![Silence(begins(first, second))],
            vec![Silence(begins(second, third))],
            vec![Answer(partial(&rest, "\"a\"", &object[third..]))],
        ]);
        let client = server.client();
        let (landing, mut window) = landing(4 << 20);
        let mut kept = Kept::default();
        for _ in 0..3 {
            let broken = client.resume(&whole(), &mut window, &mut kept).await;
            assert!(broken.unwrap_err().is_retryable());
        }
        let received = client.resume(&whole(), &mut window, &mut kept).await;
        assert_eq!(received.unwrap().bytes, SIZE as u64);
        drop(window);
        assert!(bytes(landing) == object);
        for from in [0, first, second, third] {
            let request = std::iter::repeat_with(|| server.next()).flatten().next();
            let asked = format!("range: bytes={from}-");
            assert!(from == 0 || request.unwrap().contains(&asked), "{from}");
        }
    });
}

#[test]
fn silence_is_a_stall_and_the_connection_is_closed() {
    by_each(|| async {
        let headers = [&*format!("Content-Length: {SIZE}"), "ETag: \"a\""];
        let server = Server::one(Silence(answer("200 OK", &headers, &[7; 500_000])));
        let client = server.client();
        let (landing, mut window) = landing(4 << 20);
        let began = Instant::now();
        let error = client.get(&whole(), &mut window).await.unwrap_err();
        let expected = ErrorKind::Timeout {
            phase: Phase::Body,
            after: server.patience,
        };
        assert_eq!(error.kind(), &expected);
        assert!(began.elapsed() >= server.patience);
        assert_eq!(client.idle_connections(), 0);
        assert!(server.next().is_some());
        assert_eq!(server.next(), None, "the server sees the end");
        drop(window);
        landing.finish().expect("nothing is under way");
    });
}

#[test]
fn one_that_moves_slowly_is_no_stall_and_one_that_drips_is() {
    let timeouts = |stall| Timeouts {
        stall,
        stall_bytes: 4096,
        ..Timeouts::default()
    };
    let dripping = |bytes: usize, end: Duration| {
        treating(move |mut stream| {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\nETag: \"a\"\r\n\r\n");
            stream.write_all(head.as_bytes()).unwrap();
            let (began, mut sent) = (Instant::now(), 0);
            while began.elapsed() < end && stream.write_all(&vec![7; bytes]).is_ok() {
                sent += bytes;
                thread::sleep(Duration::from_millis(20));
            }
            let _ = stream.write_all(&vec![7; SIZE - sent]);
        })
    };
    by_each(|| async {
        // Far less than is received at once comes within the bound, and enough to move.
        let stall = Duration::from_millis(600);
        let slow = client(dripping(1000, 4 * stall), timeouts(stall));
        let (_landing, mut window) = landing(4 << 20);
        let received = slow.get(&whole(), &mut window).await.unwrap();
        assert_eq!(received.bytes, SIZE as u64);

        let drips = client(dripping(1, Duration::from_secs(60)), timeouts(stall));
        let (_landing, mut window) = landing(4 << 20);
        let began = Instant::now();
        let error = drips.get(&whole(), &mut window).await.unwrap_err();
        let kind = error.kind();
        assert!(matches!(kind, ErrorKind::Timeout { .. }), "{kind:?}");
        assert!(began.elapsed() < 10 * stall, "{:?}", began.elapsed());
    });
}

#[test]
fn a_reset_in_the_middle_is_told() {
    by_each(|| async {
        let headers = [&*format!("Content-Length: {SIZE}"), "ETag: \"a\""];
        let server = Server::one(Reset(answer("200 OK", &headers, &[7; 400_000])));
        let (_landing, mut window) = landing(4 << 20);
        let error = server.client().get(&whole(), &mut window).await;
        let error = error.unwrap_err();
        // After bytes that came before it, io_uring does not tell a reset from an end.
        let kind = error.kind();
        let broken = matches!(kind, ErrorKind::Reset(_) | ErrorKind::Truncated { .. });
        assert!(broken, "{error}");
        assert!(error.is_retryable());
    });
}

#[test]
fn a_connection_that_brings_more_than_its_body_is_not_used_again() {
    let object = object();
    by_each(|| async {
        let more = [
            &*ok(&object),
            b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad",
        ]
        .concat();
        let server = Server::start(vec![vec![Answer(more)], vec![Answer(ok(b"good"))]]);
        let client = server.client();
        for expected in [SIZE as u64, 4] {
            let (landing, mut window) = landing(4 << 20);
            let received = client.get(&whole(), &mut window).await.unwrap();
            assert_eq!(received.bytes, expected);
            drop(window);
            let bytes = bytes(landing);
            assert!(bytes[..4] == object[..4] || bytes[..4] == *b"good");
        }
    });
}

#[test]
fn one_that_nobody_waits_for_any_more_writes_nowhere() {
    by_each(|| async {
        let endpoint = treating(|mut stream| {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\nETag: \"a\"\r\n\r\n");
            stream.write_all(head.as_bytes()).unwrap();
            // Until the client closes.
            while stream.write_all(&[7; 1000]).is_ok() {
                thread::sleep(Duration::from_millis(1));
            }
        });
        let client = client(endpoint, Timeouts::default());
        let (landing, mut window) = landing(4 << 20);
        let part = whole();
        let get = Box::pin(client.get(&part, &mut window));
        let given_up = tokio::time::timeout(Duration::from_millis(50), get).await;
        assert!(given_up.is_err());
        window.settled().await;
        drop(window);
        let buffer = landing.finish().expect("nothing is under way");
        let before = buffer.as_slice().unwrap().to_vec();
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(buffer.as_slice().unwrap() == before);
    });
}
