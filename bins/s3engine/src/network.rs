//! From settings to the way to the servers.

use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

use s3engine::{Network, NoHost, Proxies, ProxyError, Source, TlsOptions, TrustedHost};
use serde::{Deserialize, Serialize};

use crate::config::{ConfigError, Settings};

/// A proxy for all requests, or `off`. It may hold a password and is not shown.
#[derive(Clone, PartialEq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct ProxyChoice(String);

const OFF: &str = "off";

impl ProxyChoice {
    /// Not looked at yet: what is wrong with it must be said without a password, which the parser of flags shows.
    pub(crate) fn taken(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.to_owned()))
    }

    fn proxies(&self) -> Result<Proxies, ProxyError> {
        match self.0.as_str() {
            OFF => Ok(Proxies::default()),
            url => Proxies::all(url),
        }
    }
}

impl FromStr for ProxyChoice {
    type Err = ProxyError;

    fn from_str(text: &str) -> Result<Self, ProxyError> {
        let choice = Self(text.to_owned());
        choice.proxies().map(|_| choice)
    }
}

impl TryFrom<String> for ProxyChoice {
    type Error = ProxyError;

    fn try_from(text: String) -> Result<Self, ProxyError> {
        text.parse()
    }
}

impl From<ProxyChoice> for String {
    fn from(choice: ProxyChoice) -> Self {
        choice.0
    }
}

impl fmt::Debug for ProxyChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0 == OFF { OFF } else { "***" })
    }
}

/// Hosts besides the endpoint's own that may see what is secret, with commas in between.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct RedirectHosts(String);

impl RedirectHosts {
    fn hosts(&self) -> Result<Vec<TrustedHost>, NoHost> {
        self.0.split(',').map(|host| host.trim().parse()).collect()
    }
}

impl FromStr for RedirectHosts {
    type Err = NoHost;

    fn from_str(text: &str) -> Result<Self, NoHost> {
        let hosts = Self(text.to_owned());
        hosts.hosts().map(|_| hosts)
    }
}

impl TryFrom<String> for RedirectHosts {
    type Error = NoHost;

    fn try_from(text: String) -> Result<Self, NoHost> {
        text.parse()
    }
}

impl From<RedirectHosts> for String {
    fn from(hosts: RedirectHosts) -> Self {
        hosts.0
    }
}

impl Settings {
    /// How the servers are reached. Without a proxy among the settings, the usual variables name one.
    pub(crate) fn network(&self) -> Result<Network, ConfigError> {
        let proxies = match &self.proxy {
            Some(choice) => choice.proxies()?,
            None => Proxies::from_variables(|name| std::env::var(name).ok())?,
        };
        let trusted = self.redirect_to.as_ref().map(RedirectHosts::hosts);
        let trusted = trusted.transpose()?;
        Ok(Network {
            tls: TlsOptions {
                ca_bundle: self.ca_bundle.clone(),
                client_cert: self.client_cert.clone(),
                client_key: self.client_key.clone(),
            },
            proxies,
            source: Source {
                address: self.source,
                interface: self.interface.clone(),
            },
            trusted: trusted.unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_is_a_url_or_off_and_its_password_is_not_shown() {
        let choice: ProxyChoice = "http://user:hidden@p:3128".parse().unwrap();
        let settings = Settings {
            proxy: Some(choice),
            ..Settings::default()
        };
        let network = settings.network().unwrap();
        assert_ne!(network.proxies, Proxies::default());
        let shown = format!("{settings:?} {network:?}");
        assert!(
            !shown.contains("hidden") && !shown.contains("aGlkZGVu"),
            "{shown}"
        );
        let off = Settings {
            proxy: Some("off".parse().unwrap()),
            ..Settings::default()
        };
        assert_eq!(off.network().unwrap().proxies, Proxies::default());
        let error = "socks5://user:hidden@p".parse::<ProxyChoice>().unwrap_err();
        assert!(!error.to_string().contains("hidden"), "{error}");
    }

    #[test]
    fn hosts_to_trust_are_a_list() {
        let hosts: RedirectHosts = "a.example, *.b.example,10.0.0.1".parse().unwrap();
        let settings = Settings {
            redirect_to: Some(hosts),
            ..Settings::default()
        };
        assert_eq!(settings.network().unwrap().trusted.len(), 3);
        for text in ["", "a,,b", "http://a", "*"] {
            assert!(text.parse::<RedirectHosts>().is_err(), "{text}");
        }
    }
}
