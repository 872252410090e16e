//! What a request waits for, told while it runs to whoever asks why nothing moves.
//!
//! The one who runs it writes; a few relaxed stores each time, so that it costs nothing that can be measured. Others
//! read when they want to; what they see of two numbers may be of two moments.

use std::fmt;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::error::Error;

/// What a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Waits {
    /// Its turn.
    Turn,
    /// Memory.
    Memory,
    /// The registration of its memory.
    Registration,
    /// A connection.
    Connect,
    /// The head of the answer; by RDMA, also the transfer before that.
    Answer,
    /// The body of the answer.
    Body,
    /// The time of the next attempt.
    Backoff,
    /// Its parts.
    Parts,
    /// The revocation of memory that a remote may still write to.
    Revocation,
}

impl Waits {
    const ALL: [Waits; 9] = [
        Waits::Turn,
        Waits::Memory,
        Waits::Registration,
        Waits::Connect,
        Waits::Answer,
        Waits::Body,
        Waits::Backoff,
        Waits::Parts,
        Waits::Revocation,
    ];
}

/// Of a length that no answer has told.
const UNKNOWN: u64 = u64::MAX;

/// Where a request is.
#[derive(Debug)]
pub struct Progress {
    born: Instant,
    waits: AtomicU8,
    /// When it began to wait for that, or when the last bytes of the body came; in microseconds since it was born.
    since: AtomicU64,
    /// When the next attempt is due, the same way.
    due: AtomicU64,
    received: AtomicU64,
    expected: AtomicU64,
    /// What the last attempt failed with. Locked only when one fails.
    failed: Mutex<Option<Error>>,
}

impl Default for Progress {
    fn default() -> Self {
        Self::new()
    }
}

impl Progress {
    /// Of a request that waits for its turn.
    pub fn new() -> Progress {
        Progress {
            born: Instant::now(),
            waits: AtomicU8::new(Waits::Turn as u8),
            since: AtomicU64::new(0),
            due: AtomicU64::new(0),
            received: AtomicU64::new(0),
            expected: AtomicU64::new(UNKNOWN),
            failed: Mutex::default(),
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.born.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// It waits for that from now on.
    pub fn waits_for(&self, what: Waits) {
        self.since.store(self.now(), Ordering::Relaxed);
        self.waits.store(what as u8, Ordering::Relaxed);
    }

    /// It receives a body from now on, of which so many bytes are there.
    pub fn receives(&self, received: u64, expected: Option<u64>) {
        let expected = expected.unwrap_or(UNKNOWN);
        self.expected.store(expected, Ordering::Relaxed);
        self.received.store(received, Ordering::Relaxed);
        self.waits_for(Waits::Body);
    }

    /// So many bytes of it are there now.
    pub fn received(&self, received: u64) {
        self.since.store(self.now(), Ordering::Relaxed);
        self.received.store(received, Ordering::Relaxed);
    }

    /// An attempt has failed, and the next one comes after `wait`.
    pub fn backs_off(&self, wait: Duration, error: Error) {
        let wait = u64::try_from(wait.as_micros()).unwrap_or(u64::MAX);
        let due = self.now().saturating_add(wait).max(1);
        self.due.store(due, Ordering::Relaxed);
        *self.lock() = Some(error);
        self.waits_for(Waits::Backoff);
    }

    /// The last attempt has succeeded: what others failed with does not matter any more.
    pub fn succeeded(&self) {
        // Mostly none has failed, and then nothing is locked.
        if self.due.swap(0, Ordering::Relaxed) > 0 {
            *self.lock() = None;
        }
    }

    /// What the last attempt failed with, for when no more of them may be made.
    pub fn last_error(&self) -> Option<Error> {
        self.lock().clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Error>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it waits for now.
    pub fn waits(&self) -> Waits {
        Waits::ALL[usize::from(self.waits.load(Ordering::Relaxed))]
    }
}

/// What it waits for, since when, and what went wrong before.
impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (waits, now) = (self.waits(), self.now());
        let seconds = |us: u64| us as f64 / 1e6;
        f.write_str(match waits {
            Waits::Turn => "its turn: the limits of what is under way are reached",
            Waits::Memory => "memory: all that it may have is leased",
            Waits::Registration => "the registration of its memory",
            Waits::Connect => "a connection",
            Waits::Answer => "the server's answer",
            Waits::Body => "the body",
            Waits::Backoff => "the next attempt",
            Waits::Parts => "its parts",
            Waits::Revocation => "the revocation of memory that a remote may still write to",
        })?;
        let since = now.saturating_sub(self.since.load(Ordering::Relaxed));
        match waits {
            Waits::Body => {
                let received = self.received.load(Ordering::Relaxed);
                write!(f, ": {received} bytes")?;
                match self.expected.load(Ordering::Relaxed) {
                    UNKNOWN => {}
                    expected => write!(f, " of {expected}")?,
                }
                write!(f, ", the last {:.1} s ago", seconds(since))?;
            }
            Waits::Backoff => {
                let left = self.due.load(Ordering::Relaxed).saturating_sub(now);
                write!(f, " in {:.1} s", seconds(left))?;
            }
            _ => write!(f, ", for {:.1} s", seconds(since))?,
        }
        match &*self.lock() {
            Some(error) => {
                let (attempt, of) = (error.attempt(), error.attempts());
                write!(f, "; attempt {attempt} of {of}: {}", error.kind())
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn every_number_stands_for_its_own_wait() {
        for (nth, waits) in Waits::ALL.into_iter().enumerate() {
            assert_eq!(waits as usize, nth);
        }
    }

    #[test]
    fn r22_a_request_tells_where_it_is_and_what_failed_before() {
        let progress = Progress::new();
        let told = || progress.to_string();
        assert!(told().starts_with("its turn: "), "{}", told());
        progress.receives(3, Some(10));
        progress.received(7);
        let body = told();
        assert!(
            body.starts_with("the body: 7 bytes of 10, the last "),
            "{body}"
        );
        progress.receives(0, None);
        assert!(told().starts_with("the body: 0 bytes, the last "));
        let kind = ErrorKind::Reset("gone".into());
        let error = Error::new("GET", "b", "k", kind).with_attempt(2, 3);
        progress.backs_off(Duration::from_secs(7200), error);
        let backoff = told();
        assert!(backoff.starts_with("the next attempt in 7"), "{backoff}");
        assert!(
            backoff.ends_with("; attempt 2 of 3: connection lost: gone"),
            "{backoff}"
        );
        progress.waits_for(Waits::Connect);
        assert!(told().contains("attempt 2 of 3"), "it is the third one");
        progress.succeeded();
        assert!(progress.last_error().is_none());
    }
}
