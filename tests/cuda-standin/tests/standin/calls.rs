//! The driver's calls, as tests want them.

use std::ffi::c_void;
use std::ptr::null_mut;

use cudarc::driver::sys;

/// What a call returns, as a number.
macro_rules! code {
    ($call:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: a test's own pointers, which outlive the call; what they must not do, the stand-in refuses.
        (unsafe { cudarc::driver::sys::$call($($argument),*) }) as u32
    }};
}

/// A call that succeeds.
macro_rules! ok {
    ($call:ident($($argument:expr),* $(,)?)) => {
        assert_eq!(code!($call($($argument),*)), 0, stringify!($call))
    };
}

/// A call that succeeds, and what it writes.
macro_rules! given {
    ($call:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: integers and pointers, which may be 0.
        let mut value = unsafe { std::mem::zeroed() };
        ok!($call(&raw mut value, $($argument),*));
        value
    }};
}

pub const MIB: usize = 1 << 20;
pub const INVALID_VALUE: u32 = 1;

/// Starts the driver, with the context of a device current on this thread.
pub fn start(device: i32) -> sys::CUcontext {
    ok!(cuInit(0));
    let context: sys::CUcontext = given!(cuDevicePrimaryCtxRetain(device));
    ok!(cuCtxSetCurrent(context));
    context
}

/// What memory is wanted.
pub fn prop(device: i32) -> sys::CUmemAllocationProp {
    // SAFETY: integers and a pointer that is not used.
    let mut prop: sys::CUmemAllocationProp = unsafe { std::mem::zeroed() };
    prop.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = device;
    prop.requestedHandleTypes =
        sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    prop.allocFlags.gpuDirectRDMACapable = 1;
    prop
}

pub fn create(device: i32, size: usize) -> u64 {
    let mut handle = 0;
    assert_eq!(create_code(&mut handle, size, device), 0);
    handle
}

pub fn create_code(handle: &mut u64, size: usize, device: i32) -> u32 {
    let prop = prop(device);
    code!(cuMemCreate(&raw mut *handle, size, &raw const prop, 0))
}

/// Memory of a handle, mapped somewhere new.
pub fn map(handle: u64, size: usize) -> u64 {
    let address = given!(cuMemAddressReserve(size, 0, 0, 0));
    ok!(cuMemMap(address, size, 0, handle, 0));
    address
}

/// What a device may do: 0 nothing, 1 read, 3 write too.
pub fn set_access(address: u64, size: usize, device: i32, flags: u32) -> u32 {
    use sys::CUmemAccess_flags::*;
    let flags = match flags {
        0 => CU_MEM_ACCESS_FLAGS_PROT_NONE,
        1 => CU_MEM_ACCESS_FLAGS_PROT_READ,
        _ => CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    let desc = sys::CUmemAccessDesc {
        location: prop(device).location,
        flags,
    };
    code!(cuMemSetAccess(address, size, &raw const desc, 1))
}

/// Mapped memory of a device that it may write.
pub fn slab(device: i32, size: usize) -> u64 {
    let handle = create(device, size);
    let address = map(handle, size);
    assert_eq!(set_access(address, size, device, 3), 0);
    ok!(cuMemRelease(handle));
    address
}

pub fn alloc(size: usize) -> u64 {
    given!(cuMemAlloc_v2(size))
}

pub fn write(address: u64, bytes: &[u8]) -> u32 {
    code!(cuMemcpyHtoD_v2(address, bytes.as_ptr().cast(), bytes.len()))
}

pub fn read(address: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xee; len];
    ok!(cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), address, len));
    bytes
}

/// Pinned memory of the driver's.
pub fn pinned(len: usize) -> &'static mut [u8] {
    let mut at: *mut c_void = null_mut();
    ok!(cuMemHostAlloc(&raw mut at, len, 0));
    // SAFETY: so many bytes, zeroed, and only freed by tests that do not use them then.
    unsafe { std::slice::from_raw_parts_mut(at.cast(), len) }
}

/// A stream that waits for no other.
pub fn stream() -> sys::CUstream {
    given!(cuStreamCreate(1))
}

pub fn event() -> sys::CUevent {
    given!(cuEventCreate(0))
}

pub fn free_memory() -> usize {
    let (mut free, mut total) = (0, 0);
    ok!(cuMemGetInfo_v2(&raw mut free, &raw mut total));
    free
}

/// An integer that the driver knows about an address.
pub fn attribute(attribute: sys::CUpointer_attribute, address: u64) -> Result<u64, u32> {
    let mut value = 0_u64;
    match code!(cuPointerGetAttribute(
        (&raw mut value).cast(),
        attribute,
        address
    )) {
        0 => Ok(value),
        code => Err(code),
    }
}

pub const NO_STREAM: sys::CUstream = null_mut();
