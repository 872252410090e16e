//! How the client keeps, replaces and closes its connections.

use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use super::server::Server;
use super::server::Step::{Answer, Close, Reset, Silence};
use super::server::{answer, ok};
use super::{failed, get, landing, request, run, whole};
use crate::endpoint::Endpoint;
use crate::error::{ErrorKind, Phase};
use crate::http::{Expected, Stale};

#[test]
fn a_connection_serves_one_request_after_another() {
    let server = Server::start(vec![vec![
        Answer(ok(b"one")),
        Answer(ok(b"two")),
        Answer(ok(b"")),
    ]]);
    let client = server.client();
    run(async {
        for expected in [3, 3, 0] {
            let (_landing, mut window) = landing(16);
            let received = client.get(&whole(), &mut window).await.unwrap();
            assert_eq!(received.bytes, expected);
            assert_eq!(client.idle_connections(), 1);
        }
    });
}

#[test]
fn r19_a_stale_connection_is_replaced_at_once_where_allowed() {
    // The first connection dies as soon as its second request has arrived.
    let server = Server::start(vec![
        vec![Answer(ok(b"one")), Reset(Vec::new())],
        vec![Answer(ok(b"two"))],
    ]);
    let client = server.client();
    run(async {
        for _ in 0..2 {
            let (_landing, mut window) = landing(16);
            assert_eq!(client.get(&whole(), &mut window).await.unwrap().bytes, 3);
        }
    });
    assert_eq!(server.requests.iter().take(3).count(), 3);
}

#[test]
fn a_stale_connection_is_reported_where_a_second_send_could_harm() {
    let server = Server::start(vec![
        vec![Answer(ok(b"one")), Close(Vec::new())],
        vec![Answer(ok(b"two"))],
    ]);
    let client = server.client();
    run(async {
        let response = client.send(&request(Stale::Report)).await.unwrap();
        let (_landing, mut window) = landing(16);
        response
            .receive(&mut window, Expected::Exactly(3))
            .await
            .unwrap();
        let failed = client.send(&request(Stale::Report)).await.err().unwrap();
        assert!(failed.may_have_reached_server);
        assert!(
            matches!(failed.error.kind(), ErrorKind::Reset(_)),
            "{:?}",
            failed.error
        );
    });
}

#[test]
fn a_fresh_connection_that_dies_is_not_replaced() {
    let server = Server::start(vec![vec![Close(Vec::new())], vec![Answer(ok(b"two"))]]);
    let error = get(&server.client(), whole(), 16).map(drop).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Reset(_)), "{error:?}");
}

#[test]
fn a_connection_closed_while_idle_is_not_used_again() {
    let server = Server::start(vec![vec![Close(ok(b"one"))], vec![Answer(ok(b"two"))]]);
    let client = server.client();
    run(async {
        let (_landing, mut window) = landing(16);
        client.get(&whole(), &mut window).await.unwrap();
        // It goes through whether the end of the first connection was seen before or not.
        let response = client.send(&request(Stale::Retry)).await.unwrap();
        assert_eq!(response.content_length(), Some(3));
    });
}

#[test]
fn a_connection_that_an_answer_leaves_in_doubt_is_not_used_again() {
    let length = "Content-Length: 3";
    let chunks = b"3\r\none\r\n0\r\n\r\n";
    for first in [
        // More than the answer, with it or behind it.
        answer(
            "200 OK",
            &[length],
            b"oneHTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad",
        ),
        answer(
            "200 OK",
            &[length],
            &[&b"one"[..], &[b'x'; 50_000]].concat(),
        ),
        answer("200 OK", &[length, "Connection: close"], b"one"),
        answer("200 OK", &[length, "Transfer-Encoding: chunked"], chunks),
        [b"HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\n", &b"one"[..]].concat(),
    ] {
        let text = String::from_utf8_lossy(&first[..40]).into_owned();
        let server = Server::start(vec![vec![Answer(first)], vec![Answer(ok(b"two"))]]);
        let client = server.client();
        run(async {
            for expected in [b"one", b"two"] {
                let (landing, mut window) = landing(16);
                let received = client.get(&whole(), &mut window).await.expect(&text);
                assert_eq!(received.bytes, 3);
                drop(window);
                let buffer = landing.finish().unwrap();
                assert_eq!(&buffer.as_slice().unwrap()[..3], expected, "{text}");
            }
        });
    }
}

