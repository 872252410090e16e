//! Signatures that a server refuses: keys that have ended, and clocks that differ.

use std::error::Error as _;
use std::time::{Duration, SystemTime};

use super::server::Step::Answer;
use super::server::{Server, Step, answer, ok, partial};
use super::{get, ranged, run, whole};
use crate::checksum::Mode;
use crate::credentials::Credentials;
use crate::credentials::tests::provider::Script;
use crate::credentials::tests::provider::Step::{self as Fetched, Keys, NotThere};
use crate::error::{Error, ErrorKind};
use crate::http::Client;
use crate::list::ListQuery;
use crate::options::NO_OPTIONS;

const PAGE: &[u8] = b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>";
const HOUR: Duration = Duration::from_secs(3600);

fn refusal(status: &str, code: &str, headers: &[&str]) -> Step {
    let body = format!("<Error><Code>{code}</Code><RequestId>R</RequestId></Error>");
    let length = format!("Content-Length: {}", body.len());
    let headers: Vec<_> = headers.iter().copied().chain([&*length]).collect();
    Answer(answer(status, &headers, body.as_bytes()))
}

fn fetched(steps: impl IntoIterator<Item = Fetched>) -> (Credentials, Script) {
    let script = Script::new(steps);
    (
        Credentials::from_provider("the vault", script.clone()),
        script,
    )
}

/// Who signed a request.
fn signed_by(server: &Server) -> String {
    let request = server.next().unwrap();
    let (_, rest) = request.split_once("Credential=").expect(&request);
    rest.split_once('/').unwrap().0.to_owned()
}

/// What time a signature names.
fn signed_at(server: &Server) -> SystemTime {
    let request = server.next().unwrap();
    let (_, rest) = request.split_once("x-amz-date: ").expect(&request);
    let text = rest.split_once("\r\n").unwrap().0;
    let part = |range: std::ops::Range<usize>| text[range].to_owned();
    let months = "JanFebMarAprMayJunJulAugSepOctNovDec";
    let month: usize = part(4..6).parse().unwrap();
    let (year, month, day) = (part(0..4), &months[month * 3 - 3..month * 3], part(6..8));
    let clock = format!("{}:{}:{}", part(9..11), part(11..13), part(13..15));
    let weekdays = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
    let mut dates = weekdays
        .iter()
        .map(|weekday| format!("{weekday}, {day} {month} {year} {clock} GMT"));
    dates
        .find_map(|date| httpdate::parse_http_date(&date).ok())
        .expect(text)
}

fn date(time: SystemTime) -> String {
    format!("Date: {}", httpdate::fmt_http_date(time))
}

fn is_near(time: SystemTime, other: SystemTime) -> bool {
    let ahead = time.duration_since(other).unwrap_or_default();
    let behind = other.duration_since(time).unwrap_or_default();
    ahead.max(behind) < Duration::from_secs(60)
}

fn head(client: &Client) -> Result<(), Error> {
    run(async { client.head("train", "k", Mode::Off, &NO_OPTIONS).await }).map(drop)
}

#[test]
fn r40_every_verb_is_sent_once_more_with_the_keys_of_now() {
    for code in [
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidToken",
        "TokenRefreshRequired",
    ] {
        let refused = || refusal("400 Bad Request", code, &[]);
        let server = Server::start(vec![vec![refused(), Answer(ok(b"hello"))]]);
        let (credentials, script) = fetched([Keys("old"), Keys("new")]);
        let (received, bytes) = get(&server.client_of(credentials), whole(), 5).unwrap();
        assert_eq!((received.bytes, &bytes[..5]), (5, &b"hello"[..]), "{code}");
        assert_eq!([signed_by(&server), signed_by(&server)], ["old", "new"]);
        assert_eq!(script.fetches(), 2);
    }
    let refused = || refusal("403 Forbidden", "InvalidAccessKeyId", &[]);
    let server = Server::start(vec![vec![refused(), Answer(ok(PAGE))]]);
    let client = server.client_of(fetched([Keys("old"), Keys("new")]).0);
    run(async {
        client
            .list("train", &ListQuery::default(), &NO_OPTIONS)
            .await
    })
    .unwrap();
    assert_eq!([signed_by(&server), signed_by(&server)], ["old", "new"]);

    // The answer to a HEAD has no body to give a code in.
    let bare = || Answer(answer("400 Bad Request", &["Content-Length: 60"], b""));
    let object = || Answer(answer("200 OK", &["Content-Length: 5", "ETag: \"a\""], b""));
    let server = Server::start(vec![vec![bare(), object()]]);
    head(&server.client_of(fetched([Keys("old"), Keys("new")]).0)).unwrap();
    assert_eq!([signed_by(&server), signed_by(&server)], ["old", "new"]);
}

