//! Memory of the caller's as buffers of the pool: found again while it stays allocated, registered once.
//!
//! Where another process owns the pool, the caller's process shares the allocation with that one, which imports it for
//! this client alone. It is that process which remembers it then.

use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError};

use crate::buffer::{Buffer, Lease, Place};
use crate::client::{Client, Handle};
use crate::cuda::{CallersRange, CudaError, CudaMemory, CudaShare, Gpu, Uuid, import_callers};
use crate::memory::Memory;
use crate::options::PoolError;
use crate::pool::{Inner, Pool};
use crate::room::Reservation;
use crate::shared::Shared;
use crate::slab::{Backing, Slab, SlabId, Whose};

/// Allocations of one client that are remembered. Beyond these, the one used least lately is forgotten.
const REMEMBERED: usize = 256;

impl Pool {
    /// Device memory of the caller's as a buffer: a GET fills it in place. The pool allocates nothing. The allocation
    /// is remembered with its registrations until it is freed, which is seen when something else comes to its place,
    /// or [`forget`](Self::forget) is called.
    ///
    /// Memory that cannot be handed to a fabric is filled over HTTP, and the completion says so.
    ///
    /// Where another process owns the pool, the memory must be of one allocation, made by cudaMalloc or, by the calls
    /// for virtual memory, with a descriptor to share it: anything else is an error. The owner has it open until it
    /// forgets it, so the device's memory is not free before: call [`forget`](Self::forget) before freeing it.
    ///
    /// # Safety
    /// The `len` bytes at `address` stay allocated until the buffer, and each buffer that comes back for it, is
    /// dropped; nobody else reads or writes them meanwhile.
    pub unsafe fn adopt_cuda(&self, address: u64, len: u64) -> Result<Buffer, PoolError> {
        let inner = self.inner()?;
        let range = CallersRange::around(address, len)?;
        let at = address - range.address;
        match inner {
            Inner::Owner(owner) => owner.shared.adopt(&owner.client, range, at, len),
            Inner::Remote(remote) => remote.pool.adopt(range, at, len),
        }
    }

    /// Forgets what is remembered of the caller's memory that has bytes in this range: call it before it is freed
    /// where a fabric may hold it registered, or another process owns the pool. False where a buffer of it is still
    /// about.
    pub fn forget(&self, address: u64, len: u64) -> Result<bool, PoolError> {
        match self.inner()? {
            Inner::Owner(owner) => {
                let found = |slab: &Slab| slab.overlaps(address, len);
                Ok(owner.shared.forget(&owner.client, found))
            }
            Inner::Remote(remote) => remote.pool.forget(address, len),
        }
    }

    /// The owner's part of [`adopt_cuda`](Self::adopt_cuda) for a client in another process, which this handle is of:
    /// `len` bytes at `at` of memory of `whole` bytes that it has allocated, and shares. Nothing is ever leased there
    /// but to it, and no bound counts it.
    pub fn adopt_shared(
        &self,
        device: Uuid,
        share: CudaShare<OwnedFd>,
        whole: u64,
        (at, len): (u64, u64),
    ) -> Result<Buffer, PoolError> {
        let Handle { shared, client } = &**self.owner()?;
        let memory = import_callers(Gpu::find(device)?, share, whole)?;
        shared.enter(client, memory, Whose::Clients, (at, len))
    }

    /// Another part of memory that [`adopt_shared`](Self::adopt_shared) has adopted. [`PoolError::UnknownSlab`] where
    /// it was forgotten since.
    pub fn adopt_again(&self, slab: SlabId, (at, len): (u64, u64)) -> Result<Buffer, PoolError> {
        let Handle { shared, client } = &**self.owner()?;
        let is = |of: &Slab| of.id() == slab;
        let found = shared.lock().lease_adopted(client, is, at, len)?;
        let found = found.ok_or(PoolError::UnknownSlab { slab })?;
        count("known");
        Ok(shared.adopted(found))
    }

