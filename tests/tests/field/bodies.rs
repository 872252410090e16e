//! Bodies that are not what their heads say, or are not said to be what they are.

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::thread;

use s3engine::{ErrorKind, Policy, Reason};
use s3engine_tests::{Thing, Verb, block_on, on_both_hosts, quick_builder};
use s3sim::{Action, Garbage, Kind, Rule};

use super::{always, ask_all, assert_all, assert_none, assert_overcome, first, in_bodies, rig};

const HTTP: &[Policy] = &[Policy::Http];
/// Verbs with a body, one of each kind: where all attempts fail, each takes its time.
const WITH_BODY: [Verb; 4] = [Verb::List, Verb::Whole, Verb::Given, Verb::Piece];

fn headers(set: &[(&str, &str)], drop: &[&str]) -> Action {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    Action::Headers {
        set: set.iter().map(owned).collect(),
        drop: drop.iter().map(|name| (*name).to_owned()).collect(),
    }
}

#[test]
fn r16_a_body_shorter_than_the_object_is_no_success() {
    for length in ["0", "1", "100"] {
        let rule = Rule::new(headers(&[("content-length", length)], &[])).only(Kind::Http);
        on_both_hosts(
            || rig(vec![rule.clone()]),
            |host| assert_none(host, &Verb::GETS, HTTP),
        );
    }
}

#[test]
fn r17_a_body_that_ends_early_is_read_again_or_an_error() {
    for action in [
        Action::Cut { after: Some(0) },
        Action::Cut { after: Some(100) },
        Action::Reset { after: Some(100) },
    ] {
        on_both_hosts(
            || rig(in_bodies(&action)),
            |host| {
                assert_none(host, &WITH_BODY, HTTP);
                let twice = first(2, in_bodies(&action));
                assert_overcome(host, &Verb::ALL, HTTP, &twice);
            },
        );
    }
}

#[test]
fn r17_a_length_that_is_not_that_of_the_body_is_an_error() {
    for action in [
        Action::WrongLength { delta: 5 },
        Action::WrongLength { delta: -5 },
        headers(&[("content-length", "900000")], &[]),
    ] {
        on_both_hosts(
            || rig(in_bodies(&action)),
            |host| assert_none(host, &WITH_BODY, HTTP),
        );
    }
}

#[test]
fn r24_a_server_that_ends_answers_in_the_middle_is_read_to_the_end() {
    // Each object's first two answers end early, however many objects are asked for at once.
    let rules = || {
        let of = |nth: usize| {
            let cut = Action::Cut {
                after: Some(30_000),
            };
            let key = Thing::nth(nth).key;
            Rule::new(cut).only(Kind::Http).key(&key).count(2)
        };
        (0..20).map(of).collect()
    };
    on_both_hosts(
        || rig(rules()),
        |host| {
            thread::scope(|scope| {
                for nth in 0..20 {
                    scope.spawn(move || {
                        let answer = Verb::Given.ask(host.engine, Policy::Http, &Thing::nth(nth));
                        answer.unwrap_or_else(|error| panic!("{}: {error}", host.name));
                    });
                }
            });
            assert_eq!(host.rig.sim.counters().faults, 40);
        },
    );
}

#[test]
fn r5_what_comes_after_a_broken_body_is_checked_like_the_first_answer() {
    let cut = Action::Cut { after: Some(1000) };
    for second in [
        Action::WrongRange { shift: 1 },
        Action::IgnoreRange,
        Action::MultipartRange,
        headers(&[("content-range", "bytes 0-65535/200003")], &[]),
        headers(&[], &["content-range"]),
    ] {
        let rules = || {
            let broken = Rule::new(cut.clone()).only(Kind::Http).count(1);
            vec![broken, Rule::new(second.clone()).only(Kind::Http).count(1)]
        };
        for verb in Verb::GETS {
            on_both_hosts(
                || rig(rules()),
                |host| {
                    // Wrong bytes are the one thing that must not come of it.
                    if let Err(error) = verb.ask(host.engine, Policy::Http, &Thing::nth(0)) {
                        let is_typed = matches!(
                            error.kind(),
                            ErrorKind::Protocol(_)
                                | ErrorKind::Modified { .. }
                                | ErrorKind::BufferTooSmall { .. }
                        );
                        assert!(is_typed, "{verb:?} after {second:?}: {error}");
                    }
                },
            );
        }
    }
}

#[test]
fn r55_bytes_come_as_they_are_stored_whatever_their_encoding_is_called() {
    for encoding in ["gzip", "aws-chunked", "zstd, br"] {
        let encoded = headers(&[("content-encoding", encoding)], &[]);
        on_both_hosts(
            || rig(vec![Rule::new(encoded.clone())]),
            |host| assert_all(host, &Verb::ALL, Policy::ALL),
        );
    }
}

