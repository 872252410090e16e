//! What a client asks for, answered.

use std::future::Future;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use s3engine_pool::cuda::Uuid;
use s3engine_pool::{Memory, Pool, PoolError, Share, SlabId};
use s3engine_ring::{Bell, EventBell, Layout, SharedQueue, SocketBell};
use s3engine_s3::error::{Error, ErrorKind};
use s3engine_s3::list::ListQuery;
use s3engine_s3::object::ObjectInfo;
use s3engine_s3::options::RequestOptions;

use super::adopt::{self, Brought};
use super::{Answers, Session, tell};
use crate::control::{Ask, ErrorRecord, Failure, IpcHandle, Kind, Leased, Said, Slab};
use crate::engine;
use crate::link::Link;
use crate::list;
use crate::served::{ENDING, ServedQueue};
use crate::service::counted::{Full, Taken};
use crate::service::files::{self, OF_QUEUE, OF_SLAB};
use crate::service::watch::hear_bell;

/// Objects that one session may have open.
const MOST_OBJECTS: usize = 65_536;

/// Between two looks for slabs that were destroyed: one that a client maps for longer is not free for longer.
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

pub(super) type Answered = Result<(Said, Vec<OwnedFd>), Failure>;

impl Session {
    pub(super) async fn answer(
        self: &Rc<Self>,
        ask: Ask,
        brought: Result<Brought, Failure>,
        answers: &Answers,
    ) -> Answered {
        match ask {
            Ask::Queue { entries } => self.queue(entries),
            Ask::Lease { memory, len, align } => {
                self.lease(memory.into(), len, align, answers).await
            }
            Ask::Slab { slab } => {
                let (slab, fd) = self.export(SlabId(slab), answers)?;
                Ok((Said::Slab(slab), fd.into_iter().collect()))
            }
            Ask::Adopt {
                device,
                whole,
                handle,
                at,
                len,
            } => {
                let Brought { fd, files } = brought?;
                let share = adopt::share(handle, fd)?;
                let adopt =
                    move |pool: &Pool| pool.adopt_shared(Uuid(device), share, whole, (at, len));
                self.adopt(adopt, files, answers).await
            }
            Ask::AdoptAgain { slab, at, len } => {
                let adopt = move |pool: &Pool| pool.adopt_again(SlabId(slab), (at, len));
                self.adopt(adopt, None, answers).await
            }
            Ask::Disown { slab } => self.disown(SlabId(slab)).await,
            Ask::Head {
                bucket,
                key,
                options,
            } => {
                self.check("HEAD", (&bucket, &key), options.as_deref())?;
                let options = options.map(Arc::from);
                let info = self.head(&bucket, &key, options).await.map_err(failed)?;
                Ok((Said::Info(info), Vec::new()))
            }
            Ask::Open {
                bucket,
                key,
                options,
            } => {
                self.check("HEAD", (&bucket, &key), options.as_deref())?;
                let options: Option<Arc<_>> = options.map(Arc::from);
                if self.objects.borrow().len() >= MOST_OBJECTS {
                    let why = format!("{MOST_OBJECTS} objects are open already");
                    return Err(Failure::Refused(why));
                }
                let head = self.head(&bucket, &key, options.clone());
                let share = self.facts.tenant.share.id();
                let opened = self
                    .inner
                    .core
                    .objects
                    .open(share, (&bucket, &key), options, head)
                    .await;
                let object = opened.map_err(failed)?;
                let (id, info) = (object.id(), object.info().clone());
                self.objects.borrow_mut().insert(id, object);
                Ok((Said::Opened { object: id, info }, Vec::new()))
            }
            Ask::List {
                bucket,
                query,
                options,
            } => self.list(&bucket, query, options.map(Arc::from)).await,
            Ask::Outstanding => Ok((Said::Outstanding(self.facts.under_way()), Vec::new())),
            // Not answered, and not handed here.
            Ask::Free { .. }
            | Ask::Close { .. }
            | Ask::Forget { .. }
            | Ask::Pinned { .. }
            | Ask::Ping => Err(Failure::Refused("not a question".to_owned())),
        }
    }

