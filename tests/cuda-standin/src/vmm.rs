//! Virtual memory management: handles of memory, addresses, and what is mapped there for whom.

use std::collections::HashMap;
use std::ffi::c_void;
use std::os::fd::{BorrowedFd, IntoRawFd};
use std::sync::Arc;

use crate::abi::{AccessDesc, AllocationProp, In, Location, ON_DEVICE, Out};
use crate::codes::{Answer, INVALID_DEVICE, INVALID_VALUE, NOT_SUPPORTED};
use crate::driver::{Driver, lock};
use crate::gate::call;
use crate::physical::{Addresses, GRANULARITY, Kind, Physical, dma_buf};
use crate::space::{Access, Mapping, Origin};

/// What `cuMemCreate` or an import made.
pub struct Handle {
    memory: Arc<Physical>,
    times: u32,
}

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`
const POSIX_FD: u32 = 1;
/// `CU_MEM_ALLOCATION_TYPE_PINNED`
const PINNED: u32 = 1;

fn device_of(driver: &Driver, location: Location) -> Answer<usize> {
    if location.kind != ON_DEVICE {
        return Err(INVALID_VALUE);
    }
    driver.ordinal(location.id)
}

fn judged(driver: &Driver, prop: &AllocationProp) -> Answer<usize> {
    let device = device_of(driver, prop.location)?;
    if prop.kind != PINNED || prop.gpu_direct_rdma > 1 || prop.reserved != [0; 4] {
        return Err(INVALID_VALUE);
    }
    match prop.handle_types {
        0 | POSIX_FD => Ok(device),
        _ => Err(NOT_SUPPORTED),
    }
}

fn aligned(values: impl IntoIterator<Item = u64>) -> Answer {
    let mut values = values.into_iter();
    let all = values.all(|value| value.is_multiple_of(GRANULARITY));
    all.then_some(()).ok_or(INVALID_VALUE)
}

fn nonzero(size: u64) -> Answer {
    (size > 0).then_some(()).ok_or(INVALID_VALUE)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemGetAllocationGranularity(
    granularity: Out<usize>,
    prop: In<AllocationProp>,
    option: u32,
) -> u32 {
    call("cuMemGetAllocationGranularity", |driver| {
        judged(driver, &prop.get()?)?;
        // The minimum, or what is recommended.
        if option > 1 {
            return Err(INVALID_VALUE);
        }
        granularity.set(GRANULARITY as usize)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemCreate(
    handle: Out<u64>,
    size: usize,
    prop: In<AllocationProp>,
    flags: u64,
) -> u32 {
    call("cuMemCreate", |driver| {
        handle.check()?;
        let (size, prop) = (size as u64, prop.get()?);
        let device = judged(driver, &prop)?;
        nonzero(size)?;
        aligned([size])?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        let shareable = prop.handle_types == POSIX_FD;
        let kind = Kind::Vmm {
            shareable,
            rdma: prop.gpu_direct_rdma == 1,
        };
        let memory = Physical::create(driver, driver.devices[device].gpu, size, kind)?;
        handle.set(keep(driver, memory))
    })
}

fn keep(driver: &Driver, memory: Arc<Physical>) -> u64 {
    let handle = driver.unique();
    lock(&driver.handles).insert(handle, Handle { memory, times: 1 });
    handle
}

#[unsafe(no_mangle)]
extern "C" fn cuMemRelease(handle: u64) -> u32 {
    call("cuMemRelease", |driver| {
        let mut handles = lock(&driver.handles);
        let held = handles.get_mut(&handle).ok_or(INVALID_VALUE)?;
        held.times -= 1;
        if held.times == 0 {
            handles.remove(&handle);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemRetainAllocationHandle(handle: Out<u64>, address: u64) -> u32 {
    call("cuMemRetainAllocationHandle", |driver| {
        handle.check()?;
        let space = lock(&driver.space);
        let mapping = space.find(address).ok_or(INVALID_VALUE)?;
        let Origin::Vmm { handle: of, .. } = &mapping.origin else {
            return Err(INVALID_VALUE);
        };
        let mut handles = lock(&driver.handles);
        let kept = handles.entry(*of);
        let memory = mapping.memory.clone();
        kept.or_insert(Handle { memory, times: 0 }).times += 1;
        handle.set(*of)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAddressReserve(
    address: Out<u64>,
    size: usize,
    alignment: usize,
    _hint: u64,
    flags: u64,
) -> u32 {
    call("cuMemAddressReserve", |driver| {
        address.check()?;
        nonzero(size as u64)?;
        aligned([size as u64])?;
        if flags != 0 || (alignment != 0 && !alignment.is_power_of_two()) {
            return Err(INVALID_VALUE);
        }
        let reserved = Addresses::reserve(size as u64, alignment as u64)?;
        address.set(reserved.start)?;
        lock(&driver.space)
            .reserved
            .insert(reserved.start, reserved);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAddressFree(address: u64, size: usize) -> u32 {
    call("cuMemAddressFree", |driver| {
        let mut space = lock(&driver.space);
        let reserved = space.reserved.get(&address).ok_or(INVALID_VALUE)?;
        let (len, end) = (reserved.len, address + reserved.len);
        if len != size as u64 || space.mappings.range(address..end).next().is_some() {
            return Err(INVALID_VALUE);
        }
        space.reserved.remove(&address);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemMap(address: u64, size: usize, offset: usize, handle: u64, flags: u64) -> u32 {
    call("cuMemMap", |driver| {
        let size = size as u64;
        nonzero(size)?;
        aligned([address, size])?;
        let handles = lock(&driver.handles);
        let memory = handles.get(&handle).ok_or(INVALID_VALUE)?.memory.clone();
        drop(handles);
        // The driver has no use for an offset or flags yet.
        if offset != 0 || flags != 0 || size > memory.size {
            return Err(INVALID_VALUE);
        }
        let mut space = lock(&driver.space);
        space.reservation(address, size).ok_or(INVALID_VALUE)?;
        let before = space.mappings.range(..address + size).next_back();
        if before.is_some_and(|(_, mapping)| mapping.end() > address) {
            return Err(INVALID_VALUE);
        }
        let origin = Origin::Vmm {
            handle,
            access: HashMap::new(),
        };
        let id = driver.unique();
        let mapping = Mapping {
            start: address,
            len: size,
            memory,
            origin,
            id,
        };
        space.mappings.insert(address, mapping);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemUnmap(address: u64, size: usize) -> u32 {
    call("cuMemUnmap", |driver| {
        let mut space = lock(&driver.space);
        space
            .reservation(address, size as u64)
            .ok_or(INVALID_VALUE)?;
        for start in space.whole(address, size as u64)? {
            space.mappings.remove(&start);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemSetAccess(
    address: u64,
    size: usize,
    descs: In<AccessDesc>,
    count: usize,
) -> u32 {
    call("cuMemSetAccess", |driver| {
        if count == 0 {
            return Err(INVALID_VALUE);
        }
        let wanted = (0..count).map(|nth| granted(driver, descs.nth(nth)?));
        let wanted = wanted.collect::<Answer<Vec<_>>>()?;
        let mut space = lock(&driver.space);
        space
            .reservation(address, size as u64)
            .ok_or(INVALID_VALUE)?;
        for start in space.whole(address, size as u64)? {
            let mapping = space.mappings.get_mut(&start);
            let Some(Mapping {
                origin: Origin::Vmm { access, .. },
                ..
            }) = mapping
            else {
                return Err(INVALID_VALUE);
            };
            for (device, granted) in &wanted {
                match granted {
                    Some(granted) => access.insert(*device, *granted),
                    None => access.remove(device),
                };
            }
        }
        Ok(())
    })
}

/// What a description grants to which device.
fn granted(driver: &Driver, desc: AccessDesc) -> Answer<(usize, Option<Access>)> {
    let device = device_of(driver, desc.location)?;
    match desc.flags {
        0 => Ok((device, None)),
        1 => Ok((device, Some(Access::Read))),
        3 => Ok((device, Some(Access::Write))),
        _ => Err(INVALID_VALUE),
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuMemExportToShareableHandle(
    shared: Out<c_void>,
    handle: u64,
    kind: u32,
    flags: u64,
) -> u32 {
    call("cuMemExportToShareableHandle", |driver| {
        shared.check()?;
        let handles = lock(&driver.handles);
        let memory = &handles.get(&handle).ok_or(INVALID_VALUE)?.memory;
        if kind != POSIX_FD {
            return Err(NOT_SUPPORTED);
        }
        if flags != 0
            || !matches!(
                memory.kind,
                Kind::Vmm {
                    shareable: true,
                    ..
                }
            )
        {
            return Err(INVALID_VALUE);
        }
        shared.raw(memory.describe()?.into_raw_fd())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemImportFromShareableHandle(handle: Out<u64>, shared: usize, kind: u32) -> u32 {
    call("cuMemImportFromShareableHandle", |driver| {
        handle.check()?;
        if kind != POSIX_FD {
            return Err(NOT_SUPPORTED);
        }
        let fd = i32::try_from(shared)
            .ok()
            .filter(|fd| *fd >= 0)
            .ok_or(INVALID_VALUE)?;
        // SAFETY: the caller lends it for this call; what is no descriptor at all is refused by the kernel.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let memory = Physical::import(driver, fd)?;
        match memory.kind {
            Kind::Vmm {
                shareable: true, ..
            } => handle.set(keep(driver, memory)),
            _ => Err(INVALID_VALUE),
        }
    })
}

/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`
const DMA_BUF: u32 = 1;

