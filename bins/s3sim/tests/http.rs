//! What an honest server answers, seen on the wire.

mod support;

use std::collections::BTreeSet;
use std::io::Write;
use std::time::{Duration, Instant};

use s3sim::{Listed, Sim, SimOptions, content};
use support::{Client, options, sim, start};

#[test]
fn whole_objects_and_ranges_have_the_right_bytes() {
    let sim = sim([]);
    let mut client = Client::connect(&sim);
    let whole = client.get("/bench/3MiB-a", &[]);
    assert_eq!((whole.status, whole.body.len()), (200, 3 << 20));
    content::verify("3MiB-a", 0, 0, &whole.body).unwrap();
    assert_eq!(whole.header("content-range"), None);
    let etag = whole.header("etag").unwrap().to_owned();
    assert!(httpdate(whole.header("last-modified")));

    for (range, first, len) in [
        ("bytes=0-0", 0, 1),
        ("bytes=1048570-1048580", 1_048_570, 11),
        ("bytes=3145720-", 3_145_720, 8),
        ("bytes=-100", (3 << 20) - 100, 100),
        ("bytes=1000000-99999999", 1_000_000, (3 << 20) - 1_000_000),
    ] {
        let part = client.get("/bench/3MiB-a", &[("Range", range)]);
        assert_eq!((part.status, part.body.len() as u64), (206, len), "{range}");
        content::verify("3MiB-a", 0, first, &part.body).unwrap();
        let said = format!("bytes {first}-{}/3145728", first + len - 1);
        assert_eq!(part.header("content-range"), Some(said.as_str()));
        assert_eq!(part.header("etag"), Some(etag.as_str()));
    }
}

fn httpdate(text: Option<&str>) -> bool {
    text.is_some_and(|text| text.ends_with(" GMT") && text.len() == 29)
}

#[test]
fn a_range_beyond_the_end_is_a_416_that_tells_the_size() {
    let sim = sim([]);
    let reply = Client::connect(&sim).get("/bench/100", &[("Range", "bytes=100-")]);
    assert_eq!(
        (reply.status, reply.element("Code")),
        (416, Some("InvalidRange"))
    );
    assert_eq!(reply.header("content-range"), Some("bytes */100"));
}

#[test]
fn a_head_has_the_length_and_no_body() {
    let sim = sim([]);
    let mut client = Client::connect(&sim);
    let head = client.head_of("/bench/8GiB-x", &[]);
    assert_eq!(
        (head.status, head.header("content-length")),
        (200, Some("8589934592"))
    );
    let missing = client.head_of("/bench/nothing", &[]);
    assert_eq!(missing.status, 404);
    assert_eq!(client.head_of("/bench", &[]).status, 200);
    assert_eq!(client.head_of("/nowhere", &[]).status, 404);
    // The connection is still in step: no body came between.
    assert_eq!(client.get("/bench/5", &[]).body.len(), 5);
}

#[test]
fn an_offset_of_many_tebibytes_is_served() {
    let sim = sim([]);
    let first = (7_u64 << 40) + 12_345;
    let range = format!("bytes={first}-{}", first + 999);
    let part = Client::connect(&sim).get("/bench/8TiB", &[("Range", range.as_str())]);
    assert_eq!(part.body.len(), 1000);
    content::verify("8TiB", 0, first, &part.body).unwrap();
}

#[test]
fn an_empty_object_is_an_empty_200() {
    let sim = sim([]);
    let reply = Client::connect(&sim).get("/bench/0", &[]);
    assert_eq!((reply.status, reply.body.len()), (200, 0));
}

#[test]
fn every_error_is_s3s_xml_with_its_own_request_id() {
    let sim = sim([]);
    let mut client = Client::connect(&sim);
    let mut ids = BTreeSet::new();
    for (method, target, status, code) in [
        ("GET", "/bench/nothing", 404, "NoSuchKey"),
        ("GET", "/nowhere/64KiB", 404, "NoSuchBucket"),
        ("GET", "/nowhere?list-type=2", 404, "NoSuchBucket"),
        ("GET", "/bench", 501, "NotImplemented"),
        ("GET", "/", 501, "NotImplemented"),
        ("PUT", "/bench/64KiB", 405, "MethodNotAllowed"),
        ("DELETE", "/bench/64KiB", 405, "MethodNotAllowed"),
        ("GET", "/bench/%ff", 400, "InvalidURI"),
    ] {
        client.send(method, target, &[]);
        let reply = client.reply().unwrap();
        assert_eq!(
            (reply.status, reply.element("Code")),
            (status, Some(code)),
            "{target}"
        );
        let path = target.split('?').next();
        assert_eq!(reply.element("Resource"), path);
        assert_eq!(reply.element("RequestId"), reply.header("x-amz-request-id"));
        assert!(reply.header("x-amz-id-2").is_some());
        ids.insert(reply.header("x-amz-request-id").unwrap().to_owned());
    }
    assert_eq!(ids.len(), 8);
}

