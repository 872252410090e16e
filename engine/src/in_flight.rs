//! How much is under way at once, for the whole engine.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bounds on what is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests at once. Each has a connection of its own.
    pub requests: usize,
    /// Bytes that these requests ask for. A single request may be larger, alone.
    pub bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            requests: 64,
            bytes: 1 << 30,
        }
    }
}

/// Bytes are counted in units of this, so that many fit the semaphore's 32 bits.
const UNIT: u64 = 4096;

pub(crate) struct InFlight {
    requests: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
    all: u32,
}

/// The right to run one request. Ends on drop.
pub(crate) struct Permit {
    _request: OwnedSemaphorePermit,
    _bytes: OwnedSemaphorePermit,
}

impl InFlight {
    pub(crate) fn new(limits: Limits) -> Self {
        let all = u32::try_from(limits.bytes / UNIT)
            .unwrap_or(u32::MAX)
            .max(1);
        let requests = limits.requests.clamp(1, Semaphore::MAX_PERMITS);
        Self {
            requests: Arc::new(Semaphore::new(requests)),
            bytes: Arc::new(Semaphore::new(all as usize)),
            all,
        }
    }

    /// Waits, first come first served, for the right to ask for `len` bytes. `None` when the engine stops.
    pub(crate) async fn admit(&self, len: u64) -> Option<Permit> {
        let units = u32::try_from(len.div_ceil(UNIT))
            .unwrap_or(u32::MAX)
            .min(self.all);
        let _request = Arc::clone(&self.requests).acquire_owned().await.ok()?;
        let _bytes = Arc::clone(&self.bytes)
            .acquire_many_owned(units)
            .await
            .ok()?;
        metrics::gauge!("s3engine_in_flight_requests").increment(1);
        Some(Permit { _request, _bytes })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        metrics::gauge!("s3engine_in_flight_requests").decrement(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn block_on<F: Future>(future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap()
            .block_on(future)
    }

    #[test]
    fn bytes_and_requests_are_bounded_and_come_back() {
        block_on(async {
            let in_flight = InFlight::new(Limits {
                requests: 3,
                bytes: 16 * UNIT,
            });
            let a = in_flight.admit(10 * UNIT).await.unwrap();
            let b = in_flight.admit(6 * UNIT).await.unwrap();
            let wait = Duration::from_millis(10);
            assert!(
                tokio::time::timeout(wait, in_flight.admit(1))
                    .await
                    .is_err(),
                "no bytes left"
            );
            drop(a);
            let c = in_flight.admit(1).await.unwrap();
            let d = in_flight.admit(1).await.unwrap();
            assert!(
                tokio::time::timeout(wait, in_flight.admit(1))
                    .await
                    .is_err(),
                "no requests left"
            );
            drop((b, c, d));
        });
    }

    #[test]
    fn a_request_larger_than_the_bound_runs_alone() {
        block_on(async {
            let in_flight = InFlight::new(Limits {
                requests: 3,
                bytes: 16 * UNIT,
            });
            let large = in_flight.admit(u64::MAX).await.unwrap();
            let wait = Duration::from_millis(10);
            assert!(
                tokio::time::timeout(wait, in_flight.admit(1))
                    .await
                    .is_err()
            );
            drop(large);
            assert!(in_flight.admit(1).await.is_some());
        });
    }
}
