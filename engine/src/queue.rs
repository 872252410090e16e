//! Submission and completion of many GETs by one thread.
//!
//! ```text
//! push, push, push ──submit──> workers ──> completed ──wait, next, completions──> caller
//!  staged                       in flight   ready
//!  └────────────── together at most `capacity` ──────┘
//! ```

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use event_listener::Listener;
use tokio_util::sync::CancellationToken;

use crate::completion::{Completion, Flags};
use crate::engine::{Inner, Submission};
use crate::get::{Get, Ticket};
use crate::operation;
use crate::sink::{Completed, Sink};

/// How a queue is made.
#[derive(Clone, Copy, Debug)]
pub struct QueueOptions {
    /// The most GETs that are staged, in flight, or completed and not yet taken.
    pub capacity: usize,
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self { capacity: 1024 }
    }
}

/// The queue holds as many GETs as it can; take completions first. The GET is handed back.
#[derive(Debug, thiserror::Error)]
#[error("the queue is full: {capacity} GETs are staged, in flight or not taken")]
pub struct QueueFull {
    /// The GET that was not accepted.
    pub get: Get,
    /// The queue's capacity.
    pub capacity: usize,
}

/// Not enough completions in time. The GETs go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{ready} of {wanted} completions after {waited:?}, {outstanding} GETs outstanding")]
pub struct WaitTimeout {
    /// Completions that are ready.
    pub ready: usize,
    /// Completions waited for.
    pub wanted: usize,
    /// GETs that have not ended.
    pub outstanding: usize,
    /// How long it was waited.
    pub waited: Duration,
}

/// A queue of GETs, used by one thread at a time.
///
/// Dropping it cancels what is outstanding. No memory is freed under a transfer: slots that a remote may
/// still write to go to quarantine.
pub struct Queue {
    inner: Arc<Inner>,
    completed: Arc<Completed>,
    capacity: usize,
    staged: Vec<(Ticket, Get)>,
    /// GETs submitted and not ended, as far as the caller has taken completions.
    outstanding: HashMap<Ticket, CancellationToken>,
    next: u64,
    /// Whether this process is a forked child, and has let go of what was the parent's.
    left: bool,
}

impl Queue {
    pub(crate) fn new(inner: Arc<Inner>, options: QueueOptions) -> Self {
        Self {
            inner,
            completed: Arc::default(),
            capacity: options.capacity.max(1),
            staged: Vec::new(),
            outstanding: HashMap::new(),
            next: 0,
            left: false,
        }
    }

    /// Stages a GET for the next [`submit`](Self::submit).
    // The error hands the GET back, buffer included: that is its size.
    #[allow(clippy::result_large_err)]
    pub fn push(&mut self, get: Get) -> Result<Ticket, QueueFull> {
        if self.staged.len() + self.outstanding.len() >= self.capacity {
            return Err(QueueFull {
                get,
                capacity: self.capacity,
            });
        }
        let ticket = Ticket(self.next);
        self.next += 1;
        self.staged.push((ticket, get));
        Ok(ticket)
    }

    /// Hands all staged GETs to the engine. Returns how many.
    pub fn submit(&mut self) -> usize {
        self.leave_parent();
        let submitted = Instant::now();
        let staged = std::mem::take(&mut self.staged);
        let count = staged.len();
        for (ticket, get) in staged {
            self.send(ticket, get, submitted);
        }
        count
    }

    /// GETs submitted whose last completion was not taken yet.
    pub fn outstanding(&self) -> usize {
        self.outstanding.len()
    }

    /// The completions that are ready, without waiting.
    pub fn completions(&mut self) -> impl Iterator<Item = Completion> + '_ {
        self.leave_parent();
        std::iter::from_fn(|| self.pop())
    }

    /// Waits until `min` completions are ready, or as many as there are GETs outstanding if that is less.
    /// Returns how many are ready. News of a GET that goes on ([`Flags::MORE`]) is a completion too.
    pub fn wait(&mut self, min: usize, timeout: Duration) -> Result<usize, WaitTimeout> {
        self.leave_parent();
        let wanted = min.min(self.outstanding.len());
        let began = Instant::now();
        loop {
            let arrived = self.completed.arrived.listen();
            let ready = self.completed.len();
            if ready >= wanted {
                return Ok(ready);
            }
            let waited = began.elapsed();
            let left = timeout.saturating_sub(waited);
            if left.is_zero() {
                return Err(WaitTimeout {
                    ready,
                    wanted,
                    outstanding: self.outstanding.len(),
                    waited,
                });
            }
            let _ = arrived.wait_timeout(left);
        }
    }

    /// The next completion, waiting for it; `None` when nothing is outstanding.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<Completion>, WaitTimeout> {
        self.wait(1, timeout)?;
        Ok(self.pop())
    }

    /// Asks for the end of a GET. Its completion comes all the same, with the reason `cancelled` unless it
    /// was faster. Returns whether the GET was staged or outstanding.
    pub fn cancel(&mut self, ticket: Ticket) -> bool {
        self.leave_parent();
        if let Some(nth) = self.staged.iter().position(|(staged, _)| *staged == ticket) {
            let (ticket, get) = self.staged.remove(nth);
            self.send(ticket, get, Instant::now());
        }
        let cancel = self.outstanding.get(&ticket);
        cancel.inspect(|cancel| cancel.cancel()).is_some()
    }

    fn send(&mut self, ticket: Ticket, get: Get, submitted: Instant) {
        let cancel = CancellationToken::new();
        self.outstanding.insert(ticket, cancel.clone());
        self.inner.submit(Submission {
            ticket,
            get,
            cancel,
            sink: Sink::Queue(Arc::clone(&self.completed)),
            submitted,
        });
    }

    /// In a forked child: every GET ends here, since what becomes of it is told to the parent. The locks that
    /// the parent's threads may have held are left alone.
    fn leave_parent(&mut self) {
        let core = &self.inner.core;
        if self.left || core.process.is_this() {
            return;
        }
        self.left = true;
        std::mem::forget(std::mem::take(&mut self.completed));
        for (&ticket, cancel) in &mut self.outstanding {
            std::mem::forget(std::mem::take(cancel));
            self.completed.push(operation::lost(ticket, core));
        }
    }

    fn pop(&mut self) -> Option<Completion> {
        let completion = self.completed.pop()?;
        if !completion.flags().contains(Flags::MORE) {
            self.outstanding.remove(&completion.ticket());
        }
        Some(completion)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.leave_parent();
        self.outstanding
            .values()
            .for_each(CancellationToken::cancel);
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue")
            .field("capacity", &self.capacity)
            .field("staged", &self.staged.len())
            .field("outstanding", &self.outstanding.len())
            .finish_non_exhaustive()
    }
}
