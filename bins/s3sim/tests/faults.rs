//! Every fault of the HTTP side, seen on the wire.

mod support;

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::time::{Duration, Instant};

use s3sim::{Action, Kind, Rule, Sim, SimOptions, content};
use support::{Client, sim};

const OBJECT: &str = "/bench/100000";

fn faulty(action: Action) -> Sim {
    sim([Rule::new(action).count(1)])
}

/// After its fault the rule is spent: the next connection sees an honest server.
fn assert_recovered(sim: &Sim) {
    let reply = Client::connect(sim).get(OBJECT, &[]);
    assert_eq!(reply.status, 200);
    content::verify("100000", 0, 0, &reply.body).unwrap();
    assert_eq!(sim.counters().faults, 1);
}

#[test]
fn status_says_what_the_rule_says() {
    let headers = BTreeMap::from([("x-extra".to_owned(), "1".to_owned())]);
    let s3_code = Some("InternalError".to_owned());
    let sim = faulty(Action::Status {
        code: 500,
        s3_code,
        headers,
    });
    let reply = Client::connect(&sim).get(OBJECT, &[]);
    assert_eq!(
        (reply.status, reply.element("Code")),
        (500, Some("InternalError"))
    );
    assert_eq!(reply.header("x-extra"), Some("1"));
    assert_recovered(&sim);

    let sim = faulty(Action::Status {
        code: 502,
        s3_code: None,
        headers: BTreeMap::new(),
    });
    let reply = Client::connect(&sim).get(OBJECT, &[]);
    assert_eq!((reply.status, reply.body.len()), (502, 0));
}

#[test]
fn slow_down_is_a_503_and_may_say_when_to_come_back() {
    let sim = faulty(Action::SlowDown {
        retry_after: Some(7),
    });
    let mut client = Client::connect(&sim);
    let reply = client.get(OBJECT, &[]);
    assert_eq!(
        (reply.status, reply.element("Code")),
        (503, Some("SlowDown"))
    );
    assert_eq!(reply.header("retry-after"), Some("7"));
    assert_eq!(client.get(OBJECT, &[]).status, 200);
    let sim = faulty(Action::SlowDown { retry_after: None });
    assert_eq!(
        Client::connect(&sim).get(OBJECT, &[]).header("retry-after"),
        None
    );
}

#[test]
fn cut_ends_in_order_after_exactly_its_bytes() {
    let sim = faulty(Action::Cut { after: Some(1234) });
    let mut client = Client::connect(&sim);
    client.send("GET", OBJECT, &[]);
    assert_eq!(
        client.head().unwrap().header("content-length"),
        Some("100000")
    );
    let (body, end) = client.rest();
    assert!(end.is_ok() && body.len() == 1234);
    content::verify("100000", 0, 0, &body).unwrap();
    assert_recovered(&sim);
}

#[test]
fn cut_without_after_ends_before_the_answer() {
    let sim = faulty(Action::Cut { after: None });
    let mut client = Client::connect(&sim);
    client.send("GET", OBJECT, &[]);
    let (bytes, end) = client.rest();
    assert!(end.is_ok() && bytes.is_empty());
    assert_recovered(&sim);
}

#[test]
fn reset_breaks_the_connection_after_exactly_its_bytes() {
    for after in [None, Some(0), Some(1234)] {
        let sim = faulty(Action::Reset { after });
        let mut client = Client::connect(&sim);
        client.send("GET", OBJECT, &[]);
        if after.is_some() {
            client.head().unwrap();
        }
        let (body, end) = client.rest();
        assert_eq!(end.unwrap_err().kind(), ErrorKind::ConnectionReset);
        assert_eq!(body.len() as u64, after.unwrap_or(0));
        assert_recovered(&sim);
    }
}

#[test]
fn stall_pauses_after_its_bytes_and_then_goes_on() {
    let sim = faulty(Action::Stall {
        after: Some(50),
        ms: 1000,
    });
    let mut client = Client::connect(&sim);
    let start = Instant::now();
    client.send("GET", OBJECT, &[]);
    let mut reply = client.head().unwrap();
    reply.body = vec![0; 50];
    std::io::Read::read_exact(&mut client.stream, &mut reply.body).unwrap();
    client.assert_silent(Duration::from_millis(50));
    let mut rest = vec![0; 100_000 - 50];
    std::io::Read::read_exact(&mut client.stream, &mut rest).unwrap();
    assert!(start.elapsed() >= Duration::from_millis(1000));
    content::verify("100000", 0, 0, &reply.body).unwrap();
    content::verify("100000", 0, 50, &rest).unwrap();
    assert_recovered(&sim);
}

#[test]
fn trickle_sends_all_in_small_pieces() {
    let sim = faulty(Action::Trickle {
        bytes: 30_000,
        ms: 50,
    });
    let start = Instant::now();
    let reply = Client::connect(&sim).get(OBJECT, &[]);
    // Four pieces, three pauses.
    assert!(start.elapsed() >= Duration::from_millis(150));
    content::verify("100000", 0, 0, &reply.body).unwrap();
    assert_recovered(&sim);
}

