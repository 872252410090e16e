//! One client of the host service: what it asks for over its socket, and what it holds.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use s3engine_pool::{ClientOptions, GroupOptions, Memory, PoolError, SlabId, SlotId};
use s3engine_ring::{Bell, Layout, SharedQueue, SocketBell};
use s3engine_s3::error::{Error, ErrorKind};
use s3engine_s3::list::ListQuery;
use s3engine_s3::object::ObjectInfo;
use tokio::net::UnixStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::{AbortHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use super::counted::{Full, Taken};
use super::files::{self, OF_QUEUE, OF_SLAB};
use super::peer::Peer;
use super::talk::{receive, send};
use super::watch::{died, hear_bell};
use super::{Access, ClientStats, Host};
use crate::control::{
    Answer, Ask, ErrorRecord, Failure, Frames, Greeting, Hello, LARGEST_ASKED, Leased, Request,
    Said, Slab, VERSIONS, Welcome, encode,
};
use crate::engine::{self, Engine, Inner};
use crate::link::{Leases, Link};
use crate::list;
use crate::open::Object;
use crate::served::{ENDING, ServedQueue};
use crate::tenant::Tenant;
use crate::under_way::Progress;

/// A client that says nothing of itself for this long is sent away.
const TO_SAY_HELLO: Duration = Duration::from_secs(10);

/// A refusal that is not read by then is not said.
const TO_HEAR_NO: Duration = Duration::from_secs(1);

/// Asks of one session under way or not yet read as answered. Others wait.
const MOST_ASKS: usize = 16;

/// Asks that may wait. Who has more reads no answers, or asks without end.
const MOST_WAITING: usize = 4096;

/// Objects that one session may have open.
const MOST_OBJECTS: usize = 65_536;

/// The longest label.
const LONGEST_LABEL: usize = 128;

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

    pub(super) fn under_way(&self) -> Vec<Arc<Progress>> {
        self.tenant.under_way.all()
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
            Ok(hello) => Session::admit(&host, &socket, &peer, hello?),
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
    let facts = &session.facts;
    tracing::info!(session = facts.number, client = %facts.label, pid = facts.pid, %why, "a client has left");
}

/// An answer on its way, and the right to have asked, which comes back when it is sent.
struct Outgoing {
    frame: Vec<u8>,
    fds: Vec<OwnedFd>,
    _asked: Option<OwnedSemaphorePermit>,
}

type Answers = mpsc::UnboundedSender<Outgoing>;
type Answered = Result<(Said, Vec<OwnedFd>), Failure>;

struct Session {
    host: Arc<Host>,
    facts: Arc<Facts>,
    engine: Engine,
    inner: Arc<Inner>,
    socket: Rc<UnixStream>,
    /// Slabs whose memory the client was given.
    exported: RefCell<HashMap<SlabId, Option<Taken>>>,
    objects: RefCell<HashMap<u64, Object>>,
    running: RefCell<HashMap<u64, AbortHandle>>,
    /// Whether it will be told that memory may have come back.
    watching: Cell<bool>,
}

impl Session {
    /// Judges a client by what the kernel says of it and what it says itself.
    fn admit(
        host: &Arc<Host>,
        socket: &Rc<UnixStream>,
        peer: &Peer,
        hello: Hello,
    ) -> Result<(Rc<Session>, u32), String> {
        if host.draining.is_cancelled() {
            return Err(ENDING.to_owned());
        }
        let (oldest, newest) = hello.versions;
        let version = newest.min(VERSIONS.1);
        if version < VERSIONS.0 || version < oldest {
            return Err(format!(
                "the client speaks versions {oldest} to {newest}, the service {} to {}",
                VERSIONS.0, VERSIONS.1
            ));
        }
        let named =
            |(name, _): &&(String, Engine)| hello.endpoint.as_deref().is_none_or(|of| of == name);
        let Some((endpoint, engine)) = host.endpoints.iter().find(named) else {
            let names: Vec<_> = host.endpoints.iter().map(|(name, _)| &**name).collect();
            let wanted = hello.endpoint.unwrap_or_default();
            let wanted: String = wanted.chars().take(LONGEST_LABEL).collect();
            return Err(format!(
                "no endpoint {wanted:?}: there are {}",
                names.join(", ")
            ));
        };
        let inner = engine.embedded().ok_or("the service serves nothing")?;
        let label: String = hello
            .label
            .chars()
            .filter(|c| !c.is_control())
            .take(LONGEST_LABEL)
            .collect();
        let mut sessions = host.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let of_uid = sessions
            .values()
            .filter(|other| other.uid == peer.uid)
            .count();
        let caps = &host.caps;
        if sessions.len() >= caps.sessions || of_uid >= caps.sessions_per_uid {
            return Err(format!(
                "{} sessions, {of_uid} of uid {}: at most {} and {} are allowed",
                sessions.len(),
                peer.uid,
                caps.sessions,
                caps.sessions_per_uid
            ));
        }
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let core = &inner.core;
        let client = ClientOptions {
            name: label.as_str().into(),
            max_bytes: caps.bytes,
            group: caps.bytes_per_uid.map(|max_bytes| GroupOptions {
                number: peer.uid.into(),
                max_bytes,
            }),
            slab_bytes: Some(caps.slab_bytes),
            read_only: peer.uid != host.uid,
        };
        let pool = core
            .pool
            .for_client(client)
            .map_err(|error| error.to_string())?;
        let of_user = caps.of_user(peer.uid);
        let share = core
            .in_flight
            .share_in(of_user, NonZeroU32::MIN, caps.of_share());
        let access = host.access(endpoint, peer.uid, &peer.groups);
        let facts = Arc::new(Facts {
            number,
            pid: peer.pid,
            uid: peer.uid,
            groups: peer.groups.clone(),
            endpoint: endpoint.clone(),
            tenant: Tenant::new(Some(&label), pool, share, access),
            label,
            leases: Arc::default(),
            queues: AtomicUsize::new(0),
            asks: AtomicU64::new(0),
            ended: host.stop.child_token(),
        });
        sessions.insert(number, Arc::clone(&facts));
        metrics::gauge!("s3engine_service_sessions").set(sessions.len() as f64);
        drop(sessions);
        let session = Session {
            host: Arc::clone(host),
            facts,
            engine: engine.clone(),
            inner: Arc::clone(inner),
            socket: Rc::clone(socket),
            exported: RefCell::default(),
            objects: RefCell::default(),
            running: RefCell::default(),
            watching: Cell::new(false),
        };
        Ok((Rc::new(session), version))
    }

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
            let request: Request = match receive(&self.socket, &mut frames).await {
                Ok(request) => request,
                Err(why) => return why,
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
                        let answered = this.answer(ask, &answers).await;
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

    async fn answer(self: &Rc<Self>, ask: Ask, answers: &Answers) -> Answered {
        match ask {
            Ask::Queue { entries } => self.queue(entries),
            Ask::Lease { len, align } => self.lease(len, align, answers).await,
            Ask::Slab { slab } => {
                let (slab, fd) = self.export(SlabId(slab))?;
                Ok((Said::Slab(slab), vec![fd]))
            }
            Ask::Head { bucket, key } => {
                self.check("HEAD", &bucket, &key)?;
                let info = self.head(&bucket, &key).await.map_err(failed)?;
                Ok((Said::Info(info), Vec::new()))
            }
            Ask::Open { bucket, key } => {
                self.check("HEAD", &bucket, &key)?;
                if self.objects.borrow().len() >= MOST_OBJECTS {
                    let why = format!("{MOST_OBJECTS} objects are open already");
                    return Err(Failure::Refused(why));
                }
                let head = self.head(&bucket, &key);
                let share = self.facts.tenant.share.id();
                let opened = self
                    .inner
                    .core
                    .objects
                    .open(share, &bucket, &key, head)
                    .await;
                let object = opened.map_err(failed)?;
                let (id, info) = (object.id(), object.info().clone());
                self.objects.borrow_mut().insert(id, object);
                Ok((Said::Opened { object: id, info }, Vec::new()))
            }
            Ask::List { bucket, query } => self.list(&bucket, query).await,
            // Not answered, and not handed here.
            Ask::Free { .. } | Ask::Close { .. } | Ask::Forget { .. } | Ask::Ping => {
                Err(Failure::Refused("not a question".to_owned()))
            }
        }
    }

    /// Asks the rules before anything is asked of a server.
    fn check(&self, operation: &'static str, bucket: &str, key: &str) -> Result<(), Failure> {
        self.check_goes_on(operation, bucket, key)?;
        let checked = self.facts.tenant.check(bucket, key);
        checked.map_err(|kind| failed(self.error(operation, bucket, key, kind)))
    }

    fn check_goes_on(
        &self,
        operation: &'static str,
        bucket: &str,
        key: &str,
    ) -> Result<(), Failure> {
        match self.host.draining.is_cancelled() {
            true => {
                let kind = ErrorKind::Service(ENDING.to_owned());
                Err(failed(self.error(operation, bucket, key, kind)))
            }
            false => Ok(()),
        }
    }

    fn error(&self, operation: &'static str, bucket: &str, key: &str, kind: ErrorKind) -> Error {
        Error::new(operation, bucket, key, kind).with_endpoint(self.engine.endpoint().to_string())
    }

    /// At the client's own turn.
    async fn head(&self, bucket: &str, key: &str) -> Result<ObjectInfo, Error> {
        engine::head(&self.inner, &self.facts.tenant, bucket, key).await
    }

    async fn list(&self, bucket: &str, query: ListQuery) -> Answered {
        self.check_goes_on("LIST", bucket, "")?;
        if !self
            .facts
            .tenant
            .access
            .load()
            .allows_list(bucket, &query.prefix)
        {
            let kind = ErrorKind::Denied("no rule lets this user list it".to_owned());
            return Err(failed(self.error("LIST", bucket, "", kind)));
        }
        let page = list::page(&self.inner, &self.facts.tenant, bucket, query).await;
        Ok((Said::Page(page.map_err(failed)?), Vec::new()))
    }

    /// A slot, of a slab that is this client's alone.
    async fn lease(self: &Rc<Self>, len: u64, align: u64, answers: &Answers) -> Answered {
        let pool = self.facts.tenant.pool.clone();
        let changed = pool.changed();
        // Making a slab takes time.
        let leased =
            tokio::task::spawn_blocking(move || pool.try_alloc_aligned(len, Memory::Host, align));
        let buffer = match leased.await {
            Ok(Err(full @ PoolError::WouldBlock { .. })) => {
                self.tell_changed(changed, answers);
                return Err(full.into());
            }
            Ok(leased) => leased.map_err(Failure::from)?,
            Err(_) => return Err(Failure::Refused("no memory could be made".to_owned())),
        };
        let (slot, offset) = (buffer.slot(), buffer.offset());
        let known = self.exported.borrow().contains_key(&slot.slab);
        let (slab, fds) = match known {
            true => (None, Vec::new()),
            false => {
                let (slab, fd) = self.export(slot.slab)?;
                (Some(slab), vec![fd])
            }
        };
        self.facts.leases.put(buffer);
        let leased = Leased {
            slot: slot.into(),
            offset,
            slab,
        };
        Ok((Said::Leased(leased), fds))
    }

    /// Says, once for all who were told that there is no memory, that there may be some again.
    fn tell_changed(
        self: &Rc<Self>,
        changed: impl Future<Output = ()> + 'static,
        answers: &Answers,
    ) {
        if self.watching.replace(true) {
            return;
        }
        let (this, answers) = (Rc::downgrade(self), answers.clone());
        tokio::task::spawn_local(async move {
            changed.await;
            let Some(this) = this.upgrade() else { return };
            this.watching.set(false);
            tell(&answers, Said::Changed, None);
        });
    }

    /// A slab's memory, for the client to map.
    fn export(&self, id: SlabId) -> Result<(Slab, OwnedFd), Failure> {
        let pool = &self.facts.tenant.pool;
        let mut exported = self.exported.borrow_mut();
        let mut files = None;
        if !exported.contains_key(&id) {
            // Others may have been destroyed since.
            let there = pool.slabs();
            exported.retain(|id, _| there.contains(id));
            // One comes with the session.
            if exported.values().any(Option::is_none) {
                files = Some(self.files(OF_SLAB)?);
            }
        }
        let export = pool.export(id);
        let export = export.map_err(|error| Failure::Refused(error.to_string()))?;
        exported.entry(id).or_insert(files);
        let slab = Slab {
            slab: id.0,
            len: export.len,
            read_only: export.read_only,
        };
        Ok((slab, export.fd))
    }

    fn files(&self, count: u64) -> Result<Taken, Failure> {
        let taken = self.host.files.take(self.facts.uid, count);
        taken.map_err(|full| Failure::Refused(files::refused(full)))
    }

    fn queue(&self, entries: u32) -> Answered {
        let refused = |why: String| Failure::Refused(why);
        let caps = &self.host.caps;
        let queues = self.facts.queues.load(Ordering::Relaxed);
        if queues >= caps.queues || entries > caps.entries || self.host.draining.is_cancelled() {
            return Err(refused(format!(
                "{queues} queues, and one of {entries} entries wanted: at most {} of at most {} are allowed, and none while the service ends",
                caps.queues, caps.entries
            )));
        }
        // The first comes with the session.
        let files = match queues {
            0 => None,
            _ => Some(self.files(OF_QUEUE)?),
        };
        let layout = Layout::new(entries).map_err(|error| refused(error.to_string()))?;
        let (uid, needed) = (
            self.facts.uid,
            layout.client_bytes() + layout.service_bytes(),
        );
        let bytes = self.host.queue_bytes.take(uid, needed as u64);
        let bytes = bytes.map_err(|full| {
            let (whose, taken, most) = match full {
                Full::Of { taken, most } => ("all clients".to_owned(), taken, most),
                Full::OfUser { taken, most } => (format!("uid {uid}"), taken, most),
            };
            refused(format!(
                "a queue of {needed} bytes wanted: the queues of {whose} have {taken} of {most} bytes"
            ))
        })?;
        let shared = SharedQueue::create(layout).map_err(|error| refused(error.to_string()))?;
        let (near, far) = SocketBell::pair().map_err(|error| refused(error.to_string()))?;
        let near = Arc::new(near);
        let bell = Arc::clone(&near) as Arc<dyn Bell + Send + Sync>;
        let link = Link::new(Arc::clone(&self.facts.leases), bell);
        let closed = self.facts.ended.child_token();
        let served = ServedQueue::new(
            shared.service,
            entries,
            Arc::clone(&link),
            closed.clone(),
            self.host.draining.clone(),
            Arc::clone(&self.facts.tenant),
        );
        let facts = Arc::clone(&self.facts);
        facts.queues.fetch_add(1, Ordering::Relaxed);
        self.inner.core.workers.quick.spawn(Box::new(move |lane| {
            Box::pin(async move {
                tokio::select! {
                    served = served.run(lane) => if let Err(broken) = served {
                        facts.end(&broken.to_string());
                    },
                    () = hear_bell(near, link) => closed.cancel(),
                }
                facts.queues.fetch_sub(1, Ordering::Relaxed);
                drop((bytes, files));
            })
        }));
        let fds = vec![shared.client_region, shared.service_region, far.into_fd()];
        Ok((Said::Queue, fds))
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

fn failed(error: Error) -> Failure {
    Failure::Request(Box::new(ErrorRecord::of(&error)))
}
