//! The other process, seen from both sides.

use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use tokio::runtime::{Builder, Runtime};

use super::eventfd::{Ping, Pong};
use super::handover::{give, hear, say, take};
use super::queue::{Answering, Asking};
use super::wait::{Wait, pin, spawn};

/// What goes there and back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// NOPs of a queue.
    Queue,
    /// A count of an eventfd.
    Eventfd,
}

impl Side {
    const ALL: [Side; 2] = [Side::Queue, Side::Eventfd];

    /// How tables and orders call it.
    pub fn name(self) -> &'static str {
        match self {
            Side::Queue => "queue",
            Side::Eventfd => "eventfd",
        }
    }
}

/// The service's process, and the client's ends of what it has made.
pub struct Other {
    child: Child,
    control: OwnedFd,
    queue: Asking,
    eventfd: Ping,
}

impl Other {
    /// Starts it, each side on its processor; from here on this thread is the client.
    pub fn start(processors: Option<[usize; 2]>) -> Self {
        let flags = SocketFlags::CLOEXEC;
        let (control, far) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .expect("a socket pair");
        let mut program = Command::new(std::env::current_exe().expect("this program"));
        program
            .env("S3ENGINE_BENCH_ROLE", "service")
            .stdin(Stdio::from(far));
        let child = spawn(&mut program, processors.map(|[_, service]| service));
        let child = child.expect("another process");
        pin(processors.map(|[client, _]| client));
        let [client, service, heard, rung, there, back] = take(&control);
        Self {
            child,
            control,
            queue: Asking::new(&client, &service, heard, rung),
            eventfd: Ping { there, back },
        }
    }

    /// Times of so many trips there and back.
    pub fn trips(&mut self, side: Side, wait: Wait, count: u32) -> Vec<Duration> {
        self.order(side, wait, count);
        match side {
            Side::Queue => self.queue.trips(wait, count),
            Side::Eventfd => self.eventfd.trips(count),
        }
    }

    /// Millions of entries a second, at most `window` of them in flight.
    pub fn stream(&mut self, wait: Wait, window: u32, batches: u32) -> f64 {
        let count = batches * super::BATCH;
        self.order(Side::Queue, wait, count);
        let took = self.queue.stream(wait, window, count);
        f64::from(count) / took.as_secs_f64() / 1e6
    }

    fn order(&self, side: Side, wait: Wait, count: u32) {
        let (_, how) = Wait::ALL[wait as usize];
        say(&self.control, &format!("{} {how} {count}", side.name()));
        assert_eq!(hear(&self.control).as_deref(), Some("ready"));
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the other process does: answers as much as it is told, again and again.
pub fn run() {
    let control = std::io::stdin();
    let runtime = runtime();
    let (mut queue, [client, service, heard, rung]) = Answering::create();
    let mut eventfd = Pong::create();
    let (there, back) = eventfd.fds();
    let own = [&client, &service, &heard, &rung].map(AsFd::as_fd);
    let fds = [own[0], own[1], own[2], own[3], there, back];
    give(&control, fds);
    while let Some(order) = hear(&control) {
        let words: Vec<&str> = order.split(' ').collect();
        let [side, how, count] = words[..] else {
            panic!("no order: {order}")
        };
        let named = |side: &&Side| side.name() == words[0];
        let side = Side::ALL
            .iter()
            .find(named)
            .unwrap_or_else(|| panic!("no side {side}"));
        let (wait, _) = Wait::ALL
            .iter()
            .find(|(_, name)| *name == how)
            .expect("a wait");
        let count = count.parse().expect("a number");
        say(&control, "ready");
        match side {
            Side::Queue => queue.answer(*wait, count, &runtime),
            Side::Eventfd => eventfd.answer(*wait, count, &runtime),
        }
    }
}

/// As the engine's threads have it.
fn runtime() -> Runtime {
    let built = Builder::new_current_thread().enable_all().build();
    built.expect("a runtime")
}
