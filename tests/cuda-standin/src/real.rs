//! The driver itself, in whose place the stand-in is elsewhere: on a host with a GPU.

use std::env;
use std::ffi::{CStr, c_int, c_uint, c_void};
use std::mem::transmute;

/// Whether tests are to run with the driver itself.
pub fn is_wanted() -> bool {
    env::var("S3ENGINE_GPU_TESTS").is_ok_and(|value| value == "1")
}

/// How many devices this process sees.
pub fn devices() -> usize {
    // SAFETY: loads the system's driver, whose initialisers whoever asks for CUDA trusts.
    let driver = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
    let (Some(init), Some(count)) = (
        function(driver, c"cuInit"),
        function(driver, c"cuDeviceGetCount"),
    ) else {
        return 0;
    };
    // SAFETY: the signatures that the driver documents.
    let (init, count) = unsafe {
        (
            transmute::<*mut c_void, extern "C" fn(c_uint) -> c_int>(init),
            transmute::<*mut c_void, unsafe extern "C" fn(*mut c_int) -> c_int>(count),
        )
    };
    let mut devices = 0;
    // SAFETY: writes one number.
    let counted = init(0) == 0 && unsafe { count(&raw mut devices) } == 0;
    match counted {
        true => devices as usize,
        false => 0,
    }
}

fn function(library: *mut c_void, name: &CStr) -> Option<*mut c_void> {
    if library.is_null() {
        return None;
    }
    // SAFETY: a library that is loaded, and stays so.
    let function = unsafe { libc::dlsym(library, name.as_ptr()) };
    (!function.is_null()).then_some(function)
}
