//! Submission and completion of many GETs by one thread, over the rings.
//!
//! ```text
//! push, push ── submit ──> SQEs ──> the engine's end (`served`, or in the host service) ──> workers
//!  staged   <── wait, next, completions ── CQEs <── the engine's end <─────────────────────────┘
//!  └────────────── together at most `capacity` ───────────┘
//! ```
//! What a GET and its completion say goes through the rings; its buffer waits beside them, under the name of its
//! slot.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use s3engine_pool::SlotId;
use s3engine_ring::{Broken, Client, Entry, Layout, MAX_ENTRIES, PushError, SocketBell};
use s3engine_s3::Reason;
use s3engine_s3::error::{Error, ErrorKind};

use crate::completion::{Completion, Flags};
use crate::far::{Far, Home};
use crate::get::{Get, Ticket};
use crate::open::Object;
use crate::report;
use crate::served::monotonic_ns;
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
    home: Arc<dyn Home>,
    /// The rings and their other end; `None` when that is out of reach.
    attached: Option<Attached>,
    layout: Layout,
    capacity: usize,
    staged: Vec<(Ticket, Get)>,
    /// Completions that did not come by the rings.
    local: VecDeque<Completion>,
    endpoint: String,
    next: u64,
}

struct Attached {
    client: Client,
    far: Box<dyn Far>,
    /// GETs on the rings, by their entry's number.
    pending: Vec<Option<Pending>>,
}

/// A GET on the rings.
struct Pending {
    ticket: Ticket,
    entry: Entry,
    bucket: Arc<str>,
    key: Arc<str>,
    user_data: u64,
    slot: Option<SlotId>,
    /// Stays open as long as the GET is under way.
    _opened: Option<Object>,
}

impl Queue {
    pub(crate) fn new(home: Arc<dyn Home>, options: QueueOptions) -> Self {
        let capacity = options.capacity.clamp(1, MAX_ENTRIES as usize);
        let entries = (capacity as u32).next_power_of_two();
        let layout = Layout::new(entries).expect("a power of two within the bound");
        let mut queue = Self {
            attached: None,
            layout,
            capacity,
            staged: Vec::new(),
            local: VecDeque::new(),
            endpoint: home.endpoint(),
            next: 0,
            home,
        };
        // Where it cannot be attached now, each GET tries again, and says why not.
        let _ = queue.attach();
        queue
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
        let attached = match self.staged.is_empty() {
            true => Ok(()),
            false => self.attach(),
        };
        let mut staged = std::mem::take(&mut self.staged);
        let count = staged.len();
        for (ticket, get) in staged.drain(..) {
            match &attached {
                Ok(()) => self.send(ticket, get),
                Err(why) => self.refuse(ticket, get, why.clone()),
            }
        }
        self.staged = staged;
        self.flush();
        count
    }

