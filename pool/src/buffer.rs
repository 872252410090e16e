//! The handles of a slot: [`Buffer`] (the caller's), [`Landing`] (a transfer's), [`Window`] (one request's).
//! Only the process that owns the memory makes windows; what it leased to another process is a buffer there.
//!
//! ```text
//! Buffer --into_landing--> Landing --window--> Window, Window, ...   written by requests
//!    ^                        |                  | arm: a remote may write from here on
//!    |                        |                  | disarm: the remote has answered
//!    +------- finish ---------+                  | dropped while armed: the slot is tainted
//!    +------- Returning <---- finish, tainted: quarantine, revocation
//! ```

use std::fmt;
use std::sync::Arc;

use crate::cuda::{CudaError, CudaMemory, Gpu, to_device, to_host};
use crate::import::{GiveBack, Import, ImportError, ImportedSlab};
use crate::landing::Landing;
use crate::memory::{Mapping, Memory};
use crate::pool::Pool;
use crate::shared::Shared;
use crate::slab::Slab;
use crate::slots::SlotId;

/// An access outside a window, a mapping or a landing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes at {offset} do not fit {have} bytes")]
pub struct OutOfBounds {
    /// Where the access starts.
    pub offset: u64,
    /// How long it is.
    pub len: u64,
    /// How much there is.
    pub have: u64,
}

/// Why bytes of a buffer were not copied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CopyError {
    /// They do not lie in the buffer.
    #[error(transparent)]
    OutOfBounds(#[from] OutOfBounds),
    /// This process cannot reach them any more, or not in this way: it is a forked child, the owner is gone, or
    /// the memory is for reading only.
    #[error("the buffer's memory cannot be reached in this process")]
    Gone,
    /// CUDA refused.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

/// Exclusive right to one slot; gives it back on drop.
pub(crate) struct Lease {
    pub(crate) shared: Arc<Shared>,
    pub(crate) slab: Arc<Slab>,
    pub(crate) place: Place,
    owned: bool,
}

/// Which slot, and where in its slab.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) slot: SlotId,
    pub(crate) offset: u64,
    /// Bytes asked for.
    pub(crate) len: u64,
    /// Alignment asked for.
    pub(crate) align: u64,
}

impl Lease {
    pub(crate) fn new(shared: Arc<Shared>, slab: Arc<Slab>, place: Place) -> Self {
        Self {
            shared,
            slab,
            place,
            owned: true,
        }
    }

    /// Ends the handle without freeing the slot: somebody else answers for it now.
    pub(crate) fn give_up(mut self) {
        self.owned = false;
    }

    fn mapping(&self) -> Option<&Mapping> {
        let mapping = self.slab.mapping();
        mapping.filter(|_| self.shared.process.is_this())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.owned {
            self.shared.release(&self.slab, self.place.slot);
        }
    }
}

/// A leased slot that its holder may read and write. Returns to the pool on drop.
pub struct Buffer {
    pub(crate) held: Held,
}

/// Whose slot a buffer holds.
pub(crate) enum Held {
    /// Of this process's pool.
    Own(Lease),
    /// Of another process's pool.
    Imported(Import),
}

impl Held {
    pub(crate) fn place(&self) -> &Place {
        match self {
            Held::Own(lease) => &lease.place,
            Held::Imported(import) => import.place(),
        }
    }
}

impl Buffer {
    pub(crate) fn own(lease: Lease) -> Self {
        let held = Held::Own(lease);
        Self { held }
    }

    /// A slot that another process leased to this one, `len` bytes at `offset` of a slab of its. `giver` is told
    /// when the buffer is dropped. Refused where the slot cannot be what it is said to be: nobody is told then.
    pub fn imported(
        slab: &Arc<ImportedSlab>,
        slot: SlotId,
        offset: u64,
        len: u64,
        align: u64,
        giver: Arc<dyn GiveBack>,
    ) -> Result<Self, ImportError> {
        let place = Place {
            slot,
            offset,
            len,
            align,
        };
        let held = Held::Imported(Import::new(slab, place, giver)?);
        Ok(Self { held })
    }

