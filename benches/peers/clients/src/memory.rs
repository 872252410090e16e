//! Where objects are written to: mapped once, in huge pages where the kernel gives them, and touched.

use std::io;
use std::ptr;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

/// Memory of the process's life.
pub fn touched(len: usize) -> io::Result<&'static mut [u8]> {
    // SAFETY: a new mapping at an address that the kernel chooses, which is never unmapped and given out once; zeroed
    // bytes are bytes.
    let memory = unsafe {
        let flags = MapFlags::PRIVATE;
        let at = mmap_anonymous(
            ptr::null_mut(),
            len,
            ProtFlags::READ | ProtFlags::WRITE,
            flags,
        )?;
        // Where there are none, small pages do.
        let _ = madvise(at, len, Advice::LinuxHugepage);
        std::slice::from_raw_parts_mut(at.cast::<u8>(), len)
    };
    memory.fill(1);
    Ok(memory)
}
