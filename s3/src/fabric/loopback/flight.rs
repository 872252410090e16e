//! One thread does the work, the others that want the same wait for its result.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

use super::error::PeerError;

/// A result that is there, or will be.
#[derive(Debug)]
pub(super) struct Flight<T> {
    result: Mutex<Option<Result<T, PeerError>>>,
    landed: Condvar,
}

impl<T: Clone> Flight<T> {
    pub(super) fn new() -> Self {
        Self {
            result: Mutex::new(None),
            landed: Condvar::new(),
        }
    }

    /// The result if it is there.
    pub(super) fn get(&self) -> Option<Result<T, PeerError>> {
        self.result
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Sets the result, once: false if there is one already.
    pub(super) fn finish(&self, with: Result<T, PeerError>) -> bool {
        let mut result = self.result.lock().unwrap_or_else(PoisonError::into_inner);
        let first = result.is_none();
        if first {
            *result = Some(with);
            self.landed.notify_all();
        }
        first
    }

    /// Waits for the result, at most until `deadline`.
    pub(super) fn wait(&self, deadline: Instant) -> Option<Result<T, PeerError>> {
        let mut result = self.result.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if result.is_some() || left.is_zero() {
                return result.clone();
            }
            result = self
                .landed
                .wait_timeout(result, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}
