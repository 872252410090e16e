//! Answers that HTTP allows or forbids and that few servers give, seen on the wire.

mod support;

use std::collections::BTreeMap;

use s3sim::{Action, Garbage, Kind, Rule, Sim, SimOptions, content};
use support::{Client, options, sim, start};

const OBJECT: &str = "/bench/100000";

fn faulty(action: Action) -> Sim {
    sim([Rule::new(action).count(1)])
}

fn set(name: &str, value: &str) -> BTreeMap<String, String> {
    BTreeMap::from([(name.to_owned(), value.to_owned())])
}

#[test]
fn a_redirect_says_where_and_which_region() {
    let to = |location: &str, code| Action::Redirect {
        code,
        location: Some(location.to_owned()),
        region: Some("eu-west-1".to_owned()),
    };
    for (code, s3_code) in [
        (301, "PermanentRedirect"),
        (307, "TemporaryRedirect"),
        (308, "PermanentRedirect"),
        (400, "AuthorizationHeaderMalformed"),
    ] {
        let sim = faulty(to("http://127.0.0.1:1", code));
        let reply = Client::connect(&sim).get("/bench/64?x=1", &[]);
        assert_eq!((reply.status, reply.element("Code")), (code, Some(s3_code)));
        let location = reply.header("location");
        assert_eq!(location, Some("http://127.0.0.1:1/bench/64?x=1"));
        assert_eq!(reply.header("x-amz-bucket-region"), Some("eu-west-1"));
        assert_eq!(reply.element("Region"), Some("eu-west-1"));
    }
    let sim = faulty(to("/other/64?y", 307));
    let reply = Client::connect(&sim).head_of(OBJECT, &[]);
    assert_eq!(
        (reply.status, reply.header("location")),
        (307, Some("/other/64?y"))
    );
}

#[test]
fn headers_are_replaced_or_left_out_and_without_a_length_the_body_ends_the_connection() {
    let sim = faulty(Action::Headers {
        set: set("content-range", "bytes 5-6/7"),
        drop: vec!["etag".into(), "Content-Length".into()],
    });
    let mut client = Client::connect(&sim);
    client.send("GET", OBJECT, &[("Range", "bytes=0-99")]);
    let head = client.head().unwrap();
    assert_eq!(head.header("content-range"), Some("bytes 5-6/7"));
    assert_eq!(
        (head.header("etag"), head.header("content-length")),
        (None, None)
    );
    let (body, end) = client.rest();
    assert!(end.is_ok() && body.len() == 100);
}

#[test]
fn flip_is_one_bit_of_one_byte_of_the_object() {
    let flip = || Action::Flip { at: 1000 };
    for (range, wrong) in [
        ("bytes=0-", Some(1000)),
        ("bytes=1000-1000", Some(0)),
        ("bytes=0-999", None),
    ] {
        let reply = Client::connect(&faulty(flip())).get(OBJECT, &[("Range", range)]);
        let mut body = reply.body;
        let first = if range == "bytes=1000-1000" { 1000 } else { 0 };
        if let Some(at) = wrong {
            let error = content::verify("100000", 0, first, &body).unwrap_err();
            assert_eq!((error.offset, error.expected ^ error.found), (1000, 1));
            body[at] ^= 1;
        }
        content::verify("100000", 0, first, &body).unwrap();
    }
}

#[test]
fn conditions_and_ranges_can_be_ignored() {
    let sim = faulty(Action::IgnoreIfMatch { swap: true });
    let headers = [("If-Match", "\"old\""), ("Range", "bytes=0-9")];
    let reply = Client::connect(&sim).get(OBJECT, &headers);
    assert_eq!(reply.status, 206);
    content::verify("100000", 1, 0, &reply.body).unwrap();
    let sim = faulty(Action::IgnoreRange);
    let reply = Client::connect(&sim).get(OBJECT, &[("Range", "bytes=0-9")]);
    assert_eq!((reply.status, reply.header("content-range")), (200, None));
    content::verify("100000", 0, 0, &reply.body).unwrap();
}

