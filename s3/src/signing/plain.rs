//! Signatures of plain requests: as aws-sigv4 makes them, at a fraction of the cost.
//!
//! A request without a query, whose headers have one value each, needs no more than its lines in order. What depends on
//! keys, region and time only is kept for a second, and taken from a signature of the library's.

use std::cell::RefCell;
use std::time::{SystemTime, UNIX_EPOCH};

use aws_credential_types::Credentials as Keys;
use aws_sigv4::sign::v4::{calculate_signature, generate_signing_key};
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use sha2::{Digest, Sha256};

use super::Signing;
use crate::endpoint::Target;

const DATE: &str = "x-amz-date";
const CONTENT: &str = "x-amz-content-sha256";
const TOKEN: &str = "x-amz-security-token";
const UNSIGNED: &str = "UNSIGNED-PAYLOAD";
const ALGORITHM: &str = "AWS4-HMAC-SHA256";

/// Headers that are signed in another way, or not at all.
const OTHERS: [&str; 5] = [
    "authorization",
    "user-agent",
    "transfer-encoding",
    "x-amzn-trace-id",
    "x-amz-user-agent",
];

/// What the signatures of one thread had in common last.
#[derive(Default)]
pub(crate) struct Last(RefCell<Option<Common>>);

/// What signatures with the same keys, for the same region and in the same second have in common.
struct Common {
    keys: Keys,
    region: String,
    second: u64,
    /// `20261201T101500Z`
    date: HeaderValue,
    /// `20261201/us-east-1/s3/aws4_request`
    scope: String,
    derived: Vec<u8>,
    token: Option<HeaderValue>,
    /// Room for the text that is signed.
    text: String,
}

impl Last {
    /// Signs a request, if it is plain and its time was signed for before. Otherwise nothing is changed.
    pub(super) fn sign(
        &self,
        method: &Method,
        target: &Target,
        headers: &mut HeaderMap,
        signing: &Signing<'_>,
    ) -> bool {
        let mut last = self.0.borrow_mut();
        let common = last.as_mut().filter(|common| common.is_of(signing));
        let signed = common.and_then(|common| common.sign(method, target, headers));
        signed.is_some()
    }

    /// Takes from a signature of the library's what the next ones have in common with it.
    pub(super) fn learn(&self, headers: &HeaderMap, signing: &Signing<'_>) {
        let mut last = self.0.borrow_mut();
        let is_known = last.as_ref().is_some_and(|common| common.is_of(signing));
        if !is_known {
            *last = Common::of(headers, signing);
        }
    }
}

impl Common {
    fn of(headers: &HeaderMap, signing: &Signing<'_>) -> Option<Common> {
        let (keys, region) = (signing.keys?, signing.region);
        let authorization = headers.get(AUTHORIZATION)?.to_str().ok()?;
        let (_, credential) = authorization.split_once("Credential=")?;
        let (credential, _) = credential.split_once(',')?;
        let scope = credential
            .strip_prefix(keys.access_key_id())?
            .strip_prefix('/')?;
        let derived = generate_signing_key(keys.secret_access_key(), signing.time, region, "s3");
        Some(Common {
            keys: keys.clone(),
            region: region.to_owned(),
            second: second(signing.time)?,
            date: headers.get(DATE)?.clone(),
            scope: scope.to_owned(),
            derived: derived.as_ref().to_vec(),
            token: headers.get(TOKEN).cloned(),
            text: String::new(),
        })
    }

    fn is_of(&self, signing: &Signing<'_>) -> bool {
        second(signing.time) == Some(self.second)
            && self.region == signing.region
            && signing.keys == Some(&self.keys)
    }

