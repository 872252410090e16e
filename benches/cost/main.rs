//! What GETs and NOPs cost beside time: context switches, memory; and work of a known amount for `run.sh`, which counts
//! instructions and system calls.
//!
//! `cargo bench -p s3engine-benches --bench cost [-- get SIZE COUNT IN_FLIGHT | nop COUNT]`

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use s3engine::{
    Credentials, Endpoint, Engine, Get, Limits, Memory, PoolOptions, Queue, QueueOptions, Rdma,
};
use s3engine_ring::{Client, Layout, Outcome, Regions, Service, Taken};
use s3sim::{Action, Kind, Rule, Sim, SimOptions};

/// Longer than anything takes here.
const PATIENCE: Duration = Duration::from_secs(300);
/// NOPs of one batch.
const BATCH: u64 = 256;

fn main() {
    if std::env::var_os("S3ENGINE_BENCH_ROLE").is_some() {
        return simulate();
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |nth: usize| args.get(nth).and_then(|arg| arg.parse::<u64>().ok());
    match args.first().map(String::as_str) {
        Some("get") => {
            let [size, count, in_flight] = [1, 2, 3].map(|nth| number(nth).expect("a number"));
            Load::new(in_flight as usize, size).gets("x", count);
        }
        Some("nop") => nops(number(1).expect("a number")),
        _ => table(args.iter().any(|arg| arg == "--test")),
    }
}

fn table(brief: bool) {
    println!("{:<34} {:>22}", "GETs by HTTP", "context switches/GET");
    for (size, count, in_flight) in [
        (4096, 20_000, 64),
        (64 << 10, 10_000, 16),
        (8 << 20, 200, 8),
    ] {
        let count = if brief { in_flight } else { count };
        let mut load = Load::new(in_flight as usize, size);
        load.gets("x", in_flight);
        let before = context_switches();
        load.gets("x", count);
        let each = (context_switches() - before) as f64 / count as f64;
        println!(
            "{:<34} {each:>22.2}",
            format!("{} KiB, {in_flight} in flight", size >> 10)
        );
    }
    let outstanding = if brief { 10 } else { 1000 };
    let mut load = Load::new(outstanding, 64 << 10);
    let before = beyond_the_pool();
    let more = load
        .with_outstanding("stalled", beyond_the_pool)
        .saturating_sub(before);
    println!(
        "{outstanding} GETs outstanding: {:.1} MiB of memory beyond the pool",
        more as f64 / 1048576.0
    );
}

/// A simulator, an engine, and one queue that is kept full.
struct Load {
    queue: Queue,
    engine: Engine,
    size: u64,
    in_flight: usize,
    _sim: Child,
}

impl Load {
    fn new(in_flight: usize, size: u64) -> Load {
        let (sim, [url, access, secret]) = simulator();
        let slab = (in_flight as u64 * size).next_power_of_two().max(2 << 20);
        let engine = Engine::builder(Endpoint::parse(&url).expect("a URL"))
            .credentials(Credentials::new(access, secret, None).expect("a key pair"))
            .rdma(Rdma::Off)
            .limits(Limits {
                requests: in_flight,
                ..Limits::default()
            })
            .adaptive(false)
            .pool(PoolOptions {
                slab_bytes: slab,
                max_bytes: Some(2 * slab),
                ..PoolOptions::default()
            })
            .threads(2)
            .build()
            .expect("the engine starts");
        let queue = engine.queue(QueueOptions {
            capacity: in_flight,
        });
        Load {
            queue,
            engine,
            size,
            in_flight,
            _sim: sim,
        }
    }

    fn push(&mut self, suffix: &str) {
        let key = format!("{}B-{suffix}", self.size);
        let buffer = self
            .engine
            .pool()
            .try_alloc(self.size, Memory::Host)
            .expect("room");
        self.queue
            .push(Get::new("bench", key).into(buffer))
            .expect("room");
    }

    /// Whole objects, so many, as many at once as there are to be.
    fn gets(&mut self, suffix: &str, count: u64) {
        let (mut begun, mut ended) = (0, 0);
        while ended < count {
            while begun < count && begun - ended < self.in_flight as u64 {
                self.push(suffix);
                begun += 1;
            }
            self.queue.submit();
            self.queue.wait(1, PATIENCE).expect("in time");
            for completion in self.queue.completions() {
                assert!(completion.is_ok(), "{:?}", completion.error());
                ended += 1;
            }
        }
    }

    /// What `look` sees while all GETs wait for the server.
    fn with_outstanding<T>(&mut self, suffix: &str, look: impl Fn() -> T) -> T {
        (0..self.in_flight).for_each(|_| self.push(suffix));
        self.queue.submit();
        std::thread::sleep(Duration::from_secs(2));
        assert_eq!(self.queue.outstanding(), self.in_flight);
        look()
    }
}

fn nops(count: u64) {
    let layout = Layout::new(1024).expect("a power of two");
    let ends = Regions::heap(layout).ends(layout, 0);
    let (mut client, mut service) = ends.expect("the two ends of a queue");
    let mut left = count;
    while left > 0 {
        let batch = left.min(BATCH);
        batch_of(&mut client, &mut service, batch);
        left -= batch;
    }
}

fn batch_of(client: &mut Client, service: &mut Service, batch: u64) {
    for nth in 0..batch {
        client.push_nop(nth).expect("room");
    }
    // Both ends are in one thread: nobody sleeps.
    let _ = client.submit(0);
    while let Some(taken) = service.take().expect("a sound queue") {
        if let Taken::Nop(ticket) = taken {
            let done = service.complete(ticket, &Outcome::default(), None);
            done.expect("a sound queue");
        }
    }
    let _ = service.publish();
    let reaped = std::iter::from_fn(|| client.reap().expect("a sound queue").map(drop));
    assert_eq!(reaped.count() as u64, batch);
}

/// Context switches of all threads of this process so far.
fn context_switches() -> u64 {
    let tasks = fs::read_dir("/proc/self/task").expect("the threads");
    let of = |status: String| -> u64 {
        let lines = status
            .lines()
            .filter_map(|line| line.split_once("ctxt_switches:"));
        lines
            .filter_map(|(_, count)| count.trim().parse::<u64>().ok())
            .sum()
    };
    let statuses = tasks
        .flatten()
        .map(|task| fs::read_to_string(task.path().join("status")));
    // A thread may end meanwhile.
    statuses.flatten().map(of).sum()
}

/// Memory of this process that is not of slabs, which are shared.
fn beyond_the_pool() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("of this process");
    let kib = |name: &str| -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let number = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
        number.expect("a number")
    };
    (kib("VmRSS:") - kib("RssShmem:")) << 10
}

/// A simulator in a process of its own, which is not to be counted; its URL and keys.
fn simulator() -> (Child, [String; 3]) {
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .env("S3ENGINE_BENCH_ROLE", "sim")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("another process");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let told = [(); 3].map(|()| lines.next().expect("a line").expect("text"));
    (child, told)
}

fn simulate() {
    let stall = Action::Stall {
        after: Some(1024),
        ms: 600_000,
    };
    let stalls = Rule::new(stall).only(Kind::Http).key("*stalled");
    let sim = Sim::start(SimOptions {
        threads: 2,
        faults: vec![stalls],
        ..SimOptions::default()
    });
    let sim = sim.expect("the simulator starts");
    println!("{}\n{}\n{}", sim.url(), sim.access_key(), sim.secret_key());
    // Until who has started it is gone.
    let _ = std::io::stdin().read(&mut [0]);
}
