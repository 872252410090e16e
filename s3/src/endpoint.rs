//! Where requests go: the endpoint's URL, its addressing style, and the exact target of a request.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use url::{Host, Url};

/// What S3 leaves as it is in a query; everything else is `%XX`.
const QUERY: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');
/// The same in a path, whose slashes separate.
const PATH: &AsciiSet = &QUERY.remove(b'/');

/// How a request names its bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressingStyle {
    /// `http://host/bucket/key`
    Path,
    /// `http://bucket.host/key`
    VirtualHost,
}

/// An S3 endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    host: Host<String>,
    port: u16,
    region: String,
    style: AddressingStyle,
}

/// A URL that is no endpoint, or a bucket that the endpoint cannot name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// The URL does not begin with a scheme.
    #[error("endpoint {text:?} has no scheme; write http://{text}")]
    MissingScheme {
        /// The URL as given.
        text: String,
    },
    /// The scheme is `https`.
    #[error("endpoint {text:?}: TLS endpoints are not supported by this version; use http://")]
    Tls {
        /// The URL as given.
        text: String,
    },
    /// The URL is malformed, or holds a part that an endpoint does not have.
    #[error("endpoint {text:?} {problem}; write http://host:port")]
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
    /// Reads `http://host:port`, in region `us-east-1`.
    ///
    /// Buckets are named in the path, except on hosts of amazonaws.com.
    pub fn parse(text: &str) -> Result<Endpoint, EndpointError> {
        let url = parse_url(text)?;
        let Some(host) = url.host().map(|host| host.to_owned()) else {
            return Err(invalid(text, "has no host"));
        };
        let style = match &host {
            Host::Domain(name) if is_aws(name) => AddressingStyle::VirtualHost,
            _ => AddressingStyle::Path,
        };
        Ok(Endpoint {
            host,
            port: url.port_or_known_default().unwrap_or(80),
            region: "us-east-1".to_owned(),
            style,
        })
    }

    /// The same endpoint in another region.
    pub fn with_region(self, region: &str) -> Result<Endpoint, EndpointError> {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
        if region.is_empty() || !region.bytes().all(plain) {
            return Err(EndpointError::Region {
                region: region.to_owned(),
            });
        }
        Ok(Endpoint {
            region: region.to_owned(),
            ..self
        })
    }

    /// The same endpoint, naming buckets in another way.
    pub fn with_style(self, style: AddressingStyle) -> Result<Endpoint, EndpointError> {
        if style == AddressingStyle::VirtualHost && !matches!(self.host, Host::Domain(_)) {
            return Err(invalid(
                &self.to_string(),
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

    /// The address, where the endpoint's host is one.
    pub fn ip(&self) -> Option<IpAddr> {
        match &self.host {
            Host::Domain(_) => None,
            Host::Ipv4(ip) => Some(IpAddr::V4(*ip)),
            Host::Ipv6(ip) => Some(IpAddr::V6(*ip)),
        }
    }

    /// The name to resolve for connections: the same for every bucket, so that they share them.
    pub fn host(&self) -> String {
        match &self.host {
            Host::Ipv6(ip) => Ipv6Addr::to_string(ip),
            other => other.to_string(),
        }
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The target of a request on a key, or on the bucket where `key` is empty.
    pub fn target(
        &self,
        bucket: &str,
        key: &str,
        query: &[(&str, &str)],
    ) -> Result<Target, EndpointError> {
        check_bucket(bucket)?;
        let authority = Authority {
            host: &self.host,
            port: self.port,
        };
        let mut path_and_query = String::with_capacity(bucket.len() + key.len() + 16);
        let host_header = match self.style {
            AddressingStyle::Path => {
                path_and_query.push('/');
                path_and_query.extend(utf8_percent_encode(bucket, QUERY));
                authority.to_string()
            }
            AddressingStyle::VirtualHost => {
                check_host_label(bucket)?;
                format!("{bucket}.{authority}")
            }
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
        let authority = Authority {
            host: &self.host,
            port: self.port,
        };
        write!(f, "http://{authority}")
    }
}

/// Host and port as URLs and `Host` headers write them: without the default port.
struct Authority<'a> {
    host: &'a Host<String>,
    port: u16,
}

impl fmt::Display for Authority<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            80 => write!(f, "{}", self.host),
            port => write!(f, "{}:{port}", self.host),
        }
    }
}

fn parse_url(text: &str) -> Result<Url, EndpointError> {
    // The URL parser would drop these silently.
    if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err(invalid(text, "holds a space or a control character"));
    }
    let Some((scheme, rest)) = text.split_once("://") else {
        return Err(EndpointError::MissingScheme {
            text: without_user(text),
        });
    };
    if scheme.eq_ignore_ascii_case("https") {
        return Err(EndpointError::Tls {
            text: without_user(text),
        });
    }
    if !scheme.eq_ignore_ascii_case("http") {
        return Err(invalid(text, "has a scheme other than http"));
    }
    // The URL parser reads `http:///host` as `http://host`, and `\` as `/`.
    if rest.is_empty() || rest.starts_with(['/', ':']) {
        return Err(invalid(text, "has no host"));
    }
    if rest.contains('\\') {
        return Err(invalid(text, "holds a backslash"));
    }
    let url = Url::parse(text).map_err(|e| invalid(text, &format!("is not a URL: {e}")))?;
    let extra = if rest.contains('@') {
        "holds a user or password"
    } else if url.query().is_some() {
        "holds a query"
    } else if url.fragment().is_some() {
        "holds a fragment"
    } else if !url.path().bytes().all(|b| b == b'/') {
        "holds a path"
    } else if url.port() == Some(0) {
        "has port 0"
    } else {
        return Ok(url);
    };
    Err(invalid(text, extra))
}

