//! What requests say besides the name of what they are for.

use super::*;
use crate::list::ListQuery;
use crate::options::{CustomerKey, ExtraHeaders};

fn options() -> RequestOptions {
    RequestOptions {
        version_id: Some("v 1".into()),
        customer_key: Some(CustomerKey::new([7; 32])),
        request_payer: true,
        expected_bucket_owner: Some("123456789012".into()),
        headers: ExtraHeaders::of([("x-trace", "7")]).unwrap(),
    }
}

fn of_version(version: &str, body: &[u8]) -> Vec<u8> {
    let length = format!("Content-Length: {}", body.len());
    let version = format!("x-amz-version-id: {version}");
    answer("200 OK", &[&length, &version], body)
}

const OF_OBJECT: [&str; 5] = [
    "x-amz-expected-bucket-owner",
    "x-amz-request-payer",
    "x-amz-server-side-encryption-customer-algorithm",
    "x-amz-server-side-encryption-customer-key",
    "x-trace",
];

#[test]
fn get_and_head_say_all_of_them_and_sign_them() {
    let options = options();
    let server = Server::start(vec![
        vec![Close(of_version("v 1", b"hello"))],
        vec![Close(of_version("v 1", b""))],
    ]);
    let part = GetPart {
        options: &options,
        ..whole()
    };
    let client = server.client();
    run(async {
        let (_landing, mut window) = landing(16);
        client.get(&part, &mut window).await.unwrap();
        let head = client.head("train", "k", Mode::Off, &options);
        head.await.unwrap();
    });
    for method in ["GET", "HEAD"] {
        let request = server.next().unwrap();
        let line = format!("{method} /train/k?versionId=v%201 HTTP/1.1\r\n");
        assert!(request.starts_with(&line), "{request}");
        let signed = request.split("SignedHeaders=").nth(1).unwrap();
        let signed = signed.split(',').next().unwrap();
        for name in OF_OBJECT {
            assert!(
                request.contains(&format!("{name}: ")),
                "{name} in {request}"
            );
            assert!(signed.split(';').any(|of| of == name), "{name} in {signed}");
        }
    }
}

#[test]
fn list_says_those_of_a_bucket() {
    let xml = b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>";
    let length = format!("Content-Length: {}", xml.len());
    let server = Server::one(Close(answer("200 OK", &[&length], xml)));
    let (client, options) = (server.client(), options());
    run(client.list("train", &ListQuery::default(), &options)).unwrap();
    let request = server.next().unwrap();
    for name in [
        "x-amz-request-payer",
        "x-amz-expected-bucket-owner",
        "x-trace",
    ] {
        assert!(request.contains(name), "{name} in {request}");
    }
    assert!(!request.contains("customer") && !request.contains("versionId"));
}

#[test]
fn a_server_that_knows_no_versions_does_not_pass_for_one_that_does() {
    let options = RequestOptions {
        version_id: Some("v1".into()),
        ..RequestOptions::default()
    };
    let part = GetPart {
        options: &options,
        ..whole()
    };
    for other in [ok(b"hello"), of_version("v2", b"hello")] {
        let error = failed(Answer(other.clone()), part);
        assert!(
            matches!(error.kind(), ErrorKind::Modified { .. }),
            "{error}"
        );
        let server = Server::one(Close(other));
        let client = server.client();
        let head = run(client.head("train", "k", Mode::Off, &options));
        let error = head.unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::Modified { .. }),
            "{error}"
        );
    }
    // Objects from before versions were kept.
    let options = RequestOptions {
        version_id: Some("null".into()),
        ..RequestOptions::default()
    };
    let part = GetPart {
        options: &options,
        ..whole()
    };
    let server = Server::one(Answer(ok(b"hello")));
    get(&server.client(), part, 16).unwrap();
    assert!(server.next().unwrap().contains("?versionId=null "));
}

#[test]
fn r4_parts_are_asked_for_by_their_bytes_alone() {
    let server = Server::one(Answer(partial("5-9/100", "\"a\"", b"fghij")));
    get(&server.client(), ranged(5, 5), 5).unwrap();
    let request = server.next().unwrap();
    assert!(!request.contains("partNumber"), "{request}");
    assert!(request.contains("range: bytes=5-9\r\n"), "{request}");
}
