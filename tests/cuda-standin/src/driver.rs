//! What one process has of the driver.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::process;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::codes::{Answer, Code, INVALID_DEVICE};
use crate::context::{Context, Primary};
use crate::event::Event;
use crate::host::Pinned;
use crate::in_use::InUse;
use crate::settings::Settings;
use crate::space::Space;
use crate::stream::Stream;
use crate::vmm::Handle;

pub struct Driver {
    pub pid: u32,
    pub settings: &'static Settings,
    pub devices: Vec<Device>,
    pub in_use: InUse,
    /// Device addresses.
    pub space: Mutex<Space>,
    /// What `cuMemCreate` made.
    pub handles: Mutex<HashMap<u64, Handle>>,
    /// Pinned host memory by its address.
    pub pinned: Mutex<BTreeMap<u64, Pinned>>,
    /// By handle; the default stream of a context has that context's. Held while work is queued: what was queued
    /// first is known.
    pub streams: Mutex<HashMap<u64, Arc<Stream>>>,
    pub events: Mutex<HashMap<u64, Arc<Event>>>,
    next: AtomicU64,
}

/// A GPU as this process sees it.
pub struct Device {
    /// Its place in the host.
    pub gpu: usize,
    pub primary: Mutex<Primary>,
    pub peers: Mutex<HashSet<usize>>,
    /// The error that it failed with for good, or 0.
    failed: AtomicU32,
}

impl Driver {
    pub fn new(settings: &'static Settings) -> Result<Self, String> {
        let device = |gpu: &usize| Device {
            gpu: *gpu,
            primary: Mutex::default(),
            peers: Mutex::default(),
            failed: AtomicU32::new(0),
        };
        Ok(Self {
            pid: process::id(),
            settings,
            devices: settings.visible.iter().map(device).collect(),
            in_use: InUse::new(settings.state.as_deref())?,
            space: Mutex::default(),
            handles: Mutex::default(),
            pinned: Mutex::default(),
            streams: Mutex::default(),
            events: Mutex::default(),
            next: AtomicU64::new(0x5a_0000),
        })
    }

    /// A handle that none was before.
    pub fn unique(&self) -> u64 {
        self.next.fetch_add(0x10, Ordering::Relaxed)
    }

    pub fn device(&self, ordinal: i32) -> Answer<&Device> {
        Ok(&self.devices[self.ordinal(ordinal)?])
    }

    pub fn ordinal(&self, ordinal: i32) -> Answer<usize> {
        let ordinal = usize::try_from(ordinal).map_err(|_| INVALID_DEVICE)?;
        let known = ordinal < self.devices.len();
        known.then_some(ordinal).ok_or(INVALID_DEVICE)
    }

    /// The device that is a GPU of the host, if this process sees it.
    pub fn device_of(&self, gpu: usize) -> Option<usize> {
        self.devices.iter().position(|device| device.gpu == gpu)
    }

    /// Fails as a device that failed does.
    pub fn sound(&self, device: usize) -> Answer {
        match self.devices[device].failed.load(Ordering::Acquire) {
            0 => Ok(()),
            code => Err(Code(code)),
        }
    }

    /// Remembers an error, if it is one that a device never recovers from.
    pub fn fail(&self, device: usize, code: Code) {
        if code.sticks() {
            let failed = &self.devices[device].failed;
            let _ = failed.compare_exchange(0, code.0, Ordering::AcqRel, Ordering::Acquire);
        }
    }

    /// The context that is alive under a handle.
    pub fn context(&self, handle: u64) -> Option<Arc<Context>> {
        let primaries = self.devices.iter().map(|device| lock(&device.primary));
        let mut alive = primaries.filter_map(|primary| primary.context.clone());
        alive.find(|context| context.handle == handle)
    }
}

/// What a lock guards is whole between any two calls: a call that ended early left nothing half done.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
