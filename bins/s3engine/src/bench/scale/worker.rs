//! A worker process: the host service of a row, or one of those who read.
//!
//! It does what the lines on its stdin say, answers on stdout, and ends when stdin does: with the bench, however that
//! ends.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Write};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use s3engine::service::{Caps, Service, ServiceOptions};
use s3engine::{ConnectOptions, Engine};

use crate::bench::rows::{HTTP_PART, RDMA_PART};
use crate::connect;
use crate::exit::Failure;

use super::load::{self, Load, Shared};
use super::message::{Count, Means, Order, Site, Task, Used, Word, added};
use super::run::Registrations;

/// How often a worker says what it has moved.
const SAMPLE: Duration = Duration::from_millis(100);

/// How long the threads of a worker have for a step of preparation, besides what their GETs may take.
const STEP: Duration = Duration::from_secs(600);

/// Runs until stdin ends.
pub(crate) fn run() -> Result<(), Failure> {
    let orders = orders();
    let told = match orders.recv() {
        Ok(Order::Serve(site)) => serve(&site, &orders),
        Ok(Order::Prepare(task)) => work(&task, &orders),
        Ok(other) => Err(format!("{other:?} to a worker without a task")),
        Err(_) => Ok(()),
    };
    if let Err(why) = told {
        say(&Word::Failed(why));
        // Told: the bench ends this process when it has read that.
        let _ = orders.recv_timeout(STEP);
    }
    Ok(())
}

/// What comes on stdin. Its end is this process's: whoever started it is gone.
fn orders() -> Receiver<Order> {
    let (sender, orders) = mpsc::channel();
    thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            match serde_json::from_str(&line) {
                Ok(order) => drop(sender.send(order)),
                Err(error) => say(&Word::Failed(format!("an order that is none: {error}"))),
            }
        }
        std::process::exit(0);
    });
    orders
}

fn say(word: &Word) {
    let line = serde_json::to_string(word).unwrap_or_default();
    let mut stdout = io::stdout().lock();
    // Nobody reads: stdin ends too.
    let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
}

fn serve(site: &Site, orders: &Receiver<Order>) -> Result<(), String> {
    let engine = engine(site)?;
    let socket = site
        .socket
        .clone()
        .ok_or("a host service without a socket")?;
    let _service = Service::start(ServiceOptions {
        socket,
        endpoints: vec![("bench".to_owned(), engine.clone())],
        allow: Vec::new(),
        rules: Vec::new(),
        client_headers: Vec::new(),
        caps: Caps {
            slab_bytes: site.slab_bytes,
            ..Caps::default()
        },
    })
    .map_err(|error| error.to_string())?;
    say(&ready(&engine));
    while let Ok(Order::Tell) = orders.recv() {
        say(&Word::Used(Used {
            cpu: cpu_seconds(),
            registrations: registrations(&engine),
            rails: rails(std::slice::from_ref(&engine)),
        }));
    }
    Ok(())
}

