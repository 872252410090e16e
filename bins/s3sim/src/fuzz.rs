//! Entry points for fuzzers: any bytes, no panic, and what must hold of whatever is accepted.

use std::time::{Duration, UNIX_EPOCH};

use serde::Serialize;

use crate::auth::Authority;
use crate::faults::{self, Faults, Kind, Rule};
use crate::range::{self, Ranged};
use crate::request::{self, Parsed, Request};
use crate::uri;

const KINDS: [Kind; 4] = [Kind::Rdma, Kind::Http, Kind::Head, Kind::List];

/// Reads the bytes as the head of a request, and judges its target, range and signature. Whether it is one.
pub fn fuzz_request(data: &[u8]) -> bool {
    let Ok(Parsed::Complete(request, len)) = request::parse(data) else {
        return false;
    };
    assert!(len <= data.len(), "{len} bytes of {}", data.len());
    let cut = request::parse(&data[..len - 1]);
    assert!(!matches!(cut, Ok(Parsed::Complete(..))), "ends at {len}");
    assert!(request.path.starts_with('/') && !request.path.contains('?'));
    let is_lower = |name: &str| !name.bytes().any(|b| b.is_ascii_uppercase());
    assert!(request.headers.iter().all(|(name, _)| is_lower(name)));
    check_target(&request);
    check_ranges(request.header("range"));
    check_refused(&request);
    true
}

/// What is decoded and encoded again means the same.
fn check_target(request: &Request) {
    if let Some(path) = uri::decode(&request.path) {
        let again = uri::encode_path(&path);
        assert_eq!(uri::decode(&again), Some(path.clone()), "{again}");
        let (bucket, _) = uri::bucket_and_key("127.0.0.1:9000", &path, &[]);
        assert!(!bucket.contains('/'), "{bucket}");
    }
    if let Some(pairs) = uri::query_pairs(&request.query) {
        let encoded = pairs
            .iter()
            .map(|(name, value)| format!("{}={}", uri::encode(name), uri::encode(value)));
        let again = encoded.collect::<Vec<_>>().join("&");
        assert_eq!(uri::query_pairs(&again), Some(pairs), "{again}");
    }
}

/// A part is not empty and lies within the object.
fn check_ranges(header: Option<&str>) {
    for size in [0, 1, 1000, u64::MAX] {
        if let Ranged::Part { first, len } = range::parse(header, size) {
            assert!(len > 0 && first < size && len <= size - first, "of {size}");
        }
    }
}

/// Nobody guesses a signature; without one only the anonymous are let in.
fn check_refused(request: &Request) {
    let now = UNIX_EPOCH + Duration::from_secs(1_369_353_600);
    for anonymous in [false, true] {
        let authority = Authority::new("access", "secret", "us-east-1", anonymous);
        let let_in = authority.verify(request, now).is_ok();
        let unsigned = request.header("authorization").is_none();
        assert_eq!(let_in, anonymous && unsigned);
    }
}

/// Reads the bytes as a script of faults and lets requests meet it. Whether it is one.
pub fn fuzz_faults(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else {
        return false;
    };
    let Ok(rules) = faults::parse(text) else {
        return false;
    };
    #[derive(Serialize)]
    struct Script<'a> {
        rule: &'a [Rule],
    }
    let again = toml::to_string(&Script { rule: &rules }).expect("rules can be written");
    assert_eq!(faults::parse(&again).as_deref(), Ok(&*rules), "{again}");
    rules.iter().for_each(check_rule);
    true
}

/// A rule by itself fires as often as it says, at the requests that it names.
fn check_rule(rule: &Rule) {
    let faults = Faults::default();
    faults.push(rule.clone()).expect("a rule that was read");
    let mut fired = 0;
    for kind in KINDS {
        for key in ["", "train/a", "été"] {
            let Some(action) = faults.pick(kind, key) else {
                continue;
            };
            fired += 1;
            assert_eq!(action, rule.action);
            assert!(rule.only.map_or(kind != Kind::List, |only| only == kind));
            assert!(rule.probability > 0.0);
        }
    }
    let most = 12_u64.saturating_sub(rule.skip);
    assert!(fired <= rule.count.unwrap_or(most).min(most));
}
