//! URLs, targets and buckets.

use super::*;
use percent_encoding::percent_decode_str;
use proptest::prelude::*;

fn endpoint(text: &str) -> Endpoint {
    Endpoint::parse(text).unwrap()
}

fn path(key: &str) -> String {
    endpoint("http://h:9000")
        .target("b", key, &[])
        .unwrap()
        .path_and_query
}

#[test]
fn slashes_case_and_default_port_are_normalised() {
    for text in [
        "http://Host.Example:80",
        "HTTP://host.example/",
        "http://host.example//",
    ] {
        assert_eq!(endpoint(text).to_string(), "http://host.example", "{text}");
    }
    let v6 = endpoint("http://[::1]:9000/");
    assert_eq!(
        (
            v6.to_string().as_str(),
            v6.origin().host().as_str(),
            v6.origin().port()
        ),
        ("http://[::1]:9000", "::1", 9000)
    );
    assert_eq!(endpoint("HTTPS://h:443").to_string(), "https://h");
    assert_eq!(v6.target("b", "k", &[]).unwrap().host_header, "[::1]:9000");
}

#[test]
fn what_is_no_endpoint_is_refused_with_the_fix() {
    let error = |text: &str| Endpoint::parse(text).unwrap_err().to_string();
    assert!(error("10.0.0.5:9000").contains("write http://10.0.0.5:9000"));
    assert!(error("localhost:9000").contains("write http://localhost:9000"));
    for (text, part) in [
        ("http://", "host"),
        ("http:///host", "host"),
        ("http://:9000", "host"),
        ("http://h/a%20b", "path"),
        ("http://a,https://b", "scheme"),
        ("http://a/x,http://b/y", "path"),
        ("http://a,", "scheme"),
        ("http://a,b:9000", "write http://b:9000"),
        ("http://h/?q", "query"),
        ("http://h/#f", "fragment"),
        ("ftp://h", "scheme"),
        ("http://h:99999", "port"),
        ("http://a b", "space"),
        ("http://h\n", "control"),
        ("http://h\\x", "backslash"),
        ("http://h:0", "port 0"),
        ("", "scheme"),
        ("http://[::1", "URL"),
    ] {
        assert!(error(text).contains(part), "{text:?}: {}", error(text));
    }
    let shown = error("http://user:hidden@h");
    assert!(
        shown.contains("password") && !shown.contains("hidden"),
        "{shown}"
    );
    assert!(!error("user:hidden@h").contains("hidden"));
    assert!(!error("http://user:hidden,hidden@h").contains("hidden"));
}

#[test]
fn odd_keys_are_encoded_once_and_nothing_is_normalised() {
    for (key, expected) in [
        ("a/b.tar", "/b/a/b.tar"),
        ("/lead", "/b//lead"),
        ("a//b", "/b/a//b"),
        ("a/./../b", "/b/a/./../b"),
        ("%2B", "/b/%252B"),
        ("a+b c", "/b/a%2Bb%20c"),
        ("é😀", "/b/%C3%A9%F0%9F%98%80"),
        ("a?b#c&d=e", "/b/a%3Fb%23c%26d%3De"),
        ("~-._*'()", "/b/~-._%2A%27%28%29"),
        ("line\nend", "/b/line%0Aend"),
        ("", "/b"),
    ] {
        assert_eq!(path(key), expected, "{key:?}");
    }
}

#[test]
fn queries_are_encoded_with_slashes() {
    let query = [("list-type", "2"), ("prefix", "a/b +"), ("delimiter", "")];
    let target = endpoint("http://h").target("b", "", &query).unwrap();
    assert_eq!(
        target.path_and_query,
        "/b?list-type=2&prefix=a%2Fb%20%2B&delimiter="
    );
}

#[test]
fn virtual_host_is_used_on_aws_and_where_asked_for() {
    let aws = endpoint("http://s3.eu-west-1.amazonaws.com");
    let target = aws.target("train", "k", &[]).unwrap();
    assert_eq!(target.host_header, "train.s3.eu-west-1.amazonaws.com");
    assert_eq!(target.path_and_query, "/k");
    assert_eq!(aws.target("train", "", &[]).unwrap().path_and_query, "/");
    for bucket in ["Up", "a_b", "evil.com#", ".a", "a..b"] {
        assert!(aws.target(bucket, "k", &[]).is_err(), "{bucket}");
    }
    assert_eq!(endpoint("http://minio:9000").style(), AddressingStyle::Path);
    let asked = endpoint("http://minio:9000")
        .with_style(AddressingStyle::VirtualHost)
        .unwrap();
    assert_eq!(
        asked.target("b", "k", &[]).unwrap().host_header,
        "b.minio:9000"
    );
    assert!(
        endpoint("http://10.0.0.1")
            .with_style(AddressingStyle::VirtualHost)
            .is_err()
    );
}