#[unsafe(no_mangle)]
extern "C" fn cuMemGetHandleForAddressRange(
    handle: Out<c_void>,
    address: u64,
    size: usize,
    kind: u32,
    flags: u64,
) -> u32 {
    call("cuMemGetHandleForAddressRange", |driver| {
        handle.check()?;
        let size = size as u64;
        nonzero(size)?;
        let page = rustix::param::page_size() as u64;
        let whole = address.is_multiple_of(page) && size.is_multiple_of(page);
        // Flag 1 asks for a mapping over PCIe, for devices that have another way.
        if kind != DMA_BUF || flags > 1 || !whole {
            return Err(INVALID_VALUE);
        }
        let space = lock(&driver.space);
        let mapping = space.find(address).ok_or(INVALID_VALUE)?;
        let (end, gpu) = (address.checked_add(size), mapping.memory.gpu);
        let device = driver.device_of(gpu).ok_or(INVALID_DEVICE)?;
        space.resolve(address, size, device, Access::Read)?;
        if end.is_none_or(|end| end > mapping.end()) {
            return Err(INVALID_VALUE);
        }
        if matches!(mapping.memory.kind, Kind::Vmm { rdma: false, .. }) {
            return Err(NOT_SUPPORTED);
        }
        handle.raw(dma_buf(gpu)?.into_raw_fd())
    })
}
