//! Memory of a GPU: a memfd, mapped where only this library knows.
//!
//! The addresses that callers get are reserved and never readable: a processor that follows a device pointer is killed
//! by a signal, as it would be with a GPU.

use std::ffi::c_void;
use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::Arc;

use rustix::fs::{MemfdFlags, fstat};
use rustix::fs::{Mode, OFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create, open};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use crate::codes::{Answer, INVALID_DEVICE, INVALID_VALUE, OPERATING_SYSTEM, OUT_OF_MEMORY};
use crate::driver::Driver;

/// Memory comes in multiples of this.
pub const GRANULARITY: u64 = 2 << 20;

/// How memory came to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// By `cuMemCreate`.
    Vmm { shareable: bool, rdma: bool },
    /// By `cuMemAlloc`.
    Alloc,
}

pub struct Physical {
    pub kind: Kind,
    /// The place of its GPU in the host.
    pub gpu: usize,
    pub size: u64,
    pub inode: u64,
    file: File,
    shadow: *mut c_void,
    driver: &'static Driver,
}

// SAFETY: the address is only an address; what is there is copied like memory of a device, by whoever is told to.
unsafe impl Send for Physical {}
// SAFETY: as above.
unsafe impl Sync for Physical {}

const PREFIX: &str = "s3engine-cuda-standin";

impl Physical {
    pub fn create(driver: &'static Driver, gpu: usize, size: u64, kind: Kind) -> Answer<Arc<Self>> {
        if size > driver.settings.memory {
            return Err(OUT_OF_MEMORY);
        }
        let kind_name = match kind {
            Kind::Vmm { shareable, rdma } => format!("vmm:{shareable}:{rdma}"),
            Kind::Alloc => "alloc".to_owned(),
        };
        let name = format!("{PREFIX}:{gpu}:{kind_name}");
        let file = sealed(&name, size)?;
        Self::map(driver, file, gpu, kind, Some(driver.settings.memory))
    }

    /// Memory that some process of this host created, by a descriptor of it.
    pub fn import(driver: &'static Driver, fd: impl AsFd) -> Answer<Arc<Self>> {
        // Handed out are descriptors that cannot be read or mapped, as those of the driver.
        let link = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
        let name = fs::read_link(&link).map_err(|_| INVALID_VALUE)?;
        let (gpu, kind) = name.to_str().and_then(parse).ok_or(INVALID_VALUE)?;
        driver.device_of(gpu).ok_or(INVALID_DEVICE)?;
        let options = File::options().read(true).write(true).open(link);
        Self::map(driver, options.map_err(|_| INVALID_VALUE)?, gpu, kind, None)
    }

    fn map(
        driver: &'static Driver,
        file: File,
        gpu: usize,
        kind: Kind,
        limit: Option<u64>,
    ) -> Answer<Arc<Self>> {
        let stat = fstat(&file).map_err(|_| OPERATING_SYSTEM)?;
        let (size, inode) = (stat.st_size as u64, stat.st_ino);
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, where nothing is.
        let shadow = unsafe {
            mmap(
                null_mut(),
                size as usize,
                access,
                MapFlags::SHARED,
                &file,
                0,
            )
        };
        let shadow = shadow.map_err(|_| OUT_OF_MEMORY)?;
        // SAFETY: the mapping that was just made. A forked child has nothing of a GPU.
        let _ = unsafe { madvise(shadow, size as usize, Advice::LinuxDontFork) };
        if let Err(code) = driver.in_use.add(inode, gpu, size, limit) {
            // SAFETY: as above; nobody knows of it.
            let _ = unsafe { munmap(shadow, size as usize) };
            return Err(code);
        }
        Ok(Arc::new(Self {
            kind,
            gpu,
            size,
            inode,
            file,
            shadow,
            driver,
        }))
    }

    /// Where its bytes are. `offset` is within it.
    pub fn at(&self, offset: u64) -> *mut u8 {
        self.shadow.cast::<u8>().wrapping_add(offset as usize)
    }

    /// The number of its descriptor in this process.
    pub fn descriptor(&self) -> u32 {
        self.file.as_raw_fd() as u32
    }

    /// A descriptor of it that says what it is and can do nothing else.
    pub fn describe(&self) -> Answer<OwnedFd> {
        described(&self.file)
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        // SAFETY: made in `map`; who copies has the `Arc`.
        let _ = unsafe { munmap(self.shadow, self.size as usize) };
        self.driver.in_use.remove(self.inode);
    }
}

/// The GPU and the kind in a memfd's name.
fn parse(link: &str) -> Option<(usize, Kind)> {
    let name = link.strip_prefix("/memfd:")?.strip_suffix(" (deleted)")?;
    let mut words = name.strip_prefix(PREFIX)?.strip_prefix(':')?.split(':');
    let gpu = words.next()?.parse().ok()?;
    let kind = match words.next()? {
        "alloc" => Kind::Alloc,
        "vmm" => Kind::Vmm {
            shareable: words.next()?.parse().ok()?,
            rdma: words.next()?.parse().ok()?,
        },
        _ => return None,
    };
    Some((gpu, kind))
}

fn sealed(name: &str, size: u64) -> Answer<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = memfd_create(name, flags).map_err(|_| OPERATING_SYSTEM)?;
    ftruncate(&fd, size).map_err(|_| OUT_OF_MEMORY)?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    fcntl_add_seals(&fd, seals).map_err(|_| OPERATING_SYSTEM)?;
    Ok(File::from(fd))
}

fn described(file: &File) -> Answer<OwnedFd> {
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    open(link, flags, Mode::empty()).map_err(|_| OPERATING_SYSTEM)
}

/// A descriptor that stands for a dma_buf: nothing can be done with it but pass it on.
pub fn dma_buf(gpu: usize) -> Answer<OwnedFd> {
    described(&sealed(&format!("{PREFIX}-dmabuf:{gpu}"), 0)?)
}

/// Device addresses: nobody's until mapped, and never readable.
pub struct Addresses {
    pub start: u64,
    pub len: u64,
}

impl Addresses {
    /// At a multiple of `alignment`, which is a power of two.
    pub fn reserve(len: u64, alignment: u64) -> Answer<Self> {
        let alignment = alignment.max(GRANULARITY);
        let room = len.checked_add(alignment).ok_or(OUT_OF_MEMORY)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping, where nothing is.
        let at = unsafe { mmap_anonymous(null_mut(), room as usize, ProtFlags::empty(), flags) };
        let at = at.map_err(|_| OUT_OF_MEMORY)?.addr() as u64;
        let start = at.next_multiple_of(alignment);
        unmap(at, start - at);
        unmap(start + len, at + room - start - len);
        Ok(Self { start, len })
    }
}

impl Drop for Addresses {
    fn drop(&mut self) {
        unmap(self.start, self.len);
    }
}

/// Part of what `Addresses` reserved, which nothing points to.
fn unmap(start: u64, len: u64) {
    if len > 0 {
        // SAFETY: reserved by `Addresses::reserve`, never readable, and given up by its owner.
        let _ = unsafe { munmap(without_provenance_mut(start as usize), len as usize) };
    }
}
