//! The key of an object that the server encrypts with a key of its owner's (SSE-C).

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::{HeaderMap, HeaderName, HeaderValue};
use md5::{Digest, Md5};
use serde::{Deserialize, Serialize};

use crate::endpoint::Endpoint;

const ALGORITHM: HeaderName =
    HeaderName::from_static("x-amz-server-side-encryption-customer-algorithm");
const KEY: HeaderName = HeaderName::from_static("x-amz-server-side-encryption-customer-key");
const KEY_MD5: HeaderName =
    HeaderName::from_static("x-amz-server-side-encryption-customer-key-md5");

/// A key of 256 bits. It is never shown, and goes over TLS or to this host only, unless it is said otherwise.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Text", into = "Text")]
pub struct CustomerKey {
    key: [u8; 32],
    over_plain_http: bool,
}

/// A text that is no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a key of SSE-C is 32 bytes, or these in base64")]
pub struct BadCustomerKey;

impl CustomerKey {
    /// The key of these bytes.
    pub fn new(key: [u8; 32]) -> Self {
        Self {
            key,
            over_plain_http: false,
        }
    }

    /// The key in a file: its 32 bytes, or these in base64 with or without a line end.
    pub fn from_file(bytes: &[u8]) -> Result<Self, BadCustomerKey> {
        if let Ok(key) = bytes.try_into() {
            return Ok(Self::new(key));
        }
        let decoded = BASE64
            .decode(bytes.trim_ascii())
            .map_err(|_| BadCustomerKey)?;
        let key = decoded.try_into().map_err(|_| BadCustomerKey)?;
        Ok(Self::new(key))
    }

    /// The same, and it may go to other hosts without TLS, for everybody on the way to see.
    pub fn over_plain_http(mut self) -> Self {
        self.over_plain_http = true;
        self
    }

    /// Whether it may.
    pub fn goes_over_plain_http(&self) -> bool {
        self.over_plain_http
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.key
    }

    pub(super) fn add_to(
        &self,
        headers: &mut HeaderMap,
        endpoint: &Endpoint,
    ) -> Result<(), String> {
        if !self.over_plain_http && !is_private(endpoint) {
            return Err(format!(
                "a customer's key would go to {endpoint} for everybody to see: use https, or allow it"
            ));
        }
        headers.insert(ALGORITHM, HeaderValue::from_static("AES256"));
        for (name, bytes) in [(KEY, &self.key[..]), (KEY_MD5, &Md5::digest(self.key)[..])] {
            let text = BASE64.encode(bytes);
            let mut value = HeaderValue::try_from(text).map_err(|error| error.to_string())?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        Ok(())
    }
}

/// Whether nobody else sees what is sent there.
fn is_private(endpoint: &Endpoint) -> bool {
    endpoint.origins().iter().all(|origin| {
        let to_this_host = match origin.ip() {
            Some(ip) => ip.is_loopback(),
            None => origin.host() == "localhost",
        };
        to_this_host || origin.is_secure()
    })
}

impl fmt::Debug for CustomerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CustomerKey(redacted)")
    }
}

/// The form of messages between processes of this host.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    key: String,
    #[serde(default)]
    over_plain_http: bool,
}

impl From<CustomerKey> for Text {
    fn from(key: CustomerKey) -> Self {
        Self {
            key: BASE64.encode(key.key),
            over_plain_http: key.over_plain_http,
        }
    }
}

impl TryFrom<Text> for CustomerKey {
    type Error = BadCustomerKey;

    fn try_from(text: Text) -> Result<Self, BadCustomerKey> {
        let decoded = BASE64.decode(text.key).map_err(|_| BadCustomerKey)?;
        Ok(Self {
            key: decoded.try_into().map_err(|_| BadCustomerKey)?,
            over_plain_http: text.over_plain_http,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_the_bytes_or_base64() {
        let key = *b"0123456789abcdef0123456789abcdef";
        let text = BASE64.encode(key);
        for file in [&key[..], text.as_bytes(), format!("{text}\n").as_bytes()] {
            assert_eq!(CustomerKey::from_file(file), Ok(CustomerKey::new(key)));
        }
        for file in [&b""[..], &key[..31], &text.as_bytes()[1..], b"\xff\xff"] {
            assert_eq!(CustomerKey::from_file(file), Err(BadCustomerKey));
        }
    }
}
