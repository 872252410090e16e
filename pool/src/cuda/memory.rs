//! Memory of a device: made by its owner, handed to other processes, mapped by them.
//!
//! ```text
//! owner                                            importer
//! Vmm     cuMemCreate ─ mapped ─ descriptor ─────▶ imported, mapped          kept alive by whoever has either
//! Legacy  cuMemAlloc ─────────── IPC handle ─────▶ opened                    freed when its owner ends
//! ```
//! Fabrics reach the first through a dma_buf, the second through nvidia_peermem too.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;

use cudarc::driver::sys;

use super::device::Gpu;
use super::driver::check;
use super::error::CudaError;
use crate::memory::SLAB_ALIGN;
use crate::process::Process;

const DESCRIPTOR: sys::CUmemAllocationHandleType =
    sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// Bytes of a handle for CUDA IPC.
pub const IPC_HANDLE: usize = 64;

/// How the memory of a slab was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CudaKind {
    /// By the calls for virtual memory: shared by a descriptor, registered by a dma_buf.
    Vmm,
    /// By cuMemAlloc: shared by CUDA IPC, for fabrics that know only nvidia_peermem.
    Legacy,
}

impl fmt::Display for CudaKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CudaKind::Vmm => "vmm",
            CudaKind::Legacy => "cuMemAlloc",
        })
    }
}

/// What another process imports memory by.
#[derive(Debug)]
pub enum CudaShare<D> {
    /// A descriptor of memory of [`CudaKind::Vmm`].
    Descriptor(D),
    /// A handle of memory of [`CudaKind::Legacy`].
    Ipc([u8; IPC_HANDLE]),
}

/// Memory of this process's device.
pub struct CudaMemory {
    mapped: Mapped,
    kind: CudaKind,
    /// Of memory that was made by the calls for virtual memory.
    descriptor: Option<OwnedFd>,
    dma_buf: OnceLock<Result<OwnedFd, CudaError>>,
}

impl CudaMemory {
    /// `len` bytes, a multiple of 2 MiB. Nobody else has them.
    pub(crate) fn create(gpu: &'static Gpu, len: u64, kind: CudaKind) -> Result<Self, CudaError> {
        let _bound = gpu.bind()?;
        let (mapped, descriptor) = match kind {
            CudaKind::Vmm => {
                let (handle, descriptor) = Handle::create(gpu, len)?;
                (Mapped::vmm(gpu, handle, len, true)?, Some(descriptor))
            }
            CudaKind::Legacy => {
                let mut address = 0;
                // SAFETY: writes one address.
                check("cuMemAlloc", gpu, unsafe {
                    sys::cuMemAlloc_v2(&raw mut address, len as usize)
                })?;
                let mapped = Mapped::new(gpu, address, len, How::Allocated);
                if !address.is_multiple_of(SLAB_ALIGN) {
                    return Err(CudaError::Unusable {
                        what: "cannot use memory of cuMemAlloc",
                        why: format!("it starts at {address:#x}, not at a multiple of 2 MiB"),
                    });
                }
                (mapped, None)
            }
        };
        Ok(Self {
            mapped,
            kind,
            descriptor,
            dma_buf: OnceLock::new(),
        })
    }

    /// Memory that the caller has allocated, and frees.
    pub(super) fn of_caller(
        gpu: &'static Gpu,
        address: u64,
        len: u64,
        kind: CudaKind,
        descriptor: Option<OwnedFd>,
    ) -> Self {
        Self {
            mapped: Mapped::new(gpu, address, len, How::Callers),
            kind,
            descriptor,
            dma_buf: OnceLock::new(),
        }
    }

    /// Memory that another process has allocated, and that is mapped here.
    pub(super) fn of_client(mapping: CudaMapping, descriptor: Option<OwnedFd>) -> Self {
        Self {
            mapped: mapping.mapped,
            kind: match descriptor {
                Some(_) => CudaKind::Vmm,
                None => CudaKind::Legacy,
            },
            descriptor,
            dma_buf: OnceLock::new(),
        }
    }

