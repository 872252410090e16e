//! Answers that send a request elsewhere, for each kind of request.

use super::server::Step::Answer;
use super::server::{Server, answer, ok, partial};
use super::{get, landing, ranged, run, whole};
use crate::checksum::Mode;
use crate::credentials::Credentials;
use crate::endpoint::Endpoint;
use crate::error::{Error, ErrorKind};
use crate::http::Client;
use crate::list::ListQuery;
use crate::network::{Network, Proxies};
use crate::options::NO_OPTIONS;
use crate::timeouts::Timeouts;
use crate::upstream::Upstream;

fn client(server: &Server, trusted: &[&str]) -> Client {
    let network = Network {
        trusted: trusted.iter().map(|host| host.parse().unwrap()).collect(),
        ..Network::default()
    };
    let credentials = Credentials::new("id", "hidden", None).unwrap();
    let upstream = Upstream::new(
        server.endpoint.clone(),
        credentials,
        Timeouts::default(),
        network,
    );
    Client::new(upstream.unwrap())
}

fn wrong_region(status: &str) -> Vec<u8> {
    let body = "<Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-west-1</Region></Error>";
    let length = format!("Content-Length: {}", body.len());
    answer(status, &[&length], body.as_bytes())
}

fn moved(to: &str) -> Vec<u8> {
    let location = format!("Location: {to}");
    answer(
        "307 Temporary Redirect",
        &["Content-Length: 0", &location],
        b"",
    )
}

fn region_of(request: &str) -> &str {
    let (_, scope) = request.split_once("Credential=id/").expect("a signature");
    scope.split('/').nth(1).unwrap()
}

#[test]
fn r47_a_bucket_of_another_region_is_signed_for_it_and_stays_so() {
    for status in [
        "301 Moved Permanently",
        "307 Temporary Redirect",
        "400 Bad Request",
    ] {
        let server = Server::start(vec![vec![
            Answer(wrong_region(status)),
            Answer(ok(b"hello")),
            Answer(ok(b"hello")),
        ]]);
        let client = client(&server, &[]);
        let (_landing, mut window) = landing(8);
        run(async {
            for _ in 0..2 {
                let received = client.get(&whole(), &mut window).await.unwrap();
                assert_eq!(received.bytes, 5);
            }
        });
        let regions = [(); 3].map(|()| server.next().unwrap());
        let regions = regions.each_ref().map(|request| region_of(request));
        assert_eq!(regions, ["us-east-1", "eu-west-1", "eu-west-1"], "{status}");
    }
}

#[test]
fn r47_heads_and_lists_follow_a_region_too() {
    let header = ["Content-Length: 0", "x-amz-bucket-region: eu-west-1"];
    let list = b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>";
    let server = Server::start(vec![vec![
        Answer(answer("400 Bad Request", &header, b"")),
        Answer(answer("200 OK", &["Content-Length: 7", "ETag: \"a\""], b"")),
    ]]);
    let client_of = |server: &Server| client(server, &[]);
    let head = run(client_of(&server).head("train", "k", Mode::Off, &NO_OPTIONS));
    assert_eq!(head.unwrap().info.size, Some(7));
    let server = Server::start(vec![vec![
        Answer(wrong_region("301 Moved Permanently")),
        Answer(ok(list)),
    ]]);
    let query = ListQuery::default();
    let page = run(client_of(&server).list("train", &query, &NO_OPTIONS));
    assert_eq!(page.unwrap().objects.len(), 0);
}

#[test]
fn r47_a_redirect_without_a_place_to_go_is_an_error_and_never_a_success() {
    for status in [
        "301 Moved Permanently",
        "302 Found",
        "307 Temporary Redirect",
    ] {
        let server = Server::one(Answer(answer(status, &["Content-Length: 0"], b"")));
        let error = get(&client(&server, &[]), whole(), 8).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::Redirect { .. }),
            "{error}"
        );
    }
}

#[test]
fn r47_a_server_that_names_ever_new_regions_is_followed_a_few_times() {
    let region = |n: usize| format!("x-amz-bucket-region: region-{n}");
    let steps = (0..20).map(|n| {
        Answer(answer(
            "400 Bad Request",
            &["Content-Length: 0", &region(n)],
            b"",
        ))
    });
    let server = Server::start(vec![steps.collect()]);
    let error = get(&client(&server, &[]), whole(), 8).unwrap_err();
    assert_eq!(error.status(), Some(400), "{error}");
    let told = format!("{error:#}");
    assert!(told.contains("sent elsewhere too often"), "{told}");
}

/// A GET that the endpoint sends to another server of this host. Returns what that one was asked.
fn sent_away(trusted: &[&str], part: crate::http::GetPart<'_>) -> (Result<(), Error>, String) {
    let target = Server::one(Answer(partial("0-4/5", "\"a\"", b"hello")));
    let to = format!("{}/v1/b//k%2F../x?pid=7", target.endpoint.origin());
    let server = Server::one(Answer(moved(&to)));
    let got = get(&client(&server, trusted), part, 8).map(|(_, bytes)| {
        assert_eq!(&bytes[..5], b"hello");
    });
    (got, target.next().unwrap())
}

