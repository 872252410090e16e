//! What crosses the boundary: pointers that callers hand over, and structures as the driver lays them out.

use std::ffi::{c_char, c_int, c_void};

use crate::codes::{Answer, INVALID_VALUE};

/// Where a caller wants an answer.
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Refuses what points nowhere, before a call has done anything.
    pub fn check(&self) -> Answer {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        Ok(())
    }

    pub fn set(&self, value: T) -> Answer {
        self.check()?;
        // SAFETY: it is not null, and callers of the API promise that it points to room for a `T`.
        unsafe { self.0.write(value) };
        Ok(())
    }
}

impl Out<c_char> {
    /// Writes a text and its end, cut to `len`.
    pub fn text(&self, text: &str, len: c_int) -> Answer {
        self.check()?;
        let room = usize::try_from(len).ok().filter(|room| *room > 0);
        let room = room.ok_or(INVALID_VALUE)?;
        let cut = text.len().min(room - 1);
        // SAFETY: callers promise room for `len` bytes; `cut` and the end fit.
        unsafe {
            self.0.copy_from_nonoverlapping(text.as_ptr().cast(), cut);
            self.0.add(cut).write(0);
        }
        Ok(())
    }
}

impl Out<c_void> {
    /// A place that a caller named within an array.
    pub fn to(place: *mut c_void) -> Self {
        Self(place)
    }

    /// Writes a value whose type another argument says.
    pub fn raw<T>(&self, value: T) -> Answer {
        Out(self.0.cast::<T>()).set(value)
    }
}

/// What a caller wants to be read.
#[repr(transparent)]
pub struct In<T>(*const T);

impl<T: Copy> In<T> {
    pub fn get(&self) -> Answer<T> {
        self.nth(0)
    }

    /// Of an array.
    pub fn nth(&self, index: usize) -> Answer<T> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: it is not null, and callers of the API promise so many values as they say.
        Ok(unsafe { self.0.add(index).read() })
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct Location {
    pub kind: u32,
    pub id: c_int,
}

/// `CU_MEM_LOCATION_TYPE_DEVICE`
pub const ON_DEVICE: u32 = 1;

#[derive(Clone, Copy)]
#[repr(C)]
pub struct AllocationProp {
    pub kind: u32,
    pub handle_types: u32,
    pub location: Location,
    pub windows: *mut c_void,
    pub compression: u8,
    pub gpu_direct_rdma: u8,
    pub usage: u16,
    pub reserved: [u8; 4],
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct AccessDesc {
    pub location: Location,
    pub flags: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct IpcHandle(pub [u8; 64]);

#[derive(Clone, Copy)]
#[repr(C)]
pub struct Uuid(pub [u8; 16]);

const _: () = assert!(size_of::<AllocationProp>() == 32 && size_of::<AccessDesc>() == 12);
