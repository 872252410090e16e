//! A slot while a transfer fills it: [`Landing`], its [`Window`]s, and the way back from quarantine.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use event_listener::Event;

use crate::buffer::{Buffer, Held, Lease, OutOfBounds};
use crate::cuda::{Copies, CudaError, Flush};
use crate::ledger::{FabricId, RegistrationUse, UnregisteredWhy};
use crate::memory::Memory;
use crate::registrar::RegistrationHandle;
use crate::shared::Shared;
use crate::slab::Slab;

/// Bytes received at once: many enough for a call of the kernel not to count, and few enough for other tasks of the
/// thread not to wait for long.
const ROOM: usize = 1 << 20;

/// The slot's memory was given up, because a revocation was not confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the slot's slab was given up: a revocation was not confirmed")]
pub struct SlotRetired;

/// Why a window was not written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// The bytes do not fit, or processors cannot reach the memory.
    #[error(transparent)]
    OutOfBounds(#[from] OutOfBounds),
    /// A remote may be writing to it.
    #[error("the window is armed: a remote may be writing to it")]
    Armed,
    /// The bytes did not reach the device.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

/// What a landing and its windows share. Alive as long as anybody may write.
pub(crate) struct Core {
    shared: Arc<Shared>,
    pub(crate) slab: Arc<Slab>,
    /// A remote may still write: a window was dropped while armed.
    tainted: AtomicBool,
}

impl Core {
    /// The address of `len` bytes at `at` in the slab, where they are a device's.
    pub(crate) fn place(&self, at: u64, len: u64) -> Option<u64> {
        let memory = self.slab.cuda()?;
        let end = at.checked_add(len)?;
        (end <= memory.len()).then(|| memory.address() + at)
    }

    /// A copy into the slot has ended. The last one may be what a slot in quarantine waits for.
    pub(crate) fn let_go(self: Arc<Self>) {
        if let Some(last) = Arc::into_inner(self) {
            last.shared.keeper.notify(usize::MAX);
        }
    }
}

/// A slot while a transfer fills it. Dropped or finished with a doubt about late writes, it goes to quarantine.
pub struct Landing {
    /// Always there until `finish` or drop takes it.
    held: Option<Held>,
    /// Not for a slot of another process's pool.
    core: Option<Arc<Core>>,
    /// Windows have been made up to here; they never overlap.
    carved: u64,
}

impl Landing {
    pub(crate) fn of(held: Held) -> Self {
        let core = match &held {
            Held::Own(lease) => Some(Arc::new(Core {
                shared: Arc::clone(&lease.shared),
                slab: Arc::clone(&lease.slab),
                tainted: AtomicBool::new(false),
            })),
            Held::Imported(_) => None,
        };
        Self {
            held: Some(held),
            core,
            carved: 0,
        }
    }

    /// Bytes of the slot.
    pub fn len(&self) -> u64 {
        self.held.as_ref().map_or(0, |held| held.place().len)
    }

    /// Whether the slot has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the slab is being revoked, and takes no remote writes until that is done.
    pub fn is_draining(&self) -> bool {
        let core = self.core.as_ref();
        core.is_some_and(|core| core.slab.ledger.is_draining())
    }

    /// Offset in the slab.
    pub(crate) fn start(&self) -> u64 {
        self.held.as_ref().map_or(0, |held| held.place().offset)
    }

    /// The part from `offset` on for one request. Windows are made in ascending order and do not overlap;
    /// a request that is tried again takes its window along.
    pub fn window(&mut self, offset: u64, len: u64) -> Result<Window, OutOfBounds> {
        let have = self.core.as_ref().map_or(0, |_| self.len());
        let error = OutOfBounds { offset, len, have };
        let core = Arc::clone(self.core.as_ref().ok_or(error)?);
        let end = offset
            .checked_add(len)
            .filter(|&end| end <= have && offset >= self.carved)
            .ok_or(error)?;
        let start = self.start() + offset;
        self.carved = end;
        Ok(Window {
            core,
            start,
            len,
            armed: None,
            copies: None,
        })
    }

    /// Gives the slot back to the caller, or, if a late write is possible, to quarantine: the slot then
    /// comes back through [`Returning`] after revocation.
    pub fn finish(mut self) -> Result<Buffer, Returning> {
        let cell = Arc::new(ReturnCell::default());
        match self.settle(Some(Arc::clone(&cell))) {
            Some(held) => Ok(Buffer { held }),
            None => Err(Returning { cell }),
        }
    }

    /// The slot, if nobody can write any more. Otherwise it is in quarantine now.
    fn settle(&mut self, cell: Option<Arc<ReturnCell>>) -> Option<Held> {
        let (lease, mut core) = match (self.held.take()?, self.core.take()) {
            (Held::Own(lease), Some(core)) => (lease, core),
            (held, _) => return Some(held),
        };
        // get_mut succeeds only when every window and copy is gone, and orders this after their last acts.
        let clean = Arc::get_mut(&mut core).is_some_and(|core| !*core.tainted.get_mut());
        if clean {
            return Some(Held::Own(lease));
        }
        let (shared, windows) = (Arc::clone(&lease.shared), Arc::downgrade(&core));
        // The keeper finds what others still have, not this.
        drop(core);
        shared.quarantine(lease, windows, cell);
        None
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        drop(self.settle(None));
    }
}

impl fmt::Debug for Landing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Landing")
            .field("slot", &self.held.as_ref().map(|held| held.place().slot))
            .field("len", &self.len())
            .finish()
    }
}

