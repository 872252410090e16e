//! How much is under way at once, for the whole engine, and whose requests these are.
//!
//! Everything that asks a server for something first gets a [`Permit`] from the [`Share`] that it works for. Who is
//! given one when there is not enough for all is decided in `turns`; how many an endpoint bears, in `adapt`.

use std::iter;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

mod adapt;
mod ending;
mod endpoint;
mod groups;
mod trials;
mod turns;
mod windows;

pub(crate) use adapt::Ending;
pub use endpoint::Concurrency;
use endpoint::Endpoint;
pub(crate) use groups::Group;
pub(crate) use turns::ShareId;
use turns::{Grant, Ticket, Turns};
use windows::WindowId;

/// Bounds on what is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests at once. Each has a connection of its own.
    pub requests: usize,
    /// Bytes that these requests ask for. A single request may be larger, alone.
    pub bytes: u64,
}

impl Limits {
    /// No bounds but those of the engine.
    pub(crate) const NONE: Self = Self {
        requests: usize::MAX,
        bytes: u64::MAX,
    };
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            requests: 64,
            bytes: 1 << 30,
        }
    }
}

/// What all shares have under way together, as one endpoint's engine has it.
pub(crate) struct InFlight {
    admission: Arc<Admission>,
    window: WindowId,
}

/// Locked once per part or small request, for some tens of nanoseconds.
struct Admission(Mutex<State>);

struct State {
    turns: Turns<Waiter>,
    /// By window; `None` where it is not learned what the endpoint bears.
    endpoints: Vec<Option<Endpoint>>,
    /// That have these limits together. When the last one stops, nobody waits any more.
    engines: usize,
}

/// Where the permit of one who waits goes to.
struct Waiter {
    share: Share,
    permit: oneshot::Sender<Permit>,
}

/// The answer to one who asks.
enum Asked {
    Granted(Grant),
    Waits(Ticket, oneshot::Receiver<Permit>),
    Refused,
}

impl InFlight {
    pub(crate) fn new(limits: Limits) -> Self {
        let mut state = State {
            turns: Turns::new(limits),
            endpoints: Vec::new(),
            engines: 0,
        };
        let window = state.join();
        let admission = Arc::new(Admission(Mutex::new(state)));
        Self { admission, window }
    }

    /// What they have together.
    pub(crate) fn limits(&self) -> Limits {
        self.admission.change(|state| state.turns.limits())
    }

    /// The same limits for one more engine, which closes them too. Its endpoint has a window of its own.
    pub(crate) fn beside(&self) -> Self {
        let window = self.admission.change(State::join);
        let admission = Arc::clone(&self.admission);
        Self { admission, window }
    }

    /// Has the window follow what the endpoint bears. It bounds nothing otherwise.
    pub(crate) fn adapt(&self, endpoint: &str) {
        self.admission.change(|state| {
            let limits = state.turns.limits();
            let endpoint = Endpoint::new(limits, endpoint);
            state.turns.windows().bound(self.window, endpoint.bounds());
            state.endpoints[self.window] = Some(endpoint);
        });
    }

    /// The window, where it is learned.
    pub(crate) fn concurrency(&self) -> Option<Concurrency> {
        let of = |state: &mut State| {
            state.endpoints[self.window]
                .as_ref()
                .map(Endpoint::concurrency)
        };
        self.admission.change(of)
    }

    /// A share for one client: beside others it gets by `weight`, and never has more than `caps` under way. It ends
    /// with the last clone of the handle and the last permit.
    pub(crate) fn share(&self, weight: NonZeroU32, caps: Limits) -> Share {
        let (admission, window) = (Arc::clone(&self.admission), self.window);
        let id = admission.change(|state| state.turns.join(window, weight, caps));
        Share(Arc::new(Member {
            id,
            window,
            admission,
        }))
    }

    /// The same with further caps, which all shares of a group have together.
    pub(crate) fn share_in(&self, group: Group, weight: NonZeroU32, caps: Limits) -> Share {
        let share = self.share(weight, caps);
        let id = share.0.id;
        self.admission.change(|state| state.turns.group(id, group));
        share
    }

