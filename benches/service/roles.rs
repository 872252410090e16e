//! What the other processes do.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use s3engine::service::{Caps, Service, ServiceOptions};
use s3engine::{
    ConnectOptions, Credentials, Endpoint, Engine, Get, LoopbackOptions, Memory, Policy, Pool,
    PoolOptions, QueueOptions, Rdma,
};
use s3sim::{Action, Kind, Rule, Sim, SimOptions};

/// Bytes of one GET: one part.
const SIZE: u64 = 8 << 20;

/// The longest wait for anything.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

pub(super) fn run(role: &str) {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    s3engine::cuda::run_no_kernels();
    match role {
        "sim" => simulate(args[0], args[1].parse().expect("threads")),
        "service" => serve(args[0], &args[1..]),
        "worker" => work(&args),
        "small" => small(&args),
        "greedy" => greedy(&args),
        other => panic!("no role {other}"),
    }
}

pub(super) fn say(text: &str) {
    println!("{text}");
    std::io::stdout().flush().expect("somebody listens");
}

/// The next line of the one who started this process; `None` when that is gone.
pub(super) fn hear() -> Option<String> {
    let mut line = String::new();
    let read = std::io::stdin().read_line(&mut line).ok()?;
    (read > 0).then(|| line.trim().to_owned())
}

/// How a storage system of a limited rate brings the objects named so: 4 MiB/s by each connection, 32 MiB/s by RDMA
/// for each request. Who else waits then does not wait for the processors that all of these processes share.
fn paced() -> [Rule; 2] {
    let pieces = |bytes, ms| Rule::new(Action::Trickle { bytes, ms }).key("*-paced");
    [
        pieces(64 << 10, 16).only(Kind::Http),
        pieces(256 << 10, 8).only(Kind::Rdma),
    ]
}

fn simulate(fabric: &str, threads: usize) {
    let options = SimOptions {
        threads,
        loopback_folder: Some(fabric.into()),
        faults: paced().into(),
        ..SimOptions::default()
    };
    let sim = Sim::start(options).expect("the simulator starts");
    say(&sim.url());
    say(sim.access_key());
    say(sim.secret_key());
    let _ = hear();
}

pub(super) fn engine(sim: &[&str]) -> Engine {
    let [url, access, secret, fabric] = sim else {
        panic!("URL ACCESS SECRET FABRIC")
    };
    let loopback = LoopbackOptions {
        folder: Some(fabric.into()),
        ..LoopbackOptions::default()
    };
    let pool = PoolOptions {
        max_bytes: Some(1 << 30),
        ..PoolOptions::default()
    };
    Engine::builder(Endpoint::parse(url).expect("a URL"))
        .credentials(Credentials::new(*access, *secret, None).expect("a key pair"))
        .rdma(Rdma::Loopback(loopback))
        .pool(pool)
        .threads(2)
        .build()
        .expect("the engine starts")
}

fn serve(socket: &str, sim: &[&str]) {
    let engine = engine(sim);
    let pool = engine.pool().clone();
    let service = Service::start(ServiceOptions {
        socket: socket.into(),
        endpoints: vec![("main".to_owned(), engine)],
        allow: Vec::new(),
        rules: Vec::new(),
        client_headers: Vec::new(),
        caps: Caps {
            slab_bytes: 64 << 20,
            ..Caps::default()
        },
    });
    let _service = service.expect("the service starts");
    say("ready");
    while let Some(asks) = hear() {
        match &*asks {
            "cpu" => say(&cpu().to_string()),
            _ => say(&stats(&pool)),
        }
    }
}

/// What the service's pool has, and what it cost.
fn stats(pool: &Pool) -> String {
    let stats = pool.stats();
    let cuda: u64 = stats.cuda.iter().map(|device| device.mapped).sum();
    format!(
        "{} registrations ({} that a GET waited for), {} failed, {} slabs made, {} MiB of devices",
        stats.ledger.registered,
        stats.ledger.registered - stats.ledger.ahead,
        stats.ledger.failed,
        stats.slabs_made,
        cuda >> 20
    )
}

/// The seconds of processor time that this process has used.
pub(super) fn cpu() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

pub(super) fn connect(socket: &str) -> Engine {
    Engine::connect(Path::new(socket), ConnectOptions::default()).expect("a service")
}