#[test]
fn a_range_can_come_as_one_of_several() {
    let sim = faulty(Action::MultipartRange);
    let mut client = Client::connect(&sim);
    let reply = client.get(OBJECT, &[("Range", "bytes=5-104")]);
    let kind = reply.header("content-type").unwrap();
    assert!(reply.status == 206 && kind.starts_with("multipart/byteranges; boundary="));
    assert_eq!(reply.header("content-range"), None);
    let text = b"\r\nContent-Range: bytes 5-104/100000\r\n\r\n";
    let at = reply
        .body
        .windows(text.len())
        .position(|w| w == text)
        .unwrap();
    content::verify("100000", 0, 5, &reply.body[at + text.len()..][..100]).unwrap();
    // Its length was honest: the connection can be used.
    assert_eq!(client.get(OBJECT, &[]).status, 200);
}

#[test]
fn chunked_bodies_have_no_length_and_may_be_garbage() {
    let chunked = |garbage| Action::Chunked {
        size: 60_000,
        garbage,
    };
    let sim = faulty(chunked(None));
    let mut client = Client::connect(&sim);
    client.send("GET", OBJECT, &[("Connection", "close")]);
    let head = client.head().unwrap();
    assert_eq!(head.header("transfer-encoding"), Some("chunked"));
    assert_eq!(head.header("content-length"), None);
    let (body, _) = client.rest();
    assert!(body.starts_with(b"ea60\r\n") && body.ends_with(b"\r\n0\r\n\r\n"));
    content::verify("100000", 0, 0, &body[6..60_006]).unwrap();

    let sim = faulty(chunked(Some(Garbage::NoEnd)));
    let mut client = Client::connect(&sim);
    client.send("GET", OBJECT, &[]);
    client.head().unwrap();
    let (body, end) = client.rest();
    assert!(end.is_ok() && !body.ends_with(b"0\r\n\r\n"));
}

#[test]
fn bytes_can_stand_before_and_after_an_answer() {
    let sim = faulty(Action::Interim {
        code: 103,
        count: 2,
    });
    let mut client = Client::connect(&sim);
    client.send("GET", OBJECT, &[]);
    assert_eq!(client.head().unwrap().status, 103);
    assert_eq!(client.head().unwrap().status, 103);
    assert_eq!(client.reply().unwrap().status, 200);

    let sim = faulty(Action::Trailing {
        text: "junk".into(),
    });
    let mut client = Client::connect(&sim);
    assert_eq!(client.get(OBJECT, &[]).body.len(), 100_000);
    client.send("GET", OBJECT, &[("Connection", "close")]);
    let (rest, _) = client.rest();
    assert!(rest.starts_with(b"junkHTTP/1.1 200 OK\r\n"));
}

#[test]
fn a_flood_of_headers_comes_before_the_others_and_close_is_kept() {
    let sim = faulty(Action::HeaderFlood {
        count: 300,
        bytes: 100,
    });
    let reply = Client::connect(&sim).get(OBJECT, &[]);
    assert_eq!(reply.header("x-flood-299").map(str::len), Some(100));
    let sim = faulty(Action::Close);
    let mut client = Client::connect(&sim);
    let reply = client.get(OBJECT, &[]);
    assert_eq!(reply.header("connection"), Some("close"));
    assert!(client.rest().0.is_empty());
}

#[test]
fn listings_go_wrong_only_where_a_rule_names_them() {
    let flood = Action::HeaderFlood { count: 3, bytes: 1 };
    let sim = sim([Rule::new(flood), Rule::new(Action::Close).only(Kind::List)]);
    let reply = Client::connect(&sim).get("/bench?list-type=2", &[]);
    assert_eq!(reply.header("connection"), Some("close"));
    assert_eq!(reply.header("x-flood-0"), None);
}

#[test]
fn the_clock_of_the_server_is_its_own_and_can_be_set() {
    let sim = start(SimOptions {
        clock_offset: 3600,
        ..options()
    });
    let ahead = |sim: &Sim| {
        let reply = Client::connect(sim).get(OBJECT, &[]);
        let date = httpdate::parse_http_date(reply.header("date").unwrap()).unwrap();
        let now = std::time::SystemTime::now();
        date.duration_since(now).map_or(0, |ahead| ahead.as_secs())
    };
    assert!((3000..=3600).contains(&ahead(&sim)));
    sim.set_clock_offset(-60);
    assert_eq!(ahead(&sim), 0);
}

#[test]
fn a_bucket_says_its_region() {
    let sim = start(SimOptions {
        region: "eu-west-1".into(),
        ..options()
    });
    let reply = Client::connect(&sim).head_of("/bench", &[]);
    assert_eq!(reply.header("x-amz-bucket-region"), Some("eu-west-1"));
}