#[test]
fn answer_late_sends_nothing_before_its_time() {
    let sim = faulty(Action::AnswerLate { ms: 1000 });
    let mut client = Client::connect(&sim);
    let start = Instant::now();
    client.send("GET", OBJECT, &[]);
    client.assert_silent(Duration::from_millis(50));
    assert_eq!(client.reply().unwrap().status, 200);
    assert!(start.elapsed() >= Duration::from_millis(1000));
    assert_recovered(&sim);
}

#[test]
fn never_answer_waits_for_the_client_to_give_up() {
    let sim = faulty(Action::NeverAnswer);
    let mut client = Client::connect(&sim);
    client.send("GET", OBJECT, &[]);
    client.assert_silent(Duration::from_millis(150));
    client.stream.shutdown(std::net::Shutdown::Write).unwrap();
    let (bytes, end) = client.rest();
    assert!(bytes.is_empty() && end.is_ok());
    assert_recovered(&sim);
}

#[test]
fn wrong_length_lies_in_both_directions_and_ends_the_connection() {
    for (delta, said) in [(-1, "99999"), (5, "100005")] {
        let sim = faulty(Action::WrongLength { delta });
        let mut client = Client::connect(&sim);
        client.send("GET", OBJECT, &[]);
        assert_eq!(client.head().unwrap().header("content-length"), Some(said));
        let (body, end) = client.rest();
        assert!(end.is_ok() && body.len() == 100_000);
        assert_recovered(&sim);
    }
}

#[test]
fn wrong_range_gives_the_neighbouring_bytes_and_says_so() {
    let sim = faulty(Action::WrongRange { shift: 1 });
    let reply = Client::connect(&sim).get(OBJECT, &[("Range", "bytes=100-199")]);
    assert_eq!(
        (reply.status, reply.header("content-range")),
        (206, Some("bytes 101-200/100000"))
    );
    content::verify("100000", 0, 101, &reply.body).unwrap();
    assert_recovered(&sim);
}

#[test]
fn swap_changes_etag_and_bytes_from_its_request_on() {
    let sim = sim([Rule::new(Action::Swap).skip(1).count(1)]);
    let mut client = Client::connect(&sim);
    let first = client.get(OBJECT, &[("Range", "bytes=0-99")]);
    let etag = first.header("etag").unwrap();
    content::verify("100000", 0, 0, &first.body).unwrap();
    let second = client.get(OBJECT, &[("Range", "bytes=100-199")]);
    assert_ne!(second.header("etag"), Some(etag));
    content::verify("100000", 1, 100, &second.body).unwrap();
    assert_eq!(client.get(OBJECT, &[("If-Match", etag)]).status, 412);
    let old = client.get(&format!("{OBJECT}?versionId=0"), &[]);
    assert_eq!(old.header("x-amz-version-id"), None);
    content::verify("100000", 1, 0, &old.body).unwrap();
}

#[test]
fn a_versioned_bucket_keeps_what_swap_replaces() {
    let sim = Sim::start(SimOptions {
        anonymous: true,
        versioned: true,
        faults: vec![Rule::new(Action::Swap).count(1)],
        ..SimOptions::default()
    })
    .unwrap();
    let mut client = Client::connect(&sim);
    let new = client.get(OBJECT, &[]);
    assert_eq!(new.header("x-amz-version-id"), Some("1"));
    let old = client.get(&format!("{OBJECT}?versionId=0"), &[]);
    assert_eq!(old.header("x-amz-version-id"), Some("0"));
    content::verify("100000", 0, 0, &old.body).unwrap();
}

#[test]
fn rules_heed_kind_and_key_and_can_change_while_the_server_runs() {
    let status = |code| Action::Status {
        code,
        s3_code: None,
        headers: BTreeMap::new(),
    };
    let sim = sim([
        Rule::new(status(501)).only(Kind::Head),
        Rule::new(status(502)).only(Kind::List),
        Rule::new(status(503)).key("train/*"),
    ]);
    let mut client = Client::connect(&sim);
    assert_eq!(client.head_of("/bench/64", &[]).status, 501);
    assert_eq!(client.get("/bench?list-type=2", &[]).status, 502);
    assert_eq!(client.get("/bench/train/64", &[]).status, 503);
    assert_eq!(client.get("/bench/64", &[]).status, 200);
    sim.faults().clear();
    assert_eq!(client.get("/bench/train/64", &[]).status, 200);
    sim.faults().push(Rule::new(status(504))).unwrap();
    assert_eq!(client.get("/bench/64", &[]).status, 504);
    assert!(sim.faults().push(Rule::new(status(1))).is_err());
}

#[test]
fn an_rdma_fault_leaves_plain_requests_alone() {
    let sim = sim([
        Rule::new(Action::MissingReply),
        Rule::new(Action::DeclineWithBody),
    ]);
    let reply = Client::connect(&sim).get(OBJECT, &[]);
    assert_eq!(
        (reply.status, reply.header("x-amz-rdma-reply")),
        (200, None)
    );
    assert_eq!(sim.counters().faults, 0);
}
