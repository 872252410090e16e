//! The engine: what is shared by all queues, and its public face.

use std::fmt;
use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use s3engine_pool::{FabricId, Pool, Process};
use s3engine_ring::{self as ring, Layout, Regions};
use s3engine_s3::Policy;
use s3engine_s3::checksum::Mode;
use s3engine_s3::endpoint::Endpoint;
use s3engine_s3::error::{Error, ErrorKind};
use s3engine_s3::fabric::{Fabric, Rail};
use s3engine_s3::list::ListQuery;
use s3engine_s3::object::ObjectInfo;
use s3engine_s3::options::{NO_OPTIONS, RequestOptions};
use s3engine_s3::rdma::Queued;
use s3engine_s3::retry::{RetryBudget, RetryPolicy};
use s3engine_s3::upstream::Upstream;
use tokio::sync::oneshot;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::builder::{BuildError, EngineBuilder};
use crate::client::{ConnectError, ConnectOptions, Connected, Waiters};
use crate::completion::Completion;
use crate::driver::ChosenDriver;
use crate::far::{Far, Home};
use crate::get::{Get, Ticket};
use crate::in_flight::{Concurrency, InFlight};
use crate::link::{Here, Link, Wake};
use crate::list::{Listed, Lister};
use crate::open::{Object, Objects, Opener};
use crate::operation;
use crate::queue::{Queue, QueueOptions};
use crate::report::Warnings;
use crate::request;
use crate::route::FabricState;
use crate::served::ServedQueue;
use crate::service::default_socket;
use crate::sink::Sink;
use crate::tenant::Tenant;
use crate::under_way::Outstanding;
use crate::worker::{Post, Worker, Workers};

/// What every thread of an engine reads.
pub(crate) struct Core {
    pub(crate) process: Process,
    pub(crate) upstream: Arc<Upstream>,
    pub(crate) retry: RetryPolicy,
    pub(crate) retry_budget: RetryBudget,
    pub(crate) pool: Pool,
    pub(crate) fabric: Option<(Arc<dyn Fabric>, FabricId)>,
    pub(crate) fabric_state: FabricState,
    /// Why there is no fabric, for people.
    pub(crate) fabric_detail: String,
    pub(crate) policy: Policy,
    /// What is asked of checksums where a GET says nothing.
    pub(crate) checksum: Mode,
    pub(crate) deadline: Duration,
    pub(crate) rdma_threshold: u64,
    pub(crate) http_part: u64,
    pub(crate) rdma_part: u64,
    pub(crate) in_flight: InFlight,
    /// The program that has the engine.
    pub(crate) tenant: Arc<Tenant>,
    pub(crate) queued: Queued,
    pub(crate) warnings: Warnings,
    pub(crate) objects: Arc<Objects>,
    pub(crate) workers: Workers,
    pub(crate) driver: ChosenDriver,
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
    threads: Vec<Worker>,
}

impl Inner {
    pub(crate) fn start(core: Core, posts: Vec<Post>) -> io::Result<Self> {
        let mut inner = Self {
            core: Arc::new(core),
            threads: Vec::new(),
        };
        for post in posts {
            let core = Arc::clone(&inner.core);
            inner.threads.push(Worker::start(post, core)?);
        }
        Ok(inner)
    }
}

impl Home for Inner {
    fn attach(self: Arc<Self>, layout: Layout) -> Result<(ring::Client, Box<dyn Far>), ErrorKind> {
        let (client, service) = Regions::heap(layout)
            .ends(layout, 0)
            .map_err(|error| ErrorKind::Config(error.to_string()))?;
        let link = Link::new(Arc::default(), Arc::new(Wake::default()));
        let closed = self.core.stop.child_token();
        let entries = layout.entries();
        let tenant = Arc::clone(&self.core.tenant);
        let (of_link, ends) = (Arc::clone(&link), closed.clone());
        // Nothing here ends before its queues do.
        let never = CancellationToken::new();
        let served = ServedQueue::new(service, entries, of_link, ends, never, tenant);
        self.core.workers.quick.spawn(Box::new(move |lane| {
            Box::pin(async move {
                // Never so: this process keeps to the rules.
                if let Err(ended) = served.run(lane).await {
                    tracing::error!(%ended, "a queue was ended");
                }
            })
        }));
        Ok((client, Box::new(Here { link, closed })))
    }

