//! Slots that a remote may still write to, and how they come back.
//!
//! A slab with such slots takes no new work. When its tokens are in (or `quarantine_max` has passed, or too
//! many bytes wait), its registrations are revoked; once that is confirmed the slots are free and the slab
//! works again. Unconfirmed, the slab is given up: its memory is never leased again.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::buffer::{Core, Lease, Place, ReturnCell, SlotRetired, has_windows};
use crate::registrar::RevokeError;
use crate::shared::{Shared, SlabState, State};
use crate::slab::{Slab, SlabId};

/// How often a slab that waits for its last tokens is looked at.
const POLL: Duration = Duration::from_millis(5);

pub(crate) struct QuarantinedSlot {
    place: Place,
    windows: Weak<Core>,
    waiter: Option<Arc<ReturnCell>>,
}

/// Whether a slab takes work.
#[derive(Default)]
pub(crate) enum Status {
    #[default]
    Active,
    /// Since when it has quarantined slots.
    Draining(Instant),
    /// Its registrations are being revoked.
    Revoking,
}

impl Shared {
    /// Takes over a slot that a remote may still write to.
    pub(crate) fn quarantine(
        &self,
        lease: Lease,
        windows: Weak<Core>,
        waiter: Option<Arc<ReturnCell>>,
    ) {
        if !self.process.is_this() {
            return lease.give_up();
        }
        let mut state = self.lock();
        let quarantined = QuarantinedSlot {
            place: lease.place,
            windows,
            waiter,
        };
        match state.slabs.get_mut(&lease.place.slot.slab) {
            Some(entry) => {
                entry.slab.ledger.drain();
                if matches!(entry.status, Status::Active) {
                    entry.status = Status::Draining(Instant::now());
                }
                entry.quarantined.push(quarantined);
                // The slot is the quarantine's now; the lease must not free it.
                lease.give_up();
            }
            // Given up meanwhile: there is nothing to wait for.
            None => quarantined.retire(),
        }
        metrics::counter!("s3engine_quarantined_slots_total").increment(1);
        self.report(&state);
        drop(state);
        self.quarantined.notify(usize::MAX);
    }

    /// Revokes what is due. Returns after how long to look again, if there is a reason to.
    pub(crate) fn maintain(self: &Arc<Self>, now: Instant) -> Option<Duration> {
        loop {
            let mut state = self.lock();
            let over_cap = state.quarantined_bytes() > self.options.quarantine_max_bytes;
            let due = state.slabs.iter_mut().find_map(|(&id, entry)| {
                let Status::Draining(since) = entry.status else {
                    return None;
                };
                let late =
                    over_cap || now.saturating_duration_since(since) >= self.options.quarantine_max;
                due(entry, late).then(|| {
                    entry.status = Status::Revoking;
                    (id, Arc::clone(&entry.slab))
                })
            });
            let Some((id, slab)) = due else {
                let waiting = state
                    .slabs
                    .values()
                    .any(|entry| matches!(entry.status, Status::Draining(_)));
                return waiting.then_some(POLL);
            };
            drop(state);
            let result = self.revoke(&slab, self.revoke_deadline());
            self.settle(id, &slab, result);
        }
    }

    /// Frees the quarantined slots of a slab, or gives the slab up.
    fn settle(self: &Arc<Self>, id: SlabId, slab: &Arc<Slab>, result: Result<(), RevokeError>) {
        let mut state = self.lock();
        let Some(entry) = state.slabs.get_mut(&id) else {
            return;
        };
        // A slot that came while the revocation ran may still be written by this process.
        let (held, slots): (Vec<_>, Vec<_>) = std::mem::take(&mut entry.quarantined)
            .into_iter()
            .partition(|slot| result.is_ok() && has_windows(&slot.windows));
        // Handed out after the lock is released: a lease that nobody takes is freed at once.
        let mut leases = Vec::new();
        match &result {
            Ok(()) => {
                if held.is_empty() {
                    slab.ledger.reopen();
                    entry.status = Status::Active;
                } else {
                    entry.status = Status::Draining(Instant::now());
                    entry.quarantined = held;
                }
                for QuarantinedSlot { place, waiter, .. } in slots {
                    let lease = Lease::new(Arc::clone(self), Arc::clone(slab), place);
                    leases.push((waiter, lease));
                }
            }
            Err(error) => {
                tracing::error!(slab = id.0, %error, bytes = slab.len(), "slab given up");
                metrics::counter!("s3engine_slabs_given_up_total").increment(1);
                slab.ledger.give_up();
                state.slabs.remove(&id);
                slots.into_iter().for_each(QuarantinedSlot::retire);
            }
        }
        self.report(&state);
        drop(state);
        for (waiter, lease) in leases {
            match waiter {
                Some(cell) => cell.put(Ok(lease)),
                None => drop(lease),
            }
        }
        self.freed.notify(usize::MAX);
    }
}

/// Whether a draining slab's registrations should be revoked now.
fn due(entry: &SlabState, late: bool) -> bool {
    // A window that is still alive may be written by this process too: its request is being cancelled.
    let windows_gone = entry
        .quarantined
        .iter()
        .all(|slot| !has_windows(&slot.windows));
    windows_gone && (late || entry.slab.ledger.in_use() == 0)
}

impl QuarantinedSlot {
    pub(crate) fn len(&self) -> u64 {
        self.place.len
    }

    /// Nothing is left to wait for.
    pub(crate) fn retire(self) {
        if let Some(cell) = self.waiter {
            cell.put(Err(SlotRetired));
        }
    }
}

impl State {
    pub(crate) fn quarantined_bytes(&self) -> u64 {
        self.slabs
            .values()
            .flat_map(|entry| &entry.quarantined)
            .map(QuarantinedSlot::len)
            .sum()
    }
}

/// Runs [`Shared::maintain`] until the pool is gone.
pub(crate) fn keep(shared: Weak<Shared>, quarantined: Arc<event_listener::Event>) {
    loop {
        let changed = quarantined.listen();
        let next = match shared.upgrade() {
            Some(shared) => shared.maintain(Instant::now()),
            None => return,
        };
        use event_listener::Listener;
        match next {
            Some(after) => drop(changed.wait_timeout(after)),
            None => changed.wait(),
        }
    }
}