    /// Bytes asked for.
    pub fn len(&self) -> u64 {
        self.held.place().len
    }

    /// Whether no bytes were asked for.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The slot's name.
    pub fn slot(&self) -> SlotId {
        self.held.place().slot
    }

    /// The kind of memory.
    pub fn memory(&self) -> Memory {
        match &self.held {
            Held::Own(lease) => lease.slab.memory(),
            Held::Imported(import) => import.slab().memory(),
        }
    }

    /// The alignment asked for.
    pub fn align(&self) -> u64 {
        self.held.place().align
    }

    /// Where in its slab it starts.
    pub fn offset(&self) -> u64 {
        self.held.place().offset
    }

    /// Bytes of its slab.
    pub fn slab_len(&self) -> u64 {
        match &self.held {
            Held::Own(lease) => lease.slab.len(),
            Held::Imported(import) => import.slab().len(),
        }
    }

    /// Address of the first byte, in host or device memory, as this process knows it.
    pub fn address(&self) -> u64 {
        let slab = match &self.held {
            Held::Own(lease) => lease.slab.address(),
            Held::Imported(import) => import.slab().address(),
        };
        slab + self.offset()
    }

    /// Whether it is memory that the caller allocated: a GET that cannot go on in it has no other.
    pub fn is_adopted(&self) -> bool {
        match &self.held {
            Held::Own(lease) => lease.slab.is_adopted(),
            Held::Imported(import) => import.slab().is_adopted(),
        }
    }

    /// Whether `pool`, or another handle of the same pool, leased it.
    pub fn is_of(&self, pool: &Pool) -> bool {
        match &self.held {
            Held::Own(lease) => pool.is(&lease.shared),
            Held::Imported(import) => pool.is_given_by(import.giver()),
        }
    }

    /// Whether the process that leased it is gone, and with it the memory's only owner.
    pub fn is_lost(&self) -> bool {
        match &self.held {
            Held::Own(_) => false,
            Held::Imported(import) => !import.giver().is_alive(),
        }
    }

    /// The bytes, where this host's processors can read them. Not in a forked child: there the slot is still the
    /// parent's, who may give it to another transfer at any time. Nor when the process that leased it is gone:
    /// what it let others write to its memory is not ended by anybody.
    pub fn as_slice(&self) -> Option<&[u8]> {
        let (offset, len) = (self.offset(), self.len() as usize);
        match &self.held {
            Held::Own(lease) => {
                let mapping = lease.mapping()?;
                // SAFETY: the slot is leased to this buffer alone and no token for it is out (only a Landing
                // makes Windows, and it gives back a Buffer only when none was left armed), so nobody
                // writes while self is borrowed, given that a server which has answered does not. Its
                // length came out of the mapping, so it fits usize.
                Some(unsafe { mapping.slice(offset, len) })
            }
            Held::Imported(import) => import.as_slice(),
        }
    }

    /// The bytes for writing, where [`as_slice`](Self::as_slice) gives them for reading. Not where this process
    /// may only read them.
    pub fn as_mut_slice(&mut self) -> Option<&mut [u8]> {
        let (offset, len) = (self.offset(), self.len() as usize);
        match &mut self.held {
            Held::Own(lease) => {
                let mapping = lease.mapping()?;
                // SAFETY: as in `as_slice`; and self is borrowed mutably, so there is no other view.
                Some(unsafe { mapping.slice_mut(offset, len) })
            }
            Held::Imported(import) => import.as_mut_slice(),
        }
    }

    /// The device's memory that it lies in, and the address of its first byte there.
    fn on_device(&self) -> Result<Option<(&'static Gpu, u64)>, CopyError> {
        let (gpu, usable) = match &self.held {
            Held::Own(lease) => {
                let memory = lease.slab.cuda();
                (memory.map(CudaMemory::gpu), lease.shared.process.is_this())
            }
            Held::Imported(import) => (import.slab().gpu(), import.is_usable()),
        };
        match (gpu, usable) {
            (_, false) => Err(CopyError::Gone),
            (gpu, true) => Ok(gpu.map(|gpu| (gpu, self.address()))),
        }
    }

