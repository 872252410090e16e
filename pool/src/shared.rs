//! What all handles of a pool share: leasing, growing within the bound, giving back, ending.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use event_listener::Event;

use crate::accounts::{Accounts, Released, SlabState, Wanted};
use crate::buffer::{Buffer, Lease, Place};
use crate::client::{Client, ClientId, ClientOptions, Handle};
use crate::cuda::{CudaError, CudaKind, CudaMemory, Gpu, Staging, Uuid};
use crate::group::Groups;
use crate::host::HostMemory;
use crate::ledger::{
    Counters, FabricId, Registering, RegistrationUse, UnregisteredWhy, segment_len,
};
use crate::memory::{Memory, SLAB_ALIGN};
use crate::options::{CudaStats, MemoryBound, PoolError, PoolOptions};
use crate::process::Process;
use crate::registrar::{Registrar, RevokeError};
use crate::room::{Found, Reservation, Room};
use crate::slab::{Backing, Slab, SlabId};
use crate::slots::SlotId;

/// What all handles of a pool share.
pub(crate) struct Shared {
    pub(crate) process: Process,
    pub(crate) options: PoolOptions,
    pub(crate) max_bytes: u64,
    pub(crate) fabrics: Vec<Arc<dyn Registrar>>,
    pub(crate) counters: Counters,
    pub(crate) room: Arc<Room>,
    pub(crate) groups: Groups,
    /// Held while room for a slab is looked for.
    pub(crate) making_room: Mutex<()>,
    accounts: Mutex<Accounts>,
    /// Of each device, as long as there are slabs of it.
    staging: Mutex<BTreeMap<Uuid, Weak<Staging>>>,
    next_client: AtomicU64,
    /// Wakes the keeper.
    pub(crate) keeper: Arc<Event>,
}

