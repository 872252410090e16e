//! Worker threads: each one runtime, one set of connections, many GETs.
//!
//! There are two crews. The quick one serves queues and makes requests of few bytes, the other moves the parts of
//! large GETs: what takes its thread microseconds never waits behind what takes it milliseconds, and where
//! processors are short the kernel shares them between the two.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

use s3engine_s3::http::Client;
use s3engine_s3::rdma::RdmaTransport;
use s3engine_s3::transport::HttpTransport;
use tokio::sync::mpsc;
use tokio::task::LocalSet;
use tokio_util::task::TaskTracker;

use crate::engine::Core;

/// What a thread's GETs share: transports with the thread's own connections.
pub(crate) struct Lane {
    pub(crate) core: Arc<Core>,
    /// What the thread does now.
    pub(crate) tasks: TaskTracker,
    pub(crate) client: Client,
    pub(crate) http: HttpTransport,
    /// By the fabric; taking bytes from an answer's body, or not.
    pub(crate) rdma: Option<(RdmaTransport, RdmaTransport)>,
}

impl Lane {
    /// A thread with this many tasks more than another leaves new ones to that.
    const LEAD: usize = 8;

    fn new(core: Arc<Core>, tasks: TaskTracker) -> Self {
        let client = Client::new(
            Arc::clone(&core.endpoint),
            Arc::clone(&core.credentials),
            core.timeouts,
        );
        let rdma = core.fabric.as_ref().map(|(fabric, id)| {
            let (pool, queued) = (core.pool.clone(), core.queued.clone());
            let lenient = RdmaTransport::new(
                client.clone(),
                Arc::clone(fabric),
                *id,
                pool,
                core.timeouts,
                queued,
            );
            (lenient.clone(), lenient.strict())
        });
        Self {
            core,
            tasks,
            http: HttpTransport::new(client.clone()),
            client,
            rdma,
        }
    }

    /// Whether a thread of the quick crew has not much more to do than the one whose turn it is.
    pub(crate) fn has_time(&self) -> bool {
        let (_, turn) = self.core.workers.quick.turn();
        self.tasks.len() <= turn.len() + Self::LEAD
    }
}

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// Work for a thread: makes its task there, since tasks never leave their thread.
pub(crate) type Job = Box<dyn FnOnce(Rc<Lane>) -> Task + Send>;

/// What leads to a thread, and what it does.
type Desk = (mpsc::UnboundedSender<Job>, TaskTracker);

/// What a thread is given to work on.
pub(crate) type Orders = (mpsc::UnboundedReceiver<Job>, TaskTracker);

/// Threads that run jobs, in rotation.
pub(crate) struct Crew {
    desks: Vec<Desk>,
    next: AtomicUsize,
}

impl Crew {
    fn new(count: usize) -> (Self, Vec<Orders>) {
        let both = |_| {
            let ((sender, receiver), tasks) = (mpsc::unbounded_channel(), TaskTracker::new());
            ((sender, tasks.clone()), (receiver, tasks))
        };
        let (desks, orders) = (0..count.max(1)).map(both).unzip();
        let next = AtomicUsize::new(0);
        (Self { desks, next }, orders)
    }

    /// The thread whose turn it is.
    fn turn(&self) -> &Desk {
        &self.desks[self.next.load(Ordering::Relaxed) % self.desks.len()]
    }

    /// Runs a job on the next thread. A job that the engine has no thread for any more is dropped, and
    /// what it holds reports so.
    pub(crate) fn spawn(&self, job: Job) {
        let nth = self.next.fetch_add(1, Ordering::Relaxed) % self.desks.len();
        let _ = self.desks[nth].0.send(job);
    }
}

/// All threads of an engine.
pub(crate) struct Workers {
    /// For queues, and requests of few bytes.
    pub(crate) quick: Crew,
    /// For parts of large GETs.
    pub(crate) bulk: Crew,
}

impl Workers {
    /// Makes two crews of `count` threads, and what their threads start with, by name.
    pub(crate) fn new(count: usize) -> (Self, Vec<(String, Orders)>) {
        let ((quick, of_quick), (bulk, of_bulk)) = (Crew::new(count), Crew::new(count));
        let named = |crew: &'static str, orders: Vec<Orders>| {
            let name = move |(nth, orders)| (format!("s3engine-{crew}{nth}"), orders);
            orders.into_iter().enumerate().map(name)
        };
        let orders = named("q", of_quick).chain(named("", of_bulk)).collect();
        (Self { quick, bulk }, orders)
    }
}

/// Starts one thread. It ends when the engine stops and its tasks have ended.
pub(crate) fn start(name: String, core: Arc<Core>, orders: Orders) -> io::Result<JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    thread::Builder::new().name(name).spawn(move || {
        let local = LocalSet::new();
        local.block_on(&runtime, run(core, orders));
        // Blocking calls (making a slab) are left to end by themselves.
        drop(local);
        runtime.shutdown_background();
    })
}

async fn run(core: Arc<Core>, (mut jobs, tasks): Orders) {
    let stop = core.stop.clone();
    let lane = Rc::new(Lane::new(core, tasks));
    loop {
        tokio::select! {
            biased;
            job = jobs.recv() => match job {
                Some(job) => drop(lane.tasks.spawn_local(job(Rc::clone(&lane)))),
                None => break,
            },
            () = stop.cancelled() => break,
        }
    }
    jobs.close();
    while let Ok(job) = jobs.try_recv() {
        lane.tasks.spawn_local(job(Rc::clone(&lane)));
    }
    // Every task sees the stop signal and ends soon; each reports its GET as cancelled.
    lane.tasks.close();
    lane.tasks.wait().await;
}
