//! The address space of the GPUs: what is reserved, what is mapped, who may touch it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::codes::{Answer, INVALID_VALUE};
use crate::physical::{Addresses, Physical};

#[derive(Default)]
pub struct Space {
    /// By `cuMemAddressReserve`; by address.
    pub reserved: BTreeMap<u64, Addresses>,
    /// What is mapped, by address. None overlaps another.
    pub mappings: BTreeMap<u64, Mapping>,
}

pub struct Mapping {
    pub start: u64,
    pub len: u64,
    pub memory: Arc<Physical>,
    pub origin: Origin,
    /// Unique over the life of the process.
    pub id: u64,
}

pub enum Origin {
    /// Mapped by hand: the handle it came from, and which devices may do what.
    Vmm {
        handle: u64,
        access: HashMap<usize, Access>,
    },
    /// By `cuMemAlloc`, in a context.
    Alloc { context: u64, _addresses: Addresses },
    /// By `cuIpcOpenMemHandle`, so many times.
    Ipc {
        context: u64,
        times: u32,
        _addresses: Addresses,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub enum Access {
    Read,
    Write,
}

impl Mapping {
    pub fn end(&self) -> u64 {
        self.start + self.len
    }

    /// The context that it ends with.
    pub fn context(&self) -> Option<u64> {
        match &self.origin {
            Origin::Vmm { .. } => None,
            Origin::Alloc { context, .. } | Origin::Ipc { context, .. } => Some(*context),
        }
    }

    /// What a device may do with it.
    pub fn access(&self, device: usize) -> Option<Access> {
        match &self.origin {
            Origin::Vmm { access, .. } => access.get(&device).copied(),
            Origin::Alloc { .. } | Origin::Ipc { .. } => Some(Access::Write),
        }
    }
}

/// A part of one piece of memory, kept alive.
pub struct Span {
    pub memory: Arc<Physical>,
    pub offset: u64,
    pub len: u64,
}

impl Space {
    /// The mapping that an address is in.
    pub fn find(&self, address: u64) -> Option<&Mapping> {
        let (_, mapping) = self.mappings.range(..=address).next_back()?;
        (address < mapping.end()).then_some(mapping)
    }

    /// The reservation that holds all of a range.
    pub fn reservation(&self, start: u64, len: u64) -> Option<&Addresses> {
        let end = start.checked_add(len)?;
        let (_, reserved) = self.reserved.range(..=start).next_back()?;
        (end <= reserved.start + reserved.len).then_some(reserved)
    }

    /// Whether an address is a device's, mapped or not.
    pub fn knows(&self, address: u64) -> bool {
        self.find(address).is_some() || self.reservation(address, 1).is_some()
    }

    /// Where the mappings begin that fill a range: whole ones, without a hole.
    pub fn whole(&self, start: u64, len: u64) -> Answer<Vec<u64>> {
        let end = start
            .checked_add(len)
            .filter(|_| len > 0)
            .ok_or(INVALID_VALUE)?;
        let (mut at, mut found) = (start, Vec::new());
        while at < end {
            let mapping = self.mappings.get(&at).ok_or(INVALID_VALUE)?;
            found.push(at);
            at = mapping.end();
        }
        if at > end {
            return Err(INVALID_VALUE);
        }
        Ok(found)
    }

    /// The memory of a range, if a device may touch it so.
    pub fn resolve(
        &self,
        start: u64,
        len: u64,
        device: usize,
        access: Access,
    ) -> Answer<Vec<Span>> {
        let end = start.checked_add(len).ok_or(INVALID_VALUE)?;
        let (mut at, mut spans) = (start, Vec::new());
        while at < end {
            let mapping = self.find(at).ok_or(INVALID_VALUE)?;
            if mapping.access(device) < Some(access) {
                return Err(INVALID_VALUE);
            }
            let until = mapping.end().min(end);
            spans.push(Span {
                memory: mapping.memory.clone(),
                offset: at - mapping.start,
                len: until - at,
            });
            at = until;
        }
        Ok(spans)
    }
}
