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

use crate::engine::Core;

/// What a thread's GETs share: transports with the thread's own connections.
pub(crate) struct Lane {
    pub(crate) core: Arc<Core>,
    pub(crate) client: Client,
    pub(crate) http: HttpTransport,
    /// By the fabric; taking bytes from an answer's body, or not.
    pub(crate) rdma: Option<(RdmaTransport, RdmaTransport)>,
}

impl Lane {
    fn new(core: Arc<Core>) -> Self {
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
            http: HttpTransport::new(client.clone()),
            client,
            rdma,
        }
    }
}

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// Work for a thread: makes its task there, since tasks never leave their thread.
pub(crate) type Job = Box<dyn FnOnce(Rc<Lane>) -> Task + Send>;

/// The threads that run jobs, in rotation.
pub(crate) struct Workers {
    lanes: Vec<mpsc::UnboundedSender<Job>>,
    next: AtomicUsize,
}

impl Workers {
    /// Makes the channels of `count` threads, and their receiving ends.
    pub(crate) fn new(count: usize) -> (Self, Vec<mpsc::UnboundedReceiver<Job>>) {
        let (lanes, receivers) = (0..count.max(1)).map(|_| mpsc::unbounded_channel()).unzip();
        (
            Self {
                lanes,
                next: AtomicUsize::new(0),
            },
            receivers,
        )
    }

    /// Runs a job on the next thread. A job that the engine has no thread for any more is dropped, and
    /// what it holds reports so.
    pub(crate) fn spawn(&self, job: Job) {
        let nth = self.next.fetch_add(1, Ordering::Relaxed) % self.lanes.len();
        let _ = self.lanes[nth].send(job);
    }
}

/// Starts one thread. It ends when the engine stops and its tasks have ended.
pub(crate) fn start(
    nth: usize,
    core: Arc<Core>,
    jobs: mpsc::UnboundedReceiver<Job>,
) -> io::Result<JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    thread::Builder::new()
        .name(format!("s3engine-{nth}"))
        .spawn(move || {
            let local = LocalSet::new();
            local.block_on(&runtime, run(core, jobs));
            // Blocking calls (making a slab) are left to end by themselves.
            drop(local);
            runtime.shutdown_background();
        })
}

async fn run(core: Arc<Core>, mut jobs: mpsc::UnboundedReceiver<Job>) {
    let stop = core.stop.clone();
    let lane = Rc::new(Lane::new(core));
    let mut tasks = tokio::task::JoinSet::new();
    loop {
        tokio::select! {
            biased;
            job = jobs.recv() => match job {
                Some(job) => {
                    tasks.spawn_local(job(Rc::clone(&lane)));
                }
                None => break,
            },
            Some(_) = tasks.join_next() => {}
            () = stop.cancelled() => break,
        }
    }
    jobs.close();
    while let Ok(job) = jobs.try_recv() {
        tasks.spawn_local(job(Rc::clone(&lane)));
    }
    // Every task sees the stop signal and ends soon; each reports its GET as cancelled.
    while tasks.join_next().await.is_some() {}
}
