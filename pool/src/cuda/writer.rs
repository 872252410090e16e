//! Writes from host memory to imported memory of a device, from many threads at once.
//!
//! Each write has a stream for itself, so that those of several threads overlap and the bus is never idle. Streams
//! are kept for the next who writes.

use std::sync::{Mutex, PoisonError};

use cudarc::driver::sys::{self, CUevent_flags, CUstream_flags};

use super::device::Gpu;
use super::driver::check;
use super::error::CudaError;
use super::memory::CudaMapping;

/// Streams of one device that wait for the next write. More writes at once make some of their own.
const KEPT: usize = 32;

impl CudaMapping {
    /// Copies `data` to `at`. When this returns, the bytes are in the device's memory: whatever is launched on the
    /// device from then on, by whichever process, sees them. From [pinned](super::Pinned) memory the device reads by
    /// itself.
    ///
    /// As for [`Mapping`](crate::Mapping), what two write to the same place at once is torn.
    pub fn write(&self, at: u64, data: &[u8]) -> Result<(), CudaError> {
        let (len, have) = (data.len() as u64, self.len());
        if at.checked_add(len).is_none_or(|end| end > have) {
            return Err(CudaError::Unusable {
                what: "cannot write to CUDA memory",
                why: format!("{len} bytes at {at} do not fit {have} bytes"),
            });
        }
        if !self.is_writable() {
            return Err(CudaError::Unusable {
                what: "cannot write to CUDA memory",
                why: "it was imported for reading".to_owned(),
            });
        }
        if data.is_empty() {
            return Ok(());
        }
        let gpu = self.gpu();
        let _bound = gpu.bind()?;
        let lane = gpu.lanes().take(gpu)?;
        // SAFETY: the range was checked to lie in the mapping, which lives as long as self.
        unsafe { lane.copy(self.address() + at, data) }?;
        gpu.lanes().put(lane);
        Ok(())
    }
}

/// The lanes of a device that nobody writes on.
#[derive(Default)]
pub(super) struct Lanes(Mutex<Vec<Lane>>);

impl Lanes {
    /// One for the caller alone. The device's context is bound.
    fn take(&self, gpu: &'static Gpu) -> Result<Lane, CudaError> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        kept.map_or_else(|| Lane::new(gpu), Ok)
    }

    /// For the next. Only one on which nothing has failed.
    fn put(&self, lane: Lane) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < KEPT {
            kept.push(lane);
        }
    }
}

/// A stream, and the event that tells when it has done.
struct Lane {
    gpu: &'static Gpu,
    stream: sys::CUstream,
    event: sys::CUevent,
}

// SAFETY: streams and events are the context's, not a thread's; one thread has the lane at a time.
unsafe impl Send for Lane {}

impl Lane {
    fn new(gpu: &'static Gpu) -> Result<Self, CudaError> {
        let mut lane = Self {
            gpu,
            stream: std::ptr::null_mut(),
            event: std::ptr::null_mut(),
        };
        let beside_others = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: writes one handle.
        check("making a stream", gpu, unsafe {
            sys::cuStreamCreate(&raw mut lane.stream, beside_others)
        })?;
        // Who waits for it sleeps.
        let flags = CUevent_flags::CU_EVENT_BLOCKING_SYNC as u32
            | CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: writes one handle.
        check("making an event", gpu, unsafe {
            sys::cuEventCreate(&raw mut lane.event, flags)
        })?;
        Ok(lane)
    }

    /// Copies, and waits until nothing of it runs any more, also where it failed.
    ///
    /// # Safety
    /// At `address` there are as many bytes of the device's memory, mapped through the call. Its context is bound.
    unsafe fn copy(&self, address: u64, data: &[u8]) -> Result<(), CudaError> {
        // SAFETY: the source is a slice of so many bytes, which outlives the copy: it is waited for below. The
        // destination is what the caller says.
        let begun = check("copying to the device", self.gpu, unsafe {
            sys::cuMemcpyHtoDAsync_v2(address, data.as_ptr().cast(), data.len(), self.stream)
        });
        let done = begun.and_then(|()| {
            // SAFETY: both are this lane's.
            check("recording an event", self.gpu, unsafe {
                sys::cuEventRecord(self.event, self.stream)
            })?;
            // SAFETY: waits for the event just recorded.
            check("copying to the device", self.gpu, unsafe {
                sys::cuEventSynchronize(self.event)
            })
        });
        if done.is_err() {
            // SAFETY: waits for what may be under way. Where that fails too, the context runs nothing any more.
            unsafe { sys::cuStreamSynchronize(self.stream) };
        }
        done
    }
}

impl Drop for Lane {
    /// The context is bound: by whoever made it, or had it.
    fn drop(&mut self) {
        // SAFETY: each is this lane's, made once and given back once; nothing runs on it.
        unsafe {
            if !self.event.is_null() {
                sys::cuEventDestroy_v2(self.event);
            }
            if !self.stream.is_null() {
                sys::cuStreamDestroy_v2(self.stream);
            }
        }
    }
}
