//! A simulator and an engine over it, for one test.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use fabric_standin::Copied;
use s3engine::{
    Buffer, Completion, Credentials, CufileOptions, Driver, Endpoint, Engine, EngineBuilder, Flags,
    Get, LoopbackOptions, Memory, Policy, PoolOptions, Queue, QueueOptions, Rdma, RetryPolicy,
    S3rdmaOptions, Timeouts,
};
use s3sim::{Rule, Sim, SimOptions, content};
use tempfile::TempDir;

use crate::assert_invariants;

/// The drivers that can be used here.
pub fn drivers() -> Vec<Driver> {
    match Driver::probe() {
        Ok(()) => vec![Driver::Uring, Driver::Epoll],
        Err(why) => {
            eprintln!("skipped, by io_uring: {why}");
            vec![Driver::Epoll]
        }
    }
}

/// The longest wait for anything. Nothing comes near it unless it hangs.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A simulator, and an engine whose loopback fabric only the two share.
pub struct Rig {
    /// The engine. Declared first: it ends before its server does.
    pub engine: Engine,
    /// The server.
    pub sim: Sim,
    folder: TempDir,
}

impl Rig {
    /// With these faults, and settings that suit most tests.
    pub fn new(rules: impl IntoIterator<Item = Rule>) -> Self {
        Self::with(rules, |builder, _| builder)
    }

    /// With other settings too; `shape` is given the fabric's folder.
    pub fn with(
        rules: impl IntoIterator<Item = Rule>,
        shape: impl FnOnce(EngineBuilder, &Path) -> EngineBuilder,
    ) -> Self {
        Self::over(rules, shape, false)
    }

    /// The same with a server that keeps old versions.
    pub fn versioned(
        rules: impl IntoIterator<Item = Rule>,
        shape: impl FnOnce(EngineBuilder, &Path) -> EngineBuilder,
    ) -> Self {
        Self::over(rules, shape, true)
    }

    fn over(
        rules: impl IntoIterator<Item = Rule>,
        shape: impl FnOnce(EngineBuilder, &Path) -> EngineBuilder,
        versioned: bool,
    ) -> Self {
        let options = SimOptions {
            versioned,
            faults: rules.into_iter().collect(),
            ..SimOptions::default()
        };
        Self::of(options, shape)
    }

    /// With a server of any kind: two threads of it, in a folder that nobody else knows.
    pub fn of(
        options: SimOptions,
        shape: impl FnOnce(EngineBuilder, &Path) -> EngineBuilder,
    ) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let fabric = folder.path().join("loopback");
        let options = SimOptions {
            threads: 2,
            loopback_folder: Some(fabric.clone()),
            ..options
        };
        let sim = Sim::start(options).expect("the simulator starts");
        let builder = quick_builder(&sim.url())
            .credentials(credentials(sim.access_key(), sim.secret_key()))
            .rdma(Rdma::Loopback(loopback(&fabric)));
        let engine = shape(builder, &fabric).build().expect("the engine starts");
        Self {
            engine,
            sim,
            folder,
        }
    }

    /// Where the fabric's sockets are.
    pub fn fabric_folder(&self) -> PathBuf {
        self.folder.path().join("loopback")
    }

    /// A folder of the rig's own.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Memory of the engine's pool: the host's.
    pub fn buffer(&self, len: u64) -> Buffer {
        self.buffer_of(len, Memory::Host)
    }

    /// The same, of one kind.
    pub fn buffer_of(&self, len: u64, memory: Memory) -> Buffer {
        let buffer = self.engine.pool().try_alloc(len, memory);
        buffer.expect("the pool has room")
    }

    /// A queue of the default size.
    pub fn queue(&self) -> Queue {
        self.engine.queue(QueueOptions::default())
    }

    /// Runs one GET to its end and checks what must hold of every completion.
    pub fn get(&self, policy: Policy, get: Get) -> Completion {
        let completion = block_on(self.engine.get(get.policy(policy)));
        assert_invariants(&completion, policy);
        completion
    }

    /// The whole of a synthetic object of bucket `bench` into a buffer of just its size: no HEAD comes first.
    pub fn get_whole(&self, policy: Policy, key: &str) -> Completion {
        let size = content::size_of_key(key).expect("the key says its size");
        self.get(policy, Get::new("bench", key).into(self.buffer(size)))
    }

    /// Asserts that all memory comes back: nothing leased, nothing in quarantine.
    pub fn assert_drains(&self) {
        let pool = self.engine.pool();
        wait_until("all memory is back", || {
            let stats = pool.stats();
            stats.leased == 0 && stats.quarantined == 0
        });
    }
}

/// An engine for the server at `url`, with a small pool, short pauses, and bounds that only a test that wants
/// them will meet.
pub fn quick_builder(url: &str) -> EngineBuilder {
    let pool = PoolOptions {
        slab_bytes: 4 << 20,
        max_bytes: Some(32 << 20),
        ..PoolOptions::default()
    };
    let retry = RetryPolicy {
        base: Duration::from_millis(2),
        cap: Duration::from_millis(20),
        // One test can plant more faults than a host sees in weeks: each is to be answered as if it were alone.
        budget: 1_000_000,
        ..RetryPolicy::default()
    };
    let timeouts = Timeouts {
        first_byte: Duration::from_secs(10),
        stall: Duration::from_secs(10),
        ..Timeouts::default()
    };
    Engine::builder(Endpoint::parse(url).expect("a URL"))
        .pool(pool)
        .retry(retry)
        .adaptive(false)
        .timeouts(timeouts)
        .deadline(PATIENCE)
        .threads(2)
}

/// A key pair without a session.
pub fn credentials(access_key: &str, secret_key: &str) -> Credentials {
    Credentials::new(access_key, secret_key, None).expect("a key pair")
}

/// A loopback fabric of that folder.
pub fn loopback(folder: &Path) -> LoopbackOptions {
    LoopbackOptions {
        folder: Some(folder.into()),
        ..LoopbackOptions::default()
    }
}

/// The fabric of MinIO's library, over a stand-in for that.
pub fn s3rdma(library: &Copied, devices: &[&str]) -> Rdma {
    Rdma::S3rdma(S3rdmaOptions {
        file: Some(library.path().into()),
        devices: devices.iter().map(|&device| device.into()).collect(),
        ..S3rdmaOptions::default()
    })
}

/// The fabric of NVIDIA's library, over a stand-in for that, which the program `prober` tries. That a host has no list
/// of modules is no matter to the stand-in.
pub fn cufile(library: &Copied, prober: &str) -> Rdma {
    Rdma::Cufile(CufileOptions {
        file: Some(library.path().into()),
        prober: Some(prober.into()),
        modules: "/".into(),
        // A busy machine starts a process late.
        call_timeout: PATIENCE,
    })
}

/// Runs a future on this thread, within [`PATIENCE`].
pub fn block_on<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime");
    let bounded = async { tokio::time::timeout(PATIENCE, future).await };
    runtime.block_on(bounded).expect("the future ends")
}

/// Takes completions until nothing is outstanding.
pub fn drain(queue: &mut Queue) -> Vec<Completion> {
    let mut all = Vec::new();
    while let Some(completion) = queue.next(PATIENCE).expect("every GET ends") {
        all.push(completion);
    }
    let last = all.iter().filter(|c| !c.flags().contains(Flags::MORE));
    let mut tickets: Vec<_> = last.map(Completion::ticket).collect();
    let count = tickets.len();
    tickets.sort();
    tickets.dedup();
    assert_eq!(tickets.len(), count, "a GET has ended twice");
    all
}

/// Waits for what will become true by itself.
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < PATIENCE, "never so: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}
