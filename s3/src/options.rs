//! What a request says besides the name of what it is for.

mod customer_key;
mod extra_headers;

use http::{HeaderMap, HeaderName, HeaderValue};
use serde::{Deserialize, Serialize};

pub use self::customer_key::{BadCustomerKey, CustomerKey};
pub use self::extra_headers::{BadHeader, ExtraHeaders};
use crate::endpoint::Endpoint;

const REQUEST_PAYER: HeaderName = HeaderName::from_static("x-amz-request-payer");
const EXPECTED_OWNER: HeaderName = HeaderName::from_static("x-amz-expected-bucket-owner");

/// Options of requests for an object. By default there are none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RequestOptions {
    /// The version that is wanted, by its id.
    pub version_id: Option<String>,
    /// The key that the object is encrypted with.
    pub customer_key: Option<CustomerKey>,
    /// Who asks pays for the request.
    pub request_payer: bool,
    /// The account that the bucket must be of.
    pub expected_bucket_owner: Option<String>,
    /// More headers. They are signed.
    pub headers: ExtraHeaders,
}

/// No options.
pub static NO_OPTIONS: RequestOptions = RequestOptions {
    version_id: None,
    customer_key: None,
    request_payer: false,
    expected_bucket_owner: None,
    headers: ExtraHeaders::NONE,
};

impl RequestOptions {
    /// Whether there are none.
    pub fn is_none(&self) -> bool {
        *self == NO_OPTIONS
    }

    /// Whether memory may keep the object for others: not where it is readable by its key alone.
    pub fn may_be_kept(&self) -> bool {
        self.customer_key.is_none()
    }

    /// Adds the headers of a request for an object to `endpoint`. The error says why it cannot be made.
    pub(crate) fn add_to(
        &self,
        headers: &mut HeaderMap,
        endpoint: &Endpoint,
    ) -> Result<(), String> {
        self.add_of_bucket(headers)?;
        if let Some(key) = &self.customer_key {
            key.add_to(headers, endpoint)?;
        }
        Ok(())
    }

    /// The same of a request for names in a bucket, which has neither a version nor a key.
    pub(crate) fn add_of_bucket(&self, headers: &mut HeaderMap) -> Result<(), String> {
        self.headers.add_to(headers);
        if self.request_payer {
            headers.insert(REQUEST_PAYER, HeaderValue::from_static("requester"));
        }
        if let Some(owner) = &self.expected_bucket_owner {
            let value = HeaderValue::from_str(owner)
                .map_err(|_| "the expected bucket owner cannot be sent in a header".to_owned())?;
            headers.insert(EXPECTED_OWNER, value);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(options: &RequestOptions, endpoint: &str) -> Result<HeaderMap, String> {
        let mut headers = HeaderMap::new();
        let endpoint = Endpoint::parse(endpoint).unwrap();
        options.add_to(&mut headers, &endpoint).map(|()| headers)
    }

    fn key() -> CustomerKey {
        CustomerKey::new(*b"0123456789abcdef0123456789abcdef")
    }

    #[test]
    fn every_option_is_a_header() {
        let options = RequestOptions {
            request_payer: true,
            expected_bucket_owner: Some("123456789012".into()),
            headers: ExtraHeaders::of([("x-trace", "7")]).unwrap(),
            customer_key: Some(key()),
            version_id: None,
        };
        let headers = headers(&options, "http://127.0.0.1:9000").unwrap();
        for (name, value) in [
            ("x-amz-request-payer", "requester"),
            ("x-amz-expected-bucket-owner", "123456789012"),
            ("x-trace", "7"),
            ("x-amz-server-side-encryption-customer-algorithm", "AES256"),
            (
                "x-amz-server-side-encryption-customer-key",
                "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=",
            ),
            // As `openssl md5 -binary | base64` gives it.
            ("x-amz-server-side-encryption-customer-key-md5", MD5_OF_KEY),
        ] {
            assert_eq!(headers[name], value, "{name}");
        }
        assert!(!options.may_be_kept() && !options.is_none());
        assert!(RequestOptions::default().is_none());
    }

    const MD5_OF_KEY: &str = "hRasmdxgYDKV3nvbahU1MA==";

    #[test]
    fn a_customer_key_never_leaves_the_host_in_the_clear() {
        let options = |key| RequestOptions {
            customer_key: Some(key),
            ..RequestOptions::default()
        };
        for endpoint in ["http://10.0.0.5:9000", "http://s3.example.com"] {
            let why = headers(&options(key()), endpoint).unwrap_err();
            assert!(why.contains("https"), "{why}");
            assert!(headers(&options(key().over_plain_http()), endpoint).is_ok());
        }
        for endpoint in [
            "http://127.0.0.2:9000",
            "http://[::1]:9000",
            "http://localhost",
        ] {
            assert!(headers(&options(key()), endpoint).is_ok(), "{endpoint}");
        }
    }

    #[test]
    fn a_customer_key_is_never_shown() {
        let options = RequestOptions {
            customer_key: Some(key()),
            ..RequestOptions::default()
        };
        let shown = format!("{options:?}");
        assert!(
            !shown.contains("0123456789") && !shown.contains("48, 49"),
            "{shown}"
        );
        let headers = headers(&options, "http://localhost").unwrap();
        let shown = format!("{headers:?}");
        assert!(!shown.contains("MDEyMzQ1"), "{shown}");
    }

    #[test]
    fn options_come_back_from_text_as_they_were() {
        let options = RequestOptions {
            version_id: Some("v/1".into()),
            customer_key: Some(key().over_plain_http()),
            request_payer: true,
            expected_bucket_owner: Some("1".into()),
            headers: ExtraHeaders::of([("a", "b"), ("c", "d")]).unwrap(),
        };
        let text = serde_json::to_string(&options).unwrap();
        assert_eq!(
            serde_json::from_str::<RequestOptions>(&text).unwrap(),
            options
        );
        let forged = r#"{"headers":[["host","x"]]}"#;
        assert!(serde_json::from_str::<RequestOptions>(forged).is_err());
    }
}
