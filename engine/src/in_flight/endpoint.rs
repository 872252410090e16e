//! What an endpoint is learned to bear, and the window that follows from it. Pure but for what it counts.

use std::time::{Duration, Instant};

use metrics::SharedString;

use super::Limits;
use super::adapt::{Adapt, Cause, End, Ending};
use super::turns::Load;

/// How many requests at once an endpoint is given, as it was learned from how they end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Concurrency {
    /// Requests at once, now.
    pub requests: usize,
    /// As many as there may be.
    pub ceiling: usize,
    /// How often they became fewer because the server said that it had too much to do: 503, 429 and the like.
    pub slow_downs: u64,
    /// The same because no answer came in time.
    pub timeouts: u64,
    /// The same because there was no connection, or it broke.
    pub losses: u64,
    /// The same because answers took longer, and fewer requests brought as much.
    pub latencies: u64,
}

impl Concurrency {
    /// How often they became fewer.
    pub fn shrinks(&self) -> u64 {
        self.slow_downs + self.timeouts + self.losses + self.latencies
    }
}

pub(super) struct Endpoint {
    adapt: Adapt,
    limits: Limits,
    label: SharedString,
    /// As it was told last.
    told: Concurrency,
}

impl Endpoint {
    /// One that nothing is known against; `label` is what people know it by.
    pub(super) fn new(limits: Limits, label: &str) -> Self {
        let adapt = Adapt::new(limits.requests);
        let endpoint = Self {
            told: Concurrency::of(&adapt, limits),
            adapt,
            limits,
            label: SharedString::from_shared(label.into()),
        };
        endpoint.tell_window();
        endpoint
    }

    pub(super) fn concurrency(&self) -> Concurrency {
        self.told
    }

    /// Takes in how a request ended that was one of those `taken`. Returns how long its place rests at most.
    pub(super) fn ended(&mut self, taken: Load, took: Duration, ending: Ending) -> Duration {
        let end = End {
            now: Instant::now(),
            took,
            used: self.places(taken),
            ending,
        };
        let rest = self.adapt.ended(&end);
        let now = Concurrency::of(&self.adapt, self.limits);
        if now != self.told {
            self.tell_shrinks(now);
            self.told = now;
            self.tell_window();
        }
        rest
    }

    /// The bounds that follow. A full window bounds nothing that the limits do not, but for places that rest.
    pub(super) fn bounds(&self) -> Limits {
        let (requests, ceiling) = (self.told.requests, self.told.ceiling);
        let part = u128::from(self.limits.bytes) * requests as u128 / ceiling as u128;
        let bytes = match requests < ceiling {
            true => part as u64,
            false => u64::MAX,
        };
        Limits { requests, bytes }
    }

    /// What is taken, in places: where bytes are what is short, they count.
    fn places(&self, taken: Load) -> f64 {
        let of_bytes = taken.bytes as f64 / self.limits.bytes.max(1) as f64;
        let of_bytes = of_bytes * self.limits.requests as f64;
        (taken.requests as f64).max(of_bytes)
    }

    fn tell_window(&self) {
        metrics::gauge!("s3engine_window_requests", "endpoint" => self.label.clone())
            .set(self.told.requests as f64);
    }

    fn tell_shrinks(&self, now: Concurrency) {
        for (cause, before, now) in [
            (Cause::SlowDown, self.told.slow_downs, now.slow_downs),
            (Cause::Timeout, self.told.timeouts, now.timeouts),
            (Cause::Lost, self.told.losses, now.losses),
            (Cause::Latency, self.told.latencies, now.latencies),
        ] {
            if now > before {
                metrics::counter!("s3engine_window_shrinks_total", "endpoint" => self.label.clone(), "cause" => cause.as_str())
                    .increment(now - before);
            }
        }
    }
}

impl Concurrency {
    fn of(adapt: &Adapt, limits: Limits) -> Self {
        let [slow_downs, timeouts, losses, latencies] = adapt.shrinks();
        Self {
            requests: adapt.places(),
            ceiling: limits.requests.max(1),
            slow_downs,
            timeouts,
            losses,
            latencies,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REFUSED: Ending = Ending::Refused {
        cause: Cause::SlowDown,
        retry_after: None,
    };

    #[test]
    fn bytes_are_bounded_as_requests_are() {
        let limits = Limits {
            requests: 64,
            bytes: 1 << 30,
        };
        let mut endpoint = Endpoint::new(limits, "http://x");
        let full = Limits {
            requests: 64,
            bytes: u64::MAX,
        };
        assert_eq!(endpoint.bounds(), full);
        // Four requests for a quarter of the bytes each: all places are taken.
        let taken = Load {
            requests: 4,
            bytes: 1 << 30,
        };
        for _ in 0..64 {
            endpoint.ended(taken, Duration::ZERO, REFUSED);
        }
        let expected = Limits {
            requests: 32,
            bytes: 1 << 29,
        };
        assert_eq!(endpoint.bounds(), expected);
        let told = endpoint.concurrency();
        assert_eq!((told.requests, told.ceiling, told.shrinks()), (32, 64, 1));
    }
}
