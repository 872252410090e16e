//! Worker threads: each one runtime, one set of connections, many GETs.
//!
//! There are two crews. The quick one serves queues and makes requests of few bytes, the other moves the parts of
//! large GETs: what takes its thread microseconds does not wait behind what takes it milliseconds, and where
//! processors are short the kernel shares them between the two. A thread of the quick crew that makes none of those
//! requests does its share of the large GETs of its queues itself: handing them over, and what comes of them back,
//! costs two wake-ups each.
//!
//! Where the host has several NUMA nodes, the threads of a crew are spread over them, and what is for memory near one
//! of them is done there.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use s3engine_pool::topology::NumaNode;
use s3engine_pool::uring;
use s3engine_s3::http::Client;
use s3engine_s3::open_files;
use s3engine_s3::rdma::RdmaTransport;
use tokio::sync::mpsc;
use tokio::task::LocalSet;
use tokio_util::task::TaskTracker;

use crate::driver::{ChosenDriver, Driver};
use crate::engine::Core;

/// What a thread's GETs share: transports with the thread's own connections.
pub(crate) struct Lane {
    pub(crate) core: Arc<Core>,
    /// What the thread does now.
    pub(crate) tasks: TaskTracker,
    pub(crate) client: Client,
    /// By the fabric; taking bytes from an answer's body, or not.
    pub(crate) rdma: Option<(RdmaTransport, RdmaTransport)>,
    /// On whose processors the thread runs, if that is not left to the kernel.
    node: Option<u32>,
    /// Large GETs of its own queues that it does.
    pub(crate) own: TaskTracker,
    /// When the last small GET of its queues was submitted.
    small: Cell<Option<Instant>>,
}

impl Lane {
    /// A thread with this many tasks more than another leaves new ones to that.
    const LEAD: usize = 8;

    /// A thread that was given no small GETs for so long is given large ones.
    const QUIET: Duration = Duration::from_secs(1);

    fn new(core: Arc<Core>, tasks: TaskTracker, node: Option<u32>) -> Self {
        let client = Client::new(Arc::clone(&core.upstream));
        let rdma = core.fabric.as_ref().map(|(fabric, id)| {
            let (pool, queued) = (core.pool.clone(), core.queued.clone());
            let lenient = RdmaTransport::new(client.clone(), Arc::clone(fabric), *id, pool, queued);
            (lenient.clone(), lenient.strict())
        });
        Self {
            core,
            tasks,
            client,
            rdma,
            node,
            own: TaskTracker::new(),
            small: Cell::default(),
        }
    }

    /// Whether a small GET of one of its queues, submitted at `at`, is for this thread: unless another one of the quick
    /// crew, whose turn it is, has much less to do.
    pub(crate) fn takes_small(&self, at: Instant) -> bool {
        self.small.set(Some(at));
        let (_, turn) = self.core.workers.quick.all.turn();
        self.tasks.len() <= turn.len() + Self::LEAD
    }

    /// Whether a large one to memory of a node is: while the thread does no more than its share of all of them, and no
    /// small ones that would wait behind it.
    pub(crate) fn takes_large(&self, at: Instant, node: Option<u32>) -> bool {
        let Workers { large, count, .. } = &self.core.workers;
        let is_near = node.is_none() || self.node.is_none() || node == self.node;
        let is_quiet = |small| at.saturating_duration_since(small) >= Self::QUIET;
        is_near && self.own.len() <= large.len() / count && self.small.get().is_none_or(is_quiet)
    }
}

pub(crate) type Task = Pin<Box<dyn Future<Output = ()>>>;

/// Work for a thread: makes its task there, since tasks never leave their thread.
pub(crate) type Job = Box<dyn FnOnce(Rc<Lane>) -> Task + Send>;

/// What leads to a thread, and what it does.
type Desk = (mpsc::UnboundedSender<Job>, TaskTracker);

/// What a thread is given to work on.
type Orders = (mpsc::UnboundedReceiver<Job>, TaskTracker);

/// A thread that is to be started.
pub(crate) struct Post {
    name: String,
    /// On whose processors it runs, if it is not left to the kernel.
    node: Option<NumaNode>,
    orders: Orders,
}

/// Threads that take turns.
struct Rotation {
    desks: Vec<Desk>,
    next: AtomicUsize,
}

impl Rotation {
    fn new(desks: Vec<Desk>) -> Self {
        let next = AtomicUsize::new(0);
        Self { desks, next }
    }

