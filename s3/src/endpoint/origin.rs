//! A server as a URL names it: scheme, host and port.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use url::{Host, Url};

/// A server to connect to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    secure: bool,
    host: Host<String>,
    port: u16,
}

impl Origin {
    /// That of a URL with the scheme `http` or `https`.
    pub(crate) fn of(url: &Url) -> Option<Origin> {
        let secure = match url.scheme() {
            "http" => false,
            "https" => true,
            _ => return None,
        };
        Some(Origin {
            secure,
            host: url.host()?.to_owned(),
            port: url.port_or_known_default().filter(|port| *port > 0)?,
        })
    }

    /// Whether TLS is spoken there.
    pub fn is_secure(&self) -> bool {
        self.secure
    }

    /// The address, where the host is one.
    pub fn ip(&self) -> Option<IpAddr> {
        match &self.host {
            Host::Domain(_) => None,
            Host::Ipv4(ip) => Some(IpAddr::V4(*ip)),
            Host::Ipv6(ip) => Some(IpAddr::V6(*ip)),
        }
    }

    /// The addresses that its host tells without a look-up: its own, where it is one, or this host's.
    pub(crate) fn evident(&self) -> Vec<IpAddr> {
        let name = self.host();
        let is_this_host = name == "localhost" || name.ends_with(".localhost");
        let this_host = is_this_host.then_some(IpAddr::V4(Ipv4Addr::LOCALHOST));
        self.ip().or(this_host).into_iter().collect()
    }

    /// The name to resolve, or the address without brackets.
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

    /// Host and port as a `Host` header writes them: without the port where the scheme tells it.
    pub fn authority(&self) -> String {
        match (self.secure, self.port) {
            (false, 80) | (true, 443) => self.host.to_string(),
            (_, port) => format!("{}:{port}", self.host),
        }
    }

    /// Host and port as `CONNECT` names them.
    pub(crate) fn host_and_port(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// Whether it is a server of AWS.
    pub(crate) fn is_aws(&self) -> bool {
        matches!(&self.host, Host::Domain(name) if aws_suffix(name).is_some())
    }

    /// The region that the host's name tells, where it is an S3 host of AWS: `s3.dualstack.eu-west-1.amazonaws.com`.
    pub(crate) fn aws_region(&self) -> Option<&str> {
        let Host::Domain(name) = &self.host else {
            return None;
        };
        let labels: Vec<_> = name.strip_suffix(aws_suffix(name)?)?.split('.').collect();
        match labels[..] {
            ["s3"] => Some("us-east-1"),
            ["s3" | "s3-fips", region] | ["s3", "dualstack", region] => Some(region),
            // As old answers still write it.
            [old] => old
                .strip_prefix("s3-")
                .filter(|region| region.ends_with(|c: char| c.is_ascii_digit())),
            _ => None,
        }
    }

    /// The server of AWS that does the same in another region.
    pub(crate) fn in_aws_region(&self, region: &str) -> Option<Origin> {
        self.aws_region()?;
        let Host::Domain(name) = &self.host else {
            return None;
        };
        let kind = match name.split('.').collect::<Vec<_>>()[..] {
            ["s3", "dualstack", ..] => "s3.dualstack",
            ["s3-fips", ..] => "s3-fips",
            _ => "s3",
        };
        let host = Host::Domain(format!("{kind}.{region}{}", aws_suffix(name)?));
        Some(Origin { host, ..*self })
    }

    /// Whether it is `other`, has a bucket before that one's name, or serves S3 in the same partition of AWS.
    pub(crate) fn is_of(&self, other: &Origin) -> bool {
        if self == other {
            return true;
        }
        let (Host::Domain(name), Host::Domain(of)) = (&self.host, &other.host) else {
            return false;
        };
        let before = name.strip_suffix(of.as_str());
        let is_below = before.is_some_and(|before| before.len() > 1 && before.ends_with('.'));
        let is_same = (self.port, self.secure) == (other.port, other.secure);
        let of_aws = other.aws_region().is_some() && self.secure == other.secure;
        (is_below && is_same)
            || (of_aws && is_s3_of_aws(name) && aws_suffix(name) == aws_suffix(of))
    }

    /// This server with a bucket before its name; the same one where that is an address.
    pub(crate) fn named(&self, bucket: &str) -> Origin {
        match &self.host {
            Host::Domain(name) => Origin {
                host: Host::Domain(format!("{bucket}.{name}")),
                ..*self
            },
            _ => self.clone(),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.secure { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.authority())
    }
}

/// Whether a host of AWS serves S3, perhaps with a bucket before its name.
fn is_s3_of_aws(name: &str) -> bool {
    let labels: Vec<_> = name.split('.').collect();
    // Of the bucket's labels none, one or several stand before.
    (0..labels.len()).any(|skipped| {
        let host = Host::Domain(labels[skipped..].join("."));
        let origin = Origin {
            secure: true,
            host,
            port: 443,
        };
        origin.aws_region().is_some()
    })
}

fn aws_suffix(name: &str) -> Option<&'static str> {
    [".amazonaws.com", ".amazonaws.com.cn"]
        .into_iter()
        .find(|suffix| name.ends_with(suffix))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(text: &str) -> Origin {
        Origin::of(&Url::parse(text).unwrap()).unwrap()
    }

    #[test]
    fn the_port_is_told_where_the_scheme_does_not() {
        for (text, authority, shown) in [
            ("http://h:80", "h", "http://h"),
            ("https://h:443", "h", "https://h"),
            ("https://h:80", "h:80", "https://h:80"),
            ("http://h:443", "h:443", "http://h:443"),
            ("https://[::1]", "[::1]", "https://[::1]"),
        ] {
            assert_eq!(origin(text).authority(), authority);
            assert_eq!(origin(text).to_string(), shown);
        }
        assert_eq!(origin("https://[::1]").host_and_port(), "[::1]:443");
        assert_eq!(origin("https://[::1]").host(), "::1");
    }

    #[test]
    fn hosts_of_aws_tell_their_region() {
        for (host, region) in [
            ("s3.amazonaws.com", Some("us-east-1")),
            ("s3.us-west-2.amazonaws.com", Some("us-west-2")),
            ("s3-us-west-2.amazonaws.com", Some("us-west-2")),
            ("s3-fips.us-west-2.amazonaws.com", Some("us-west-2")),
            ("s3.dualstack.us-west-2.amazonaws.com", Some("us-west-2")),
            ("s3.cn-north-1.amazonaws.com.cn", Some("cn-north-1")),
            ("minio", None),
            ("s3.eu-west-1.example.com", None),
            ("amazonaws.com", None),
            ("s3-accelerate.amazonaws.com", None),
            ("bucket.vpce-1.s3.us-east-1.vpce.amazonaws.com", None),
            ("10.0.0.1", None),
        ] {
            let origin = origin(&format!("https://{host}"));
            assert_eq!(origin.aws_region(), region, "{host}");
        }
    }
}