    fn process(&self) -> Process {
        self.core.process
    }

    fn endpoint(&self) -> String {
        self.core.upstream.endpoint().to_string()
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
        self.core.in_flight.close();
        self.threads.drain(..).for_each(Worker::wait);
    }
}

/// Moves S3 objects into memory of its pool, and says of each how. Clones share one engine.
///
/// It runs in this process ([`builder`](Self::builder)), or it is a client of the host service
/// ([`connect`](Self::connect)), which owns memory and connections for every process of the host; what a program
/// does with it is the same.
///
/// When the last handle (engine, queue or outstanding future) goes, what is under way is cancelled and the
/// threads end. In a forked child its handles only return errors (reason `service-lost`): make another engine.
#[derive(Clone)]
pub struct Engine {
    kind: Kind,
}

#[derive(Clone)]
enum Kind {
    Embedded(Arc<Inner>),
    Connected(Arc<Connected>),
}

impl Engine {
    /// Starts describing an engine for the S3 service at `endpoint`.
    pub fn builder(endpoint: Endpoint) -> EngineBuilder {
        EngineBuilder::new(endpoint)
    }

    /// Attaches to the host service at a socket.
    pub fn connect(socket: &Path, options: ConnectOptions) -> Result<Engine, ConnectError> {
        Ok(Self {
            kind: Kind::Connected(Connected::new(socket, options)?),
        })
    }

    /// Attaches to the host service at its usual socket, or builds an engine of this process where none runs. A
    /// service that is there and refuses is an error.
    pub fn auto(
        options: ConnectOptions,
        embedded: impl FnOnce() -> Result<Engine, BuildError>,
    ) -> Result<Engine, AutoError> {
        match Self::connect(&default_socket(), options) {
            Ok(engine) => Ok(engine),
            Err(ConnectError::NoService { .. }) => Ok(embedded()?),
            Err(error) => Err(error.into()),
        }
    }

    pub(crate) fn from_inner(inner: Inner) -> Self {
        Self {
            kind: Kind::Embedded(Arc::new(inner)),
        }
    }

    /// The engine itself, where it is of this process.
    pub(crate) fn embedded(&self) -> Option<&Arc<Inner>> {
        match &self.kind {
            Kind::Embedded(inner) => Some(inner),
            Kind::Connected(_) => None,
        }
    }

    /// Whether it is a client of the host service.
    pub fn is_connected(&self) -> bool {
        matches!(self.kind, Kind::Connected(_))
    }

    /// A queue, for one thread to submit to and to take completions from.
    pub fn queue(&self, options: QueueOptions) -> Queue {
        let home: Arc<dyn Home> = match &self.kind {
            Kind::Embedded(inner) => Arc::clone(inner) as _,
            Kind::Connected(connected) => Arc::clone(connected) as _,
        };
        Queue::new(home, options)
    }

    /// The memory that transfers land in.
    pub fn pool(&self) -> &Pool {
        match &self.kind {
            Kind::Embedded(inner) => &inner.core.pool,
            Kind::Connected(connected) => &connected.pool,
        }
    }

    /// What brings bytes from plain sockets into memory. `None`: that is the host service's.
    pub fn driver(&self) -> Option<&ChosenDriver> {
        Some(&self.embedded()?.core.driver)
    }

    /// The endpoint.
    pub fn endpoint(&self) -> &Endpoint {
        match &self.kind {
            Kind::Embedded(inner) => inner.core.upstream.endpoint(),
            Kind::Connected(connected) => &connected.endpoint,
        }
    }

