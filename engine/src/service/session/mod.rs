//! One client of the host service: what it asks for over its socket, and what it holds.

mod admit;
mod adopt;
mod answers;

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use s3engine_pool::{SlabId, SlotId};
use tokio::net::UnixStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::{AbortHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use self::adopt::Brought;
use super::counted::{Full, Taken};
use super::files;
use super::peer::Peer;
use super::talk::{receive, send};
use super::watch::died;
use super::{Access, ClientStats, Host};
use crate::control::{
    Answer, Ask, Frames, Greeting, Hello, LARGEST_ASKED, Request, Said, Welcome, encode,
};
use crate::engine::{Engine, Inner};
use crate::link::Leases;
use crate::open::Object;
use crate::tenant::Tenant;
use crate::under_way::Outstanding;

/// A client that says nothing of itself for this long is sent away.
const TO_SAY_HELLO: Duration = Duration::from_secs(10);

/// A refusal that is not read by then is not said.
const TO_HEAR_NO: Duration = Duration::from_secs(1);

/// Asks of one session under way or not yet read as answered. Others wait.
const MOST_ASKS: usize = 16;

/// Asks that may wait. Who has more reads no answers, or asks without end.
const MOST_WAITING: usize = 4096;

/// What others may know of a session.
pub(crate) struct Facts {
    pub(super) number: u64,
    label: String,
    pid: i32,
    pub(super) uid: u32,
    pub(super) groups: Vec<u32>,
    pub(super) endpoint: String,
    tenant: Arc<Tenant>,
    leases: Arc<Leases>,
    queues: AtomicUsize,
    /// What it asked for and was not answered.
    asks: AtomicU64,
    ended: CancellationToken,
}

/// One ask, counted until it is dropped.
struct Counted(Arc<Facts>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.asks.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Facts {
    /// GETs of its queues, and asks, that have not ended.
    pub(super) fn outstanding(&self) -> u64 {
        let asks = self.asks.load(Ordering::Relaxed);
        self.tenant.outstanding.load(Ordering::Relaxed) + asks
    }

    fn ask(self: &Arc<Self>) -> Counted {
        self.asks.fetch_add(1, Ordering::Relaxed);
        Counted(Arc::clone(self))
    }

    pub(super) fn under_way(&self) -> Vec<Outstanding> {
        self.tenant.under_way.told(Some(self.number))
    }

    pub(super) fn set_access(&self, access: Access) {
        self.tenant.access.store(Arc::new(access));
    }

    pub(super) fn end(&self, why: &str) {
        tracing::warn!(session = self.number, client = %self.label, why, "a session is ended");
        self.ended.cancel();
    }

    pub(super) fn stats(&self) -> ClientStats {
        let memory = self.tenant.pool.client_stats().ok();
        ClientStats {
            session: self.number,
            label: self.label.clone(),
            pid: self.pid,
            uid: self.uid,
            endpoint: self.endpoint.clone(),
            queues: self.queues.load(Ordering::Relaxed),
            outstanding: self.outstanding(),
            leased: memory.as_ref().map_or(0, |memory| memory.leased),
            mapped: memory.as_ref().map_or(0, |memory| memory.mapped),
        }
    }
}

/// Serves one client, from its first word to its end. The files that it may keep open are taken as long.
pub(super) async fn run(
    host: Arc<Host>,
    socket: UnixStream,
    peer: Peer,
    files: Result<Taken, Full>,
) {
    let socket = Rc::new(socket);
    let mut frames = Frames::new(LARGEST_ASKED);
    let admitted = async {
        // Who may not attach at all does not keep others from it by saying nothing.
        if !host.admits(peer.uid, &peer.groups) {
            return Err(format!("uid {} may not attach", peer.uid));
        }
        if let Err(full) = files {
            return Err(files::refused(full));
        }
        let hello = receive::<Hello>(&socket, &mut frames);
        match tokio::time::timeout(TO_SAY_HELLO, hello).await {
            Ok(hello) => Session::admit(&host, &socket, &peer, hello?.0),
            Err(_) => Err("it did not say who it is".to_owned()),
        }
    };
    let admitted = tokio::select! {
        admitted = admitted => admitted,
        () = host.stop.cancelled() => return,
    };
    let (session, version) = match admitted {
        Ok(admitted) => admitted,
        Err(why) => {
            tracing::warn!(pid = peer.pid, uid = peer.uid, %why, "a client is refused");
            let refusal = encode(&Greeting::Refused(why), 0);
            // It may be gone, or read nothing.
            let _ = tokio::time::timeout(TO_HEAR_NO, send(&socket, &refusal, &[])).await;
            return;
        }
    };
    let why = session.serve(frames, version, peer.pidfd).await;
    session.why_it_left.replace(why);
}

/// An answer on its way, and the right to have asked, which comes back when it is sent.
struct Outgoing {
    frame: Vec<u8>,
    fds: Vec<OwnedFd>,
    _asked: Option<OwnedSemaphorePermit>,
}

type Answers = mpsc::UnboundedSender<Outgoing>;

struct Session {
    host: Arc<Host>,
    facts: Arc<Facts>,
    engine: Engine,
    inner: Arc<Inner>,
    socket: Rc<UnixStream>,
    /// Slabs whose memory the client was given, or has given.
    shared: RefCell<HashMap<SlabId, Option<Taken>>>,
    /// Those of them whose end it is told: of devices' memory, pinned, its own.
    watched: RefCell<HashSet<SlabId>>,
    /// Whether it is told which of them are destroyed.
    tells_gone: Cell<bool>,
    objects: RefCell<HashMap<u64, Object>>,
    running: RefCell<HashMap<u64, AbortHandle>>,
    /// Whether it will be told that memory may have come back.
    watching: Cell<bool>,
    why_it_left: RefCell<String>,
}

impl Session {
    /// Serves the client until it leaves, dies, breaks the rules, or is ended. Returns why.
    async fn serve(
        self: &Rc<Self>,
        frames: Frames,
        version: u32,
        pidfd: Option<OwnedFd>,
    ) -> String {
        let welcome = Greeting::Welcome(Welcome {
            version,
            session: self.facts.number,
            endpoint: self.engine.endpoint().to_string(),
            fabric: self
                .engine
                .fabric()
                .map(str::to_owned)
                .map_err(str::to_owned),
            max_bytes: self
                .facts
                .tenant
                .pool
                .client_stats()
                .map_or(0, |stats| stats.max_bytes),
            max_entries: self.host.caps.entries,
        });
        if let Err(error) = send(&self.socket, &encode(&welcome, 0), &[]).await {
            return error.to_string();
        }
        let (answers, outgoing) = mpsc::unbounded_channel();
        tokio::select! {
            why = self.hear(frames, answers) => why,
            why = self.speak(outgoing) => why,
            why = died(pidfd) => why,
            () = self.facts.ended.cancelled() => "the session was ended".to_owned(),
        }
    }

    /// Sends answers as they come.
    async fn speak(&self, mut outgoing: mpsc::UnboundedReceiver<Outgoing>) -> String {
        while let Some(answer) = outgoing.recv().await {
            if let Err(error) = send(&self.socket, &answer.frame, &answer.fds).await {
                return error.to_string();
            }
        }
        // Never so: whoever hears has a sender too.
        "nothing more to say".to_owned()
    }

    /// Takes what the client asks for.
    async fn hear(
        self: &Rc<Self>,
        mut frames: Frames,
        answers: mpsc::UnboundedSender<Outgoing>,
    ) -> String {
        let asks = Arc::new(Semaphore::new(MOST_ASKS));
        let pings = Arc::new(Semaphore::new(1));
        // Dropped with this future: what was asked for ends with the session.
        let mut tasks = JoinSet::new();
        loop {
            let (request, fds): (Request, _) = match receive(&self.socket, &mut frames).await {
                Ok(request) => request,
                Err(why) => return why,
            };
            let brought = match (&request.ask, fds.len()) {
                (Ask::Adopt { .. }, 0 | 1) => self.bring(fds),
                (_, 0) => Ok(Brought::default()),
                (_, more) => return format!("{more} descriptors came with what needs fewer"),
            };
            while let Some(ended) = tasks.try_join_next() {
                if ended.is_err_and(|error| error.is_panic()) {
                    return "a request of it could not be answered".to_owned();
                }
            }
            match request.ask {
                Ask::Free { slots } => self.free(slots.into_iter().map(SlotId::from)),
                Ask::Close { object } => drop(self.objects.borrow_mut().remove(&object)),
                Ask::Forget { request } => {
                    if let Some(task) = self.running.borrow_mut().remove(&request) {
                        task.abort();
                    }
                }
                Ask::Pinned { slab } => self.is_pinned(SlabId(slab), &answers),
                Ask::Ping => {
                    if let Ok(ping) = Arc::clone(&pings).try_acquire_owned() {
                        tell(&answers, Said::Alive, Some(ping));
                    }
                }
                ask if tasks.len() < MOST_WAITING => {
                    let (this, answers) = (Rc::clone(self), answers.clone());
                    let (id, asks) = (request.id, Arc::clone(&asks));
                    let counted = self.facts.ask();
                    let task = tasks.spawn_local(async move {
                        let _counted = counted;
                        // Closed with the session, which ends this too.
                        let Ok(asked) = asks.acquire_owned().await else {
                            return;
                        };
                        let answered = this.answer(ask, brought, &answers).await;
                        this.running.borrow_mut().remove(&id);
                        let (said, fds) = match answered {
                            Ok((said, fds)) => (Ok(said), fds),
                            Err(failure) => (Err(failure), Vec::new()),
                        };
                        let frame = encode(&Answer { id, said }, fds.len());
                        // Refused where the session ends.
                        let _asked = Some(asked);
                        let _ = answers.send(Outgoing { frame, fds, _asked });
                    });
                    self.running.borrow_mut().insert(id, task);
                }
                _ => return format!("{MOST_WAITING} asks of it wait already"),
            }
            // Many small messages do not hold up others on the thread.
            tokio::task::yield_now().await;
        }
    }

    fn free(&self, slots: impl Iterator<Item = SlotId>) {
        for slot in slots {
            drop(self.facts.leases.take(slot));
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let facts = &self.facts;
        facts.ended.cancel();
        facts.tenant.pool.retire();
        facts.leases.clear();
        let mut sessions = self
            .host
            .sessions
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        sessions.remove(&facts.number);
        metrics::gauge!("s3engine_service_sessions").set(sessions.len() as f64);
        drop(sessions);
        // Said last: whoever reads it finds the client nowhere any more.
        let why = self.why_it_left.take();
        tracing::info!(session = facts.number, client = %facts.label, pid = facts.pid, %why, "a client has left");
    }
}

/// Says what is no answer to one request.
fn tell(answers: &Answers, said: Said, permit: Option<OwnedSemaphorePermit>) {
    let frame = encode(
        &Answer {
            id: 0,
            said: Ok(said),
        },
        0,
    );
    // Refused where the session ends.
    let _ = answers.send(Outgoing {
        frame,
        fds: Vec::new(),
        _asked: permit,
    });
}
