//! The timed part of a client's run: requests and processor time between two moments.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// What a client did in the time that counts.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct Measured {
    pub requests: u64,
    pub seconds: f64,
    /// Of its process, where that is known.
    pub cpu_seconds: Option<f64>,
}

/// What the requests of all tasks share.
#[derive(Debug, Default)]
pub struct Turns {
    next: AtomicUsize,
    done: AtomicU64,
    over: AtomicBool,
}

impl Turns {
    /// The number of the next request; none when the time is over.
    pub fn next(&self) -> Option<usize> {
        (!self.over.load(Relaxed)).then(|| self.next.fetch_add(1, Relaxed))
    }

    pub fn did(&self) {
        self.done.fetch_add(1, Relaxed);
    }

    /// Waits, with `sleep`, for a while that does not count and one that does.
    pub fn lead(&self, window: Duration, sleep: impl Fn(Duration)) -> Measured {
        sleep(window / 4);
        let (began, cpu, done) = (Instant::now(), cpu(), self.done.load(Relaxed));
        sleep(window);
        let (requests, seconds) = (self.done.load(Relaxed) - done, began.elapsed());
        let measured = Measured {
            requests,
            seconds: seconds.as_secs_f64(),
            cpu_seconds: Some(self::cpu() - cpu),
        };
        self.over.store(true, Relaxed);
        measured
    }
}

/// Processor time of this process, in seconds.
fn cpu() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
