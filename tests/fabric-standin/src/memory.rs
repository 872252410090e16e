//! Memory that is registered with the loopback fabric, found by its address.

use std::collections::HashMap;
use std::fs;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::linux::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use s3engine_pool::{Memory as Kind, Registrar, RegistrationHandle, Segment, SlabId};
use s3engine_s3::fabric::loopback::{Loopback, LoopbackOptions};

/// How long a revocation waits for whoever writes.
const REVOKE: Duration = Duration::from_secs(10);

/// Why memory cannot be registered, or named.
#[derive(Debug, PartialEq, Eq)]
pub enum Refused {
    /// There is nothing that could be shared: errno EFAULT.
    Fault,
    /// It is not registered.
    Unknown,
    /// It is registered with another length.
    Pinned(u64),
    /// The window is not inside.
    Outside(u64),
    /// A writer has not confirmed that it writes no more.
    Unconfirmed,
}

/// What one device has registered.
#[derive(Debug)]
pub struct Memory {
    loopback: Loopback,
    registered: Mutex<HashMap<usize, Registered>>,
    slab: AtomicU32,
}

#[derive(Debug)]
struct Registered {
    /// `None`: of device memory, where nobody can write.
    handle: Option<RegistrationHandle>,
    len: u64,
    count: u64,
}

/// What is mapped somewhere.
struct Mapped {
    fd: OwnedFd,
    offset: u64,
}

impl Memory {
    /// Nothing yet, in a folder of the loopback fabric.
    pub fn new(folder: Option<PathBuf>) -> Self {
        let options = LoopbackOptions {
            folder,
            ..LoopbackOptions::default()
        };
        Self {
            loopback: Loopback::open(options).expect("the loopback fabric starts"),
            registered: Mutex::default(),
            slab: AtomicU32::new(0),
        }
    }

    /// Registers it, or counts one more registration.
    pub fn register(&self, address: usize, len: u64, is_of_a_device: bool) -> Result<(), Refused> {
        let mut registered = self.registered.lock().expect("no panic");
        if let Some(known) = registered.get_mut(&address) {
            if len > known.len {
                return Err(Refused::Pinned(known.len));
            }
            known.count += 1;
            return Ok(());
        }
        let handle = match is_of_a_device {
            true => None,
            false => Some(self.share(address, len)?),
        };
        let count = 1;
        registered.insert(address, Registered { handle, len, count });
        Ok(())
    }

    /// Registers it, if it is not registered.
    pub fn register_once(&self, address: usize, len: u64) -> Result<(), Refused> {
        let registered = self.registered.lock().expect("no panic");
        if let Some(known) = registered.get(&address) {
            return Err(Refused::Pinned(known.len));
        }
        drop(registered);
        self.register(address, len, false)
    }

    fn share(&self, address: usize, len: u64) -> Result<RegistrationHandle, Refused> {
        let mapped = mapped(address as u64, len).ok_or(Refused::Fault)?;
        let segment = Segment {
            slab: SlabId(self.slab.fetch_add(1, Ordering::Relaxed)),
            index: 0,
            memory: Kind::Host,
            address: address as u64,
            len,
            fd: Some(mapped.fd.as_fd()),
            fd_offset: mapped.offset,
            slab_len: mapped.offset + len,
            cuda: None,
        };
        self.loopback.register(segment).map_err(|_| Refused::Fault)
    }

    /// Ends a registration; the last one waits until nobody writes any more.
    pub fn deregister(&self, address: usize) -> Result<(), Refused> {
        let mut registered = self.registered.lock().expect("no panic");
        let known = registered.get_mut(&address).ok_or(Refused::Unknown)?;
        known.count -= 1;
        if known.count > 0 {
            return Ok(());
        }
        let handle = registered.remove(&address).and_then(|known| known.handle);
        drop(registered);
        let revoked = handle.map(|handle| self.loopback.revoke(handle, REVOKE));
        revoked.transpose().map_err(|_| Refused::Unconfirmed)?;
        Ok(())
    }

    /// The text of a token for a window.
    pub fn token(&self, address: usize, len: u64, offset: u64) -> Result<String, Refused> {
        let registered = self.registered.lock().expect("no panic");
        let known = registered.get(&address).ok_or(Refused::Unknown)?;
        let end = offset.checked_add(len).filter(|end| *end <= known.len);
        end.ok_or(Refused::Outside(known.len))?;
        let handle = known.handle.ok_or(Refused::Unknown)?;
        let token = self.loopback.token(handle, address as u64 + offset, len);
        token
            .map(|token| token.encode())
            .map_err(|_| Refused::Outside(known.len))
    }
}

/// The file that is mapped at an address, and a descriptor of it.
fn mapped(address: u64, len: u64) -> Option<Mapped> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let line = maps.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        let (start, end) = (number(start)?, number(end)?);
        let offset = number(words.nth(1)?)?;
        let (_, inode) = (words.next()?, words.next()?.parse::<u64>().ok()?);
        let inside = start <= address && address.checked_add(len)? <= end;
        (inside && inode != 0).then(|| (inode, offset + (address - start)))
    });
    let (inode, offset) = line?;
    let mut descriptors = fs::read_dir("/proc/self/fd").ok()?.flatten();
    let fd = descriptors.find_map(|entry| {
        let of_memory = fs::read_link(entry.path()).ok()?;
        let is_memfd = of_memory.to_string_lossy().starts_with("/memfd:");
        let found = fs::metadata(entry.path()).ok()?;
        let number: i32 = entry.file_name().to_str()?.parse().ok()?;
        (is_memfd && found.st_ino() == inode).then_some(number)
    })?;
    // SAFETY: a number that was open just now is duplicated; the copy is owned.
    let fd = unsafe {
        match libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) {
            -1 => return None,
            copy => OwnedFd::from_raw_fd(copy),
        }
    };
    Some(Mapped { fd, offset })
}
