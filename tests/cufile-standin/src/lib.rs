//! A stand-in for NVIDIA's `libcufile.so.0`, version 1.18: the calls that RDMA needs, over the loopback fabric. What can
//! be asked of it is said in `fabric_standin`; the functions are `cuFileGetVersion`, `cuFileBufRegister`,
//! `cuFileBufDeregister`, `DescStrGet` and `DescStrPut`.
#![allow(non_snake_case, reason = "the names are the library's")]

use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::OnceLock;

use fabric_standin::{Copied, Memory, Refused, Settings, What};

/// A copy of the stand-in for a test.
pub fn copied(folder: &std::path::Path) -> Copied {
    Copied::of("cufile_standin", folder)
}

const LIMIT: usize = 0xffff_0000;
const INVALID_MAPPING_SIZE: c_int = 5016;
const INVALID_VALUE: c_int = 5022;
const ALREADY_REGISTERED: c_int = 5023;
const NOT_REGISTERED: c_int = 5024;
const REGISTER_FAILED: c_int = 5045;

/// How its functions return: a code, and the CUDA driver's.
#[repr(C)]
pub struct Status {
    code: c_int,
    cuda: c_int,
}

fn status(code: c_int) -> Status {
    Status { code, cuda: 0 }
}

fn settings() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    // Of a function that no other library of this process has: names that are exported may be those of another copy.
    SETTINGS.get_or_init(|| Settings::of(settings as *const c_void))
}

fn memory() -> &'static Memory {
    static MEMORY: OnceLock<Memory> = OnceLock::new();
    MEMORY.get_or_init(|| Memory::new(settings().loopback.clone()))
}

/// How a planted failure is told; the code is the function's own where none is planted.
fn planted(what: What, own: c_int) -> Status {
    match what {
        What::Code(code) => status(code),
        _ => status(own),
    }
}

/// The library's version.
///
/// # Safety
///
/// `version` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileGetVersion(version: *mut c_int) -> Status {
    if let Some(what) = settings().called("cuFileGetVersion", "") {
        return planted(what, INVALID_VALUE);
    }
    // SAFETY: the caller's promise.
    unsafe { version.write(1180) };
    status(0)
}

/// Registers memory.
#[unsafe(no_mangle)]
pub extern "C" fn cuFileBufRegister(address: *const c_void, len: usize, flags: c_int) -> Status {
    if let Some(what) = settings().called("cuFileBufRegister", "") {
        return planted(what, REGISTER_FAILED);
    }
    if address.is_null() || len == 0 || flags != 0x11 {
        return status(INVALID_VALUE);
    }
    if len > LIMIT {
        return status(INVALID_MAPPING_SIZE);
    }
    match memory().register_once(address as usize, len as u64) {
        Ok(()) => status(0),
        Err(Refused::Pinned(_)) => status(ALREADY_REGISTERED),
        Err(_) => status(REGISTER_FAILED),
    }
}

/// Ends a registration.
#[unsafe(no_mangle)]
pub extern "C" fn cuFileBufDeregister(address: *const c_void) -> Status {
    if let Some(what) = settings().called("cuFileBufDeregister", "") {
        return planted(what, NOT_REGISTERED);
    }
    match memory().deregister(address as usize) {
        Ok(()) => status(0),
        Err(_) => status(NOT_REGISTERED),
    }
}

/// Describes a window.
///
/// # Safety
///
/// `text` can be written.
#[unsafe(export_name = "_Z20cuFileRDMADescStrGetPKvmm12CUfileOpcodePPc")]
pub unsafe extern "C" fn describe(
    address: *const c_void,
    len: usize,
    offset: usize,
    opcode: c_int,
    text: *mut *mut c_char,
) -> Status {
    let described = match settings().called("DescStrGet", "") {
        Some(What::Garbage) => "not:a\x1btoken".to_owned(),
        Some(What::Endless) => "7".repeat(1024),
        Some(What::Silent) => {
            // SAFETY: the caller's promise.
            unsafe { text.write(std::ptr::null_mut()) };
            return status(0);
        }
        Some(what) => return planted(what, NOT_REGISTERED),
        None if opcode != 0 => return status(INVALID_VALUE),
        None => match memory().token(address as usize, len as u64, offset as u64) {
            Ok(token) => token,
            Err(_) => return status(NOT_REGISTERED),
        },
    };
    let described = CString::new(described).expect("no NUL in a token");
    // SAFETY: the caller's promise.
    unsafe { text.write(described.into_raw()) };
    status(0)
}

/// Frees a description.
///
/// # Safety
///
/// It is one of [`describe`], and not used any more.
#[unsafe(export_name = "_Z20cuFileRDMADescStrPutPc")]
pub unsafe extern "C" fn forget(text: *mut c_char) -> Status {
    settings().called("DescStrPut", "");
    if !text.is_null() {
        // SAFETY: the caller's promise.
        drop(unsafe { CString::from_raw(text) });
    }
    status(0)
}
