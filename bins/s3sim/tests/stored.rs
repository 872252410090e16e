//! What S3 keeps beside an object's bytes: checksums, customers' keys, versions, and who pays.

mod support;

use s3sim::{Action, Algorithm, Checksum, CustomerKey, Rule, Sim, SimOptions};
use support::{Client, Reply, options, start};

const CRC: &str = "x-amz-checksum-crc32";
const ENABLED: (&str, &str) = ("x-amz-checksum-mode", "ENABLED");

fn with_checksum(algorithm: Algorithm, composite: bool) -> Sim {
    let checksum = Checksum {
        algorithm,
        composite,
    };
    start(SimOptions {
        checksum: Some(checksum),
        ..options()
    })
}

/// Value and type of a checksum.
fn told<'a>(reply: &'a Reply, header: &str) -> Option<(&'a str, &'a str)> {
    Some((reply.header(header)?, reply.header("x-amz-checksum-type")?))
}

#[test]
fn a_checksum_is_told_to_who_asks_for_it_with_ranges_too() {
    let sim = with_checksum(Algorithm::Crc32, false);
    let mut client = Client::connect(&sim);
    // Nothing has the CRC of zero.
    let empty = client.get("/bench/0", &[ENABLED]);
    assert_eq!(told(&empty, CRC), Some(("AAAAAA==", "FULL_OBJECT")));
    let whole = client.get("/bench/1000", &[ENABLED]);
    let value = told(&whole, CRC).unwrap();
    assert_ne!(value.0, "AAAAAA==");
    let range = client.get("/bench/1000", &[ENABLED, ("Range", "bytes=5-9")]);
    assert_eq!((range.status, told(&range, CRC)), (206, Some(value)));
    let head = client.head_of("/bench/1000", &[ENABLED]);
    assert_eq!(told(&head, CRC), Some(value));
    assert_eq!(told(&client.get("/bench/1000", &[]), CRC), None);
}

#[test]
fn a_checksum_can_be_wrong() {
    let sim = with_checksum(Algorithm::Crc32, false);
    sim.faults()
        .push(Rule::new(Action::WrongChecksum).count(1))
        .unwrap();
    let mut client = Client::connect(&sim);
    let wrong = client.get("/bench/1000", &[ENABLED]);
    let right = client.get("/bench/1000", &[ENABLED]);
    assert_ne!(told(&wrong, CRC), told(&right, CRC));
    assert_eq!(wrong.body, right.body);
}

#[test]
fn a_composite_one_says_of_how_many_parts_but_not_with_a_range() {
    let sim = with_checksum(Algorithm::Sha1, true);
    let mut client = Client::connect(&sim);
    let header = "x-amz-checksum-sha1";
    let small = client.get("/bench/1000", &[ENABLED]);
    let (value, kind) = told(&small, header).unwrap();
    assert!(kind == "COMPOSITE" && value.ends_with("=-1"), "{value}");
    let large = client.head_of("/bench/9MiB", &[ENABLED]);
    assert!(told(&large, header).unwrap().0.ends_with("=-2"));
    let range = client.get("/bench/1000", &[ENABLED, ("Range", "bytes=0-")]);
    assert_eq!(
        told(&range, header),
        Some((value.trim_end_matches("-1"), kind))
    );
}

#[test]
fn only_the_right_key_opens_an_object() {
    let customer_key = Some(CustomerKey(*b"0123456789abcdef0123456789abcdef"));
    let sim = start(SimOptions {
        customer_key,
        ..options()
    });
    let mut client = Client::connect(&sim);
    let mut ask = |key: &str, md5: &str| {
        let headers = [
            ("x-amz-server-side-encryption-customer-algorithm", "AES256"),
            ("x-amz-server-side-encryption-customer-key", key),
            ("x-amz-server-side-encryption-customer-key-MD5", md5),
        ];
        client.get("/bench/64", &headers)
    };
    let (key, md5) = (
        "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=",
        "hRasmdxgYDKV3nvbahU1MA==",
    );
    let other = "MTEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
    let of_right_key = ask(key, "x");
    assert_eq!(
        (of_right_key.status, of_right_key.element("Code")),
        (400, Some("InvalidArgument"))
    );
    let right = ask(key, md5);
    assert_eq!(right.status, 200, "{:?}", right.element("Message"));
    let told = right.header("x-amz-server-side-encryption-customer-key-md5");
    assert_eq!(told, Some(md5));
    assert_eq!(ask(other, md5).status, 400);
    // The MD5 of the other key: now it is only the wrong key.
    assert_eq!(ask(other, "TnNSxk2MILJgV1wzrenPSw==").status, 403);
    let without = client.get("/bench/64", &[]);
    assert_eq!(
        (without.status, without.element("Code")),
        (400, Some("InvalidRequest"))
    );
}

#[test]
fn who_does_not_say_that_they_pay_reads_nothing() {
    let sim = start(SimOptions {
        requester_pays: true,
        ..options()
    });
    let mut client = Client::connect(&sim);
    let payer = ("x-amz-request-payer", "requester");
    for target in ["/bench/64", "/bench?list-type=2"] {
        assert_eq!(client.get(target, &[]).status, 403);
        assert_eq!(client.get(target, &[payer]).status, 200);
    }
    let reply = client.get("/bench/64", &[payer]);
    assert_eq!(reply.header("x-amz-request-charged"), Some("requester"));
}

#[test]
fn a_version_that_never_was_is_not_found() {
    let sim = start(SimOptions {
        versioned: true,
        ..options()
    });
    let mut client = Client::connect(&sim);
    for (version, status, code) in [("1", 404, "NoSuchVersion"), ("x", 400, "InvalidArgument")] {
        let reply = client.get(&format!("/bench/64?versionId={version}"), &[]);
        assert_eq!((reply.status, reply.element("Code")), (status, Some(code)));
    }
    assert_eq!(client.get("/bench/64?versionId=0", &[]).status, 200);
}