#[test]
fn names_that_are_no_bucket_or_region_are_refused() {
    for bucket in ["", "a/b", "a\nb", "a b", ".", "..", &"x".repeat(256)] {
        assert!(check_bucket(bucket).is_err(), "{bucket:?}");
    }
    assert!(check_bucket("My_old.Bucket").is_ok());
    assert!(endpoint("http://h").with_region("a/b").is_err());
    assert_eq!(
        endpoint("http://h")
            .with_region("eu-west-1")
            .unwrap()
            .region(),
        "eu-west-1"
    );
}

#[test]
fn r45_slashes_at_the_end_of_an_endpoint_change_nothing() {
    for (text, shown, path) in [
        ("http://h/s3", "http://h/s3", "/s3/b/k"),
        ("http://h/s3/", "http://h/s3", "/s3/b/k"),
        ("http://h//gate//s3//", "http://h/gate/s3", "/gate/s3/b/k"),
        ("https://h:9443///", "https://h:9443", "/b/k"),
    ] {
        let endpoint = endpoint(text);
        assert_eq!(endpoint.to_string(), shown);
        let target = endpoint.target("b", "k", &[]).unwrap();
        assert_eq!(target.path_and_query, path);
        let virtual_host = endpoint.with_style(AddressingStyle::VirtualHost).unwrap();
        let target = virtual_host.target("b", "k", &[]).unwrap();
        assert_eq!(target.path_and_query, path.replacen("/b/", "/", 1));
    }
    assert_eq!(
        endpoint("http://h/s3")
            .target("b", "", &[])
            .unwrap()
            .path_and_query,
        "/s3/b"
    );
}

#[test]
fn r51_a_bucket_with_dots_goes_into_the_path_under_tls() {
    let aws = endpoint("https://s3.eu-west-1.amazonaws.com");
    let target = |bucket: &str| aws.target(bucket, "k", &[]).unwrap();
    assert_eq!(target("train.v1").host_header, "s3.eu-west-1.amazonaws.com");
    assert_eq!(target("train.v1").path_and_query, "/train.v1/k");
    assert_eq!(
        target("train").host_header,
        "train.s3.eu-west-1.amazonaws.com"
    );
    // Without certificates there is nothing that the dot could break.
    let plain = endpoint("http://s3.eu-west-1.amazonaws.com");
    assert_eq!(
        plain.target("train.v1", "k", &[]).unwrap().host_header,
        "train.v1.s3.eu-west-1.amazonaws.com"
    );
}

#[test]
fn several_servers_are_one_endpoint() {
    let several = endpoint("http://a:9000/s3/,http://b:9000/s3,http://A:9000/s3");
    assert_eq!(several.to_string(), "http://a:9000/s3,http://b:9000/s3");
    let second = several.origins()[1].clone();
    let target = several.target_at(&second, "train", "k", &[]).unwrap();
    assert_eq!(target.host_header, "b:9000");
    assert!(
        endpoint("http://h,http://10.0.0.1")
            .with_style(AddressingStyle::VirtualHost)
            .is_err()
    );
}

#[test]
fn the_region_of_aws_is_in_the_name_and_the_name_in_the_region() {
    assert_eq!(
        endpoint("https://s3.eu-west-1.amazonaws.com").region(),
        "eu-west-1"
    );
    assert_eq!(endpoint("https://s3.amazonaws.com").region(), "us-east-1");
    let aws = Endpoint::of_aws("eu-central-1").unwrap();
    assert_eq!(aws.to_string(), "https://s3.eu-central-1.amazonaws.com");
    let china = Endpoint::of_aws("cn-north-1").unwrap();
    assert_eq!(china.to_string(), "https://s3.cn-north-1.amazonaws.com.cn");
    assert_eq!(china.region(), "cn-north-1");
    assert!(Endpoint::of_aws("evil.com/").is_err());
    assert!(check_region(&"a".repeat(65)).is_err());
}

proptest! {
    #[test]
    fn every_key_decodes_back_to_itself_and_parses_as_a_target(key in ".{1,80}") {
        let encoded = path(&key);
        let decoded = percent_decode_str(encoded.strip_prefix("/b/").unwrap()).decode_utf8().unwrap();
        prop_assert_eq!(&decoded, &key);
        prop_assert!(encoded.parse::<http::uri::PathAndQuery>().is_ok());
    }

    #[test]
    fn any_url_is_parsed_or_refused_and_what_is_parsed_prints_as_itself(text in "(https?://)?[a-z0-9.:@/\\[\\]?#%,-]{0,24}") {
        if let Ok(parsed) = Endpoint::parse(&text) {
            prop_assert_eq!(Endpoint::parse(&parsed.to_string()).unwrap(), parsed);
        }
    }
}
