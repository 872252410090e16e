//! The regions of a queue in memory that two processes share.
//!
//! The service makes both memfds: populated, so that a lack of memory is an error now and not a fault later, and
//! sealed against resizing. Its own is sealed against every further way of writing too, so a client can map it
//! for reading only.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::layout::Layout;
use super::words::Region;
use super::{Client, Service};

/// Bytes of a page, of which mappings are made.
const PAGE: usize = 4096;

/// Why shared regions cannot be made or mapped.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// The system refused.
    #[error("{what} for a queue's region of {bytes} bytes: {source}")]
    System {
        /// The call that was refused.
        what: &'static str,
        /// Bytes of the region.
        bytes: usize,
        /// Why.
        source: io::Error,
    },
    /// What was received is no region that can be trusted.
    #[error("the {which} region cannot be used: {why}")]
    NotARegion {
        /// `client` or `service`.
        which: &'static str,
        /// What is wrong with it.
        why: String,
    },
}

fn refused(what: &'static str, bytes: usize) -> impl Fn(Errno) -> MapError {
    move |errno| MapError::System {
        what,
        bytes,
        source: errno.into(),
    }
}

/// What the service keeps and what it sends of a new queue.
pub struct SharedQueue {
    /// The service's end.
    pub service: Service,
    /// For the client: what it writes.
    pub client_region: OwnedFd,
    /// For the client: what it reads.
    pub service_region: OwnedFd,
}

impl SharedQueue {
    /// Makes a queue's regions, and maps them for the service.
    pub fn create(layout: Layout) -> Result<SharedQueue, MapError> {
        let (client_region, client) = make(layout.client_bytes(), SealFlags::empty())?;
        let (service_region, own) = make(layout.service_bytes(), SealFlags::FUTURE_WRITE)?;
        let service = Service::new(&client, &own, layout, 0).map_err(too_small)?;
        Ok(SharedQueue {
            service,
            client_region,
            service_region,
        })
    }
}

impl Client {
    /// Maps the regions that a service has sent.
    pub fn import(
        layout: Layout,
        client_region: BorrowedFd<'_>,
        service_region: BorrowedFd<'_>,
    ) -> Result<Client, MapError> {
        let of = |which, fd, bytes: usize, prot| {
            let bytes = bytes.next_multiple_of(PAGE);
            check(which, fd, bytes)?;
            map(fd, bytes, prot)
        };
        let own = ProtFlags::READ | ProtFlags::WRITE;
        let client = of("client", client_region, layout.client_bytes(), own)?;
        let bytes = layout.service_bytes();
        let service = of("service", service_region, bytes, ProtFlags::READ)?;
        Client::new(&client, &service, layout, 0).map_err(too_small)
    }
}

fn too_small(error: super::RegionTooSmall) -> MapError {
    MapError::NotARegion {
        which: error.which,
        why: error.to_string(),
    }
}

fn make(bytes: usize, more: SealFlags) -> Result<(OwnedFd, Region), MapError> {
    let bytes = bytes.next_multiple_of(PAGE);
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create("s3engine-queue", flags)
        .map_err(refused("memfd_create", bytes))?;
    rustix::fs::ftruncate(&fd, bytes as u64).map_err(refused("ftruncate", bytes))?;
    rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, bytes as u64)
        .map_err(refused("fallocate", bytes))?;
    // Mapped before it is sealed: the service goes on writing where nobody else can begin to.
    let region = map(fd.as_fd(), bytes, ProtFlags::READ | ProtFlags::WRITE)?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL | more;
    rustix::fs::fcntl_add_seals(&fd, seals).map_err(refused("sealing", bytes))?;
    Ok((fd, region))
}

/// Whether a descriptor stays as long as it is.
fn check(which: &'static str, fd: BorrowedFd<'_>, bytes: usize) -> Result<(), MapError> {
    let not = |why| MapError::NotARegion { which, why };
    let seals = rustix::fs::fcntl_get_seals(fd).map_err(|e| not(format!("no memfd ({e})")))?;
    if !seals.contains(SealFlags::SHRINK) {
        return Err(not("it is not sealed against shrinking".to_owned()));
    }
    let size = rustix::fs::fstat(fd)
        .map_err(refused("fstat", bytes))?
        .st_size;
    match usize::try_from(size) {
        Ok(size) if size >= bytes => Ok(()),
        _ => Err(not(format!("it has {size} bytes, {bytes} are needed"))),
    }
}

/// A mapping, and the process that made it.
struct Mapped {
    base: NonNull<u8>,
    bytes: usize,
    process: u32,
}

// SAFETY: the mapping belongs to the process, not to a thread. It is reached through a `Region` only.
unsafe impl Send for Mapped {}
// SAFETY: as for Send.
unsafe impl Sync for Mapped {}

impl Drop for Mapped {
    fn drop(&mut self) {
        // In a forked child the mapping is not there, and something else may be at its place.
        if self.process == process::id() {
            // SAFETY: made by `map`, unmapped once, after the last region that leads here is gone.
            let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
        }
    }
}