    /// Forgets memory that [`adopt_shared`](Self::adopt_shared) has adopted. False where a buffer of it is still about.
    pub fn forget_shared(&self, slab: SlabId) -> Result<bool, PoolError> {
        let Handle { shared, client } = &**self.owner()?;
        Ok(shared.forget(client, |of| of.id() == slab))
    }
}

fn count(result: &'static str) {
    metrics::counter!("s3engine_cuda_adopted_total", "result" => result).increment(1);
}

impl Shared {
    fn adopt(
        self: &Arc<Self>,
        client: &Arc<Client>,
        range: CallersRange,
        at: u64,
        len: u64,
    ) -> Result<Buffer, PoolError> {
        let is = |slab: &Slab| slab.is_of(&range);
        let known = || self.lock().lease_adopted(client, is, at, len);
        let mut found = known()?;
        let growing = found.is_none().then(|| client.growing.lock());
        let _growing = growing.map(|held| held.unwrap_or_else(PoisonError::into_inner));
        if found.is_none() {
            // Another thread may have entered it meanwhile.
            found = known()?;
        }
        if let Some(found) = found {
            count("known");
            return Ok(self.adopted(found));
        }
        // What lay here before was freed, and is registered no more.
        self.forget(client, |slab| slab.overlaps(range.address, range.len));
        self.enter(client, range.memory(), Whose::Callers(range), (at, len))
    }

    /// Remembers memory that is not known, and leases a part of it.
    fn enter(
        self: &Arc<Self>,
        client: &Arc<Client>,
        memory: CudaMemory,
        whose: Whose,
        (at, len): (u64, u64),
    ) -> Result<Buffer, PoolError> {
        let kind = Memory::Cuda(memory.gpu().uuid());
        let reserved = Reservation::of_caller(&self.room, client, kind, memory.len());
        let staging = self.staging(memory.gpu());
        let bounded = matches!(whose, Whose::Clients);
        let backing = Backing::Cuda(memory, staging);
        let slab = Arc::new(Slab::adopted(SlabId::next(), backing, reserved, whose));
        let mut accounts = self.lock();
        let mut over = accounts.adopted_beyond(client, REMEMBERED - 1);
        let entered = match accounts.adopted(client) {
            // Another process does not keep as much as it likes in this one.
            adopted if bounded && adopted >= REMEMBERED => Err(CudaError::Unusable {
                what: "cannot fill a client's memory",
                why: format!("{adopted} allocations of it are in use: no more are taken"),
            }
            .into()),
            _ => accounts.add(&slab),
        };
        let leased = entered.and_then(|()| {
            let leased = accounts.lease_adopted(client, |of| of.id() == slab.id(), at, len);
            if leased.is_err() {
                over.extend(accounts.remove(&slab));
            }
            leased
        });
        accounts.report();
        drop(accounts);
        self.destroy(over);
        let leased = leased?.ok_or(PoolError::UnknownSlab { slab: slab.id() })?;
        count("new");
        Ok(self.adopted(leased))
    }

    /// Forgets adopted memory. Returns whether all of it is: not where there are buffers of it.
    fn forget(&self, client: &Client, of: impl Fn(&Slab) -> bool) -> bool {
        let of = |slab: &Slab| slab.is_adopted() && of(slab);
        let mut accounts = self.lock();
        let taken = accounts.take_adopted(client, of);
        let account = accounts.get(client.id);
        let left = account.is_some_and(|account| {
            let mut slabs = account.slabs.values();
            slabs.any(|entry| of(&entry.slab))
        });
        drop(accounts);
        self.destroy(taken);
        !left
    }

    fn adopted(self: &Arc<Self>, (slab, place): (Arc<Slab>, Place)) -> Buffer {
        Buffer::own(Lease::new(Arc::clone(self), slab, place))
    }
}
