//! Which proxy a request goes through, if any. Pure.
//!
//! The variables are those of curl: `https_proxy`, `HTTPS_PROXY`, `http_proxy` (only so: a web server would set
//! `HTTP_PROXY` from a header of its client), `all_proxy`, `ALL_PROXY`, `no_proxy`, `NO_PROXY`; lower case counts
//! first. They are not for this host's own addresses, which another host cannot reach.

use std::net::IpAddr;
use std::sync::Arc;

use http::HeaderValue;
use percent_encoding::percent_decode_str;
use url::Url;

use crate::endpoint::{Origin, without_user};

/// A proxy.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Proxy {
    pub(crate) server: Origin,
    /// `Proxy-Authorization`; it is not shown.
    pub(crate) authorization: Option<HeaderValue>,
}

/// Which proxy each request goes through. By default, none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proxies {
    http: Option<Arc<Proxy>>,
    https: Option<Arc<Proxy>>,
    /// They are not for these.
    except: Vec<Except>,
    /// Nor for addresses of this host.
    spare_this_host: bool,
}

/// A proxy that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("proxy {text:?} {problem}; write http://host:port or http://user:password@host:port")]
pub struct ProxyError {
    text: String,
    problem: String,
}

impl Proxies {
    /// This one for all requests.
    pub fn all(url: &str) -> Result<Proxies, ProxyError> {
        let proxy = Some(Arc::new(parse(url)?));
        Ok(Proxies {
            http: proxy.clone(),
            https: proxy,
            ..Proxies::default()
        })
    }

    /// Those of the usual variables. `value` gives the value of a variable; an empty one is unset.
    pub fn from_variables(value: impl Fn(&str) -> Option<String>) -> Result<Proxies, ProxyError> {
        let first = |names: &[&str]| {
            let mut values = names.iter().filter_map(|name| value(name));
            values.find(|value| !value.trim().is_empty())
        };
        let proxy = |names: &[&str]| {
            first(names)
                .map(|url| parse(&url).map(Arc::new))
                .transpose()
        };
        let except = first(&["no_proxy", "NO_PROXY"]).unwrap_or_default();
        let names = except.split([',', ' ']).map(str::trim);
        Ok(Proxies {
            http: proxy(&["http_proxy", "all_proxy", "ALL_PROXY"])?,
            https: proxy(&["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"])?,
            except: names
                .filter(|name| !name.is_empty())
                .map(Except::parse)
                .collect(),
            spare_this_host: true,
        })
    }

    /// The proxy on the way to a server.
    pub(crate) fn of(&self, server: &Origin) -> Option<&Arc<Proxy>> {
        let proxy = if server.is_secure() {
            &self.https
        } else {
            &self.http
        };
        let proxy = proxy.as_ref()?;
        let spared = self.spare_this_host && is_this_host(server);
        let excepted = self.except.iter().any(|except| except.covers(server));
        (!spared && !excepted).then_some(proxy)
    }
}

fn parse(text: &str) -> Result<Proxy, ProxyError> {
    let wrong = |problem: &str| ProxyError {
        text: without_user(text),
        problem: problem.to_owned(),
    };
    let text = text.trim();
    let whole = if text.contains("://") {
        text.to_owned()
    } else {
        format!("http://{text}")
    };
    let url = Url::parse(&whole).map_err(|_| wrong("is not a URL"))?;
    if url.scheme() != "http" {
        return Err(wrong("has a scheme other than http"));
    }
    if !matches!(url.path(), "" | "/") || url.query().is_some() {
        return Err(wrong("holds a path"));
    }
    let server = Origin::of(&url).ok_or_else(|| wrong("has no host"))?;
    let decoded = |part: &str| percent_decode_str(part).collect::<Vec<u8>>();
    let user = decoded(url.username());
    let password = url.password().map(decoded);
    let authorization = (!user.is_empty() || password.is_some()).then(|| {
        let pair = [&user[..], b":", &password.unwrap_or_default()].concat();
        let value = format!("Basic {}", base64(&pair));
        HeaderValue::try_from(value).map(|mut value| {
            value.set_sensitive(true);
            value
        })
    });
    Ok(Proxy {
        server,
        authorization: authorization
            .transpose()
            .map_err(|_| wrong("has a user that cannot be sent"))?,
    })
}

fn is_this_host(server: &Origin) -> bool {
    let host = server.host();
    let named = host == "localhost" || host.ends_with(".localhost");
    named
        || server
            .ip()
            .is_some_and(|ip| ip.to_canonical().is_loopback())
}

/// One entry of `NO_PROXY`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Except {
    All,
    /// An address and how many of its bits count.
    Network(IpAddr, u32),
    /// A name and all below it, at one port or all.
    Name(String, Option<u16>),
}

impl Except {
    fn parse(text: &str) -> Except {
        if text == "*" {
            return Except::All;
        }
        let (bare, bits) = match text.split_once('/') {
            Some((bare, bits)) => (bare, bits.parse().ok()),
            None => (text, Some(128)),
        };
        let bare = bare.trim_start_matches('[').trim_end_matches(']');
        if let (Ok(ip), Some(bits)) = (bare.parse(), bits) {
            return Except::Network(ip, bits);
        }
        let (name, port) = match text.rsplit_once(':') {
            Some((name, port)) if port.parse::<u16>().is_ok() => (name, port.parse().ok()),
            _ => (text, None),
        };
        let name = name.trim_start_matches("*.").trim_matches('.');
        Except::Name(name.to_ascii_lowercase(), port)
    }

