//! The owner's side: registers segments, names them in tokens, revokes them.

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::EventfdFlags;
use rustix::io::Errno;
use rustix::net::SocketFlags;
use s3engine_pool::cuda::{CudaKind, CudaMemory, Uuid};
use s3engine_pool::{
    Memory, Process, RegisterError, Registrar, RegistrationHandle, RevokeError, Segment,
};

use super::error::LoopbackError;
use super::folder::{Folder, socket_name};
use super::identity::Identity;
use super::wire::{Extent, Message};
use super::{registration_cost, service, socket};
use crate::fabric::{Fabric, Named, Naming, TokenError, named};
use crate::token::Token;

/// Of a registration: what the least capable of the RDMA client libraries can pin at once.
const SEGMENT_LIMIT: u64 = (4 << 30) - (64 << 10);

/// How an owner starts.
#[derive(Clone, Debug)]
pub struct LoopbackOptions {
    /// Folder of the socket; by default the same for every process of a user. It must be closed to
    /// others, and is made where missing.
    pub folder: Option<PathBuf>,
    /// Peer connections at a time; more are turned away.
    pub max_peers: usize,
    /// Bytes registered at a time, as a network card has a limit; none by default.
    pub max_registered: Option<u64>,
}

impl Default for LoopbackOptions {
    fn default() -> Self {
        Self {
            folder: None,
            max_peers: 64,
            max_registered: None,
        }
    }
}

/// The fabric as the owner of memory sees it. One thread answers the peers.
#[derive(Debug)]
pub struct Loopback {
    process: Process,
    shared: Arc<Shared>,
    service: Option<JoinHandle<()>>,
}

/// What the calling threads and the service thread share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) identity: Identity,
    pub(super) max_peers: usize,
    /// Readable when the service thread has to end.
    pub(super) stop: OwnedFd,
    folder: Folder,
    max_registered: u64,
    /// Of each registration, where a simulated server says so.
    registration_cost: Option<Duration>,
    state: Mutex<State>,
    /// A peer confirmed a revocation, or went.
    changed: Condvar,
}

#[derive(Debug)]
pub(super) struct State {
    keys: Keys,
    registered: u64,
    pub(super) segments: HashMap<u32, Registered>,
    pub(super) sessions: Vec<Session>,
}

/// A segment that peers may fetch.
#[derive(Debug)]
pub(super) struct Registered {
    pub(super) extent: Extent,
    pub(super) fd: OwnedFd,
}

/// One connection of a peer, and what may still be written through it.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: u64,
    pub(super) stage: Stage,
    pub(super) pid: i32,
    /// Readable when the process that connected is dead. Without one it is never known to be.
    pub(super) pidfd: Option<Arc<OwnedFd>>,
    /// Keys that were fetched and not yet given up.
    pub(super) held: HashSet<u32>,
}

#[derive(Debug)]
pub(super) enum Stage {
    /// Connected; has to present the capability.
    Greeting {
        socket: Arc<OwnedFd>,
        until: Instant,
    },
    /// May fetch.
    Open { socket: Arc<OwnedFd> },
    /// The connection ended without a word while keys were held: only the process's end settles them.
    Lost,
}

impl Loopback {
    /// Starts an owner with a new identity. Removes socket files that dead owners left behind.
    pub fn open(options: LoopbackOptions) -> Result<Self, LoopbackError> {
        let folder = Folder::create(options.folder.as_deref())?;
        remove_stale(&folder)
            .map_err(LoopbackError::system("remove the sockets of dead owners"))?;
        let registration_cost = registration_cost::read(&folder)?;
        let identity = Identity::random();
        let listener =
            listen(&folder, &identity).map_err(LoopbackError::system("listen on a socket"))?;
        let stop = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(LoopbackError::system("create an event"));
        let shared = stop.map(|stop| {
            Arc::new(Shared {
                identity,
                max_peers: options.max_peers,
                stop,
                folder,
                max_registered: options.max_registered.unwrap_or(u64::MAX),
                registration_cost,
                state: Mutex::new(State::default()),
                changed: Condvar::new(),
            })
        })?;
        // From here on dropping it removes the socket file.
        let mut loopback = Self {
            process: Process::current(),
            shared: shared.clone(),
            service: None,
        };
        let service = std::thread::Builder::new()
            .name("s3engine-loopback".into())
            .spawn(move || service::run(&shared, &listener))
            .map_err(|e| LoopbackError::System {
                what: "start a thread",
                errno: e.raw_os_error().unwrap_or_default(),
            })?;
        loopback.service = Some(service);
        Ok(loopback)
    }

