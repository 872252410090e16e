//! How a host meets an outage: how many requests it makes while all are refused, and how soon it is as fast as before.
//!
//! `cargo bench -p s3engine-benches --bench recovery [-- [BEFORE BURST AFTER] [--adaptive off] [--json]]`
//!
//! A simulator, in a process of its own (this program again), answers each GET after 50 ms; then it refuses all of them
//! with 503 at once for BURST seconds (60), and then it answers again. Callers always want more: a GET that failed is
//! asked for again. A second counts as "as before" when it brings 90 % of what a second brought before.

#[allow(dead_code, reason = "of what others use too")]
#[path = "../service/process.rs"]
mod process;
mod shown;

use std::io::BufRead;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use s3engine::{
    Credentials, Endpoint, Engine, Get, Limits, Memory, Policy, PoolOptions, RetryPolicy,
};
use s3sim::{Action, Rule, Sim, SimOptions};

use process::Process;
use shown::{Second, Shown};

const KEY: &str = "64KiB-recovery";
const SIZE: u64 = 64 << 10;

/// How late the simulator answers.
const LATE_MS: u64 = 50;

/// Requests at once, and twice as many callers.
const REQUESTS: usize = 64;

fn main() {
    if std::env::var("S3ENGINE_BENCH_ROLE").is_ok() {
        return simulate();
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    let has = |name: &str| args.iter().any(|arg| arg == name);
    let given: Vec<u64> = args.iter().filter_map(|arg| arg.parse().ok()).collect();
    let [before, burst, after] = match given[..] {
        _ if has("--test") => [1, 1, 2],
        [before, burst, after] => [before, burst, after],
        _ => [10, 60, 30],
    };
    let adaptive = !has("off");
    let mut sim = Process::new("sim", &[]);
    let load = Load::start([sim.line(), sim.line(), sim.line()], adaptive);
    // Connections and memory are there after that.
    load.seconds(&mut sim, 1);
    let before = load.seconds(&mut sim, before);
    tell(&mut sim, "refuse");
    let during = load.seconds(&mut sim, burst);
    tell(&mut sim, "serve");
    let after = load.seconds(&mut sim, after);
    let shown = Shown {
        adaptive,
        window: load.engine.concurrency(),
        before,
        during,
        after,
    };
    match has("--json") {
        true => println!("{}", shown.json()),
        false => print!("{}", shown.text()),
    }
}

fn tell(sim: &mut Process, what: &str) {
    sim.say(what);
    assert_eq!(sim.line(), what);
}

/// The simulator: does what it is told to by lines.
fn simulate() {
    let sim = Sim::start(SimOptions::default()).expect("the simulator starts");
    let late = || Rule::new(Action::AnswerLate { ms: LATE_MS });
    sim.faults().push(late()).expect("a rule");
    println!("{}\n{}\n{}", sim.url(), sim.access_key(), sim.secret_key());
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("a line");
        let rule = match &*line {
            "count" => {
                println!("{}", sim.counters().requests);
                continue;
            }
            "refuse" => Rule::new(Action::SlowDown { retry_after: None }),
            "serve" => late(),
            other => panic!("{other}"),
        };
        sim.faults().clear();
        sim.faults().push(rule).expect("a rule");
        println!("{line}");
    }
}

/// Callers that always want more.
struct Load {
    engine: Engine,
    served: Arc<AtomicU64>,
    failed: Arc<AtomicU64>,
}

impl Load {
    fn start([url, access, secret]: [String; 3], adaptive: bool) -> Self {
        let engine = Engine::builder(Endpoint::parse(&url).expect("a URL"))
            .credentials(Credentials::new(&access, &secret, None).expect("a key pair"))
            .pool(PoolOptions {
                slab_bytes: 16 << 20,
                max_bytes: Some(32 << 20),
                ..PoolOptions::default()
            })
            .limits(Limits {
                requests: REQUESTS,
                ..Limits::default()
            })
            .retry(RetryPolicy::default())
            .adaptive(adaptive)
            .build()
            .expect("the engine starts");
        let load = Self {
            engine,
            served: Arc::default(),
            failed: Arc::default(),
        };
        let (engine, served, failed) = (
            load.engine.clone(),
            load.served.clone(),
            load.failed.clone(),
        );
        // Ends with the process.
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().build();
            let callers = tokio::task::LocalSet::new();
            for _ in 0..2 * REQUESTS {
                callers.spawn_local(call(engine.clone(), served.clone(), failed.clone()));
            }
            runtime.expect("a runtime").block_on(callers);
        });
        load
    }

    fn seconds(&self, sim: &mut Process, count: u64) -> Vec<Second> {
        (0..count).map(|_| self.second(sim)).collect()
    }

    /// What a second brings.
    fn second(&self, sim: &mut Process) -> Second {
        let mut count = || {
            sim.say("count");
            [
                self.served.load(Relaxed) as f64,
                self.failed.load(Relaxed) as f64,
                sim.numbers()[0],
            ]
        };
        let (before, began) = (count(), Instant::now());
        thread::sleep(Duration::from_secs(1));
        let (after, seconds) = (count(), began.elapsed().as_secs_f64());
        let rate = |nth: usize| (after[nth] - before[nth]) / seconds;
        Second {
            served: rate(0),
            failed: rate(1),
            requests: rate(2),
            mb_per_s: rate(0) * SIZE as f64 / 1e6,
        }
    }
}

async fn call(engine: Engine, served: Arc<AtomicU64>, failed: Arc<AtomicU64>) {
    let lease = || engine.pool().try_alloc(SIZE, Memory::Host).expect("memory");
    let mut buffer = lease();
    loop {
        let get = Get::new("bench", KEY).policy(Policy::Http).into(buffer);
        let completion = engine.get(get).await;
        match completion.error() {
            None => served.fetch_add(1, Relaxed),
            Some(_) => failed.fetch_add(1, Relaxed),
        };
        buffer = completion.into_buffer().unwrap_or_else(lease);
    }
}
