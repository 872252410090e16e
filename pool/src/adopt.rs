//! Memory of the caller's as buffers of the pool: found again while it stays allocated, registered once.

use std::sync::Arc;

use crate::accounts::SlabState;
use crate::buffer::{Buffer, Lease, Place};
use crate::client::Client;
use crate::cuda::CallersRange;
use crate::options::PoolError;
use crate::pool::Pool;
use crate::room::Reservation;
use crate::shared::Shared;
use crate::slab::{Backing, Slab, SlabId};
use crate::{Memory, cuda::CudaError};

/// Allocations of one client that are remembered. Beyond these, the one used least lately is forgotten.
const REMEMBERED: usize = 256;

impl Pool {
    /// Device memory of the caller's as a buffer: a GET fills it in place. The pool allocates nothing. The allocation
    /// is remembered with its registrations until it is freed, which is seen when something else comes to its place,
    /// or [`forget`](Self::forget) is called.
    ///
    /// Memory that cannot be handed to a fabric is filled over HTTP, and the completion says so.
    ///
    /// # Safety
    /// The `len` bytes at `address` stay allocated until the buffer, and each buffer that comes back for it, is
    /// dropped; nobody else reads or writes them meanwhile.
    pub unsafe fn adopt_cuda(&self, address: u64, len: u64) -> Result<Buffer, PoolError> {
        let owner = self.owner()?;
        let range = CallersRange::around(address, len)?;
        owner.shared.adopt(&owner.client, range, address, len)
    }

    /// Forgets what is remembered of the caller's memory that has bytes in this range: call it before it is freed
    /// where a fabric may hold it registered. False where a buffer of it is still about.
    pub fn forget(&self, address: u64, len: u64) -> Result<bool, PoolError> {
        let owner = self.owner()?;
        let shared = &owner.shared;
        let found = |slab: &Slab| slab.is_adopted() && slab.overlaps(address, len);
        let taken = shared.lock().take_adopted(&owner.client, found);
        shared.destroy(taken);
        let accounts = shared.lock();
        let account = accounts.get(owner.client.id);
        let left = account.is_some_and(|account| {
            let mut slabs = account.slabs.values();
            slabs.any(|entry| found(&entry.slab))
        });
        Ok(!left)
    }
}

impl Shared {
    fn adopt(
        self: &Arc<Self>,
        client: &Arc<Client>,
        range: CallersRange,
        address: u64,
        len: u64,
    ) -> Result<Buffer, PoolError> {
        let at = address - range.address;
        let result = |name| {
            metrics::counter!("s3engine_cuda_adopted_total", "result" => name).increment(1);
        };
        if let Some(found) = self.lock().lease_adopted(client, &range, at, len)? {
            result("known");
            return Ok(self.adopted(found));
        }
        // What lay here before was freed, and is registered no more.
        let freed = |slab: &Slab| slab.is_adopted() && slab.overlaps(range.address, range.len);
        let freed: Vec<SlabState> = self.lock().take_adopted(client, freed);
        self.destroy(freed);
        let memory = Memory::Cuda(range.gpu.uuid());
        let reserved = Reservation::of_caller(&self.room, client, memory, range.len);
        let slab = Slab::adopted(
            SlabId::next(),
            Backing::Cuda(range.memory(), self.staging(range.gpu)),
            reserved,
            range,
        );
        let slab = Arc::new(slab);
        let mut accounts = self.lock();
        accounts.add(&slab)?;
        let found = accounts.lease_adopted(client, &range, at, len);
        let over = accounts.adopted_beyond(client, REMEMBERED);
        accounts.report();
        drop(accounts);
        self.destroy(over);
        let found = found?.ok_or_else(|| CudaError::Unusable {
            what: "cannot fill the caller's memory",
            why: "another thread has just taken it".to_owned(),
        })?;
        result("new");
        Ok(self.adopted(found))
    }

    fn adopted(self: &Arc<Self>, (slab, place): (Arc<Slab>, Place)) -> Buffer {
        Buffer::own(Lease::new(Arc::clone(self), slab, place))
    }
}
