//! Entry point for fuzzers: where an answer of any kind sends its request, and what may go there.

use http::header::LOCATION;
use http::{HeaderMap, HeaderValue, StatusCode};
use url::Url;

use super::{BUCKET_REGION, Baggage, Elsewhere, baggage, elsewhere, is_redirect};
use crate::endpoint::Origin;
use crate::http::ErrorBody;

const REGION: &str = "us-east-1";

/// Reads four lines: what was asked for, the answer's status, its `Location`, and the region that it names. Whether the
/// request is to be made elsewhere.
pub fn fuzz_redirect(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else {
        return false;
    };
    let mut lines = text.split('\n');
    let mut line = || lines.next().unwrap_or_default();
    let (asked, status) = (Url::parse(line()), line().parse::<StatusCode>());
    let mut headers = HeaderMap::new();
    for name in [LOCATION, BUCKET_REGION] {
        if let Ok(value) = HeaderValue::from_str(line())
            && !value.is_empty()
        {
            headers.insert(name, value);
        }
    }
    let (Ok(asked), Ok(status)) = (asked, status) else {
        return false;
    };
    let Some(from) = Origin::of(&asked) else {
        return false;
    };
    match elsewhere(status, &headers, &ErrorBody::default(), (REGION, &asked)) {
        None => false,
        Some(Elsewhere::Region(region)) => {
            assert!(is_redirect(status) || status == StatusCode::BAD_REQUEST);
            let is_name = |b: u8| b.is_ascii_alphanumeric() || b"-_".contains(&b);
            assert!(region != REGION && region.bytes().all(is_name), "{region}");
            true
        }
        Some(Elsewhere::Location(url, target)) => {
            assert!(is_redirect(status));
            may_go(&from, &url, &target)
        }
    }
}

fn may_go(from: &Origin, url: &Url, target: &str) -> bool {
    let Ok((to, baggage)) = baggage(from, url, [from], &[]) else {
        return false;
    };
    assert!(url.username().is_empty() && url.password().is_none());
    assert!(to.is_secure() || !from.is_secure(), "{url}");
    assert!(target.starts_with('/'), "{target:?}");
    assert!(target.bytes().all(|b| b.is_ascii_graphic()), "{target:?}");
    if baggage == Baggage::All {
        let (to_host, own) = (to.host(), from.host());
        let is_below = to_host.ends_with(&format!(".{own}"));
        let is_aws = from.is_aws() && to.is_aws();
        assert!(to_host == own || is_below || is_aws, "{own} {to_host}");
    }
    true
}