    /// The fabric's name, or why there is none.
    pub fn fabric(&self) -> Result<&str, &str> {
        match &self.kind {
            Kind::Embedded(inner) => match &inner.core.fabric {
                Some((fabric, _)) => Ok(fabric.name()),
                None => Err(&inner.core.fabric_detail),
            },
            Kind::Connected(connected) => match &connected.fabric {
                Ok(name) => Ok(name),
                Err(why) => Err(why),
            },
        }
    }

    /// The ports that the fabric uses, and what has gone by each. Empty where it has none, and where a host service has
    /// the fabric.
    pub fn rails(&self) -> Vec<Rail> {
        let core = self.embedded().map(|inner| &inner.core);
        let fabric = core.and_then(|core| core.fabric.as_ref());
        fabric.map_or_else(Vec::new, |(fabric, _)| fabric.rails())
    }

    /// How many requests at once the endpoint is given, as it was learned. `None` where it is not learned, and where
    /// the host service is who learns it.
    pub fn concurrency(&self) -> Option<Concurrency> {
        let inner = self.embedded()?;
        inner.core.in_flight.concurrency()
    }

    /// One GET. Runs on the engine's threads, whatever executor polls the future; dropping it cancels.
    pub fn get(&self, get: Get) -> GetFuture {
        let (receiver, of) = match &self.kind {
            Kind::Embedded(inner) => {
                let (sender, receiver) = oneshot::channel();
                let cancel = CancellationToken::new();
                let guard = cancel.clone().drop_guard();
                operation::submit(&inner.core, get, Sink::Waiter(sender), cancel);
                let engine = Arc::clone(inner);
                (
                    receiver,
                    Awaited::Here {
                        _cancel: guard,
                        engine,
                    },
                )
            }
            Kind::Connected(connected) => {
                let (number, receiver) = Waiters::get(connected, get);
                let connected = Arc::clone(connected);
                (receiver, Awaited::There { number, connected })
            }
        };
        GetFuture { receiver, of }
    }

    /// Binds an object to the version that it has now, for many GETs of it ([`Get::of`]). Opens of the same
    /// object at the same time share one HEAD.
    pub async fn open(&self, bucket: &str, key: &str) -> Result<Object, Error> {
        self.open_with(bucket, key, RequestOptions::default()).await
    }

    /// The same with options, which GETs of the object then have too.
    pub async fn open_with(
        &self,
        bucket: &str,
        key: &str,
        options: impl Into<Arc<RequestOptions>>,
    ) -> Result<Object, Error> {
        let options = some(options.into());
        match &self.kind {
            Kind::Embedded(inner) => {
                let tenant = &inner.core.tenant;
                let head = head(inner, tenant, (bucket, key), options.clone());
                let objects = &inner.core.objects;
                let share = tenant.share.id();
                objects.open(share, (bucket, key), options, head).await
            }
            Kind::Connected(connected) => connected.open(bucket, key, options).await,
        }
    }

    /// The names in a bucket that `query` asks for, page by page.
    pub fn list(&self, bucket: &str, query: ListQuery) -> Lister {
        self.list_with(bucket, query, RequestOptions::default())
    }

    /// The same with options, of which a version and a key mean nothing to a bucket.
    pub fn list_with(
        &self,
        bucket: &str,
        query: ListQuery,
        options: impl Into<Arc<RequestOptions>>,
    ) -> Lister {
        let of = match &self.kind {
            Kind::Embedded(inner) => Listed::Here(Arc::clone(inner)),
            Kind::Connected(connected) => Listed::There(Arc::clone(connected)),
        };
        Lister::new(of, bucket, query, some(options.into()))
    }

