//! Headers that callers add to a request.

use http::{HeaderMap, HeaderName, HeaderValue};
use serde::{Deserialize, Serialize};

/// Headers that have no meaning of their own here. None of them is one that the engine sets, nor one that would
/// change where a request goes, what it is answered with, or who it is from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Vec<(String, String)>", into = "Vec<(String, String)>")]
pub struct ExtraHeaders(Vec<(HeaderName, HeaderValue)>);

/// A header that cannot be added.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadHeader {
    /// It is none.
    #[error("{name:?} is no name of a header")]
    Name {
        /// The name.
        name: String,
    },
    /// Its value cannot be sent.
    #[error("the value of the header {name} holds what cannot be sent, such as a line end")]
    Value {
        /// Its name.
        name: HeaderName,
    },
    /// The engine sets it, or an option of its own does.
    #[error("the header {name} is set by the engine alone")]
    Reserved {
        /// Its name.
        name: HeaderName,
    },
}

/// Names of which the engine alone disposes.
const RESERVED: [&str; 23] = [
    "accept-encoding",
    "authorization",
    "connection",
    "content-length",
    "date",
    "expect",
    "host",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "keep-alive",
    "range",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "x-amz-content-sha256",
    "x-amz-date",
    "x-amz-expected-bucket-owner",
    "x-amz-request-payer",
];

/// Beginnings of such names.
const RESERVED_PREFIXES: [&str; 6] = [
    "proxy-",
    "x-amz-checksum-",
    "x-amz-copy-",
    "x-amz-rdma-",
    "x-amz-security-",
    "x-amz-server-side-encryption-customer-",
];

impl ExtraHeaders {
    /// No headers.
    pub const NONE: ExtraHeaders = ExtraHeaders(Vec::new());

    /// Adds one, in place of one of the same name.
    pub fn insert(&mut self, name: &str, value: &str) -> Result<(), BadHeader> {
        let Ok(name) = name.parse::<HeaderName>() else {
            let name = name.to_owned();
            return Err(BadHeader::Name { name });
        };
        let text = name.as_str();
        if RESERVED.contains(&text)
            || RESERVED_PREFIXES
                .iter()
                .any(|prefix| text.starts_with(prefix))
        {
            return Err(BadHeader::Reserved { name });
        }
        let Ok(value) = HeaderValue::from_str(value.trim()) else {
            return Err(BadHeader::Value { name });
        };
        self.0.retain(|(known, _)| *known != name);
        self.0.push((name, value));
        Ok(())
    }

    /// Those of these names and values.
    pub fn of<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, BadHeader> {
        let mut headers = Self::NONE;
        for (name, value) in pairs {
            headers.insert(name, value)?;
        }
        Ok(headers)
    }

    /// Names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        // Values were made of text.
        let pairs = self.0.iter();
        pairs.map(|(name, value)| (name.as_str(), value.to_str().unwrap_or_default()))
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn add_to(&self, headers: &mut HeaderMap) {
        for (name, value) in &self.0 {
            headers.insert(name.clone(), value.clone());
        }
    }
}

impl From<ExtraHeaders> for Vec<(String, String)> {
    fn from(headers: ExtraHeaders) -> Self {
        let pairs = headers.iter();
        pairs
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    }
}

impl TryFrom<Vec<(String, String)>> for ExtraHeaders {
    type Error = BadHeader;

    fn try_from(pairs: Vec<(String, String)>) -> Result<Self, BadHeader> {
        Self::of(pairs.iter().map(|(name, value)| (&**name, &**value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_the_engine_sets_is_refused_in_any_case() {
        for name in [
            "Host",
            "content-length",
            "Transfer-Encoding",
            "connection",
            "AUTHORIZATION",
            "X-Amz-Rdma-Token",
            "x-amz-rdma-reply",
            "x-amz-date",
            "x-amz-content-sha256",
            "x-amz-security-token",
            "Range",
            "If-Match",
            "if-none-match",
            "x-amz-checksum-mode",
            "x-amz-server-side-encryption-customer-key",
            "Proxy-Authorization",
        ] {
            let refused = ExtraHeaders::of([(name, "x")]);
            assert!(matches!(refused, Err(BadHeader::Reserved { .. })), "{name}");
        }
        for name in ["", "a b", "a:b", "a\r\nb", "\u{e9}"] {
            let refused = ExtraHeaders::of([(name, "x")]);
            assert!(matches!(refused, Err(BadHeader::Name { .. })), "{name:?}");
        }
    }

    #[test]
    fn the_last_of_one_name_counts() {
        let headers = ExtraHeaders::of([("X-A", "1"), ("x-b", " 2 "), ("x-a", "3")]).unwrap();
        assert_eq!(
            headers.iter().collect::<Vec<_>>(),
            [("x-b", "2"), ("x-a", "3")]
        );
    }

    proptest! {
        #[test]
        fn no_value_ends_its_line(value in "[\\PC\r\n\t\0]{0,20}") {
            if let Ok(headers) = ExtraHeaders::of([("x-a", &*value)]) {
                let (_, value) = headers.iter().next().unwrap();
                prop_assert!(!value.contains(['\r', '\n', '\0']));
            }
        }
    }
}
