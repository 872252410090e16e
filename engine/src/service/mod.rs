//! The host service: one owner of memory, registrations, connections and credentials, for clients in other
//! processes.
//!
//! ```text
//! client ──socket──> listener ── who is it? ──> session ──┬── memory: slabs of this client only
//!                    (lock, caps)                         ├── HEAD, LIST, OPEN: rules, then the engine
//!                                                         └── queues: rings in two memfds and a bell ──> served queue
//! ```
//! A client that breaks the rules, dies, or stops reading ends its own session and nobody else's: requests are
//! cancelled, slots go to quarantine where a peer may still write, slabs are destroyed and never leased again.

mod counted;
mod files;
mod listener;
mod peer;
mod rules;
mod session;
mod talk;
mod watch;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use tokio::task::LocalSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::counted::Counted;
pub(crate) use self::rules::{Access, climbs};
pub use self::rules::{Rule, Who};
use crate::engine::Engine;
use crate::in_flight::{Group, Limits};
use crate::under_way::Outstanding;

/// How a host service is made.
#[derive(Clone)]
pub struct ServiceOptions {
    /// Where clients find it.
    pub socket: PathBuf,
    /// What it serves, by name. The first is the one that a client gets which names none.
    pub endpoints: Vec<(String, Engine)>,
    /// Who may attach, besides the service's own user.
    pub allow: Vec<Who>,
    /// What those may read.
    pub rules: Vec<Rule>,
    /// Headers that clients may add to requests, by their names.
    pub client_headers: Vec<String>,
    /// What one client, one user and all together may take.
    pub caps: Caps,
}

/// The most that clients may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// Sessions at once.
    pub sessions: usize,
    /// Sessions of one user at once.
    pub sessions_per_uid: usize,
    /// Queues of one session.
    pub queues: usize,
    /// Entries of one queue: a power of two.
    pub entries: u32,
    /// Bytes of the rings of all queues, about 4 KiB an entry. They are not the pool's.
    pub queue_bytes: u64,
    /// The same of the queues of one user.
    pub queue_bytes_per_uid: Option<u64>,
    /// Bytes of the pool that one session may have; the pool's own bound where absent.
    pub bytes: Option<u64>,
    /// The same of all sessions of one user.
    pub bytes_per_uid: Option<u64>,
    /// Requests of one session under way at once.
    pub requests: Option<usize>,
    /// The same of all sessions of one user.
    pub requests_per_uid: Option<usize>,
    /// Bytes that the requests under way of all sessions of one user ask for. The last of them may go beyond.
    pub in_flight_bytes_per_uid: Option<u64>,
    /// Bytes of a slab of a client: the step in which its memory grows.
    pub slab_bytes: u64,
}

impl Default for Caps {
    fn default() -> Self {
        Self {
            sessions: 1024,
            sessions_per_uid: 512,
            queues: 256,
            entries: 4096,
            queue_bytes: 1 << 30,
            queue_bytes_per_uid: None,
            bytes: None,
            bytes_per_uid: None,
            requests: None,
            requests_per_uid: None,
            in_flight_bytes_per_uid: None,
            slab_bytes: 64 << 20,
        }
    }
}

impl Caps {
    /// Which of them would keep everybody out.
    fn senseless(&self) -> Option<&'static str> {
        let entries = self.entries.is_power_of_two() && self.entries <= s3engine_ring::MAX_ENTRIES;
        let senseless = [
            (self.sessions == 0, "no sessions"),
            (self.sessions_per_uid == 0, "no sessions of a user"),
            (self.queues == 0, "no queues"),
            (
                !entries,
                "entries of a queue that are no power of two up to 32768",
            ),
            (self.queue_bytes < 1 << 20, "less than 1 MiB for queues"),
            (
                self.bytes.is_some_and(|bytes| bytes < 2 << 20),
                "less than 2 MiB for a client",
            ),
            (
                self.bytes_per_uid.is_some_and(|bytes| bytes < 2 << 20),
                "less than 2 MiB for the clients of a user",
            ),
            (
                self.queue_bytes_per_uid.is_some_and(|of| of < 1 << 20),
                "less than 1 MiB for the queues of a user",
            ),
            (self.requests == Some(0), "no requests"),
            (self.requests_per_uid == Some(0), "no requests of a user"),
            (
                self.in_flight_bytes_per_uid == Some(0),
                "no bytes under way for a user",
            ),
        ];
        senseless.iter().find(|(is, _)| *is).map(|(_, what)| *what)
    }

    /// What one session may have under way.
    pub(crate) fn of_share(&self) -> Limits {
        Limits {
            requests: self.requests.unwrap_or(usize::MAX),
            bytes: u64::MAX,
        }
    }

    /// What all sessions of a user may have under way together.
    pub(crate) fn of_user(&self, uid: u32) -> Group {
        let caps = Limits {
            requests: self.requests_per_uid.unwrap_or(usize::MAX),
            bytes: self.in_flight_bytes_per_uid.unwrap_or(u64::MAX),
        };
        Group { number: uid, caps }
    }
}

