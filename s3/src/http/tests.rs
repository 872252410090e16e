//! The client against a server that follows a script, byte by byte.

mod checksums;
mod connections;
mod dial;
mod large;
mod list;
mod opening;
mod options;
mod redirect;
mod resume;
mod server;
mod signed;
mod tls;

use std::future::Future;
use std::time::Duration;

use s3engine_pool::{HugePages, Landing, Memory, Pool, PoolOptions, Window};

use self::server::Step::{Answer, Close, Reset, Silence};
use self::server::{Server, Step, answer, ok, partial};
use super::*;
use crate::checksum::Mode;
use crate::error::{Error, ErrorKind, Phase};
use crate::object::{ETag, Pin};
use crate::options::{NO_OPTIONS, RequestOptions};
use crate::outcome::Reason;
use crate::range::ByteRange;

fn run<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let bounded = async {
        tokio::time::timeout(Duration::from_secs(20), work)
            .await
            .expect("bounded")
    };
    tokio::task::LocalSet::new().block_on(&runtime, bounded)
}

fn landing(len: u64) -> (Landing, Window) {
    let options = PoolOptions {
        slab_bytes: 2 << 20,
        huge_pages: HugePages::Never,
        ..PoolOptions::default()
    };
    let buffer = Pool::new(options)
        .unwrap()
        .try_alloc(len, Memory::Host)
        .unwrap();
    let mut landing = buffer.into_landing();
    let window = landing.window(0, len).unwrap();
    (landing, window)
}

fn whole() -> GetPart<'static> {
    GetPart {
        bucket: "train",
        key: "k",
        range: None,
        pin: None,
        if_match: None,
        checksum: Mode::WhenOffered,
        options: &NO_OPTIONS,
    }
}

fn ranged(offset: u64, len: u64) -> GetPart<'static> {
    GetPart {
        range: Some(ByteRange::new(offset, len).unwrap()),
        ..whole()
    }
}

/// One GET into a window of `len` bytes, and what the window then holds.
fn get(client: &Client, part: GetPart<'_>, len: u64) -> Result<(Received, Vec<u8>), Error> {
    let (landing, mut window) = landing(len);
    let received = run(client.get(&part, &mut window))?;
    drop(window);
    let buffer = landing.finish().expect("nothing is under way");
    Ok((received, buffer.as_slice().unwrap().to_vec()))
}

fn failed(step: Step, part: GetPart<'_>) -> Error {
    let server = Server::one(step);
    get(&server.client(), part, 16).map(drop).unwrap_err()
}

#[test]
fn a_whole_object_lands_in_the_window() {
    let server = Server::one(Answer(answer(
        "200 OK",
        &[
            "Content-Length: 5",
            "ETag: \"a\"",
            "x-amz-request-id: R1",
            "x-amz-version-id: v",
        ],
        b"hello",
    )));
    let (received, bytes) = get(&server.client(), whole(), 8).unwrap();
    assert_eq!((received.bytes, received.status), (5, 200));
    assert_eq!(received.info.etag, Some(ETag::new("\"a\"")));
    assert_eq!(received.info.size, Some(5));
    assert_eq!(received.request_id.as_deref(), Some("R1"));
    assert_eq!(&bytes[..5], b"hello");
    let request = server.next().unwrap().to_lowercase();
    assert!(
        request.starts_with("get /train/k http/1.1\r\n"),
        "{request}"
    );
    for header in [
        "accept-encoding: identity",
        "x-amz-content-sha256: unsigned-payload",
        "authorization: aws4",
    ] {
        assert!(request.contains(header), "{header} in {request}");
    }
}

#[test]
fn a_pinned_range_is_asked_for_and_lands_in_the_window() {
    let server = Server::one(Answer(partial("5-9/100", "\"a\"", b"fghij")));
    let pin = Pin {
        etag: Some(ETag::new("\"a\"")),
        version_id: Some("v/1".into()),
        size: 100,
        checksum: None,
    };
    let (received, bytes) = get(
        &server.client(),
        GetPart {
            pin: Some(&pin),
            ..ranged(5, 5)
        },
        5,
    )
    .unwrap();
    assert_eq!((received.bytes, received.info.size), (5, Some(100)));
    assert_eq!(bytes[..5], *b"fghij");
    let request = server.next().unwrap();
    assert!(
        request.starts_with("GET /train/k?versionId=v%2F1 HTTP/1.1\r\n"),
        "{request}"
    );
    assert!(
        request.contains("range: bytes=5-9\r\n") && request.contains("if-match: \"a\"\r\n"),
        "{request}"
    );
    assert!(
        request.contains("SignedHeaders=host;if-match;range;"),
        "{request}"
    );
}