    fn sign(&mut self, method: &Method, target: &Target, headers: &mut HeaderMap) -> Option<()> {
        let path = &target.path_and_query;
        if path.contains('?') || headers.len() != headers.keys_len() {
            return None;
        }
        let mut lines = Vec::with_capacity(headers.len() + 3);
        for (name, value) in &*headers {
            lines.push((name.as_str(), plain(name, value)?));
        }
        lines.push((CONTENT, UNSIGNED));
        lines.push((DATE, self.date.to_str().ok()?));
        if let Some(token) = &self.token {
            lines.push((TOKEN, token.to_str().ok()?));
        }
        lines.sort_unstable();
        if lines.windows(2).any(|two| two[0].0 == two[1].0) {
            return None;
        }
        let text = &mut self.text;
        text.clear();
        append(text, &[method.as_str(), "\n", path, "\n\n"]);
        for (name, value) in &lines {
            append(text, &[name, ":", value, "\n"]);
        }
        text.push('\n');
        let names = text.len();
        for (nth, (name, _)) in lines.iter().enumerate() {
            append(text, &[if nth > 0 { ";" } else { "" }, name]);
        }
        let names = names..text.len();
        append(text, &["\n", UNSIGNED]);
        let mut hash = [0; 64];
        hex::encode_to_slice(Sha256::digest(text.as_bytes()), &mut hash).ok()?;
        let hash = std::str::from_utf8(&hash).ok()?;
        let rest = text.len();
        let date = self.date.to_str().ok()?;
        append(
            text,
            &[ALGORITHM, "\n", date, "\n", &self.scope, "\n", hash],
        );
        let signature = calculate_signature(&self.derived, &text.as_bytes()[rest..]);
        let mut authorization = String::with_capacity(256);
        let id = self.keys.access_key_id();
        append(
            &mut authorization,
            &[
                ALGORITHM,
                " Credential=",
                id,
                "/",
                &self.scope,
                ", SignedHeaders=",
                &text[names],
            ],
        );
        append(&mut authorization, &[", Signature=", &signature]);
        let authorization = HeaderValue::try_from(authorization).ok()?;
        headers.insert(CONTENT, HeaderValue::from_static(UNSIGNED));
        headers.insert(DATE, self.date.clone());
        if let Some(token) = &self.token {
            headers.insert(TOKEN, token.clone());
        }
        headers.insert(AUTHORIZATION, authorization);
        Some(())
    }
}

fn append(text: &mut String, pieces: &[&str]) {
    pieces.iter().for_each(|piece| text.push_str(piece));
}

/// A value that is signed as it is sent.
fn plain<'h>(name: &HeaderName, value: &'h HeaderValue) -> Option<&'h str> {
    let text = value.to_str().ok()?;
    let edges = text.starts_with(' ') || text.ends_with(' ');
    let is_plain = !edges && !text.contains("  ") && !OTHERS.contains(&name.as_str());
    is_plain.then_some(text)
}