    /// An engine stops. With the last one, all who wait and all who come are refused.
    pub(crate) fn close(&self) {
        // Dropping them wakes those who wait for them.
        drop(self.admission.change(|state| {
            state.engines = state.engines.saturating_sub(1);
            (state.engines == 0).then(|| state.turns.end_waiting())
        }));
    }
}

impl Admission {
    /// Changes something, then wakes exactly those who may start because of it.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut state);
        let admitted: Vec<_> = iter::from_fn(|| state.turns.next()).collect();
        drop(state);
        for (waiter, grant) in admitted {
            // One who gave up meanwhile does not take it, and what is dropped goes to the next.
            let _ = waiter.permit.send(Permit::new(waiter.share, grant));
        }
        result
    }
}

impl State {
    /// One more engine. Returns the window of its endpoint.
    fn join(&mut self) -> WindowId {
        self.engines += 1;
        self.endpoints.push(None);
        self.turns.windows().open()
    }

    /// Asks for the first time, or again with the ticket of before.
    fn ask(&mut self, share: &Share, bytes: u64, again: Option<Ticket>) -> Asked {
        if self.engines == 0 {
            return Asked::Refused;
        }
        let id = share.0.id;
        if let Some(grant) = self.turns.start(id, bytes) {
            return Asked::Granted(grant);
        }
        let (permit, receiver) = oneshot::channel();
        let share = share.clone();
        let waiter = Waiter { share, permit };
        let ticket = match again {
            Some(ticket) => {
                self.turns.wait_at(id, ticket, bytes, waiter);
                ticket
            }
            None => self.turns.wait(id, bytes, waiter),
        };
        Asked::Waits(ticket, receiver)
    }

    /// Takes in how a request of a window ended. Returns how long its place rests at most.
    fn ended(&mut self, window: WindowId, took: Duration, ending: Ending) -> Duration {
        let Some(endpoint) = &mut self.endpoints[window] else {
            return Duration::ZERO;
        };
        let windows = self.turns.windows();
        let rest = endpoint.ended(windows.taken(window), took, ending);
        windows.bound(window, endpoint.bounds());
        rest
    }
}

/// What one client takes part with.
#[derive(Clone)]
pub(crate) struct Share(Arc<Member>);

struct Member {
    id: ShareId,
    window: WindowId,
    admission: Arc<Admission>,
}

impl Drop for Member {
    fn drop(&mut self) {
        // Who waits or has a permit also has the share, so it has neither now.
        self.admission.change(|state| state.turns.leave(self.id));
    }
}

impl Share {
    /// Unlike that of every other share that there is.
    pub(crate) fn id(&self) -> ShareId {
        self.0.id
    }

    /// Waits for the right to ask for `bytes`. `None` when the engine stops. A future that is dropped leaves nothing
    /// behind: what it may have been given goes to the next.
    pub(crate) async fn admit(&self, bytes: u64) -> Option<Permit> {
        self.ask(bytes, None).await
    }

    async fn ask(&self, bytes: u64, again: Option<Ticket>) -> Option<Permit> {
        let ask = |state: &mut State| state.ask(self, bytes, again);
        match self.0.admission.change(ask) {
            Asked::Granted(grant) => Some(Permit::new(self.clone(), grant)),
            Asked::Waits(ticket, permit) => Waiting::new(self, ticket).until(permit).await,
            Asked::Refused => None,
        }
    }
}

/// A place among those who wait, given up on drop.
struct Waiting<'a> {
    share: &'a Share,
    ticket: Ticket,
    ended: bool,
}

impl<'a> Waiting<'a> {
    fn new(share: &'a Share, ticket: Ticket) -> Self {
        metrics::gauge!("s3engine_waiting_requests").increment(1);
        Self {
            share,
            ticket,
            ended: false,
        }
    }

