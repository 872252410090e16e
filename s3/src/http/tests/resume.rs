//! Parts that break off and go on.

use super::server::Step::{Answer, Close, Silence};
use super::server::{Server, Step, answer, ok, partial};
use super::*;
use crate::checksum::{Algorithm, Checksum, Offered, Sum};

/// Attempts at one part, one for each step, each on a connection of its own. What the last one gave, what the window
/// then holds, and the requests.
fn attempts(
    steps: Vec<Step>,
    part: GetPart<'_>,
    len: u64,
) -> (Result<Received, Error>, Vec<u8>, Vec<String>) {
    let count = steps.len();
    let server = Server::start(steps.into_iter().map(|step| vec![step]).collect());
    let client = server.client();
    let (landing, mut window) = landing(len);
    let mut kept = Kept::default();
    let mut last = None;
    for nth in 0..count {
        assert!(
            last.is_none_or(|result: Result<_, Error>| result.is_err_and(|e| e.is_retryable())),
            "attempt {nth} has failed and may pass"
        );
        last = Some(run(client.resume(&part, &mut window, &mut kept)));
    }
    drop(window);
    let bytes = landing.finish().unwrap().as_slice().unwrap().to_vec();
    let heads = std::iter::repeat_with(|| server.next());
    let requests = heads.flatten().take(count).collect();
    (last.unwrap(), bytes, requests)
}

fn cut(status: &str, headers: &[&str], body: &[u8]) -> Step {
    let headers = [headers, &["ETag: \"a\""]].concat();
    Close(answer(status, &headers, body))
}

fn cut_range(body: &[u8]) -> Step {
    let headers = ["Content-Length: 10", "Content-Range: bytes 100-109/500"];
    cut("206 Partial Content", &headers, body)
}

#[test]
fn r24_a_broken_body_goes_on_from_the_byte_after_the_last_one() {
    let headers = [
        "Content-Length: 6",
        "Content-Range: bytes 104-109/500",
        "ETag: \"a\"",
    ];
    let silent = answer("206 Partial Content", &headers, b"45");
    let steps = vec![
        cut_range(b"0123"),
        Silence(silent),
        Answer(partial("106-109/500", "\"a\"", b"6789")),
    ];
    let (received, bytes, requests) = attempts(steps, ranged(100, 10), 16);
    let received = received.unwrap();
    assert_eq!((received.bytes, received.info.size), (10, Some(500)));
    assert_eq!(&bytes[..10], b"0123456789");
    for (request, range) in requests.iter().zip(["100-109", "104-109", "106-109"]) {
        assert!(
            request.contains(&format!("range: bytes={range}\r\n")),
            "{request}"
        );
    }
    assert!(!requests[0].contains("if-match"), "{}", requests[0]);
    for request in &requests[1..] {
        assert!(request.contains("if-match: \"a\"\r\n"), "{request}");
    }
}

#[test]
fn r24_a_whole_object_goes_on_too_whether_its_length_is_known_or_not() {
    let known = cut("200 OK", &["Content-Length: 10"], b"01234");
    let chunked = cut("200 OK", &["Transfer-Encoding: chunked"], b"5\r\n01234\r\n");
    for (first, range, rest) in [
        (known, "5-9", partial("5-9/10", "\"a\"", b"56789")),
        // Its last byte is asked for again: where the object ended there, the answer would say so.
        (chunked, "4-15", partial("4-9/10", "\"a\"", b"456789")),
    ] {
        let (received, bytes, requests) = attempts(vec![first, Answer(rest)], whole(), 16);
        assert_eq!(received.unwrap().bytes, 10);
        assert_eq!(&bytes[..10], b"0123456789");
        let asked = format!("range: bytes={range}\r\n");
        assert!(requests[1].contains(&asked), "{}", requests[1]);
    }
    // Only the end was missing.
    let ended = cut("200 OK", &["Transfer-Encoding: chunked"], b"5\r\n01234\r\n");
    let rest = Answer(partial("4-4/5", "\"a\"", b"4"));
    let (received, bytes, _) = attempts(vec![ended, rest], whole(), 16);
    assert_eq!((received.unwrap().bytes, &bytes[..5]), (5, &b"01234"[..]));
}

#[test]
fn r5_more_than_was_asked_for_is_taken_with_its_beginning_skipped() {
    for more in [
        partial("100-109/500", "\"a\"", b"XXXX456789"),
        partial("103-109/500", "\"a\"", b"X456789"),
    ] {
        let steps = vec![cut_range(b"0123"), Answer(more)];
        let (received, bytes, _) = attempts(steps, ranged(100, 10), 16);
        assert_eq!(received.unwrap().bytes, 10);
        assert_eq!(&bytes[..10], b"0123456789");
    }
    // A server that knows no ranges.
    let first = cut("200 OK", &["Content-Length: 10"], b"0123");
    let (received, bytes, _) = attempts(vec![first, Answer(ok(b"XXXX456789"))], whole(), 16);
    assert_eq!(received.unwrap().bytes, 10);
    assert_eq!(&bytes[..10], b"0123456789");
}