/// A range of a landing that one request fills. It can be written; and read by who checks what a remote wrote.
pub struct Window {
    pub(crate) core: Arc<Core>,
    /// Offset in the slab.
    pub(crate) start: u64,
    len: u64,
    armed: Option<RegistrationUse>,
    /// Of what was staged for it, while any may be under way.
    pub(crate) copies: Option<Arc<Copies>>,
}

impl Window {
    /// Bytes of the window.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the window has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of the first byte as fabrics know it.
    pub fn address(&self) -> u64 {
        self.core.slab.address() + self.start
    }

    /// The kind of memory.
    pub fn memory(&self) -> Memory {
        self.core.slab.memory()
    }

    /// Copies `data` to `at`. Only for memory that this host's processors can reach; [`filling`](Self::filling) is for
    /// any.
    pub fn write(&mut self, at: u64, data: &[u8]) -> Result<(), WriteError> {
        let range = self.check_range(at, data.len() as u64)?;
        let mapping = self.core.slab.mapping().ok_or(range)?;
        Ok(mapping.write(self.start + at, data)?)
    }

    /// Memory for at most `most` bytes at `at`, of so many as are received at once. `None`: processors cannot reach it.
    pub(crate) fn room(&mut self, at: u64, most: u64) -> Result<Option<&mut [u8]>, WriteError> {
        self.place(at, most.min(ROOM as u64))
    }

    /// Memory for `len` bytes at `at`. `None`: processors cannot reach it.
    pub(crate) fn place(&mut self, at: u64, len: u64) -> Result<Option<&mut [u8]>, WriteError> {
        self.check_range(at, len)?;
        let len = usize::try_from(len).unwrap_or_default();
        let mapping = self.core.slab.mapping();
        // SAFETY: the range was checked to lie in the window. While the window is borrowed, nobody else has it: windows
        // do not overlap, a slot has one landing and can be read only when that is finished, and no remote may write,
        // as the window is not armed.
        Ok(mapping.map(|mapping| unsafe { mapping.slice_mut(self.start + at, len) }))
    }

