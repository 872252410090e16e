//! Flags for what requests say besides the name of what they are for.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;
use s3engine::{CustomerKey, ETag, ExtraHeaders, RequestOptions};

use crate::config::ConfigError;

/// The longest file that can be a key: base64 of 32 bytes and a line end, and room for a mistake.
const LONGEST_KEY_FILE: u64 = 4096;

/// Of requests about a bucket.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct BucketAsks {
    /// Pay for the requests, where the bucket's owner does not
    #[arg(long)]
    pub(crate) request_payer: bool,

    /// Fail where the bucket is of another account than this
    #[arg(long, value_name = "ACCOUNT")]
    pub(crate) expected_bucket_owner: Option<String>,

    /// Add a header to the requests; may be given several times
    #[arg(long = "header", value_name = "NAME:VALUE")]
    pub(crate) headers: Vec<String>,
}

/// Of requests about an object.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct ObjectAsks {
    /// Get this version of the object
    #[arg(long, value_name = "ID")]
    pub(crate) version_id: Option<String>,

    /// Fail where the object's ETag is another one
    #[arg(long, value_name = "ETAG")]
    pub(crate) if_match: Option<String>,

    /// The file with the key that the object is encrypted with (SSE-C): 32 bytes, or these in base64
    #[arg(long, value_name = "FILE")]
    pub(crate) sse_c_key: Option<PathBuf>,

    /// Send that key also over plain http to another host
    #[arg(long, requires = "sse_c_key")]
    pub(crate) sse_c_over_http: bool,

    #[command(flatten)]
    pub(crate) bucket: BucketAsks,
}

impl BucketAsks {
    pub(crate) fn options(&self) -> Result<RequestOptions, ConfigError> {
        let refused = |problem: String| ConfigError::Flag {
            flag: "--header",
            problem,
        };
        let mut headers = ExtraHeaders::default();
        for header in &self.headers {
            let pair = header.split_once(':');
            // What is wrong may be a secret: it is not repeated.
            let (name, value) =
                pair.ok_or_else(|| refused("a header is written NAME:VALUE".to_owned()))?;
            let inserted = headers.insert(name.trim(), value);
            inserted.map_err(|error| refused(error.to_string()))?;
        }
        Ok(RequestOptions {
            request_payer: self.request_payer,
            expected_bucket_owner: self.expected_bucket_owner.clone(),
            headers,
            ..RequestOptions::default()
        })
    }
}

impl ObjectAsks {
    pub(crate) fn options(&self) -> Result<RequestOptions, ConfigError> {
        let key = self.sse_c_key.as_deref().map(key).transpose()?;
        Ok(RequestOptions {
            version_id: self.version_id.clone(),
            customer_key: key.map(|key| match self.sse_c_over_http {
                true => key.over_plain_http(),
                false => key,
            }),
            ..self.bucket.options()?
        })
    }

    /// The ETag that the object must have. Quotes may be left away.
    pub(crate) fn etag(&self) -> Option<ETag> {
        let text = self.if_match.as_ref()?;
        let quoted = text.starts_with('"') || text.starts_with("W/");
        Some(ETag::new(match quoted {
            true => text.clone(),
            false => format!("\"{text}\""),
        }))
    }
}

fn key(path: &Path) -> Result<CustomerKey, ConfigError> {
    let refused = |problem: String| ConfigError::Flag {
        flag: "--sse-c-key",
        problem: format!("{}: {problem}", path.display()),
    };
    let mut bytes = Vec::new();
    let read =
        File::open(path).and_then(|file| file.take(LONGEST_KEY_FILE).read_to_end(&mut bytes));
    read.map_err(|error| refused(error.to_string()))?;
    CustomerKey::from_file(&bytes).map_err(|error| refused(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_headers(headers: &[&str]) -> Result<RequestOptions, ConfigError> {
        let asks = BucketAsks {
            headers: headers.iter().map(|header| (*header).to_owned()).collect(),
            ..BucketAsks::default()
        };
        asks.options()
    }

    #[test]
    fn headers_are_names_and_values_and_none_that_the_engine_sets() {
        let options = with_headers(&["x-a: b:c", "X-D:e"]).unwrap();
        let pairs: Vec<_> = options.headers.iter().collect();
        assert_eq!(pairs, [("x-a", "b:c"), ("x-d", "e")]);
        for bad in ["x-a", "host: elsewhere", "x-a: b\r\nhost: c", ": b"] {
            let error = with_headers(&[bad]).unwrap_err().to_string();
            assert!(error.starts_with("--header: "), "{error}");
        }
    }

    #[test]
    fn a_key_comes_from_a_file_and_is_never_repeated() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let with = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            let asks = ObjectAsks {
                sse_c_key: Some(path.clone()),
                ..ObjectAsks::default()
            };
            asks.options()
        };
        let options = with(&[7; 32]).unwrap();
        assert_eq!(options.customer_key, Some(CustomerKey::new([7; 32])));
        let error = with(b"hidden words").unwrap_err().to_string();
        assert!(
            error.contains("32 bytes") && !error.contains("hidden"),
            "{error}"
        );
    }

    #[test]
    fn an_etag_may_come_without_its_quotes() {
        let etag = |text: &str| {
            let if_match = Some(text.to_owned());
            let asks = ObjectAsks {
                if_match,
                ..ObjectAsks::default()
            };
            asks.etag().unwrap().as_str().to_owned()
        };
        assert_eq!(etag("abc-2"), "\"abc-2\"");
        assert_eq!(etag("\"abc\""), "\"abc\"");
        assert_eq!(etag("W/\"abc\""), "W/\"abc\"");
    }
}
