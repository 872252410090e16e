//! Copies between a device's memory and slices, which return when they are done.

use cudarc::driver::sys;

use super::device::Gpu;
use super::driver::check;
use super::error::CudaError;

/// Copies `into.len()` bytes from a device's memory.
///
/// # Safety
/// The bytes at `address` are memory of `gpu` that this process has mapped, and stay so through the call.
pub(crate) unsafe fn to_host(gpu: &Gpu, address: u64, into: &mut [u8]) -> Result<(), CudaError> {
    let _bound = gpu.bind()?;
    // SAFETY: the destination is a slice of so many bytes, the source what the caller says.
    check("copying to the host", gpu, unsafe {
        sys::cuMemcpyDtoH_v2(into.as_mut_ptr().cast(), address, into.len())
    })
}

/// Copies a slice to a device's memory.
///
/// # Safety
/// As for [`to_host`]; and nobody else uses these bytes during the call.
pub(crate) unsafe fn to_device(gpu: &Gpu, address: u64, data: &[u8]) -> Result<(), CudaError> {
    let _bound = gpu.bind()?;
    // SAFETY: the source is a slice of so many bytes, the destination what the caller says.
    check("copying to the device", gpu, unsafe {
        sys::cuMemcpyHtoD_v2(address, data.as_ptr().cast(), data.len())
    })?;
    // From memory that is not pinned the call returns when the last bytes are staged, not when they are there.
    // SAFETY: waits for the context's default stream.
    check("copying to the device", gpu, unsafe {
        sys::cuStreamSynchronize(std::ptr::null_mut())
    })
}