    /// The device it is on.
    pub fn gpu(&self) -> &'static Gpu {
        self.mapped.gpu
    }

    /// How it was made.
    pub fn kind(&self) -> CudaKind {
        self.kind
    }

    /// Address of the first byte.
    pub fn address(&self) -> u64 {
        self.mapped.address
    }

    /// Bytes of it.
    pub fn len(&self) -> u64 {
        self.mapped.len
    }

    /// Never true: it has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The descriptor that other processes import it by, where it has one.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.descriptor.as_ref().map(AsFd::as_fd)
    }

    /// What another process imports it by.
    pub(crate) fn export(&self) -> Result<CudaShare<OwnedFd>, CudaError> {
        let gpu = self.gpu();
        if let Some(descriptor) = &self.descriptor {
            let copy = descriptor.try_clone();
            let copy = copy.map_err(|error| CudaError::System {
                step: "duplicating the descriptor",
                device: gpu.to_string(),
                errno: error.raw_os_error().unwrap_or_default(),
            })?;
            return Ok(CudaShare::Descriptor(copy));
        }
        let _bound = gpu.bind()?;
        let mut handle = sys::CUipcMemHandle {
            reserved: [0; IPC_HANDLE],
        };
        // SAFETY: writes 64 bytes; the address is the base of an allocation of this process.
        check("cuIpcGetMemHandle", gpu, unsafe {
            sys::cuIpcGetMemHandle(&raw mut handle, self.address())
        })?;
        Ok(CudaShare::Ipc(handle.reserved.map(|byte| byte as u8)))
    }

    /// A dma_buf of all of it, for fabrics. Obtained once.
    pub fn dma_buf(&self) -> Result<BorrowedFd<'_>, CudaError> {
        let obtained = self.dma_buf.get_or_init(|| {
            let _bound = self.gpu().bind()?;
            dma_buf_of(self.gpu(), self.address(), self.len())
        });
        obtained.as_ref().map(AsFd::as_fd).map_err(Clone::clone)
    }
}

/// A dma_buf of a range of a device's memory. A context is bound.
fn dma_buf_of(gpu: &Gpu, address: u64, len: u64) -> Result<OwnedFd, CudaError> {
    let mut fd = -1;
    let kind = sys::CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
    // SAFETY: writes one descriptor. The range is an allocation of this process; the driver checks it.
    check("exporting a dma_buf", gpu, unsafe {
        sys::cuMemGetHandleForAddressRange((&raw mut fd).cast(), address, len as usize, kind, 0)
    })?;
    Ok(keep(fd))
}

impl fmt::Debug for CudaMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.kind(), self.mapped)
    }
}

/// Memory of a device that another process made, mapped into this one.
pub struct CudaMapping {
    mapped: Mapped,
    writable: bool,
}

impl CudaMapping {
    /// Imports `len` bytes. Who made them can write to them as long as this process has them, and so can it. With
    /// `writable` false only the device's own reads are let through in this process.
    pub fn import(
        gpu: &'static Gpu,
        share: &CudaShare<BorrowedFd<'_>>,
        len: u64,
        writable: bool,
    ) -> Result<Self, CudaError> {
        let _bound = gpu.bind()?;
        let mapped = match share {
            CudaShare::Descriptor(fd) => {
                Mapped::vmm(gpu, Handle::import(gpu, *fd)?, len, writable)?
            }
            CudaShare::Ipc(bytes) => {
                let handle = sys::CUipcMemHandle {
                    reserved: bytes.map(|byte| byte as std::ffi::c_char),
                };
                let lazily = sys::CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
                let mut address = 0;
                // SAFETY: writes one address. The driver checks the handle.
                check("opening an IPC handle", gpu, unsafe {
                    sys::cuIpcOpenMemHandle_v2(&raw mut address, handle, lazily)
                })?;
                let mapped = Mapped::new(gpu, address, len, How::Opened);
                check_len(gpu, address, len)?;
                mapped
            }
        };
        Ok(Self { mapped, writable })
    }

    pub(super) fn is_writable(&self) -> bool {
        self.writable
    }

    /// The device it is on.
    pub fn gpu(&self) -> &'static Gpu {
        self.mapped.gpu
    }

    /// Address of the first byte in this process.
    pub fn address(&self) -> u64 {
        self.mapped.address
    }

    /// Bytes of it.
    pub fn len(&self) -> u64 {
        self.mapped.len
    }

    /// Never true: it has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl fmt::Debug for CudaMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "imported {:?}", self.mapped)
    }
}

/// Whether the allocation at an address that another process named has as many bytes from there on as it said. The
/// driver may have made it as a part of a larger one.
fn check_len(gpu: &Gpu, address: u64, len: u64) -> Result<(), CudaError> {
    let (mut base, mut have) = (0, 0);
    // SAFETY: writes two integers.
    check("asking for an allocation's size", gpu, unsafe {
        sys::cuMemGetAddressRange_v2(&raw mut base, &raw mut have, address)
    })?;
    let end = address.checked_add(len);
    let has = base.saturating_add(have as u64);
    if base > address || end.is_none_or(|end| end > has) {
        return Err(CudaError::Unusable {
            what: "cannot import CUDA memory",
            why: format!("it has {have} bytes, not {len}"),
        });
    }
    Ok(())
}