fn map(fd: BorrowedFd<'_>, bytes: usize, prot: ProtFlags) -> Result<Region, MapError> {
    // SAFETY: a new mapping at an address of the kernel's choice.
    let start = unsafe {
        rustix::mm::mmap(std::ptr::null_mut(), bytes, prot, MapFlags::SHARED, fd, 0)
            .map_err(refused("mmap", bytes))?
    };
    let base = NonNull::new(start.cast::<u8>()).expect("the kernel maps nothing at 0");
    let mapped = Mapped {
        base,
        bytes,
        process: process::id(),
    };
    let advise = |advice| {
        // SAFETY: the range is this mapping, and neither advice used here drops its contents.
        unsafe { rustix::mm::madvise(start, bytes, advice) }
    };
    let populate = match prot.contains(ProtFlags::WRITE) {
        true => Advice::LinuxPopulateWrite,
        false => Advice::LinuxPopulateRead,
    };
    match advise(populate) {
        // Kernels before 5.14: the pages are reserved, and mapped at first touch.
        Ok(()) | Err(Errno::INVAL) => {}
        Err(errno) => return Err(refused("populating", bytes)(errno)),
    }
    advise(Advice::LinuxDontFork).map_err(refused("MADV_DONTFORK", bytes))?;
    // SAFETY: page-aligned, populated, kept mapped by `mapped`, and sealed against shrinking (by `make` after
    // this, before anybody else has the descriptor; by the sender's `make`, as `check` has seen). A region that is
    // mapped for reading is given to `Client::new` as the service's, which is only read.
    Ok(unsafe { Region::from_raw(base, bytes, Arc::new(mapped)) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Destination, GetRequest, Object, Outcome, Taken};
    use std::os::fd::AsRawFd;

    fn layout() -> Layout {
        Layout::new(8).unwrap()
    }

    #[test]
    fn a_queue_works_between_two_mappings_of_its_regions() {
        let mut shared = SharedQueue::create(layout()).unwrap();
        let (a, b) = (shared.client_region.as_fd(), shared.service_region.as_fd());
        let mut client = Client::import(layout(), a, b).unwrap();
        let get = GetRequest {
            object: Object::Opened(7),
            options: None,
            range: None,
            destination: Destination::LeaseHost,
            policy: None,
            deadline_ms: 0,
        };
        for nth in 0..100 {
            client.push_get(&get, nth).unwrap();
            let _ = client.submit(0);
            let Ok(Some(Taken::Get(ticket, ..))) = shared.service.take() else {
                panic!("a GET was submitted")
            };
            let done = Outcome::default();
            shared.service.complete(ticket, &done, None).unwrap();
            let _ = shared.service.publish();
            assert_eq!(client.reap().unwrap().unwrap().cqe.user_data, nth);
        }
    }

    #[test]
    fn a_client_cannot_write_or_punch_what_the_service_writes_nor_resize_either() {
        let shared = SharedQueue::create(layout()).unwrap();
        let fd = &shared.service_region;
        assert!(rustix::io::pwrite(fd, b"x", 0).is_err());
        let again = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let again = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(again);
        if let Ok(file) = again {
            assert!(rustix::io::pwrite(&file, b"x", 0).is_err());
        }
        let bytes = layout().service_bytes().next_multiple_of(PAGE);
        let writable = map(fd.as_fd(), bytes, ProtFlags::READ | ProtFlags::WRITE);
        assert!(matches!(
            writable,
            Err(MapError::System { what: "mmap", .. })
        ));
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        assert!(rustix::fs::fallocate(fd, punch, 0, PAGE as u64).is_err());
        for fd in [&shared.service_region, &shared.client_region] {
            assert!(rustix::fs::ftruncate(fd, 0).is_err());
            assert!(rustix::fs::ftruncate(fd, 1 << 30).is_err());
        }
    }

    #[test]
    fn a_region_that_could_shrink_or_is_too_small_is_refused() {
        let shared = SharedQueue::create(layout()).unwrap();
        let other = rustix::fs::memfd_create("other", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&other, 1 << 20).unwrap();
        let import =
            |fd: &OwnedFd| Client::import(layout(), fd.as_fd(), shared.service_region.as_fd());
        let why = import(&other).err().unwrap().to_string();
        assert!(why.contains("not sealed"), "{why}");
        let (small, _) = make(PAGE, SealFlags::empty()).unwrap();
        let why = import(&small).err().unwrap().to_string();
        assert!(why.contains("4096 bytes"), "{why}");
        let file = OwnedFd::from(std::fs::File::open("/proc/self/status").unwrap());
        assert!(import(&file).is_err());
    }

    #[test]
    fn a_hole_that_a_client_punches_in_its_region_ends_its_session_only() {
        let mut shared = SharedQueue::create(layout()).unwrap();
        let (a, b) = (shared.client_region.as_fd(), shared.service_region.as_fd());
        let mut client = Client::import(layout(), a, b).unwrap();
        client.push_nop(1).unwrap();
        client.push_nop(2).unwrap();
        let _ = client.submit(0);
        let Ok(Some(Taken::Nop(first))) = shared.service.take() else {
            panic!("a NOP was submitted")
        };
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let bytes = layout().client_bytes() as u64;
        rustix::fs::fallocate(&shared.client_region, punch, 0, bytes).unwrap();
        assert!(shared.service.take().is_err(), "zeroes are no second NOP");
        assert!(
            shared
                .service
                .complete(first, &Outcome::default(), None)
                .is_err()
        );
    }
}