impl Shared {
    /// The process itself, as a client of its pool.
    pub(crate) const HOST: ClientId = ClientId(0);

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
            room: Arc::default(),
            groups: Groups::default(),
            making_room: Mutex::default(),
            accounts: Mutex::default(),
            staging: Mutex::default(),
            next_client: AtomicU64::new(Self::HOST.0),
            keeper: Arc::default(),
        }
    }

    /// Not in a forked child: there the lock may be held by nobody who could release it.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Accounts> {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A client's first handle. The first client is the process itself.
    pub(crate) fn open(self: &Arc<Self>, options: ClientOptions) -> Result<Handle, PoolError> {
        let id = ClientId(self.next_client.fetch_add(1, Ordering::Relaxed));
        let client = Arc::new(Client::new(self, id, options)?);
        let mut accounts = self.lock();
        accounts.open(Arc::clone(&client));
        accounts.report();
        drop(accounts);
        Ok(Handle {
            shared: Arc::clone(self),
            client,
        })
    }

    /// No new leases for the client, and its slabs go when their last leases do.
    pub(crate) fn retire(&self, client: &Client) {
        if !self.process.is_this() {
            return;
        }
        let mut accounts = self.lock();
        let ended = accounts.retire(client.id);
        accounts.report();
        drop(accounts);
        if ended {
            tracing::debug!(client = &*client.name, "client retired");
            client.freed.notify(usize::MAX);
            self.keeper.notify(usize::MAX);
        }
    }

    pub(crate) fn lease(
        self: &Arc<Self>,
        client: &Client,
        wanted: Wanted,
    ) -> Result<Option<Buffer>, PoolError> {
        let mut accounts = self.lock();
        let leased = accounts.lease(client, wanted)?;
        accounts.report();
        drop(accounts);
        Ok(leased.map(|(slab, place)| self.hand_out(slab, place)))
    }

    fn hand_out(self: &Arc<Self>, slab: Arc<Slab>, place: Place) -> Buffer {
        Buffer::own(Lease::new(Arc::clone(self), slab, place))
    }

    pub(crate) fn grow_and_lease(
        self: &Arc<Self>,
        client: &Arc<Client>,
        wanted: Wanted,
    ) -> Result<Buffer, PoolError> {
        let growing = client.growing.lock();
        let _growing = growing.unwrap_or_else(PoisonError::into_inner);
        // Another request may have made a slab while this one waited.
        if let Some(buffer) = self.lease(client, wanted)? {
            return Ok(buffer);
        }
        let slab = match self.find_room(client, wanted)? {
            Found::Slot(slab, place) => return Ok(self.hand_out(slab, place)),
            Found::Room(room) => self.make_slab(client, room, wanted)?,
        };
        // Whoever owns the pool and uses it himself may have no use for any fabric.
        if client.id != Self::HOST {
            self.register_ahead(&slab);
        }
        let mut accounts = self.lock();
        let added = accounts.add(&slab);
        let leased = added.and_then(|()| accounts.lease(client, wanted));
        accounts.report();
        drop(accounts);
        match leased {
            Ok(Some((slab, place))) => Ok(self.hand_out(slab, place)),
            Ok(None) => Err(self.full(client, wanted, MemoryBound::Pool)?),
            // Retired meanwhile.
            Err(error) => {
                let _ = self.revoke(&slab, self.revoke_deadline());
                Err(error)
            }
        }
    }

    fn make_slab(
        &self,
        client: &Client,
        mut room: Reservation,
        wanted: Wanted,
    ) -> Result<Arc<Slab>, PoolError> {
        let backing = match wanted.memory {
            Memory::Host => Backing::Host(HostMemory::create(room.len(), self.options.huge_pages)?),
            Memory::Cuda(uuid) => {
                let memory = self.make_cuda(uuid, &mut room, wanted.len)?;
                let staging = self.staging(memory.gpu());
                Backing::Cuda(memory, staging)
            }
        };
        let slab = Slab::new(SlabId::next(), backing, room);
        if client.read_only {
            slab.close_to_others()?;
        }
        tracing::debug!(
            slab = slab.id().0,
            client = &*client.name,
            bytes = slab.len(),
            memory = %slab.memory(),
            cuda = slab.cuda().map(|memory| tracing::field::display(memory.kind())),
            "slab made"
        );
        Ok(Arc::new(slab))
    }

    /// Memory of a device: as much as there is room for, or where the device has less, as much as is needed.
    fn make_cuda(
        &self,
        uuid: Uuid,
        room: &mut Reservation,
        needed: u64,
    ) -> Result<CudaMemory, CudaError> {
        let gpu = Gpu::find(uuid)?;
        let legacy = |fabric: &Arc<dyn Registrar>| fabric.cuda_kind() == CudaKind::Legacy;
        let kind = match !gpu.shares_by_descriptor() || self.fabrics.iter().any(legacy) {
            true => CudaKind::Legacy,
            false => CudaKind::Vmm,
        };
        let needed = needed.max(1).next_multiple_of(SLAB_ALIGN);
        match CudaMemory::create(gpu, room.len(), kind) {
            Err(error) if error.is_out_of_memory() && needed < room.len() => {
                room.shrink(needed);
                CudaMemory::create(gpu, needed, kind)
            }
            made => made,
        }
    }

    /// What the slabs of a device are filled from, shared by all of them.
    pub(crate) fn staging(&self, gpu: &'static Gpu) -> Arc<Staging> {
        let mut staging = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
        let of_gpu = staging.entry(gpu.uuid()).or_default();
        of_gpu.upgrade().unwrap_or_else(|| {
            let new = Arc::new(Staging::new(gpu, self.options.staging_bytes));
            *of_gpu = Arc::downgrade(&new);
            new
        })
    }

    /// The most bytes of a kind of memory ever mapped.
    pub(crate) fn bound(&self, memory: Memory) -> Result<u64, CudaError> {
        let Memory::Cuda(uuid) = memory else {
            return Ok(self.max_bytes);
        };
        let half = Gpu::find(uuid)?.memory() / 2;
        let most = self.options.max_cuda_bytes.unwrap_or(half);
        Ok(most - most % SLAB_ALIGN)
    }

    pub(crate) fn cuda_stats(&self) -> Vec<CudaStats> {
        let stats = self
            .room
            .cuda()
            .into_iter()
            .map(|(device, mapped)| CudaStats {
                device,
                mapped,
                max_bytes: self.bound(Memory::Cuda(device)).unwrap_or(0),
            });
        stats.collect()
    }

    /// Revokes and unmaps slabs that were taken out of the accounts.
    pub(crate) fn destroy(&self, slabs: Vec<SlabState>) {
        let deadline = self.revoke_deadline();
        for entry in slabs {
            // Unconfirmed is counted by the ledger; the mapping goes either way, so nobody reads it again.
            let _ = self.revoke(&entry.slab, deadline);
            entry.end();
        }
    }

    /// Registers a new slab, so that no GET waits for that. A refusal is kept, and told to the GET that meets it.
    pub(crate) fn register_ahead(&self, slab: &Slab) {
        for (nth, registrar) in self.fabrics.iter().enumerate() {
            let limit = segment_len(&**registrar);
            for start in (0..slab.len()).step_by(usize::try_from(limit).unwrap_or(usize::MAX)) {
                let len = limit.min(slab.len() - start);
                if self.register(slab, FabricId(nth as u8), start, len).is_ok() {
                    self.counters.ahead.fetch_add(1, Ordering::Relaxed);
                }
            }
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
            Registering {
                registrar,
                counters: &self.counters,
                cool_down: self.options.registration_cool_down,
            },
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
    pub(crate) fn release(&self, slab: &Slab, slot: SlotId) {
        if !self.process.is_this() {
            return;
        }
        let mut accounts = self.lock();
        let released = accounts.release(slab, slot);
        accounts.report();
        drop(accounts);
        slab.client().freed.notify(usize::MAX);
        match released {
            Released::Gone | Released::Busy => {}
            // Any client may have its room now.
            Released::Idle => drop(self.room.freed.notify(usize::MAX)),
            Released::Orphaned => drop(self.keeper.notify(usize::MAX)),
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if !self.process.is_this() {
            // Revoking would end the parent's registrations; even the locks are the parent's.
            std::mem::forget(std::mem::take(&mut self.fabrics));
            return;
        }
        let accounts = self.accounts.get_mut();
        let accounts = accounts.unwrap_or_else(PoisonError::into_inner);
        let slabs = accounts.take_all();
        self.destroy(slabs);
        // The keeper sees that the pool is gone, and ends.
        self.keeper.notify(usize::MAX);
    }
}
