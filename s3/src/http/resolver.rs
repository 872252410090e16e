//! The endpoint's addresses: looked up once for all connections, kept a while, and taken in turn.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Mutex;

use crate::endpoint::Endpoint;

/// How long addresses are used before they are looked up anew.
const LIFETIME: Duration = Duration::from_secs(30);

/// Finds the addresses of one endpoint.
pub(crate) struct Resolver {
    /// Held during a look-up, so that connections that open together wait for one answer.
    known: Mutex<Option<(Instant, Vec<SocketAddr>)>>,
    turn: AtomicUsize,
}

impl Resolver {
    pub(crate) fn new() -> Resolver {
        Resolver {
            known: Mutex::new(None),
            turn: AtomicUsize::new(0),
        }
    }

    /// All addresses, beginning with another one each time so that connections spread over them.
    ///
    /// Old addresses are better than none: they stay in use while a look-up fails.
    pub(crate) async fn addresses(&self, endpoint: &Endpoint) -> io::Result<Vec<SocketAddr>> {
        if let Some(ip) = endpoint.ip() {
            return Ok(vec![SocketAddr::new(ip, endpoint.port())]);
        }
        let mut known = self.known.lock().await;
        let fresh = known
            .as_ref()
            .is_some_and(|(since, _)| since.elapsed() < LIFETIME);
        if !fresh {
            match look_up(endpoint).await {
                Ok(found) => *known = Some((Instant::now(), found)),
                Err(error) if known.is_none() => return Err(error),
                Err(error) => {
                    tracing::warn!(%endpoint, %error, "look-up failed, using the old addresses")
                }
            }
        }
        let mut addresses = known
            .as_ref()
            .map(|(_, found)| found.clone())
            .unwrap_or_default();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let first = turn.checked_rem(addresses.len()).unwrap_or(0);
        addresses.rotate_left(first);
        Ok(addresses)
    }
}

async fn look_up(endpoint: &Endpoint) -> io::Result<Vec<SocketAddr>> {
    let host = endpoint.host();
    let found: Vec<_> = tokio::net::lookup_host((host.as_str(), endpoint.port()))
        .await?
        .collect();
    if found.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::NotFound,
            "the name has no address",
        ));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_addresses_are_taken_in_turn_without_a_look_up() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let resolver = Resolver::new();
        let (a, b) = (
            "10.0.0.1:80".parse().unwrap(),
            "10.0.0.2:80".parse().unwrap(),
        );
        runtime.block_on(async {
            *resolver.known.lock().await = Some((Instant::now(), vec![a, b]));
            // The name cannot be resolved: an answer can only come from what is known.
            let endpoint = Endpoint::parse("http://name.invalid").unwrap();
            assert_eq!(resolver.addresses(&endpoint).await.unwrap(), [a, b]);
            assert_eq!(resolver.addresses(&endpoint).await.unwrap(), [b, a]);
            assert_eq!(resolver.addresses(&endpoint).await.unwrap(), [a, b]);
        });
    }
}
