//! Submission and completion of many GETs by one thread, over the rings.
//!
//! ```text
//! push, push ── submit ──> SQEs ──> session (a task of one of the engine's threads) ──> workers
//!  staged   <── wait, next, completions ── CQEs <── session <──────────────────────────────┘
//!  └────────────── together at most `capacity` ───────────┘
//! ```
//! What a GET and its completion say goes through the rings; its buffer waits beside them, under the name of its
//! slot.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use s3engine_ring::{Bell, Broken, Client, Entry, Layout, MAX_ENTRIES, PushError, Regions};
use s3engine_s3::error::ErrorKind;
use tokio_util::sync::CancellationToken;

use crate::completion::{Completion, Flags};
use crate::engine::Inner;
use crate::get::{Get, Ticket};
use crate::link::Link;
use crate::open::Object;
use crate::operation;
use crate::report;
use crate::session::{Session, monotonic_ns};
use crate::wire::{self, Asked};

/// How a queue is made.
#[derive(Clone, Copy, Debug)]
pub struct QueueOptions {
    /// The most GETs that are staged, in flight, or completed and not yet taken: up to 32,768. Each takes about
    /// 4 KiB of memory for its entries.
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
    client: Client,
    link: Arc<Link>,
    /// Ends the session when cancelled.
    closed: CancellationToken,
    capacity: usize,
    staged: Vec<(Ticket, Get)>,
    /// GETs on the rings, by their entry's number.
    pending: Vec<Option<Pending>>,
    /// Completions that did not come by the rings.
    local: VecDeque<Completion>,
    endpoint: String,
    next: u64,
    /// Whether the session is out of reach: nothing on the rings will complete.
    left: bool,
}

/// A GET on the rings.
struct Pending {
    ticket: Ticket,
    entry: Entry,
    bucket: Arc<str>,
    key: Arc<str>,
    /// Stays open as long as the GET is under way.
    _opened: Option<Object>,
}

impl Queue {
    pub(crate) fn new(inner: Arc<Inner>, options: QueueOptions) -> Self {
        let capacity = options.capacity.clamp(1, MAX_ENTRIES as usize);
        let entries = (capacity as u32).next_power_of_two();
        let layout = Layout::new(entries).expect("a power of two within the bound");
        let (client, service) = Regions::heap(layout)
            .ends(layout, 0)
            .expect("regions are as large as their layout says");
        let link = Arc::new(Link::default());
        let core = &inner.core;
        let closed = core.stop.child_token();
        if core.process.is_this() {
            let session = Session::new(service, entries, Arc::clone(&link), closed.clone());
            core.workers
                .spawn(Box::new(move |lane| Box::pin(session.run(lane))));
        }
        Self {
            client,
            link,
            closed,
            capacity,
            staged: Vec::new(),
            pending: (0..entries).map(|_| None).collect(),
            local: VecDeque::new(),
            endpoint: core.endpoint.to_string(),
            next: 0,
            left: false,
            inner,
        }
    }

    /// Stages a GET for the next [`submit`](Self::submit).
    // The error hands the GET back, buffer included: that is its size.
    #[allow(clippy::result_large_err)]
    pub fn push(&mut self, get: Get) -> Result<Ticket, QueueFull> {
        if self.staged.len() + self.outstanding() >= self.capacity {
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
        self.leave_if_lost();
        let mut staged = std::mem::take(&mut self.staged);
        let count = staged.len();
        for (ticket, get) in staged.drain(..) {
            self.send(ticket, get);
        }
        self.staged = staged;
        self.flush();
        count
    }

    /// GETs submitted whose last completion was not taken yet.
    pub fn outstanding(&self) -> usize {
        let on_rings = match self.left {
            true => 0,
            false => self.client.in_flight() as usize,
        };
        on_rings + self.local.len()
    }

    /// The completions that are ready, without waiting.
    pub fn completions(&mut self) -> impl Iterator<Item = Completion> + '_ {
        std::iter::from_fn(|| self.pop())
    }