#[test]
fn a_large_body_in_many_pieces_arrives_whole() {
    let body: Vec<u8> = (0..3_000_000_u32).map(|i| (i % 251) as u8).collect();
    let server = Server::one(Answer(ok(&body)));
    let (received, bytes) = get(&server.client(), whole(), body.len() as u64).unwrap();
    assert_eq!(received.bytes, body.len() as u64);
    assert!(bytes[..body.len()] == body[..]);
}

#[test]
fn a_chunked_body_counts_against_the_window() {
    let chunked = |body: &[u8]| answer("200 OK", &["Transfer-Encoding: chunked"], body);
    let server = Server::one(Answer(chunked(b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")));
    let (received, bytes) = get(&server.client(), whole(), 16).unwrap();
    assert_eq!((received.bytes, &bytes[..5]), (5, &b"abcde"[..]));

    let longer = failed(
        Answer(chunked(b"11\r\n0123456789abcdefg\r\n0\r\n\r\n")),
        whole(),
    );
    assert_eq!(
        longer.kind(),
        &ErrorKind::BufferTooSmall {
            needed: 17,
            have: 16
        }
    );
    let cut = failed(Close(chunked(b"3\r\nabc\r\n")), whole());
    assert!(cut.is_retryable(), "{cut}");
    let garbage = failed(Answer(chunked(b"3\r\nabc\r\nzz\r\n")), whole());
    assert!(
        matches!(garbage.kind(), ErrorKind::Protocol(_)),
        "{garbage:?}"
    );
}

#[test]
fn a_chunked_range_must_have_the_length_of_its_content_range() {
    let head = ["Transfer-Encoding: chunked", "Content-Range: bytes 0-4/9"];
    let chunked = |body: &[u8]| answer("206 Partial Content", &head, body);
    let short = failed(Answer(chunked(b"3\r\nabc\r\n0\r\n\r\n")), ranged(0, 5));
    assert_eq!(
        short.kind(),
        &ErrorKind::Truncated {
            received: 3,
            expected: 5
        }
    );
    let long = failed(Answer(chunked(b"6\r\nabcdef\r\n0\r\n\r\n")), ranged(0, 5));
    assert!(matches!(long.kind(), ErrorKind::Protocol(_)), "{long:?}");
}

#[test]
fn r17_a_truncated_body_says_how_much_arrived() {
    let error = failed(
        Close(answer("200 OK", &["Content-Length: 10"], b"abc")),
        whole(),
    );
    assert_eq!(
        error.kind(),
        &ErrorKind::Truncated {
            received: 3,
            expected: 10
        }
    );
    assert_eq!(error.phase(), Some(Phase::Body));
    assert!(error.is_retryable() && error.address().is_some());
    assert!(std::error::Error::source(&error).is_some());
}

#[test]
fn a_reset_body_is_a_lost_connection() {
    let error = failed(
        Reset(answer("200 OK", &["Content-Length: 10"], b"abc")),
        whole(),
    );
    assert!(matches!(error.kind(), ErrorKind::Reset(_)), "{error:?}");
    assert!(error.is_retryable());
}

#[test]
fn bytes_of_another_place_or_version_are_never_taken() {
    let wrong = failed(Answer(partial("6-10/100", "\"a\"", b"fghij")), ranged(5, 5));
    assert!(matches!(wrong.kind(), ErrorKind::Protocol(_)), "{wrong:?}");
    assert!(!wrong.is_retryable());

    let pin = Pin {
        etag: Some(ETag::new("\"a\"")),
        version_id: None,
        size: 100,
        checksum: None,
    };
    let pinned = GetPart {
        pin: Some(&pin),
        ..ranged(5, 5)
    };
    let mixed = failed(Answer(partial("5-9/100", "\"b\"", b"fghij")), pinned);
    assert_eq!(mixed.reason(), Reason::Modified, "{mixed}");
    let failed_match = failed(
        Answer(answer(
            "412 Precondition Failed",
            &["Content-Length: 0"],
            b"",
        )),
        pinned,
    );
    assert_eq!(failed_match.reason(), Reason::Modified, "{failed_match}");
}

#[test]
fn an_object_larger_than_the_window_is_refused_before_its_body() {
    let server = Server::one(Silence(answer("200 OK", &["Content-Length: 17"], b"")));
    let error = get(&server.client(), whole(), 16).map(drop).unwrap_err();
    assert_eq!(
        error.kind(),
        &ErrorKind::BufferTooSmall {
            needed: 17,
            have: 16
        }
    );
}

#[test]
fn an_empty_object_is_a_success_however_the_server_says_it() {
    let body = b"<Error><Code>InvalidRange</Code><ActualObjectSize>0</ActualObjectSize></Error>";
    let length = format!("Content-Length: {}", body.len());
    for headers in [
        &[length.as_str(), "Content-Range: bytes */0"][..],
        &[length.as_str()][..],
    ] {
        let server = Server::one(Answer(answer("416 Range Not Satisfiable", headers, body)));
        let client = server.client();
        let (received, _) = get(&client, ranged(0, 16), 16).unwrap();
        assert_eq!((received.bytes, received.info.size), (0, Some(0)));
    }
    let past = failed(
        Answer(answer(
            "416 Range Not Satisfiable",
            &["Content-Length: 0", "Content-Range: bytes */7"],
            b"",
        )),
        ranged(7, 1),
    );
    assert_eq!(
        past.kind(),
        &ErrorKind::RangeNotSatisfiable { size: Some(7) }
    );
    assert_eq!(past.status(), Some(416));
}

#[test]
fn an_s3_error_keeps_its_code_message_ids_and_wait() {
    let body =
        b"<Error><Code>SlowDown</Code><Message>Reduce</Message><RequestId>X9</RequestId></Error>";
    let length = format!("Content-Length: {}", body.len());
    let error = failed(
        Answer(answer(
            "503 Service Unavailable",
            &[&length, "Retry-After: 7"],
            body,
        )),
        whole(),
    );
    assert_eq!(
        (error.status(), error.code(), error.message()),
        (Some(503), Some("SlowDown"), Some("Reduce"))
    );
    assert_eq!(
        (error.request_id(), error.retry_after()),
        (Some("X9"), Some(Duration::from_secs(7)))
    );
    assert!(error.is_retryable());
    let line = error.to_string();
    assert!(
        line.starts_with("GET s3://train/k: 503 SlowDown (request X9) at http://127.0.0.1:"),
        "{line}"
    );
}

#[test]
fn an_error_whose_body_breaks_off_or_stalls_keeps_its_status() {
    for step in [
        Close(answer(
            "403 Forbidden",
            &["Content-Length: 100"],
            b"<Error><Code>Acc",
        )),
        Silence(answer(
            "403 Forbidden",
            &["Content-Length: 100"],
            b"<Error><Code>Acc",
        )),
        Answer(answer(
            "403 Forbidden",
            &["Content-Length: 100000"],
            &[b'x'; 100_000],
        )),
    ] {
        let error = failed(step, whole());
        assert_eq!((error.status(), error.code()), (Some(403), None));
    }
}

#[test]
fn what_a_server_repeats_of_a_signature_is_not_shown() {
    let body =
        "<Error><Code>X</Code><Message>got hidden, Signature=0123abcdef, x</Message></Error>";
    let length = format!("Content-Length: {}", body.len());
    let error = failed(
        Answer(answer("403 Forbidden", &[&length], body.as_bytes())),
        whole(),
    );
    let told = format!("{error:#}");
    assert!(
        told.contains("got <redacted>, Signature=<redacted>, x"),
        "{told}"
    );
}

#[test]
fn answers_that_only_announce_another_one_have_an_end() {
    let many = "HTTP/1.1 100 Continue\r\n\r\n".repeat(20_000);
    let error = failed(Answer(many.into_bytes()), whole());
    let line = error.to_string();
    assert!(line.contains("bytes of heads, and no answer"), "{line}");
}

#[test]
fn several_ranges_or_tags_in_one_answer_are_refused() {
    let several = "Content-Type: multipart/byteranges; boundary=x";
    let headers = ["Content-Length: 5", "Content-Range: bytes 0-4/5", several];
    let error = failed(
        Answer(answer("206 Partial Content", &headers, b"hello")),
        ranged(0, 5),
    );
    assert!(
        error.to_string().contains("multipart/byteranges"),
        "{error}"
    );
    let headers = ["Content-Length: 5", "ETag: \"a\"", "ETag: \"b\""];
    let error = failed(Answer(answer("200 OK", &headers, b"hello")), whole());
    assert!(error.to_string().contains("two different ETags"), "{error}");
}

#[test]
fn what_a_server_sends_too_much_never_gets_into_memory() {
    let behind = |status, headers: &[&str], body: &[u8]| {
        [answer(status, headers, body), vec![b'x'; 100_000]].concat()
    };
    for bytes in [
        behind("200 OK", &["Content-Length: 10"], b""),
        behind(
            "200 OK",
            &["Content-Length: 10", "Transfer-Encoding: chunked"],
            b"a\r\n",
        ),
        behind("206 Partial Content", &["Content-Range: bytes 0-9/10"], b""),
    ] {
        let server = Server::one(Close(bytes));
        let (landing, mut window) = landing(4096);
        // Whether it is taken for right or not.
        let _ = run(server.client().get(&ranged(0, 10), &mut window));
        drop(window);
        let buffer = landing.finish().unwrap();
        assert_eq!(buffer.as_slice().unwrap()[10..], [0; 4096 - 10]);
    }
}

#[test]
fn what_is_not_http_is_a_bad_answer() {
    let error = failed(Close(b"SSH-2.0-OpenSSH_9.9\r\n\r\n".to_vec()), whole());
    assert!(matches!(error.kind(), ErrorKind::Protocol(_)), "{error:?}");
    assert!(!error.is_retryable());
}

fn request(stale: Stale) -> Request<'static> {
    Request {
        method: http::Method::GET,
        bucket: "train",
        key: "k",
        query: &[],
        headers: http::HeaderMap::new(),
        first_byte: Duration::from_secs(5),
        stale,
        rail: None,
    }
}

#[test]
fn head_gives_the_facts_and_its_errors_the_status() {
    let facts = answer(
        "200 OK",
        &[
            "Content-Length: 5000000000",
            "ETag: \"a\"",
            "x-amz-request-id: R1",
        ],
        b"",
    );
    let missing = answer("404 Not Found", &["Content-Length: 300"], b"");
    let server = Server::start(vec![vec![Answer(facts), Answer(missing)]]);
    let client = server.client();
    run(async {
        let head = client
            .head("train", "k", Mode::WhenOffered, &NO_OPTIONS)
            .await
            .unwrap();
        assert_eq!(head.info.size, Some(5_000_000_000));
        assert_eq!(head.request_id.as_deref(), Some("R1"));
        let error = client
            .head("train", "k", Mode::WhenOffered, &NO_OPTIONS)
            .await
            .unwrap_err();
        assert!(error.is_not_found());
        assert!(
            error
                .to_string()
                .starts_with("HEAD s3://train/k: 404 Not Found at"),
            "{error}"
        );
        assert_eq!(client.idle_connections(), 1);
    });
}

#[test]
fn what_cannot_be_asked_for_is_refused_before_a_connection() {
    let server = Server::start(Vec::new());
    let client = server.client();
    let long = "x".repeat(70_000);
    for part in [
        GetPart { key: "", ..whole() },
        GetPart {
            bucket: "a/b",
            ..whole()
        },
        GetPart {
            key: &long,
            ..whole()
        },
        GetPart {
            if_match: Some(&ETag::new("a\nb")),
            ..whole()
        },
    ] {
        let error = get(&client, part, 16).map(drop).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Config(_)), "{error:?}");
    }
}
