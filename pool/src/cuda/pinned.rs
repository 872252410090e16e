//! Host memory that a device reads by itself: copies from it go at the rate of the bus, and run by themselves.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use cudarc::driver::sys;

use super::device::Gpu;
use super::driver::check;
use super::error::CudaError;
use crate::process::Process;

/// A range of host memory whose pages stay where they are and are known to the driver, for all devices of this
/// process. Dropped, they are so no longer.
pub struct Pinned {
    process: Process,
    gpu: &'static Gpu,
    address: u64,
    len: u64,
}

impl Pinned {
    /// Pins bytes that stay as long as this process. `gpu` is any device that it uses.
    pub fn bytes(gpu: &'static Gpu, bytes: &'static [u8]) -> Result<Self, CudaError> {
        let (address, len) = (bytes.as_ptr() as u64, bytes.len() as u64);
        // SAFETY: they are there for ever.
        unsafe { Self::register(gpu, address, len, false) }
    }

    /// Pins `len` bytes. With `read_only` the device only reads them: for what this process cannot write.
    ///
    /// # Safety
    /// They are mapped into this process, and stay so until this value is dropped.
    pub(crate) unsafe fn register(
        gpu: &'static Gpu,
        address: u64,
        len: u64,
        read_only: bool,
    ) -> Result<Self, CudaError> {
        let _bound = gpu.bind()?;
        let for_reading = match read_only {
            true => sys::CU_MEMHOSTREGISTER_READ_ONLY,
            false => 0,
        };
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | for_reading;
        // SAFETY: the bytes are mapped, as the caller says; the driver writes to none of them.
        check("pinning host memory", gpu, unsafe {
            let start = std::ptr::with_exposed_provenance_mut(address as usize);
            sys::cuMemHostRegister_v2(start, len as usize, flags)
        })?;
        Ok(Self {
            process: Process::current(),
            gpu,
            address,
            len,
        })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // A forked child's copy of the pages was never pinned.
        if !self.process.is_this() {
            return;
        }
        let given_back = self.gpu.bind().and_then(|_bound| {
            // SAFETY: what `register` was given, given back once. Copies from there have ended: whoever makes one
            // waits for it.
            check("unpinning host memory", self.gpu, unsafe {
                sys::cuMemHostUnregister(std::ptr::with_exposed_provenance_mut(
                    self.address as usize,
                ))
            })
        });
        if let Err(error) = given_back {
            tracing::debug!(%error, "host memory was not unpinned");
        }
    }
}

/// The pinning of a slab, from when somebody first asks for it until this is dropped.
#[derive(Debug, Default)]
pub(crate) struct PinnedOnce(Mutex<Option<Pinned>>);

impl PinnedOnce {
    /// Pins the slab, unless it is pinned. Returns whether it was not.
    ///
    /// # Safety
    /// As for [`Pinned::register`], each time with the same range: it stays mapped until self is dropped.
    pub(crate) unsafe fn pin(
        &self,
        gpu: &'static Gpu,
        (address, len): (u64, u64),
        read_only: bool,
    ) -> Result<bool, CudaError> {
        let mut pinned = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if pinned.is_some() {
            return Ok(false);
        }
        // SAFETY: the caller's contract.
        let new = unsafe { Pinned::register(gpu, address, len, read_only) };
        *pinned = Some(new?);
        Ok(true)
    }
}

impl fmt::Debug for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} pinned bytes at {:#x}", self.len, self.address)
    }
}
