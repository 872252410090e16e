//! Device memory that a caller allocates himself.

use std::ptr::without_provenance_mut;

use cudarc::driver::sys;
use s3engine::cuda::Gpu;

pub const MIB: u64 = 1 << 20;

/// The unit in which memory is made by the calls for virtual memory.
const UNIT: u64 = 2 * MIB;

const POSIX_FD: sys::CUmemAllocationHandleType =
    sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// A call that succeeds.
macro_rules! ok {
    ($call:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: a test's own pointers and memory, which outlive the call.
        let said = unsafe { sys::$call($($argument),*) };
        assert_eq!(said, sys::CUresult::CUDA_SUCCESS, stringify!($call));
    }};
}

/// Memory that is freed when this is dropped.
pub struct Callers {
    pub address: u64,
    pub len: u64,
    gpu: &'static Gpu,
    how: How,
}

#[derive(Clone, Copy, PartialEq)]
pub enum How {
    /// As by cudaMalloc.
    Malloc,
    /// By the calls for virtual memory, with a descriptor to share it.
    Shareable,
    /// Without one.
    Closed,
    /// In two mappings.
    InTwo,
}

impl Callers {
    /// On the first device.
    pub fn new(len: u64, how: How) -> Self {
        let gpu = Gpu::nth(0).unwrap();
        let _bound = gpu.bind().unwrap();
        let mut address = 0;
        match how {
            How::Malloc => ok!(cuMemAlloc_v2(&raw mut address, len as usize)),
            _ => ok!(cuMemAddressReserve(&raw mut address, len as usize, 0, 0, 0)),
        }
        let made = Self {
            address,
            len,
            gpu,
            how,
        };
        if how != How::Malloc {
            made.map();
        }
        made
    }

    fn pieces(&self) -> impl Iterator<Item = (u64, usize)> {
        let len = match self.how {
            How::InTwo => UNIT,
            _ => self.len,
        };
        let (start, end) = (self.address, self.address + self.len);
        (start..end)
            .step_by(len as usize)
            .map(move |at| (at, len as usize))
    }

    fn map(&self) {
        for (at, len) in self.pieces() {
            let handle = self.handle(len);
            ok!(cuMemMap(at, len, 0, handle, 0));
            ok!(cuMemRelease(handle));
        }
        let access = sys::CUmemAccessDesc {
            location: self.location(),
            flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        let len = self.len as usize;
        ok!(cuMemSetAccess(self.address, len, &raw const access, 1));
    }

    fn location(&self) -> sys::CUmemLocation {
        sys::CUmemLocation {
            type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
            id: self.gpu.ordinal() as i32,
        }
    }

    fn handle(&self, len: usize) -> u64 {
        // SAFETY: integers and a pointer that may be null.
        let mut prop: sys::CUmemAllocationProp = unsafe { std::mem::zeroed() };
        prop.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        prop.location = self.location();
        prop.requestedHandleTypes = match self.how {
            How::Closed => sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
            _ => POSIX_FD,
        };
        let mut handle = 0;
        ok!(cuMemCreate(&raw mut handle, len, &raw const prop, 0));
        handle
    }

    /// Frees what is at these addresses, and allocates it anew.
    pub fn renew(&self) {
        let _bound = self.gpu.bind().unwrap();
        self.unmap();
        self.map();
    }

    fn unmap(&self) {
        for (at, len) in self.pieces() {
            ok!(cuMemUnmap(at, len));
        }
    }

    /// A descriptor of it, for whomever.
    pub fn descriptor(&self) -> std::os::fd::OwnedFd {
        use std::os::fd::FromRawFd;
        let _bound = self.gpu.bind().unwrap();
        let at = without_provenance_mut(self.address as usize);
        let (mut handle, mut fd) = (0, -1_i32);
        ok!(cuMemRetainAllocationHandle(&raw mut handle, at));
        let to = (&raw mut fd).cast();
        ok!(cuMemExportToShareableHandle(to, handle, POSIX_FD, 0));
        ok!(cuMemRelease(handle));
        // SAFETY: just made, for this.
        unsafe { std::os::fd::OwnedFd::from_raw_fd(fd) }
    }

    /// A handle of it for CUDA IPC.
    pub fn handle_for_ipc(&self) -> Vec<u8> {
        let _bound = self.gpu.bind().unwrap();
        let mut handle = sys::CUipcMemHandle { reserved: [0; 64] };
        ok!(cuIpcGetMemHandle(&raw mut handle, self.address));
        handle.reserved.iter().map(|byte| *byte as u8).collect()
    }

    /// Bytes of it.
    pub fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let _bound = self.gpu.bind().unwrap();
        let mut bytes = vec![0xee; len];
        let to = bytes.as_mut_ptr().cast();
        ok!(cuMemcpyDtoH_v2(to, self.address + at, len));
        bytes
    }

    /// Sets every byte.
    pub fn fill(&self, byte: u8) {
        let _bound = self.gpu.bind().unwrap();
        let bytes = vec![byte; self.len as usize];
        let (from, len) = (bytes.as_ptr().cast(), bytes.len());
        ok!(cuMemcpyHtoD_v2(self.address, from, len));
    }
}

impl Drop for Callers {
    fn drop(&mut self) {
        let _bound = self.gpu.bind().unwrap();
        if self.how == How::Malloc {
            return ok!(cuMemFree_v2(self.address));
        }
        self.unmap();
        ok!(cuMemAddressFree(self.address, self.len as usize));
    }
}
