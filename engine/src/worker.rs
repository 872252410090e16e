//! Worker threads: each one runtime, one set of connections, many GETs.

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

    /// Whether the thread has not much more to do than the one whose turn it is.
    pub(crate) fn has_time(&self) -> bool {
        self.tasks.len() <= self.core.workers.turn().1.len() + Self::LEAD
    }
}

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// Work for a thread: makes its task there, since tasks never leave their thread.
pub(crate) type Job = Box<dyn FnOnce(Rc<Lane>) -> Task + Send>;

/// The threads that run jobs, in rotation.
pub(crate) struct Workers {
    /// What leads to each, and what it does.
    lanes: Vec<(mpsc::UnboundedSender<Job>, TaskTracker)>,
    next: AtomicUsize,
}

/// What a thread is given to work on.
pub(crate) type Orders = (mpsc::UnboundedReceiver<Job>, TaskTracker);

impl Workers {
    /// Makes the channels of `count` threads, and their receiving ends.
    pub(crate) fn new(count: usize) -> (Self, Vec<Orders>) {
        let both = |_| {
            let ((sender, receiver), tasks) = (mpsc::unbounded_channel(), TaskTracker::new());
            ((sender, tasks.clone()), (receiver, tasks))
        };
        let (lanes, orders) = (0..count.max(1)).map(both).unzip();
        let next = AtomicUsize::new(0);
        (Self { lanes, next }, orders)
    }

    /// The thread whose turn it is.
    fn turn(&self) -> &(mpsc::UnboundedSender<Job>, TaskTracker) {
        &self.lanes[self.next.load(Ordering::Relaxed) % self.lanes.len()]
    }

    /// Runs a job on the next thread. A job that the engine has no thread for any more is dropped, and
    /// what it holds reports so.
    pub(crate) fn spawn(&self, job: Job) {
        let nth = self.next.fetch_add(1, Ordering::Relaxed) % self.lanes.len();
        let _ = self.lanes[nth].0.send(job);
    }
}

/// Starts one thread. It ends when the engine stops and its tasks have ended.
pub(crate) fn start(nth: usize, core: Arc<Core>, orders: Orders) -> io::Result<JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    thread::Builder::new()
        .name(format!("s3engine-{nth}"))
        .spawn(move || {
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