    /// Lets kernels of another device of this process reach the slab of device memory that it lies in.
    pub fn allow(&self, gpu: &Gpu) -> Result<(), CopyError> {
        self.on_device()?;
        let allowed = match &self.held {
            Held::Own(lease) => lease.slab.cuda().map(|memory| memory.allow(gpu)),
            Held::Imported(import) => import.slab().allow(gpu),
        };
        // Host memory is reached where it is pinned.
        Ok(allowed.unwrap_or(Ok(()))?)
    }

    fn check_range(&self, offset: u64, len: usize) -> Result<(), OutOfBounds> {
        let (len, have) = (len as u64, self.len());
        let fits = offset.checked_add(len).is_some_and(|end| end <= have);
        fits.then_some(()).ok_or(OutOfBounds { offset, len, have })
    }

    /// Copies bytes from `offset` on into a slice, from host or device memory.
    pub fn read_to_host(&self, offset: u64, into: &mut [u8]) -> Result<(), CopyError> {
        self.check_range(offset, into.len())?;
        if let Some((gpu, address)) = self.on_device()? {
            // SAFETY: the slot is this buffer's, in memory that its slab maps; the range lies in the slot.
            return Ok(unsafe { to_host(gpu, address + offset, into) }?);
        }
        let bytes = self.as_slice().ok_or(CopyError::Gone)?;
        let start = offset as usize;
        into.copy_from_slice(&bytes[start..start + into.len()]);
        Ok(())
    }

    /// Copies a slice to `offset`, to host or device memory.
    pub fn write_from_host(&mut self, offset: u64, data: &[u8]) -> Result<(), CopyError> {
        self.check_range(offset, data.len())?;
        if let Some((gpu, address)) = self.on_device()? {
            // SAFETY: as in `read_to_host`; and self is borrowed mutably.
            return Ok(unsafe { to_device(gpu, address + offset, data) }?);
        }
        let bytes = self.as_mut_slice().ok_or(CopyError::Gone)?;
        let start = offset as usize;
        bytes[start..start + data.len()].copy_from_slice(data);
        Ok(())
    }

    /// Pins the whole slab that the buffer lies in, in host memory, for the CUDA contexts of this process: copies from
    /// it to any device run at the rate of the bus, by themselves, and PyTorch's `is_pinned()` is true. The slab stays
    /// pinned until it is unmapped, and is pinned once however often this is called. It takes 0.04 to 0.16 s a GiB. A
    /// slab of which this process can only read is pinned for reading, which not every device supports. Of a device's
    /// memory nothing is to be done.
    ///
    /// `gpu` is any device that this process uses.
    ///
    /// ```no_run
    /// use s3engine_pool::cuda::Gpu;
    /// use s3engine_pool::{Memory, Pool, PoolOptions};
    ///
    /// let pool = Pool::new(PoolOptions::default())?;
    /// let batch = pool.try_alloc(8 << 20, Memory::Host)?;
    /// batch.pin(Gpu::nth(0)?)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn pin(&self, gpu: &'static Gpu) -> Result<(), CudaError> {
        match &self.held {
            Held::Own(lease) if !lease.shared.process.is_this() => Err(CudaError::Forked),
            Held::Own(lease) => lease.slab.pin(gpu),
            Held::Imported(import) => import.pin(gpu),
        }
    }

    /// Ends the handle of a slot of another process's pool without giving the slot back: its owner answers for
    /// it now. A buffer of this process's own pool is dropped.
    pub fn surrender(self) {
        match self.held {
            Held::Own(lease) => drop(lease),
            Held::Imported(import) => import.surrender(),
        }
    }

    /// Hands the slot to a transfer. From here on it cannot be read until the transfer gives it back.
    ///
    /// Only transfers of the process that owns the memory write to it: a landing of another process's slot has
    /// no room for any window, and [`finish`](Landing::finish) gives the buffer back.
    pub fn into_landing(self) -> Landing {
        Landing::of(self.held)
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("slot", &self.slot())
            .field("len", &self.len())
            .field("memory", &self.memory())
            .finish()
    }
}
