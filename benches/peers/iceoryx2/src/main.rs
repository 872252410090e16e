//! Request-response of iceoryx2 between two processes, as the benchmark of the rings wants it measured.
//!
//! `iceoryx2-peer answer NAME` serves, `iceoryx2-peer ask NAME` measures. Both take one order a line, the server first:
//! `trips spin COUNT`, `trips sleep COUNT`, `stream spin COUNT`. A request has the 64 bytes of a submission, a
//! response the 32 of a completion. Who spins looks for messages again and again; who sleeps is woken by an event of
//! iceoryx2, each side by one of its own.

use std::collections::VecDeque;
use std::error::Error;
use std::hint::{black_box, spin_loop};
use std::io::{Write, stdin, stdout};
use std::time::{Duration, Instant};

use iceoryx2::pending_response::PendingResponse;
use iceoryx2::port::{listener::Listener, notifier::Notifier};
use iceoryx2::prelude::*;
use iceoryx2::service::port_factory::{event, request_response};

type Sqe = [u64; 8];
type Cqe = [u64; 4];
type Calls = request_response::PortFactory<ipc::Service, Sqe, (), Cqe, ()>;
type Client = iceoryx2::port::client::Client<ipc::Service, Sqe, (), Cqe, ()>;
type Pending = PendingResponse<ipc::Service, Sqe, (), Cqe, ()>;
type Failed = Box<dyn Error>;

/// No wait is longer, whatever goes wrong.
const BOUND: Duration = Duration::from_secs(300);

/// Requests in flight where the rate is asked for: the best of 1 to 256, as a message costs more the more may be.
const WINDOW: usize = 4;

fn main() -> Result<(), Failed> {
    set_log_level(LogLevel::Error);
    let args: Vec<String> = std::env::args().skip(1).collect();
    match &args[..] {
        [role, name] if role == "answer" => answer(name),
        [role, name] if role == "ask" => ask(name),
        _ => Err("iceoryx2-peer answer|ask NAME".into()),
    }
}

/// The ports that both sides use.
struct Ports {
    /// For one request at a time.
    one: Calls,
    /// For a window of them.
    many: Calls,
    asked: event::PortFactory<ipc::Service>,
    answered: event::PortFactory<ipc::Service>,
}

impl Ports {
    fn open(node: &Node<ipc::Service>, name: &str) -> Result<Self, Failed> {
        let named = |what: &str| ServiceName::new(&format!("{name}/{what}"));
        let event = |what| -> Result<_, Failed> {
            Ok(node
                .service_builder(&named(what)?)
                .event()
                .open_or_create()?)
        };
        let calls = |what, most| -> Result<Calls, Failed> {
            let calls = node
                .service_builder(&named(what)?)
                .request_response::<Sqe, Cqe>()
                .max_active_requests_per_client(most)
                .max_clients(1)
                .max_servers(1);
            Ok(calls.open_or_create()?)
        };
        Ok(Self {
            one: calls("one", 1)?,
            many: calls("many", WINDOW)?,
            asked: event("asked")?,
            answered: event("answered")?,
        })
    }
}

fn say(text: &str) -> Result<(), Failed> {
    println!("{text}");
    Ok(stdout().flush()?)
}

/// The next order; `None` when there will be no more.
fn order() -> Result<Option<(String, String, usize)>, Failed> {
    let mut line = String::new();
    if stdin().read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let words: Vec<&str> = line.split_whitespace().collect();
    let [what, how, count] = words[..] else {
        return Err(format!("no order: {line:?}").into());
    };
    Ok(Some((what.to_owned(), how.to_owned(), count.parse()?)))
}

/// Looks until there is something; gives way now and then.
fn spin<T>(mut look: impl FnMut() -> Result<Option<T>, Failed>) -> Result<T, Failed> {
    let began = Instant::now();
    loop {
        for _ in 0..1000 {
            if let Some(found) = look()? {
                return Ok(found);
            }
            spin_loop();
        }
        std::thread::yield_now();
        if began.elapsed() > BOUND {
            return Err("the other side is gone".into());
        }
    }
}