    /// The thread whose turn it is.
    fn turn(&self) -> &Desk {
        &self.desks[self.next.load(Ordering::Relaxed) % self.desks.len()]
    }

    fn give(&self, job: Job) {
        let nth = self.next.fetch_add(1, Ordering::Relaxed) % self.desks.len();
        let _ = self.desks[nth].0.send(job);
    }
}

/// Threads that run jobs, in rotation.
pub(crate) struct Crew {
    all: Rotation,
    /// Those of each node, where they are spread over several.
    near: Vec<(u32, Rotation)>,
}

impl Crew {
    /// A crew of `count` threads spread over `nodes`, if there are several, and its threads.
    fn new(name: &str, count: usize, nodes: &[NumaNode]) -> (Self, Vec<Post>) {
        let nodes = if nodes.len() > 1 { nodes } else { &[] };
        let mut all = Vec::new();
        let mut near: BTreeMap<u32, Vec<Desk>> = BTreeMap::new();
        let mut posts = Vec::new();
        for nth in 0..count.max(1) {
            let ((sender, receiver), tasks) = (mpsc::unbounded_channel(), TaskTracker::new());
            let desk = (sender, tasks.clone());
            let node = nodes.iter().cycle().nth(nth);
            if let Some(node) = node {
                near.entry(node.id).or_default().push(desk.clone());
            }
            all.push(desk);
            posts.push(Post {
                name: format!("s3engine-{name}{nth}"),
                node: node.cloned(),
                orders: (receiver, tasks),
            });
        }
        let near = near
            .into_iter()
            .map(|(id, desks)| (id, Rotation::new(desks)));
        let crew = Self {
            all: Rotation::new(all),
            near: near.collect(),
        };
        (crew, posts)
    }

    /// Runs a job on the next thread. A job that the engine has no thread for any more is dropped, and
    /// what it holds reports so.
    pub(crate) fn spawn(&self, job: Job) {
        self.all.give(job);
    }

    /// Runs a job on the next thread of a node; where the node is not known, or has no thread, on the next of all.
    pub(crate) fn spawn_near(&self, node: Option<u32>, job: Job) {
        let near = self.near.iter().find(|(id, _)| Some(*id) == node);
        near.map_or(&self.all, |(_, near)| near).give(job);
    }
}

/// All threads of an engine.
pub(crate) struct Workers {
    /// For queues, and requests of few bytes.
    pub(crate) quick: Crew,
    /// For parts of large GETs.
    pub(crate) bulk: Crew,
    /// Large GETs of queues, wherever they are done.
    pub(crate) large: TaskTracker,
    /// Threads of each crew.
    count: usize,
}

impl Workers {
    /// Makes two crews of `count` threads, spread over `nodes`, and those threads.
    pub(crate) fn new(count: usize, nodes: &[NumaNode]) -> (Self, Vec<Post>) {
        let (quick, mut posts) = Crew::new("q", count, nodes);
        let (bulk, of_bulk) = Crew::new("", count, nodes);
        posts.extend(of_bulk);
        let workers = Self {
            quick,
            bulk,
            large: TaskTracker::new(),
            count: count.max(1),
        };
        (workers, posts)
    }
}

/// A thread that works.
pub(crate) struct Worker {
    id: ThreadId,
    /// Closed when its tasks have ended.
    news: Mutex<Receiver<io::Result<()>>>,
}

impl Worker {
    /// Starts a thread. It ends when the engine stops and its tasks have ended.
    pub(crate) fn start(post: Post, core: Arc<Core>) -> io::Result<Worker> {
        let (tell, news) = channel();
        let builder = thread::Builder::new().name(post.name.clone());
        let thread = builder.spawn(move || match Runtime::new(&core.driver) {
            Ok(runtime) => {
                let _ = tell.send(Ok(()));
                runtime.run(post, core, tell);
            }
            Err(error) => drop(tell.send(Err(error))),
        })?;
        let id = thread.thread().id();
        news.recv().map_err(io::Error::other)??;
        let news = Mutex::new(news);
        Ok(Worker { id, news })
    }

    /// Waits until its tasks have ended.
    pub(crate) fn wait(self) {
        // A completion's last handle may be dropped on a thread of the engine itself.
        if self.id != thread::current().id()
            && let Ok(news) = self.news.into_inner()
        {
            let _ = news.recv();
        }
    }
}

/// What runs a thread's tasks.
enum Runtime {
    Uring(uring::Runtime),
    Epoll(tokio::runtime::Runtime),
}

