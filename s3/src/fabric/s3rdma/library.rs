//! The C ABI of `libs3rdma.so.0`, loaded at run time.
//!
//! All unsafe code of the fabric is here. What it relies on is the library's public header: handles are numbers that are
//! checked by the library, texts are copied into buffers whose length is told, and errors are texts of the calling
//! thread, so that they are read at once where a call has failed.
#![expect(unsafe_code, reason = "calls into a C library")]

use std::ffi::{CString, OsStr, c_char, c_int, c_void};
use std::fmt;
use std::path::Path;
use std::ptr;

use libloading::os::unix::{Library as Loaded, RTLD_LOCAL, RTLD_NOW};

use crate::fabric::OpenError;
use crate::fabric::text::shown;

/// Its name where no path is given.
pub(super) const NAME: &str = "libs3rdma.so.0";
/// The first version whose ABI is this one, and the first that may have another.
const VERSIONS: (Version, Version) = ((0, 3, 0), (1, 0, 0));
/// Texts of errors are cut here.
const TEXT: usize = 1024;

type Version = (u32, u32, u32);

type Init = unsafe extern "C" fn(*const c_char, *mut c_char, usize) -> *mut c_void;
type OfHandle = unsafe extern "C" fn(*mut c_void) -> c_int;
type Free = unsafe extern "C" fn(*mut c_void);
type Register = unsafe extern "C" fn(*mut c_void, *mut c_void, usize) -> c_int;
type Deregister = unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int;
type GetToken =
    unsafe extern "C" fn(*mut c_void, *mut c_void, usize, usize, *mut *mut c_char) -> c_int;
type FreeToken = unsafe extern "C" fn(*mut c_char);
type Report = unsafe extern "C" fn(*mut c_void, *const c_char) -> c_int;
type LastError = unsafe extern "C" fn(*mut c_char, usize) -> usize;

/// The library, loaded for good: it has threads and exit handlers of its own.
pub(super) struct Library {
    version: String,
    init: Init,
    free: Free,
    healthy: OfHandle,
    register: Register,
    deregister: Deregister,
    get_token: GetToken,
    free_token: FreeToken,
    report: Report,
    last_error: LastError,
}

/// A client of the library: a number that it gives out once.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Client(usize);

impl Library {
    /// Loads it from a path, or by its name.
    pub(super) fn load(path: Option<&Path>) -> Result<&'static Library, OpenError> {
        let name = path.map_or(OsStr::new(NAME), Path::as_os_str);
        OpenError::unless_a_file(name)?;
        // SAFETY: its initialisers are run; a host that has it installed, or whoever names a path, trusts it.
        let loaded = unsafe { Loaded::open(Some(name), RTLD_NOW | RTLD_LOCAL) };
        let loaded = loaded.map_err(|error| OpenError::not_loaded(name, path.is_some(), &error))?;
        let mut missing = Vec::new();
        let found = Library::of(&loaded, &mut missing);
        // It has threads of its own.
        std::mem::forget(loaded);
        let shown_name = name.display();
        let Some(mut library) = found else {
            return Err(OpenError::Failed {
                text: format!(
                    "{shown_name} lacks {}: it is not libs3rdma, or not of a version that is known here (0.3)",
                    missing.join(", ")
                ),
            });
        };
        let version = &library.version;
        let parsed = parse_version(version);
        let known = parsed.is_some_and(|version| (VERSIONS.0..VERSIONS.1).contains(&version));
        if !known {
            return Err(OpenError::Failed {
                text: format!(
                    "{shown_name} has version {version:?}; versions from 0.3.0 on and below 1.0 are known here"
                ),
            });
        }
        library.version = version.trim().to_owned();
        Ok(Box::leak(Box::new(library)))
    }

    fn of(loaded: &Loaded, missing: &mut Vec<&'static str>) -> Option<Library> {
        // What names are missing is wanted of all of them.
        let version: Option<unsafe extern "C" fn() -> *const c_char> =
            symbol(loaded, "s3rdma_version", missing);
        let init = symbol(loaded, "s3rdma_client_init", missing);
        let free = symbol(loaded, "s3rdma_client_free", missing);
        let healthy = symbol(loaded, "s3rdma_client_healthy_nic_count", missing);
        let register = symbol(loaded, "s3rdma_client_register", missing);
        let deregister = symbol(loaded, "s3rdma_client_deregister", missing);
        let get_token = symbol(loaded, "s3rdma_client_get_token", missing);
        let free_token = symbol(loaded, "s3rdma_client_free_token", missing);
        let report = symbol(loaded, "s3rdma_client_report_token_failure", missing);
        let last_error = symbol(loaded, "s3rdma_last_error", missing);
        // SAFETY: it takes nothing and returns a static text.
        let version = unsafe { version?() };
        Some(Library {
            version: text_at(version, 64).unwrap_or_default(),
            init: init?,
            free: free?,
            healthy: healthy?,
            register: register?,
            deregister: deregister?,
            get_token: get_token?,
            free_token: free_token?,
            report: report?,
            last_error: last_error?,
        })
    }

    pub(super) fn version(&self) -> &str {
        &self.version
    }

    /// A client on one device, or on what the library chooses.
    pub(super) fn init(&self, device: Option<&str>) -> Result<Client, String> {
        let device = device.map(CString::new).transpose();
        let device = device.map_err(|_| "a device's name holds a NUL".to_owned())?;
        let mut text = [0u8; TEXT];
        let name = device.as_ref().map_or(ptr::null(), |name| name.as_ptr());
        // SAFETY: the name is a C string or null, and at most so many bytes of text are written.
        let handle = unsafe { (self.init)(name, text.as_mut_ptr().cast(), text.len()) };
        if handle.is_null() {
            return Err(self.said(&text));
        }
        Ok(Client(handle as usize))
    }

    /// Ends a client.
    pub(super) fn free(&self, client: Client) {
        // SAFETY: a handle that is none any more is refused.
        unsafe { (self.free)(client.handle()) }
    }

    /// How many devices of a client it thinks healthy.
    pub(super) fn healthy(&self, client: Client) -> i32 {
        // SAFETY: as above.
        unsafe { (self.healthy)(client.handle()) }
    }

    /// Registers memory, which must stay mapped until it is deregistered, as slabs do.
    pub(super) fn register(&self, client: Client, address: u64, len: u64) -> Result<(), String> {
        // SAFETY: the memory is pinned, not read or written; the handle is checked.
        let code = unsafe { (self.register)(client.handle(), pointer(address), len as usize) };
        self.result(code)
    }

    /// Ends a registration: when it returns, no write lands any more.
    pub(super) fn deregister(&self, client: Client, address: u64) -> Result<(), String> {
        // SAFETY: an address that is not registered is refused.
        let code = unsafe { (self.deregister)(client.handle(), pointer(address)) };
        self.result(code)
    }

    /// The text of a token for so many bytes at an offset in registered memory.
    pub(super) fn token(
        &self,
        client: Client,
        address: u64,
        len: u64,
        offset: u64,
    ) -> Result<String, String> {
        let mut token: *mut c_char = ptr::null_mut();
        // SAFETY: the window is checked by the library; it writes one pointer.
        let code = unsafe {
            (self.get_token)(
                client.handle(),
                pointer(address),
                len as usize,
                offset as usize,
                &raw mut token,
            )
        };
        self.result(code)?;
        let text = text_at(token, 128).ok_or("success without a token")?;
        // SAFETY: it is the library's, and not used any more.
        unsafe { (self.free_token)(token) };
        Ok(text)
    }

    /// Tells that a transfer by this token has failed.
    pub(super) fn report(&self, client: Client, token: &str) -> Result<(), String> {
        let token = CString::new(token).map_err(|_| "a token holds a NUL".to_owned())?;
        // SAFETY: a C string, which is compared with tokens that were given out.
        let code = unsafe { (self.report)(client.handle(), token.as_ptr()) };
        self.result(code)
    }

    fn result(&self, code: c_int) -> Result<(), String> {
        match code {
            0 => Ok(()),
            _ => Err(self.said(&[])),
        }
    }

    /// What was written to the caller's buffer, else the error of this thread.
    fn said(&self, text: &[u8]) -> String {
        let told = until_nul(text);
        if !told.is_empty() {
            return shown(told);
        }
        let mut text = [0u8; TEXT];
        // SAFETY: it writes at most so many bytes of text.
        unsafe { (self.last_error)(text.as_mut_ptr().cast(), text.len()) };
        match until_nul(&text) {
            [] => "the library gave no reason".to_owned(),
            told => shown(told),
        }
    }
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "libs3rdma {}", self.version)
    }
}

