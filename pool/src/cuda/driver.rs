//! The driver's library, loaded at run time and started once.

use std::ffi::{CStr, c_char};
use std::sync::OnceLock;

use cudarc::driver::sys;

use super::device::Gpu;
use super::error::CudaError;
use crate::process::Process;

/// Sharing of memory by descriptors, dma_buf and all else that is called here is in every driver from this one on.
const LEAST: i32 = 12_000;

/// The driver as this process started it.
pub(super) struct Driver {
    process: Process,
    pub(super) version: i32,
    pub(super) gpus: Vec<Gpu>,
}

/// The driver: started by whoever asks first. What it said then holds for the life of the process, as it does for
/// the driver itself.
pub(super) fn driver() -> Result<&'static Driver, CudaError> {
    static DRIVER: OnceLock<(Process, Result<Driver, CudaError>)> = OnceLock::new();
    let (process, started) = DRIVER.get_or_init(|| (Process::current(), start()));
    match started {
        Ok(driver) if !driver.process.is_this() => Err(CudaError::Forked),
        Ok(driver) => Ok(driver),
        Err(_) if !process.is_this() => Err(CudaError::Forked),
        Err(error) => Err(error.clone()),
    }
}

fn start() -> Result<Driver, CudaError> {
    // SAFETY: loads the system's CUDA driver, whose initialisers a process that asks for CUDA trusts.
    if !unsafe { sys::is_culib_present() } {
        let why = "no driver library found (looked for libcuda.so.1)".to_owned();
        return Err(CudaError::NoDriver { why });
    }
    // SAFETY: starts the driver; the flags must be 0.
    let started = check("starting the driver", &"this host", unsafe {
        sys::cuInit(0)
    });
    started.map_err(|error| CudaError::NoDriver {
        why: error.to_string(),
    })?;
    let mut version = 0;
    // SAFETY: writes one integer.
    check("asking for the version", &"this host", unsafe {
        sys::cuDriverGetVersion(&raw mut version)
    })?;
    if version < LEAST {
        return Err(CudaError::OldDriver { version });
    }
    let mut count = 0;
    // SAFETY: writes one integer.
    check("counting devices", &"this host", unsafe {
        sys::cuDeviceGetCount(&raw mut count)
    })?;
    // One that is broken does not take the others away.
    let mut broken = None;
    let mut gpus = Vec::new();
    for ordinal in 0..count {
        match Gpu::open(ordinal) {
            Ok(gpu) => gpus.push(gpu),
            Err(error) => {
                tracing::warn!(%error, "a CUDA device is left out");
                broken = Some(error);
            }
        }
    }
    match broken {
        Some(error) if gpus.is_empty() => Err(error),
        _ => Ok(Driver {
            process: Process::current(),
            version,
            gpus,
        }),
    }
}

/// What a call of the driver returned, as an error that says which call it was.
pub(super) fn check(
    step: &'static str,
    device: &dyn std::fmt::Display,
    result: sys::CUresult,
) -> Result<(), CudaError> {
    if result == sys::CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let said = |ask: unsafe fn(sys::CUresult, *mut *const c_char) -> sys::CUresult| {
        let mut text = std::ptr::null();
        // SAFETY: writes one pointer: to a string that lives as long as the library, or null.
        unsafe { ask(result, &raw mut text) };
        // SAFETY: as above, and it is not null.
        let text = (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) });
        text.map_or("unknown".into(), |text| text.to_string_lossy().into_owned())
    };
    Err(CudaError::Driver {
        step,
        device: device.to_string(),
        code: result as u32,
        name: said(sys::cuGetErrorName),
        text: said(sys::cuGetErrorString),
    })
}
