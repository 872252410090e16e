use super::*;
use crate::request::{Parsed, parse};

const DATE: &str = "20130524T000000Z";

fn request(text: &str) -> Request {
    match parse(text.replace('\n', "\r\n").as_bytes()) {
        Ok(Parsed::Complete(request, _)) => *request,
        _ => panic!("not a request: {text}"),
    }
}

fn documented() -> Authority {
    let secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
    Authority::new("AKIAIOSFODNN7EXAMPLE", secret, "us-east-1", false)
}

fn at(date: &str) -> SystemTime {
    date::parse_amz(date).unwrap()
}

/// The request "GET Object" of the S3 documentation on the Authorization header.
fn documented_get() -> Request {
    request(
        "GET /test.txt HTTP/1.1
Host: examplebucket.s3.amazonaws.com
Range: bytes=0-9
x-amz-date: 20130524T000000Z
x-amz-content-sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
Authorization: AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,SignedHeaders=host;range;x-amz-content-sha256;x-amz-date,Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41

",
    )
}

#[test]
fn the_documented_get_object_example_is_accepted() {
    assert_eq!(documented().verify(&documented_get(), at(DATE)), Ok(()));
}

#[test]
fn the_documented_list_example_is_accepted() {
    let request = request(
        "GET /?max-keys=2&prefix=J HTTP/1.1
Host: examplebucket.s3.amazonaws.com
x-amz-date: 20130524T000000Z
x-amz-content-sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
Authorization: AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, SignedHeaders=host;x-amz-content-sha256;x-amz-date, Signature=34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7

",
    );
    assert_eq!(documented().verify(&request, at(DATE)), Ok(()));
}

#[test]
fn keys_are_admitted_and_end() {
    let authority = Authority::new("first", "secret", "us-east-1", false);
    let code = |authority: &Authority| {
        let error = authority.verify(&documented_get(), at(DATE)).unwrap_err();
        error.code.into_owned()
    };
    assert_eq!(code(&authority), "InvalidAccessKeyId");
    let key = "AKIAIOSFODNN7EXAMPLE";
    authority.admit(key, "wrong");
    assert_eq!(code(&authority), "SignatureDoesNotMatch");
    authority.admit(key, "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY");
    assert_eq!(authority.verify(&documented_get(), at(DATE)), Ok(()));
    authority.end(key);
    assert_eq!(code(&authority), "ExpiredToken");
}

fn code(request: &Request, now: &str) -> String {
    documented()
        .verify(request, at(now))
        .unwrap_err()
        .code
        .into_owned()
}

#[test]
fn any_change_of_what_was_signed_is_noticed() {
    let changes: [fn(&mut Request); 5] = [
        |r| r.path.push('x'),
        |r| r.query.push_str("a=b"),
        |r| r.method = "HEAD".into(),
        |r| r.headers[1].1 = "bytes=0-10".into(),
        |r| r.headers[3].1 = UNSIGNED.into(),
    ];
    for change in changes {
        let mut request = documented_get();
        change(&mut request);
        assert_eq!(code(&request, DATE), "SignatureDoesNotMatch", "{request:?}");
    }
}

#[test]
fn each_violation_has_its_own_code() {
    let changed = |from: &str, to: &str| {
        let mut request = documented_get();
        let header = request
            .headers
            .iter_mut()
            .find(|(name, _)| name == "authorization")
            .unwrap();
        header.1 = header.1.replace(from, to);
        request
    };
    for (from, to, expected) in [
        ("AKIAIOSFODNN7EXAMPLE", "AKIAOTHER", "InvalidAccessKeyId"),
        ("us-east-1", "eu-west-1", "AuthorizationHeaderMalformed"),
        ("20130524/", "20130525/", "AuthorizationHeaderMalformed"),
        ("/s3/", "/ec2/", "AuthorizationHeaderMalformed"),
        (
            "Signature=f0",
            "Signature=zz",
            "AuthorizationHeaderMalformed",
        ),
        ("Signature=f0", "Signature=00", "SignatureDoesNotMatch"),
        ("SignedHeaders", "Signed", "AuthorizationHeaderMalformed"),
        ("host;range;", "range;", "AccessDenied"),
        (";x-amz-date", "", "AccessDenied"),
        ("AWS4-HMAC-SHA256", "AWS", "InvalidRequest"),
    ] {
        assert_eq!(code(&changed(from, to), DATE), expected, "{from} -> {to}");
    }
}

#[test]
fn a_token_that_is_not_signed_is_refused() {
    let mut request = documented_get();
    request
        .headers
        .push(("x-amz-rdma-token".into(), "0".into()));
    assert_eq!(code(&request, DATE), "AccessDenied");
}

#[test]
fn a_date_over_15_minutes_off_is_refused() {
    assert_eq!(
        documented().verify(&documented_get(), at("20130524T001500Z")),
        Ok(())
    );
    assert_eq!(
        code(&documented_get(), "20130524T001501Z"),
        "RequestTimeTooSkewed"
    );
    assert_eq!(
        code(&documented_get(), "20130523T234459Z"),
        "RequestTimeTooSkewed"
    );
}

#[test]
fn an_unsigned_request_is_let_in_only_where_that_is_allowed() {
    let unsigned = request("GET /b/k HTTP/1.1\nHost: h\n\n");
    assert_eq!(code(&unsigned, DATE), "AccessDenied");
    let open = Authority::new("a", "s", "us-east-1", true);
    assert_eq!(open.verify(&unsigned, at(DATE)), Ok(()));
    assert!(open.verify(&documented_get(), at(DATE)).is_err());
}

#[test]
fn odd_keys_and_queries_verify_whichever_way_they_were_encoded() {
    let authority = documented();
    for target in [
        "/b/a%20b%2Bc//%c3%bc",
        "/b/~x",
        "/b?list-type=2&prefix=a%2Fb&delimiter=/&q",
    ] {
        let mut request = request(&format!(
            "GET {target} HTTP/1.1\nHost: h\nx-amz-date: {DATE}\nx-amz-content-sha256: {UNSIGNED}\n\n"
        ));
        let signed = ["host", "x-amz-content-sha256", "x-amz-date"];
        let header = signer::authorization(&authority, &request, &signed, DATE);
        request.headers.push(("authorization".into(), header));
        assert_eq!(authority.verify(&request, at(DATE)), Ok(()), "{target}");
    }
}

#[test]
fn debug_does_not_show_the_secret() {
    assert!(!format!("{:?}", documented()).contains("wJalr"));
}