#[test]
fn if_match_holds_or_is_a_412() {
    let sim = sim([]);
    let mut client = Client::connect(&sim);
    let etag = client
        .head_of("/bench/64", &[])
        .header("etag")
        .unwrap()
        .to_owned();
    let bare = etag.trim_matches('"');
    for tag in [etag.as_str(), bare, "*", &format!("\"x\", {etag}")] {
        assert_eq!(
            client.get("/bench/64", &[("If-Match", tag)]).status,
            200,
            "{tag}"
        );
    }
    let reply = client.get("/bench/64", &[("If-Match", "\"x\"")]);
    assert_eq!(
        (reply.status, reply.element("Code")),
        (412, Some("PreconditionFailed"))
    );
}

#[test]
fn requests_in_one_packet_are_answered_in_order() {
    let sim = sim([]);
    let mut client = Client::connect(&sim);
    let one = |key| format!("GET /bench/{key} HTTP/1.1\r\nHost: h\r\n\r\n");
    client
        .stream
        .write_all((one("3") + &one("x") + &one("7")).as_bytes())
        .unwrap();
    assert_eq!(client.reply().unwrap().body.len(), 3);
    assert_eq!(client.reply().unwrap().status, 404);
    assert_eq!(client.reply().unwrap().body.len(), 7);
}

#[test]
fn a_connection_ends_where_the_client_wants_it_or_sent_a_body() {
    let sim = sim([]);
    for headers in [
        &[("Connection", "close")][..],
        &[("Content-Length", "4")][..],
    ] {
        let mut client = Client::connect(&sim);
        client.send("GET", "/bench/5", headers);
        client.stream.write_all(b"body").unwrap();
        assert_eq!(client.reply().unwrap().header("connection"), Some("close"));
        let (rest, end) = client.rest();
        assert!(rest.is_empty() && end.is_ok(), "{end:?}");
    }
}

#[test]
fn garbage_and_endless_heads_are_refused_and_the_connection_ends() {
    let sim = sim([]);
    let endless = format!("GET / HTTP/1.1\r\nA: {}\r\n", "x".repeat(20_000));
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(200));
    for (text, status) in [
        ("\x16\x03\x01\x02", 400),
        ("GET http://h/ HTTP/1.1\r\n\r\n", 400),
        (&endless, 431),
        (&many, 431),
    ] {
        let mut client = Client::connect(&sim);
        client.stream.write_all(text.as_bytes()).unwrap();
        let reply = client.reply().unwrap();
        assert_eq!(
            (reply.status, reply.header("connection")),
            (status, Some("close"))
        );
        assert!(client.rest().0.is_empty());
    }
}

#[test]
fn a_server_that_wants_signatures_refuses_those_without() {
    let sim = start(SimOptions {
        anonymous: false,
        ..options()
    });
    let mut client = Client::connect(&sim);
    let reply = client.get("/bench/64", &[]);
    assert_eq!(
        (reply.status, reply.element("Code")),
        (403, Some("AccessDenied"))
    );
    let scope = "Credential=other/20200101/us-east-1/s3/aws4_request,SignedHeaders=host";
    let header = format!("AWS4-HMAC-SHA256 {scope},Signature={}", "0".repeat(64));
    let reply = client.get("/bench/64", &[("Authorization", header.as_str())]);
    assert_eq!(
        (reply.status, reply.element("Code")),
        (403, Some("InvalidAccessKeyId"))
    );
    // Metrics need none.
    assert_eq!(client.get("/minio/metrics/v3/api/rdma", &[]).status, 200);
}

fn listed(count: u32) -> Sim {
    let listed = Listed {
        count,
        size: 64,
        prefix: "train/".into(),
    };
    start(SimOptions {
        listed,
        ..options()
    })
}