#[test]
fn r40_where_the_keys_stay_the_same_the_error_stays_and_says_so() {
    let refused = || refusal("400 Bad Request", "ExpiredToken", &[]);
    let server = Server::start(vec![vec![refused(), refused()]]);
    let client = server.client_of(fetched([Keys("old")]).0);
    let error = get(&client, whole(), 5).unwrap_err();
    assert_eq!(
        (error.code(), error.request_id()),
        (Some("ExpiredToken"), Some("R"))
    );
    let why = error.source().unwrap().to_string();
    assert_eq!(
        why,
        "no other credentials: the vault gives the same keys again"
    );
    server.next().unwrap();
    assert!(
        server.requests.try_recv().is_err(),
        "sent again for nothing"
    );
    // The connection has been kept.
    assert_eq!(client.idle_connections(), 1);
}

#[test]
fn keys_that_are_fixed_are_not_looked_for() {
    let server = Server::one(refusal("400 Bad Request", "ExpiredToken", &[]));
    let error = get(&server.client(), whole(), 5).unwrap_err();
    assert_eq!(error.code(), Some("ExpiredToken"));
    assert!(error.source().is_none());
}

#[test]
fn keys_that_are_refused_a_second_time_are_an_error() {
    let refused = || refusal("400 Bad Request", "ExpiredToken", &[]);
    let server = Server::start(vec![vec![refused(), refused()]]);
    let client = server.client_of(fetched([Keys("a"), Keys("b"), Keys("c")]).0);
    let error = get(&client, whole(), 5).unwrap_err();
    assert_eq!(error.code(), Some("ExpiredToken"));
    assert_eq!([signed_by(&server), signed_by(&server)], ["a", "b"]);
}

#[test]
fn access_that_is_denied_does_not_have_keys_fetched() {
    let server = Server::one(refusal("403 Forbidden", "AccessDenied", &[]));
    let (credentials, script) = fetched([Keys("a"), Keys("b")]);
    let error = get(&server.client_of(credentials), whole(), 5).unwrap_err();
    assert_eq!((error.code(), script.fetches()), (Some("AccessDenied"), 1));
}

#[test]
fn without_any_keys_the_error_says_who_was_asked_and_nothing_is_sent() {
    let server = Server::one(Answer(ok(b"hello")));
    let error = get(&server.client_of(fetched([NotThere]).0), whole(), 5).unwrap_err();
    let kind = ErrorKind::Credentials("nothing is configured".to_owned());
    assert_eq!(error.kind(), &kind);
    assert!(!error.is_retryable());
    let line = error.to_string();
    assert!(
        line.starts_with("GET s3://train/k: no credentials: nothing is configured at http"),
        "{line}"
    );
    assert!(server.requests.try_recv().is_err());
}

