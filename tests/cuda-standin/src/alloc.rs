//! `cuMemAlloc`, and its memory in other processes by CUDA IPC.

use std::fs::File;
use std::process;
use std::sync::Arc;

use crate::abi::{IpcHandle, Out};
use crate::codes::{Answer, INVALID_CONTEXT, INVALID_VALUE, PEER_ACCESS_UNSUPPORTED};
use crate::context::Context;
use crate::driver::{Driver, lock};
use crate::gate::in_context;
use crate::physical::{Addresses, GRANULARITY, Kind, Physical};
use crate::space::{Mapping, Origin};

#[unsafe(no_mangle)]
extern "C" fn cuMemAlloc_v2(address: Out<u64>, size: usize) -> u32 {
    in_context("cuMemAlloc_v2", |driver, context| {
        address.check()?;
        let len = size as u64;
        if len == 0 {
            return Err(INVALID_VALUE);
        }
        let gpu = driver.devices[context.device].gpu;
        let rounded = len
            .checked_next_multiple_of(GRANULARITY)
            .ok_or(INVALID_VALUE)?;
        let memory = Physical::create(driver, gpu, rounded, Kind::Alloc)?;
        let addresses = Addresses::reserve(rounded, GRANULARITY)?;
        let start = addresses.start;
        let origin = Origin::Alloc {
            context: context.handle,
            _addresses: addresses,
        };
        address.set(start)?;
        insert(
            driver,
            Mapping {
                start,
                len,
                memory,
                origin,
                id: driver.unique(),
            },
        );
        Ok(())
    })
}

fn insert(driver: &Driver, mapping: Mapping) {
    lock(&driver.space).mappings.insert(mapping.start, mapping);
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFree_v2(address: u64) -> u32 {
    in_context("cuMemFree_v2", |driver, _| {
        let mut space = lock(&driver.space);
        let mapping = space.mappings.get(&address).ok_or(INVALID_VALUE)?;
        if !matches!(mapping.origin, Origin::Alloc { .. }) {
            return Err(INVALID_VALUE);
        }
        space.mappings.remove(&address);
        Ok(())
    })
}

/// What the 64 bytes of a handle say.
struct Shared {
    pid: u32,
    fd: u32,
    gpu: u64,
    inode: u64,
    len: u64,
}

const MAGIC: [u8; 8] = *b"standin1";

impl Shared {
    fn write(&self) -> IpcHandle {
        let words = [
            u64::from(self.pid) << 32 | u64::from(self.fd),
            self.gpu,
            self.inode,
            self.len,
        ];
        let mut bytes = [0; 64];
        bytes[..8].copy_from_slice(&MAGIC);
        for (word, to) in words.iter().zip(bytes[8..].chunks_exact_mut(8)) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        IpcHandle(bytes)
    }

    fn read(handle: IpcHandle) -> Option<Self> {
        let (magic, rest) = handle.0.split_first_chunk::<8>()?;
        let (words, _) = rest.as_chunks::<8>();
        let word = |nth: usize| words.get(nth).copied().map(u64::from_le_bytes);
        let unused = rest[32..].iter().all(|byte| *byte == 0);
        if *magic != MAGIC || !unused {
            return None;
        }
        let named = word(0)?;
        let (pid, fd) = ((named >> 32) as u32, named as u32);
        Some(Self {
            pid,
            fd,
            gpu: word(1)?,
            inode: word(2)?,
            len: word(3)?,
        })
    }

    /// The memory, if its process still has it.
    fn open(&self, driver: &'static Driver) -> Answer<Arc<Physical>> {
        let link = format!("/proc/{}/fd/{}", self.pid, self.fd);
        let options = File::options().read(true).write(true).open(link);
        let memory = Physical::import(driver, options.map_err(|_| INVALID_VALUE)?)?;
        let same = memory.inode == self.inode && memory.gpu as u64 == self.gpu;
        let fits = (1..=memory.size).contains(&self.len);
        (same && fits && memory.kind == Kind::Alloc)
            .then_some(memory)
            .ok_or(INVALID_VALUE)
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuIpcGetMemHandle(handle: Out<IpcHandle>, address: u64) -> u32 {
    in_context("cuIpcGetMemHandle", |driver, _| {
        let space = lock(&driver.space);
        let mapping = space.find(address).ok_or(INVALID_VALUE)?;
        if !matches!(mapping.origin, Origin::Alloc { .. }) {
            return Err(INVALID_VALUE);
        }
        handle.set(
            Shared {
                pid: process::id(),
                fd: mapping.memory.descriptor(),
                gpu: mapping.memory.gpu as u64,
                inode: mapping.memory.inode,
                len: mapping.len,
            }
            .write(),
        )
    })
}

/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`
const LAZY_PEER_ACCESS: u32 = 1;

#[unsafe(no_mangle)]
extern "C" fn cuIpcOpenMemHandle_v2(address: Out<u64>, handle: IpcHandle, flags: u32) -> u32 {
    in_context("cuIpcOpenMemHandle_v2", |driver, context| {
        address.check()?;
        if flags & !LAZY_PEER_ACCESS != 0 {
            return Err(INVALID_VALUE);
        }
        let shared = Shared::read(handle).ok_or(INVALID_VALUE)?;
        // The process that made a handle cannot open it.
        if shared.pid == process::id() {
            return Err(INVALID_CONTEXT);
        }
        let memory = shared.open(driver)?;
        let own = driver.devices[context.device].gpu == memory.gpu;
        if !own && flags != LAZY_PEER_ACCESS {
            return Err(PEER_ACCESS_UNSUPPORTED);
        }
        match opened_again(driver, context, &memory) {
            Some(start) => address.set(start),
            None => address.set(open(driver, context, memory, shared.len)?),
        }
    })
}

/// Where this context has the memory already; that is counted.
fn opened_again(driver: &Driver, context: &Context, memory: &Physical) -> Option<u64> {
    let mut space = lock(&driver.space);
    space
        .mappings
        .values_mut()
        .find_map(|mapping| match &mut mapping.origin {
            Origin::Ipc {
                context: of, times, ..
            } if *of == context.handle && mapping.memory.inode == memory.inode => {
                *times += 1;
                Some(mapping.start)
            }
            _ => None,
        })
}

fn open(driver: &Driver, context: &Context, memory: Arc<Physical>, len: u64) -> Answer<u64> {
    let addresses = Addresses::reserve(memory.size, GRANULARITY)?;
    let start = addresses.start;
    let origin = Origin::Ipc {
        context: context.handle,
        times: 1,
        _addresses: addresses,
    };
    insert(
        driver,
        Mapping {
            start,
            len,
            memory,
            origin,
            id: driver.unique(),
        },
    );
    Ok(start)
}

#[unsafe(no_mangle)]
extern "C" fn cuIpcCloseMemHandle(address: u64) -> u32 {
    in_context("cuIpcCloseMemHandle", |driver, _| {
        let mut space = lock(&driver.space);
        let mapping = space.mappings.get_mut(&address).ok_or(INVALID_VALUE)?;
        let Origin::Ipc { times, .. } = &mut mapping.origin else {
            return Err(INVALID_VALUE);
        };
        *times -= 1;
        if *times == 0 {
            space.mappings.remove(&address);
        }
        Ok(())
    })
}