#[test]
fn a_listing_of_2500_names_comes_in_three_pages() {
    let sim = listed(2500);
    let mut client = Client::connect(&sim);
    let (mut keys, mut sizes, mut target) = (vec![], vec![], "/bench?list-type=2".to_owned());
    loop {
        let page = client.get(&target, &[]);
        assert_eq!(page.status, 200);
        let page_keys = page.elements("Key");
        assert_eq!(
            page.element("KeyCount").unwrap(),
            page_keys.len().to_string()
        );
        keys.extend(page_keys.into_iter().map(str::to_owned));
        sizes.push(page.elements("Key").len());
        let next = page.element("NextContinuationToken");
        assert_eq!(
            page.element("IsTruncated"),
            Some(if next.is_some() { "true" } else { "false" })
        );
        let Some(next) = next else { break };
        target = format!("/bench?list-type=2&continuation-token={next}");
    }
    assert_eq!(sizes, [1000, 1000, 500]);
    assert!(keys.is_sorted() && keys.iter().collect::<BTreeSet<_>>().len() == 2500);
    let object = client.get(&format!("/bench/{}", keys[2499]), &[]);
    content::verify(&keys[2499], 0, 0, &object.body).unwrap();
}

#[test]
fn a_listing_heeds_prefix_delimiter_and_max_keys() {
    let sim = listed(20);
    let mut client = Client::connect(&sim);
    let grouped = client.get("/bench/?list-type=2&delimiter=%2F", &[]);
    assert_eq!(
        grouped.elements("CommonPrefixes"),
        ["<Prefix>train/</Prefix>"]
    );
    assert!(grouped.elements("Key").is_empty());
    let few = client.get(
        "/bench?list-type=2&prefix=train/64-000000001&max-keys=3",
        &[],
    );
    assert_eq!(few.elements("Key").len(), 3);
    assert_eq!(few.element("IsTruncated"), Some("true"));
    let after = client.get("/bench?list-type=2&start-after=train/64-0000000017", &[]);
    assert_eq!(after.elements("Key").len(), 2);
    let bad = client.get("/bench?list-type=2&max-keys=x", &[]);
    assert_eq!(
        (bad.status, bad.element("Code")),
        (400, Some("InvalidArgument"))
    );
}

#[test]
fn the_files_of_a_folder_are_served() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(root.path().join("data/sub")).unwrap();
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|i| (i % 251) as u8).collect();
    std::fs::write(root.path().join("data/sub/a b+ü%.bin"), &bytes).unwrap();
    std::fs::write(root.path().join("data/empty"), "").unwrap();
    std::fs::write(root.path().join("secret"), "x").unwrap();
    let sim = start(SimOptions {
        root: Some(root.path().into()),
        ..options()
    });
    let mut client = Client::connect(&sim);
    let target = "/data/sub/a%20b%2B%C3%BC%25.bin";
    assert!(client.get(target, &[]).body == bytes);
    let part = client.get(target, &[("Range", "bytes=1048570-2097160")]);
    assert!(part.body == bytes[1_048_570..=2_097_160]);
    assert_eq!(client.get("/data/empty", &[]).body.len(), 0);
    for target in [
        "/data/../secret",
        "/data/%2e%2e/secret",
        "/data/sub",
        "/data//empty",
    ] {
        assert_eq!(client.get(target, &[]).status, 404, "{target}");
    }
    assert_eq!(
        client.get("/bench/64", &[]).element("Code"),
        Some("NoSuchBucket")
    );
    let keys = client.get("/data?list-type=2&encoding-type=url", &[]);
    assert_eq!(keys.elements("Key"), ["empty", "sub/a%20b%2B%C3%BC%25.bin"]);
}

#[test]
fn requests_are_counted_and_told_to_prometheus() {
    let sim = sim([]);
    let mut client = Client::connect(&sim);
    client.get("/bench/64", &[]);
    let text = client.get("/minio/metrics/v3/api/rdma", &[]);
    let line = format!("s3sim_requests_total{{server=\"{}\"}} 2\n", sim.addr());
    assert!(text.text().contains(&line), "{}", text.text());
    assert!(text.text().contains("minio_api_rdma_read_ops_total{"));
    assert_eq!(sim.counters().requests, 2);
}

#[test]
fn dropping_the_server_ends_connections_and_waiting_faults() {
    let sim = sim([s3sim::Rule::new(s3sim::Action::AnswerLate {
        ms: 3_600_000,
    })]);
    let mut waiting = Client::connect(&sim);
    waiting.send("GET", "/bench/64", &[]);
    let mut idle = Client::connect(&sim);
    assert_eq!(idle.get("/minio/metrics/v3/api/rdma", &[]).status, 200);
    let start = Instant::now();
    drop(sim);
    // Generous: it is the hour that must not pass.
    assert!(start.elapsed() < Duration::from_secs(60));
    assert!(waiting.rest().0.is_empty());
    assert!(idle.rest().0.is_empty());
}

#[test]
fn two_servers_cannot_share_an_address() {
    let sim = sim([]);
    let error = Sim::start(SimOptions {
        listen: sim.addr(),
        ..options()
    })
    .unwrap_err();
    assert!(
        error.to_string().contains(&sim.addr().to_string()),
        "{error}"
    );
}
