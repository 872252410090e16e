//! Memory that the caller has allocated himself, as a destination.
//!
//! It is named by an address. The allocation around it is found, and exported where its kind allows it; what cannot
//! be exported is no target for remote writes, and is filled through staging. A client of another process's pool shares
//! the allocation with that process, which fills it there.

use std::os::fd::{AsFd, OwnedFd};

use cudarc::driver::sys::{self, CUpointer_attribute as Attribute};

use super::device::Gpu;
use super::driver::{check, driver};
use super::error::CudaError;
use super::memory::{CudaKind, CudaMapping, CudaMemory, CudaShare, Handle};

/// An allocation of this process's that the caller named, or as much of several as he named. Whoever has this may
/// count on the memory only as long as the caller lets it be.
#[derive(Clone, Copy, Debug)]
pub struct CallersRange {
    pub(crate) gpu: &'static Gpu,
    pub(crate) address: u64,
    pub(crate) len: u64,
    /// The driver's number of the allocation: no later one at the same place has it. None where the bytes are of
    /// several.
    pub(crate) buffer_id: Option<u64>,
}

impl CallersRange {
    /// What lies at an address.
    pub(crate) fn around(address: u64, len: u64) -> Result<Self, CudaError> {
        driver()?;
        let unusable = |why: String| CudaError::Unusable {
            what: "cannot fill the caller's memory",
            why,
        };
        let end = address.checked_add(len).filter(|_| len > 0);
        let end = end.ok_or_else(|| unusable(format!("{len} bytes at {address:#x} are none")))?;
        let first = Piece::at(address)?;
        if first.end() >= end {
            return Ok(Self {
                gpu: first.gpu,
                address: first.base,
                len: first.len,
                buffer_id: Some(first.buffer_id),
            });
        }
        // As PyTorch's expandable segments are: one range of addresses over many allocations.
        let mut seen = first.end();
        while seen < end {
            let piece = Piece::at(seen)?;
            if piece.gpu.uuid() != first.gpu.uuid() || piece.end() <= seen {
                let why = format!("{seen:#x} is on {}, not on {}", piece.gpu, first.gpu);
                return Err(unusable(why));
            }
            seen = piece.end();
        }
        Ok(Self {
            gpu: first.gpu,
            address,
            len,
            buffer_id: None,
        })
    }

    /// The device it is on.
    pub fn gpu(&self) -> &'static Gpu {
        self.gpu
    }

    /// Address of the first byte.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Bytes of it.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Never true: it has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether it is the same memory: not where something else came to its place.
    pub fn is(&self, other: &CallersRange) -> bool {
        let facts = |of: &CallersRange| (of.buffer_id, of.address, of.len);
        facts(self) == facts(other)
    }

    /// What another process imports it by.
    pub fn share(&self) -> Result<CudaShare<OwnedFd>, CudaError> {
        let unusable = |why: String| CudaError::Unusable {
            what: "cannot share the caller's memory with the host service",
            why: format!("{why}: allocate from the pool, or embed the engine in this process"),
        };
        if self.buffer_id.is_none() {
            let bytes = format!("{} bytes at {:#x}", self.len, self.address);
            return Err(unusable(format!("{bytes} are of several allocations")));
        }
        // What was made to be shared by neither is refused by the driver.
        self.memory().export().map_err(|error| {
            unusable(format!(
                "it is neither of cudaMalloc nor made with a descriptor to share it ({error})"
            ))
        })
    }

    /// Whether the two have bytes in common.
    pub fn overlaps(&self, address: u64, len: u64) -> bool {
        self.address < address.saturating_add(len)
            && address < self.address.saturating_add(self.len)
    }

    /// The memory, for copies and for fabrics. It stays the caller's.
    pub(crate) fn memory(&self) -> CudaMemory {
        let exported = match self.buffer_id {
            Some(_) => self.descriptor(),
            None => None,
        };
        let kind = match exported {
            Some(_) => CudaKind::Vmm,
            None => CudaKind::Legacy,
        };
        CudaMemory::of_caller(self.gpu, self.address, self.len, kind, exported)
    }

    /// A descriptor, where the memory was made to be shared by one.
    fn descriptor(&self) -> Option<OwnedFd> {
        let _bound = self.gpu.bind().ok()?;
        Handle::retained(self.gpu, self.address)?.export().ok()
    }
}