#[test]
fn what_only_tells_of_an_answer_is_skipped() {
    let told = [b"HTTP/1.1 100 Continue\r\n\r\n".to_vec(), ok(b"one")].concat();
    let server = Server::start(vec![vec![Answer(told), Answer(ok(b"two"))]]);
    let client = server.client();
    run(async {
        for _ in 0..2 {
            let (_landing, mut window) = landing(16);
            assert_eq!(client.get(&whole(), &mut window).await.unwrap().bytes, 3);
            assert_eq!(client.idle_connections(), 1);
        }
    });
}

#[test]
fn an_answer_that_breaks_off_within_its_head_was_one() {
    // A request over a connection that was idle before is sent again only where nothing was answered.
    let server = Server::start(vec![
        vec![
            Answer(ok(b"one")),
            Close(b"HTTP/1.1 200 OK\r\nContent-".to_vec()),
        ],
        vec![Answer(ok(b"two"))],
    ]);
    let client = server.client();
    run(async {
        let (_landing, mut window) = landing(16);
        client.get(&whole(), &mut window).await.unwrap();
        let error = client.get(&whole(), &mut window).await.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Reset(_)), "{error:?}");
        assert!(
            error.to_string().contains("closed the connection"),
            "{error}"
        );
    });
}

#[test]
fn a_stalled_body_times_out_and_its_connection_is_closed() {
    let server = Server::one(Silence(answer("200 OK", &["Content-Length: 10"], b"abc")));
    let client = server.client();
    run(async {
        let (_landing, mut window) = landing(16);
        let error = client.get(&whole(), &mut window).await.unwrap_err();
        assert!(
            matches!(
                error.kind(),
                ErrorKind::Timeout {
                    phase: Phase::Body,
                    ..
                }
            ),
            "{error:?}"
        );
        assert_eq!(client.idle_connections(), 0);
        // Lets the connection's task end.
        tokio::time::sleep(Duration::from_millis(1)).await;
    });
    assert!(server.next().is_some());
    assert!(server.next().is_none(), "the client closed");
}

#[test]
fn no_answer_at_all_times_out() {
    let error = failed(Silence(Vec::new()), whole());
    assert!(
        matches!(
            error.kind(),
            ErrorKind::Timeout {
                phase: Phase::FirstByte,
                ..
            }
        ),
        "{error:?}"
    );
    assert_eq!(error.phase(), Some(Phase::FirstByte));
}

#[test]
fn an_answer_dropped_before_its_end_closes_its_connection() {
    let server = Server::one(Silence(answer("200 OK", &["Content-Length: 10"], b"abc")));
    let client = server.client();
    run(async {
        let response = client.send(&request(Stale::Report)).await.unwrap();
        assert_eq!(response.content_length(), Some(10));
        drop(response);
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(client.idle_connections(), 0);
        assert!(server.next().is_some());
        assert!(server.next().is_none(), "the client closed");
    });
}

#[test]
fn nobody_listening_is_a_connect_error_that_sent_nothing() {
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let server = Server::start(Vec::new());
    let endpoint = Endpoint::parse(&format!("http://127.0.0.1:{port}")).unwrap();
    let client = Server { endpoint, ..server }.client();
    let failed = run(client.send(&request(Stale::Retry))).err().unwrap();
    assert!(!failed.may_have_reached_server);
    assert!(
        matches!(failed.error.kind(), ErrorKind::Connect(_)),
        "{:?}",
        failed.error
    );
    assert!(failed.error.is_retryable());
}
