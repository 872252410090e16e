//! One allocation: the unit of registration, revocation and export.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::client::Client;
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

/// What a slab is made of. CUDA memory joins as another variant.
enum Backing {
    Host(HostMemory),
}

pub(crate) struct Slab {
    id: SlabId,
    /// Dropped before the reservation: the bytes are free when they are counted as free.
    backing: Backing,
    reserved: Reservation,
    pub(crate) ledger: SlabLedger,
}

impl Slab {
    pub(crate) fn host(id: SlabId, memory: HostMemory, reserved: Reservation) -> Self {
        Self {
            id,
            backing: Backing::Host(memory),
            reserved,
            ledger: SlabLedger::default(),
        }
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
        match self.backing {
            Backing::Host(_) => Memory::Host,
        }
    }

    pub(crate) fn pages(&self) -> &MappedPages {
        match &self.backing {
            Backing::Host(memory) => memory.pages(),
        }
    }

    /// The mapping that this host's processors can reach, if there is one.
    pub(crate) fn mapping(&self) -> Option<&Mapping> {
        match &self.backing {
            Backing::Host(memory) => Some(memory.mapping()),
        }
    }

    /// Address of the first byte as fabrics know it.
    pub(crate) fn address(&self) -> u64 {
        match &self.backing {
            Backing::Host(memory) => memory.mapping().address(),
        }
    }

    /// Keeps other users from opening the memory anew.
    pub(crate) fn close_to_others(&self) -> Result<(), MemoryError> {
        match &self.backing {
            Backing::Host(memory) => memory.close_to_others(),
        }
    }

    /// A descriptor to hand to the client's process.
    pub(crate) fn export(&self) -> Result<OwnedFd, MemoryError> {
        match &self.backing {
            Backing::Host(memory) => memory.export(self.client().read_only),
        }
    }

    /// Frees the pages even while the client's process maps them. Not possible where it only reads.
    pub(crate) fn discard(&self) -> Result<(), MemoryError> {
        match &self.backing {
            Backing::Host(memory) => memory.discard(),
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match &self.backing {
            Backing::Host(memory) => memory.fd(),
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
    /// The pages it was given.
    pub pages: Pages,
}
