//! The least that wakes another process and is woken by it: two eventfds.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use tokio::io::unix::AsyncFd;
use tokio::runtime::Runtime;

use super::wait::{BOUND, Wait, watched};

/// The client's side.
pub struct Ping {
    /// Wakes the service.
    pub there: OwnedFd,
    /// Wakes the client.
    pub back: OwnedFd,
}

impl Ping {
    /// Times of so many trips there and back. The client sleeps in poll(2).
    pub fn trips(&mut self, count: u32) -> Vec<Duration> {
        let mut last = Instant::now();
        let one = |_| {
            add(&self.there);
            sleep(&self.back);
            let now = Instant::now();
            now - std::mem::replace(&mut last, now)
        };
        (0..count).map(one).collect()
    }
}

/// The service's side.
pub struct Pong {
    there: Arc<OwnedFd>,
    back: OwnedFd,
}

impl Pong {
    /// Makes both eventfds.
    pub fn create() -> Self {
        let new = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Self {
            there: Arc::new(new().expect("an eventfd")),
            back: new().expect("an eventfd"),
        }
    }

    /// For the client: what wakes the service, and what wakes the client.
    pub fn fds(&self) -> (BorrowedFd<'_>, BorrowedFd<'_>) {
        (self.there.as_fd(), self.back.as_fd())
    }

    /// Answers so many times.
    pub fn answer(&mut self, wait: Wait, count: u32, runtime: &Runtime) {
        if wait == Wait::Epoll {
            return runtime.block_on(self.answer_epoll(count));
        }
        for _ in 0..count {
            sleep(&*self.there);
            add(&self.back);
        }
    }

    async fn answer_epoll(&self, count: u32) {
        let there: AsyncFd<_> = watched(Arc::clone(&self.there)).expect("it can be watched");
        for _ in 0..count {
            loop {
                let ready = tokio::time::timeout(BOUND, there.readable()).await;
                ready
                    .expect("the client asks")
                    .expect("watched")
                    .clear_ready();
                if taken(&**there.get_ref()) {
                    break;
                }
            }
            add(&self.back);
        }
    }
}

fn add(to: impl AsFd) {
    rustix::io::write(to, &1u64.to_ne_bytes()).expect("it has room");
}

fn taken(from: impl AsFd) -> bool {
    rustix::io::read(from, &mut [0u8; 8]).is_ok()
}

fn sleep(on: impl AsFd) {
    let bound = Timespec::try_from(BOUND).ok();
    let mut fds = [PollFd::new(&on, PollFlags::IN)];
    poll(&mut fds, bound.as_ref()).expect("it can be polled");
    assert!(taken(&on), "the other side is gone");
}
