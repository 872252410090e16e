//! What all handles of a pool share: leasing, growing within the bound, giving back.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use event_listener::Event;

use crate::buffer::{Buffer, Lease, Place};
use crate::ledger::{Counters, FabricId, RegistrationUse, UnregisteredWhy};
use crate::memory::{HostMemory, Memory, SLAB_ALIGN};
use crate::options::{PoolError, PoolOptions};
use crate::process::Process;
use crate::quarantine::{QuarantinedSlot, Status};
use crate::registrar::{Registrar, RevokeError};
use crate::slab::{Reservation, Slab, SlabId};
use crate::slots::{SlotId, Slots};

pub(crate) struct SlabState {
    pub(crate) slab: Arc<Slab>,
    pub(crate) slots: Slots,
    pub(crate) status: Status,
    pub(crate) quarantined: Vec<QuarantinedSlot>,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) slabs: BTreeMap<SlabId, SlabState>,
    pub(crate) made: u64,
}

/// What all handles of a pool share.
pub(crate) struct Shared {
    pub(crate) process: Process,
    pub(crate) options: PoolOptions,
    pub(crate) max_bytes: u64,
    pub(crate) fabrics: Vec<Arc<dyn Registrar>>,
    pub(crate) counters: Counters,
    pub(crate) mapped: Arc<AtomicU64>,
    state: Mutex<State>,
    /// Held while a slab is made, so that two requests do not make two.
    growing: Mutex<()>,
    pub(crate) freed: Arc<Event>,
    pub(crate) quarantined: Arc<Event>,
}