fn second(time: SystemTime) -> Option<u64> {
    Some(time.duration_since(UNIX_EPOCH).ok()?.as_secs())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::super::{Payload, sign};
    use super::*;
    use crate::endpoint::Endpoint;

    /// The headers as they are signed where nothing was signed before, and after a request of the same second.
    fn both(
        target: &Target,
        given: &HeaderMap,
        signing: &Signing<'_>,
    ) -> (HeaderMap, HeaderMap, bool) {
        let (mut by_library, mut plainly) = (given.clone(), given.clone());
        sign(
            &Method::GET,
            target,
            &mut by_library,
            signing,
            &Last::default(),
        )
        .unwrap();
        let last = Last::default();
        let endpoint = Endpoint::parse("http://other").unwrap();
        let first = endpoint.target("b", "k", &[]).unwrap();
        sign(&Method::HEAD, &first, &mut HeaderMap::new(), signing, &last).unwrap();
        let host = HeaderValue::from_str(&target.host_header).unwrap();
        plainly.insert("host", host);
        let is_plain = last.sign(&Method::GET, target, &mut plainly, signing);
        (by_library, plainly, is_plain)
    }

    fn same(one: &HeaderMap, other: &HeaderMap) -> bool {
        let sensitive = |headers: &HeaderMap, name| {
            let value: Option<&HeaderValue> = headers.get(name);
            value.is_some_and(HeaderValue::is_sensitive)
        };
        one == other && sensitive(one, TOKEN) == sensitive(other, TOKEN)
    }

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn what_is_not_plain_is_left_to_the_library() {
        let endpoint = Endpoint::parse("http://h:9000").unwrap();
        let keys = Keys::new("ID", "secret", None, None, "test");
        let signing = Signing {
            keys: Some(&keys),
            region: "r",
            time: at(1_700_000_000),
            payload: Payload::Unsigned,
        };
        let with_query = endpoint.target("b", "k", &[("versionId", "1")]).unwrap();
        let target = endpoint.target("b", "k", &[]).unwrap();
        assert!(!both(&with_query, &HeaderMap::new(), &signing).2);
        for (name, value) in [
            ("x-amz-meta-a", "two  spaces"),
            ("x-amz-meta-a", " edge"),
            ("user-agent", "me"),
            ("x-amz-date", "20200101T000000Z"),
            ("authorization", "mine"),
        ] {
            let mut given = HeaderMap::new();
            given.insert(name, value.parse().unwrap());
            assert!(!both(&target, &given, &signing).2, "{name}: {value:?}");
        }
        let mut twice = HeaderMap::new();
        twice.append("x-amz-meta-a", "1".parse().unwrap());
        twice.append("x-amz-meta-a", "2".parse().unwrap());
        assert!(!both(&target, &twice, &signing).2);
    }

    #[test]
    fn other_keys_another_region_and_another_second_are_signed_anew() {
        let endpoint = Endpoint::parse("http://h:9000").unwrap();
        let target = endpoint.target("b", "k", &[]).unwrap();
        let (keys, others) = (
            Keys::new("ID", "secret", None, None, "test"),
            Keys::new("ID", "other", None, None, "test"),
        );
        let of = |keys, region, time| Signing {
            keys: Some(keys),
            region,
            time,
            payload: Payload::Unsigned,
        };
        let last = Last::default();
        let first = of(&keys, "r", at(86_399));
        sign(&Method::GET, &target, &mut HeaderMap::new(), &first, &last).unwrap();
        let plainly = |signing| last.sign(&Method::GET, &target, &mut HeaderMap::new(), &signing);
        assert!(plainly(of(&keys, "r", at(86_399))));
        assert!(!plainly(of(&others, "r", at(86_399))));
        assert!(!plainly(of(&keys, "q", at(86_399))));
        assert!(!plainly(of(&keys, "r", at(86_400))));
    }

    proptest! {
        #[test]
        fn a_plain_signature_is_the_librarys(
            key in "\\PC{1,40}",
            values in prop::collection::vec("[!-~]( ?[!-~]){0,30}", 4),
            token in prop::option::of("[!-~]{1,60}"),
            id in "[A-Z0-9]{1,20}",
            seconds in 0u64..4_000_000_000,
        ) {
            let endpoint = Endpoint::parse("http://h:9000").unwrap();
            let target = endpoint.target("bucket", &key, &[]).unwrap();
            let keys = Keys::new(id, "secret", token, None, "test");
            let signing = Signing {
                keys: Some(&keys),
                region: "us-east-1",
                time: at(seconds),
                payload: Payload::Unsigned,
            };
            let mut given = HeaderMap::new();
            let names = ["range", "if-match", "x-amz-rdma-token", "zz-last"];
            for (name, value) in names.iter().zip(&values) {
                given.insert(*name, value.parse().unwrap());
            }
            let (by_library, plainly, is_plain) = both(&target, &given, &signing);
            prop_assert!(is_plain);
            prop_assert!(same(&by_library, &plainly), "{by_library:?} {plainly:?}");
        }
    }
}