/// `len` bytes that a client's process has allocated, and shares. Nothing that it says of them is believed.
pub(crate) fn import(
    gpu: &'static Gpu,
    share: CudaShare<OwnedFd>,
    len: u64,
) -> Result<CudaMemory, CudaError> {
    let unusable = |why: String| CudaError::Unusable {
        what: "cannot fill a client's memory",
        why,
    };
    if len == 0 {
        return Err(unusable("it has no bytes".to_owned()));
    }
    let by = match &share {
        CudaShare::Descriptor(fd) => CudaShare::Descriptor(fd.as_fd()),
        CudaShare::Ipc(handle) => CudaShare::Ipc(*handle),
    };
    let mapping = CudaMapping::import(gpu, &by, len, true)?;
    let piece = Piece::at(mapping.address())?;
    if piece.gpu.uuid() != gpu.uuid() {
        return Err(unusable(format!("it is on {}, not on {gpu}", piece.gpu)));
    }
    let descriptor = match share {
        CudaShare::Descriptor(fd) => Some(fd),
        CudaShare::Ipc(_) => None,
    };
    Ok(CudaMemory::of_client(mapping, descriptor))
}

/// One allocation, or one mapping of memory.
struct Piece {
    gpu: &'static Gpu,
    base: u64,
    len: u64,
    buffer_id: u64,
}

impl Piece {
    fn at(address: u64) -> Result<Self, CudaError> {
        let shown = format!("the memory at {address:#x}");
        let mut ordinal: i32 = -1;
        // SAFETY: writes one integer; the driver looks the address up, and never reads what is there.
        check("asking for a pointer's device", &shown, unsafe {
            let ask = Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
            sys::cuPointerGetAttribute((&raw mut ordinal).cast(), ask, address)
        })?;
        let gpu = Gpu::nth(ordinal.try_into().unwrap_or(u32::MAX))?;
        let mut kind: u32 = 0;
        // SAFETY: the same.
        check("asking for a pointer's memory", &shown, unsafe {
            let ask = Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
            sys::cuPointerGetAttribute((&raw mut kind).cast(), ask, address)
        })?;
        let mut managed: u32 = 0;
        // SAFETY: the same.
        check("asking for a pointer's memory", &shown, unsafe {
            let ask = Attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED;
            sys::cuPointerGetAttribute((&raw mut managed).cast(), ask, address)
        })?;
        if kind != sys::CUmemorytype::CU_MEMORYTYPE_DEVICE as u32 || managed != 0 {
            return Err(CudaError::Unusable {
                what: "cannot fill the caller's memory",
                why: format!("{shown} is not a device's own"),
            });
        }
        let mut buffer_id: u64 = 0;
        // SAFETY: writes one integer.
        check("asking for a pointer's allocation", &shown, unsafe {
            let ask = Attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID;
            sys::cuPointerGetAttribute((&raw mut buffer_id).cast(), ask, address)
        })?;
        let _bound = gpu.bind()?;
        let (mut base, mut len) = (0, 0);
        // SAFETY: writes two integers.
        check("asking for a pointer's allocation", &shown, unsafe {
            sys::cuMemGetAddressRange_v2(&raw mut base, &raw mut len, address)
        })?;
        Ok(Self {
            gpu,
            base,
            len: len as u64,
            buffer_id,
        })
    }

    fn end(&self) -> u64 {
        self.base.saturating_add(self.len)
    }
}
