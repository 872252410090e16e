//! Memory of a pool that another process owns: its slabs mapped here, and the slots that it leased to this one.
//!
//! The owner decides who has which slot; this side believes it only as far as memory safety lets it: every
//! range is checked, and no two buffers of one slab overlap whatever the owner says.

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::buffer::{OutOfBounds, Place};
use crate::cuda::{CallersRange, CudaError, CudaMapping, CudaShare, Gpu, PinnedOnce, Uuid};
use crate::memory::{Mapping, Memory, MemoryError, ReadMapping};
use crate::process::Process;
use crate::slab::SlabId;
use crate::slots::SlotId;

/// Where a slot goes when this process has done with it.
pub trait GiveBack: Send + Sync {
    /// The slot's buffer was dropped. Called once for each, from any thread, and never in a forked child.
    fn give_back(&self, slot: SlotId);

    /// Host memory of the slab was pinned: whatever its owner does, it is not free while it is mapped here.
    fn pinned(&self, slab: SlabId) {
        let _ = slab;
    }

    /// Whether the owner is there. Once it is not, its slots can be neither read nor written.
    fn is_alive(&self) -> bool;
}

/// Why a slot was not taken from its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImportError {
    /// It does not lie in its slab.
    #[error("slot {slot:?} is outside its slab: {source}")]
    OutOfBounds {
        /// The slot.
        slot: SlotId,
        /// How it is.
        source: OutOfBounds,
    },
    /// It is of another slab than the one given.
    #[error("slot {slot:?} is not of slab {}", .slab.0)]
    OtherSlab {
        /// The slot.
        slot: SlotId,
        /// The slab given.
        slab: SlabId,
    },
    /// Another buffer has some of its bytes.
    #[error("slot {slot:?} overlaps another that this process has")]
    Overlaps {
        /// The slot.
        slot: SlotId,
    },
}

/// A slab of another process's pool, mapped into this one. Unmapped when it and all its buffers are gone, but for the
/// caller's own memory.
pub struct ImportedSlab {
    process: Process,
    id: SlabId,
    /// Dropped before the mapping.
    pinned: PinnedOnce,
    view: View,
    /// Start and end of the bytes that buffers have.
    taken: Mutex<BTreeMap<u64, u64>>,
}

enum View {
    Writable(Mapping),
    ReadOnly(ReadMapping),
    Cuda(CudaMapping),
    /// The caller's own memory, which the owner of the pool maps too. It stays where it is.
    Callers(CallersRange),
}

impl ImportedSlab {
    /// Maps `len` bytes of a slab that its owner exported. Refuses a descriptor that could shrink, or has less.
    pub fn map(
        fd: BorrowedFd<'_>,
        len: u64,
        id: SlabId,
        read_only: bool,
    ) -> Result<Arc<Self>, MemoryError> {
        let view = if read_only {
            View::ReadOnly(ReadMapping::import(fd, len)?)
        } else {
            View::Writable(Mapping::import(fd, len)?)
        };
        Ok(Self::of(id, view))
    }

    /// Maps `len` bytes of a slab of a device's memory. The device is named as it is in every process; this one must
    /// see it.
    pub fn map_cuda(
        share: &CudaShare<BorrowedFd<'_>>,
        len: u64,
        id: SlabId,
        device: Uuid,
    ) -> Result<Arc<Self>, MemoryError> {
        let mapping = CudaMapping::import(Gpu::find(device)?, share, len, true)?;
        Ok(Self::of(id, View::Cuda(mapping)))
    }

    /// Memory of this process's own, as the slab that the pool's owner made of it.
    pub fn of_caller(range: CallersRange, id: SlabId) -> Arc<Self> {
        Self::of(id, View::Callers(range))
    }

    /// Whether it is memory that the caller has allocated.
    pub fn is_adopted(&self) -> bool {
        self.callers().is_some()
    }

    /// What the caller has allocated, where it is that.
    pub fn callers(&self) -> Option<&CallersRange> {
        match &self.view {
            View::Callers(range) => Some(range),
            _ => None,
        }
    }

    fn of(id: SlabId, view: View) -> Arc<Self> {
        Arc::new(Self {
            process: Process::current(),
            id,
            pinned: PinnedOnce::default(),
            view,
            taken: Mutex::default(),
        })
    }

    /// What kind of memory it is.
    pub fn memory(&self) -> Memory {
        self.gpu()
            .map_or(Memory::Host, |gpu| Memory::Cuda(gpu.uuid()))
    }

