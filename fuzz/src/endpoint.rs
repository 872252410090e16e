//! The endpoint's URL, and the targets that it gives.
//!
//! ```text
//! https://host:9000/base,https://other  the URL
//! bucket                               the names of a request
//! key
//! ```

use http::HeaderValue;
use http::uri::PathAndQuery;
use percent_encoding::percent_decode_str;
use s3engine_s3::endpoint::{AddressingStyle, Endpoint, EndpointError};

/// Reads the first line of the bytes as an endpoint, and aims a request at the other two.
pub fn endpoint(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else {
        return false;
    };
    let mut lines = text.splitn(3, '\n');
    let mut line = || lines.next().unwrap_or_default();
    let (url, bucket, key) = (line(), line(), line());
    let endpoint = match Endpoint::parse(url) {
        Ok(endpoint) => endpoint,
        Err(error) => {
            check_redacted(url, &error);
            return false;
        }
    };
    assert!(!url.contains('@'), "{url:?}");
    let shown = endpoint.to_string();
    assert_eq!(Endpoint::parse(&shown).as_ref(), Ok(&endpoint), "{shown}");
    for origin in endpoint.origins() {
        assert!(origin.port() > 0);
        let host = origin.host();
        let is_plain = |b: u8| b.is_ascii_graphic() && !b"/?#@\\[]".contains(&b);
        assert!(!host.is_empty() && host.bytes().all(is_plain), "{host:?}");
    }
    check_target(&endpoint, bucket, key);
    if let Ok(endpoint) = endpoint.with_style(AddressingStyle::VirtualHost) {
        check_target(&endpoint, bucket, key);
    }
    true
}

/// A target can be sent, and leads to that bucket and key on that host.
fn check_target(endpoint: &Endpoint, bucket: &str, key: &str) {
    let query = [("prefix", key)];
    let Ok(target) = endpoint.target(bucket, key, &query) else {
        return;
    };
    let shown = format!("{target:?}");
    let authority = endpoint.origin().authority();
    let bare = endpoint.to_string();
    let bare = bare.split(',').next().expect("a first one");
    let base = bare
        .strip_prefix(&endpoint.origin().to_string())
        .expect("a base");
    let is_dotted = endpoint.is_secure() && bucket.contains('.');
    let path = match endpoint.style() {
        AddressingStyle::VirtualHost if !is_dotted => {
            assert_eq!(target.host_header, format!("{bucket}.{authority}"));
            format!("{base}/{key}")
        }
        _ => {
            assert_eq!(target.host_header, authority);
            format!("{base}/{bucket}/{key}")
        }
    };
    assert!(HeaderValue::from_str(&target.host_header).is_ok());
    assert!(target.path_and_query.parse::<PathAndQuery>().is_ok());
    let (sent, query) = target.path_and_query.split_once('?').expect("a query");
    let decoded = |text| percent_decode_str(text).decode_utf8().expect("UTF-8");
    let no_key = path.strip_suffix('/').filter(|_| key.is_empty());
    assert!(
        decoded(sent) == path || Some(&*decoded(sent)) == no_key,
        "{shown}"
    );
    assert_eq!(decoded(query), format!("prefix={key}"), "{shown}");
}

/// What stands before an `@` may be a password.
fn check_redacted(url: &str, error: &EndpointError) {
    let (EndpointError::MissingScheme { text } | EndpointError::Invalid { text, .. }) = error
    else {
        return;
    };
    let Some((_, after)) = url.rsplit_once('@') else {
        assert!(url.split(',').any(|one| one == text), "{text:?}");
        return;
    };
    let before = text
        .strip_suffix(after)
        .and_then(|text| text.strip_suffix("***@"));
    let scheme = before.expect("the user is hidden");
    assert!(scheme.is_empty() || scheme.ends_with("://"), "{text:?}");
}