/// A descriptor that the driver made for this process.
fn keep(fd: i32) -> OwnedFd {
    // SAFETY: the driver has just made it, and nobody else knows of it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // It would keep the memory alive in whatever this process starts.
    let _ = rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC);
    fd
}

/// A reference to memory that was made by the calls for virtual memory.
pub(super) struct Handle<'a> {
    gpu: &'a Gpu,
    handle: sys::CUmemGenericAllocationHandle,
}

impl<'a> Handle<'a> {
    fn create(gpu: &'a Gpu, len: u64) -> Result<(Self, OwnedFd), CudaError> {
        let capable =
            sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED;
        let mut gpu_direct = 0;
        // SAFETY: writes one integer.
        check("asking for a device", gpu, unsafe {
            sys::cuDeviceGetAttribute(&raw mut gpu_direct, capable, gpu.device())
        })?;
        let prop = sys::CUmemAllocationProp {
            type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            requestedHandleTypes: DESCRIPTOR,
            location: location(gpu),
            win32HandleMetaData: std::ptr::null_mut(),
            allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
                compressionType: 0,
                gpuDirectRDMACapable: u8::from(gpu_direct != 0),
                usage: 0,
                reserved: [0; 4],
            },
        };
        let mut handle = 0;
        // SAFETY: writes one handle; the properties live through the call.
        check("cuMemCreate", gpu, unsafe {
            sys::cuMemCreate(&raw mut handle, len as usize, &raw const prop, 0)
        })?;
        let made = Self { gpu, handle };
        let fd = made.export()?;
        Ok((made, fd))
    }

    /// The memory that is mapped at an address, if it was made by the calls for virtual memory.
    pub(super) fn retained(gpu: &'a Gpu, address: u64) -> Option<Self> {
        let mut handle = 0;
        let pointer = std::ptr::without_provenance_mut(address as usize);
        // SAFETY: writes one handle; the driver looks the address up, and never reads what is there.
        let said = unsafe { sys::cuMemRetainAllocationHandle(&raw mut handle, pointer) };
        (said == sys::CUresult::CUDA_SUCCESS).then(|| Self { gpu, handle })
    }

    pub(super) fn export(&self) -> Result<OwnedFd, CudaError> {
        let mut fd = -1;
        // SAFETY: writes one descriptor; the handle is this value's.
        check("exporting a descriptor", self.gpu, unsafe {
            let to = (&raw mut fd).cast();
            sys::cuMemExportToShareableHandle(to, self.handle, DESCRIPTOR, 0)
        })?;
        Ok(keep(fd))
    }

    fn import(gpu: &'a Gpu, fd: BorrowedFd<'_>) -> Result<Self, CudaError> {
        let mut handle = 0;
        // The driver takes the descriptor's number in the place of a pointer.
        let number = std::ptr::without_provenance_mut(fd.as_raw_fd() as usize);
        // SAFETY: writes one handle. The driver checks what the descriptor is of, and does not keep it.
        check("importing a descriptor", gpu, unsafe {
            sys::cuMemImportFromShareableHandle(&raw mut handle, number, DESCRIPTOR)
        })?;
        Ok(Self { gpu, handle })
    }
}

impl Drop for Handle<'_> {
    /// Mappings and descriptors keep the memory alive.
    fn drop(&mut self) {
        // SAFETY: a handle that this value has, given back once.
        let released = unsafe { sys::cuMemRelease(self.handle) };
        tell(check("cuMemRelease", self.gpu, released));
    }
}

fn location(gpu: &Gpu) -> sys::CUmemLocation {
    sys::CUmemLocation {
        type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
        id: gpu.device(),
    }
}

/// What there is to say when giving back fails: the driver has ended, mostly.
fn tell(result: Result<(), CudaError>) {
    if let Err(error) = result {
        tracing::debug!(%error, "CUDA memory was not given back");
    }
}

/// Addresses of this process behind which a device's memory lies.
struct Mapped {
    process: Process,
    gpu: &'static Gpu,
    address: u64,
    len: u64,
    how: How,
}

enum How {
    Vmm,
    Allocated,
    Opened,
    /// Whoever allocated it frees it.
    Callers,
}

impl Mapped {
    fn new(gpu: &'static Gpu, address: u64, len: u64, how: How) -> Self {
        Self {
            process: Process::current(),
            gpu,
            address,
            len,
            how,
        }
    }