    /// Connections that peers hold, or ended without saying that they write no more.
    pub fn peers(&self) -> usize {
        self.shared.lock().sessions.len()
    }
}

impl Drop for Loopback {
    /// Ends all connections, which ends the peers' mappings too, though nobody waits for that.
    fn drop(&mut self) {
        if !self.process.is_this() {
            // The socket, its file and the thread are those of the process that forked this one.
            std::mem::forget(self.service.take());
            return;
        }
        let _ = self
            .shared
            .folder
            .remove(&socket_name(&self.shared.identity.instance()));
        let _ = rustix::io::write(&self.shared.stop, &1u64.to_ne_bytes());
        if let Some(service) = self.service.take() {
            // It waits for nothing but the event just signalled.
            let _ = service.join();
        }
        self.shared.lock().sessions.clear();
    }
}

/// Listens under a name that nobody looks for, and renames then: whoever sees the final name can connect,
/// and a file that refuses is known to be a dead owner's.
fn listen(folder: &Folder, identity: &Identity) -> Result<OwnedFd, Errno> {
    let name = socket_name(&identity.instance());
    let hidden = format!(".{name}");
    let listener = socket::new()?;
    rustix::net::bind(&listener, &folder.address(&hidden)?)?;
    let listening = rustix::net::listen(&listener, 64).and_then(|()| folder.rename(&hidden, &name));
    if let Err(errno) = listening {
        let _ = folder.remove(&hidden);
        return Err(errno);
    }
    Ok(listener)
}

fn remove_stale(folder: &Folder) -> Result<(), Errno> {
    for name in folder.sockets()? {
        let attempt = rustix::net::connect(&socket::new()?, &folder.address(&name)?);
        if attempt == Err(Errno::CONNREFUSED) {
            // Another owner may have been faster.
            let _ = folder.remove(&name);
        }
    }
    Ok(())
}

impl Registrar for Loopback {
    fn name(&self) -> &'static str {
        "loopback"
    }

    fn segment_limit(&self) -> u64 {
        SEGMENT_LIMIT
    }

    /// A peer answers when the device has copied.
    fn orders_writes(&self) -> bool {
        true
    }

    fn register(&self, segment: Segment<'_>) -> Result<RegistrationHandle, RegisterError> {
        let extent = Extent {
            base: segment.address,
            len: segment.len,
            fd_offset: segment.fd_offset,
            slab_len: segment.slab_len,
            device: device(&segment)?,
        };
        check(&segment, &extent)?;
        let fd = segment
            .fd
            .ok_or_else(|| refusal("the slab has no descriptor that a peer could map".into()))?;
        let fd = fd.try_clone_to_owned().map_err(|e| RegisterError {
            errno: e.raw_os_error(),
            text: "loopback: cannot duplicate the slab's descriptor".into(),
        })?;
        if let Some(cost) = self.shared.registration_cost {
            registration_cost::pay(&self.shared.folder, cost, registration_cost::PATIENCE)?;
        }
        let mut state = self.shared.lock();
        let registered = state.registered.saturating_add(segment.len);
        if registered > self.shared.max_registered {
            return Err(RegisterError {
                errno: Some(Errno::NOMEM.raw_os_error()),
                text: format!(
                    "loopback: {} bytes more would pass the limit of {} registered bytes",
                    segment.len, self.shared.max_registered
                ),
            });
        }
        let rkey = state.keys.next().ok_or_else(|| RegisterError {
            errno: None,
            text: "loopback: every key was given out once".into(),
        })?;
        state.registered = registered;
        state.segments.insert(rkey, Registered { extent, fd });
        Ok(RegistrationHandle(rkey.into()))
    }

    /// May be called again after an error: peers that are still to confirm are told once more.
    fn revoke(&self, handle: RegistrationHandle, timeout: Duration) -> Result<(), RevokeError> {
        let deadline = socket::deadline(timeout);
        let rkey = u32::try_from(handle.0).map_err(|_| RevokeError {
            text: format!("loopback gave out no handle {}", handle.0),
        })?;
        let mut state = self.shared.lock();
        state.unregister(rkey);
        for session in state
            .sessions
            .iter()
            .filter(|session| session.held.contains(&rkey))
        {
            if let Stage::Open { socket } = &session.stage {
                // A peer that does not read cannot confirm either: that is seen below.
                let _ = socket::send(socket, &Message::Revoke { rkey }, None);
            }
        }
        loop {
            let Some(session) = state
                .sessions
                .iter()
                .find(|session| session.held.contains(&rkey))
            else {
                return Ok(());
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(RevokeError {
                    text: session.unconfirmed(rkey, timeout),
                });
            }
            state = self
                .shared
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}

fn refusal(text: String) -> RegisterError {
    RegisterError {
        errno: None,
        text: format!("loopback: {text}"),
    }
}

/// The device of a device's memory, where a peer can map it.
fn device(segment: &Segment<'_>) -> Result<Option<Uuid>, RegisterError> {
    match (segment.memory, segment.cuda.map(CudaMemory::kind)) {
        (Memory::Host, _) => Ok(None),
        (Memory::Cuda(device), Some(CudaKind::Vmm)) => Ok(Some(device)),
        (memory, Some(kind)) => Err(refusal(format!(
            "{memory} memory of kind {kind} has no descriptor that a peer could map"
        ))),
        (memory, None) => Err(refusal(format!(
            "{memory} memory cannot be mapped by a peer"
        ))),
    }
}

fn check(segment: &Segment<'_>, extent: &Extent) -> Result<(), RegisterError> {
    let refuse = |text| Err(refusal(text));
    if segment.len > SEGMENT_LIMIT {
        return refuse(format!(
            "{} bytes are over the limit of {SEGMENT_LIMIT}",
            segment.len
        ));
    }
    if extent.fd_end().is_none() {
        return refuse(format!(
            "{} bytes at {:#x} are no segment",
            segment.len, segment.address
        ));
    }
    Ok(())
}

impl Loopback {
    /// Names a window: nobody has to be asked.
    pub fn token(
        &self,
        handle: RegistrationHandle,
        address: u64,
        len: u64,
    ) -> Result<Token, TokenError> {
        let limit = u64::from(u32::MAX);
        let size = u32::try_from(len).map_err(|_| TokenError::TooLong { len, limit })?;
        let provider = |text: String| TokenError::Provider {
            text: format!("loopback: {text}"),
        };
        let state = self.shared.lock();
        let registered = u32::try_from(handle.0)
            .ok()
            .and_then(|rkey| Some((rkey, state.segments.get(&rkey)?)));
        let Some((rkey, segment)) = registered else {
            return Err(provider(format!("handle {} is not registered", handle.0)));
        };
        if segment.extent.locate(address, len).is_none() {
            return Err(provider(format!(
                "a window of {len} bytes at {address:#x} is not inside the registration of {} bytes at {:#x}",
                segment.extent.len, segment.extent.base
            )));
        }
        Ok(self.shared.identity.token(address, size, rkey))
    }
}

impl Fabric for Loopback {
    fn token(&self, handle: RegistrationHandle, address: u64, len: u64) -> Naming<'_> {
        named(Loopback::token(self, handle, address, len).map(Named::from))
    }
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn notify(&self) {
        self.changed.notify_all();
    }
}

