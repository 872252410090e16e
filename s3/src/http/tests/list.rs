//! Lists: what is sent, and every way in which an answer is no page.

use super::run;
use super::server::Server;
use super::server::Step::{self, Answer, Close, Silence};
use super::server::{answer, ok};
use crate::error::{Error, ErrorKind, Phase};
use crate::list::{ListPage, ListQuery};
use crate::options::NO_OPTIONS;

const PAGE: &str = "<ListBucketResult><IsTruncated>false</IsTruncated>\
     <Contents><Key>a</Key><Size>3</Size></Contents></ListBucketResult>";

fn list(server: &Server) -> Result<ListPage, Error> {
    let client = server.client();
    run(async {
        client
            .list("train", &ListQuery::default(), &NO_OPTIONS)
            .await
    })
}

fn refused(step: Step) -> Error {
    list(&Server::one(step)).unwrap_err()
}

#[test]
fn a_query_is_sent_encoded_and_its_connection_serves_the_next() {
    let server = Server::start(vec![vec![
        Answer(ok(PAGE.as_bytes())),
        Answer(ok(PAGE.as_bytes())),
    ]]);
    let client = server.client();
    let query = ListQuery {
        prefix: "a".into(),
        delimiter: Some("/".into()),
        continuation: Some("t+/=".into()),
        ..ListQuery::default()
    };
    run(async {
        for _ in 0..2 {
            let page = client.list("train", &query, &NO_OPTIONS).await.unwrap();
            assert_eq!(
                (page.objects[0].key.as_str(), page.objects[0].size),
                ("a", 3)
            );
            assert_eq!(client.idle_connections(), 1);
        }
    });
    let request = server.next().unwrap();
    let line = "GET /train?list-type=2&encoding-type=url&prefix=a&delimiter=%2F&continuation-token=t%2B%2F%3D HTTP/1.1\r\n";
    assert!(request.starts_with(line), "{request}");
    assert!(request.to_lowercase().contains("authorization: aws4"));
}

#[test]
fn an_error_says_that_it_was_a_list_and_of_what() {
    let body = b"<Error><Code>NoSuchBucket</Code><RequestId>R</RequestId></Error>";
    let error = refused(Answer(answer(
        "404 Not Found",
        &["Content-Length: 64"],
        body,
    )));
    assert!(error.is_not_found());
    let line = error.to_string();
    assert!(
        line.starts_with("LIST s3://train: 404 NoSuchBucket (request R) at http://127.0.0.1:"),
        "{line}"
    );
    let error = refused(Answer(answer("204 No Content", &[], b"")));
    assert_eq!(error.status(), Some(204));
}

#[test]
fn an_s3_error_in_a_success_is_that_error() {
    let error = refused(Answer(ok(b"<Error><Code>SlowDown</Code></Error>")));
    assert_eq!(
        (error.status(), error.code()),
        (Some(200), Some("SlowDown"))
    );
    assert!(error.is_retryable());
}

#[test]
fn a_body_that_ends_early_or_stops_is_no_shorter_list() {
    let half = &PAGE.as_bytes()[..40];
    let length = format!("Content-Length: {}", PAGE.len());
    let error = refused(Close(answer("200 OK", &[&length], half)));
    let (received, expected) = (40, PAGE.len() as u64);
    assert_eq!(*error.kind(), ErrorKind::Truncated { received, expected });
    let error = refused(Silence(answer("200 OK", &[&length], half)));
    assert!(matches!(
        error.kind(),
        ErrorKind::Timeout {
            phase: Phase::Body,
            ..
        }
    ));
    // Nothing announces the length of these.
    for (headers, body) in [
        (&["Connection: close"], half),
        (&["Connection: close"], &b""[..]),
        (&["Content-Length: 40"], half),
    ] {
        let error = refused(Close(answer("200 OK", headers, body)));
        assert!(error.to_string().contains("breaks off"), "{error}");
    }
    let chunked = answer("200 OK", &["Transfer-Encoding: chunked"], b"5\r\n<List\r\n");
    assert!(refused(Close(chunked)).is_retryable());
}

#[test]
fn a_list_longer_than_any_page_is_not_read() {
    let error = refused(Answer(answer("200 OK", &["Content-Length: 99999999"], b"")));
    assert!(
        matches!(error.kind(), ErrorKind::Protocol(text) if text.contains("99999999")),
        "{error}"
    );
    let spaces = vec![b' '; (16 << 20) + 1];
    let error = refused(Close(answer("200 OK", &["Connection: close"], &spaces)));
    assert!(
        matches!(error.kind(), ErrorKind::Protocol(text) if text.contains("16777216")),
        "{error}"
    );
}

#[test]
fn a_bucket_that_cannot_be_one_is_refused_before_anything_is_sent() {
    let server = Server::start(vec![]);
    let client = server.client();
    let error =
        run(async { client.list("a/b", &ListQuery::default(), &NO_OPTIONS).await }).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Config(_)));
    assert_eq!(error.operation(), "LIST");
}
