//! Shared host memory, mapped: by the owner who made it (see `host`), and by those who import it.
//!
//! All `unsafe` that maps or touches the memory of slabs is in this file.

use std::cell::OnceCell;
use std::ffi::c_void;
use std::fmt;
use std::fs;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use rustix::fs::SealFlags;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::buffer::OutOfBounds;
use crate::cuda::{CudaError, Gpu, Uuid};

/// Slabs start at a multiple of this, so that any slot alignment up to it can be met.
pub(crate) const SLAB_ALIGN: u64 = 2 << 20;

/// What kind of memory a slab consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Memory {
    /// Memory of this host, readable by its processors.
    Host,
    /// Memory of a CUDA device, named as it is in every process.
    Cuda(Uuid),
}

impl Memory {
    /// Memory of the device that has this number in this process.
    pub fn cuda(ordinal: u32) -> Result<Self, CudaError> {
        Ok(Memory::Cuda(Gpu::nth(ordinal)?.uuid()))
    }

    /// The NUMA node that it is near to, where that is known. Host memory is near to all.
    pub fn numa_node(self) -> Option<u32> {
        match self {
            Memory::Host => None,
            Memory::Cuda(uuid) => Gpu::find(uuid).ok()?.numa_node(),
        }
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Memory::Host => f.write_str("host"),
            Memory::Cuda(uuid) => write!(f, "cuda {uuid}"),
        }
    }
}

/// The pages that a slab was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pages {
    /// Page size of the mapping in bytes.
    pub size: u64,
    /// Bytes of it that are mapped by transparent huge pages.
    pub transparent_huge: u64,
}

impl fmt::Display for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} KiB pages", self.size >> 10)?;
        if self.transparent_huge > 0 {
            write!(
                f,
                ", {} MiB in transparent huge pages",
                self.transparent_huge >> 20
            )?;
        }
        Ok(())
    }
}

/// A step of obtaining memory that the system refused.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// A system call failed.
    #[error("{step} of {len} bytes of {memory} memory failed: {source}")]
    System {
        /// What was tried.
        step: &'static str,
        /// For how many bytes.
        len: u64,
        /// Of which kind.
        memory: Memory,
        /// The system's error.
        source: io::Error,
    },
    /// CUDA refused.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// A descriptor that cannot be imported safely.
    #[error("cannot import memory: {why}")]
    NotImportable {
        /// What is wrong with it.
        why: String,
    },
}

pub(crate) fn refused(
    step: &'static str,
    len: u64,
) -> impl FnOnce(rustix::io::Errno) -> MemoryError {
    move |errno| MemoryError::System {
        step,
        len,
        memory: Memory::Host,
        source: errno.into(),
    }
}

/// A shared mapping of a memfd, unmapped on drop. Reads and writes copy, and are checked for bounds.
///
/// Like a network card's, the copies are not atomic: what two holders of one token write to the same place at
/// once is torn. Only the order of leases, tokens and answers keeps that from happening.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: u64,
}