#[test]
fn r48_a_location_is_followed_verbatim_without_the_signature() {
    let (got, request) = sent_away(&[], ranged(0, 5));
    got.unwrap();
    assert!(
        request.starts_with("GET /v1/b//k%2F../x?pid=7 HTTP/1.1\r\n"),
        "{request}"
    );
    let request = request.to_lowercase();
    assert!(request.contains("range: bytes=0-4"), "{request}");
    for secret in [
        "authorization",
        "x-amz-security-token",
        "x-amz-date",
        "hidden",
    ] {
        assert!(!request.contains(secret), "{request}");
    }
}

#[test]
fn r48_a_trusted_host_sees_a_signature_made_for_it() {
    let (got, request) = sent_away(&["127.0.0.1"], ranged(0, 5));
    got.unwrap();
    assert_eq!(region_of(&request), "us-east-1");
}

#[test]
fn r48_what_names_memory_or_a_key_goes_to_no_other_host() {
    let mut headers = http::HeaderMap::new();
    for name in [
        "x-amz-rdma-token",
        "x-amz-server-side-encryption-customer-key",
        "range",
    ] {
        headers.insert(name, "bytes=0-4".parse().unwrap());
    }
    crate::http::route::remove_secrets(&mut headers);
    let left: Vec<_> = headers.keys().map(|name| name.as_str()).collect();
    assert_eq!(left, ["range"]);
}

#[test]
fn r48_redirects_that_go_in_a_circle_end() {
    let steps = (0..9).map(|n| Answer(moved(&format!("/again/{n}"))));
    let server = Server::start(vec![steps.collect()]);
    let error = get(&client(&server, &[]), whole(), 8).unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::Redirect { .. }),
        "{error}"
    );
    assert!(format!("{error:#}").contains("too often"), "{error:#}");
    assert_eq!(
        std::iter::from_fn(|| server.requests.try_recv().ok()).count(),
        6
    );
}

#[test]
fn r48_a_redirect_to_what_is_beside_this_host_is_refused() {
    // The endpoint is at 127.0.0.1, so what clouds have at 169.254.169.254 is none of its own.
    let server = Server::one(Answer(moved("http://169.254.169.254/latest/meta-data/")));
    let error = get(&client(&server, &[]), whole(), 8).unwrap_err();
    let line = error.to_string();
    assert!(
        line.contains("169.254.169.254") && line.contains("beside this host"),
        "{line}"
    );
    assert!(!error.is_retryable(), "{line}");
}

/// A GET through a proxy at this host, for an endpoint elsewhere. The proxy's answers, and what it was asked.
fn through_a_proxy(answers: Vec<Vec<u8>>) -> (Result<(), Error>, Vec<String>) {
    let proxy = Server::start(answers.into_iter().map(|one| vec![Answer(one)]).collect());
    let network = Network {
        proxies: Proxies::all(&proxy.endpoint.to_string()).unwrap(),
        ..Network::default()
    };
    let upstream = Upstream::new(
        Endpoint::parse("http://s3.example").unwrap(),
        Credentials::new("id", "hidden", None).unwrap(),
        Timeouts::default(),
        network,
    );
    let (_landing, mut window) = landing(8);
    let client = Client::new(upstream.unwrap());
    let got = run(async { client.get(&whole(), &mut window).await.map(drop) });
    let asked = std::iter::from_fn(|| proxy.requests.try_recv().ok().flatten());
    (got, asked.collect())
}

#[test]
fn r48_behind_a_proxy_it_is_not_the_proxys_address_that_counts() {
    for near in [
        "127.0.0.1",
        "localhost",
        "x.localhost",
        "[::ffff:7f00:1]",
        "169.254.169.254",
    ] {
        let (got, asked) = through_a_proxy(vec![moved(&format!("http://{near}/x"))]);
        let line = got.unwrap_err().to_string();
        assert!(line.contains("beside this host"), "{near}: {line}");
        assert_eq!(asked.len(), 1, "{near}");
    }
    let (got, asked) = through_a_proxy(vec![moved("http://far.example/x"), ok(b"hello")]);
    got.unwrap();
    assert!(
        asked[1].starts_with("GET http://far.example/x HTTP/1.1"),
        "{asked:?}"
    );
    assert!(
        !asked[1].to_lowercase().contains("authorization"),
        "{asked:?}"
    );
}

#[test]
fn a_redirect_that_is_not_followed_names_its_host_and_nothing_secret() {
    let to = "ftp://elsewhere.example/train/k?X-Amz-Signature=hidden";
    let server = Server::one(Answer(moved(to)));
    let error = get(&client(&server, &[]), whole(), 8).unwrap_err();
    let told = format!("{error:#}");
    assert!(
        told.contains("elsewhere.example") && !told.contains("hidden"),
        "{told}"
    );
    assert_eq!(error.status(), Some(307));
}

#[test]
fn regions_of_buckets_are_bounded_and_shared() {
    let regions = crate::http::Regions::default();
    for n in 0..10_000 {
        regions.learn(&format!("bucket-{n}"), "eu-west-1");
    }
    assert_eq!(regions.of("bucket-9999").as_deref(), Some("eu-west-1"));
    assert!(regions.len() <= 4096);
}
