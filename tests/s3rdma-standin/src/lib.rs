//! A stand-in for MinIO's `libs3rdma.so.0`, version 0.3.0: the same symbols, the same words, over the loopback fabric.
//! What can be asked of it is said in `fabric_standin`; the functions are `version`, `check_rdma`, `client_init`,
//! `client_free`, `ready`, `nic_count`, `healthy_nic_count`, `register`, `deregister`, `get_token`, `free_token`,
//! `report_token_failure`, `memory_type` and `last_error`.
//!
//! Handles are numbers that are given out once. Errors are texts of the thread that was told them.

mod device_memory;

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use fabric_standin::{Copied, Memory, Refused, Settings, What};

/// A copy of the stand-in for a test.
pub fn copied(folder: &std::path::Path) -> Copied {
    Copied::of("s3rdma_standin", folder)
}

const LIMIT: u64 = u32::MAX as u64;
const NO_DEVICE: &str = "context error: failed to open device: failed to get device list (is rdma-core installed? is ib_uverbs loaded?)";

struct Client {
    devices: Vec<String>,
    memory: Memory,
    tokens: Mutex<HashSet<String>>,
}

#[derive(Default)]
struct State {
    clients: HashMap<usize, Arc<Client>>,
    given_out: usize,
}

thread_local! {
    static LAST: RefCell<String> = const { RefCell::new(String::new()) };
}

fn settings() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| Settings::of(settings as *const c_void))
}

fn state() -> MutexGuard<'static, State> {
    static STATE: OnceLock<Mutex<State>> = OnceLock::new();
    let state = STATE.get_or_init(Mutex::default);
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says why a call fails, to the thread that made it.
fn fail(text: impl Into<String>) -> c_int {
    LAST.set(text.into());
    -1
}

/// The client of a handle, and the device that it has.
fn client(handle: *mut c_void) -> Result<(Arc<Client>, String), c_int> {
    let found = state().clients.get(&(handle as usize)).cloned();
    let found = found.ok_or_else(|| fail(format!("{handle:p} is not a live client handle")))?;
    let device = found.devices.join("+");
    Ok((found, device))
}

/// A call of a client: what it does instead, if anything.
fn called(function: &str, handle: *mut c_void) -> Result<(Arc<Client>, Option<What>), c_int> {
    let (client, device) = client(handle)?;
    Ok((client, settings().called(function, &device)))
}

/// How a planted failure is told: `words` are the library's.
fn planted(what: What, words: impl FnOnce() -> String) -> c_int {
    match what {
        What::Silent => fail(""),
        What::Code(errno) => {
            let cause = std::io::Error::from_raw_os_error(errno);
            fail(format!("{}: {cause}", words()))
        }
        What::Endless => fail("x".repeat(1 << 20)),
        _ => fail(words()),
    }
}

/// Copies a text into a caller's buffer.
///
/// # Safety
///
/// `to` is null, or can be written for `len` bytes.
unsafe fn write(text: &str, to: *mut c_char, len: usize) -> usize {
    if to.is_null() || len == 0 {
        return 0;
    }
    let count = text.len().min(len - 1);
    // SAFETY: fewer bytes than the caller says there are.
    unsafe {
        to.cast::<u8>().copy_from(text.as_ptr(), count);
        to.add(count).write(0);
    }
    count
}

/// The library's version.
#[unsafe(no_mangle)]
pub extern "C" fn s3rdma_version() -> *const c_char {
    match settings().called("version", "") {
        Some(What::Endless) => {
            static LONG: OnceLock<CString> = OnceLock::new();
            LONG.get_or_init(|| CString::new("9".repeat(4096)).expect("no NUL"))
                .as_ptr()
        }
        Some(_) => c"\xff\x1b[2Jnonsense".as_ptr(),
        None => c"0.3.0".as_ptr(),
    }
}

/// Whether there is a device.
///
/// # Safety
///
/// `text` is null, or can be written for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn s3rdma_check_rdma(text: *mut c_char, len: usize) -> c_int {
    if let Some(what) = settings().called("check_rdma", "") {
        planted(what, || NO_DEVICE.to_owned());
        // SAFETY: the caller's promise.
        LAST.with_borrow(|last| unsafe { write(last, text, len) });
        return 0;
    }
    1
}