impl State {
    fn unregister(&mut self, rkey: u32) {
        if let Some(segment) = self.segments.remove(&rkey) {
            self.registered -= segment.extent.len;
        }
    }
}

impl Default for State {
    fn default() -> Self {
        Self {
            keys: Keys::random(),
            registered: 0,
            segments: HashMap::new(),
            sessions: Vec::new(),
        }
    }
}

impl Session {
    fn unconfirmed(&self, rkey: u32, timeout: Duration) -> String {
        let pid = self.pid;
        match self.stage {
            Stage::Lost => format!(
                "peer process {pid} left without a word and is not known to be dead; it may still write \
                 through key {rkey:#010x}"
            ),
            _ => format!(
                "peer process {pid} did not confirm the end of key {rkey:#010x} within {timeout:?}"
            ),
        }
    }
}

/// Keys in an order that differs from owner to owner, none twice: multiples of an odd number visit all
/// 32-bit numbers.
#[derive(Debug)]
struct Keys {
    start: u32,
    step: u32,
    given: u64,
}

impl Keys {
    fn random() -> Self {
        Self {
            start: rand::random(),
            step: rand::random::<u32>() | 1,
            given: 0,
        }
    }

    fn next(&mut self) -> Option<u32> {
        let number = u32::try_from(self.given).ok()?;
        self.given += 1;
        Some(self.start.wrapping_add(number.wrapping_mul(self.step)))
    }
}

/// Flags of a connection that was accepted.
pub(super) const ACCEPT: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_is_given_out_twice_and_the_last_one_is_the_end() {
        let mut keys = Keys::random();
        let given: HashSet<u32> = (0..100_000).map(|_| keys.next().unwrap()).collect();
        assert_eq!(given.len(), 100_000);
        keys.given = u64::from(u32::MAX);
        assert!(keys.next().is_some());
        assert_eq!(keys.next(), None);
        assert_eq!(keys.next(), None);
    }
}