    /// The device, where it is a device's memory.
    pub(crate) fn gpu(&self) -> Option<&'static Gpu> {
        match &self.view {
            View::Cuda(mapping) => Some(mapping.gpu()),
            View::Callers(range) => Some(range.gpu()),
            View::Writable(_) | View::ReadOnly(_) => None,
        }
    }

    /// The owner's number for it.
    pub fn id(&self) -> SlabId {
        self.id
    }

    /// Bytes mapped.
    pub fn len(&self) -> u64 {
        match &self.view {
            View::Writable(mapping) => mapping.len(),
            View::ReadOnly(mapping) => mapping.len(),
            View::Cuda(mapping) => mapping.len(),
            View::Callers(range) => range.len(),
        }
    }

    /// Never true: a slab has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Address of the first byte in this process.
    pub fn address(&self) -> u64 {
        match &self.view {
            View::Writable(mapping) => mapping.address(),
            View::ReadOnly(mapping) => mapping.address(),
            View::Cuda(mapping) => mapping.address(),
            View::Callers(range) => range.address(),
        }
    }

    /// Whether this process may only read it.
    pub fn is_read_only(&self) -> bool {
        matches!(self.view, View::ReadOnly(_))
    }

    /// Pins host memory for the CUDA contexts of this process. Returns whether it was not pinned.
    fn pin(&self, gpu: &'static Gpu) -> Result<bool, CudaError> {
        if self.gpu().is_some() {
            return Ok(false);
        }
        let range = (self.address(), self.len());
        // SAFETY: mapped as long as the view lives, which is dropped after the pinning.
        unsafe { self.pinned.pin(gpu, range, self.is_read_only()) }
    }

    /// Lets another device reach it, where it is a device's memory.
    pub(crate) fn allow(&self, gpu: &Gpu) -> Option<Result<(), CudaError>> {
        match &self.view {
            View::Cuda(mapping) => Some(mapping.allow(gpu)),
            _ => None,
        }
    }

    fn taken(&self) -> MutexGuard<'_, BTreeMap<u64, u64>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks the bytes of `place` as taken, if they are the slab's and nobody has them.
    fn take(&self, place: &Place) -> Result<(), ImportError> {
        let (slot, offset, len) = (place.slot, place.offset, place.len);
        if slot.slab != self.id {
            let slab = self.id;
            return Err(ImportError::OtherSlab { slot, slab });
        }
        let have = self.len();
        let end = offset.checked_add(len).filter(|&end| end <= have);
        let end = end.ok_or(ImportError::OutOfBounds {
            slot,
            source: OutOfBounds { offset, len, have },
        })?;
        let mut taken = self.taken();
        let before = taken.range(..end).next_back();
        if before.is_some_and(|(_, &until)| until > offset) {
            return Err(ImportError::Overlaps { slot });
        }
        if len > 0 {
            taken.insert(offset, end);
        }
        Ok(())
    }
}

impl fmt::Debug for ImportedSlab {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImportedSlab")
            .field("id", &self.id)
            .field("len", &self.len())
            .field("read_only", &self.is_read_only())
            .finish()
    }
}

/// Exclusive right to a slot of another process's pool; gives it back on drop.
pub(crate) struct Import {
    slab: Arc<ImportedSlab>,
    place: Place,
    giver: Arc<dyn GiveBack>,
    /// Whether the slot is given back on drop.
    owned: bool,
}

impl Import {
    pub(crate) fn new(
        slab: &Arc<ImportedSlab>,
        place: Place,
        giver: Arc<dyn GiveBack>,
    ) -> Result<Self, ImportError> {
        slab.take(&place)?;
        Ok(Self {
            slab: Arc::clone(slab),
            place,
            giver,
            owned: true,
        })
    }

    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    pub(crate) fn slab(&self) -> &ImportedSlab {
        &self.slab
    }

    pub(crate) fn giver(&self) -> &dyn GiveBack {
        &*self.giver
    }

    pub(crate) fn surrender(mut self) {
        self.owned = false;
    }

    pub(crate) fn is_usable(&self) -> bool {
        self.slab.process.is_this() && self.giver.is_alive()
    }

    pub(crate) fn pin(&self, gpu: &'static Gpu) -> Result<(), CudaError> {
        if !self.slab.process.is_this() {
            return Err(CudaError::Forked);
        }
        if self.slab.pin(gpu)? {
            self.giver.pinned(self.slab.id);
        }
        Ok(())
    }

    pub(crate) fn as_slice(&self) -> Option<&[u8]> {
        if !self.is_usable() {
            return None;
        }
        let (offset, len) = (self.place.offset, self.place.len as usize);
        Some(match &self.slab.view {
            // SAFETY: `take` gave these bytes of the mapping to this handle alone, and the owner leased
            // the slot to this process: it lets nobody write until the handle is given back or
            // surrendered, which ends the borrow. Only its word stands for that, as for all of its memory.
            View::Writable(mapping) => unsafe { mapping.slice(offset, len) },
            // SAFETY: the same.
            View::ReadOnly(mapping) => unsafe { mapping.slice(offset, len) },
            View::Cuda(_) | View::Callers(_) => return None,
        })
    }

    pub(crate) fn as_mut_slice(&mut self) -> Option<&mut [u8]> {
        if !self.is_usable() {
            return None;
        }
        let View::Writable(mapping) = &self.slab.view else {
            return None;
        };
        let (offset, len) = (self.place.offset, self.place.len as usize);
        // SAFETY: as in `as_slice`; and self is borrowed mutably, so there is no other view.
        Some(unsafe { mapping.slice_mut(offset, len) })
    }
}

impl Drop for Import {
    fn drop(&mut self) {
        // A forked child's copy of the lock may be held for ever, and the slot is the parent's.
        if !self.slab.process.is_this() {
            return;
        }
        if self.place.len > 0 {
            self.slab.taken().remove(&self.place.offset);
        }
        if self.owned {
            self.giver.give_back(self.place.slot);
        }
    }
}
