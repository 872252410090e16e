//! How much is under way at once, for the whole engine, and whose requests these are.
//!
//! Everything that asks a server for something first gets a [`Permit`] from the [`Share`] that it works for. Who is
//! given one when there is not enough for all is decided in `turns`.

use std::iter;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;

mod groups;
mod turns;

pub(crate) use groups::Group;
pub(crate) use turns::ShareId;
use turns::{Grant, Ticket, Turns};

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

/// What all shares have under way together.
pub(crate) struct InFlight(Arc<Admission>);

/// Locked once per part or small request, for some tens of nanoseconds.
struct Admission(Mutex<State>);

struct State {
    turns: Turns<Waiter>,
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
        let turns = Turns::new(limits);
        let engines = 1;
        Self(Arc::new(Admission(Mutex::new(State { turns, engines }))))
    }

    /// What they have together.
    pub(crate) fn limits(&self) -> Limits {
        self.0.change(|state| state.turns.limits())
    }

    /// The same limits for one more engine, which closes them too.
    pub(crate) fn beside(&self) -> Self {
        self.0.change(|state| state.engines += 1);
        Self(Arc::clone(&self.0))
    }

    /// A share for one client: beside others it gets by `weight`, and never has more than `caps` under way. It ends
    /// with the last clone of the handle and the last permit.
    pub(crate) fn share(&self, weight: NonZeroU32, caps: Limits) -> Share {
        let admission = Arc::clone(&self.0);
        let id = admission.change(|state| state.turns.join(weight, caps));
        Share(Arc::new(Member { id, admission }))
    }

    /// The same with further caps, which all shares of a group have together.
    pub(crate) fn share_in(&self, group: Group, weight: NonZeroU32, caps: Limits) -> Share {
        let share = self.share(weight, caps);
        let id = share.0.id;
        self.0.change(|state| state.turns.group(id, group));
        share
    }

    /// An engine stops. With the last one, all who wait and all who come are refused.
    pub(crate) fn close(&self) {
        // Dropping them wakes those who wait for them.
        drop(self.0.change(|state| {
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
    fn ask(&mut self, share: &Share, bytes: u64) -> Asked {
        if self.engines == 0 {
            return Asked::Refused;
        }
        if let Some(grant) = self.turns.start(share.0.id, bytes) {
            return Asked::Granted(grant);
        }
        let (permit, receiver) = oneshot::channel();
        let share = share.clone();
        let id = share.0.id;
        Asked::Waits(
            self.turns.wait(id, bytes, Waiter { share, permit }),
            receiver,
        )
    }
}

/// What one client takes part with.
#[derive(Clone)]
pub(crate) struct Share(Arc<Member>);

struct Member {
    id: ShareId,
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
        match self.0.admission.change(|state| state.ask(self, bytes)) {
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
            let Member { id, admission } = &*self.share.0;
            drop(admission.change(|state| state.turns.give_up(*id, self.ticket)));
        }
    }
}

/// The right to run one request. Ends on drop.
pub(crate) struct Permit {
    share: Share,
    /// `None` only while it is dropped.
    grant: Option<Grant>,
}

impl Permit {
    fn new(share: Share, grant: Grant) -> Self {
        metrics::gauge!("s3engine_in_flight_requests").increment(1);
        metrics::gauge!("s3engine_in_flight_bytes").increment(grant.bytes as f64);
        let grant = Some(grant);
        Self { share, grant }
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
}

impl Drop for Permit {
    fn drop(&mut self) {
        let Some(grant) = self.grant.take() else {
            return;
        };
        metrics::gauge!("s3engine_in_flight_requests").decrement(1);
        metrics::gauge!("s3engine_in_flight_bytes").decrement(grant.bytes as f64);
        let admission = &self.share.0.admission;
        admission.change(|state| state.turns.finish(grant));
    }
}

#[cfg(test)]
mod tests;