fn work(task: &Task, orders: &Receiver<Order>) -> Result<(), String> {
    let connect = |nth: usize| match &task.site.socket {
        None => engine(&task.site),
        Some(socket) => {
            let options = ConnectOptions {
                label: Some(format!("worker {}.{nth}", task.nth)),
                ..ConnectOptions::default()
            };
            Engine::connect(socket, options).map_err(|error| error.to_string())
        }
    };
    let engines: Vec<Engine> = (0..task.clients).map(connect).collect::<Result<_, _>>()?;
    let shared = Shared::default();
    thread::scope(|scope| {
        // However this ends, the threads end.
        let _end = load::EndOnDrop(&shared);
        let (steps, stepped) = mpsc::channel();
        let mut threads = Vec::new();
        for nth in 0..task.threads {
            let load = Load::new(&engines[nth % engines.len()], task, nth, &shared)?;
            let steps = steps.clone();
            threads.push(scope.spawn(move || load.run(&steps)));
        }
        drop(steps);
        let all = |step: &str| -> Result<(), String> {
            for _ in 0..task.threads {
                match stepped.recv_timeout(STEP) {
                    Ok(result) => result?,
                    Err(_) => return Err(format!("a thread did not end its {step}")),
                }
            }
            Ok(())
        };
        all("preparation")?;
        say(&ready(&engines[0]));
        expect(orders, "Probe", |order| matches!(order, Order::Probe))?;
        shared.begin(load::Phase::Probe);
        all("small GETs")?;
        say(&Word::Probed(shared.probed()));
        expect(orders, "Go", |order| matches!(order, Order::Go))?;
        shared.begin(load::Phase::WarmUp);
        expect(orders, "Count", |order| matches!(order, Order::Count))?;
        let (began, cpu) = (Instant::now(), cpu_seconds());
        let by_rail = rails(&engines);
        shared.begin(load::Phase::Window);
        let end = tell_samples(orders, &shared)?;
        shared.begin(end);
        let (seconds, cpu) = (began.elapsed().as_secs_f64(), cpu_seconds() - cpu);
        let mut count = Count {
            seconds,
            cpu,
            rails: added(&by_rail, rails(&engines)),
            ..load::joined(threads)?
        };
        if task.site.socket.is_none() {
            for engine in &engines {
                count.registrations.add(registrations(engine));
            }
        }
        say(&Word::Done(Box::new(count)));
        // It ends with the bench's word: an end before that is one too early.
        let _ = orders.recv();
        Ok(())
    })
}

/// Says what is moved until the window ends, and how it does.
fn tell_samples(orders: &Receiver<Order>, shared: &Shared) -> Result<load::Phase, String> {
    let mut next = Instant::now() + SAMPLE;
    loop {
        match orders.recv_timeout(next.saturating_duration_since(Instant::now())) {
            Ok(Order::Stop) => return Ok(load::Phase::Stop),
            Ok(Order::Cut) => return Ok(load::Phase::Cut),
            Ok(other) => return Err(format!("{other:?} within the window")),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                next += SAMPLE;
                let bytes = shared.bytes.swap(0, Ordering::Relaxed);
                let ops = shared.ops.swap(0, Ordering::Relaxed);
                say(&Word::Sample { bytes, ops });
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => return Err("no more orders".into()),
        }
    }
}

fn expect(
    orders: &Receiver<Order>,
    what: &str,
    is_it: impl Fn(&Order) -> bool,
) -> Result<(), String> {
    match orders.recv() {
        Ok(order) if is_it(&order) => Ok(()),
        Ok(order) => Err(format!("{order:?} instead of {what}")),
        Err(_) => Err("no more orders".into()),
    }
}

fn ready(engine: &Engine) -> Word {
    let fabric = engine.fabric();
    Word::Ready(Means {
        fabric: fabric.map(str::to_owned).map_err(str::to_owned),
        driver: engine.driver().map(ToString::to_string),
    })
}

/// An engine as the settings say.
fn engine(site: &Site) -> Result<Engine, String> {
    let failed = |failure: Failure| failure.to_string();
    let settings = &site.settings;
    let endpoint = settings
        .endpoint_at(&site.url)
        .map_err(|error| error.to_string())?;
    let credentials = settings.credentials().map_err(|error| error.to_string())?;
    let pool = connect::pool(settings, site.slab_bytes, Some(site.pool_bytes));
    let builder = connect::describe(settings, endpoint, credentials)
        .map_err(|error| error.to_string())?
        .pool(pool.map_err(|error| error.to_string())?)
        .part_sizes(HTTP_PART, RDMA_PART);
    connect::start(builder, settings).map_err(failed)
}

fn registrations(engine: &Engine) -> Registrations {
    let ledger = engine.pool().stats().ledger;
    Registrations {
        count: ledger.registered,
        failed: ledger.failed,
        seconds: ledger.time.as_secs_f64(),
    }
}

/// Bytes by rail since the engines are there.
fn rails(engines: &[Engine]) -> BTreeMap<String, u64> {
    let mut bytes = BTreeMap::new();
    for rail in engines.iter().flat_map(Engine::rails) {
        *bytes.entry(rail.name.to_string()).or_default() += rail.bytes;
    }
    bytes
}

fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
