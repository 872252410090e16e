//! Whether and when a failed request is made again. A pure rule: the caller brings the dice.

use std::time::Duration;

use crate::error::Error;

/// The longest wait that a server can ask for.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(20);

/// How often, and how far apart, a request is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Attempts in all, the first among them.
    pub max_attempts: u32,
    /// The bound of the first wait; it doubles with each attempt.
    pub base: Duration,
    /// The bound of any wait that the server did not ask for.
    pub cap: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        RetryPolicy {
            max_attempts: 3,
            base: Duration::from_millis(50),
            cap: Duration::from_secs(2),
        }
    }
}

impl RetryPolicy {
    /// How long to wait after `attempt` (from 1) failed with `error`; `None`: do not try again.
    ///
    /// The wait is spread evenly between nothing and its bound by `random` in 0..1, so that clients
    /// that failed together do not return together. A server's `Retry-After` is a lower bound.
    pub fn backoff(
        &self,
        attempt: u32,
        error: &Error,
        retry_after: Option<Duration>,
        random: f64,
    ) -> Option<Duration> {
        if attempt >= self.max_attempts || !error.is_retryable() {
            return None;
        }
        let doublings = attempt.saturating_sub(1).min(31);
        let bound = self.base.saturating_mul(1 << doublings).min(self.cap);
        // NaN clamps to NaN, and `max` turns that into 0.
        let jittered = bound.mul_f64(random.clamp(0.0, 1.0).max(0.0));
        let asked = retry_after.unwrap_or_default().min(LONGEST_RETRY_AFTER);
        Some(jittered.max(asked))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use proptest::prelude::*;

    fn error(status: u16) -> Error {
        Error::new(
            "GET",
            "b",
            "k",
            ErrorKind::Status {
                status,
                code: None,
                message: None,
            },
        )
    }

    #[test]
    fn the_last_attempt_and_a_client_error_are_final() {
        let policy = RetryPolicy::default();
        assert!(policy.backoff(1, &error(503), None, 0.5).is_some());
        assert_eq!(policy.backoff(3, &error(503), None, 0.5), None);
        assert_eq!(
            policy.backoff(1, &error(404), Some(Duration::from_secs(1)), 0.5),
            None
        );
    }

    #[test]
    fn waits_double_up_to_the_cap() {
        let policy = RetryPolicy {
            max_attempts: 100,
            ..RetryPolicy::default()
        };
        let longest = |attempt| policy.backoff(attempt, &error(500), None, 1.0).unwrap();
        assert_eq!(longest(1), Duration::from_millis(50));
        assert_eq!(longest(2), Duration::from_millis(100));
        assert_eq!(longest(99), Duration::from_secs(2));
    }

    #[test]
    fn a_server_may_ask_for_more_time_but_not_for_ever() {
        let policy = RetryPolicy::default();
        let wait = |after| policy.backoff(1, &error(503), Some(Duration::from_secs(after)), 0.0);
        assert_eq!(wait(7), Some(Duration::from_secs(7)));
        assert_eq!(wait(u64::MAX), Some(LONGEST_RETRY_AFTER));
    }

    proptest! {
        #[test]
        fn every_wait_is_bounded_whatever_the_dice(attempt: u32, random: f64, base in 0..u64::MAX, asked: Option<u64>) {
            let policy = RetryPolicy { max_attempts: u32::MAX, base: Duration::from_millis(base), ..RetryPolicy::default() };
            let asked = asked.map(Duration::from_secs);
            if let Some(wait) = policy.backoff(attempt, &error(503), asked, random) {
                prop_assert!(wait <= policy.cap.max(LONGEST_RETRY_AFTER));
            }
        }
    }
}
