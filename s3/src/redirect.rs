//! Where an answer sends a request instead, and what may go there with it. Pure rules.
//!
//! A bucket's region is learnt from whoever names it: the request is signed for it and, on AWS, goes to the region's
//! host. A `Location` is followed as it is, but what is secret stays with the endpoint's own hosts and those that the
//! configuration trusts, and nothing is asked of addresses near this host that the endpoint does not have itself.

mod fuzz;

use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use http::header::LOCATION;
use http::{HeaderMap, HeaderName, StatusCode};
use url::{Host, Position, Url};

use crate::endpoint::{Origin, check_region};
use crate::http::ErrorBody;
use crate::object::text;

pub use fuzz::fuzz_redirect;

/// The header with the region of a bucket.
pub(crate) const BUCKET_REGION: HeaderName = HeaderName::from_static("x-amz-bucket-region");

/// How often one request is sent elsewhere.
pub(crate) const MOST_HOPS: usize = 5;

/// Where a request is to be made instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Elsewhere {
    /// In this region.
    Region(String),
    /// At this URL, with exactly this path and query.
    Location(Url, String),
}

/// What a request may carry to another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Baggage {
    /// Everything: it is one of the endpoint's hosts, or trusted as they are.
    All,
    /// Nothing secret: no signature, no token, no key.
    NothingSecret,
}

/// Hosts beside the endpoint's own that may see what is secret: a name, an address, or `*.` and the end of names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustedHost(String);

/// A text that names no hosts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no host: write a name, an address, or *.name")]
pub struct NoHost(String);

impl FromStr for TrustedHost {
    type Err = NoHost;

    fn from_str(text: &str) -> Result<Self, NoHost> {
        let name = text.strip_prefix("*.").unwrap_or(text);
        let is_name = match Host::parse(name) {
            Ok(Host::Domain(domain)) => !domain.is_empty() && !domain.contains('*'),
            Ok(_) => name == text,
            Err(_) => false,
        };
        let text = text.to_ascii_lowercase();
        is_name
            .then_some(TrustedHost(text.clone()))
            .ok_or(NoHost(text))
    }
}

impl TrustedHost {
    fn includes(&self, host: &str) -> bool {
        match self.0.strip_prefix('*') {
            Some(end) => host.len() > end.len() && host.ends_with(end),
            None => self.0 == host,
        }
    }
}

/// Where an answer to a request that was signed for `region` sends it, if anywhere. `asked` is what was asked for,
/// which a relative `Location` goes on from.
pub(crate) fn elsewhere(
    status: StatusCode,
    headers: &HeaderMap,
    body: &ErrorBody,
    (region, asked): (&str, &Url),
) -> Option<Elsewhere> {
    let is_redirect = is_redirect(status);
    if !is_redirect && status != StatusCode::BAD_REQUEST {
        return None;
    }
    let named = text(headers, &BUCKET_REGION).or(body.region.as_deref());
    if let Some(other) = named.filter(|named| check_region(named).is_ok() && *named != region) {
        return Some(Elsewhere::Region(other.to_owned()));
    }
    if !is_redirect {
        return None;
    }
    let location = text(headers, &LOCATION)?;
    let url = asked.join(location).ok()?;
    let target = path_and_query(location)
        .unwrap_or_else(|| url[Position::BeforePath..Position::AfterQuery].to_owned());
    Some(Elsewhere::Location(url, target))
}

/// Path and query of a location as they stand there: a URL that was parsed has lost dots, and more.
fn path_and_query(location: &str) -> Option<String> {
    let rest = match location.split_once("://") {
        Some((_, rest)) => &rest[rest.find('/')?..],
        None if location.starts_with('/') && !location.starts_with("//") => location,
        None => return None,
    };
    let rest = rest.split('#').next()?;
    rest.bytes()
        .all(|b| b.is_ascii_graphic())
        .then(|| rest.to_owned())
}

/// Whether a status says that the request is to be made elsewhere.
pub(crate) fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

/// What a request that was sent to `from` may carry to `to`, or why it may not go there at all. `own` are the
/// endpoint's servers; below their names are those of its buckets.
pub(crate) fn baggage<'a>(
    from: &Origin,
    to: &Url,
    own: impl IntoIterator<Item = &'a Origin>,
    trusted: &[TrustedHost],
) -> Result<(Origin, Baggage), &'static str> {
    if !to.username().is_empty() || to.password().is_some() {
        return Err("it holds a user or password");
    }
    let Some(server) = Origin::of(to) else {
        return Err("it is no http URL with a host");
    };
    if from.is_secure() && !server.is_secure() {
        return Err("it leads from https to http");
    }
    let is_trusted = trusted
        .iter()
        .any(|trusted| trusted.includes(&server.host()));
    let carries = is_trusted || own.into_iter().any(|own| server.is_of(own));
    let baggage = match carries {
        true => Baggage::All,
        false => Baggage::NothingSecret,
    };
    Ok((server, baggage))
}