    /// The bytes at `at`, at most `most` of them and so many as are looked at in one go, after whoever wrote them has
    /// said that it is done. `None`: processors cannot reach them, or a remote may still be writing.
    pub fn written(&self, at: u64, most: u64) -> Option<&[u8]> {
        self.check_range(at, most).ok()?;
        let len = most.min(ROOM as u64) as usize;
        let mapping = self.core.slab.mapping()?;
        // SAFETY: as in `room`; the window is borrowed, so nobody writes through it either.
        Some(unsafe { mapping.slice(self.start + at, len) })
    }

    /// Whether `len` bytes may be written to `at`. Returns the range as an error would have it.
    pub(crate) fn check_range(&self, at: u64, len: u64) -> Result<OutOfBounds, WriteError> {
        if self.armed.is_some() {
            return Err(WriteError::Armed);
        }
        let range = OutOfBounds {
            offset: at,
            len,
            have: self.len,
        };
        let end = at.checked_add(len);
        let fits = end.is_some_and(|end| end <= self.len);
        fits.then_some(range).ok_or(range.into())
    }

    /// Finds the registration of the window's memory with a fabric (made at first use, kept from then on) and
    /// arms the window: from here on a remote may write. Until [`disarm`](Self::disarm), dropping the window
    /// sends its slot to quarantine.
    pub fn arm(&mut self, fabric: FabricId) -> Result<RegistrationHandle, UnregisteredWhy> {
        let used = self
            .core
            .shared
            .register(&self.core.slab, fabric, self.start, self.len)?;
        let handle = used.registration().handle();
        self.armed = Some(used);
        Ok(handle)
    }

    /// The remote has answered, or the token never left: nobody else writes here any more. That a server
    /// which has answered does not write is the protocol's promise; this process cannot check it.
    pub fn disarm(&mut self) {
        self.armed = None;
    }

    /// Makes what a remote has written visible to the kernels that are launched from now on, in whatever process.
    pub fn make_visible(&self, fabric: FabricId) -> Result<(), CudaError> {
        let Core { shared, slab, .. } = &*self.core;
        let registrar = &shared.fabrics[usize::from(fabric.0)];
        match slab.cuda() {
            Some(memory) if !registrar.orders_writes() => {
                let gpu = memory.gpu();
                let elsewhere = slab.client().id != Shared::HOST;
                gpu.flush(Flush::needed(gpu.ordering(), elsewhere))
            }
            _ => Ok(()),
        }
    }

    /// Whether a remote may write.
    pub fn is_armed(&self) -> bool {
        self.armed.is_some()
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        if self.armed.is_some() {
            self.core.tainted.store(true, Ordering::Release);
        }
    }
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slab = self.core.slab.id();
        f.debug_struct("Window")
            .field("slab", &slab)
            .field("start", &self.start)
            .field("len", &self.len)
            .field("armed", &self.is_armed())
            .finish()
    }
}

/// A slot on its way back from quarantine. Dropping it lets the pool have the slot.
pub struct Returning {
    cell: Arc<ReturnCell>,
}

impl Returning {
    /// Waits for revocation. Bounded by the pool's quarantine and revocation times.
    pub async fn wait(self) -> Result<Buffer, SlotRetired> {
        loop {
            let changed = self.cell.changed.listen();
            if let Some(result) = self.cell.take() {
                return result.map(Buffer::own);
            }
            changed.await;
        }
    }
}

impl fmt::Debug for Returning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Returning")
    }
}

/// Where the keeper leaves a slot for whoever waits for it.
#[derive(Default)]
pub(crate) struct ReturnCell {
    slot: Mutex<Option<Result<Lease, SlotRetired>>>,
    changed: Event,
}

impl ReturnCell {
    pub(crate) fn put(&self, result: Result<Lease, SlotRetired>) {
        *self.slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
        self.changed.notify(usize::MAX);
    }

    fn take(&self) -> Option<Result<Lease, SlotRetired>> {
        self.slot
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }
}

/// Whether any window of a landing is still alive.
pub(crate) fn has_windows(core: &Weak<Core>) -> bool {
    core.strong_count() > 0
}
