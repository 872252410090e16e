//! A peer's connection to one owner, and the memory that the owner granted it.
//!
//! One thread reads what the owner says. A grant is written under its read lock and revoked under its
//! write lock: once revoked, no write through it runs or can start.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::Shutdown;
use rustix::process::geteuid;
use s3engine_pool::Mapping;
use s3engine_pool::cuda::{CudaMapping, CudaShare, Gpu};

use super::error::PeerError;
use super::flight::Flight;
use super::folder::{Folder, FolderError, socket_name};
use super::identity::Identity;
use super::socket::{self, Received};
use super::wire::{Extent, Message, Refusal, WireError};

/// A write holds a grant's lock for at most this many bytes: a revocation waits no longer than a copy of
/// them takes, about a millisecond.
const CHUNK: usize = 8 << 20;

/// Pause between attempts to connect to an owner whose queue of connections is full.
const CONNECT_PAUSE: Duration = Duration::from_millis(5);

/// What a peer counted since it started.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) mappings: AtomicU64,
    pub(super) landed_writes: AtomicU64,
    pub(super) landed_bytes: AtomicU64,
    pub(super) refused_writes: AtomicU64,
    pub(super) refused_bytes: AtomicU64,
}

/// A slab of the owner, as this process reaches it.
#[derive(Debug)]
enum Slab {
    /// Mapped up to the segment's end.
    Host(Mapping),
    Cuda(CudaMapping),
}

impl Slab {
    fn import(extent: &Extent, end: u64, fd: BorrowedFd<'_>) -> Result<Self, String> {
        let Some(device) = extent.device else {
            let mapping = Mapping::import(fd, end);
            return mapping.map(Slab::Host).map_err(|error| error.to_string());
        };
        let gpu = Gpu::find(device);
        let share = CudaShare::Descriptor(fd);
        let mapping = gpu.and_then(|gpu| CudaMapping::import(gpu, &share, extent.slab_len, true));
        mapping
            .map(Slab::Cuda)
            .map_err(|error| format!("memory of {device}: {error}"))
    }
}

/// The memory of one key.
#[derive(Debug)]
pub(super) struct Grant {
    pub(super) rkey: u32,
    pub(super) extent: Extent,
    slab: RwLock<Option<Slab>>,
    pub(super) counters: Arc<Counters>,
}

impl Grant {
    fn import(
        rkey: u32,
        extent: Extent,
        fd: OwnedFd,
        counters: &Arc<Counters>,
    ) -> Result<Self, PeerError> {
        let unmappable = |why: String| PeerError::Unmappable { rkey, why };
        let end = extent
            .fd_end()
            .ok_or_else(|| unmappable(format!("{extent:?} is no segment")))?;
        let slab = Slab::import(&extent, end, fd.as_fd()).map_err(unmappable)?;
        counters.mappings.fetch_add(1, Relaxed);
        Ok(Self {
            rkey,
            extent,
            slab: RwLock::new(Some(slab)),
            counters: counters.clone(),
        })
    }

    /// Copies `data` to `at` in the segment: nothing of it where it does not fit, and where the grant is
    /// revoked meanwhile as much as the error says.
    pub(super) fn write(&self, at: u64, data: &[u8]) -> Result<(), PeerError> {
        let rkey = self.rkey;
        let mut written = 0u64;
        let mut chunks = data.chunks(CHUNK);
        // An empty write is refused like any other.
        let mut chunk = chunks.next().unwrap_or_default();
        loop {
            let slab = self.slab.read().unwrap_or_else(PoisonError::into_inner);
            let slab = slab.as_ref().ok_or(PeerError::Revoked { rkey, written })?;
            // `at` was checked to lie in the segment, and the segment in the slab.
            let place = self.extent.fd_offset + at + written;
            match slab {
                Slab::Host(mapping) => {
                    mapping
                        .write(place, chunk)
                        .map_err(|e| PeerError::OutOfWindow {
                            offset: e.offset,
                            len: e.len,
                            window: e.have,
                        })?;
                }
                Slab::Cuda(mapping) => {
                    mapping
                        .write(place, chunk)
                        .map_err(|error| PeerError::Cuda { rkey, error })?;
                }
            }
            written += chunk.len() as u64;
            match chunks.next() {
                Some(next) => chunk = next,
                None => return Ok(()),
            }
        }
    }

    /// Waits for running writes, then drops the mapping.
    fn revoke(&self) {
        let slab = self
            .slab
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if slab.is_some() {
            self.counters.mappings.fetch_sub(1, Relaxed);
        }
    }

    pub(super) fn is_revoked(&self) -> bool {
        self.slab
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .is_none()
    }

    /// The device, where it is a device's memory and not revoked.
    pub(super) fn gpu(&self) -> Option<&'static Gpu> {
        match &*self.slab.read().unwrap_or_else(PoisonError::into_inner) {
            Some(Slab::Cuda(mapping)) => Some(mapping.gpu()),
            _ => None,
        }
    }
}

