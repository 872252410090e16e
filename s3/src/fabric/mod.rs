//! Ways to move bytes by one-sided remote writes.

mod calls;
pub mod cufile;
pub mod loopback;
pub mod probe;
pub mod s3rdma;
mod text;

use std::future::{self, Future};
use std::net::{IpAddr, Ipv6Addr, UdpSocket};
use std::pin::Pin;
use std::sync::Arc;

use s3engine_pool::{Registrar, RegistrationHandle};

use crate::token::Token;

/// A fabric: memory registered with it can be named to a server by a token, and the server then
/// writes into that memory by itself.
pub trait Fabric: Registrar {
    /// Names `len` bytes from `address` on, inside the registration, for one request. May wait for the provider, up
    /// to a bound.
    fn token(&self, handle: RegistrationHandle, address: u64, len: u64) -> Naming<'_>;

    /// What it reaches the network through, in the order of their names. Empty where that is no port of a card.
    fn rails(&self) -> Vec<Rail> {
        Vec::new()
    }

    /// Hears how a transfer ended that the server had taken on. Nothing is told of one that it declined, nor of a
    /// failure on this side: these say nothing of the rail.
    fn ended(&self, _named: &Named, _transfer: Transfer) {}
}

/// How a transfer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// So many bytes were written.
    Done(u64),
    /// The server could not write, or has not said that it did: the rail that the token names may be to blame.
    Failed,
}

/// A token that is being made.
pub type Naming<'a> = Pin<Box<dyn Future<Output = Result<Named, TokenError>> + Send + 'a>>;

/// A token that needed no waiting.
pub fn named(result: Result<Named, TokenError>) -> Naming<'static> {
    Box::pin(future::ready(result))
}

/// A window named to a server, and by which rail it will be written.
#[derive(Clone, Debug)]
pub struct Named {
    /// Its name.
    pub token: Token,
    /// The rail, where the fabric has some.
    pub rail: Option<Arc<str>>,
    /// The rail's address: the request that carries the token begins there, so that the server answers the same way.
    pub source: Option<IpAddr>,
}

impl From<Token> for Named {
    /// By a fabric without rails.
    fn from(token: Token) -> Self {
        Self {
            token,
            rail: None,
            source: None,
        }
    }
}

/// One port that a fabric uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rail {
    /// The device's name or address, as it was chosen.
    pub name: Arc<str>,
    /// Its address on this host, where that is known.
    pub address: Option<IpAddr>,
    /// Why it is not used at present.
    pub down: Option<String>,
    /// Segments that are registered by it now.
    pub registered: u64,
    /// Bytes that were written by it.
    pub bytes: u64,
    /// Transfers by it that failed.
    pub failed: u64,
}

/// Why a window could not be named in a token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// The window is longer than the token's 32-bit size field can say.
    #[error("a window of {len} bytes is over the token's limit of {limit} bytes")]
    TooLong {
        /// The window's length.
        len: u64,
        /// The longest window that can be named.
        limit: u64,
    },
    /// The provider refused, in its own words.
    #[error("{text}")]
    Provider {
        /// The provider's text.
        text: String,
    },
    /// No rail that has the memory registered is up.
    #[error("{text}")]
    RailDown {
        /// What is known of the rails.
        text: String,
    },
}

/// Why there is no fabric.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// Its library is not on this host.
    #[error("{text}")]
    NotFound {
        /// What was looked for, and where.
        text: String,
    },
    /// It is here, and does not work.
    #[error("{text}")]
    Failed {
        /// What the library said, and what helps.
        text: String,
    },
}

/// The address in a token, if it is one of this host that sockets can begin at.
fn address_of(token: &Token) -> Option<IpAddr> {
    let address = Ipv6Addr::from(token.gid?).to_canonical();
    let is_of_a_link = matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
    let usable = !is_of_a_link && !address.is_unspecified() && !address.is_multicast();
    (usable && UdpSocket::bind((address, 0)).is_ok()).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::Dctn;

    fn token(gid: Option<[u8; 16]>) -> Token {
        Token {
            address: 0,
            size: 0,
            rkey: 0,
            lid: 0,
            dctn: Dctn::new(0).unwrap(),
            gid,
        }
    }

    #[test]
    fn a_rails_address_is_one_of_this_host_or_none() {
        let of = |text: &str| {
            let address: Ipv6Addr = text.parse().unwrap();
            address_of(&token(Some(address.octets())))
        };
        assert_eq!(of("::ffff:127.0.0.1"), Some("127.0.0.1".parse().unwrap()));
        for text in [
            "::",
            "fe80::1",
            "ff02::1",
            "2001:db8::1",
            "::ffff:192.0.2.1",
        ] {
            assert_eq!(of(text), None, "{text}");
        }
        assert_eq!(address_of(&token(None)), None);
    }
}