    fn covers(&self, server: &Origin) -> bool {
        match self {
            Except::All => true,
            Except::Network(network, bits) => {
                server.ip().is_some_and(|ip| is_within(ip, *network, *bits))
            }
            Except::Name(name, port) => {
                let host = server.host();
                let above = host.strip_suffix(name.as_str());
                let below = above.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
                !name.is_empty() && below && port.is_none_or(|port| port == server.port())
            }
        }
    }
}

fn is_within(ip: IpAddr, network: IpAddr, bits: u32) -> bool {
    match (ip.to_canonical(), network.to_canonical()) {
        (IpAddr::V4(ip), IpAddr::V4(network)) => {
            let ignored = 32_u32.saturating_sub(bits);
            let differing = ip.to_bits() ^ network.to_bits();
            differing.checked_shr(ignored).unwrap_or(0) == 0
        }
        (IpAddr::V6(ip), IpAddr::V6(network)) => {
            let ignored = 128_u32.saturating_sub(bits);
            let differing = ip.to_bits() ^ network.to_bits();
            differing.checked_shr(ignored).unwrap_or(0) == 0
        }
        _ => false,
    }
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let at = |index: usize| u32::from(three.get(index).copied().unwrap_or(0));
        let word = at(0) << 16 | at(1) << 8 | at(2);
        for digit in 0..4 {
            let six = (word >> (18 - 6 * digit)) & 63;
            let is_padding = digit > three.len();
            text.push(if is_padding {
                '='
            } else {
                DIGITS[six as usize].into()
            });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(url: &str) -> Origin {
        Origin::of(&Url::parse(url).unwrap()).unwrap()
    }

    fn of(variables: &[(&str, &str)], url: &str) -> Option<String> {
        let value = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let proxies = Proxies::from_variables(value).unwrap();
        proxies
            .of(&origin(url))
            .map(|proxy| proxy.server.to_string())
    }

    #[test]
    fn each_scheme_has_its_variable_and_lower_case_counts_first() {
        let all = [
            ("http_proxy", "http://plain:1"),
            ("HTTP_PROXY", "http://never:1"),
            ("https_proxy", "low:2"),
            ("HTTPS_PROXY", "http://up:2"),
            ("ALL_PROXY", "http://any:3"),
        ];
        assert_eq!(of(&all, "http://h").as_deref(), Some("http://plain:1"));
        assert_eq!(of(&all, "https://h").as_deref(), Some("http://low:2"));
        assert_eq!(of(&all[1..2], "http://h"), None);
        assert_eq!(of(&all[3..4], "https://h").as_deref(), Some("http://up:2"));
        assert_eq!(of(&all[4..], "http://h").as_deref(), Some("http://any:3"));
        let empty = [("https_proxy", ""), ("HTTPS_PROXY", "http://up:2")];
        assert_eq!(of(&empty, "https://h").as_deref(), Some("http://up:2"));
        assert_eq!(of(&[], "https://h"), None);
    }

    #[test]
    fn exceptions_are_names_networks_and_all() {
        for (except, url, proxied) in [
            ("*", "http://h", false),
            ("example.com", "http://example.com", false),
            ("example.com", "http://s3.EXAMPLE.com", false),
            (".example.com", "http://s3.example.com", false),
            ("*.example.com", "http://s3.example.com", false),
            ("example.com", "http://notexample.com", true),
            ("example.com:9000", "http://example.com:9000", false),
            ("example.com:9000", "http://example.com", true),
            ("a, 10.0.0.0/8 b", "http://10.1.2.3", false),
            ("10.0.0.0/8", "http://11.0.0.1", true),
            ("10.0.0.1", "http://10.0.0.1", false),
            ("10.0.0.1", "http://10.0.0.2", true),
            ("0.0.0.0/0", "http://8.8.8.8", false),
            ("fd00::/8", "http://[fd12::1]", false),
            ("[fd12::1]", "http://[fd12::1]", false),
            ("fd00::/8", "http://[fe12::1]", true),
            ("10.0.0.0/x", "http://10.0.0.1", true),
            (",, .", "http://h", true),
        ] {
            let variables = [("http_proxy", "http://p:1"), ("no_proxy", except)];
            assert_eq!(of(&variables, url).is_some(), proxied, "{except} {url}");
        }
    }

    #[test]
    fn variables_are_not_for_this_host_and_a_named_proxy_is_for_all() {
        let variables = [("http_proxy", "http://p:1")];
        let all = Proxies::all("http://p:1").unwrap();
        for url in [
            "http://127.0.0.1:9000",
            "http://[::1]",
            "http://localhost",
            "http://s3.localhost",
        ] {
            assert_eq!(of(&variables, url), None, "{url}");
            assert!(all.of(&origin(url)).is_some(), "{url}");
        }
    }

    #[test]
    fn a_password_is_sent_and_not_shown() {
        let proxies = Proxies::all("http://user:p%40ss@p:3128").unwrap();
        let proxy = proxies.of(&origin("http://h")).unwrap();
        let value = proxy.authorization.as_ref().unwrap();
        assert_eq!(value, "Basic dXNlcjpwQHNz");
        let shown = format!("{proxies:?}");
        assert!(
            !shown.contains("p@ss") && !shown.contains("dXNl"),
            "{shown}"
        );
        for text in [
            "socks5://user:hidden@p:1",
            "http://user:hidden@p:1/path",
            "user:hidden@",
        ] {
            let error = Proxies::all(text).unwrap_err().to_string();
            assert!(!error.contains("hidden"), "{error}");
        }
    }

    #[test]
    fn base64_is_padded() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
        ] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }
}