/// Whether a host that an answer names may be at this address, where the endpoint is at `own`: this host and what is
/// beside it on the link (where clouds keep credentials) are asked for nothing that an answer from outside wants.
pub(crate) fn may_be_at(address: IpAddr, own: &[IpAddr]) -> bool {
    let is_there = |near: fn(IpAddr) -> bool| own.iter().any(|own| near(canonical(*own)));
    let address = canonical(address);
    [is_loopback as fn(IpAddr) -> bool, is_link_local, is_nowhere]
        .into_iter()
        .all(|near| !near(address) || is_there(near))
}

/// An IPv4 address in an IPv6 one is that address: mapped, compatible, or behind NAT64 (64:ff9b::/96).
fn canonical(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else {
        return address;
    };
    match v6.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => address,
        [0, 0, 0, 0, 0, 0 | 0xffff, ..] | [0x64, 0xff9b, 0, 0, 0, 0, ..] => {
            let [.., a, b, c, d] = v6.octets();
            IpAddr::from([a, b, c, d])
        }
        _ => address,
    }
}

fn is_loopback(address: IpAddr) -> bool {
    address.is_loopback()
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        // The second is where AWS keeps credentials for IPv6.
        IpAddr::V6(v6) => {
            v6.is_unicast_link_local() || v6 == Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)
        }
    }
}