#[test]
fn r43_clock_skew_is_corrected_for_every_request() {
    let now = SystemTime::now();
    for there in [now + HOUR, now - HOUR] {
        let date = date(there);
        let refused = || refusal("403 Forbidden", "RequestTimeTooSkewed", &[&date]);
        let answers = || vec![refused(), Answer(ok(b"hello"))];
        let server = Server::start(vec![answers(), answers(), answers()]);
        let client = server.client();
        // All of them are signed before the first is answered.
        run(async {
            let one = || async {
                let request = client.request(http::Method::GET, "train", "k");
                let answer = client.send(&request).await.unwrap();
                assert_eq!(answer.status().as_u16(), 200);
                answer.finish().await;
            };
            tokio::join!(one(), one(), one());
        });
        let times: Vec<_> = (0..6).map(|_| signed_at(&server)).collect();
        let right = times.iter().filter(|time| is_near(**time, there)).count();
        let wrong = times.iter().filter(|time| is_near(**time, now)).count();
        assert_eq!((right, wrong), (3, 3), "{times:?}");
    }
}

#[test]
fn r43_a_clock_that_is_put_right_is_believed_again() {
    let now = SystemTime::now();
    let (there, right) = (date(now + HOUR), date(now));
    let object = || {
        let headers = ["Content-Length: 5", "ETag: \"a\"", &right];
        Answer(answer("200 OK", &headers, b""))
    };
    let refused = answer("403 Forbidden", &["Content-Length: 60", &there], b"");
    let server = Server::start(vec![vec![Answer(refused), object(), object()]]);
    let client = server.client();
    run(async {
        client
            .head("train", "k", Mode::Off, &NO_OPTIONS)
            .await
            .unwrap();
        client
            .head("train", "k", Mode::Off, &NO_OPTIONS)
            .await
            .unwrap();
    });
    let times: Vec<_> = (0..3).map(|_| signed_at(&server)).collect();
    assert!(
        is_near(times[1], now + HOUR) && is_near(times[2], now),
        "{times:?}"
    );
}

#[test]
fn r43_a_refusal_that_does_not_name_the_clock_is_tried_with_the_servers_time() {
    let there = date(SystemTime::now() - HOUR);
    for code in ["SignatureDoesNotMatch", "AccessDenied"] {
        let refused = refusal("403 Forbidden", code, &[&there]);
        let part = partial("5-9/100", "\"a\"", b"fghij");
        let server = Server::start(vec![vec![refused, Answer(part)]]);
        get(&server.client(), ranged(5, 5), 5).unwrap();
    }
    let bare = Answer(answer(
        "403 Forbidden",
        &["Content-Length: 60", &there],
        b"",
    ));
    let object = Answer(answer("200 OK", &["Content-Length: 5", "ETag: \"a\""], b""));
    let server = Server::start(vec![vec![bare, object]]);
    head(&server.client()).unwrap();
    // Where the clocks agree it is what it says.
    let here = date(SystemTime::now());
    let server = Server::one(refusal("403 Forbidden", "SignatureDoesNotMatch", &[&here]));
    let error = get(&server.client(), whole(), 5).unwrap_err();
    assert_eq!(error.code(), Some("SignatureDoesNotMatch"));
}

#[test]
fn a_clock_and_keys_that_are_both_wrong_are_both_put_right() {
    let there = date(SystemTime::now() + HOUR);
    let server = Server::start(vec![vec![
        refusal("403 Forbidden", "RequestTimeTooSkewed", &[&there]),
        refusal("400 Bad Request", "ExpiredToken", &[&there]),
        Answer(ok(b"hello")),
    ]]);
    get(
        &server.client_of(fetched([Keys("a"), Keys("b")]).0),
        whole(),
        5,
    )
    .unwrap();
    assert_eq!(
        [signed_by(&server), signed_by(&server), signed_by(&server)],
        ["a", "a", "b"]
    );
}

#[test]
fn anonymous_requests_are_not_sent_again_for_their_signature() {
    let there = date(SystemTime::now() + HOUR);
    let server = Server::one(refusal("403 Forbidden", "AccessDenied", &[&there]));
    let error = get(&server.client_of(Credentials::anonymous()), whole(), 5).unwrap_err();
    assert_eq!(error.code(), Some("AccessDenied"));
}