    /// Asks the rules before anything is asked of a server.
    fn check(
        &self,
        operation: &'static str,
        (bucket, key): (&str, &str),
        options: Option<&RequestOptions>,
    ) -> Result<(), Failure> {
        self.check_goes_on(operation, bucket, key)?;
        let tenant = &self.facts.tenant;
        let checked = tenant
            .check(bucket, key)
            .and_then(|()| tenant.check_options(options));
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
    async fn head(
        &self,
        bucket: &str,
        key: &str,
        options: Option<Arc<RequestOptions>>,
    ) -> Result<ObjectInfo, Error> {
        let tenant = &self.facts.tenant;
        engine::head(&self.inner, tenant, (bucket, key), options).await
    }

    async fn list(
        &self,
        bucket: &str,
        query: ListQuery,
        options: Option<Arc<RequestOptions>>,
    ) -> Answered {
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
        let tenant = &self.facts.tenant;
        let checked = tenant.check_options(options.as_deref());
        checked.map_err(|kind| failed(self.error("LIST", bucket, "", kind)))?;
        let page = list::page(&self.inner, tenant, bucket, query, options).await;
        Ok((Said::Page(page.map_err(failed)?), Vec::new()))
    }

    /// A slot, of a slab that is this client's alone.
    async fn lease(
        self: &Rc<Self>,
        memory: Memory,
        len: u64,
        align: u64,
        answers: &Answers,
    ) -> Answered {
        let pool = self.facts.tenant.pool.clone();
        let changed = pool.changed();
        // Making a slab takes time.
        let leased =
            tokio::task::spawn_blocking(move || pool.try_alloc_aligned(len, memory, align));
        let buffer = match leased.await {
            Ok(Err(full @ PoolError::WouldBlock { .. })) => {
                self.tell_changed(changed, answers);
                return Err(full.into());
            }
            Ok(leased) => leased.map_err(Failure::from)?,
            Err(_) => return Err(Failure::Refused("no memory could be made".to_owned())),
        };
        let (slot, offset) = (buffer.slot(), buffer.offset());
        let known = self.shared.borrow().contains_key(&slot.slab);
        let (slab, fds) = match known {
            true => (None, Vec::new()),
            false => {
                let (slab, fd) = self.export(slot.slab, answers)?;
                (Some(slab), fd.into_iter().collect())
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

    /// The client has pinned a slab that it was given.
    pub(super) fn is_pinned(self: &Rc<Self>, slab: SlabId, answers: &Answers) {
        if self.shared.borrow().contains_key(&slab) {
            self.watch(slab, answers);
        }
    }

    /// The client is told when that slab is destroyed: as long as it has it, its memory is not free.
    pub(super) fn watch(self: &Rc<Self>, slab: SlabId, answers: &Answers) {
        self.watched.borrow_mut().insert(slab);
        self.tell_gone(answers);
    }

    /// Tells the client, as long as the session goes on, which watched slabs were destroyed.
    fn tell_gone(self: &Rc<Self>, answers: &Answers) {
        if self.tells_gone.replace(true) {
            return;
        }
        let (this, answers) = (Rc::downgrade(self), answers.clone());
        let (pool, ended) = (self.facts.tenant.pool.clone(), self.facts.ended.clone());
        tokio::task::spawn_local(async move {
            loop {
                let changed = pool.changed();
                let Some(session) = this.upgrade() else {
                    return;
                };
                let gone = session.gone();
                if !gone.is_empty() {
                    tell(&answers, Said::Gone { slabs: gone }, None);
                }
                drop(session);
                tokio::select! {
                    () = changed => {}
                    () = ended.cancelled() => return,
                }
                // Much changes that is nothing to this.
                tokio::time::sleep(BETWEEN_LOOKS).await;
            }
        });
    }

    /// Watched slabs that were destroyed since. Each is told once.
    fn gone(&self) -> Vec<u32> {
        let there = self.facts.tenant.pool.slabs();
        let mut watched = self.watched.borrow_mut();
        let gone = watched.extract_if(|id| !there.contains(id));
        gone.map(|id| id.0).collect()
    }

    /// A slab's memory, for the client to map: by the descriptor, or by the handle where there is none.
    fn export(
        self: &Rc<Self>,
        id: SlabId,
        answers: &Answers,
    ) -> Result<(Slab, Option<OwnedFd>), Failure> {
        let pool = &self.facts.tenant.pool;
        let mut files = None;
        if !self.shared.borrow().contains_key(&id) {
            self.let_go();
            // One comes with the session.
            if self.shared.borrow().values().any(Option::is_none) {
                files = Some(self.files(OF_SLAB)?);
            }
        }
        let export = pool.export(id)?;
        let memory = Kind::of(export.memory)
            .ok_or_else(|| Failure::Refused(format!("no client maps {} memory", export.memory)))?;
        self.shared.borrow_mut().entry(id).or_insert(files);
        if memory != Kind::Host {
            self.watch(id, answers);
        }
        let (handle, fd) = match export.share {
            Share::Descriptor(fd) => (None, Some(fd)),
            Share::Ipc(handle) => (Some(IpcHandle(handle)), None),
        };
        let slab = Slab {
            slab: id.0,
            len: export.len,
            read_only: export.read_only,
            memory,
            handle,
        };
        Ok((slab, fd))
    }

    /// Gives back the files of slabs that were destroyed since.
    pub(super) fn let_go(&self) {
        let there = self.facts.tenant.pool.slabs();
        let mut shared = self.shared.borrow_mut();
        shared.retain(|id, _| there.contains(id));
    }

    pub(super) fn files(&self, count: u64) -> Result<Taken, Failure> {
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
        let rung = EventBell::new().map_err(|error| refused(error.to_string()))?;
        let to_ring = rung.share().map_err(|error| refused(error.to_string()))?;
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
                    () = hear_bell(rung, near, link) => closed.cancel(),
                }
                facts.queues.fetch_sub(1, Ordering::Relaxed);
                drop((bytes, files));
            })
        }));
        let regions = [shared.client_region, shared.service_region];
        let fds = regions
            .into_iter()
            .chain([far.into_fd(), to_ring])
            .collect();
        Ok((Said::Queue, fds))
    }
}

fn failed(error: Error) -> Failure {
    Failure::Request(Box::new(ErrorRecord::of(&error)))
}