/// One connection.
#[derive(Debug)]
pub(super) struct Link {
    instance: String,
    socket: OwnedFd,
    timeout: Duration,
    counters: Arc<Counters>,
    state: Mutex<State>,
    /// Held while one revocation is carried out: goodbye is not said before its end.
    revoking: Mutex<()>,
    reader: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct State {
    closed: bool,
    grants: HashMap<u32, Arc<Flight<Arc<Grant>>>>,
}

/// Where an owner is looked for, and how long anything there may take.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) folder: Option<PathBuf>,
    pub(super) timeout: Duration,
}

impl Link {
    /// Connects to an owner and presents the capability.
    pub(super) fn connect(
        place: &Place,
        identity: &Identity,
        counters: &Arc<Counters>,
    ) -> Result<Arc<Self>, PeerError> {
        let deadline = socket::deadline(place.timeout);
        let instance = identity.instance();
        let socket = connect_socket(place, &instance, deadline)?;
        let refused = |why| PeerError::Refused {
            instance: instance.clone(),
            why,
        };
        let credentials = rustix::net::sockopt::socket_peercred(&socket)
            .map_err(PeerError::system("examine the owner of a socket"))?;
        if credentials.uid != geteuid() {
            return Err(refused(Refusal::User));
        }
        let gone = || PeerError::OwnerGone {
            instance: instance.clone(),
        };
        // An owner that turns this process away may have closed before it reads the greeting: its answer
        // is there all the same.
        let greeting = Message::Hello {
            capability: identity.capability,
        };
        let _ = socket::send_until(&socket, &greeting, deadline);
        match next(&socket, Some(deadline)).map_err(PeerError::system("read from an owner"))? {
            Received::Message(Message::Welcome, _) => {}
            Received::Message(Message::Refused { why }, _) => return Err(refused(why)),
            Received::Malformed(WireError::Version { .. }) => {
                return Err(refused(Refusal::Version));
            }
            Received::Empty => {
                return Err(PeerError::TimedOut {
                    instance,
                    after: place.timeout,
                });
            }
            _ => return Err(gone()),
        }
        Ok(Arc::new(Self {
            instance,
            socket,
            timeout: place.timeout,
            counters: counters.clone(),
            state: Mutex::default(),
            revoking: Mutex::default(),
            reader: Mutex::default(),
        }))
    }

    /// Starts the thread that hears the owner; `after` runs when the connection has ended.
    pub(super) fn start(
        self: &Arc<Self>,
        after: impl FnOnce() + Send + 'static,
    ) -> Result<(), PeerError> {
        let link = self.clone();
        let read = move || {
            link.read();
            link.close();
            after();
        };
        let reader = std::thread::Builder::new()
            .name("s3engine-peer".into())
            .spawn(read)
            .map_err(|e| PeerError::System {
                what: "start a thread",
                errno: e.raw_os_error().unwrap_or_default(),
            })?;
        *self.reader.lock().unwrap_or_else(PoisonError::into_inner) = Some(reader);
        Ok(())
    }

    pub(super) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// The memory of a key: fetched by the first who asks.
    pub(super) fn grant(&self, rkey: u32) -> Result<Arc<Grant>, PeerError> {
        let deadline = socket::deadline(self.timeout);
        let (flight, first) = {
            let mut state = self.lock();
            if state.closed {
                return Err(self.gone());
            }
            match state.grants.get(&rkey) {
                Some(flight) => (flight.clone(), false),
                None => {
                    let flight = Arc::new(Flight::new());
                    state.grants.insert(rkey, flight.clone());
                    (flight, true)
                }
            }
        };
        if let Some(result) = flight.get() {
            return result;
        }
        if first
            && let Err(errno) = socket::send_until(&self.socket, &Message::Fetch { rkey }, deadline)
        {
            self.lock().grants.remove(&rkey);
            flight.finish(Err(self.unsent(errno)));
        }
        // Who does not wait any longer leaves the flight to those who ask later.
        flight
            .wait(deadline)
            .unwrap_or_else(|| Err(self.timed_out()))
    }

    /// Hears the owner until the connection ends or makes no sense any more.
    fn read(&self) {
        loop {
            match next(&self.socket, None) {
                Ok(Received::Message(Message::Segment { rkey, extent }, Some(fd))) => {
                    let grant = Grant::import(rkey, extent, fd, &self.counters).map(Arc::new);
                    if !self.land(rkey, grant) {
                        return;
                    }
                }
                Ok(Received::Message(Message::Unknown { rkey }, None)) => {
                    if !self.land(rkey, Err(PeerError::UnknownKey { rkey })) {
                        return;
                    }
                }
                Ok(Received::Message(Message::Revoke { rkey }, None)) => {
                    let _revoking = self.revoking.lock().unwrap_or_else(PoisonError::into_inner);
                    let flight = {
                        let mut state = self.lock();
                        if state.closed {
                            // `close` is ending all grants, this one too perhaps; it says Bye after that.
                            return;
                        }
                        state.grants.remove(&rkey)
                    };
                    if let Some(flight) = flight {
                        self.end(rkey, &flight);
                    }
                    if self.send(&Message::Revoked { rkey }).is_err() {
                        return;
                    }
                }
                Ok(Received::End) => return,
                other => {
                    tracing::warn!(instance = %self.instance, ?other, "loopback: an owner broke the protocol");
                    return;
                }
            }
        }
    }

