//! The server's side: resolves tokens to memory of other processes, and writes there.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::error::PeerError;
use super::flight::Flight;
use super::identity::Identity;
use super::link::{Counters, Grant, Link, Place};
use super::socket;
use crate::token::Token;
use s3engine_pool::Process;
use s3engine_pool::cuda::Gpu;

/// How a peer finds owners.
#[derive(Clone, Debug)]
pub struct PeerOptions {
    /// Folder of the owners' sockets; by default the same for every process of a user.
    pub folder: Option<PathBuf>,
    /// The longest wait for an owner: to connect, and again to fetch a key.
    pub timeout: Duration,
}

impl Default for PeerOptions {
    fn default() -> Self {
        Self {
            folder: None,
            timeout: Duration::from_secs(5),
        }
    }
}

/// What a peer did since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerStats {
    /// Different owners that it was ever connected to.
    pub owners: u64,
    /// Of these, connected now.
    pub connected: u64,
    /// Registrations mapped now.
    pub mappings: u64,
    /// Writes that landed whole.
    pub landed_writes: u64,
    /// Bytes that landed, those of writes cut short by a revocation included.
    pub landed_bytes: u64,
    /// Writes that failed.
    pub refused_writes: u64,
    /// Bytes that did not land.
    pub refused_bytes: u64,
}

/// The fabric as a server sees it: connects to each owner once, and fetches each key once. Calls block,
/// with a bound; any number of threads may make them.
///
/// Dropping it ends every window that it gave out.
#[derive(Debug)]
pub struct Peer {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    process: Process,
    place: Place,
    counters: Arc<Counters>,
    owners: Mutex<Owners>,
}

#[derive(Debug, Default)]
struct Owners {
    links: HashMap<Identity, Arc<Flight<Arc<Link>>>>,
    seen: HashSet<Identity>,
}

impl Peer {
    /// A peer that is not connected to anybody yet.
    pub fn new(options: PeerOptions) -> Self {
        let place = Place {
            folder: options.folder,
            timeout: options.timeout,
        };
        Self {
            shared: Arc::new(Shared {
                process: Process::current(),
                place,
                counters: Arc::default(),
                owners: Mutex::default(),
            }),
        }
    }

    /// The memory that a token names.
    pub fn window(&self, token: &Token) -> Result<RemoteWindow, PeerError> {
        let why = "it carries no GID";
        let identity = Identity::of(token).ok_or(PeerError::BadToken { why })?;
        let grant = self.shared.link(identity)?.grant(token.rkey)?;
        let (rkey, address, len) = (token.rkey, token.address, u64::from(token.size));
        match grant.extent.locate(address, len) {
            Some(start) => Ok(RemoteWindow { grant, start, len }),
            None => Err(PeerError::OutOfRegistration { address, len, rkey }),
        }
    }

    /// Writes `data` at `offset` of the window that a token names.
    pub fn write(&self, token: &Token, offset: u64, data: &[u8]) -> Result<(), PeerError> {
        match self.window(token) {
            Ok(window) => window.write(offset, data),
            Err(error) => {
                self.shared.counters.refused(data.len() as u64);
                Err(error)
            }
        }
    }

