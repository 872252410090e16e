//! How fast the host can copy to a device: what no transfer through host memory can beat.

use std::ffi::c_void;
use std::ptr;
use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, CUstream_flags};

use super::device::Gpu;
use super::driver::check;
use super::error::CudaError;

/// Bytes a second of copies from pinned memory to a device: `depth` of them at once, each of `chunk` bytes, and each on
/// a stream of its own, for as long as `duration`. Takes `depth * chunk` bytes of host and device memory meanwhile.
pub fn measure_copy(
    gpu: &Gpu,
    chunk: u64,
    depth: usize,
    duration: Duration,
) -> Result<f64, CudaError> {
    let too_much = || CudaError::Unusable {
        what: "cannot measure copies",
        why: format!("{depth} of {chunk} bytes at once"),
    };
    let bytes = usize::try_from(chunk).ok().filter(|&bytes| bytes > 0);
    let bytes = bytes.filter(|_| depth > 0).ok_or_else(too_much)?;
    // Before the lanes: the context is current until the last of them is gone.
    let _bound = gpu.bind()?;
    let mut lanes = Vec::new();
    for _ in 0..depth {
        lanes.push(Lane::new(gpu, bytes)?);
    }
    // What is done once, such as mapping, is not measured.
    copy_once(&lanes)?;
    let began = Instant::now();
    let mut copies: u64 = 0;
    lanes.iter().try_for_each(Lane::begin)?;
    while began.elapsed() < duration {
        for lane in &lanes {
            lane.wait()?;
            copies += 1;
            lane.begin()?;
        }
    }
    for lane in &lanes {
        lane.wait()?;
        copies += 1;
    }
    let seconds = began.elapsed().as_secs_f64().max(1e-9);
    Ok(copies as f64 * bytes as f64 / seconds)
}

fn copy_once(lanes: &[Lane<'_>]) -> Result<(), CudaError> {
    lanes.iter().try_for_each(Lane::begin)?;
    lanes.iter().try_for_each(Lane::wait)
}

/// A stream, and both ends of its copies. Made, used and dropped while the device's context is current.
struct Lane<'a> {
    gpu: &'a Gpu,
    stream: sys::CUstream,
    host: *mut c_void,
    device: sys::CUdeviceptr,
    bytes: usize,
}

impl<'a> Lane<'a> {
    fn new(gpu: &'a Gpu, bytes: usize) -> Result<Self, CudaError> {
        let mut lane = Self {
            gpu,
            stream: ptr::null_mut(),
            host: ptr::null_mut(),
            device: 0,
            bytes,
        };
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: writes one pointer.
        check("making a stream", gpu, unsafe {
            sys::cuStreamCreate(&raw mut lane.stream, flags)
        })?;
        // SAFETY: writes one pointer.
        check("pinning host memory", gpu, unsafe {
            sys::cuMemHostAlloc(&raw mut lane.host, bytes, 0)
        })?;
        // SAFETY: so many bytes were just allocated, and nobody else has them. Untouched pages would all be one.
        unsafe { ptr::write_bytes(lane.host.cast::<u8>(), 1, bytes) };
        // SAFETY: writes one address.
        check("cuMemAlloc", gpu, unsafe {
            sys::cuMemAlloc_v2(&raw mut lane.device, bytes)
        })?;
        Ok(lane)
    }

    fn begin(&self) -> Result<(), CudaError> {
        // SAFETY: both ends have so many bytes, and stay until the stream has been waited for.
        check("copying to the device", self.gpu, unsafe {
            sys::cuMemcpyHtoDAsync_v2(self.device, self.host, self.bytes, self.stream)
        })
    }

    fn wait(&self) -> Result<(), CudaError> {
        // SAFETY: a stream that this value made.
        check("waiting for a copy", self.gpu, unsafe {
            sys::cuStreamSynchronize(self.stream)
        })
    }
}

impl Drop for Lane<'_> {
    fn drop(&mut self) {
        // Nothing is copied any more, or the context is broken and nothing can be.
        if !self.stream.is_null() {
            let _ = self.wait();
            // SAFETY: made by this value, destroyed once.
            let _ = unsafe { sys::cuStreamDestroy_v2(self.stream) };
        }
        if !self.host.is_null() {
            // SAFETY: the same; no copy reads it, as its stream was waited for.
            let _ = unsafe { sys::cuMemFreeHost(self.host) };
        }
        if self.device != 0 {
            // SAFETY: the same.
            let _ = unsafe { sys::cuMemFree_v2(self.device) };
        }
    }
}
