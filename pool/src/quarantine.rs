//! Slots that a remote may still write to, and how they come back.
//!
//! A slab with such slots takes no new work. When its tokens are in (or `quarantine_max` has passed, or too
//! many bytes wait), its registrations are revoked; once that is confirmed the slots are free and the slab
//! works again. Unconfirmed, the slab is given up: its memory is never leased again.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::accounts::SlabState;
use crate::buffer::{Lease, Place};
use crate::landing::{Core, ReturnCell, SlotRetired, has_windows};
use crate::registrar::RevokeError;
use crate::shared::Shared;
use crate::slab::Slab;

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
        let quarantined = QuarantinedSlot {
            place: lease.place,
            windows,
            waiter,
        };
        let mut accounts = self.lock();
        let given_up = accounts.quarantine(&lease.slab, quarantined).err();
        accounts.report();
        drop(accounts);
        match given_up {
            // The slot is the quarantine's now; the lease must not free it.
            None => lease.give_up(),
            // There is nothing to wait for.
            Some(slot) => slot.retire(),
        }
        metrics::counter!("s3engine_quarantined_slots_total").increment(1);
        self.keeper.notify(usize::MAX);
    }

    /// Revokes what is due, and destroys what retired clients left. Returns after how long to look again, if
    /// there is a reason to.
    pub(crate) fn maintain(self: &Arc<Self>, now: Instant) -> Option<Duration> {
        loop {
            let mut accounts = self.lock();
            let over_cap = accounts.total.quarantined > self.options.quarantine_max_bytes;
            let next = accounts
                .slabs_mut()
                .find_map(|entry| self.begin_revoking(entry, now, over_cap));
            if let Some(slab) = next {
                drop(accounts);
                let result = self.revoke(&slab, self.revoke_deadline());
                self.settle(&slab, result);
                continue;
            }
            let orphans = accounts.take_orphans();
            accounts.report();
            let waiting = accounts
                .slabs_mut()
                .any(|entry| matches!(entry.status, Status::Draining(_)));
            drop(accounts);
            if orphans.is_empty() {
                return waiting.then_some(POLL);
            }
            self.destroy(orphans);
        }
    }

    /// Claims a slab whose registrations should be revoked now.
    fn begin_revoking(
        &self,
        entry: &mut SlabState,
        now: Instant,
        over_cap: bool,
    ) -> Option<Arc<Slab>> {
        let Status::Draining(since) = entry.status else {
            return None;
        };
        let late = over_cap || now.saturating_duration_since(since) >= self.options.quarantine_max;
        due(entry, late).then(|| {
            entry.status = Status::Revoking;
            Arc::clone(&entry.slab)
        })
    }

    /// Revokes the registrations of a slab that nobody uses now. Returns whether that was so.
    pub(crate) fn unregister(self: &Arc<Self>, slab: &Arc<Slab>) -> Result<bool, RevokeError> {
        let mut accounts = self.lock();
        let entry = accounts.slab_mut(slab);
        let Some(entry) = entry.filter(|entry| matches!(entry.status, Status::Active)) else {
            return Ok(false);
        };
        slab.ledger.drain();
        if slab.ledger.in_use() > 0 {
            slab.ledger.reopen();
            return Ok(false);
        }
        entry.status = Status::Revoking;
        drop(accounts);
        let result = self.revoke(slab, self.revoke_deadline());
        self.settle(slab, result.clone());
        result.map(|()| true)
    }

    /// Frees the quarantined slots of a slab, or gives the slab up.
    fn settle(self: &Arc<Self>, slab: &Arc<Slab>, result: Result<(), RevokeError>) {
        let mut accounts = self.lock();
        // A slot that came while the revocation ran may still be written by this process.
        let confirmed = result.is_ok();
        let slots =
            accounts.take_quarantined(slab, |slot| !(confirmed && has_windows(&slot.windows)));
        if let Err(error) = &result {
            let id = slab.id().0;
            tracing::error!(slab = id, %error, bytes = slab.len(), "slab given up");
            metrics::counter!("s3engine_slabs_given_up_total").increment(1);
            slab.ledger.give_up();
            accounts.remove(slab);
        } else if let Some(entry) = accounts.slab_mut(slab) {
            if entry.quarantined().is_empty() {
                slab.ledger.reopen();
                entry.status = Status::Active;
            } else {
                entry.status = Status::Draining(Instant::now());
            }
        }
        accounts.report();
        drop(accounts);
        // After the lock is released: a lease that nobody takes is freed at once.
        for slot in slots {
            if !confirmed {
                slot.retire();
                continue;
            }
            let lease = Lease::new(Arc::clone(self), Arc::clone(slab), slot.place);
            match slot.waiter {
                Some(cell) => cell.put(Ok(lease)),
                None => drop(lease),
            }
        }
        slab.client().freed.notify(usize::MAX);
        self.room.freed.notify(usize::MAX);
    }
}

/// Whether a draining slab's registrations should be revoked now.
fn due(entry: &SlabState, late: bool) -> bool {
    // A window that is still alive may be written by this process too: its request is being cancelled.
    let windows_gone = entry
        .quarantined()
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

/// Runs [`Shared::maintain`] until the pool is gone.
pub(crate) fn keep(shared: Weak<Shared>, wake: Arc<event_listener::Event>) {
    loop {
        let changed = wake.listen();
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