    /// GETs submitted whose last completion was not taken yet.
    pub fn outstanding(&self) -> usize {
        let on_rings = |attached: &Attached| attached.client.in_flight() as usize;
        self.attached.as_ref().map_or(0, on_rings) + self.local.len()
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
            let Some(attached) = &mut self.attached else {
                continue;
            };
            match attached.client.park(missing as u32) {
                Ok(true) => attached.far.wait(left),
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
        let local = self.local.iter().any(|local| local.ticket == ticket);
        let Some(attached) = &mut self.attached else {
            return local;
        };
        let of_ticket = |pending: &&Pending| pending.ticket == ticket;
        let Some(pending) = attached.pending.iter().flatten().find(of_ticket) else {
            return local;
        };
        // Broken: the next wait sees it too, and ends the GET.
        let _ = attached.client.push_cancel(pending.entry);
        self.flush();
        true
    }

    /// Makes the rings, unless they are there.
    fn attach(&mut self) -> Result<(), ErrorKind> {
        if self.attached.is_some() {
            return Ok(());
        }
        if !self.home.process().is_this() {
            return Err(self.home.why_lost());
        }
        let (client, far) = Arc::clone(&self.home).attach(self.layout)?;
        self.attached = Some(Attached {
            client,
            far,
            pending: (0..self.layout.entries()).map(|_| None).collect(),
        });
        Ok(())
    }

    /// Asks to be rung for the next completion. Returns the bell to wait for, unless there is something to do now.
    pub(crate) fn sleep_on(&mut self) -> Option<Arc<SocketBell>> {
        let attached = self.attached.as_mut()?;
        let sleep = self.local.is_empty() && attached.client.park(1) == Ok(true);
        sleep.then(|| attached.far.waits_on()).flatten()
    }

    /// Puts a GET on the submission ring.
    fn send(&mut self, ticket: Ticket, mut get: Get) {
        let Some(attached) = &mut self.attached else {
            return self.refuse(ticket, get, self.home.why_lost());
        };
        // An id is another object's in another engine.
        let objects = self.home.objects();
        get.opened = get
            .opened
            .filter(|opened| objects.is_some_and(|objects| opened.is_of(objects)));
        let not_taken = get.buffer.as_ref().filter(|of| !attached.far.accepts(of));
        if let Some(buffer) = not_taken {
            let kind = match buffer.is_lost() {
                true => {
                    ErrorKind::Service("it has ended or was killed, and the buffer with it".into())
                }
                false => ErrorKind::Config("the buffer is of another engine".into()),
            };
            return self.refuse_for(ticket, get, kind, Some(Reason::StaleBuffer));
        }
        let options = wire::options(&get, attached.far.version());
        let request = match &options {
            Ok(options) => wire::request(&get, options.as_ref()),
            Err(kind) => Err(kind.clone()),
        };
        let pushed = match request {
            Ok(request) => attached.client.push_get(&request, get.user_data),
            Err(kind) => return self.refuse(ticket, get, kind),
        };
        match pushed {
            Ok(entry) => {
                let slot = get.buffer.as_ref().map(|buffer| buffer.slot());
                if let Some(buffer) = get.buffer {
                    attached.far.put(buffer);
                }
                attached.pending[entry.number() as usize] = Some(Pending {
                    ticket,
                    entry,
                    bucket: get.bucket,
                    key: get.key,
                    user_data: get.user_data,
                    slot,
                    _opened: get.opened,
                });
            }
            // Full: not so, there are at least as many entries as the capacity.
            Err(PushError::Full { .. } | PushError::Broken(_)) => {
                self.leave();
                self.refuse(ticket, get, self.home.why_lost());
            }
            Err(PushError::Request(why)) => {
                self.refuse(ticket, get, ErrorKind::Config(why.to_string()));
            }
        }
    }

    /// Shows the engine what is on the submission ring.
    fn flush(&mut self) {
        if let Some(attached) = &mut self.attached
            && attached.client.submit(monotonic_ns())
        {
            attached.far.ring();
        }
    }

    /// Ends a GET that never reaches the engine's threads.
    fn refuse(&mut self, ticket: Ticket, get: Get, kind: ErrorKind) {
        self.refuse_for(ticket, get, kind, None);
    }

    fn refuse_for(&mut self, ticket: Ticket, get: Get, kind: ErrorKind, reason: Option<Reason>) {
        let mut error =
            Error::new("GET", &*get.bucket, &*get.key, kind).with_endpoint(&*self.endpoint);
        if let Some(reason) = reason {
            error = error.with_reason(reason);
        }
        let refused = Completion::failed(ticket, get.user_data, error, get.buffer);
        report::record(&refused);
        self.local.push_back(refused);
    }

    /// Completions that can be taken.
    fn ready(&mut self) -> usize {
        let on_ring = |attached: &mut Attached| match attached.far.is_lost() {
            // What was not told is lost, and follows what was.
            true => attached.client.in_flight() as usize,
            false => attached.client.ready().unwrap_or(0) as usize,
        };
        self.attached.as_mut().map_or(0, on_ring) + self.local.len()
    }

    fn pop(&mut self) -> Option<Completion> {
        self.leave_if_lost();
        if let Some(completion) = self.local.pop_front() {
            return Some(completion);
        }
        let attached = self.attached.as_mut()?;
        let reaped = match attached.client.reap() {
            Ok(reaped) => reaped?,
            Err(broken) => {
                self.leave_broken(broken);
                return self.local.pop_front();
            }
        };
        let (cqe, detail) = (reaped.cqe, reaped.detail().unwrap_or_default());
        let place = &mut attached.pending[cqe.entry as usize];
        let pending = place.as_ref()?;
        let asked = Asked {
            ticket: pending.ticket,
            bucket: &pending.bucket,
            key: &pending.key,
            endpoint: &self.endpoint,
        };
        let mut completion = wire::heard(&cqe, &detail, &asked);
        if !completion.flags.contains(Flags::MORE) {
            match attached.far.take(pending.slot, &detail) {
                Ok(buffer) => completion.buffer = buffer,
                Err(why) => {
                    let error = Error::new("GET", &*pending.bucket, &*pending.key, why)
                        .with_endpoint(&*self.endpoint);
                    let (ticket, user_data) = (pending.ticket, pending.user_data);
                    completion = Completion::failed(ticket, user_data, error, None);
                }
            }
            *place = None;
        }
        Some(completion)
    }

    fn leave_if_lost(&mut self) {
        let Some(attached) = &mut self.attached else {
            return;
        };
        let is_here = self.home.process().is_this();
        // What the other end told before it went is heard first.
        if !is_here || (attached.far.is_lost() && attached.client.ready().unwrap_or(0) == 0) {
            self.leave();
        }
    }

    fn leave_broken(&mut self, broken: Broken) {
        tracing::error!(%broken, "the other end of a queue breaks the rules of the rings");
        self.leave();
    }

    /// Ends every GET on the rings here, since nobody tells of them any more.
    fn leave(&mut self) {
        let pending = self.detach();
        if pending.is_empty() {
            return;
        }
        // Once for all: finding it out may take a moment.
        let why = self.home.why_lost();
        for pending in pending {
            let error = Error::new("GET", &*pending.bucket, &*pending.key, why.clone())
                .with_endpoint(&*self.endpoint);
            let lost = Completion::failed(pending.ticket, pending.user_data, error, None);
            self.local.push_back(lost);
        }
    }

    /// Lets go of the rings. Returns what was on them.
    fn detach(&mut self) -> Vec<Pending> {
        let Some(Attached {
            client,
            mut far,
            pending,
        }) = self.attached.take()
        else {
            return Vec::new();
        };
        match self.home.process().is_this() {
            true => far.close(),
            false => {
                far.leave();
                // Its memory is not mapped here.
                std::mem::forget(client);
            }
        }
        pending.into_iter().flatten().collect()
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        drop(self.detach());
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