    async fn until(mut self, permit: oneshot::Receiver<Permit>) -> Option<Permit> {
        let permit = permit.await.ok();
        self.ended = true;
        permit
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        metrics::gauge!("s3engine_waiting_requests").decrement(1);
        if !self.ended {
            let Member { id, admission, .. } = &*self.share.0;
            drop(admission.change(|state| state.turns.give_up(*id, self.ticket)));
        }
    }
}

/// The right to run one request. Ends on drop.
pub(crate) struct Permit {
    share: Share,
    /// What was asked for.
    bytes: u64,
    /// `None` while it is dropped, and between two attempts.
    grant: Option<Grant>,
    /// How long the place is not given to another.
    rest: Duration,
}

impl Permit {
    fn new(share: Share, grant: Grant) -> Self {
        metrics::gauge!("s3engine_in_flight_requests").increment(1);
        metrics::gauge!("s3engine_in_flight_bytes").increment(grant.bytes as f64);
        Self {
            share,
            bytes: grant.bytes,
            grant: Some(grant),
            rest: Duration::ZERO,
        }
    }

    /// Tells that only `real` bytes were moved: the rest is free for others at once, and not charged to the share.
    pub(crate) fn refund(&mut self, real: u64) {
        let Some(grant) = self.grant.as_mut().filter(|grant| real < grant.bytes) else {
            return;
        };
        let back = grant.bytes - real;
        let admission = &self.share.0.admission;
        admission.change(|state| state.turns.refund(grant, real));
        metrics::gauge!("s3engine_in_flight_bytes").decrement(back as f64);
    }

    /// Tells how an attempt ended, and how long it took: from that it is learned what the endpoint bears.
    pub(crate) fn ended(&mut self, took: Duration, ending: Option<Ending>) {
        let (Some(_), Some(ending)) = (&self.grant, ending) else {
            return;
        };
        let Member {
            window, admission, ..
        } = &*self.share.0;
        let rest = admission.change(|state| state.ended(*window, took, ending));
        // Places that were closed together do not come back together.
        self.rest = rest.mul_f64(0.5 + rand::random::<f64>() / 2.0);
    }

    /// Leaves the place to others for the time of a backoff, and waits for another one, before those that came later.
    /// `false` when the engine stops.
    pub(crate) async fn back_off(&mut self, wait: Duration) -> bool {
        let ticket = self.release();
        tokio::time::sleep(wait).await;
        match self.share.ask(self.bytes, ticket).await {
            Some(permit) => {
                *self = permit;
                true
            }
            None => false,
        }
    }

    /// Gives the room back, at once to the host, and to the endpoint's window after the rest.
    fn release(&mut self) -> Option<Ticket> {
        let grant = self.grant.take()?;
        let ticket = grant.ticket;
        metrics::gauge!("s3engine_in_flight_requests").decrement(1);
        metrics::gauge!("s3engine_in_flight_bytes").decrement(grant.bytes as f64);
        let Member {
            window, admission, ..
        } = &*self.share.0;
        let rest = std::mem::take(&mut self.rest);
        let runtime = tokio::runtime::Handle::try_current();
        match runtime.ok().filter(|_| !rest.is_zero()) {
            None => admission.change(|state| state.turns.finish(grant)),
            Some(runtime) => {
                admission.change(|state| {
                    state.turns.windows().rest(*window);
                    state.turns.finish(grant);
                });
                let resting = Resting {
                    window: *window,
                    admission: Arc::clone(admission),
                };
                runtime.spawn(async move {
                    let _resting = resting;
                    tokio::time::sleep(rest).await;
                });
            }
        }
        Some(ticket)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.release();
    }
}

/// A place of a window that nobody gets. Comes back on drop, also where its thread ends.
struct Resting {
    window: WindowId,
    admission: Arc<Admission>,
}

impl Drop for Resting {
    fn drop(&mut self) {
        let wake = |state: &mut State| state.turns.windows().wake(self.window);
        self.admission.change(wake);
    }
}

#[cfg(test)]
mod tests;
