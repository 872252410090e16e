//! Where requests go: the endpoint's servers, its addressing style, and the exact target of a request.

mod origin;
mod url;

use std::fmt;
use std::sync::Arc;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

pub use self::origin::Origin;
use self::url::invalid;
pub(crate) use self::url::without_user;

/// What S3 leaves as it is in a query; everything else is `%XX`.
const QUERY: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');
/// The same in a path, whose slashes separate.
const PATH: &AsciiSet = &QUERY.remove(b'/');

/// The longest name of a region.
const LONGEST_REGION: usize = 64;

/// How a request names its bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressingStyle {
    /// `http://host/bucket/key`
    Path,
    /// `http://bucket.host/key`, except where TLS certificates do not cover the bucket's name: with a dot in it.
    VirtualHost,
}

/// An S3 endpoint: one server, or several that serve the same buckets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// One or more.
    origins: Vec<Arc<Origin>>,
    /// What stands before the bucket in every path: nothing, or `/name`.
    base: String,
    region: String,
    style: AddressingStyle,
}

/// A URL that is no endpoint, or a bucket that the endpoint cannot name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// The URL does not begin with a scheme.
    #[error("endpoint {text:?} has no scheme; write http://{text} or https://{text}")]
    MissingScheme {
        /// The URL as given.
        text: String,
    },
    /// The URL is malformed, or holds a part that an endpoint does not have.
    #[error("endpoint {text:?} {problem}; write http://host:port or https://host:port")]
    Invalid {
        /// The URL as given; without its user and password.
        text: String,
        /// What is wrong.
        problem: String,
    },
    /// A region that cannot be part of a signature.
    #[error("region {region:?} is not made of letters, digits and '-'")]
    Region {
        /// The region.
        region: String,
    },
    /// A name that is no bucket.
    #[error("bucket {bucket:?} {problem}")]
    Bucket {
        /// The bucket.
        bucket: String,
        /// What is wrong.
        problem: &'static str,
    },
}

/// The target of one request: what is sent is what is signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The `Host` header.
    pub host_header: String,
    /// The path and query, encoded once.
    pub path_and_query: String,
}

impl Endpoint {
    /// Reads `http://host:port` or `https://host:port`, with a path before the buckets or without, or several of
    /// them with commas in between: servers of the same buckets, which take turns.
    ///
    /// Buckets are named in the path, except on hosts of amazonaws.com. The region is the one that such a host names,
    /// otherwise `us-east-1`.
    pub fn parse(text: &str) -> Result<Endpoint, EndpointError> {
        let (origins, base) = url::parse(text)?;
        let style = if origins.iter().all(Origin::is_aws) {
            AddressingStyle::VirtualHost
        } else {
            AddressingStyle::Path
        };
        let region = origins.first().and_then(Origin::aws_region);
        let region = region.unwrap_or("us-east-1").to_owned();
        Ok(Endpoint {
            origins: origins.into_iter().map(Arc::new).collect(),
            base,
            region,
            style,
        })
    }

    /// That of AWS for a region.
    pub fn of_aws(region: &str) -> Result<Endpoint, EndpointError> {
        check_region(region)?;
        let suffix = if region.starts_with("cn-") { ".cn" } else { "" };
        Endpoint::parse(&format!("https://s3.{region}.amazonaws.com{suffix}"))
    }

    /// The same endpoint in another region.
    pub fn with_region(self, region: &str) -> Result<Endpoint, EndpointError> {
        check_region(region)?;
        Ok(Endpoint {
            region: region.to_owned(),
            ..self
        })
    }

    /// The same endpoint, naming buckets in another way.
    pub fn with_style(self, style: AddressingStyle) -> Result<Endpoint, EndpointError> {
        let address = self.origins.iter().find(|origin| origin.ip().is_some());
        if let (AddressingStyle::VirtualHost, Some(address)) = (style, address) {
            return Err(invalid(
                &address.to_string(),
                "is an address, which cannot carry the bucket's name",
            ));
        }
        Ok(Endpoint { style, ..self })
    }

    /// The region that signatures name.
    pub fn region(&self) -> &str {
        &self.region
    }

