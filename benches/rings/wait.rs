//! The ways to wait, and where.

use std::hint::spin_loop;
use std::io;
use std::os::fd::AsRawFd;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// No wait is longer, whatever goes wrong.
pub const BOUND: Duration = Duration::from_secs(300);

/// How a side waits for the other.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Both look again and again.
    Spin,
    /// Both sleep in poll(2).
    Poll,
    /// The client sleeps in poll(2), the service in tokio.
    Epoll,
}

impl Wait {
    /// All of them, and what they are called.
    pub const ALL: [(Wait, &str); 3] = [
        (Wait::Spin, "spin"),
        (Wait::Poll, "poll"),
        (Wait::Epoll, "epoll"),
    ];
}

/// Looks until there is something; gives way now and then, should both sides share a processor.
pub fn spin<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        for _ in 0..1000 {
            if let Some(found) = look() {
                return found;
            }
            spin_loop();
        }
        std::thread::yield_now();
        assert!(began.elapsed() < BOUND, "the other side is gone");
    }
}

/// Watches a descriptor until it can be read.
#[allow(
    deprecated,
    reason = "the descriptor is the value's own, the same for as long as that lives"
)]
pub fn watched<T: AsRawFd>(of: T) -> io::Result<AsyncFd<T>> {
    AsyncFd::with_interest(of, Interest::READABLE)
}

/// Two processors that this process may use, if there are two.
pub fn two_processors() -> Option<[usize; 2]> {
    let may = sched_getaffinity(None).ok()?;
    let mut usable = (0..CpuSet::MAX_CPU).filter(|cpu| may.is_set(*cpu));
    Some([usable.next()?, usable.next()?])
}

/// Keeps this thread on one processor.
pub fn pin(processor: Option<usize>) {
    let Some(processor) = processor else { return };
    let mut only = CpuSet::new();
    only.set(processor);
    sched_setaffinity(None, &only).expect("a processor that may be used");
}

/// Starts a process on one processor, where this thread then is too.
pub fn spawn(program: &mut Command, processor: Option<usize>) -> io::Result<Child> {
    pin(processor);
    program.spawn()
}
