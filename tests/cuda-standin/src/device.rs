//! Devices: their names and what they can do.

use std::ffi::c_char;

use crate::abi::{Out, Uuid};
use crate::codes::{INVALID_DEVICE, INVALID_VALUE};
use crate::gate::{always, call, in_context, settings};
use crate::settings::uuid;

#[unsafe(no_mangle)]
extern "C" fn cuDriverGetVersion(version: Out<i32>) -> u32 {
    always("cuDriverGetVersion", || {
        let wanted = settings().map(|settings| settings.version);
        version.set(wanted.unwrap_or_default() as i32)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetCount(count: Out<i32>) -> u32 {
    call("cuDeviceGetCount", |driver| {
        count.set(driver.devices.len() as i32)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGet(device: Out<i32>, ordinal: i32) -> u32 {
    call("cuDeviceGet", |driver| {
        device.set(driver.ordinal(ordinal)? as i32)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetName(name: Out<c_char>, len: i32, device: i32) -> u32 {
    call("cuDeviceGetName", |driver| {
        driver.device(device)?;
        name.text("CUDA stand-in", len)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetUuid(to: Out<Uuid>, device: i32) -> u32 {
    call("cuDeviceGetUuid", |driver| {
        to.set(Uuid(uuid(driver.device(device)?.gpu)))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetUuid_v2(to: Out<Uuid>, device: i32) -> u32 {
    call("cuDeviceGetUuid_v2", |driver| {
        to.set(Uuid(uuid(driver.device(device)?.gpu)))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetPCIBusId(id: Out<c_char>, len: i32, device: i32) -> u32 {
    call("cuDeviceGetPCIBusId", |driver| {
        let bus = pci_bus(driver.device(device)?.gpu);
        id.text(&format!("0000:{bus:02x}:00.0"), len)
    })
}

fn pci_bus(gpu: usize) -> i32 {
    0xa0 + gpu as i32
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: i32) -> u32 {
    call("cuDeviceTotalMem_v2", |driver| {
        driver.device(device)?;
        bytes.set(driver.settings.memory as usize)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetAttribute(value: Out<i32>, attribute: u32, device: i32) -> u32 {
    call("cuDeviceGetAttribute", |driver| {
        let gpu = driver.device(device)?.gpu;
        value.set(match attribute {
            // Multiprocessors.
            16 => 1,
            // Integrated; compute mode.
            18 | 20 => 0,
            // Can map host memory.
            19 => 1,
            // PCI bus, device, domain.
            33 => pci_bus(gpu),
            34 | 50 => 0,
            // Engines for asynchronous copies.
            40 => 2,
            // Unified addressing.
            41 => 1,
            // Compute capability.
            75 => 9,
            76 => 0,
            // Host pointers of registered memory; registering; virtual memory management; POSIX descriptors.
            91 | 99 | 102 | 103 => 1,
            // Read-only registering; GPUDirect RDMA, with virtual memory management too.
            110 | 113 | 116 => 1,
            // Writes by RDMA are flushed by a call of the host; they are ordered for their owner.
            117 => 1,
            118 => 100,
            // dma_buf.
            124 => 1,
            // Handles of a fabric.
            128 => 0,
            1..=161 => 0,
            _ => return Err(INVALID_VALUE),
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceCanAccessPeer(can: Out<i32>, device: i32, peer: i32) -> u32 {
    call("cuDeviceCanAccessPeer", |driver| {
        let two = driver.ordinal(device)? != driver.ordinal(peer)?;
        can.set(i32::from(two))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetP2PAttribute(value: Out<i32>, kind: u32, from: i32, to: i32) -> u32 {
    call("cuDeviceGetP2PAttribute", |driver| {
        if driver.ordinal(from)? == driver.ordinal(to)? {
            return Err(INVALID_DEVICE);
        }
        value.set(match kind {
            // Performance rank, native atomics, access to arrays.
            1 | 3 | 4 => 0,
            // Access.
            2 => 1,
            _ => return Err(INVALID_VALUE),
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) -> u32 {
    in_context("cuMemGetInfo_v2", |driver, context| {
        let gpu = driver.devices[context.device].gpu;
        let used = driver.in_use.total(gpu)?;
        free.set(driver.settings.memory.saturating_sub(used) as usize)?;
        total.set(driver.settings.memory as usize)
    })
}

/// `CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX`, and to its owner or to all devices.
#[unsafe(no_mangle)]
extern "C" fn cuFlushGPUDirectRDMAWrites(target: u32, scope: u32) -> u32 {
    in_context("cuFlushGPUDirectRDMAWrites", |_, _| match (target, scope) {
        (0, 100 | 200) => Ok(()),
        _ => Err(INVALID_VALUE),
    })
}
