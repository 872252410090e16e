//! How this process reaches the servers of an upstream.

use std::net::IpAddr;

pub use crate::proxy::{Proxies, ProxyError};
#[doc(hidden)]
pub use crate::redirect::fuzz_redirect;
pub use crate::redirect::{NoHost, TrustedHost};
pub use crate::tls::{TlsError, TlsOptions};

/// What lies between this process and the servers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// Whom to trust, and who to be, where TLS is spoken.
    pub tls: TlsOptions,
    /// The proxies. None, by default: variables are only read by [`Proxies::from_variables`].
    pub proxies: Proxies,
    /// Where connections begin.
    pub source: Source,
    /// Hosts beside the endpoint's own that redirects may lead to with signatures and keys.
    pub trusted: Vec<TrustedHost>,
}

/// Where connections begin on this host. The kernel chooses what is not said.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Source {
    /// The local address.
    pub address: Option<IpAddr>,
    /// The network interface.
    pub interface: Option<String>,
}