impl Runtime {
    fn new(chosen: &ChosenDriver) -> io::Result<Runtime> {
        if chosen.driver == Driver::Uring {
            match uring::Runtime::new() {
                Ok(runtime) => return Ok(Runtime::Uring(runtime)),
                Err(error) if chosen.asked => {
                    let text = format!("io_uring cannot be used: {error}");
                    return Err(io::Error::new(error.kind(), text));
                }
                // Others have taken what there was for a first one.
                Err(error) => {
                    tracing::warn!(%error, "io_uring cannot be used by a thread, and epoll is")
                }
            }
        }
        let mut builder = tokio::runtime::Builder::new_current_thread();
        Ok(Runtime::Epoll(builder.enable_all().build()?))
    }

    /// `ended` is dropped when the thread's tasks have ended. Blocking calls (making a slab) are left to end by
    /// themselves.
    fn run(self, post: Post, core: Arc<Core>, ended: Sender<io::Result<()>>) {
        // Where that is not possible, the thread runs wherever the kernel has it run.
        let _ = (post.node.as_ref()).is_some_and(NumaNode::place_this_thread);
        let work = run(core, post.orders, post.node.map(|node| node.id));
        match self {
            Runtime::Uring(runtime) => {
                runtime.block_on(work);
                drop(ended);
                // It waits for those calls.
                drop(runtime);
            }
            Runtime::Epoll(runtime) => {
                LocalSet::new().block_on(&runtime, work);
                drop(ended);
                runtime.shutdown_background();
            }
        }
    }
}

async fn run(core: Arc<Core>, (mut jobs, tasks): Orders, node: Option<u32>) {
    let stop = core.stop.clone();
    let lane = Rc::new(Lane::new(core, tasks, node));
    loop {
        tokio::select! {
            biased;
            job = jobs.recv() => match job {
                Some(job) => drop(lane.tasks.spawn_local(job(Rc::clone(&lane)))),
                None => break,
            },
            () = open_files::are_wanted() => lane.client.close_idle(),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(count: u32) -> Vec<NumaNode> {
        let node = |id| NumaNode {
            id,
            ..NumaNode::default()
        };
        (0..count).map(node).collect()
    }

    /// How many jobs each thread has got since it was asked last.
    fn jobs(posts: &mut [Post]) -> Vec<usize> {
        let of = |post: &mut Post| std::iter::from_fn(|| post.orders.0.try_recv().ok()).count();
        posts.iter_mut().map(of).collect()
    }

    fn spawn(crew: &Crew, node: Option<u32>, count: usize) {
        (0..count).for_each(|_| crew.spawn_near(node, Box::new(|_| Box::pin(async {}))));
    }

    #[test]
    fn jobs_for_memory_of_a_node_are_done_there_and_others_by_all() {
        let (crew, mut posts) = Crew::new("", 5, &nodes(2));
        let placed: Vec<_> = posts
            .iter()
            .map(|post| post.node.as_ref().unwrap().id)
            .collect();
        assert_eq!(placed, [0, 1, 0, 1, 0]);
        spawn(&crew, Some(1), 6);
        assert_eq!(jobs(&mut posts), [0, 3, 0, 3, 0]);
        spawn(&crew, Some(0), 6);
        assert_eq!(jobs(&mut posts), [2, 0, 2, 0, 2]);
        spawn(&crew, None, 5);
        assert_eq!(jobs(&mut posts), [1; 5]);
        spawn(&crew, Some(7), 5);
        assert_eq!(jobs(&mut posts), [1; 5], "a node that no thread is on");
    }

    #[test]
    fn a_node_that_no_thread_is_left_for_is_served_by_all() {
        let (crew, mut posts) = Crew::new("", 2, &nodes(3));
        spawn(&crew, Some(2), 4);
        assert_eq!(jobs(&mut posts), [2, 2]);
    }

    #[test]
    fn on_one_node_no_thread_is_placed() {
        for nodes in [nodes(0), nodes(1)] {
            let (workers, mut posts) = Workers::new(3, &nodes);
            assert!(posts.iter().all(|post| post.node.is_none()));
            spawn(&workers.bulk, Some(0), 3);
            assert_eq!(jobs(&mut posts), [0, 0, 0, 1, 1, 1]);
            assert_eq!(posts[0].name, "s3engine-q0");
            assert_eq!(posts[3].name, "s3engine-0");
        }
    }
}