// SAFETY: the mapping belongs to the process, not to a thread; it is only reached through copies whose
// exclusion is the caller's protocol (slot ownership), never through long-lived references made here.
unsafe impl Send for Mapping {}
// SAFETY: as for Send.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps memory that another process, or this one, made and sealed. Refuses a descriptor that could
    /// be shrunk under the mapping, because reading past its end would kill this process.
    pub fn import(fd: BorrowedFd<'_>, len: u64) -> Result<Self, MemoryError> {
        check_importable(fd, len)?;
        let mapping = Self::map(fd, len).map_err(refused("mmap", len))?;
        // The pages are there; mapping them now keeps their faults out of transfers.
        // Where the kernel cannot, they are mapped at first touch: nothing may be written here.
        let populated = mapping.populate(|| Ok(()));
        populated.map_err(refused("populating", len))?;
        Ok(mapping)
    }

    /// Bytes mapped.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Never true: a mapping has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of the first byte.
    pub(crate) fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// Copies `data` to `offset`.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), OutOfBounds> {
        let at = self.checked(offset, data.len())?;
        // SAFETY: `checked` showed that the range lies inside the mapping, which lives as long as self;
        // `data` is a reference to other memory. Who may write here at this time is decided by slot
        // ownership (Window) or by the fabric's token, not by this copy; no reference to the range is made.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), at, data.len()) };
        Ok(())
    }

    /// Copies from `offset` into `into`.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OutOfBounds> {
        let at = self.checked(offset, into.len())?;
        // SAFETY: as in `write`.
        unsafe { std::ptr::copy_nonoverlapping(at, into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    /// A view of `len` bytes at `offset`.
    ///
    /// # Safety
    /// Nobody may write to the range while the returned slice lives.
    pub(crate) unsafe fn slice(&self, offset: u64, len: usize) -> &[u8] {
        match self.checked(offset, len) {
            // SAFETY: in bounds by `checked`; not written meanwhile by the caller's contract.
            Ok(at) => unsafe { std::slice::from_raw_parts(at, len) },
            Err(_) => &[],
        }
    }

    /// A writable view of `len` bytes at `offset`.
    ///
    /// # Safety
    /// Nobody else may read or write the range while the returned slice lives.
    #[allow(clippy::mut_from_ref)] // Exclusion is per range, by slot ownership.
    pub(crate) unsafe fn slice_mut(&self, offset: u64, len: usize) -> &mut [u8] {
        match self.checked(offset, len) {
            // SAFETY: in bounds by `checked`; exclusive by the caller's contract.
            Ok(at) => unsafe { std::slice::from_raw_parts_mut(at, len) },
            Err(_) => &mut [],
        }
    }

    fn checked(&self, offset: u64, len: usize) -> Result<*mut u8, OutOfBounds> {
        match offset.checked_add(len as u64) {
            // SAFETY: offset <= self.len, so the pointer stays inside the mapping or one past its end.
            Some(end) if end <= self.len => Ok(unsafe { self.base.as_ptr().add(offset as usize) }),
            _ => Err(OutOfBounds {
                offset,
                len: len as u64,
                have: self.len,
            }),
        }
    }

    /// Maps `len` bytes of `fd` at a multiple of [`SLAB_ALIGN`].
    pub(crate) fn map(fd: BorrowedFd<'_>, len: u64) -> rustix::io::Result<Self> {
        Self::map_with(fd, len, ProtFlags::READ | ProtFlags::WRITE)
    }

    fn map_with(fd: BorrowedFd<'_>, len: u64, access: ProtFlags) -> rustix::io::Result<Self> {
        let length = usize::try_from(len).map_err(|_| rustix::io::Errno::NOMEM)?;
        let align = SLAB_ALIGN as usize;
        let reserve = length.checked_add(align).ok_or(rustix::io::Errno::NOMEM)?;
        // SAFETY: a fresh anonymous reservation at an address of the kernel's choice, without access.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                reserve,
                ProtFlags::empty(),
                MapFlags::PRIVATE,
            )?
        };
        let lead = (start as usize).next_multiple_of(align) - start as usize;
        let base = start.cast::<u8>().wrapping_add(lead).cast::<c_void>();
        // SAFETY: replaces pages inside the reservation just made, which nothing else knows of.
        let mapped = unsafe {
            rustix::mm::mmap(
                base,
                length,
                access,
                MapFlags::SHARED | MapFlags::FIXED,
                fd,
                0,
            )
        };
        let keep_from = lead + length.next_multiple_of(4096);
        // SAFETY: only the parts of the reservation outside the new mapping are given back; when mapping
        // failed, all of it is.
        unsafe {
            match mapped {
                Err(errno) => {
                    rustix::mm::munmap(start, reserve)?;
                    return Err(errno);
                }
                Ok(_) => {
                    if lead > 0 {
                        rustix::mm::munmap(start, lead)?;
                    }
                    if reserve > keep_from {
                        rustix::mm::munmap(
                            start.cast::<u8>().add(keep_from).cast(),
                            reserve - keep_from,
                        )?;
                    }
                }
            }
        }
        let base = NonNull::new(base.cast::<u8>()).ok_or(rustix::io::Errno::NOMEM)?;
        Ok(Self { base, len })
    }

    pub(crate) fn advise(&self, advice: Advice) -> rustix::io::Result<()> {
        // SAFETY: the range is this mapping; none of the advices used here drops its contents.
        unsafe { rustix::mm::madvise(self.base.as_ptr().cast(), self.len as usize, advice) }
    }

    /// Makes every page present, as `prefault` says where the kernel cannot do it in one call (before 5.14).
    pub(crate) fn populate(
        &self,
        prefault: impl FnOnce() -> rustix::io::Result<()>,
    ) -> rustix::io::Result<()> {
        match self.advise(Advice::LinuxPopulateWrite) {
            Err(rustix::io::Errno::INVAL) => prefault(),
            result => result,
        }
    }

    /// Touches every page. They must be reserved, so that this cannot fault.
    pub(crate) fn touch(&self) -> rustix::io::Result<()> {
        let pages = (0..self.len).step_by(4096);
        pages.into_iter().try_for_each(|offset| {
            self.write(offset, &[0])
                .map_err(|_| rustix::io::Errno::FAULT)
        })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map`, is unmapped once, and every view borrows from self.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len as usize) };
    }
}

/// A mapping that cannot be written: a type of its own, because writing to one would kill the process.
#[derive(Debug)]
pub(crate) struct ReadMapping(Mapping);

impl ReadMapping {
    /// As [`Mapping::import`], of memory that may be sealed against writing.
    pub(crate) fn import(fd: BorrowedFd<'_>, len: u64) -> Result<Self, MemoryError> {
        check_importable(fd, len)?;
        let mapping = Mapping::map_with(fd, len, ProtFlags::READ).map_err(refused("mmap", len))?;
        match mapping.advise(Advice::LinuxPopulateRead) {
            // A kernel before 5.14: mapped at first touch.
            Ok(()) | Err(rustix::io::Errno::INVAL) => Ok(Self(mapping)),
            Err(errno) => Err(refused("populating", len)(errno)),
        }
    }

    pub(crate) fn len(&self) -> u64 {
        self.0.len
    }

    pub(crate) fn address(&self) -> u64 {
        self.0.address()
    }

    /// A view of `len` bytes at `offset`.
    ///
    /// # Safety
    /// As for [`Mapping::slice`].
    pub(crate) unsafe fn slice(&self, offset: u64, len: usize) -> &[u8] {
        // SAFETY: the caller's contract is the same.
        unsafe { self.0.slice(offset, len) }
    }
}

/// Refuses what is no memfd, what could be shrunk under a mapping, and what is shorter than `len`.
fn check_importable(fd: BorrowedFd<'_>, len: u64) -> Result<(), MemoryError> {
    let not = |why: String| MemoryError::NotImportable { why };
    let seals = rustix::fs::fcntl_get_seals(fd).map_err(|e| not(format!("not a memfd ({e})")))?;
    if !seals.contains(SealFlags::SHRINK) {
        return Err(not("the descriptor is not sealed against shrinking".into()));
    }
    let size = rustix::fs::fstat(fd)
        .map_err(refused("fstat", len))?
        .st_size;
    if len == 0 || u64::try_from(size).is_ok_and(|size| size < len) {
        return Err(not(format!(
            "{len} bytes wanted of a descriptor of {size} bytes"
        )));
    }
    Ok(())
}

/// What `/proc/self/smaps` says, read when it is first asked: that walks over all that this process maps.
#[derive(Default)]
pub(crate) struct Smaps(OnceCell<String>);

impl Smaps {
    fn text(&self) -> &str {
        let read = || fs::read_to_string("/proc/self/smaps").unwrap_or_default();
        self.0.get_or_init(read)
    }
}

/// The pages of a mapping, looked up once. Keeps no memory mapped.
#[derive(Clone, Debug)]
pub(crate) struct MappedPages {
    address: u64,
    found: Arc<OnceLock<Pages>>,
}

impl MappedPages {
    pub(crate) fn of(mapping: &Mapping) -> Self {
        Self {
            address: mapping.address(),
            found: Arc::default(),
        }
    }

    pub(crate) fn get(&self, smaps: &Smaps) -> Pages {
        let look = || pages_of(smaps.text(), self.address);
        let unknown = Pages {
            size: 4096,
            transparent_huge: 0,
        };
        *self.found.get_or_init(|| look().unwrap_or(unknown))
    }
}

/// Finds in the text of `smaps` the pages of the mapping that starts at `address`.
fn pages_of(smaps: &str, address: u64) -> Option<Pages> {
    let start = format!("{address:x}-");
    let mut lines = smaps.lines().skip_while(|line| !line.starts_with(&start));
    lines.next()?;
    let mut pages = Pages {
        size: 4096,
        transparent_huge: 0,
    };
    for line in lines {
        let Some((name, value)) = line.split_once(':') else {
            break;
        };
        let Some(kib) = value
            .trim()
            .strip_suffix(" kB")
            .and_then(|n| n.parse::<u64>().ok())
        else {
            // The next mapping's first line, or the flags that close this one.
            break;
        };
        match name {
            "KernelPageSize" => pages.size = kib << 10,
            "ShmemPmdMapped" => pages.transparent_huge = kib << 10,
            _ => {}
        }
    }
    Some(pages)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::fs::MemfdFlags;

    use super::*;
    use crate::host::{HostMemory, HugePages};

    const MIB: u64 = 1 << 20;

    #[test]
    fn access_outside_the_mapping_is_refused() {
        let memory = HostMemory::create(2 * MIB, HugePages::Never).unwrap();
        let mapping = memory.mapping();
        assert!(mapping.write(2 * MIB, &[]).is_ok());
        assert!(mapping.write(2 * MIB, &[1]).is_err());
        assert!(mapping.write(u64::MAX, &[1, 2]).is_err());
        assert!(mapping.read(2 * MIB - 1, &mut [0; 2]).is_err());
    }

    #[test]
    fn an_unsealed_or_short_descriptor_is_not_imported() {
        let fd = rustix::fs::memfd_create("t", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&fd, 4096).unwrap();
        assert!(Mapping::import(fd.as_fd(), 4096).is_err(), "not sealed");
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
        assert!(Mapping::import(fd.as_fd(), 4096).is_ok());
        assert!(Mapping::import(fd.as_fd(), 4097).is_err(), "too short");
        assert!(Mapping::import(fd.as_fd(), 0).is_err());
        assert!(ReadMapping::import(fd.as_fd(), 4096).is_ok());
        assert!(ReadMapping::import(fd.as_fd(), 4097).is_err());
        let file = tempfile_in_proc();
        assert!(Mapping::import(file.as_fd(), 1).is_err(), "not a memfd");
    }

    fn tempfile_in_proc() -> fs::File {
        fs::File::open("/proc/self/status").unwrap()
    }

    #[test]
    fn pages_are_read_from_the_right_mapping() {
        let smaps = "1000-2000 rw-s 0 00:01 1 /memfd:a\nSize: 4 kB\nKernelPageSize: 4 kB\nShmemPmdMapped: 0 kB\nVmFlags: rd\n\
                     200000-600000 rw-s 0 00:01 2 /memfd:b\nSize: 4096 kB\nKernelPageSize: 2048 kB\nShmemPmdMapped: 2048 kB\nVmFlags: rd\n";
        assert_eq!(
            pages_of(smaps, 0x1000),
            Some(Pages {
                size: 4096,
                transparent_huge: 0
            })
        );
        assert_eq!(
            pages_of(smaps, 0x200000),
            Some(Pages {
                size: 2 << 20,
                transparent_huge: 2 << 20
            })
        );
        assert_eq!(pages_of(smaps, 0x3000), None);
    }
}
