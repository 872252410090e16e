//! Memory of a CUDA device, if a driver is in this process.

use std::ffi::{CString, c_int, c_uint, c_void};

/// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`.
const MEMORY_TYPE: c_uint = 2;
/// `CU_MEMORYTYPE_DEVICE`.
const DEVICE: c_uint = 2;

type GetAttribute = unsafe extern "C" fn(*mut c_void, c_uint, u64) -> c_int;

/// Whether an address is a device's.
pub fn is_at(address: usize) -> bool {
    let Some(get) = get_attribute() else {
        return false;
    };
    let mut kind: c_uint = 0;
    // SAFETY: the driver writes one number, and refuses addresses that it does not know.
    let code = unsafe { get((&raw mut kind).cast(), MEMORY_TYPE, address as u64) };
    code == 0 && kind == DEVICE
}

/// The driver's function, where the process has loaded the driver.
fn get_attribute() -> Option<GetAttribute> {
    ["libcuda.so.1", "libcuda.so"].iter().find_map(|name| {
        let name = CString::new(*name).ok()?;
        // SAFETY: nothing is loaded that is not; the type is the driver's of that name.
        unsafe {
            let library = libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
            if library.is_null() {
                return None;
            }
            let symbol = libc::dlsym(library, c"cuPointerGetAttribute".as_ptr());
            (!symbol.is_null()).then(|| std::mem::transmute::<*mut c_void, GetAttribute>(symbol))
        }
    })
}