    /// What happened so far.
    pub fn stats(&self) -> PeerStats {
        let counters = &self.shared.counters;
        let (owners, connected) = {
            let owners = self.shared.lock();
            let connected = owners.links.values().filter(|flight| is_up(flight));
            (owners.seen.len() as u64, connected.count() as u64)
        };
        PeerStats {
            owners,
            connected,
            mappings: counters.mappings.load(Relaxed),
            landed_writes: counters.landed_writes.load(Relaxed),
            landed_bytes: counters.landed_bytes.load(Relaxed),
            refused_writes: counters.refused_writes.load(Relaxed),
            refused_bytes: counters.refused_bytes.load(Relaxed),
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if !self.shared.process.is_this() {
            // The connections are those of the process that forked this one.
            std::mem::forget(Arc::clone(&self.shared));
            return;
        }
        let links = std::mem::take(&mut self.shared.lock().links);
        for flight in links.into_values() {
            if let Some(Ok(link)) = flight.get() {
                link.join();
            }
        }
    }
}

impl Counters {
    fn refused(&self, bytes: u64) {
        self.refused_writes.fetch_add(1, Relaxed);
        self.refused_bytes.fetch_add(bytes, Relaxed);
    }
}

impl Shared {
    /// The connection to an owner: made by the first who asks, and again after it ended.
    fn link(self: &Arc<Self>, identity: Identity) -> Result<Arc<Link>, PeerError> {
        let (flight, first) = {
            let mut owners = self.lock();
            match owners.links.get(&identity) {
                Some(flight) if !is_over(flight) => (flight.clone(), false),
                _ => {
                    let flight = Arc::new(Flight::new());
                    owners.links.insert(identity, flight.clone());
                    (flight, true)
                }
            }
        };
        if first {
            let result = self.connect(identity, &flight);
            if result.is_err() {
                self.forget(&identity, &flight);
            }
            flight.finish(result);
        }
        // Connecting and saying hello each keep to the deadline.
        let deadline = socket::deadline(self.place.timeout);
        flight.wait(deadline).unwrap_or_else(|| {
            Err(PeerError::TimedOut {
                instance: identity.instance(),
                after: self.place.timeout,
            })
        })
    }

    fn connect(
        self: &Arc<Self>,
        identity: Identity,
        flight: &Arc<Flight<Arc<Link>>>,
    ) -> Result<Arc<Link>, PeerError> {
        let link = Link::connect(&self.place, &identity, &self.counters)?;
        self.lock().seen.insert(identity);
        let (shared, flight) = (self.clone(), flight.clone());
        if let Err(error) = link.start(move || shared.forget(&identity, &flight)) {
            link.close();
            return Err(error);
        }
        Ok(link)
    }

    /// Forgets a connection, if it was not replaced meanwhile.
    fn forget(&self, identity: &Identity, flight: &Arc<Flight<Arc<Link>>>) {
        let mut owners = self.lock();
        if owners
            .links
            .get(identity)
            .is_some_and(|current| Arc::ptr_eq(current, flight))
        {
            owners.links.remove(identity);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Owners> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_up(flight: &Flight<Arc<Link>>) -> bool {
    matches!(flight.get(), Some(Ok(link)) if !link.is_closed())
}

fn is_over(flight: &Flight<Arc<Link>>) -> bool {
    matches!(flight.get(), Some(Ok(link)) if link.is_closed())
}

/// A window of another process's memory. It ends by itself when its registration is revoked, when the
/// owner goes, or with the [`Peer`].
#[derive(Clone, Debug)]
pub struct RemoteWindow {
    grant: Arc<Grant>,
    start: u64,
    len: u64,
}

impl RemoteWindow {
    /// The window's length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the window has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The device, where it is a device's memory: writes wait for the device then, and are fast from pinned memory.
    pub fn gpu(&self) -> Option<&'static Gpu> {
        self.grant.gpu()
    }

    /// Whether nothing can be written any more.
    pub fn is_revoked(&self) -> bool {
        self.grant.is_revoked()
    }

    /// Copies `data` to `offset`. A write outside the window changes nothing; one that a revocation
    /// meets has stored as many bytes as the error says.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), PeerError> {
        let len = data.len() as u64;
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        let result = if inside {
            self.grant.write(self.start + offset, data)
        } else {
            Err(PeerError::OutOfWindow {
                offset,
                len,
                window: self.len,
            })
        };
        let counters = &self.grant.counters;
        match &result {
            Ok(()) => {
                counters.landed_writes.fetch_add(1, Relaxed);
                counters.landed_bytes.fetch_add(len, Relaxed);
            }
            Err(PeerError::Revoked { written, .. }) => {
                counters.landed_bytes.fetch_add(*written, Relaxed);
                counters.refused(len - written);
            }
            Err(_) => counters.refused(len),
        }
        result
    }
}
