//! Requests signed by an independent implementation, over the wire.

mod support;

use std::io::Write;
use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderName, HeaderValue, Method};
use s3engine_s3::credentials::Credentials;
use s3engine_s3::endpoint::{AddressingStyle, Endpoint, Target};
use s3engine_s3::signing::{Payload, sign_request};
use s3sim::{Sim, SimOptions};
use support::{Client, Reply, options, start};

/// A request, and how it is signed.
struct Signed {
    method: Method,
    target: Target,
    headers: HeaderMap,
    access_key: &'static str,
    secret: &'static str,
    region: &'static str,
    time: SystemTime,
}

impl Signed {
    fn get(target: Target) -> Signed {
        Signed {
            method: Method::GET,
            target,
            headers: HeaderMap::new(),
            access_key: "s3sim",
            secret: "s3simsecret",
            region: "us-east-1",
            time: SystemTime::now(),
        }
    }

    fn key(sim: &Sim, key: &str) -> Signed {
        Signed::get(endpoint(sim).target("bench", key, &[]).unwrap())
    }

    fn header(mut self, name: &'static str, value: &'static str) -> Signed {
        self.headers.insert(
            HeaderName::from_static(name),
            HeaderValue::from_static(value),
        );
        self
    }

    /// Signs, then changes the text of the head, then sends it.
    fn send(mut self, sim: &Sim, tamper: impl Fn(String) -> String) -> Reply {
        let credentials = Credentials::new(self.access_key, self.secret, None).unwrap();
        let Signed {
            method,
            target,
            headers,
            region,
            time,
            ..
        } = &mut self;
        sign_request(
            method,
            target,
            headers,
            Payload::Unsigned,
            &credentials,
            region,
            *time,
        )
        .unwrap();
        let mut head = format!("{method} {} HTTP/1.1\r\n", target.path_and_query);
        for (name, value) in headers.iter() {
            head.push_str(&format!("{name}: {}\r\n", value.to_str().unwrap()));
        }
        let mut client = Client::connect(sim);
        client
            .stream
            .write_all(tamper(head + "\r\n").as_bytes())
            .unwrap();
        if *method == Method::HEAD {
            client.head()
        } else {
            client.reply()
        }
        .unwrap()
    }

    fn code(self, sim: &Sim) -> (u16, String) {
        code(&self.send(sim, |head| head))
    }
}

fn code(reply: &Reply) -> (u16, String) {
    let code = if reply.status < 400 {
        None
    } else {
        reply.element("Code")
    };
    (reply.status, code.unwrap_or_default().to_owned())
}

fn endpoint(sim: &Sim) -> Endpoint {
    Endpoint::parse(&sim.url()).unwrap()
}

fn strict() -> Sim {
    start(SimOptions {
        anonymous: false,
        ..options()
    })
}

#[test]
fn signed_requests_of_every_kind_are_served() {
    let sim = strict();
    for key in [
        "64",
        "a b/64",
        "a+b/64",
        "50%/64",
        "ü~'()*!/64",
        "a//b/64",
        "./../64",
    ] {
        assert_eq!(
            Signed::key(&sim, key).code(&sim),
            (200, String::new()),
            "{key}"
        );
    }
    let part = Signed::key(&sim, "64")
        .header("range", "bytes=1-3")
        .send(&sim, |head| head);
    assert_eq!((part.status, part.body.len()), (206, 3));
    let mut head = Signed::key(&sim, "64");
    head.method = Method::HEAD;
    assert_eq!(head.send(&sim, |head| head).status, 200);
    let query = [
        ("list-type", "2"),
        ("prefix", "a b+/ü&="),
        ("delimiter", "/"),
    ];
    let list = Signed::get(endpoint(&sim).target("bench", "", &query).unwrap());
    assert_eq!(list.code(&sim), (200, String::new()));
}

#[test]
fn a_bucket_in_the_host_is_served_too() {
    let sim = strict();
    let url = format!("http://localhost:{}", sim.addr().port());
    let endpoint = Endpoint::parse(&url)
        .unwrap()
        .with_style(AddressingStyle::VirtualHost)
        .unwrap();
    let target = endpoint.target("bench", "a/64", &[]).unwrap();
    assert!(target.host_header.starts_with("bench.localhost"));
    assert_eq!(Signed::get(target).code(&sim), (200, String::new()));
}

#[test]
fn each_wrong_way_of_signing_has_its_own_error() {
    let sim = strict();
    let with = |change: fn(&mut Signed)| {
        let mut signed = Signed::key(&sim, "64");
        change(&mut signed);
        signed.code(&sim)
    };
    let expect = |status, code: &str| (status, code.to_owned());
    assert_eq!(
        with(|s| s.secret = "wrong"),
        expect(403, "SignatureDoesNotMatch")
    );
    assert_eq!(
        with(|s| s.access_key = "nobody"),
        expect(403, "InvalidAccessKeyId")
    );
    assert_eq!(
        with(|s| s.region = "eu-west-1"),
        expect(400, "AuthorizationHeaderMalformed")
    );
    let skewed = with(|s| s.time -= Duration::from_secs(3600));
    assert_eq!(skewed, expect(403, "RequestTimeTooSkewed"));
}

#[test]
fn what_is_changed_or_added_on_the_way_is_noticed() {
    let sim = strict();
    let signed = || Signed::key(&sim, "64").header("range", "bytes=1-3");
    let tampered = [
        (("/bench/64", "/bench/65"), "SignatureDoesNotMatch"),
        (("bytes=1-3", "bytes=1-4"), "SignatureDoesNotMatch"),
        (
            ("\r\n\r\n", "\r\nx-amz-rdma-token: x\r\n\r\n"),
            "AccessDenied",
        ),
    ];
    for ((from, to), expected) in tampered {
        let reply = signed().send(&sim, |head| head.replace(from, to));
        assert_eq!(code(&reply), (403, expected.to_owned()), "{to}");
    }
    let added = signed().send(&sim, |head| {
        head.replace("\r\n\r\n", "\r\nVia: proxy\r\n\r\n")
    });
    assert_eq!(
        added.status, 206,
        "a header that proxies add needs no signature"
    );
}