impl Shared {
    pub(crate) fn new(
        options: PoolOptions,
        max_bytes: u64,
        fabrics: Vec<Arc<dyn Registrar>>,
    ) -> Self {
        Self {
            process: Process::current(),
            options,
            max_bytes,
            fabrics,
            counters: Counters::default(),
            mapped: Arc::default(),
            state: Mutex::default(),
            growing: Mutex::default(),
            freed: Arc::default(),
            quarantined: Arc::default(),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn lease(self: &Arc<Self>, len: u64, memory: Memory, align: u64) -> Option<Buffer> {
        let mut state = self.lock();
        let takes_work = |entry: &&mut SlabState| {
            matches!(entry.status, Status::Active) && entry.slab.memory() == memory
        };
        let (slab, (slot, offset)) = state
            .slabs
            .values_mut()
            .filter(takes_work)
            .find_map(|entry| Some((Arc::clone(&entry.slab), entry.slots.lease(len, align)?)))?;
        self.report(&state);
        drop(state);
        let place = Place {
            slot,
            offset,
            len,
            align,
        };
        Some(self.hand_out(slab, place))
    }

    fn hand_out(self: &Arc<Self>, slab: Arc<Slab>, place: Place) -> Buffer {
        Buffer::new(Lease::new(Arc::clone(self), slab, place))
    }

    pub(crate) fn grow_and_lease(
        self: &Arc<Self>,
        len: u64,
        memory: Memory,
        align: u64,
    ) -> Result<Buffer, PoolError> {
        let _growing = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
        // Another request may have made a slab while this one waited.
        if let Some(buffer) = self.lease(len, memory, align) {
            return Ok(buffer);
        }
        let reserved = self.reserve(len)?;
        let memory_of_slab = match memory {
            Memory::Host => HostMemory::create(reserved.len(), self.options.huge_pages)?,
        };
        let mut state = self.lock();
        let id = SlabId::next();
        state.made += 1;
        let slab = Arc::new(Slab::host(id, memory_of_slab, reserved));
        tracing::debug!(slab = id.0, bytes = slab.len(), pages = %slab.pages(), "slab made");
        let mut slots = Slots::new(id, slab.len());
        let leased = slots.lease(len, align);
        let entry = SlabState {
            slab: Arc::clone(&slab),
            slots,
            status: Status::Active,
            quarantined: Vec::new(),
        };
        state.slabs.insert(id, entry);
        self.report(&state);
        drop(state);
        let (slot, offset) = leased.ok_or_else(|| self.would_block(len))?;
        let place = Place {
            slot,
            offset,
            len,
            align,
        };
        Ok(self.hand_out(slab, place))
    }

    /// Takes a slab's bytes out of the bound: a full slab where it fits, else as little as `len` needs,
    /// giving up idle slabs for it if that helps.
    fn reserve(&self, len: u64) -> Result<Reservation, PoolError> {
        let needed = len.max(1).next_multiple_of(SLAB_ALIGN);
        let slab_bytes = self.options.slab_bytes.min(self.max_bytes);
        let wanted = slab_bytes.next_multiple_of(SLAB_ALIGN).max(needed);
        let room = || self.max_bytes - self.mapped.load(Ordering::Acquire).min(self.max_bytes);
        if room() < needed {
            self.free_idle_slabs(needed);
        }
        let room = room();
        if room < needed {
            return Err(self.would_block(len));
        }
        let len = wanted.min(room - room % SLAB_ALIGN);
        Ok(Reservation::new(&self.mapped, &self.freed, len))
    }

    /// Unregisters and unmaps slabs that nobody uses, but only where that makes `needed` bytes of room.
    fn free_idle_slabs(&self, needed: u64) {
        let mut state = self.lock();
        let idle = |entry: &SlabState| {
            entry.slots.leased_bytes() == 0 && matches!(entry.status, Status::Active)
        };
        let idle_bytes: u64 = state
            .slabs
            .values()
            .filter(|e| idle(e))
            .map(|e| e.slab.len())
            .sum();
        let mapped = self.mapped.load(Ordering::Acquire);
        if mapped.saturating_sub(idle_bytes).saturating_add(needed) > self.max_bytes {
            return;
        }
        let freed: Vec<_> = state
            .slabs
            .extract_if(.., |_, entry| idle(entry))
            .map(|(_, entry)| entry)
            .collect();
        drop(state);
        let deadline = self.revoke_deadline();
        for entry in freed {
            // Unconfirmed is counted by the ledger; the mapping goes either way, so nobody reads it again.
            let _ = self.revoke(&entry.slab, deadline);
        }
    }

    fn would_block(&self, len: u64) -> PoolError {
        let leased = self
            .lock()
            .slabs
            .values()
            .map(|entry| entry.slots.leased_bytes())
            .sum();
        PoolError::WouldBlock {
            len,
            leased,
            max_bytes: self.max_bytes,
        }
    }

    /// The registration of a range of a slab with a fabric: made at first use, kept from then on.
    pub(crate) fn register(
        &self,
        slab: &Slab,
        fabric: FabricId,
        start: u64,
        len: u64,
    ) -> Result<RegistrationUse, UnregisteredWhy> {
        let registrar = &*self.fabrics[usize::from(fabric.0)];
        let range = (slab.len(), start, len);
        slab.ledger.use_for(
            fabric,
            registrar,
            &self.counters,
            slab.id(),
            range,
            |index, start, len| slab.segment(index, start, len),
        )
    }

    /// Until when all revocations that begin now must be confirmed.
    pub(crate) fn revoke_deadline(&self) -> Instant {
        let now = Instant::now();
        // A time too far to count is not waited for.
        now.checked_add(self.options.revoke_timeout).unwrap_or(now)
    }

    pub(crate) fn revoke(&self, slab: &Slab, deadline: Instant) -> Result<(), RevokeError> {
        slab.ledger
            .revoke_all(&self.fabrics, &self.counters, deadline)
    }

    /// Ends a lease.
    pub(crate) fn release(&self, slot: SlotId) {
        if !self.process.is_this() {
            return;
        }
        let mut state = self.lock();
        // A slab that was given up is not in the table any more.
        if let Some(entry) = state.slabs.get_mut(&slot.slab) {
            let released = entry.slots.release(slot);
            debug_assert!(released.is_ok(), "a lease is released once");
        }
        self.report(&state);
        drop(state);
        self.freed.notify(usize::MAX);
    }

    pub(crate) fn report(&self, state: &State) {
        let leased: u64 = state
            .slabs
            .values()
            .map(|entry| entry.slots.leased_bytes())
            .sum();
        metrics::gauge!("s3engine_pool_leased_bytes").set(leased as f64);
        metrics::gauge!("s3engine_pool_mapped_bytes")
            .set(self.mapped.load(Ordering::Relaxed) as f64);
        metrics::gauge!("s3engine_pool_quarantined_bytes").set(state.quarantined_bytes() as f64);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if !self.process.is_this() {
            // Revoking would end the parent's registrations; even the locks are the parent's.
            std::mem::forget(std::mem::take(&mut self.fabrics));
            return;
        }
        let slabs = &mut self
            .state
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .slabs;
        let slabs = std::mem::take(slabs);
        let deadline = self.revoke_deadline();
        for entry in slabs.into_values() {
            let _ = self.revoke(&entry.slab, deadline);
            entry
                .quarantined
                .into_iter()
                .for_each(QuarantinedSlot::retire);
        }
        // The keeper sees that the pool is gone, and ends.
        self.quarantined.notify(usize::MAX);
    }
}