    /// Gives an answer to those who wait for it; false if nobody asked.
    fn land(&self, rkey: u32, result: Result<Arc<Grant>, PeerError>) -> bool {
        let mut state = self.lock();
        let Some(flight) = state.grants.get(&rkey).cloned() else {
            drop(state);
            if let Ok(grant) = result {
                grant.revoke();
            }
            return false;
        };
        if result.is_err() {
            state.grants.remove(&rkey);
        }
        let landed = flight.finish(result.clone());
        drop(state);
        if !landed && let Ok(grant) = result {
            grant.revoke();
        }
        landed
    }

    /// Ends what was granted under a key, or tells those who wait that nothing will be.
    fn end(&self, rkey: u32, flight: &Flight<Arc<Grant>>) {
        flight.finish(Err(PeerError::Revoked { rkey, written: 0 }));
        if let Some(Ok(grant)) = flight.get() {
            grant.revoke();
        }
    }

    /// Ends all grants, says so, and hangs up. A second call does nothing.
    pub(super) fn close(&self) {
        let grants = {
            let mut state = self.lock();
            if std::mem::replace(&mut state.closed, true) {
                return;
            }
            std::mem::take(&mut state.grants)
        };
        for (rkey, flight) in grants {
            flight.finish(Err(self.gone()));
            self.end(rkey, &flight);
        }
        let _revoking = self.revoking.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = self.send(&Message::Bye);
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
    }

    /// Closes, and waits for the thread; it has nothing to wait for after that.
    pub(super) fn join(&self) {
        self.close();
        let reader = self
            .reader
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(reader) = reader {
            let _ = reader.join();
        }
    }

    fn send(&self, message: &Message) -> Result<(), Errno> {
        socket::send_until(&self.socket, message, socket::deadline(self.timeout))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn gone(&self) -> PeerError {
        PeerError::OwnerGone {
            instance: self.instance.clone(),
        }
    }

    fn timed_out(&self) -> PeerError {
        PeerError::TimedOut {
            instance: self.instance.clone(),
            after: self.timeout,
        }
    }

    fn unsent(&self, errno: Errno) -> PeerError {
        match errno {
            Errno::AGAIN => self.timed_out(),
            Errno::PIPE | Errno::CONNRESET => self.gone(),
            errno => PeerError::system("write to an owner")(errno),
        }
    }
}

/// The next message; `Empty` only where there is none by the deadline.
fn next(socket: &OwnedFd, deadline: Option<Instant>) -> Result<Received, Errno> {
    loop {
        match socket::receive(socket)? {
            Received::Empty if socket::wait(socket, PollFlags::IN, deadline)? => {}
            received => return Ok(received),
        }
    }
}

fn connect_socket(place: &Place, instance: &str, deadline: Instant) -> Result<OwnedFd, PeerError> {
    let no_such = |folder| PeerError::NoSuchOwner {
        instance: instance.to_owned(),
        folder,
    };
    let folder = Folder::open(place.folder.as_deref()).map_err(|error| match error {
        FolderError::System { errno, path, .. } if errno == Errno::NOENT.raw_os_error() => {
            no_such(path)
        }
        error => error.into(),
    })?;
    let address = folder
        .address(&socket_name(instance))
        .map_err(PeerError::system("name a socket"))?;
    let socket = socket::new().map_err(PeerError::system("create a socket"))?;
    loop {
        match rustix::net::connect(&socket, &address) {
            Ok(()) => return Ok(socket),
            Err(Errno::NOENT | Errno::CONNREFUSED) => {
                return Err(no_such(folder.path().to_owned()));
            }
            Err(Errno::AGAIN | Errno::INTR) if Instant::now() < deadline => {
                std::thread::sleep(CONNECT_PAUSE)
            }
            Err(Errno::AGAIN | Errno::INTR) => {
                return Err(PeerError::TimedOut {
                    instance: instance.to_owned(),
                    after: place.timeout,
                });
            }
            Err(errno) => return Err(PeerError::system("connect to an owner")(errno)),
        }
    }
}

#[cfg(test)]
mod tests {
    use s3engine_pool::cuda::Uuid;

    use super::*;

    #[test]
    fn memory_of_a_device_that_is_not_seen_is_not_mapped() {
        let extent = Extent {
            base: 4096,
            len: 4096,
            fd_offset: 0,
            slab_len: 2 << 20,
            device: Some(Uuid([0xab; 16])),
        };
        let fd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let counters = Arc::default();
        let refused = Grant::import(9, extent, fd, &counters).unwrap_err();
        let PeerError::Unmappable { rkey: 9, why } = refused else {
            panic!("{refused}");
        };
        let unseen = "memory of GPU-abababab-abab-abab-abab-abababababab: no CUDA";
        assert!(why.starts_with(unseen), "{why}");
        assert_eq!(counters.mappings.load(Relaxed), 0);
    }
}
