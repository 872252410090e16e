//! What is tried again, when, and how often: all of it is decided here. A pure rule: the caller brings clock and dice.
//!
//! | failed with | again |
//! |---|---|
//! | no connection, a connection lost, a phase that took too long | yes |
//! | a body that ended early, or could not be decoded | yes, for the rest of it where what came can be kept |
//! | status 408, 429, 500, 502, 503, 504, 509, or an S3 code of [`TRANSIENT`] | yes |
//! | any other status; a head that is no answer to the request; another version of the object | no |
//! | an RDMA transfer that the server says has failed | where no other way is allowed |
//! | nothing known of what a remote still writes | no (the caller sees to that) |
//!
//! All requests are without effect on the server (GET, HEAD, LIST), so any of them may be made again. An idle
//! connection that turns out closed is no attempt: the request goes out at once on a fresh one (see `http::Stale`).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::error::{Attempt, Error, ErrorKind, History, Phase};
use crate::outcome::Reason;

/// The longest wait that a server can ask for.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(20);

/// S3 codes of errors that may pass by themselves, whatever the status.
pub const TRANSIENT: [&str; 12] = [
    "BandwidthLimitExceeded",
    "InternalError",
    "RequestLimitExceeded",
    "RequestThrottled",
    "RequestTimeout",
    "ServiceUnavailable",
    "SlowDown",
    "SlowDownRead",
    "Throttling",
    "ThrottlingException",
    "TooManyRequests",
    "XMinioServerNotInitialized",
];

/// Whether a request that failed so may well succeed later.
pub fn may_pass(kind: &ErrorKind, phase: Option<Phase>) -> bool {
    match kind {
        ErrorKind::Connect(_)
        | ErrorKind::Timeout { .. }
        | ErrorKind::Reset(_)
        | ErrorKind::Truncated { .. } => true,
        // Bytes were garbled on their way. A head that is wrong is so by intent.
        ErrorKind::Protocol(_) => phase == Some(Phase::Body),
        ErrorKind::Status { status, code, .. } => {
            matches!(status, 408 | 429 | 500 | 502 | 503 | 504 | 509)
                || code
                    .as_deref()
                    .is_some_and(|code| TRANSIENT.contains(&code))
        }
        _ => false,
    }
}

/// How often, and how far apart, a request is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Attempts in a row that bring nothing, the first among them. 1: nothing is tried again.
    pub max_attempts: u32,
    /// The bound of the first wait; it doubles with each attempt.
    pub base: Duration,
    /// The bound of any wait that the server did not ask for.
    pub cap: Duration,
    /// Retries that all requests of an engine have together: see [`RetryBudget`].
    pub budget: u32,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        RetryPolicy {
            max_attempts: 3,
            base: Duration::from_millis(50),
            cap: Duration::from_secs(2),
            budget: 500,
        }
    }
}

impl RetryPolicy {
    /// Attempts that brought this many bytes do not count as in vain,
    const PROGRESS: u64 = 64 << 10;

    /// but so many more than `max_attempts` there are never.
    const RENEWALS: u32 = 16;

    /// How long to wait after the `nth` attempt in vain (from 0: the last one was not).
    ///
    /// The wait is spread evenly between nothing and its bound by `random` in 0..1, so that clients
    /// that failed together do not return together. A server's `Retry-After` is a lower bound.
    fn backoff(&self, nth: u32, retry_after: Option<Duration>, random: f64) -> Duration {
        let doublings = nth.saturating_sub(1).min(31);
        let bound = self.base.saturating_mul(1 << doublings).min(self.cap);
        // NaN clamps to NaN, and `max` turns that into 0.
        let jittered = bound.mul_f64(random.clamp(0.0, 1.0).max(0.0));
        let asked = retry_after.unwrap_or_default().min(LONGEST_RETRY_AFTER);
        jittered.max(asked)
    }
}

/// Retries that may still be made, shared by all requests of an engine whoever asked for them.
///
/// A retry costs one, five successes give one back. A server that fails now and then is asked again each time; one
/// that fails for all is not asked several times as much by everybody.
#[derive(Debug)]
pub struct RetryBudget {
    /// In fifths of a retry.
    left: AtomicU64,
    most: u64,
}