/// A client on a device, on several, or on all.
///
/// # Safety
///
/// `device` is null or a C string; `text` is null, or can be written for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn s3rdma_client_init(
    device: *const c_char,
    text: *mut c_char,
    len: usize,
) -> *mut c_void {
    let asked = match device.is_null() {
        true => String::new(),
        // SAFETY: the caller's promise.
        false => unsafe { CStr::from_ptr(device) }
            .to_string_lossy()
            .into_owned(),
    };
    match init(&asked) {
        Ok(handle) => handle as *mut c_void,
        Err(_) => {
            // SAFETY: the caller's promise.
            LAST.with_borrow(|last| unsafe { write(last, text, len) });
            std::ptr::null_mut()
        }
    }
}

fn init(asked: &str) -> Result<usize, c_int> {
    let settings = settings();
    if let Some(what) = settings.called("client_init", asked) {
        return Err(planted(what, || {
            "s3rdma_client_init failed: no RDMA device with an ACTIVE port".to_owned()
        }));
    }
    let mut devices = Vec::new();
    for asked in asked.split(',').filter(|one| !one.is_empty()) {
        let is_asked = |(name, address): &&(String, Option<String>)| {
            name == asked || address.as_deref() == Some(asked)
        };
        let Some((name, _)) = settings.devices.iter().find(is_asked) else {
            let text = match asked.parse::<std::net::IpAddr>() {
                Ok(_) => format!(
                    "no RDMA device found for IP {asked}: no GID matches it and no device's network interface is configured with it"
                ),
                Err(_) => NO_DEVICE.to_owned(),
            };
            return Err(fail(text));
        };
        devices.push(name.clone());
    }
    if devices.is_empty() {
        devices = settings
            .devices
            .iter()
            .map(|(name, _)| name.clone())
            .collect();
    }
    let client = Client {
        devices,
        memory: Memory::new(settings.loopback.clone()),
        tokens: Mutex::default(),
    };
    let mut state = state();
    state.given_out += 1;
    let handle = 0x1000 + state.given_out;
    state.clients.insert(handle, Arc::new(client));
    Ok(handle)
}

/// Ends a client.
#[unsafe(no_mangle)]
pub extern "C" fn s3rdma_client_free(handle: *mut c_void) {
    if called("client_free", handle).is_ok() {
        let ended = state().clients.remove(&(handle as usize));
        drop(ended);
    }
}

/// Whether a client has a device that works.
#[unsafe(no_mangle)]
pub extern "C" fn s3rdma_client_ready(handle: *mut c_void) -> c_int {
    c_int::from(s3rdma_client_healthy_nic_count(handle) > 0)
}

/// How many devices a client has.
#[unsafe(no_mangle)]
pub extern "C" fn s3rdma_client_nic_count(handle: *mut c_void) -> c_int {
    match called("nic_count", handle) {
        Ok((_, Some(What::Code(count)))) => count,
        Ok((client, _)) => client.devices.len() as c_int,
        Err(_) => 0,
    }
}

/// How many of them it thinks healthy.
#[unsafe(no_mangle)]
pub extern "C" fn s3rdma_client_healthy_nic_count(handle: *mut c_void) -> c_int {
    match called("healthy_nic_count", handle) {
        Ok((_, Some(What::Code(count)))) => count,
        Ok((client, _)) => client.devices.len() as c_int,
        Err(_) => 0,
    }
}

/// Registers memory.
#[unsafe(no_mangle)]
pub extern "C" fn s3rdma_client_register(
    handle: *mut c_void,
    address: *mut c_void,
    len: usize,
) -> c_int {
    let (client, met) = match called("register", handle) {
        Ok(called) => called,
        Err(code) => return code,
    };
    let words = || format!("no rail could register {address:p} for {len} bytes");
    if let Some(what) = met {
        return planted(what, words);
    }
    if address.is_null() || len == 0 {
        return fail("pin requires a non-null pointer and a non-zero size");
    }
    let is_of_a_device = device_memory::is_at(address as usize);
    if is_of_a_device && !settings().peermem {
        return fail(words());
    }
    match client
        .memory
        .register(address as usize, len as u64, is_of_a_device)
    {
        Ok(()) => 0,
        Err(Refused::Pinned(pinned)) => fail(format!(
            "address {address:p} is already pinned for {pinned} bytes, which does not cover the {len} bytes now requested"
        )),
        Err(_) => fail(words()),
    }
}

