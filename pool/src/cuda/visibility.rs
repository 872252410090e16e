//! When bytes that a network card has written to a device's memory are seen by kernels.
//!
//! A card writes over the bus, and its completion may overtake its writes on their way to the device's memory. A
//! device says for whom it keeps them in order; where that is not enough the owner flushes before it completes a GET.

use cudarc::driver::sys;

use super::device::{Gpu, WriteOrdering};
use super::driver::check;
use super::error::CudaError;

/// What makes remote writes visible to the kernels launched after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flush {
    /// Nothing is needed.
    None,
    /// A flush for the owner's device.
    Owner,
    /// A flush for all devices and contexts.
    AllDevices,
    /// The host cannot flush this device: a remote must not write there.
    Impossible,
}

impl Flush {
    /// What a device needs. `elsewhere`: kernels of other processes or devices read the memory too, for whom the
    /// device's promise to its owner does not hold.
    pub fn needed(ordering: WriteOrdering, elsewhere: bool) -> Self {
        const OWNER: i32 = 100;
        const ALL: i32 = 200;
        let needed = if elsewhere { ALL } else { OWNER };
        match (ordering.ordered_for >= needed, ordering.host_flush) {
            (true, _) => Flush::None,
            (false, false) => Flush::Impossible,
            (false, true) if elsewhere => Flush::AllDevices,
            (false, true) => Flush::Owner,
        }
    }
}

impl Gpu {
    /// Makes all remote writes that have completed by now visible, as `flush` says.
    pub fn flush(&self, flush: Flush) -> Result<(), CudaError> {
        use sys::CUflushGPUDirectRDMAWritesScope::*;
        let scope = match flush {
            Flush::None => return Ok(()),
            Flush::Owner => CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER,
            Flush::AllDevices => CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES,
            Flush::Impossible => {
                return Err(CudaError::Unusable {
                    what: "cannot make remote writes visible",
                    why: format!("{self} does not order them, and the host cannot flush them"),
                });
            }
        };
        let target = sys::CUflushGPUDirectRDMAWritesTarget::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX;
        let _bound = self.bind()?;
        // SAFETY: acts on the context that is bound.
        check("flushing remote writes", self, unsafe {
            sys::cuFlushGPUDirectRDMAWrites(target, scope)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_promised_to_the_owner_alone_is_flushed_for_others() {
        let needed = |ordered_for, host_flush, elsewhere| {
            let ordering = WriteOrdering {
                ordered_for,
                host_flush,
            };
            Flush::needed(ordering, elsewhere)
        };
        assert_eq!(needed(0, true, false), Flush::Owner);
        assert_eq!(needed(0, true, true), Flush::AllDevices);
        assert_eq!(needed(100, true, false), Flush::None);
        assert_eq!(needed(100, true, true), Flush::AllDevices);
        assert_eq!(needed(200, false, true), Flush::None);
        assert_eq!(needed(100, false, false), Flush::None);
        assert_eq!(needed(100, false, true), Flush::Impossible);
        assert_eq!(needed(0, false, false), Flush::Impossible);
    }
}