fn is_nowhere(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.octets()[0] == 0 || v4.is_broadcast() || v4.is_multicast(),
        IpAddr::V6(v6) => v6.is_unspecified() || v6.is_multicast(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn url(text: &str) -> Url {
        text.parse().unwrap()
    }

    fn sent(status: u16, pairs: &[(&'static str, &str)], body: &str) -> Option<Elsewhere> {
        let headers = pairs
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()))
            .collect();
        let status = StatusCode::from_u16(status).unwrap();
        let asked = url("http://s3.example/b/k?x=1");
        elsewhere(
            status,
            &headers,
            &ErrorBody::parse(body.as_bytes()),
            ("us-east-1", &asked),
        )
    }

    fn region(name: &str) -> Option<Elsewhere> {
        Some(Elsewhere::Region(name.to_owned()))
    }

    #[test]
    fn r47_a_region_is_learnt_from_header_or_body_of_a_redirect_or_a_400() {
        let header = [("x-amz-bucket-region", "eu-west-1")];
        let body =
            "<Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-west-1</Region></Error>";
        for status in [301, 302, 307, 308, 400] {
            assert_eq!(sent(status, &header, ""), region("eu-west-1"), "{status}");
            assert_eq!(sent(status, &[], body), region("eu-west-1"), "{status}");
        }
        for status in [200, 206, 403, 404, 500, 503] {
            assert_eq!(sent(status, &header, body), None, "{status}");
        }
    }

    #[test]
    fn r47_the_region_that_was_signed_for_or_one_that_is_none_sends_nowhere() {
        for name in ["us-east-1", "", "a b", "x/../y", "evil.example"] {
            assert_eq!(
                sent(400, &[("x-amz-bucket-region", name)], ""),
                None,
                "{name}"
            );
        }
    }

    #[test]
    fn r48_a_location_is_followed_as_it_is() {
        let to = |location: &str| sent(307, &[("location", location)], "");
        let at = |text: &str, target: &str| Some(Elsewhere::Location(url(text), target.to_owned()));
        let target = "/v1/objects/b/a%2Fb//../c?pid=p&utm=1%2B2";
        let verbatim = format!("http://10.0.0.7:8081{target}");
        assert_eq!(to(&verbatim), at(&verbatim, target));
        assert_eq!(
            to(&format!("{verbatim}#part")),
            at(&format!("{verbatim}#part"), target)
        );
        assert_eq!(to("/other?y"), at("http://s3.example/other?y", "/other?y"));
        assert_eq!(to("http://h"), at("http://h", "/"));
        assert_eq!(sent(307, &[], ""), None);
        assert_eq!(sent(200, &[("location", &verbatim)], ""), None);
    }

    fn origin(text: &str) -> Origin {
        Origin::of(&url(text)).unwrap()
    }

    fn goes(own: &str, to: &str) -> Result<Baggage, &'static str> {
        let trusted = ["target.example", "*.nodes.example"].map(|host| host.parse().unwrap());
        let own = origin(own);
        let found = baggage(&own, &url(to), [&own], &trusted)?;
        assert_eq!(found.0, origin(to));
        Ok(found.1)
    }

    #[test]
    fn r48_what_is_secret_stays_with_the_endpoints_own_and_trusted_hosts() {
        let own = "http://s3.example";
        for to in [
            "http://s3.example/x",
            "http://bucket.s3.example/x",
            "http://target.example:99/x",
            "http://a.nodes.example/x",
        ] {
            assert_eq!(goes(own, to), Ok(Baggage::All), "{to}");
        }
        for to in [
            "http://s3.example:8080/x",
            "http://evils3.example/x",
            "http://s3.example.evil/x",
            "http://nodes.example/x",
            "http://x.target.example/",
            "http://10.0.0.1/x",
        ] {
            assert_eq!(goes(own, to), Ok(Baggage::NothingSecret), "{to}");
        }
        let found = goes("http://10.0.0.1", "http://x.10.0.0.1.nip/");
        assert_eq!(found, Ok(Baggage::NothingSecret));
    }

    #[test]
    fn r48_a_redirect_never_leaves_tls_or_http_or_brings_a_password() {
        let own = "https://s3.example";
        assert!(goes(own, "http://s3.example/").is_err());
        assert!(goes(own, "https://s3.example/").is_ok());
        for to in [
            "ftp://s3.example/",
            "file:///etc/passwd",
            "http://u:p@s3.example/",
        ] {
            assert!(goes("http://s3.example", to).is_err(), "{to}");
        }
    }

    #[test]
    fn hosts_of_aws_trust_each_other_within_their_partition() {
        let to = |host: &str| {
            goes(
                "https://s3.us-east-1.amazonaws.com",
                &format!("https://{host}/"),
            )
        };
        assert_eq!(to("b.s3.eu-west-1.amazonaws.com"), Ok(Baggage::All));
        assert_eq!(to("b.s3-us-west-2.amazonaws.com"), Ok(Baggage::All));
        assert_eq!(
            to("a.b.s3.dualstack.eu-west-1.amazonaws.com"),
            Ok(Baggage::All)
        );
        for host in [
            "b.s3.cn-north-1.amazonaws.com.cn",
            "ec2.us-east-1.amazonaws.com",
            "s3.ec2.us-east-1.amazonaws.com",
            "s3.amazonaws.com.evil.example",
        ] {
            assert_eq!(to(host), Ok(Baggage::NothingSecret), "{host}");
        }
    }

    #[test]
    fn r48_nothing_near_this_host_is_asked_unless_the_endpoint_is_there() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let far = [ip("10.0.0.5")];
        for near in [
            "127.0.0.1",
            "127.9.9.9",
            "::1",
            "::ffff:127.0.0.1",
            "::127.0.0.1",
            "64:ff9b::127.0.0.1",
            "64:ff9b::a9fe:a9fe",
            "169.254.169.254",
            "::ffff:169.254.169.254",
            "fe80::1",
            "fd00:ec2::254",
            "0.0.0.0",
            "::",
            "255.255.255.255",
            "224.0.0.1",
        ] {
            assert!(!may_be_at(ip(near), &far), "{near}");
        }
        for fine in ["10.0.0.6", "192.168.1.1", "8.8.8.8", "2001:db8::1"] {
            assert!(may_be_at(ip(fine), &far), "{fine}");
        }
        assert!(may_be_at(ip("127.0.0.2"), &[ip("::1")]));
        assert!(!may_be_at(ip("169.254.1.1"), &[ip("127.0.0.1")]));
    }

    #[test]
    fn what_is_no_host_cannot_be_trusted() {
        for text in ["", "*", "*.", "a b", "http://x", "*.10.0.0.1", "a/b"] {
            assert!(text.parse::<TrustedHost>().is_err(), "{text:?}");
        }
        assert!("10.0.0.7".parse::<TrustedHost>().is_ok());
        assert!(
            "Node.Example"
                .parse::<TrustedHost>()
                .unwrap()
                .includes("node.example")
        );
    }

    proptest! {
        #[test]
        fn whatever_the_location_only_own_hosts_see_what_is_secret(location in "\\PC{0,60}") {
            let headers = location.parse().map(|value| HeaderMap::from_iter([(LOCATION, value)]));
            if let Ok(headers) = headers {
                let asked = url("http://s3.example/b/k");
                let found = elsewhere(StatusCode::FOUND, &headers, &ErrorBody::default(), ("r", &asked));
                let own = origin("http://s3.example");
                if let Some(Elsewhere::Location(to, _)) = found
                    && let Ok((server, Baggage::All)) = baggage(&own, &to, [&own], &[])
                {
                    let host = server.host();
                    prop_assert!(host == "s3.example" || host.ends_with(".s3.example"));
                }
            }
        }
    }
}
