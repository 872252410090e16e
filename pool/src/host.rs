//! Host memory as its owner makes it: a memfd that is reserved, populated, sealed, and exported by descriptor.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::mm::Advice;

use crate::memory::{MappedPages, Mapping, MemoryError, SLAB_ALIGN, refused};

/// Whether to ask for pages larger than the system's smallest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugePages {
    /// Reserved huge pages if enough are free, else transparent ones if the system grants them.
    #[default]
    Auto,
    /// Small pages.
    Never,
}

/// A memfd of this process: reserved, populated, sealed against resizing, mapped.
#[derive(Debug)]
pub(crate) struct HostMemory {
    fd: OwnedFd,
    mapping: Mapping,
    pages: MappedPages,
}

impl HostMemory {
    /// Creates `len` bytes, a multiple of 2 MiB. Every page is present when this returns: a first touch
    /// during a transfer would cost more than the transfer.
    pub(crate) fn create(len: u64, huge: HugePages) -> Result<Self, MemoryError> {
        debug_assert!(len > 0 && len.is_multiple_of(SLAB_ALIGN));
        if huge == HugePages::Auto && reserved_huge_pages_free() >= len / (2 << 20) {
            // Another process may take them in between: then the ordinary way is left.
            if let Ok(memory) =
                Self::create_with(len, MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB, huge)
            {
                return Ok(memory);
            }
        }
        Self::create_with(len, MemfdFlags::empty(), huge)
    }

    fn create_with(len: u64, flags: MemfdFlags, huge: HugePages) -> Result<Self, MemoryError> {
        let flags = flags | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("s3engine-slab", flags)
            .map_err(refused("memfd_create", len))?;
        rustix::fs::ftruncate(&fd, len).map_err(refused("ftruncate", len))?;
        let mapping = Mapping::map(fd.as_fd(), len).map_err(refused("mmap", len))?;
        if huge == HugePages::Auto {
            // Refused where the kernel has no transparent huge pages: small ones then.
            let _ = mapping.advise(Advice::LinuxHugepage);
        }
        // Only after the advice: pages that were made before it are small.
        let reserve = || rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, len);
        let populated = mapping.populate(|| reserve().and_then(|()| mapping.touch()));
        populated.map_err(refused("populating", len))?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(refused("sealing", len))?;
        let pages = MappedPages::of(&mapping);
        Ok(Self { fd, mapping, pages })
    }

    /// Keeps every other user from opening it anew, for writing or at all: who has a descriptor for reading can
    /// only read. A seal against writing would keep out fabrics' peers too, who map memory when they first use it.
    pub(crate) fn close_to_others(&self) -> Result<(), MemoryError> {
        let len = self.mapping.len();
        rustix::fs::fchmod(&self.fd, Mode::RUSR).map_err(refused("fchmod", len))
    }

    /// Frees the pages, whoever still maps them.
    pub(crate) fn discard(&self) -> Result<(), MemoryError> {
        let len = self.mapping.len();
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&self.fd, punch, 0, len).map_err(refused("punching a hole", len))
    }

    /// A descriptor to hand to another process.
    pub(crate) fn export(&self, read_only: bool) -> Result<OwnedFd, MemoryError> {
        let len = self.mapping.len();
        if read_only {
            // Another description of the same memory: the mode of this one does not change.
            let path = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            return rustix::fs::open(path, flags, Mode::empty())
                .map_err(refused("opening for reading", len));
        }
        rustix::io::fcntl_dupfd_cloexec(&self.fd, 0).map_err(refused("duplicating the fd", len))
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(crate) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    pub(crate) fn pages(&self) -> &MappedPages {
        &self.pages
    }
}

fn reserved_huge_pages_free() -> u64 {
    fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Smaps;

    const MIB: u64 = 1 << 20;

    #[test]
    fn created_memory_is_aligned_populated_and_sealed() {
        let memory = HostMemory::create(4 * MIB, HugePages::Auto).unwrap();
        assert!(memory.mapping().address().is_multiple_of(SLAB_ALIGN));
        let seals = rustix::fs::fcntl_get_seals(memory.fd()).unwrap();
        assert!(seals.contains(SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL));
        assert!(rustix::fs::ftruncate(memory.fd(), 0).is_err());
        let blocks = rustix::fs::fstat(memory.fd()).unwrap().st_blocks as u64 * 512;
        assert!(blocks >= 4 * MIB, "every page is present: {blocks}");
        assert!(memory.pages().get(&Smaps::default()).size >= 4096);
    }

    #[test]
    fn importer_and_owner_see_the_same_bytes() {
        let memory = HostMemory::create(2 * MIB, HugePages::Never).unwrap();
        let peer = Mapping::import(memory.fd(), 2 * MIB).unwrap();
        peer.write(2 * MIB - 3, b"end").unwrap();
        let mut seen = [0; 3];
        memory.mapping().read(2 * MIB - 3, &mut seen).unwrap();
        assert_eq!(&seen, b"end");
    }

    #[test]
    fn a_descriptor_for_reading_writes_nothing_while_peers_still_map_the_memory() {
        let memory = HostMemory::create(2 * MIB, HugePages::Never).unwrap();
        memory.close_to_others().unwrap();
        let reader = memory.export(true).unwrap();
        assert!(Mapping::import(reader.as_fd(), 2 * MIB).is_err());
        assert!(rustix::io::pwrite(&reader, b"x", 0).is_err());
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        assert!(rustix::fs::fallocate(&reader, punch, 0, 4096).is_err());
        let peer = Mapping::import(memory.fd(), 2 * MIB).unwrap();
        peer.write(0, b"peer").unwrap();
        let mut seen = [0; 4];
        rustix::io::pread(&reader, &mut seen, 0).unwrap();
        assert_eq!(&seen, b"peer");
    }

    #[test]
    fn discarded_memory_is_free_while_others_map_it() {
        let memory = HostMemory::create(2 * MIB, HugePages::Never).unwrap();
        let peer = Mapping::import(memory.fd(), 2 * MIB).unwrap();
        peer.write(0, b"x").unwrap();
        memory.discard().unwrap();
        assert_eq!(rustix::fs::fstat(memory.fd()).unwrap().st_blocks, 0);
        let mut seen = [1];
        peer.read(0, &mut seen).unwrap();
        assert_eq!(seen, [0]);
    }
}
