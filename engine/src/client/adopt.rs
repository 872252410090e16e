//! Device memory that this process has allocated itself: shared with the host service once, named by its slab then.

use std::sync::{Arc, PoisonError};

use s3engine_pool::cuda::{CallersRange, CudaShare, Uuid};
use s3engine_pool::{Buffer, ImportedSlab, Memory as Kind, PoolError, SlabId};

use super::memory::Holdings;
use crate::control::{Ask, Failure, IpcHandle, Leased, Said};

/// Alignment of such a slot: it lies where the caller wants it.
const ALIGN: u64 = 1;

impl Holdings {
    /// `len` bytes at `at` of the caller's memory. The service is told of the memory when it does not know it.
    pub(super) fn adopt_callers(
        self: &Arc<Self>,
        range: CallersRange,
        at: u64,
        len: u64,
    ) -> Result<Buffer, PoolError> {
        // One at a time, so that an allocation has one slab.
        let adopting = self.adopting.lock();
        let _adopting = adopting.unwrap_or_else(PoisonError::into_inner);
        let kind = Kind::Cuda(range.gpu().uuid());
        let is = |of: &CallersRange| of.is(&range);
        // What lay here before was freed.
        self.disown(|of| of.overlaps(range.address(), range.len()) && !of.is(&range))?;
        if let Some(&slab) = self.adopted(is).first() {
            let SlabId(number) = slab;
            let again = Ask::AdoptAgain {
                slab: number,
                at,
                len,
            };
            match self.connection.ask_now(again) {
                // It has forgotten it.
                Err(Failure::UnknownSlab { .. }) => self.unmap(&[number]),
                Ok((Said::Leased(leased), _)) if leased.slot.slab == number => {
                    return self.adopt(leased.slot.into(), leased.offset, len, ALIGN);
                }
                Ok(_) => return Err(self.nonsense()),
                Err(failure) => return Err(self.refused(kind, len, &failure)),
            }
        }
        let leased = self.share(&range, at, len)?;
        let slab = SlabId(leased.slot.slab);
        let imported = ImportedSlab::of_caller(range, slab);
        self.lock().slabs.insert(slab, imported);
        self.adopt(leased.slot.into(), leased.offset, len, ALIGN)
    }

    /// Shares the memory with the service.
    fn share(&self, range: &CallersRange, at: u64, len: u64) -> Result<Leased, PoolError> {
        let Uuid(device) = range.gpu().uuid();
        let (handle, fd) = match range.share()? {
            CudaShare::Descriptor(fd) => (None, Some(fd)),
            CudaShare::Ipc(handle) => (Some(IpcHandle(handle)), None),
        };
        let ask = Ask::Adopt {
            device,
            whole: range.len(),
            handle,
            at,
            len,
        };
        match self.connection.ask_with(ask, fd) {
            Ok((Said::Leased(leased), _)) => Ok(leased),
            Ok(_) => Err(self.nonsense()),
            Err(failure) => {
                let kind = Kind::Cuda(range.gpu().uuid());
                Err(self.refused(kind, len, &failure))
            }
        }
    }

    /// Has the service forget memory of the caller's. Returns whether all such is forgotten.
    pub(super) fn disown(&self, of: impl Fn(&CallersRange) -> bool) -> Result<bool, PoolError> {
        let mut all = true;
        for SlabId(slab) in self.adopted(of) {
            match self.connection.ask_now(Ask::Disown { slab }) {
                Ok((Said::Disowned(true), _)) => self.unmap(&[slab]),
                Ok((Said::Disowned(false), _)) => all = false,
                Ok(_) => return Err(self.nonsense()),
                Err(failure) => return Err(self.refused(Kind::Host, 0, &failure)),
            }
        }
        Ok(all)
    }

    /// The slabs of the caller's memory.
    fn adopted(&self, of: impl Fn(&CallersRange) -> bool) -> Vec<SlabId> {
        let state = self.lock();
        let slabs = state.slabs.values();
        let found = slabs.filter(|slab| slab.callers().is_some_and(&of));
        found.map(|slab| slab.id()).collect()
    }

    fn nonsense(&self) -> PoolError {
        let what = Failure::Refused("it answers something else than it was asked".to_owned());
        self.refused(Kind::Host, 0, &what)
    }
}