impl Client {
    fn handle(self) -> *mut c_void {
        ptr::without_provenance_mut(self.0)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("client")
    }
}

/// Memory of a slab, whose provenance its mapping has exposed.
fn pointer(address: u64) -> *mut c_void {
    ptr::with_exposed_provenance_mut(address as usize)
}

fn symbol<T: Copy>(
    loaded: &Loaded,
    name: &'static str,
    missing: &mut Vec<&'static str>,
) -> Option<T> {
    // SAFETY: the type is the header's of this name.
    let found = unsafe { loaded.get::<T>(name) };
    match found {
        Ok(symbol) => Some(*symbol),
        Err(_) => {
            missing.push(name);
            None
        }
    }
}

/// A text that ends within so many bytes.
fn text_at(text: *const c_char, most: usize) -> Option<String> {
    if text.is_null() {
        return None;
    }
    let mut bytes = Vec::with_capacity(most);
    for at in 0..most {
        // SAFETY: a C string is read up to its end, and none is longer than this by far.
        let byte = unsafe { text.add(at).read() };
        if byte == 0 {
            break;
        }
        bytes.push(byte as u8);
    }
    Some(shown(&bytes))
}

fn until_nul(text: &[u8]) -> &[u8] {
    let end = text.iter().position(|&byte| byte == 0);
    &text[..end.unwrap_or(text.len())]
}

fn parse_version(text: &str) -> Option<Version> {
    let mut numbers = text.trim().splitn(3, '.');
    let mut next = || numbers.next()?.parse().ok();
    let (major, minor) = (next()?, next()?);
    // Of "0-rc1" the number counts.
    let patch = numbers.next()?;
    let digits = patch.bytes().take_while(u8::is_ascii_digit).count();
    Some((major, minor, patch[..digits].parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_and_garbage_is_none() {
        assert_eq!(parse_version("0.3.0"), Some((0, 3, 0)));
        assert_eq!(parse_version("0.12.1-rc1\n"), Some((0, 12, 1)));
        for text in ["", "0.3", "a.b.c", "0.3.x", "-1.0.0", "99999999999.0.0"] {
            assert_eq!(parse_version(text), None, "{text}");
        }
    }

    #[test]
    fn a_library_that_is_not_here_is_told_from_one_that_is_another() {
        let none = Library::load(Some(Path::new("/nowhere/libs3rdma.so.0"))).unwrap_err();
        assert!(matches!(none, OpenError::Failed { .. }), "{none}");
        let other = Library::load(Some(Path::new("libc.so.6"))).unwrap_err();
        let text = other.to_string();
        assert!(matches!(other, OpenError::Failed { .. }), "{text}");
        assert!(
            text.contains("lacks s3rdma_version, s3rdma_client_init"),
            "{text}"
        );
    }
}
