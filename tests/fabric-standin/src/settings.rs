//! What a library is like, and what happens in it.

use std::collections::HashMap;
use std::env;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process;
use std::thread;
use std::time::{Duration, Instant};

use crate::{Fault, What};

/// The longest that anything hangs.
const HOUR: Duration = Duration::from_secs(3600);

/// What the environment, or the file beside a library, asks for.
#[derive(Debug)]
pub struct Settings {
    file: PathBuf,
    /// The folder of the loopback fabric.
    pub loopback: Option<PathBuf>,
    /// Names, and addresses where they have one.
    pub devices: Vec<(String, Option<String>)>,
    /// Whether device memory can be registered.
    pub peermem: bool,
    faults: Vec<Fault>,
    calls: Option<PathBuf>,
}

impl Settings {
    /// Of the library that `of` is part of.
    pub fn of(of: *const libc::c_void) -> Self {
        let file = library(of).with_added_extension("settings");
        let text = fs::read_to_string(&file).unwrap_or_default();
        let lines = text.lines().filter_map(|line| line.split_once('='));
        let said: HashMap<_, _> = lines.collect();
        let value = |name: &str| match said.get(name) {
            Some(value) => Some((*value).to_owned()),
            None => env::var(name).ok(),
        };
        let list = |name: &str| {
            let text = value(name).unwrap_or_default();
            let all = text.split(',').filter(|one| !one.is_empty());
            all.map(str::to_owned).collect::<Vec<_>>()
        };
        let device = |text: &String| match text.split_once('@') {
            Some((name, address)) => (name.to_owned(), Some(address.to_owned())),
            None => (text.clone(), None),
        };
        let mut devices: Vec<_> = list("S3ENGINE_STANDIN_DEVICES")
            .iter()
            .map(device)
            .collect();
        if devices.is_empty() {
            devices.push(("mlx5_0".to_owned(), None));
        }
        let faults = list("S3ENGINE_STANDIN_FABRIC_FAULTS");
        Self {
            loopback: value("S3ENGINE_LOOPBACK_DIR").map(PathBuf::from),
            devices,
            peermem: value("S3ENGINE_STANDIN_PEERMEM").is_some_and(|text| text == "1"),
            // A test with a fault that is none must not pass.
            faults: faults
                .iter()
                .map(|fault| fault.parse().expect("a fault"))
                .collect(),
            calls: value("S3ENGINE_STANDIN_CALLS").map(PathBuf::from),
            file,
        }
    }

    /// Notes a call, and has it be late, or hang. What else it does instead is the caller's to do.
    pub fn called(&self, function: &str, device: &str) -> Option<What> {
        if let Some(path) = &self.calls {
            let line = format!("{:?} {function} {device}\n", thread::current().id());
            let file = OpenOptions::new().create(true).append(true).open(path);
            // One write: lines of several threads stay whole. A test that has ended has taken its folder away.
            let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
        }
        let met = self
            .faults
            .iter()
            .find_map(|fault| fault.meets(function, device))?;
        match met {
            What::Slow(ms) => thread::sleep(Duration::from_millis(ms)),
            What::Hangs => self.hang(),
            What::Exits => process::exit(0),
            What::Aborts => process::abort(),
            other => return Some(other),
        }
        None
    }

    fn hang(&self) {
        let began = Instant::now();
        while self.file.exists() && began.elapsed() < HOUR {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The file of the library that an address is in.
fn library(of: *const libc::c_void) -> PathBuf {
    let mut found = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: any address may be asked about; what it writes is read only where it says that it has.
    let name = unsafe {
        match libc::dladdr(of, found.as_mut_ptr()) {
            0 => return PathBuf::new(),
            _ => std::ffi::CStr::from_ptr((*found.as_ptr()).dli_fname),
        }
    };
    Path::new(&*name.to_string_lossy()).to_owned()
}