    /// What of this program's requests has not ended, and what each waits for: the oldest, of several hundred at most.
    /// The parts of a large GET are told beside it. A client of the host service asks that one.
    pub async fn outstanding(&self) -> Result<Vec<Outstanding>, Error> {
        match &self.kind {
            Kind::Embedded(inner) => Ok(inner.core.tenant.under_way.told(None)),
            Kind::Connected(connected) => connected.outstanding().await,
        }
    }

    /// What the server says about an object, without its bytes. Tried again as GETs are; dropping the future
    /// cancels.
    pub async fn head(&self, bucket: &str, key: &str) -> Result<ObjectInfo, Error> {
        self.head_with(bucket, key, RequestOptions::default()).await
    }

    /// The same with options.
    pub async fn head_with(
        &self,
        bucket: &str,
        key: &str,
        options: impl Into<Arc<RequestOptions>>,
    ) -> Result<ObjectInfo, Error> {
        let options = some(options.into());
        match &self.kind {
            Kind::Embedded(inner) => head(inner, &inner.core.tenant, (bucket, key), options).await,
            Kind::Connected(connected) => connected.head(bucket, key, options).await,
        }
    }
}

/// Options, where there are any.
fn some(options: Arc<RequestOptions>) -> Option<Arc<RequestOptions>> {
    (!options.is_none()).then_some(options)
}

/// On behalf of `tenant`, as its GETs are.
pub(crate) async fn head(
    inner: &Inner,
    tenant: &Tenant,
    (bucket, key): (&str, &str),
    options: Option<Arc<RequestOptions>>,
) -> Result<ObjectInfo, Error> {
    let (of, named, share) = (bucket.to_owned(), key.to_owned(), tenant.share.clone());
    let asked = (bucket, key);
    let head = request::ask(&inner.core, tenant, "HEAD", asked, move |lane, progress| {
        Box::pin(async move {
            let checksum = lane.core.checksum;
            let options = options.as_deref().unwrap_or(&NO_OPTIONS);
            let named = (&*of, &*named);
            request::head(&lane, &share, &progress, named, checksum, options).await
        })
    });
    head.await
}

/// Why there is neither a client nor an engine.
#[derive(Debug, thiserror::Error)]
pub enum AutoError {
    /// A host service runs, and this process cannot attach.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// None runs, and no engine could be built.
    #[error(transparent)]
    Build(#[from] BuildError),
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("endpoint", &self.endpoint().to_string())
            .field("fabric", &self.fabric())
            .field("connected", &self.is_connected())
            .finish_non_exhaustive()
    }
}

/// The completion of one GET, to be awaited.
pub struct GetFuture {
    receiver: oneshot::Receiver<Completion>,
    of: Awaited,
}

/// Where the GET runs. Keeps that alive.
enum Awaited {
    Here {
        _cancel: DropGuard,
        engine: Arc<Inner>,
    },
    There {
        number: u64,
        connected: Arc<Connected>,
    },
}

impl Awaited {
    fn home(&self) -> &dyn Home {
        match self {
            Awaited::Here { engine, .. } => &**engine,
            Awaited::There { connected, .. } => &**connected,
        }
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        if let Awaited::There { number, connected } = self
            && connected.process().is_this()
        {
            connected.waiters.cancel(*number);
        }
    }
}

impl Future for GetFuture {
    type Output = Completion;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Completion> {
        let this = self.get_mut();
        let home = this.of.home();
        if !home.process().is_this() {
            return Poll::Ready(lost(home));
        }
        // Every GET sends its completion before its sender goes (see `report::Report`).
        Pin::new(&mut this.receiver)
            .poll(context)
            .map(|sent| sent.unwrap_or_else(|_| lost(home)))
    }
}

/// What stands in for a completion that will not come: its thread took it along, or is the parent's.
fn lost(home: &dyn Home) -> Completion {
    let error = Error::new("GET", "", "", home.why_lost()).with_endpoint(home.endpoint());
    Completion::failed(Ticket(0), 0, error, None)
}
