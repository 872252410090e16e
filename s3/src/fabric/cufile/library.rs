//! The C and C++ ABI of `libcufile.so.0`, loaded at run time: buffers are registered, and windows of them described.
//!
//! All unsafe code of the fabric is here. The descriptor calls are not declared in the public header; they are those
//! that `libcuobjclient` makes.
#![expect(unsafe_code, reason = "calls into a C library")]

use std::ffi::{OsStr, c_char, c_int, c_void};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::ptr;

use libloading::os::unix::{Library as Loaded, RTLD_GLOBAL, RTLD_NOW};

use super::code::Code;
use crate::fabric::OpenError;
use crate::fabric::text::shown;

/// Its name where no path is given.
pub(super) const NAME: &str = "libcufile.so.0";
const DESCRIBE: &str = "_Z20cuFileRDMADescStrGetPKvmm12CUfileOpcodePPc";
const FORGET: &str = "_Z20cuFileRDMADescStrPutPc";
/// `CUFILE_READ`: the server's data comes here.
const READ: c_int = 0;
/// As `libcuobjclient` registers: for remote access.
const FLAGS: c_int = 0x11;
/// A descriptor has 81 characters; one that is longer is none.
const TEXT: usize = 128;

/// How its functions return.
#[repr(C)]
#[derive(Clone, Copy)]
struct Status {
    code: c_int,
    /// Of the CUDA driver, where the code says so.
    cuda: c_int,
}

type Register = unsafe extern "C" fn(*const c_void, usize, c_int) -> Status;
type Deregister = unsafe extern "C" fn(*const c_void) -> Status;
type Version = unsafe extern "C" fn(*mut c_int) -> Status;
type Describe =
    unsafe extern "C" fn(*const c_void, usize, usize, c_int, *mut *mut c_char) -> Status;
type Forget = unsafe extern "C" fn(*mut c_char) -> Status;

/// The library, loaded for good: it has threads and exit handlers of its own.
pub(super) struct Library {
    version: i32,
    register: Register,
    deregister: Deregister,
    describe: Describe,
    forget: Forget,
}

impl Library {
    /// Loads it from a path, or by its name.
    pub(super) fn load(path: Option<&Path>) -> Result<&'static Library, OpenError> {
        let name = path.map_or(OsStr::new(NAME), Path::as_os_str);
        OpenError::unless_a_file(name)?;
        // It loads a part of itself by name, which wants its symbols.
        // SAFETY: its initialisers are run; a host that has it installed, or whoever names a path, trusts it.
        let loaded = unsafe { Loaded::open(Some(name), RTLD_NOW | RTLD_GLOBAL) };
        let loaded = loaded.map_err(|error| OpenError::not_loaded(name, path.is_some(), &error))?;
        let library = Library::of(&loaded, &name.display().to_string());
        std::mem::forget(loaded);
        Ok(Box::leak(Box::new(library?)))
    }

    fn of(loaded: &Loaded, name: &str) -> Result<Library, OpenError> {
        let mut missing = Vec::new();
        let version: Option<Version> = symbol(loaded, "cuFileGetVersion", &mut missing);
        let register = symbol(loaded, "cuFileBufRegister", &mut missing);
        let deregister = symbol(loaded, "cuFileBufDeregister", &mut missing);
        let describe = symbol(loaded, DESCRIBE, &mut missing);
        let forget = symbol(loaded, FORGET, &mut missing);
        let version = version.map(|ask| {
            let mut version = 0;
            // SAFETY: it writes one number.
            let status = unsafe { ask(&raw mut version) };
            if status.code == 0 { version } else { 0 }
        });
        if let (Some(version), Some(register), Some(deregister), Some(describe), Some(forget)) =
            (version, register, deregister, describe, forget)
        {
            return Ok(Library {
                version,
                register,
                deregister,
                describe,
                forget,
            });
        }
        Err(OpenError::Failed {
            text: lacking(name, version, register.is_some(), &missing),
        })
    }

    /// As 1180 for 1.18; 0 where it does not say.
    pub(super) fn version(&self) -> i32 {
        self.version
    }

    /// Registers memory, which must stay mapped until it is deregistered, as slabs do.
    pub(super) fn register(&self, address: u64, len: u64) -> Result<(), Code> {
        // SAFETY: the memory is pinned, not read or written.
        Code::check(status(unsafe {
            (self.register)(pointer(address), len as usize, FLAGS)
        }))
    }

    /// Ends a registration: when it returns, no write lands any more.
    pub(super) fn deregister(&self, address: u64) -> Result<(), Code> {
        // SAFETY: an address that is not registered is refused.
        Code::check(status(unsafe { (self.deregister)(pointer(address)) }))
    }

    /// The text that names so many bytes at an offset in registered memory.
    pub(super) fn describe(&self, address: u64, len: u64, offset: u64) -> Result<String, Code> {
        let mut text: *mut c_char = ptr::null_mut();
        // SAFETY: the window is checked by the library; it writes one pointer.
        Code::check(status(unsafe {
            (self.describe)(
                pointer(address),
                len as usize,
                offset as usize,
                READ,
                &raw mut text,
            )
        }))?;
        if text.is_null() {
            return Ok(String::new());
        }
        let mut bytes = Vec::with_capacity(TEXT);
        for at in 0..TEXT {
            // SAFETY: a C string is read up to its end, and none is longer than this by far.
            match unsafe { text.add(at).read() } {
                0 => break,
                byte => bytes.push(byte as u8),
            }
        }
        // SAFETY: it is the library's, and not used any more.
        unsafe { (self.forget)(text) };
        Ok(shown(&bytes))
    }
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "libcufile {}", self.version)
    }
}

fn status(status: Status) -> (i32, i32) {
    (status.code, status.cuda)
}

/// Memory of a slab, whose provenance its mapping has exposed.
fn pointer(address: u64) -> *const c_void {
    ptr::with_exposed_provenance(address as usize)
}

fn symbol<T: Copy>(
    loaded: &Loaded,
    name: &'static str,
    missing: &mut Vec<&'static str>,
) -> Option<T> {
    // SAFETY: the type is that of this name.
    let found = unsafe { loaded.get::<T>(name) };
    match found {
        Ok(symbol) => Some(*symbol),
        Err(_) => {
            missing.push(name);
            None
        }
    }
}

/// What it means that something is missing.
fn lacking(name: &str, version: Option<i32>, is_cufile: bool, missing: &[&str]) -> String {
    let missing = missing.join(", ");
    if !is_cufile {
        return format!("{name} lacks {missing}: it is not libcufile");
    }
    let version = version.map_or("unknown".to_owned(), shown_version);
    let from = loaded_from().map_or(String::new(), |path| format!(" (from {})", path.display()));
    format!(
        "{name}{from} has version {version} and lacks {missing}; RDMA needs cuFile 1.18 or newer. All versions have the name {NAME}, \
         and one that is in the process already is used, for example that of a PyTorch wheel: have the newer one loaded first \
         (LD_PRELOAD), or name it by --cufile-library in a process that has no other"
    )
}

/// 1180 as 1.18.
pub(super) fn shown_version(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// The file that was loaded under that name.
pub(super) fn loaded_from() -> Option<PathBuf> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let path = |line: &str| line.split_once('/').map(|(_, path)| format!("/{path}"));
    let mut paths = maps.lines().filter_map(path);
    paths
        .find(|path| path.contains("cufile"))
        .map(PathBuf::from)
}
