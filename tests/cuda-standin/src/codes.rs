//! The driver's error codes.

use std::ffi::{CStr, c_char};

use crate::abi::Out;
use crate::gate;

/// A `CUresult` that is not success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(pub u32);

pub type Answer<T = ()> = Result<T, Code>;

macro_rules! codes {
    ($($name:ident = $code:literal, $text:literal;)*) => {
        $(#[allow(dead_code, reason = "some are only planted")] pub const $name: Code = Code($code);)*

        fn named(code: u32) -> Option<(&'static CStr, &'static CStr)> {
            let named = match code {
                0 => (c"CUDA_SUCCESS".to_bytes_with_nul(), c"no error".to_bytes_with_nul()),
                $($code => (
                    concat!("CUDA_ERROR_", stringify!($name), "\0").as_bytes(),
                    concat!($text, "\0").as_bytes(),
                ),)*
                _ => return None,
            };
            let text = |bytes| CStr::from_bytes_with_nul(bytes).ok();
            Some((text(named.0)?, text(named.1)?))
        }
    };
}

codes! {
    INVALID_VALUE = 1, "invalid argument";
    OUT_OF_MEMORY = 2, "out of memory";
    NOT_INITIALIZED = 3, "initialization error";
    DEINITIALIZED = 4, "driver shutting down";
    STUB_LIBRARY = 34, "CUDA driver is a stub library";
    NO_DEVICE = 100, "no CUDA-capable device is detected";
    INVALID_DEVICE = 101, "invalid device ordinal";
    INVALID_CONTEXT = 201, "invalid device context";
    MAP_FAILED = 205, "mapping of buffer object failed";
    UNMAP_FAILED = 206, "unmapping of buffer object failed";
    ALREADY_MAPPED = 208, "resource already mapped";
    NOT_MAPPED = 211, "resource not mapped";
    ECC_UNCORRECTABLE = 214, "uncorrectable ECC error encountered";
    PEER_ACCESS_UNSUPPORTED = 217, "peer access is not supported between these two devices";
    NVLINK_UNCORRECTABLE = 220, "uncorrectable NVLink error detected during the execution";
    OPERATING_SYSTEM = 304, "OS call failed or operation not supported on this OS";
    INVALID_HANDLE = 400, "invalid resource handle";
    ILLEGAL_STATE = 401, "the operation cannot be performed in the present state";
    NOT_FOUND = 500, "named symbol not found";
    NOT_READY = 600, "device not ready";
    ILLEGAL_ADDRESS = 700, "an illegal memory access was encountered";
    LAUNCH_OUT_OF_RESOURCES = 701, "too many resources requested for launch";
    LAUNCH_TIMEOUT = 702, "the launch timed out and was terminated";
    PEER_ACCESS_ALREADY_ENABLED = 704, "peer access is already enabled";
    PEER_ACCESS_NOT_ENABLED = 705, "peer access has not been enabled";
    CONTEXT_IS_DESTROYED = 709, "context is destroyed";
    ASSERT = 710, "device-side assert triggered";
    TOO_MANY_PEERS = 711, "peer mapping resources exhausted";
    HOST_MEMORY_ALREADY_REGISTERED = 712, "part or all of the requested memory range is already mapped";
    HOST_MEMORY_NOT_REGISTERED = 713, "pointer does not correspond to a registered memory region";
    HARDWARE_STACK_ERROR = 714, "hardware stack error";
    ILLEGAL_INSTRUCTION = 715, "an illegal instruction was encountered";
    MISALIGNED_ADDRESS = 716, "misaligned address";
    INVALID_ADDRESS_SPACE = 717, "operation not supported on global/shared address space";
    INVALID_PC = 718, "invalid program counter";
    LAUNCH_FAILED = 719, "unspecified launch failure";
    NOT_PERMITTED = 800, "operation not permitted";
    NOT_SUPPORTED = 801, "operation not supported";
    SYSTEM_NOT_READY = 802, "system not yet initialized";
    SYSTEM_DRIVER_MISMATCH = 803, "system has unsupported display driver / cuda driver combination";
    UNKNOWN = 999, "unknown error";
}

impl Code {
    /// Whether it is one of the above. Bindings may take what a driver returns for an `enum`: no other number may
    /// come from here.
    pub fn is_error(self) -> bool {
        self.0 != 0 && named(self.0).is_some()
    }

    /// Whether every later call on the device fails with it too.
    pub fn sticks(self) -> bool {
        matches!(self.0, 214 | 220 | 700 | 702 | 710 | 714..=719)
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorName(code: u32, text: Out<*const c_char>) -> u32 {
    gate::always("cuGetErrorName", || {
        let (name, _) = named(code).ok_or(INVALID_VALUE)?;
        text.set(name.as_ptr())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorString(code: u32, text: Out<*const c_char>) -> u32 {
    gate::always("cuGetErrorString", || {
        let (_, words) = named(code).ok_or(INVALID_VALUE)?;
        text.set(words.as_ptr())
    })
}