fn invalid(text: &str, problem: &str) -> EndpointError {
    EndpointError::Invalid {
        text: without_user(text),
        problem: problem.to_owned(),
    }
}

/// The URL as it may be shown: what stands before an `@` may be a password.
fn without_user(text: &str) -> String {
    match text.rsplit_once('@') {
        Some((before, after)) => {
            let scheme = before.split_once("://").map_or("", |(scheme, _)| scheme);
            let separator = if scheme.is_empty() { "" } else { "://" };
            format!("{scheme}{separator}***@{after}")
        }
        None => text.to_owned(),
    }
}

fn is_aws(host: &str) -> bool {
    host.ends_with(".amazonaws.com") || host.ends_with(".amazonaws.com.cn")
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
mod tests {
    use super::*;
    use percent_encoding::percent_decode_str;
    use proptest::prelude::*;

    fn endpoint(text: &str) -> Endpoint {
        Endpoint::parse(text).unwrap()
    }

    fn path(key: &str) -> String {
        endpoint("http://h:9000")
            .target("b", key, &[])
            .unwrap()
            .path_and_query
    }

    #[test]
    fn slashes_case_and_default_port_are_normalised() {
        for text in [
            "http://Host.Example:80",
            "HTTP://host.example/",
            "http://host.example//",
        ] {
            assert_eq!(endpoint(text).to_string(), "http://host.example", "{text}");
        }
        let v6 = endpoint("http://[::1]:9000/");
        assert_eq!(
            (v6.to_string().as_str(), v6.host().as_str(), v6.port()),
            ("http://[::1]:9000", "::1", 9000)
        );
        assert_eq!(v6.target("b", "k", &[]).unwrap().host_header, "[::1]:9000");
    }

    #[test]
    fn what_is_no_endpoint_is_refused_with_the_fix() {
        let error = |text: &str| Endpoint::parse(text).unwrap_err().to_string();
        assert!(error("10.0.0.5:9000").contains("write http://10.0.0.5:9000"));
        assert!(error("localhost:9000").contains("write http://localhost:9000"));
        assert!(error("https://host").contains("TLS endpoints are not supported"));
        for (text, part) in [
            ("http://", "host"),
            ("http:///host", "host"),
            ("http://:9000", "host"),
            ("http://h/path", "path"),
            ("http://h/?q", "query"),
            ("http://h/#f", "fragment"),
            ("ftp://h", "scheme"),
            ("http://h:99999", "port"),
            ("http://a b", "space"),
            ("http://h\n", "control"),
            ("http://h\\x", "backslash"),
            ("http://h:0", "port 0"),
            ("", "scheme"),
            ("http://[::1", "URL"),
        ] {
            assert!(error(text).contains(part), "{text:?}: {}", error(text));
        }
        let shown = error("http://user:hidden@h");
        assert!(
            shown.contains("password") && !shown.contains("hidden"),
            "{shown}"
        );
        assert!(!error("user:hidden@h").contains("hidden"));
    }

    #[test]
    fn odd_keys_are_encoded_once_and_nothing_is_normalised() {
        for (key, expected) in [
            ("a/b.tar", "/b/a/b.tar"),
            ("/lead", "/b//lead"),
            ("a//b", "/b/a//b"),
            ("a/./../b", "/b/a/./../b"),
            ("%2B", "/b/%252B"),
            ("a+b c", "/b/a%2Bb%20c"),
            ("é😀", "/b/%C3%A9%F0%9F%98%80"),
            ("a?b#c&d=e", "/b/a%3Fb%23c%26d%3De"),
            ("~-._*'()", "/b/~-._%2A%27%28%29"),
            ("line\nend", "/b/line%0Aend"),
            ("", "/b"),
        ] {
            assert_eq!(path(key), expected, "{key:?}");
        }
    }

    #[test]
    fn queries_are_encoded_with_slashes() {
        let query = [("list-type", "2"), ("prefix", "a/b +"), ("delimiter", "")];
        let target = endpoint("http://h").target("b", "", &query).unwrap();
        assert_eq!(
            target.path_and_query,
            "/b?list-type=2&prefix=a%2Fb%20%2B&delimiter="
        );
    }

    #[test]
    fn virtual_host_is_used_on_aws_and_where_asked_for() {
        let aws = endpoint("http://s3.eu-west-1.amazonaws.com");
        let target = aws.target("train", "k", &[]).unwrap();
        assert_eq!(target.host_header, "train.s3.eu-west-1.amazonaws.com");
        assert_eq!(target.path_and_query, "/k");
        assert_eq!(aws.target("train", "", &[]).unwrap().path_and_query, "/");
        for bucket in ["Up", "a_b", "evil.com#", ".a", "a..b"] {
            assert!(aws.target(bucket, "k", &[]).is_err(), "{bucket}");
        }
        assert_eq!(endpoint("http://minio:9000").style(), AddressingStyle::Path);
        let asked = endpoint("http://minio:9000")
            .with_style(AddressingStyle::VirtualHost)
            .unwrap();
        assert_eq!(
            asked.target("b", "k", &[]).unwrap().host_header,
            "b.minio:9000"
        );
        assert!(
            endpoint("http://10.0.0.1")
                .with_style(AddressingStyle::VirtualHost)
                .is_err()
        );
    }

    #[test]
    fn names_that_are_no_bucket_or_region_are_refused() {
        for bucket in ["", "a/b", "a\nb", "a b", ".", "..", &"x".repeat(256)] {
            assert!(check_bucket(bucket).is_err(), "{bucket:?}");
        }
        assert!(check_bucket("My_old.Bucket").is_ok());
        assert!(endpoint("http://h").with_region("a/b").is_err());
        assert_eq!(
            endpoint("http://h")
                .with_region("eu-west-1")
                .unwrap()
                .region(),
            "eu-west-1"
        );
    }

    proptest! {
        #[test]
        fn every_key_decodes_back_to_itself_and_parses_as_a_target(key in ".{1,80}") {
            let encoded = path(&key);
            let decoded = percent_decode_str(encoded.strip_prefix("/b/").unwrap()).decode_utf8().unwrap();
            prop_assert_eq!(&decoded, &key);
            prop_assert!(encoded.parse::<http::uri::PathAndQuery>().is_ok());
        }

        #[test]
        fn any_url_is_parsed_or_refused_and_what_is_parsed_prints_as_itself(text in "(http://)?[a-z0-9.:@/\\[\\]?#%-]{0,24}") {
            if let Ok(parsed) = Endpoint::parse(&text) {
                prop_assert_eq!(Endpoint::parse(&parsed.to_string()).unwrap(), parsed);
            }
        }
    }
}