    /// Maps all of `handle`. A context is bound.
    fn vmm(
        gpu: &'static Gpu,
        handle: Handle<'_>,
        len: u64,
        writable: bool,
    ) -> Result<Self, CudaError> {
        let bytes = len as usize;
        let mut address = 0;
        // SAFETY: reserves fresh addresses and writes the first of them.
        check("reserving addresses", gpu, unsafe {
            sys::cuMemAddressReserve(&raw mut address, bytes, 0, 0, 0)
        })?;
        // SAFETY: the addresses were just reserved, for as many bytes. The driver refuses memory that has fewer.
        let mapped = check("mapping memory", gpu, unsafe {
            sys::cuMemMap(address, bytes, 0, handle.handle, 0)
        });
        if let Err(error) = mapped {
            // SAFETY: reserved above, and nothing is mapped there.
            unsafe { sys::cuMemAddressFree(address, bytes) };
            return Err(error);
        }
        // Unmapped from here on.
        let mapped = Self::new(gpu, address, len, How::Vmm);
        mapped.allow(gpu, writable)?;
        Ok(mapped)
    }

    /// Lets a device reach it.
    fn allow(&self, gpu: &Gpu, writable: bool) -> Result<(), CudaError> {
        use sys::CUmemAccess_flags::*;
        let access = sys::CUmemAccessDesc {
            location: location(gpu),
            flags: match writable {
                true => CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
                false => CU_MEM_ACCESS_FLAGS_PROT_READ,
            },
        };
        // SAFETY: the range is mapped, and one description is given.
        check("giving a device access", gpu, unsafe {
            sys::cuMemSetAccess(self.address, self.len as usize, &raw const access, 1)
        })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // In a forked child there is nothing: the driver's mappings are the parent's.
        if matches!(self.how, How::Callers) || !self.process.is_this() {
            return;
        }
        let bound = self.gpu.bind();
        let Ok(_bound) = bound.map_err(|error| tell(Err(error))) else {
            return;
        };
        let (address, bytes) = (self.address, self.len as usize);
        // SAFETY: in each case what `new` was given, which nobody uses any more: whoever copies there holds
        // the slab, and with it this value.
        let given_back = unsafe {
            match self.how {
                How::Vmm => {
                    let unmapped = sys::cuMemUnmap(address, bytes);
                    check("unmapping memory", self.gpu, unmapped).and_then(|()| {
                        check(
                            "giving addresses back",
                            self.gpu,
                            sys::cuMemAddressFree(address, bytes),
                        )
                    })
                }
                How::Allocated => check("cuMemFree", self.gpu, sys::cuMemFree_v2(address)),
                How::Callers => Ok(()),
                How::Opened => {
                    let closed = sys::cuIpcCloseMemHandle(address);
                    check("closing an IPC handle", self.gpu, closed)
                }
            }
        };
        tell(given_back);
    }
}

impl fmt::Debug for Mapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} bytes of {} at {:#x}",
            self.len, self.gpu, self.address
        )
    }
}

impl CudaMemory {
    /// Lets another device of this process reach it, for kernels there.
    pub fn allow(&self, gpu: &Gpu) -> Result<(), CudaError> {
        self.mapped.allow_peer(gpu, true)
    }
}

impl CudaMapping {
    /// Lets another device of this process reach it, for kernels there.
    pub fn allow(&self, gpu: &Gpu) -> Result<(), CudaError> {
        self.mapped.allow_peer(gpu, true)
    }
}

impl Mapped {
    fn allow_peer(&self, gpu: &Gpu, writable: bool) -> Result<(), CudaError> {
        if !matches!(self.how, How::Vmm) {
            return Err(CudaError::Unusable {
                what: "cannot let another device reach the memory",
                why: "it was made by cuMemAlloc: peer access is the whole context's there"
                    .to_owned(),
            });
        }
        let mut can = 0;
        // SAFETY: writes one integer.
        check("asking for peer access", gpu, unsafe {
            sys::cuDeviceCanAccessPeer(&raw mut can, gpu.device(), self.gpu.device())
        })?;
        if can == 0 && gpu.uuid() != self.gpu.uuid() {
            return Err(CudaError::Unusable {
                what: "cannot let another device reach the memory",
                why: format!("{gpu} has no way to {}", self.gpu),
            });
        }
        let _bound = self.gpu.bind()?;
        self.allow(gpu, writable)
    }
}

const _: () = assert!(size_of::<sys::CUipcMemHandle>() == IPC_HANDLE);
