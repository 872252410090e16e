//! The engine: what is shared by all queues, and its public face.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::Duration;

use s3engine_pool::{FabricId, Pool, Process};
use s3engine_ring::{self as ring, Layout, Regions};
use s3engine_s3::Policy;
use s3engine_s3::credentials::Credentials;
use s3engine_s3::endpoint::Endpoint;
use s3engine_s3::error::{Error, ErrorKind};
use s3engine_s3::fabric::Fabric;
use s3engine_s3::list::ListQuery;
use s3engine_s3::object::ObjectInfo;
use s3engine_s3::rdma::Queued;
use s3engine_s3::retry::RetryPolicy;
use s3engine_s3::timeouts::Timeouts;
use tokio::sync::{Mutex, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::builder::EngineBuilder;
use crate::completion::Completion;
use crate::far::{Far, Home};
use crate::get::{Get, Ticket};
use crate::in_flight::InFlight;
use crate::link::{Here, Link};
use crate::list::Lister;
use crate::open::{Object, Objects};
use crate::operation;
use crate::queue::{Queue, QueueOptions};
use crate::report::Warnings;
use crate::request;
use crate::route::FabricState;
use crate::served::ServedQueue;
use crate::sink::Sink;
use crate::worker::{self, Orders, Workers};

/// What every thread of an engine reads.
pub(crate) struct Core {
    pub(crate) process: Process,
    pub(crate) endpoint: Arc<Endpoint>,
    pub(crate) credentials: Arc<Credentials>,
    pub(crate) timeouts: Timeouts,
    pub(crate) retry: RetryPolicy,
    pub(crate) pool: Pool,
    pub(crate) fabric: Option<(Arc<dyn Fabric>, FabricId)>,
    pub(crate) fabric_state: FabricState,
    /// Why there is no fabric, for people.
    pub(crate) fabric_detail: String,
    pub(crate) policy: Policy,
    pub(crate) deadline: Duration,
    pub(crate) rdma_threshold: u64,
    pub(crate) http_part: u64,
    pub(crate) rdma_part: u64,
    pub(crate) in_flight: InFlight,
    /// Held by the GET whose turn it is to be given memory.
    pub(crate) leasing: Mutex<()>,
    pub(crate) queued: Queued,
    pub(crate) warnings: Warnings,
    pub(crate) objects: Arc<Objects>,
    pub(crate) workers: Workers,
    pub(crate) stop: CancellationToken,
}

impl Core {
    /// Why a completion will not come: its thread took it along, or is the parent's.
    pub(crate) fn lost(&self) -> ErrorKind {
        match self.process.is_this() {
            true => ErrorKind::Cancelled,
            false => operation::forked(),
        }
    }
}

/// The engine as its handles hold it: ends the threads when the last one goes.
pub(crate) struct Inner {
    pub(crate) core: Arc<Core>,
    threads: Vec<JoinHandle<()>>,
}

impl Inner {
    pub(crate) fn start(core: Core, orders: Vec<Orders>) -> io::Result<Self> {
        let mut inner = Self {
            core: Arc::new(core),
            threads: Vec::new(),
        };
        for (nth, orders) in orders.into_iter().enumerate() {
            inner
                .threads
                .push(worker::start(nth, Arc::clone(&inner.core), orders)?);
        }
        Ok(inner)
    }
}

impl Home for Inner {
    fn attach(self: Arc<Self>, layout: Layout) -> Result<(ring::Client, Box<dyn Far>), ErrorKind> {
        let (client, service) = Regions::heap(layout)
            .ends(layout, 0)
            .map_err(|error| ErrorKind::Config(error.to_string()))?;
        let link = Arc::new(Link::default());
        let closed = self.core.stop.child_token();
        let entries = layout.entries();
        let served = ServedQueue::new(service, entries, Arc::clone(&link), closed.clone());
        self.core
            .workers
            .spawn(Box::new(move |lane| Box::pin(served.run(lane))));
        Ok((client, Box::new(Here { link, closed })))
    }

    fn process(&self) -> Process {
        self.core.process
    }

    fn endpoint(&self) -> String {
        self.core.endpoint.to_string()
    }

    fn why_lost(&self) -> ErrorKind {
        self.core.lost()
    }

    fn objects(&self) -> Option<u64> {
        Some(self.core.objects.number())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.core.process.is_this() {
            // Threads, sockets and registrations are those of the process that forked this one.
            std::mem::forget(std::mem::take(&mut self.threads));
            std::mem::forget(Arc::clone(&self.core));
            return;
        }
        self.core.stop.cancel();
        let me = std::thread::current().id();
        for thread in self.threads.drain(..) {
            // A completion's last handle may be dropped on a thread of the engine itself.
            if thread.thread().id() != me {
                let _ = thread.join();
            }
        }
    }
}

/// Moves S3 objects into memory of its pool, and says of each how. Clones share one engine.
///
/// When the last handle (engine, queue or outstanding future) goes, what is under way is cancelled and the
/// threads end. In a forked child its handles only return errors (reason `service-lost`): make another engine.
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

impl Engine {
    /// Starts describing an engine for the S3 service at `endpoint`.
    pub fn builder(endpoint: Endpoint) -> EngineBuilder {
        EngineBuilder::new(endpoint)
    }

    pub(crate) fn from_inner(inner: Inner) -> Self {
        Self {
            inner: Arc::new(inner),
        }
    }

    /// A queue, for one thread to submit to and to take completions from.
    pub fn queue(&self, options: QueueOptions) -> Queue {
        Queue::new(Arc::clone(&self.inner) as Arc<dyn Home>, options)
    }

    /// The memory that transfers land in.
    pub fn pool(&self) -> &Pool {
        &self.inner.core.pool
    }

    /// The endpoint.
    pub fn endpoint(&self) -> &Endpoint {
        &self.inner.core.endpoint
    }

    /// The fabric's name, or why there is none.
    pub fn fabric(&self) -> Result<&'static str, &str> {
        match &self.inner.core.fabric {
            Some((fabric, _)) => Ok(fabric.name()),
            None => Err(&self.inner.core.fabric_detail),
        }
    }

    /// One GET. Runs on the engine's threads, whatever executor polls the future; dropping it cancels.
    pub fn get(&self, get: Get) -> GetFuture {
        let (sender, receiver) = oneshot::channel();
        let cancel = CancellationToken::new();
        let guard = cancel.clone().drop_guard();
        operation::submit(&self.inner.core, get, Sink::Waiter(sender), cancel);
        GetFuture {
            receiver,
            _cancel: guard,
            engine: Arc::clone(&self.inner),
        }
    }

    /// Binds an object to the version that it has now, for many GETs of it ([`Get::of`]). Opens of the same
    /// object at the same time share one HEAD.
    pub async fn open(&self, bucket: &str, key: &str) -> Result<Object, Error> {
        let objects = &self.inner.core.objects;
        objects.open(bucket, key, self.head(bucket, key)).await
    }

    /// The names in a bucket that `query` asks for, page by page.
    pub fn list(&self, bucket: &str, query: ListQuery) -> Lister {
        Lister::new(Arc::clone(&self.inner), bucket, query)
    }

    /// What the server says about an object, without its bytes. Tried again as GETs are; dropping the future
    /// cancels.
    pub async fn head(&self, bucket: &str, key: &str) -> Result<ObjectInfo, Error> {
        let (of, named) = (bucket.to_owned(), key.to_owned());
        let head = request::ask(
            &self.inner.core,
            "HEAD",
            (bucket, key),
            move |lane, last| {
                Box::pin(async move { request::head(&lane, &last, &of, &named).await })
            },
        );
        head.await
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("endpoint", &self.inner.core.endpoint.to_string())
            .field("fabric", &self.fabric())
            .finish_non_exhaustive()
    }
}

/// The completion of one GET, to be awaited.
pub struct GetFuture {
    receiver: oneshot::Receiver<Completion>,
    _cancel: DropGuard,
    /// Keeps the threads alive.
    engine: Arc<Inner>,
}

impl Future for GetFuture {
    type Output = Completion;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Completion> {
        let this = self.get_mut();
        let core = &this.engine.core;
        if !core.process.is_this() {
            return Poll::Ready(operation::lost(Ticket(0), core));
        }
        // Every GET sends its completion before its sender goes (see `report::Report`).
        Pin::new(&mut this.receiver)
            .poll(context)
            .map(|sent| sent.unwrap_or_else(|_| operation::lost(Ticket(0), core)))
    }
}