/// Keeps some GETs in flight for as long as it is told, again and again.
fn work(args: &[&str]) {
    let [kind, policy, memory, in_flight, socket, sim @ ..] = args else {
        panic!("KIND POLICY MEMORY IN_FLIGHT SOCKET ...")
    };
    let engine = match *kind {
        "embedded" => engine(sim),
        _ => connect(socket),
    };
    let policy: Policy = policy.parse().expect("a policy");
    let in_flight: usize = in_flight.parse().expect("a number");
    let memory = match memory.strip_prefix("cuda:") {
        Some(ordinal) => Memory::cuda(ordinal.parse().expect("a number")).expect("a device"),
        None => Memory::Host,
    };
    let mut queue = engine.queue(QueueOptions {
        capacity: in_flight,
    });
    let mut buffers = engine
        .pool()
        .alloc_many(in_flight, SIZE, memory)
        .expect("memory");
    say("ready");
    while let Some(line) = hear() {
        let time = Duration::from_millis(line.parse().expect("milliseconds"));
        let (began, cpu_before, mut bytes) = (Instant::now(), cpu(), 0);
        loop {
            if began.elapsed() < time {
                for buffer in buffers.drain(..) {
                    let get = Get::new("bench", "8MiB-service").policy(policy);
                    queue.push(get.into(buffer)).expect("room");
                }
                queue.submit();
            }
            let Some(done) = queue.next(PATIENCE).expect("an end") else {
                break;
            };
            assert!(done.is_ok(), "{done:?}");
            bytes += done.bytes();
            buffers.push(done.into_buffer().expect("its buffer"));
        }
        let (seconds, cpu) = (began.elapsed().as_secs_f64(), cpu() - cpu_before);
        say(&format!("{bytes} {seconds} {cpu}"));
    }
}

/// GETs of 64 KiB, one at a time; tells how long they took.
fn small(args: &[&str]) {
    let (policy, engine) = (args[0].parse().expect("a policy"), connect(args[1]));
    let mut queue = engine.queue(QueueOptions { capacity: 1 });
    let buffer = engine.pool().try_alloc(64 << 10, Memory::Host);
    let mut buffer = Some(buffer.expect("memory"));
    say("ready");
    while let Some(line) = hear() {
        let time = Duration::from_millis(line.parse().expect("milliseconds"));
        let (began, mut took) = (Instant::now(), Vec::new());
        while began.elapsed() < time {
            let get = Get::new("bench", "64KiB-small").policy(policy);
            let one = Instant::now();
            queue
                .push(get.into(buffer.take().expect("its buffer")))
                .expect("room");
            queue.submit();
            let done = queue.next(PATIENCE).expect("an end").expect("a completion");
            took.push(one.elapsed().as_secs_f64() * 1e3);
            assert!(done.is_ok(), "{done:?}");
            buffer = done.into_buffer();
        }
        took.sort_by(f64::total_cmp);
        let quantile = |of_100: usize| took[(took.len() * of_100 / 100).min(took.len() - 1)];
        say(&format!("{} {}", quantile(50), quantile(99)));
    }
}

/// Always 256 GETs of 64 MiB outstanding, from one line to the next. The first is the object's name.
fn greedy(args: &[&str]) {
    let (policy, engine) = (args[0].parse().expect("a policy"), connect(args[1]));
    let run = Arc::new(AtomicBool::new(false));
    say("ready");
    while let Some(key) = hear() {
        run.store(true, Ordering::Relaxed);
        let (runs, engine) = (Arc::clone(&run), engine.clone());
        let thread = thread::spawn(move || {
            let mut queue = engine.queue(QueueOptions { capacity: 256 });
            let get = || Get::new("bench", &*key).policy(policy);
            for _ in 0..256 {
                queue.push(get()).expect("room");
            }
            queue.submit();
            while runs.load(Ordering::Relaxed) {
                // Often enough to see that it is to stop.
                let Ok(Some(done)) = queue.next(Duration::from_millis(20)) else {
                    continue;
                };
                assert!(done.is_ok(), "{done:?}");
                drop(done);
                queue.push(get()).expect("room");
                queue.submit();
            }
        });
        // Long enough for all that the limits allow to be under way.
        thread::sleep(Duration::from_millis(300));
        say("under way");
        let _ = hear();
        run.store(false, Ordering::Relaxed);
        thread.join().expect("it ends");
        say("stopped");
    }
}