#[test]
fn r55_no_encoding_is_asked_for() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") {
            stream.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        let answer = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
        stream.write_all(answer).unwrap();
        String::from_utf8(head).unwrap().to_ascii_lowercase()
    });
    let engine = quick_builder(&url).build().unwrap();
    assert!(block_on(engine.head("bench", "x")).is_err());
    let head = server.join().unwrap();
    let asked = head
        .lines()
        .find_map(|line| line.strip_prefix("accept-encoding:"));
    assert_eq!(asked.map(str::trim), Some("identity"), "{head}");
}

#[test]
fn odd_answers_that_http_allows_are_read() {
    let chunked = |size| Action::Chunked {
        size,
        garbage: None,
    };
    for action in [chunked(1000), chunked(1 << 20), Action::MultipartRange] {
        let rule = Rule::new(action.clone()).only(Kind::Http);
        on_both_hosts(
            || rig(vec![rule.clone()]),
            |host| {
                let verbs = match action {
                    // Bytes between parts of a body are no bytes of an object.
                    Action::MultipartRange => return assert_none(host, &Verb::GETS, HTTP),
                    _ => &Verb::ALL,
                };
                assert_all(host, verbs, HTTP);
            },
        );
    }
    for action in [
        Action::Interim {
            code: 100,
            count: 1,
        },
        Action::Interim {
            code: 103,
            count: 3,
        },
        Action::Close,
        Action::HeaderFlood {
            count: 20,
            bytes: 100,
        },
        Action::Cut {
            after: Some(u64::MAX),
        },
    ] {
        on_both_hosts(
            || rig(always(&action)),
            |host| assert_all(host, &Verb::ALL, HTTP),
        );
    }
}

#[test]
fn answers_that_http_forbids_are_errors_and_spoil_nothing() {
    let garbled = |garbage| Action::Chunked {
        size: 3000,
        garbage: Some(garbage),
    };
    let mut actions = vec![
        headers(&[("content-length", "many")], &[]),
        headers(&[("content-length", "-1")], &[]),
        headers(&[("content-length", "99999999999999999999999")], &[]),
        headers(&[("content-range", "bytes 5-4/3")], &[]),
        Action::HeaderFlood {
            count: 5000,
            bytes: 1000,
        },
        Action::HeaderFlood {
            count: 1,
            bytes: 10 << 20,
        },
    ];
    let garbages = [Garbage::Size, Garbage::Overflow, Garbage::Long];
    actions.extend(garbages.map(garbled));
    for action in actions {
        let rule = Rule::new(action.clone()).only(Kind::Http);
        on_both_hosts(
            || rig(vec![rule.clone()]),
            |host| {
                assert_none(host, &Verb::GETS, HTTP);
                host.rig.sim.faults().clear();
                assert_all(host, &Verb::ALL, HTTP);
            },
        );
    }
}

#[test]
fn what_stands_behind_an_answer_is_nobodys_answer() {
    let size = 200_003;
    for text in [
        "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_owned(),
        format!(
            "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-65535/{size}\r\nContent-Length: 65536\r\n\r\n{}",
            "x".repeat(65536)
        ),
        "garbage".to_owned(),
        "\r\n".to_owned(),
    ] {
        let action = Action::Trailing { text };
        on_both_hosts(
            || rig(always(&action)),
            |host| {
                let (asked, failed) = (Cell::new(0), Cell::new(0));
                ask_all(host, &Verb::ALL, Policy::ALL, |answer, what| {
                    asked.set(asked.get() + 1);
                    if let Err(error) = answer {
                        // It came when the next request was out already: then nothing tells it from an answer, but
                        // that is rare.
                        println!("{what}: {error}");
                        failed.set(failed.get() + 1);
                    }
                });
                assert!(failed.get() * 4 <= asked.get(), "{failed:?} of {asked:?}");
                host.rig.sim.faults().clear();
                assert_all(host, &Verb::ALL, HTTP);
            },
        );
    }
}

#[test]
fn a_body_of_which_nobody_says_where_it_ends_is_right_or_an_error() {
    for action in [
        headers(&[], &["content-length"]),
        Action::Chunked {
            size: 3000,
            garbage: Some(Garbage::NoEnd),
        },
    ] {
        on_both_hosts(
            || rig(in_bodies(&action)),
            |host| {
                // Where the head says how much there is of the object, that can be enough.
                ask_all(host, &Verb::ALL, HTTP, |answer, what| {
                    if let Err(error) = answer {
                        assert_eq!(error.reason(), Reason::HttpError, "{what}: {error}");
                    }
                });
            },
        );
    }
}