    /// Waits until `min` completions are ready, or as many as there are GETs outstanding if that is less.
    /// Returns how many are ready. News of a GET that goes on ([`Flags::MORE`]) is a completion too.
    pub fn wait(&mut self, min: usize, timeout: Duration) -> Result<usize, WaitTimeout> {
        let began = Instant::now();
        loop {
            self.leave_if_lost();
            let outstanding = self.outstanding();
            let wanted = min.min(outstanding);
            let ready = self.ready();
            if ready >= wanted {
                return Ok(ready);
            }
            let waited = began.elapsed();
            let left = timeout.saturating_sub(waited);
            if left.is_zero() {
                return Err(WaitTimeout {
                    ready,
                    wanted,
                    outstanding,
                    waited,
                });
            }
            let missing = wanted - self.local.len();
            match self.client.park(missing as u32) {
                // The bell of a thread of this process does not fail.
                Ok(true) => drop(self.link.to_caller.wait(left)),
                Ok(false) => {}
                Err(broken) => self.leave_broken(broken),
            }
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
        self.leave_if_lost();
        if let Some(nth) = self.staged.iter().position(|(staged, _)| *staged == ticket) {
            let (ticket, get) = self.staged.remove(nth);
            self.refuse(ticket, get, ErrorKind::Cancelled);
            return true;
        }
        let of_ticket = |pending: &&Pending| pending.ticket == ticket;
        let Some(pending) = self.pending.iter().flatten().find(of_ticket) else {
            return self.local.iter().any(|local| local.ticket == ticket);
        };
        // Broken: the next wait sees it too, and ends the GET.
        let _ = self.client.push_cancel(pending.entry);
        self.flush();
        true
    }

    /// Puts a GET on the submission ring.
    fn send(&mut self, ticket: Ticket, mut get: Get) {
        let core = &self.inner.core;
        if self.left {
            self.local.push_back(operation::lost(ticket, core));
            return;
        }
        // An id is another object's in another engine.
        get.opened = get.opened.filter(|opened| opened.is_of(&core.objects));
        let pushed = match wire::request(&get) {
            Ok(request) => self.client.push_get(&request, get.user_data),
            Err(kind) => return self.refuse(ticket, get, kind),
        };
        match pushed {
            Ok(entry) => {
                if let Some(buffer) = get.buffer {
                    self.link.leases.put(buffer);
                }
                self.pending[entry.number() as usize] = Some(Pending {
                    ticket,
                    entry,
                    bucket: get.bucket,
                    key: get.key,
                    _opened: get.opened,
                });
            }
            // Not so: there are at least as many entries as the capacity.
            Err(PushError::Full { .. } | PushError::Broken(_)) => {
                self.leave();
                self.local
                    .push_back(operation::lost(ticket, &self.inner.core));
            }
            Err(PushError::Request(why)) => {
                self.refuse(ticket, get, ErrorKind::Config(why.to_string()));
            }
        }
    }

    /// Shows the engine what is on the submission ring.
    fn flush(&mut self) {
        if !self.left && self.client.submit(monotonic_ns()) {
            self.link.to_engine.notify_one();
        }
    }

    /// Ends a GET that never reaches the engine's threads.
    fn refuse(&mut self, ticket: Ticket, get: Get, kind: ErrorKind) {
        let refused = report::refused(&self.inner.core, ticket, get, kind);
        self.local.push_back(refused);
    }

    /// Completions that can be taken.
    fn ready(&mut self) -> usize {
        let on_ring = match self.left {
            true => 0,
            false => self.client.ready().unwrap_or(0) as usize,
        };
        on_ring + self.local.len()
    }

    fn pop(&mut self) -> Option<Completion> {
        self.leave_if_lost();
        if let Some(completion) = self.local.pop_front() {
            return Some(completion);
        }
        if self.left {
            return None;
        }
        let reaped = match self.client.reap() {
            Ok(reaped) => reaped?,
            Err(broken) => {
                self.leave_broken(broken);
                return self.local.pop_front();
            }
        };
        let (cqe, detail) = (reaped.cqe, reaped.detail().unwrap_or_default());
        let place = &mut self.pending[cqe.entry as usize];
        let pending = place.as_ref()?;
        let asked = Asked {
            ticket: pending.ticket,
            bucket: &pending.bucket,
            key: &pending.key,
            endpoint: &self.endpoint,
        };
        let mut completion = wire::heard(&cqe, &detail, &asked);
        if !completion.flags.contains(Flags::MORE) {
            *place = None;
            let slot = wire::slot_back(&detail);
            completion.buffer = slot.and_then(|slot| self.link.leases.take(slot));
        }
        Some(completion)
    }

    fn leave_if_lost(&mut self) {
        if self.left {
            return;
        }
        if !self.inner.core.process.is_this() {
            // The locks that the parent's threads may have held are left alone.
            std::mem::forget(std::mem::take(&mut self.link));
            std::mem::forget(std::mem::take(&mut self.closed));
            self.leave();
        } else if self.link.lost.load(Ordering::Acquire) && self.client.ready() == Ok(0) {
            self.leave();
        }
    }

    fn leave_broken(&mut self, broken: Broken) {
        tracing::error!(%broken, "the engine's end of a queue is broken");
        self.leave();
    }

    /// Ends every GET on the rings here, since nobody tells of them any more.
    fn leave(&mut self) {
        self.left = true;
        for pending in self.pending.iter_mut().filter_map(Option::take) {
            let lost = operation::lost(pending.ticket, &self.inner.core);
            self.local.push_back(lost);
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.leave_if_lost();
        self.closed.cancel();
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue")
            .field("capacity", &self.capacity)
            .field("staged", &self.staged.len())
            .field("outstanding", &self.outstanding())
            .finish_non_exhaustive()
    }
}
