//! What the driver knows about an address.

use std::ffi::c_void;

use crate::abi::{In, Out};
use crate::codes::{Answer, INVALID_VALUE, NOT_SUPPORTED};
use crate::context::current;
use crate::driver::{Driver, lock};
use crate::gate::{call, in_context};
use crate::physical::Kind;
use crate::space::{Access, Origin};

/// A value of an attribute, with the type that it has.
enum Value {
    Int(i32),
    Flag(bool),
    Word(u64),
}

impl Value {
    fn give(self, to: &Out<c_void>) -> Answer {
        match self {
            Self::Int(value) => to.raw(value),
            Self::Flag(value) => to.raw(u8::from(value)),
            Self::Word(value) => to.raw(value),
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuPointerGetAttribute(data: Out<c_void>, attribute: u32, address: u64) -> u32 {
    call("cuPointerGetAttribute", |driver| {
        attribute_of(driver, attribute, address)?.give(&data)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuPointerGetAttributes(
    count: u32,
    attributes: In<u32>,
    data: In<*mut c_void>,
    address: u64,
) -> u32 {
    call("cuPointerGetAttributes", |driver| {
        for nth in 0..count as usize {
            let attribute = attributes.nth(nth)?;
            // What is no pointer of CUDA is no error here.
            let value = match attribute_of(driver, attribute, address) {
                Err(INVALID_VALUE) => unknown(attribute)?,
                value => value?,
            };
            value.give(&Out::to(data.nth(nth)?))?;
        }
        Ok(())
    })
}

fn attribute_of(driver: &Driver, attribute: u32, address: u64) -> Answer<Value> {
    let of_device = device_attribute(driver, attribute, address)?;
    let of_host = || host_attribute(driver, attribute, address);
    of_device.map_or_else(of_host, Ok)
}

/// Of an address of a device; `None` where it is none.
fn device_attribute(driver: &Driver, attribute: u32, address: u64) -> Answer<Option<Value>> {
    let space = lock(&driver.space);
    let Some(mapping) = space.find(address) else {
        // Reserved, with nothing there.
        let reserved = space.reservation(address, 1).ok_or(INVALID_VALUE);
        return match (reserved, attribute) {
            (Err(_), _) => Ok(None),
            (Ok(reserved), 11) => Ok(Some(Value::Word(reserved.start))),
            (Ok(reserved), 12) => Ok(Some(Value::Word(reserved.len))),
            (Ok(_), 13) => Ok(Some(Value::Flag(false))),
            (Ok(_), _) => Err(INVALID_VALUE),
        };
    };
    let memory = &mapping.memory;
    let vmm = matches!(mapping.origin, Origin::Vmm { .. });
    let (shareable, rdma) = match memory.kind {
        Kind::Vmm { shareable, rdma } => (shareable, rdma),
        Kind::Alloc => (false, true),
    };
    let value = match attribute {
        // Memory that was mapped by hand is no context's.
        1 => Value::Word(mapping.context().unwrap_or(0)),
        // On a device.
        2 => Value::Int(2),
        3 => Value::Word(address),
        // Nothing that a host can read.
        4 => return Err(INVALID_VALUE),
        // Synchronous copies; managed memory.
        6 | 8 => Value::Flag(false),
        7 => Value::Word(mapping.id),
        9 => Value::Int(driver.device_of(memory.gpu).ok_or(INVALID_VALUE)? as i32),
        10 => Value::Flag(!vmm),
        11 => Value::Word(mapping.start),
        12 => Value::Word(mapping.len),
        13 => Value::Flag(true),
        14 => Value::Word(u64::from(shareable)),
        15 => Value::Flag(rdma),
        16 => Value::Int(match mapping.access(current()?.device) {
            None => 0,
            Some(Access::Read) => 1,
            Some(Access::Write) => 3,
        }),
        // A pool.
        17 => Value::Word(0),
        _ => return Err(NOT_SUPPORTED),
    };
    Ok(Some(value))
}

/// Of pinned host memory.
fn host_attribute(driver: &Driver, attribute: u32, address: u64) -> Answer<Value> {
    let pinned = lock(&driver.pinned);
    let (_, pinned) = pinned.range(..=address).next_back().ok_or(INVALID_VALUE)?;
    if address >= pinned.start + pinned.len {
        return Err(INVALID_VALUE);
    }
    let device = || {
        driver
            .context(pinned.context)
            .map(|context| context.device as i32)
    };
    Ok(match attribute {
        1 => Value::Word(pinned.context),
        // On the host.
        2 => Value::Int(1),
        3 | 4 => Value::Word(address),
        6 | 8 | 10 | 15 => Value::Flag(false),
        7 => Value::Word(pinned.id),
        9 => Value::Int(device().ok_or(INVALID_VALUE)?),
        11 => Value::Word(pinned.start),
        12 => Value::Word(pinned.len),
        13 => Value::Flag(true),
        14 | 17 => Value::Word(0),
        16 => Value::Int(3),
        _ => return Err(NOT_SUPPORTED),
    })
}

/// Of what the driver does not know.
fn unknown(attribute: u32) -> Answer<Value> {
    Ok(match attribute {
        2 | 16 => Value::Int(0),
        6 | 8 | 10 | 13 | 15 => Value::Flag(false),
        // No device.
        9 => Value::Int(-2),
        1 | 3 | 4 | 7 | 11 | 12 | 14 | 17 => Value::Word(0),
        _ => return Err(NOT_SUPPORTED),
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemGetAddressRange_v2(start: Out<u64>, len: Out<usize>, address: u64) -> u32 {
    in_context("cuMemGetAddressRange_v2", |driver, _| {
        let space = lock(&driver.space);
        let mapping = space.find(address).ok_or(crate::codes::NOT_FOUND)?;
        // The caller may want only one of the two.
        let _ = start.set(mapping.start);
        let _ = len.set(mapping.len as usize);
        Ok(())
    })
}