/// Why a service does not start.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// Another one runs.
    #[error("a service runs at {} already", socket.display())]
    Runs {
        /// Its socket.
        socket: PathBuf,
    },
    /// There is nothing to serve.
    #[error("a service needs an endpoint, and no two of one name")]
    Endpoints,
    /// The system's limit leaves no client a file.
    #[error(
        "the limit of {limit} open files leaves none for clients: raise it (LimitNOFILE, ulimit -n) to {needed} at least"
    )]
    Files {
        /// The limit.
        limit: u64,
        /// For one client.
        needed: u64,
    },
    /// A cap that would keep everybody out.
    #[error("the caps leave {what}")]
    Caps {
        /// What they leave.
        what: &'static str,
    },
    /// The system refused.
    #[error("{what} {}: {source}", path.display())]
    System {
        /// What was to be done.
        what: &'static str,
        /// With what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// What all sessions read.
pub(crate) struct Host {
    pub(crate) endpoints: Vec<(String, Engine)>,
    pub(crate) allow: ArcSwap<(Vec<Who>, Vec<Rule>)>,
    pub(crate) client_headers: Arc<[String]>,
    pub(crate) caps: Caps,
    pub(crate) uid: u32,
    pub(crate) overflow_uid: u32,
    /// By their number.
    pub(crate) sessions: Mutex<BTreeMap<u64, Arc<session::Facts>>>,
    /// No new sessions, queues and requests.
    pub(crate) draining: CancellationToken,
    pub(crate) stop: CancellationToken,
    /// Files that clients keep open.
    files: Arc<Counted>,
    /// Bytes of the rings that there are.
    queue_bytes: Arc<Counted>,
    pub(crate) tasks: TaskTracker,
}

impl Host {
    /// What a user of these groups may read there.
    pub(crate) fn access(&self, endpoint: &str, uid: u32, groups: &[u32]) -> Access {
        match uid == self.uid {
            true => Access::All,
            false => Access::of(&self.allow.load().1, endpoint, uid, groups),
        }
    }

    /// Whether a user of these groups may attach.
    pub(crate) fn admits(&self, uid: u32, groups: &[u32]) -> bool {
        let named = |who: &Who| match *who {
            Who::Uid(of) => of == uid,
            Who::Gid(of) => groups.contains(&of),
        };
        uid == self.uid || (uid != self.overflow_uid && self.allow.load().0.iter().any(named))
    }
}

/// A running host service. Ends when dropped.
pub struct Service {
    host: Arc<Host>,
    socket: PathBuf,
    thread: Option<JoinHandle<()>>,
    _lock: listener::Lock,
}

impl Service {
    /// Starts serving. A second service at the same socket is refused; what a dead one left is replaced.
    pub fn start(options: ServiceOptions) -> Result<Service, ServiceError> {
        let mut names: Vec<_> = options.endpoints.iter().map(|(name, _)| name).collect();
        names.sort();
        names.dedup();
        if names.is_empty() || names.len() < options.endpoints.len() {
            return Err(ServiceError::Endpoints);
        }
        if let Some(what) = options.caps.senseless() {
            return Err(ServiceError::Caps { what });
        }
        let requests = |(_, engine): &(String, Engine)| {
            let inner = engine.embedded();
            inner.map_or(0, |inner| inner.core.in_flight.limits().requests)
        };
        let requests = options.endpoints.iter().map(requests);
        let requests = requests.fold(0, usize::saturating_add);
        let files = files::for_clients(requests)
            .map_err(|(limit, needed)| ServiceError::Files { limit, needed })?;
        let others = !options.allow.is_empty();
        let (lock, socket) = listener::bind(&options.socket, others)?;
        let host = Arc::new(Host {
            endpoints: options.endpoints,
            allow: ArcSwap::from_pointee((options.allow, options.rules)),
            client_headers: options.client_headers.into(),
            caps: options.caps,
            uid: rustix::process::geteuid().as_raw(),
            overflow_uid: peer::overflow_uid(),
            sessions: Mutex::default(),
            draining: CancellationToken::new(),
            stop: CancellationToken::new(),
            files,
            queue_bytes: Counted::new(
                options.caps.queue_bytes,
                options.caps.queue_bytes_per_uid.unwrap_or(u64::MAX),
            ),
            tasks: TaskTracker::new(),
        });
        let system = |source| ServiceError::System {
            what: "cannot start the thread of the service at",
            path: options.socket.clone(),
            source,
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(system)?;
        let serving = Arc::clone(&host);
        let thread = std::thread::Builder::new()
            .name("s3engine-service".to_owned())
            .spawn(move || {
                let local = LocalSet::new();
                local.block_on(&runtime, listener::run(serving, socket));
                drop(local);
                runtime.shutdown_background();
            })
            .map_err(system)?;
        Ok(Service {
            host,
            socket: options.socket,
            thread: Some(thread),
            _lock: lock,
        })
    }

    /// Replaces who may attach and what they may read. Sessions that are no longer allowed end.
    pub fn reload(&self, allow: Vec<Who>, rules: Vec<Rule>) {
        let others = !allow.is_empty();
        self.host.allow.store(Arc::new((allow, rules)));
        if let Err(error) = listener::open_to(&self.socket, others) {
            tracing::warn!(%error, socket = %self.socket.display(), "cannot let others through to the socket");
        }
        for session in self.sessions() {
            let (uid, groups) = (session.uid, &session.groups);
            match self.host.admits(uid, groups) {
                true => session.set_access(self.host.access(&session.endpoint, uid, groups)),
                false => session.end("its user may not attach any more"),
            }
        }
    }

    /// Takes no new sessions and requests, and waits until the present ones have nothing under way, at most
    /// `timeout`. Returns whether that came. What is asked for meanwhile completes as `service-lost`.
    pub fn drain(&self, timeout: Duration) -> bool {
        self.host.draining.cancel();
        let began = Instant::now();
        loop {
            if self
                .sessions()
                .iter()
                .all(|session| session.outstanding() == 0)
            {
                return true;
            }
            if began.elapsed() >= timeout {
                return false;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The clients that are attached.
    pub fn clients(&self) -> Vec<ClientStats> {
        self.sessions()
            .iter()
            .map(|session| session.stats())
            .collect()
    }

    /// The requests of clients that have not ended, session by session, the oldest first, several hundred of each at
    /// most.
    pub fn outstanding(&self) -> Vec<Outstanding> {
        let sessions = self.sessions().into_iter();
        sessions.flat_map(|session| session.under_way()).collect()
    }

    /// Whether clients are served: false when the service's thread has ended, whatever ended it.
    pub fn is_running(&self) -> bool {
        let thread = self.thread.as_ref();
        thread.is_some_and(|thread| !thread.is_finished())
    }

    fn sessions(&self) -> Vec<Arc<session::Facts>> {
        let sessions = self.host.sessions.lock();
        let sessions = sessions.unwrap_or_else(PoisonError::into_inner);
        sessions.values().cloned().collect()
    }
}

/// What one client has at a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientStats {
    /// The session's number.
    pub session: u64,
    /// What the client calls itself.
    pub label: String,
    /// Its process, 0 where that is of a namespace that cannot be seen.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// The endpoint that it reads from.
    pub endpoint: String,
    /// Its queues.
    pub queues: usize,
    /// GETs taken from its queues and not ended.
    pub outstanding: u64,
    /// Bytes leased to it.
    pub leased: u64,
    /// Bytes of its slabs.
    pub mapped: u64,
}

impl Drop for Service {
    fn drop(&mut self) {
        self.host.stop.cancel();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        // Nobody else's: the lock is still held.
        let _ = std::fs::remove_file(&self.socket);
    }
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service")
            .field("socket", &self.socket)
            .finish_non_exhaustive()
    }
}

/// Where a service is looked for: `XDG_RUNTIME_DIR/s3engine`, else `/run/s3engine`.
pub fn default_socket() -> PathBuf {
    let folder = match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(folder) if !folder.is_empty() => PathBuf::from(folder),
        _ => PathBuf::from("/run"),
    };
    folder.join("s3engine").join("s3engine.sock")
}
