//! What the other processes do.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use s3engine::service::{Caps, Service, ServiceOptions};
use s3engine::{
    ConnectOptions, Credentials, Endpoint, Engine, Get, LoopbackOptions, Memory, Policy,
    PoolOptions, QueueOptions, Rdma,
};
use s3sim::{Sim, SimOptions};

/// Bytes of one GET: one part.
const SIZE: u64 = 8 << 20;

/// The longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) fn run(role: &str) {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match role {
        "sim" => simulate(args[0]),
        "service" => serve(args[0], &args[1..]),
        "worker" => work(&args),
        other => panic!("no role {other}"),
    }
}

fn say(text: &str) {
    println!("{text}");
    std::io::stdout().flush().expect("somebody listens");
}

/// The next line of the one who started this process; `None` when that is gone.
fn hear() -> Option<String> {
    let mut line = String::new();
    let read = std::io::stdin().read_line(&mut line).ok()?;
    (read > 0).then(|| line.trim().to_owned())
}

fn simulate(fabric: &str) {
    let options = SimOptions {
        threads: 2,
        loopback_folder: Some(fabric.into()),
        ..SimOptions::default()
    };
    let sim = Sim::start(options).expect("the simulator starts");
    say(&sim.url());
    say(sim.access_key());
    say(sim.secret_key());
    let _ = hear();
}

fn engine(sim: &[&str]) -> Engine {
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
    let service = Service::start(ServiceOptions {
        socket: socket.into(),
        endpoints: vec![("main".to_owned(), engine(sim))],
        allow: Vec::new(),
        rules: Vec::new(),
        caps: Caps {
            slab_bytes: 64 << 20,
            ..Caps::default()
        },
    });
    let _service = service.expect("the service starts");
    say("ready");
    let _ = hear();
}

/// Keeps some GETs in flight for as long as it is told, again and again.
fn work(args: &[&str]) {
    let [kind, policy, in_flight, socket, sim @ ..] = args else {
        panic!("KIND POLICY IN_FLIGHT SOCKET ...")
    };
    let engine = match *kind {
        "embedded" => engine(sim),
        _ => Engine::connect(Path::new(socket), ConnectOptions::default()).expect("a service"),
    };
    let policy: Policy = policy.parse().expect("a policy");
    let in_flight: usize = in_flight.parse().expect("a number");
    let mut queue = engine.queue(QueueOptions {
        capacity: in_flight,
    });
    let mut buffers = engine
        .pool()
        .alloc_many(in_flight, SIZE, Memory::Host)
        .expect("memory");
    say("ready");
    while let Some(line) = hear() {
        let time = Duration::from_millis(line.parse().expect("milliseconds"));
        let (began, mut bytes) = (Instant::now(), 0);
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
        say(&format!("{bytes} {}", began.elapsed().as_secs_f64()));
    }
}
