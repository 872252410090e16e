//! Which addresses are better left alone for now. The rule is pure; the clock is the caller's.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long an address is left alone after its first failure. Twice as long after each further one.
const FIRST: Duration = Duration::from_secs(1);
/// The longest time that one is left alone.
const LONGEST: Duration = Duration::from_secs(60);
/// A failure this long after the end of that counts as the first one again.
const FORGOTTEN: Duration = Duration::from_secs(300);
/// The most addresses that are remembered.
const MOST: usize = 4096;

/// Addresses to which no connection could be opened lately. Others are used first; these are tried when all others
/// fail as well, and again like any other when their time is over.
#[derive(Default)]
pub(crate) struct Health {
    benched: Mutex<HashMap<SocketAddr, Bench>>,
    /// There may be some.
    any: AtomicBool,
}

#[derive(Clone, Copy)]
struct Bench {
    until: Instant,
    failures: u32,
}

impl Health {
    /// No connection came about.
    pub(crate) fn failed(&self, address: SocketAddr, now: Instant) {
        let mut benched = self.lock();
        benched.retain(|_, bench| now < bench.until + FORGOTTEN);
        if benched.len() >= MOST && !benched.contains_key(&address) {
            return;
        }
        let bench = benched.entry(address).or_insert(Bench {
            until: now,
            failures: 0,
        });
        // Those that were under way together are one failure.
        if now < bench.until {
            return;
        }
        let time = FIRST
            .saturating_mul(1 << bench.failures.min(16))
            .min(LONGEST);
        bench.failures = bench.failures.saturating_add(1);
        bench.until = now + time;
        self.any.store(true, Ordering::Relaxed);
        tracing::debug!(%address, ?time, "no connection: other addresses are used first");
    }

    /// One did.
    pub(crate) fn worked(&self, address: SocketAddr) {
        if self.any.load(Ordering::Relaxed) {
            let mut benched = self.lock();
            benched.remove(&address);
            self.any.store(!benched.is_empty(), Ordering::Relaxed);
        }
    }

    /// How much longer it is to be left alone; nothing: it is as good as any.
    pub(crate) fn left(&self, address: SocketAddr, now: Instant) -> Duration {
        if !self.any.load(Ordering::Relaxed) {
            return Duration::ZERO;
        }
        let bench = self.lock().get(&address).copied();
        bench.map_or(Duration::ZERO, |bench| {
            bench.until.saturating_duration_since(now)
        })
    }

    /// Whether all of them, and there are some, are to be left alone.
    pub(crate) fn are_benched(&self, addresses: &[SocketAddr], now: Instant) -> bool {
        let is_benched = |address: &SocketAddr| !self.left(*address, now).is_zero();
        !addresses.is_empty() && addresses.iter().all(is_benched)
    }

    /// Whether there is nothing to ask about.
    pub(crate) fn is_clear(&self) -> bool {
        !self.any.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SocketAddr, Bench>> {
        self.benched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn address(last: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, last], 80))
    }

    #[test]
    fn an_address_that_fails_is_left_alone_longer_each_time() {
        let health = Health::default();
        let mut now = Instant::now();
        let mut times = Vec::new();
        for _ in 0..8 {
            health.failed(address(1), now);
            let left = health.left(address(1), now);
            times.push(left.as_secs());
            now += left;
            // Its time is over: it is tried again.
            assert!(health.left(address(1), now).is_zero());
        }
        assert_eq!(times, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert!(health.left(address(2), now).is_zero());
    }

    #[test]
    fn success_and_time_forget_what_was() {
        let health = Health::default();
        let now = Instant::now();
        health.failed(address(1), now);
        health.failed(address(1), now + FIRST);
        assert_eq!(health.left(address(1), now + FIRST), FIRST * 2);
        health.worked(address(1));
        assert!(health.is_clear());
        health.failed(address(1), now);
        let later = now + FIRST + FORGOTTEN;
        health.failed(address(1), later);
        assert_eq!(health.left(address(1), later), FIRST);
    }

    #[test]
    fn failures_that_happen_together_are_one() {
        let health = Health::default();
        let now = Instant::now();
        for _ in 0..100 {
            health.failed(address(1), now);
        }
        assert_eq!(health.left(address(1), now), FIRST);
        assert!(health.are_benched(&[address(1)], now));
        assert!(!health.are_benched(&[address(1), address(2)], now));
        assert!(!health.are_benched(&[], now));
    }

    proptest! {
        #[test]
        fn no_address_is_left_alone_for_ever(steps in prop::collection::vec((0..4_u8, 0..100_u64, any::<bool>()), 0..60)) {
            let health = Health::default();
            let mut now = Instant::now();
            for (last, wait, fails) in steps {
                now += Duration::from_secs(wait);
                if fails {
                    health.failed(address(last), now);
                } else {
                    health.worked(address(last));
                    prop_assert!(health.left(address(last), now).is_zero());
                }
                prop_assert!(health.left(address(last), now) <= LONGEST);
            }
        }
    }
}
