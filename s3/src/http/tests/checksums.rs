//! Checksums of bodies: which are asked for, and what the bytes sum up to.

use super::*;
use crate::checksum::{Algorithm, Checksum, Offered, Sum};

const FULL: &str = "x-amz-checksum-type: FULL_OBJECT";
const COMPOSITE: &str = "x-amz-checksum-type: COMPOSITE";

fn of(algorithm: Algorithm, bytes: &[u8]) -> Checksum {
    let mut sum = Sum::new(algorithm);
    sum.update(bytes);
    sum.finish()
}

fn told(checksum: Checksum) -> String {
    let (name, value) = (checksum.algorithm(), checksum.to_base64());
    format!("x-amz-checksum-{name}: {value}")
}

fn object(checksum: Checksum, kind: &str, body: &[u8]) -> Vec<u8> {
    let length = format!("Content-Length: {}", body.len());
    answer("200 OK", &[&length, &told(checksum), kind], body)
}

fn range(of: &str, checksum: Checksum, body: &[u8]) -> Vec<u8> {
    let length = format!("Content-Length: {}", body.len());
    let range = format!("Content-Range: bytes {of}");
    let headers = [&*length, &range, &told(checksum), FULL];
    answer("206 Partial Content", &headers, body)
}

#[test]
fn bytes_are_summed_by_the_algorithm_of_the_objects_checksum() {
    for algorithm in Algorithm::ALL {
        let right = of(*algorithm, b"hello");
        let server = Server::one(Answer(object(right, FULL, b"hello")));
        let (received, _) = get(&server.client(), whole(), 16).unwrap();
        assert_eq!(received.sum, Some(right));
        assert_eq!(received.info.checksum, Some(Offered::Whole(right)));
        let request = server.next().unwrap();
        assert!(request.contains("x-amz-checksum-mode: ENABLED\r\n"));
        assert!(request.contains(";x-amz-checksum-mode;"), "signed");
    }
}

#[test]
fn r57_a_part_is_summed_by_a_crc_and_not_by_a_hash_nor_for_a_composite() {
    let crc = of(Algorithm::Crc64Nvme, b"the whole object");
    let server = Server::one(Answer(range("4-8/16", crc, b"whole")));
    let (received, _) = get(&server.client(), ranged(4, 5), 5).unwrap();
    assert_eq!(received.sum, Some(of(Algorithm::Crc64Nvme, b"whole")));
    assert_eq!(received.info.checksum, Some(Offered::Whole(crc)));

    let hash = of(Algorithm::Sha256, b"the whole object");
    let server = Server::one(Answer(range("4-8/16", hash, b"whole")));
    let (received, _) = get(&server.client(), ranged(4, 5), 5).unwrap();
    assert_eq!(received.sum, None);
    // A range that is all of the object.
    let server = Server::one(Answer(range("0-15/16", hash, b"the whole object")));
    let (received, _) = get(&server.client(), ranged(0, 99), 99).unwrap();
    assert_eq!(received.sum, Some(hash));

    let server = Server::one(Answer(object(crc, COMPOSITE, b"hello")));
    let (received, _) = get(&server.client(), whole(), 16).unwrap();
    assert_eq!(received.sum, None);
    assert_eq!(received.info.checksum, Some(Offered::Composite));
}

#[test]
fn a_checksum_that_is_known_before_counts_where_the_answer_has_none() {
    let crc = of(Algorithm::Crc32c, b"hello");
    let pin = Pin {
        etag: None,
        version_id: None,
        size: 5,
        checksum: Some(Offered::Whole(crc)),
    };
    let part = GetPart {
        pin: Some(&pin),
        ..whole()
    };
    let server = Server::one(Answer(ok(b"hello")));
    let (received, _) = get(&server.client(), part, 16).unwrap();
    assert_eq!(received.sum, Some(crc));
}

#[test]
fn where_none_is_wanted_none_is_asked_for_and_nothing_is_summed() {
    let part = GetPart {
        checksum: Mode::Off,
        ..whole()
    };
    let crc = of(Algorithm::Crc32, b"hello");
    let server = Server::one(Answer(object(crc, FULL, b"hello")));
    let (received, _) = get(&server.client(), part, 16).unwrap();
    assert_eq!(received.sum, None);
    assert!(!server.next().unwrap().contains("x-amz-checksum-mode"));
}

#[test]
fn r58_a_server_that_refuses_the_question_is_not_asked_it_again() {
    for status in ["400 Bad Request", "501 Not Implemented"] {
        for body in [
            &b""[..],
            b"<Error><Code>NotImplemented</Code><Message>no</Message></Error>",
        ] {
            let length = format!("Content-Length: {}", body.len());
            let refused = answer(status, &[&length], body);
            let steps = vec![Answer(refused), Answer(ok(b"one")), Answer(ok(b"two"))];
            let server = Server::start(vec![steps]);
            let client = server.client();
            run(async {
                for _ in 0..2 {
                    let (_landing, mut window) = landing(16);
                    let received = client.get(&whole(), &mut window).await.unwrap();
                    assert_eq!(received.bytes, 3);
                }
            });
            let asked = |request: Option<String>| request.unwrap().contains("x-amz-checksum-mode");
            let asked = [(); 3].map(|()| asked(server.next()));
            assert_eq!(asked, [true, false, false]);
        }
    }
}

#[test]
fn r58_a_refusal_of_something_else_is_what_it_says() {
    let body = b"<Error><Code>InvalidBucketName</Code></Error>";
    let length = format!("Content-Length: {}", body.len());
    let refused = answer("400 Bad Request", &[&length], body);
    let server = Server::start(vec![vec![Answer(refused), Answer(ok(b"one"))]]);
    let client = server.client();
    run(async {
        let (_landing, mut window) = landing(16);
        let error = client.get(&whole(), &mut window).await.unwrap_err();
        assert_eq!(error.code(), Some("InvalidBucketName"));
        client.get(&whole(), &mut window).await.unwrap();
    });
    server.next();
    assert!(server.next().unwrap().contains("x-amz-checksum-mode"));
}

#[test]
fn r59_what_broke_off_is_not_summed_again() {
    let right = of(Algorithm::Crc64Nvme, b"hello");
    let broken = object(right, FULL, b"hello");
    let cut = broken[..broken.len() - 2].to_vec();
    let server = Server::start(vec![vec![Close(cut)], vec![Answer(broken)]]);
    let client = server.client();
    let (_landing, mut window) = landing(16);
    assert!(run(client.get(&whole(), &mut window)).is_err());
    let received = run(client.get(&whole(), &mut window)).unwrap();
    assert_eq!(received.sum, Some(right));
}

#[test]
fn r55_an_object_stored_compressed_is_delivered_as_it_is_stored() {
    // Not even gzip: nothing looks at it.
    let stored = b"\x1f\x8b stored as it was written";
    let length = format!("Content-Length: {}", stored.len());
    let headers = [&*length, "Content-Encoding: gzip"];
    let server = Server::one(Answer(answer("200 OK", &headers, stored)));
    let (received, bytes) = get(&server.client(), whole(), 64).unwrap();
    assert_eq!(&bytes[..received.bytes as usize], stored);
    let request = server.next().unwrap().to_lowercase();
    assert!(
        request.contains("accept-encoding: identity\r\n"),
        "{request}"
    );
}
