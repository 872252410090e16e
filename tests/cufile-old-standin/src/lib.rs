//! A stand-in for `libcufile.so.0` of version 1.15: of the same name as newer ones, and without what RDMA needs.
#![allow(non_snake_case, reason = "the names are the library's")]

use std::ffi::{c_int, c_void};

/// How its functions return: a code, and the CUDA driver's.
#[repr(C)]
pub struct Status {
    code: c_int,
    cuda: c_int,
}

/// The library's version.
///
/// # Safety
///
/// `version` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileGetVersion(version: *mut c_int) -> Status {
    // SAFETY: the caller's promise.
    unsafe { version.write(1150) };
    Status { code: 0, cuda: 0 }
}

/// Registers nothing: nobody gets as far.
#[unsafe(no_mangle)]
pub extern "C" fn cuFileBufRegister(_: *const c_void, _: usize, _: c_int) -> Status {
    Status {
        code: 5045,
        cuda: 0,
    }
}

/// Nothing is registered.
#[unsafe(no_mangle)]
pub extern "C" fn cuFileBufDeregister(_: *const c_void) -> Status {
    Status {
        code: 5024,
        cuda: 0,
    }
}