impl RetryBudget {
    const COST: u64 = 5;

    /// A full budget of so many retries.
    pub fn new(retries: u32) -> RetryBudget {
        let most = u64::from(retries) * Self::COST;
        RetryBudget {
            left: AtomicU64::new(most),
            most,
        }
    }

    /// Whole retries that are left.
    pub fn left(&self) -> u64 {
        self.left.load(Ordering::Relaxed) / Self::COST
    }

    /// A request has succeeded.
    pub fn give_back(&self) {
        // Mostly it is full, and then no thread writes where others read.
        if self.left.load(Ordering::Relaxed) < self.most {
            let more = |left: u64| (left < self.most).then_some(left + 1);
            let _ = self
                .left
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        }
    }

    fn spend(&self) -> bool {
        let less = |left: u64| left.checked_sub(Self::COST);
        self.left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
            .is_ok()
    }
}

/// The attempts at one request.
pub struct Attempts<'a> {
    policy: &'a RetryPolicy,
    budget: &'a RetryBudget,
    number: u32,
    /// In a row, up to the last one.
    in_vain: u32,
    history: History,
    rdma_only: bool,
}

/// How an attempt went that failed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Failed {
    /// When it began, since the first one did.
    pub began: Duration,
    /// How long it took.
    pub took: Duration,
    /// Bytes that it brought and the next one need not bring again.
    pub gained: u64,
    /// A remote may still write into the memory: nothing may be tried again there.
    pub in_doubt: bool,
}

impl<'a> Attempts<'a> {
    /// None yet.
    pub fn new(policy: &'a RetryPolicy, budget: &'a RetryBudget) -> Attempts<'a> {
        Attempts {
            policy,
            budget,
            number: 0,
            in_vain: 0,
            history: History::default(),
            rdma_only: false,
        }
    }

    /// Nothing but RDMA may carry the bytes, so an answered failure of it is worth another try.
    pub fn rdma_only(mut self, rdma_only: bool) -> Attempts<'a> {
        self.rdma_only = rdma_only;
        self
    }

    /// The last one has succeeded.
    pub fn succeeded(&self) {
        self.budget.give_back();
    }

    /// The last one has failed. How long to wait before the next one, or that there is none; either way with the
    /// error, which knows from here on what was tried.
    pub fn failed(
        &mut self,
        error: Error,
        how: Failed,
        random: f64,
    ) -> Result<(Duration, Error), Error> {
        self.number += 1;
        let progress = how.gained >= RetryPolicy::PROGRESS;
        self.in_vain = if progress { 0 } else { self.in_vain + 1 };
        self.history.push(Attempt {
            number: self.number,
            began: how.began,
            took: how.took,
            phase: error.phase(),
            address: error.address(),
            what: error.kind().to_string(),
        });
        let allowed = self.policy.max_attempts.saturating_sub(self.in_vain);
        let error = error
            .with_attempt(self.number, self.number.saturating_add(allowed))
            .with_history(self.history.clone());
        if allowed == 0 || self.policy.max_attempts == 1 || how.in_doubt {
            return Err(error);
        }
        let most = self
            .policy
            .max_attempts
            .saturating_add(RetryPolicy::RENEWALS);
        let Some(wait) = self.wait(&error, random).filter(|_| self.number < most) else {
            return Err(error);
        };
        // Bytes that came are not asked for again, so going on with the rest costs the server nothing more.
        if !progress && !self.budget.spend() {
            return Err(error.with_budget_spent());
        }
        Ok((wait, error))
    }

    fn wait(&self, error: &Error, random: f64) -> Option<Duration> {
        match error.reason() {
            Reason::HttpError if error.is_retryable() => Some(self.policy.backoff(
                self.in_vain,
                error.retry_after(),
                random,
            )),
            // The server has answered, so it is not overloaded.
            Reason::RdmaError if self.rdma_only => Some(self.policy.backoff(0, None, random)),
            _ => None,
        }
    }
}

#[cfg(test)]
#[path = "retry_tests.rs"]
mod tests;
