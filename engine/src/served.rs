//! The engine's end of a queue: takes what the submission ring brings, has it done, and fills the completion ring.
//!
//! ```text
//! SQEs ──take──> request ── small, or this thread's share ──> this thread ──┐
//!                        └─ others ─────────────────────────> any thread ───┴──> completion ──tell──> CQEs
//! ```
//! A task of one thread, which alone touches the rings' service half. Small GETs run on the same thread, and large ones
//! where it has no small ones: from the ring to the socket and back without a hop.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use s3engine_pool::Buffer;
use s3engine_ring::{
    AnnounceError, CheckedGet, Ended, Object, Outcome, Record, Service, Taken, Ticket,
};
use s3engine_s3::Reason;
use s3engine_s3::error::ErrorKind;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::completion::{Completion, Flags};
use crate::engine::Core;
use crate::get::{self, Get};
use crate::interrupt::Interrupt;
use crate::link::Link;
use crate::operation;
use crate::report::Report;
use crate::sink::Sink;
use crate::tenant::Tenant;
use crate::wire::{self, Name};
use crate::worker::{Lane, Task};

/// GETs of at most so many bytes are not worth a hop to another thread.
const SMALL: u64 = 256 << 10;

/// Requests taken before others on the thread have their turn.
const TURN: u32 = 64;

/// No request has waited in the ring for longer than this, whatever its client says.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// A request that was taken and has not ended.
struct Request {
    ticket: Ticket,
    cancel: CancellationToken,
}

pub(crate) struct ServedQueue {
    service: Service,
    link: Arc<Link>,
    /// Ends the service of the queue.
    closed: CancellationToken,
    /// From then on what was taken goes on, and nothing else begins.
    ending: CancellationToken,
    tenant: Arc<Tenant>,
    /// By the client's number.
    requests: Vec<Option<Request>>,
    completions: mpsc::UnboundedReceiver<Completion>,
    sender: mpsc::UnboundedSender<Completion>,
}

impl ServedQueue {
    pub(crate) fn new(
        service: Service,
        entries: u32,
        link: Arc<Link>,
        closed: CancellationToken,
        ending: CancellationToken,
        tenant: Arc<Tenant>,
    ) -> Self {
        let (sender, completions) = mpsc::unbounded_channel();
        Self {
            service,
            link,
            closed,
            ending,
            tenant,
            requests: (0..entries).map(|_| None).collect(),
            completions,
            sender,
        }
    }

    /// Serves the queue until it is closed. An error says which rule its client broke.
    pub(crate) async fn run(mut self, lane: Rc<Lane>) -> Result<(), Ended> {
        loop {
            let more = self.take(&lane)?;
            while let Ok(completion) = self.completions.try_recv() {
                self.tell(completion)?;
            }
            if self.service.publish() {
                self.ring();
            }
            if more {
                tokio::task::yield_now().await;
                continue;
            }
            if !self.service.park(1)? {
                continue;
            }
            let closed = self.closed.clone();
            tokio::select! {
                () = self.link.to_engine.notified() => {}
                Some(completion) = self.completions.recv() => self.tell(completion)?,
                () = closed.cancelled() => return Ok(()),
            }
        }
    }

