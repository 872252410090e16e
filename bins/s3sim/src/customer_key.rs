//! Keys of SSE-C: objects that only who brings their key can read.

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use md5::{Digest, Md5};

use crate::answer::Answer;
use crate::request::Request;
use crate::s3_error::S3Error;

const ALGORITHM: &str = "x-amz-server-side-encryption-customer-algorithm";
const KEY: &str = "x-amz-server-side-encryption-customer-key";
const KEY_MD5: &str = "x-amz-server-side-encryption-customer-key-MD5";

/// The key that all objects are encrypted with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CustomerKey(pub [u8; 32]);

impl fmt::Debug for CustomerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CustomerKey(redacted)")
    }
}

impl FromStr for CustomerKey {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<CustomerKey, &'static str> {
        let key = BASE64.decode(text).ok().and_then(|key| key.try_into().ok());
        key.map(CustomerKey).ok_or("a key is 32 bytes in base64")
    }
}

impl CustomerKey {
    /// Whether the request brings it; if not, what S3 says.
    pub(crate) fn check(&self, request: &Request) -> Result<(), S3Error> {
        let invalid = |text: &'static str| S3Error::new(400, "InvalidArgument", text);
        let md5_name = KEY_MD5.to_ascii_lowercase();
        let [algorithm, key, md5] = [ALGORITHM, KEY, &md5_name].map(|name| request.header(name));
        let (Some(algorithm), Some(key), Some(md5)) = (algorithm, key, md5) else {
            let text = "The object was stored using a form of Server Side Encryption. The correct \
                        parameters must be provided to retrieve the object.";
            return Err(S3Error::new(400, "InvalidRequest", text));
        };
        if algorithm != "AES256" {
            return Err(invalid("The encryption algorithm must be AES256."));
        }
        let given = key.parse::<CustomerKey>();
        let given = given.map_err(|_| invalid("The secret key was invalid for AES256."))?;
        if given.md5() != md5 {
            let text =
                "The calculated MD5 hash of the key did not match the hash that was provided.";
            return Err(invalid(text));
        }
        match given == *self {
            true => Ok(()),
            false => Err(S3Error::new(403, "AccessDenied", "Access Denied")),
        }
    }

    /// Adds to an answer what the object is encrypted with.
    pub(crate) fn tell(&self, answer: Answer) -> Answer {
        answer.with(ALGORITHM, "AES256").with(KEY_MD5, self.md5())
    }

    fn md5(&self) -> String {
        BASE64.encode(Md5::digest(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_32_bytes_and_is_not_shown() {
        let text = BASE64.encode([7; 32]);
        let key: CustomerKey = text.parse().unwrap();
        assert_eq!(key, CustomerKey([7; 32]));
        assert!(!format!("{key:?}").contains('7'));
        for text in ["", "AAAA", "not base64", &BASE64.encode([0; 33])] {
            assert!(text.parse::<CustomerKey>().is_err(), "{text}");
        }
    }
}