/// Looks until there is something, and sleeps in between.
fn sleep<T>(
    bell: &Listener<ipc::Service>,
    mut look: impl FnMut() -> Result<Option<T>, Failed>,
) -> Result<T, Failed> {
    let began = Instant::now();
    while began.elapsed() < BOUND {
        if let Some(found) = look()? {
            return Ok(found);
        }
        // May return early, without an event.
        bell.timed_wait(|_| (), BOUND)?;
    }
    Err("the other side is gone".into())
}

fn answer(name: &str) -> Result<(), Failed> {
    let node = NodeBuilder::new().create::<ipc::Service>()?;
    let ports = Ports::open(&node, name)?;
    let (one, many) = (
        ports.one.server_builder().create()?,
        ports.many.server_builder().create()?,
    );
    let bell = ports.asked.listener_builder().create()?;
    let client: Notifier<_> = ports.answered.notifier_builder().create()?;
    say("started")?;
    while let Some((what, how, count)) = order()? {
        let server = if what == "stream" { &many } else { &one };
        say("ready")?;
        for _ in 0..count {
            let look = || Ok(server.receive()?);
            let request = match how.as_str() {
                "sleep" => sleep(&bell, look)?,
                _ => spin(look)?,
            };
            let [_, user_data, entry, ..] = *request.payload();
            request.send_copy([user_data, 0, entry, 0])?;
            if how == "sleep" {
                client.notify()?;
            }
        }
    }
    Ok(())
}

fn ask(name: &str) -> Result<(), Failed> {
    let node = NodeBuilder::new().create::<ipc::Service>()?;
    let ports = Ports::open(&node, name)?;
    let (one, many) = (
        ports.one.client_builder().create()?,
        ports.many.client_builder().create()?,
    );
    let bell = ports.answered.listener_builder().create()?;
    let server: Notifier<_> = ports.asked.notifier_builder().create()?;
    say("started")?;
    let send = |client: &Client, n: usize| -> Result<Pending, Failed> {
        let n = n as u64;
        Ok(client.send_copy([0, n, n, 0, 0, 0, 0, 0])?)
    };
    let received = |pending: &Pending| -> Result<Option<Cqe>, Failed> {
        Ok(pending.receive()?.map(|response| *response.payload()))
    };
    while let Some((what, how, count)) = order()? {
        if what == "stream" {
            say(&stream(count, |n| send(&many, n), received)?.to_string())?;
            continue;
        }
        let mut trips = Vec::with_capacity(count);
        let mut last = Instant::now();
        for n in 0..count {
            let pending = send(&one, n)?;
            let answer = if how == "sleep" {
                server.notify()?;
                sleep(&bell, || received(&pending))?
            } else {
                spin(|| received(&pending))?
            };
            black_box(answer);
            drop(pending);
            let now = Instant::now();
            trips.push(now - std::mem::replace(&mut last, now));
        }
        say(&figures(trips))?;
    }
    Ok(())
}

/// Millions of requests a second, a window of them in flight.
fn stream(
    count: usize,
    send: impl Fn(usize) -> Result<Pending, Failed>,
    received: impl Fn(&Pending) -> Result<Option<Cqe>, Failed>,
) -> Result<f64, Failed> {
    let began = Instant::now();
    let mut pending = VecDeque::with_capacity(WINDOW);
    for n in 0..count {
        if pending.len() == WINDOW {
            let oldest = pending.pop_front().expect("a full window");
            black_box(spin(|| received(&oldest))?);
        }
        pending.push_back(send(n)?);
    }
    for rest in pending {
        black_box(spin(|| received(&rest))?);
    }
    Ok(count as f64 / began.elapsed().as_secs_f64() / 1e6)
}

/// Median, 99th percentile and mean in microseconds.
fn figures(mut trips: Vec<Duration>) -> String {
    trips.sort();
    let micros = |trip: Duration| trip.as_nanos() as f64 / 1e3;
    let mean = micros(trips.iter().sum()) / trips.len() as f64;
    let (p50, p99) = (trips[trips.len() / 2], trips[trips.len() * 99 / 100]);
    format!("{} {} {mean}", micros(p50), micros(p99))
}