/// Ends a registration.
#[unsafe(no_mangle)]
pub extern "C" fn s3rdma_client_deregister(handle: *mut c_void, address: *mut c_void) -> c_int {
    let (client, met) = match called("deregister", handle) {
        Ok(called) => called,
        Err(code) => return code,
    };
    let words = || format!("address {address:p} is not registered");
    if let Some(what) = met {
        return planted(what, words);
    }
    match client.memory.deregister(address as usize) {
        Ok(()) => 0,
        Err(_) => fail(words()),
    }
}

/// Names a window.
///
/// # Safety
///
/// `token` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn s3rdma_client_get_token(
    handle: *mut c_void,
    address: *mut c_void,
    len: usize,
    offset: usize,
    token: *mut *mut c_char,
) -> c_int {
    let (client, met) = match called("get_token", handle) {
        Ok(called) => called,
        Err(code) => return code,
    };
    let text = match met {
        Some(What::Garbage) => "not:a\x1btoken".to_owned(),
        Some(What::Endless) => "7".repeat(1024),
        Some(what) => {
            return planted(what, || {
                format!("no usable rail has {address:p} registered")
            });
        }
        None if len as u64 > LIMIT => {
            return fail(format!(
                "transfer size {len} exceeds the {LIMIT} bytes an RDMA descriptor can express; split the transfer into ranged reads"
            ));
        }
        None => match client
            .memory
            .token(address as usize, len as u64, offset as u64)
        {
            Ok(text) => text,
            Err(Refused::Outside(registered)) => {
                return fail(format!(
                    "window at offset {offset} for {len} bytes does not fit the {registered}-byte registered buffer"
                ));
            }
            Err(_) => return fail(format!("address {address:p} is not registered")),
        },
    };
    client
        .tokens
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .insert(text.clone());
    let text = CString::new(text).expect("no NUL in a token");
    // SAFETY: the caller's promise.
    unsafe { token.write(text.into_raw()) };
    0
}

/// Frees the text of a token.
///
/// # Safety
///
/// It is one of `s3rdma_client_get_token`, and not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn s3rdma_client_free_token(token: *mut c_char) {
    settings().called("free_token", "");
    if !token.is_null() {
        // SAFETY: the caller's promise.
        drop(unsafe { CString::from_raw(token) });
    }
}

/// Hears that a transfer has failed.
///
/// # Safety
///
/// `token` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn s3rdma_client_report_token_failure(
    handle: *mut c_void,
    token: *const c_char,
) -> c_int {
    let (client, met) = match called("report_token_failure", handle) {
        Ok(called) => called,
        Err(code) => return code,
    };
    let words = || "no rail of this client minted that token".to_owned();
    if let Some(what) = met {
        return planted(what, words);
    }
    // SAFETY: the caller's promise.
    let token = unsafe { CStr::from_ptr(token) }.to_string_lossy();
    let tokens = client.tokens.lock().unwrap_or_else(PoisonError::into_inner);
    match tokens.contains(&*token) {
        true => 0,
        false => fail(words()),
    }
}

/// What kind of memory is somewhere: 0 the system's, 2 a device's.
#[unsafe(no_mangle)]
pub extern "C" fn s3rdma_client_memory_type(address: *const c_void) -> c_int {
    match device_memory::is_at(address as usize) {
        true => 2,
        false => 0,
    }
}

/// Why the last call of this thread failed.
///
/// # Safety
///
/// `text` is null, or can be written for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn s3rdma_last_error(text: *mut c_char, len: usize) -> usize {
    // SAFETY: the caller's promise.
    LAST.with_borrow(|last| unsafe { write(last, text, len) })
}