    /// How buckets are named.
    pub fn style(&self) -> AddressingStyle {
        self.style
    }

    /// Its servers: one or more.
    pub fn origins(&self) -> &[Arc<Origin>] {
        &self.origins
    }

    /// Its first server.
    pub fn origin(&self) -> &Arc<Origin> {
        &self.origins[0]
    }

    /// Whether TLS is spoken there.
    pub fn is_secure(&self) -> bool {
        self.origin().is_secure()
    }

    /// Whether the bucket stands in the host's name.
    pub(crate) fn names_in_host(&self, bucket: &str) -> bool {
        let covered = !(self.is_secure() && bucket.contains('.'));
        self.style == AddressingStyle::VirtualHost && covered
    }

    /// The target of a request on a key, or on the bucket where `key` is empty, at its first server.
    pub fn target(
        &self,
        bucket: &str,
        key: &str,
        query: &[(&str, &str)],
    ) -> Result<Target, EndpointError> {
        self.target_at(self.origin(), bucket, key, query)
    }

    /// The same at another one.
    pub fn target_at(
        &self,
        origin: &Origin,
        bucket: &str,
        key: &str,
        query: &[(&str, &str)],
    ) -> Result<Target, EndpointError> {
        check_bucket(bucket)?;
        let mut path_and_query =
            String::with_capacity(self.base.len() + bucket.len() + key.len() + 16);
        path_and_query.push_str(&self.base);
        let host_header = if self.names_in_host(bucket) {
            check_host_label(bucket)?;
            format!("{bucket}.{}", origin.authority())
        } else {
            path_and_query.push('/');
            path_and_query.extend(utf8_percent_encode(bucket, QUERY));
            origin.authority()
        };
        if !key.is_empty() || path_and_query.is_empty() {
            path_and_query.push('/');
            path_and_query.extend(utf8_percent_encode(key, PATH));
        }
        for (index, (name, value)) in query.iter().enumerate() {
            path_and_query.push(if index == 0 { '?' } else { '&' });
            path_and_query.extend(utf8_percent_encode(name, QUERY));
            path_and_query.push('=');
            path_and_query.extend(utf8_percent_encode(value, QUERY));
        }
        Ok(Target {
            host_header,
            path_and_query,
        })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, origin) in self.origins.iter().enumerate() {
            let separator = if index > 0 { "," } else { "" };
            write!(f, "{separator}{origin}{}", self.base)?;
        }
        Ok(())
    }
}

/// Checks that a text, perhaps a server's, can be part of a signature and of a host's name.
pub(crate) fn check_region(region: &str) -> Result<(), EndpointError> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    if !region.is_empty() && region.len() <= LONGEST_REGION && region.bytes().all(plain) {
        return Ok(());
    }
    Err(EndpointError::Region {
        region: region.chars().take(LONGEST_REGION).collect(),
    })
}

/// Checks that a name can stand in a path as a bucket, and means nothing else there.
pub fn check_bucket(bucket: &str) -> Result<(), EndpointError> {
    let problem = if bucket.is_empty() {
        "is empty"
    } else if bucket.contains('/') {
        "holds a slash"
    } else if bucket.chars().any(|c| c.is_control() || c.is_whitespace()) {
        "holds a space or a control character"
    } else if bucket == "." || bucket == ".." {
        "is a relative path"
    } else if bucket.len() > 255 {
        "is longer than 255 bytes"
    } else {
        return Ok(());
    };
    Err(EndpointError::Bucket {
        bucket: bucket.chars().take(255).collect(),
        problem,
    })
}

/// A bucket in a host name must be one, or requests would go to another host.
fn check_host_label(bucket: &str) -> Result<(), EndpointError> {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.';
    let edges =
        bucket.starts_with(['-', '.']) || bucket.ends_with(['-', '.']) || bucket.contains("..");
    if bucket.bytes().all(plain) && !edges {
        return Ok(());
    }
    let problem = "cannot be part of a host name; use path addressing";
    Err(EndpointError::Bucket {
        bucket: bucket.to_owned(),
        problem,
    })
}

#[cfg(test)]
mod tests;
