//! Pinned host memory.

use std::ffi::c_void;
use std::fs;
use std::ptr::{null_mut, without_provenance_mut};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::abi::Out;
use crate::codes::{
    Answer, HOST_MEMORY_ALREADY_REGISTERED, HOST_MEMORY_NOT_REGISTERED, INVALID_VALUE,
    NOT_PERMITTED, OUT_OF_MEMORY,
};
use crate::driver::{Driver, lock};
use crate::gate::in_context;

pub struct Pinned {
    pub start: u64,
    pub len: u64,
    pub flags: u32,
    /// The context that it was pinned in.
    pub context: u64,
    pub id: u64,
    /// The memory itself, where this library made it.
    made: Option<Made>,
}

impl Pinned {
    fn end(&self) -> u64 {
        self.start + self.len
    }
}

/// Memory that ends with this.
struct Made(*mut c_void, usize);

// SAFETY: it is only freed, and only once.
unsafe impl Send for Made {}

impl Drop for Made {
    fn drop(&mut self) {
        // SAFETY: mapped in `cuMemHostAlloc`; the caller gave it up.
        let _ = unsafe { munmap(self.0, self.1) };
    }
}

/// How much of a range of host memory is pinned.
#[derive(Debug, PartialEq, Eq)]
pub enum Cover {
    All,
    None,
    /// Not all, or by more than one call: the driver copies no such range.
    Part,
}

pub fn cover(driver: &Driver, start: u64, len: u64) -> Cover {
    let pinned = lock(&driver.pinned);
    let end = start.saturating_add(len);
    let last = pinned.range(..end).next_back();
    match last.filter(|(_, last)| last.end() > start) {
        None => Cover::None,
        Some((_, last)) if last.start <= start && end <= last.end() => Cover::All,
        Some(_) => Cover::Part,
    }
}

/// Flags of both calls but the ones below: portable, mapped.
const ORDINARY: u32 = 0x3;
const WRITE_COMBINED: u32 = 0x4;
const IO_MEMORY: u32 = 0x4;
const READ_ONLY: u32 = 0x8;

#[unsafe(no_mangle)]
extern "C" fn cuMemHostAlloc(at: Out<*mut c_void>, size: usize, flags: u32) -> u32 {
    in_context("cuMemHostAlloc", |driver, context| {
        at.check()?;
        if size == 0 || flags & !(ORDINARY | WRITE_COMBINED) != 0 {
            return Err(INVALID_VALUE);
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, where nothing is.
        let made = unsafe { mmap_anonymous(null_mut(), size, access, MapFlags::PRIVATE) };
        let made = made.map_err(|_| OUT_OF_MEMORY)?;
        at.set(made)?;
        let start = made.addr() as u64;
        let pinned = Pinned {
            start,
            len: size as u64,
            flags,
            context: context.handle,
            id: driver.unique(),
            made: Some(Made(made, size)),
        };
        lock(&driver.pinned).insert(start, pinned);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFreeHost(at: u64) -> u32 {
    in_context("cuMemFreeHost", |driver, _| {
        let mut pinned = lock(&driver.pinned);
        let made = pinned.get(&at).is_some_and(|pinned| pinned.made.is_some());
        if !made {
            return Err(INVALID_VALUE);
        }
        pinned.remove(&at);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostRegister_v2(at: u64, size: usize, flags: u32) -> u32 {
    in_context("cuMemHostRegister_v2", |driver, context| {
        let len = size as u64;
        let end = at
            .checked_add(len)
            .filter(|_| at > 0 && len > 0)
            .ok_or(INVALID_VALUE)?;
        if flags & IO_MEMORY != 0 {
            return Err(NOT_PERMITTED);
        }
        if flags & !(ORDINARY | READ_ONLY) != 0 {
            return Err(INVALID_VALUE);
        }
        if cover(driver, at, len) != Cover::None {
            return Err(HOST_MEMORY_ALREADY_REGISTERED);
        }
        can_be_pinned(at, end, flags & READ_ONLY == 0)?;
        let (context, id) = (context.handle, driver.unique());
        let pinned = Pinned {
            start: at,
            len,
            flags,
            context,
            id,
            made: None,
        };
        lock(&driver.pinned).insert(at, pinned);
        Ok(())
    })
}

/// All of it must be there, and writable unless the caller says that nobody will write.
fn can_be_pinned(start: u64, end: u64, write: bool) -> Answer {
    let maps = fs::read_to_string("/proc/self/maps").map_err(|_| INVALID_VALUE)?;
    let mut at = start;
    for (from, to, rights) in maps.lines().filter_map(mapping) {
        if to <= at {
            continue;
        }
        let usable = rights.starts_with('r') && (!write || rights[1..].starts_with('w'));
        if from > at || !usable {
            break;
        }
        at = to;
        if at >= end {
            return Ok(());
        }
    }
    Err(INVALID_VALUE)
}

/// A line of the kernel's list.
fn mapping(line: &str) -> Option<(u64, u64, &str)> {
    let (range, rest) = line.split_once(' ')?;
    let (from, to) = range.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    Some((number(from)?, number(to)?, rest))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostUnregister(at: u64) -> u32 {
    in_context("cuMemHostUnregister", |driver, _| {
        let mut pinned = lock(&driver.pinned);
        match pinned.get(&at) {
            None => Err(HOST_MEMORY_NOT_REGISTERED),
            Some(Pinned { made: Some(_), .. }) => Err(INVALID_VALUE),
            Some(_) => {
                pinned.remove(&at);
                Ok(())
            }
        }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostGetFlags(flags: Out<u32>, at: u64) -> u32 {
    in_context("cuMemHostGetFlags", |driver, _| {
        let pinned = lock(&driver.pinned);
        flags.set(pinned.get(&at).ok_or(INVALID_VALUE)?.flags)
    })
}

/// A host address as a pointer: what a caller handed over as one.
pub fn pointer(address: u64) -> *mut u8 {
    without_provenance_mut(address as usize)
}
