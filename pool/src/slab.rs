//! One allocation: the unit of registration, revocation and export.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::client::{Client, Share};
use crate::cuda::{CallersRange, CudaError, CudaKind, CudaMemory, Gpu, PinnedOnce, Staging};
use crate::host::HostMemory;
use crate::ledger::SlabLedger;
use crate::memory::{MappedPages, Mapping, Memory, MemoryError, Pages};
use crate::registrar::Segment;
use crate::room::Reservation;

/// A slab's number. Never given out twice in one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlabId(pub u32);

impl SlabId {
    pub(crate) fn next() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// What a slab is made of.
pub(crate) enum Backing {
    Host(HostMemory),
    Cuda(CudaMemory, Arc<Staging>),
}

/// Who has allocated a slab's memory.
pub(crate) enum Whose {
    /// The pool.
    Pools,
    /// The caller, who named it.
    Callers(CallersRange),
    /// A client's process, which shares it.
    Clients,
}

pub(crate) struct Slab {
    id: SlabId,
    /// Dropped before the memory.
    pinned: PinnedOnce,
    /// Dropped before the reservation: the bytes are free when they are counted as free.
    backing: Backing,
    reserved: Reservation,
    whose: Whose,
    pub(crate) ledger: SlabLedger,
}

impl Slab {
    pub(crate) fn new(id: SlabId, backing: Backing, reserved: Reservation) -> Self {
        Self {
            id,
            pinned: PinnedOnce::default(),
            backing,
            reserved,
            whose: Whose::Pools,
            ledger: SlabLedger::default(),
        }
    }

    /// Memory of the caller's, or of the client's process.
    pub(crate) fn adopted(
        id: SlabId,
        backing: Backing,
        reserved: Reservation,
        whose: Whose,
    ) -> Self {
        Self {
            whose,
            ..Self::new(id, backing, reserved)
        }
    }

    /// Whether the pool has not allocated it: nothing but what its owner names is ever leased in it.
    pub(crate) fn is_adopted(&self) -> bool {
        !matches!(self.whose, Whose::Pools)
    }

    fn callers(&self) -> Option<&CallersRange> {
        match &self.whose {
            Whose::Callers(range) => Some(range),
            Whose::Pools | Whose::Clients => None,
        }
    }

    /// Whether it is this allocation of the caller's.
    pub(crate) fn is_of(&self, range: &CallersRange) -> bool {
        self.callers().is_some_and(|callers| callers.is(range))
    }

    /// Whether it has bytes in common with a range.
    pub(crate) fn overlaps(&self, address: u64, len: u64) -> bool {
        let callers = self.callers();
        callers.is_some_and(|callers| callers.overlaps(address, len))
    }

    pub(crate) fn id(&self) -> SlabId {
        self.id
    }

    pub(crate) fn len(&self) -> u64 {
        self.reserved.len()
    }

    /// Whose leases may lie in it.
    pub(crate) fn client(&self) -> &Arc<Client> {
        self.reserved.client()
    }

    pub(crate) fn memory(&self) -> Memory {
        self.reserved.memory()
    }

    /// The pages of host memory.
    pub(crate) fn pages(&self) -> Option<&MappedPages> {
        match &self.backing {
            Backing::Host(memory) => Some(memory.pages()),
            Backing::Cuda(..) => None,
        }
    }

    /// The device's memory, where it is that.
    pub(crate) fn cuda(&self) -> Option<&CudaMemory> {
        match &self.backing {
            Backing::Host(_) => None,
            Backing::Cuda(memory, _) => Some(memory),
        }
    }

    /// What fills it with bytes that are in host memory, where processors cannot.
    pub(crate) fn staging(&self) -> Option<&Arc<Staging>> {
        match &self.backing {
            Backing::Host(_) => None,
            Backing::Cuda(_, staging) => Some(staging),
        }
    }

    /// The mapping that this host's processors can reach, if there is one.
    pub(crate) fn mapping(&self) -> Option<&Mapping> {
        match &self.backing {
            Backing::Host(memory) => Some(memory.mapping()),
            Backing::Cuda(..) => None,
        }
    }

    /// Pins host memory for the CUDA contexts of this process.
    pub(crate) fn pin(&self, gpu: &'static Gpu) -> Result<(), CudaError> {
        let Some(mapping) = self.mapping() else {
            return Ok(());
        };
        let range = (mapping.address(), mapping.len());
        // SAFETY: mapped as long as the backing lives, which is dropped after the pinning.
        unsafe { self.pinned.pin(gpu, range, false) }.map(drop)
    }

    /// Address of the first byte as fabrics know it.
    pub(crate) fn address(&self) -> u64 {
        match &self.backing {
            Backing::Host(memory) => memory.mapping().address(),
            Backing::Cuda(memory, _) => memory.address(),
        }
    }

    /// Keeps other users from opening the memory anew. A device's memory knows no such difference.
    pub(crate) fn close_to_others(&self) -> Result<(), MemoryError> {
        match &self.backing {
            Backing::Host(memory) => memory.close_to_others(),
            Backing::Cuda(..) => Ok(()),
        }
    }

    /// What the client's process maps it by.
    pub(crate) fn export(&self) -> Result<Share, MemoryError> {
        match &self.backing {
            Backing::Host(memory) => memory
                .export(self.client().read_only)
                .map(Share::Descriptor),
            Backing::Cuda(memory, _) => Ok(memory.export()?.into()),
        }
    }

    /// Frees the pages even while the client's process maps them. A device's memory is free when its last
    /// mapping ends.
    pub(crate) fn discard(&self) -> Result<(), MemoryError> {
        match &self.backing {
            Backing::Host(memory) => memory.discard(),
            Backing::Cuda(..) => Ok(()),
        }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.backing {
            Backing::Host(memory) => Some(memory.fd()),
            Backing::Cuda(memory, _) => memory.descriptor(),
        }
    }

    pub(crate) fn segment(&self, index: u32, start: u64, len: u64) -> Segment<'_> {
        Segment {
            slab: self.id,
            index,
            memory: self.memory(),
            address: self.address() + start,
            len,
            fd: self.fd(),
            fd_offset: start,
            slab_len: self.len(),
            cuda: self.cuda(),
        }
    }
}

/// What one slab holds at a moment.
#[derive(Clone, Copy, Debug)]
pub struct SlabStats {
    /// The slab.
    pub id: SlabId,
    /// Its kind.
    pub memory: Memory,
    /// Its length in bytes.
    pub bytes: u64,
    /// Bytes leased, quarantined ones included.
    pub leased: u64,
    /// Bytes that nobody may touch until the slab is revoked.
    pub quarantined: u64,
    /// How CUDA memory was made.
    pub cuda: Option<CudaKind>,
    /// The pages that host memory was given.
    pub pages: Option<Pages>,
}
