//! Whose something is. After a fork the child has a copy of everything and owns none of it: its copies of
//! locks, slot tables and sockets are the parent's, and the threads that would use them are not there.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering::Acquire, Ordering::Relaxed};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// The process that made something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u32);

impl Process {
    /// The process that runs.
    pub fn current() -> Self {
        let Some(known) = cleared_by_fork() else {
            return Self(std::process::id());
        };
        match known.load(Relaxed) {
            0 => {
                let id = std::process::id();
                known.store(id, Relaxed);
                Self(id)
            }
            id => Self(id),
        }
    }

    /// Whether this process made it. In a forked child: no.
    pub fn is_this(self) -> bool {
        self == Self::current()
    }
}

/// A number that is 0 at first and again in each forked child. It saves a system call several times a GET.
/// `None` where the kernel has no such memory.
fn cleared_by_fork() -> Option<&'static AtomicU32> {
    static PAGE: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());
    let mut page = PAGE.load(Acquire);
    if page.is_null() {
        let new = new_page()?;
        // No lock: a fork while another thread holds it would leave it locked in the child.
        page = match PAGE.compare_exchange(ptr::null_mut(), new, Acquire, Acquire) {
            Ok(_) => new,
            Err(earlier) => {
                // SAFETY: mapped just now, and nobody else knows of it.
                let _ = unsafe { munmap(new.cast(), PAGE_SIZE) };
                earlier
            }
        };
    }
    // SAFETY: the page is aligned, zeroed, holds a number whatever its bits, and is never unmapped once it is in
    // `PAGE`. Clearing happens in the child alone, before its first instruction.
    Some(unsafe { &*page })
}

/// What one number needs at least.
const PAGE_SIZE: usize = 4096;

fn new_page() -> Option<*mut AtomicU32> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: new memory at an address of the kernel's choice.
    let page =
        unsafe { mmap_anonymous(ptr::null_mut(), PAGE_SIZE, access, MapFlags::PRIVATE) }.ok()?;
    // SAFETY: the range is that mapping, which nobody else knows of.
    let advised = unsafe { madvise(page, PAGE_SIZE, Advice::LinuxWipeOnFork) };
    if advised.is_err() {
        // SAFETY: as above.
        let _ = unsafe { munmap(page, PAGE_SIZE) };
        return None;
    }
    Some(page.cast())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_known_process_is_the_one_that_runs_however_many_threads_ask_first() {
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| assert_eq!(Process::current(), Process(std::process::id())));
            }
        });
        assert!(cleared_by_fork().is_some());
        assert!(!Process(0).is_this());
    }
}
