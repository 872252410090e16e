//! Memory of this process that a server writes to.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, SealFlags};
use s3engine_pool::{Mapping, Memory, Registrar, RegistrationHandle, Segment, SlabId};
use s3engine_s3::fabric::loopback::{Loopback, LoopbackOptions};
use s3sim::{Action, Counters, Rule, Sim, SimOptions, content};

use super::{Client, PATIENCE, Reply, options, start};

pub const BASE: u64 = 0x7100_0000_0000;
pub const MEMORY: usize = 4 << 20;
pub const OBJECT: &str = "/bench/3MiB-r";
pub const KEY: &str = "3MiB-r";
pub const SIZE: usize = 3 << 20;

/// A server, and a client with one registration.
pub struct Setup {
    pub sim: Sim,
    pub owner: Loopback,
    pub handle: RegistrationHandle,
    pub memory: Mapping,
    pub fd: OwnedFd,
    folder: tempfile::TempDir,
}

impl Setup {
    pub fn new(rules: impl IntoIterator<Item = Rule>) -> Setup {
        Setup::with(SimOptions {
            faults: rules.into_iter().collect(),
            ..options()
        })
    }

    /// A server whose first answer has that fault.
    pub fn faulty(action: Action) -> Setup {
        Setup::new([Rule::new(action).count(1)])
    }

    pub fn with(options: SimOptions) -> Setup {
        let folder = tempfile::tempdir().unwrap();
        let path = Some(loopback_folder(&folder));
        let owner_options = LoopbackOptions {
            folder: path.clone(),
            ..LoopbackOptions::default()
        };
        let owner = Loopback::open(owner_options).unwrap();
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("test", flags).unwrap();
        rustix::fs::ftruncate(&fd, MEMORY as u64).unwrap();
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).unwrap();
        let memory = Mapping::import(fd.as_fd(), MEMORY as u64).unwrap();
        let handle = owner.register(segment(&fd)).unwrap();
        let sim = start(SimOptions {
            loopback_folder: path,
            ..options
        });
        Setup {
            sim,
            owner,
            handle,
            memory,
            fd,
            folder,
        }
    }

    /// A token of a window of the registration.
    pub fn token(&self, at: usize, len: usize) -> String {
        token(&self.owner, self.handle, at, len)
    }

    /// Where clients of the server have their sockets.
    pub fn folder(&self) -> PathBuf {
        loopback_folder(&self.folder)
    }

    /// The memory, and what is left of the zeros it began with.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; MEMORY];
        self.memory.read(0, &mut bytes).unwrap();
        bytes
    }

    /// A whole GET into the start of the memory.
    pub fn get(&self, headers: &[(&str, &str)]) -> Reply {
        let token = self.token(0, MEMORY);
        let headers = [headers, &[("x-amz-rdma-token", token.as_str())]].concat();
        Client::connect(&self.sim).get(OBJECT, &headers)
    }

    pub fn assert_untouched(&self) {
        assert!(
            self.bytes().iter().all(|&byte| byte == 0),
            "something was written"
        );
    }

    pub fn assert_written(&self) {
        let bytes = self.bytes();
        content::verify(KEY, 0, 0, &bytes[..SIZE]).unwrap();
        assert!(bytes[SIZE..].iter().all(|&byte| byte == 0));
    }

    /// Waits until the counters are as they should be.
    pub fn wait(&self, done: impl Fn(Counters) -> bool) {
        let start = Instant::now();
        while !done(self.sim.counters()) {
            assert!(start.elapsed() < PATIENCE, "{:?}", self.sim.counters());
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

fn loopback_folder(folder: &tempfile::TempDir) -> PathBuf {
    folder.path().join("loopback")
}

/// A token of a window of an owner's registration of the memory.
pub fn token(owner: &Loopback, handle: RegistrationHandle, at: usize, len: usize) -> String {
    let token = owner.token(handle, BASE + at as u64, len as u64);
    token.unwrap().encode()
}

pub fn segment(fd: &OwnedFd) -> Segment<'_> {
    Segment {
        slab: SlabId(0),
        index: 0,
        memory: Memory::Host,
        address: BASE,
        len: MEMORY as u64,
        fd: Some(fd.as_fd()),
        fd_offset: 0,
        slab_len: MEMORY as u64,
        cuda: None,
    }
}