    /// Takes requests, for one turn. Returns whether there may be more.
    fn take(&mut self, lane: &Rc<Lane>) -> Result<bool, Ended> {
        for _ in 0..TURN {
            match self.service.take()? {
                Some(Taken::Nop(ticket)) => {
                    self.service.complete(ticket, &Outcome::default(), None)?;
                }
                Some(Taken::Get(ticket, get)) => {
                    let (checked, record) = *get;
                    self.start(lane, ticket, &checked, record);
                }
                Some(Taken::Cancel(entry)) => {
                    if let Some(request) = &self.requests[entry as usize] {
                        request.cancel.cancel();
                    }
                }
                Some(Taken::Refused(why)) => tracing::debug!(%why, "a request was refused"),
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    fn start(&mut self, lane: &Rc<Lane>, ticket: Ticket, checked: &CheckedGet, record: Record) {
        let core = &lane.core;
        let submitted = submitted(record.submitted_ns);
        let (name, refused) = match name(core, record.object) {
            // Whoever opened it: each reads only what it may.
            Ok(name) => {
                let refused = self.tenant.check(&name.bucket, &name.key).err();
                (name, refused)
            }
            Err(kind) => (Name::new("".into(), "".into(), None, None), Some(kind)),
        };
        let refused = match self.ending.is_cancelled() {
            true => Some(ErrorKind::Service(ENDING.to_owned())),
            false => refused,
        };
        let mut get = wire::get(checked, ticket.user_data(), name);
        let options = record.options.map_or(Ok(()), |options| {
            wire::set_options(&mut get, *options)?;
            self.tenant.check_options(get.options.as_deref())
        });
        let refused = refused.or(options.err());
        get.tenant = Some(Arc::clone(&self.tenant));
        let number = get::Ticket(ticket.entry().into());
        let sink = Sink::Queue(self.sender.clone());
        let report = Report::new(Arc::clone(core), sink, number, &get, submitted);
        let cancel = CancellationToken::new();
        self.requests[number.0 as usize] = Some(Request {
            ticket,
            cancel: cancel.clone(),
        });
        self.tenant.outstanding.fetch_add(1, Ordering::Relaxed);
        if let Some(slot) = wire::slot(checked.destination) {
            get.buffer = self.link.leases.take(slot);
            if get.buffer.is_none() {
                let text = format!("slot {slot:?} is not leased, or is in use");
                let error = report.error(ErrorKind::Config(text));
                return report.fail(error.with_reason(Reason::StaleBuffer), None);
            }
        }
        if let Some(kind) = refused {
            let error = report.error(kind);
            return report.fail(error, get.buffer);
        }
        let until = operation::after(submitted, get.deadline.unwrap_or(core.deadline));
        let interrupt = Interrupt::new(cancel, core.stop.clone(), until);
        let small = most_bytes(&get).is_some_and(|most| most <= SMALL);
        let (node, large) = (get.numa_node(), core.workers.large.clone());
        // Boxed before it is handed on, each time of which would copy it.
        let work = move |lane| Box::pin(operation::run(lane, get, report, interrupt));
        match small {
            true if lane.takes_small(submitted) => {
                lane.tasks.spawn_local(work(Rc::clone(lane)));
            }
            true => {
                let job = Box::new(|lane| work(lane) as Task);
                core.workers.quick.spawn_near(node, job);
            }
            false if lane.takes_large(submitted, node) => {
                let work = large.track_future(work(Rc::clone(lane)));
                lane.tasks.spawn_local(lane.own.track_future(work));
            }
            false => {
                let job = Box::new(move |lane| Box::pin(large.track_future(work(lane))) as Task);
                core.workers.bulk.spawn_near(node, job);
            }
        }
    }

    /// Puts a completion on the ring, and its buffer where the client takes it.
    fn tell(&mut self, mut completion: Completion) -> Result<(), Ended> {
        // What ends because the engine ends after the queue has is lost to its client, not cancelled by it.
        if self.closed.is_cancelled() {
            return Ok(());
        }
        let (outcome, detail) = wire::told(&completion);
        let place = &mut self.requests[completion.ticket.0 as usize];
        let news = completion.flags.contains(Flags::MORE);
        if let (true, Some(request)) = (news, &*place) {
            let announced = self
                .service
                .announce(&request.ticket, &outcome, Some(&detail));
            // Again: never so, a report tells it once.
            return match announced {
                Ok(()) | Err(AnnounceError::Again) => Ok(()),
                Err(AnnounceError::Ended(why)) => Err(why),
            };
        }
        let Some(request) = place.take() else {
            return Ok(());
        };
        self.tenant.outstanding.fetch_sub(1, Ordering::Relaxed);
        if let Some(buffer) = completion.buffer.take() {
            self.link.leases.put(buffer);
        }
        self.service
            .complete(request.ticket, &outcome, Some(&detail))
    }

    fn ring(&self) {
        // It fails where a client is gone, whose session ends anyway.
        let _ = self.link.to_caller.ring();
    }
}

impl Drop for ServedQueue {
    fn drop(&mut self) {
        for request in self.requests.iter().flatten() {
            request.cancel.cancel();
            self.tenant.outstanding.fetch_sub(1, Ordering::Relaxed);
        }
        self.link.lost.store(true, Ordering::Release);
        self.ring();
    }
}

/// Why nothing begins any more.
pub(crate) const ENDING: &str = "the service is about to end";

/// The object that a client means.
fn name(core: &Core, object: Object<Arc<str>>) -> Result<Name, ErrorKind> {
    match object {
        Object::Named {
            bucket,
            key,
            etag,
            version,
        } => Ok(Name::new(bucket, key, etag, version)),
        Object::Opened(id) => core.objects.name(id).ok_or_else(|| {
            let text = format!("no object is open here by the id {id}");
            ErrorKind::Config(text)
        }),
    }
}

/// The most bytes that a GET can bring, as far as it is known without asking.
fn most_bytes(get: &Get) -> Option<u64> {
    let range = get.range.map(|(_, len)| len);
    let size = get.version.as_ref().map(|pin| pin.size);
    let room = get.buffer.as_ref().map(Buffer::len);
    [range, size, room].into_iter().flatten().min()
}

/// When a request was submitted, as its client says, within reason.
fn submitted(submitted_ns: u64) -> Instant {
    let waited = monotonic_ns().saturating_sub(submitted_ns);
    let waited = Duration::from_nanos(waited).min(LONGEST_WAIT);
    let now = Instant::now();
    now.checked_sub(waited).unwrap_or(now)
}

/// The time of the clock that all processes of a host share.
pub(crate) fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    (now.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(now.tv_nsec as u64)
}
