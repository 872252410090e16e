//! An S3 service as this process reaches it: what the clients of all threads share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use tokio::sync::Semaphore;

use crate::clock::Clock;
use crate::credentials::Credentials;
use crate::endpoint::Endpoint;
use crate::http::{Health, Place, Regions, Resolver};
use crate::network::{Network, Proxies, Source, TlsError, TrustedHost};
use crate::timeouts::Timeouts;
use crate::tls::Tls;

/// Connections that are being opened at once: more of them overrun a server's queue, and then none comes about.
const CONNECTING: usize = 64;

/// An endpoint, who signs for it, and what is known of the way to its servers.
pub struct Upstream {
    endpoint: Endpoint,
    /// That of the endpoint, as each request holds it.
    pub(crate) region: Arc<str>,
    credentials: Credentials,
    timeouts: Timeouts,
    pub(crate) proxies: Proxies,
    pub(crate) source: Arc<Source>,
    pub(crate) tls: Tls,
    pub(crate) resolver: Resolver,
    pub(crate) health: Health,
    /// Of buckets elsewhere.
    pub(crate) regions: Regions,
    /// Hosts that may see what the endpoint may.
    pub(crate) trusted: Vec<TrustedHost>,
    pub(crate) clock: Clock,
    /// Whose turn it is, of several servers.
    turn: AtomicUsize,
    /// For those that open a connection.
    pub(crate) connecting: Semaphore,
    /// It refuses requests that ask for checksums.
    pub(crate) refuses_checksums: AtomicBool,
}

impl Upstream {
    /// Nothing of it is asked for yet, but credentials that are fetched. Where the endpoint needs TLS, what that needs is read now.
    pub fn new(
        endpoint: Endpoint,
        credentials: Credentials,
        timeouts: Timeouts,
        network: Network,
    ) -> Result<Arc<Upstream>, TlsError> {
        let tls = Tls::new(network.tls);
        if endpoint.is_secure() {
            tls.config()?;
        }
        credentials.prepare();
        Ok(Arc::new(Upstream {
            region: endpoint.region().into(),
            endpoint,
            credentials,
            timeouts,
            proxies: network.proxies,
            source: Arc::new(network.source),
            tls,
            resolver: Resolver::new(),
            health: Health::default(),
            regions: Regions::default(),
            trusted: network.trusted,
            clock: Clock::default(),
            // Processes that start together do not all begin with the same server.
            turn: AtomicUsize::new(rand::random::<u16>().into()),
            connecting: Semaphore::new(CONNECTING),
            refuses_checksums: AtomicBool::new(false),
        }))
    }

    /// Where a request on a bucket may go: one place for each server, another one first each time, and those that
    /// cannot be reached last.
    pub(crate) fn places(&self, bucket: &str) -> Vec<Place> {
        let origins = self.endpoint.origins();
        let place = |origin| Place::of_bucket(self, origin, bucket);
        if let [only] = origins {
            return vec![place(only)];
        }
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % origins.len();
        let in_turn = origins[turn..].iter().chain(&origins[..turn]);
        let mut places: Vec<_> = in_turn.map(place).collect();
        if !self.health.is_clear() {
            let now = Instant::now();
            places.sort_by_cached_key(|place| {
                let proxy = self.proxies.of(&place.origin);
                let server = proxy.map_or(&*place.origin, |proxy| &proxy.server);
                self.health.are_benched(&self.resolver.known(server), now)
            });
        }
        places
    }

    /// The endpoint.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Who signs the requests.
    pub fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    /// The bounds of its requests.
    pub fn timeouts(&self) -> &Timeouts {
        &self.timeouts
    }
}