#[test]
fn r5_other_bytes_than_the_rest_are_never_taken() {
    for wrong in [
        partial("105-109/500", "\"a\"", b"56789"),
        partial("0-5/500", "\"a\"", b"XXXXXX"),
        partial("104-108/500", "\"a\"", b"45678"),
        partial("99-109/500", "\"a\"", b"XXXXX456789"),
        ok(b"XXXX456789"),
    ] {
        let steps = vec![cut_range(b"0123"), Answer(wrong)];
        let (received, ..) = attempts(steps, ranged(100, 10), 16);
        let error = received.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Protocol(_)), "{error}");
        assert!(!error.is_retryable());
    }
}

#[test]
fn r24_another_version_is_told_and_one_that_cannot_be_told_begins_anew() {
    for other in [
        partial("104-109/500", "\"b\"", b"456789"),
        partial("104-109/501", "\"a\"", b"456789"),
        answer("412 Precondition Failed", &["Content-Length: 0"], b""),
    ] {
        let steps = vec![cut_range(b"0123"), Answer(other)];
        let (received, ..) = attempts(steps, ranged(100, 10), 16);
        assert_eq!(received.unwrap_err().reason(), Reason::Modified);
    }
    let unsatisfied = answer(
        "416 Range Not Satisfiable",
        &["Content-Length: 0", "Connection: close"],
        b"",
    );
    let steps = vec![
        cut_range(b"XXXX"),
        Close(unsatisfied),
        Answer(partial("100-109/500", "\"b\"", b"0123456789")),
    ];
    let (received, bytes, _) = attempts(steps, ranged(100, 10), 16);
    assert_eq!(received.unwrap().bytes, 10);
    assert_eq!(&bytes[..10], b"0123456789");
    for etag in [
        &["Content-Length: 10"][..],
        &["Content-Length: 10", "ETag: W/\"a\""],
    ] {
        let first = Close(answer("200 OK", etag, b"XXXX"));
        let (received, bytes, requests) =
            attempts(vec![first, Answer(ok(b"0123456789"))], whole(), 16);
        assert_eq!(received.unwrap().bytes, 10);
        assert_eq!(&bytes[..10], b"0123456789");
        assert!(!requests[1].contains("range"), "{}", requests[1]);
    }
}

#[test]
fn r24_a_failure_before_the_body_keeps_what_is_there() {
    let busy = answer(
        "503 Slow Down",
        &["Content-Length: 0", "Connection: close"],
        b"",
    );
    let steps = vec![
        cut_range(b"0123"),
        Close(busy),
        Close(Vec::new()),
        Answer(partial("104-109/500", "\"a\"", b"456789")),
    ];
    let (received, bytes, _) = attempts(steps, ranged(100, 10), 16);
    assert_eq!(received.unwrap().bytes, 10);
    assert_eq!(&bytes[..10], b"0123456789");
}

#[test]
fn r16_a_body_that_is_short_or_empty_is_never_a_success() {
    let chunked = ["Transfer-Encoding: chunked", "Content-Range: bytes 0-4/9"];
    for step in [
        Close(answer("200 OK", &["Content-Length: 5"], b"")),
        Close(answer("200 OK", &["Content-Length: 5"], b"1234")),
        Close(answer("200 OK", &[], b"12345")),
        Close(answer(
            "206 Partial Content",
            &["Content-Range: bytes 0-4/9"],
            b"",
        )),
        Close(answer("206 Partial Content", &chunked, b"0\r\n\r\n")),
        Answer(answer("206 Partial Content", &["Content-Length: 0"], b"")),
        Answer(answer("204 No Content", &["Content-Length: 0"], b"")),
    ] {
        let server = Server::one(step);
        let error = get(&server.client(), ranged(0, 5), 16).map(drop);
        assert!(error.is_err());
    }
}

#[test]
fn r59_the_sum_of_a_part_goes_on_with_what_is_kept_of_it() {
    for algorithm in Algorithm::ALL {
        let right = sum_of(*algorithm, b"0123456789");
        let told = format!("x-amz-checksum-{algorithm}: {}", right.to_base64());
        for first in [b"0123", b"01x3"] {
            let rest = ["Content-Length: 6", "Content-Range: bytes 4-9/10"];
            let steps = vec![
                cut("200 OK", &["Content-Length: 10", &told], first),
                cut("206 Partial Content", &rest, b"45"),
                Answer(partial("6-9/10", "\"a\"", b"6789")),
            ];
            let (received, bytes, _) = attempts(steps, whole(), 16);
            let received = received.unwrap();
            // What was wrong before the cut is found as well, and what is told once counts for all answers.
            assert_eq!(received.sum, Some(sum_of(*algorithm, &bytes[..10])));
            assert_eq!(received.sum == Some(right), first == b"0123");
            assert_eq!(received.info.checksum, Some(Offered::Whole(right)));
        }
    }
}

#[test]
fn r59_what_is_fetched_anew_is_summed_anew() {
    let right = sum_of(Algorithm::Crc32, b"0123456789");
    let told = format!("x-amz-checksum-crc32: {}", right.to_base64());
    let headers = ["Content-Length: 10", &*told];
    // Without a tag nothing is gone on with.
    let steps = vec![
        Close(answer("200 OK", &headers, b"0123")),
        Answer(answer("200 OK", &headers, b"0123456789")),
    ];
    let (received, ..) = attempts(steps, whole(), 16);
    assert_eq!(received.unwrap().sum, Some(right));
}

fn sum_of(algorithm: Algorithm, bytes: &[u8]) -> Checksum {
    let mut sum = Sum::new(algorithm);
    sum.update(bytes);
    sum.finish()
}
