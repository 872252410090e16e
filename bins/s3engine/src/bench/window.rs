//! The timed window that loads and floors share: warm-up, start, stop, and the processor time between.

use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::bench::watch::Watch;
use crate::exit::Failure;

/// How often it is looked whether all is well.
const POLL: Duration = Duration::from_millis(50);

/// Where in its life a measurement is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nothing counts yet.
    WarmUp,
    /// What ends now counts.
    Window,
    /// No more work is to be begun.
    Stop,
}

/// The phase, as all threads of a measurement read it.
#[derive(Default)]
pub(crate) struct Clock(AtomicU8);

impl Clock {
    pub(crate) fn phase(&self) -> Phase {
        match self.0.load(Ordering::Acquire) {
            0 => Phase::WarmUp,
            1 => Phase::Window,
            _ => Phase::Stop,
        }
    }

    fn set(&self, phase: Phase) {
        self.0.store(phase as u8, Ordering::Release);
    }
}

/// How long to warm up and to measure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) warm_up: Duration,
    pub(crate) window: Duration,
}

/// What a window took.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Window {
    /// Seconds on the wall.
    pub(crate) seconds: f64,
    /// Processor seconds of this process, in user and kernel.
    pub(crate) cpu: f64,
}

impl Window {
    /// 10^9 bytes a second.
    pub(crate) fn gb_per_s(&self, bytes: u64) -> f64 {
        bytes as f64 / 1e9 / self.seconds.max(1e-9)
    }

    /// Processor seconds for 2^30 bytes, where there were any.
    pub(crate) fn cpu_s_per_gib(&self, bytes: u64) -> Option<f64> {
        (bytes > 0).then(|| self.cpu / (bytes as f64 / (1u64 << 30) as f64))
    }
}

/// Leads a clock through its phases while threads work by it. Stops them in any case.
pub(crate) fn lead(clock: &Clock, times: Times, watch: Watch<'_>) -> Result<Window, Failure> {
    let result = (|| {
        sleep(times.warm_up, watch)?;
        let (began, cpu) = (Instant::now(), cpu_seconds());
        clock.set(Phase::Window);
        sleep(times.window, watch)?;
        Ok(Window {
            cpu: cpu_seconds() - cpu,
            seconds: began.elapsed().as_secs_f64(),
        })
    })();
    clock.set(Phase::Stop);
    result
}

fn sleep(time: Duration, watch: Watch<'_>) -> Result<(), Failure> {
    let until = Instant::now() + time;
    loop {
        watch.check()?;
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        thread::sleep(left.min(POLL));
    }
}

fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interrupt::Interrupt;

    #[test]
    fn a_window_counts_the_work_of_other_threads() {
        let clock = Clock::default();
        let times = Times {
            warm_up: Duration::from_millis(10),
            window: Duration::from_millis(100),
        };
        let window = thread::scope(|scope| {
            scope.spawn(|| {
                while clock.phase() != Phase::Stop {
                    std::hint::black_box(0);
                }
            });
            lead(&clock, times, Watch::new(&Interrupt::default(), None)).unwrap()
        });
        assert_eq!(clock.phase(), Phase::Stop);
        assert!(window.seconds >= 0.1 && window.cpu > 0.0);
    }

    #[test]
    fn rates_of_nothing_are_no_numbers_to_print() {
        let window = Window {
            seconds: 2.0,
            cpu: 1.0,
        };
        assert_eq!(window.cpu_s_per_gib(0), None);
        assert_eq!(window.cpu_s_per_gib(2 << 30), Some(0.5));
        assert_eq!(window.gb_per_s(4_000_000_000), 2.0);
    }
}
