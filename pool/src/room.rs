//! The pool's bound: how many bytes are mapped, and how room for a slab is found within it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use event_listener::Event;

use crate::accounts::Wanted;
use crate::buffer::Place;
use crate::client::Client;
use crate::cuda::Uuid;
use crate::memory::{Memory, SLAB_ALIGN};
use crate::options::{MemoryBound, PoolError};
use crate::shared::Shared;
use crate::slab::Slab;

/// Bytes mapped, by the kind of memory.
#[derive(Default)]
pub(crate) struct Tally(Mutex<BTreeMap<Memory, u64>>);

impl Tally {
    /// Held for a sum at most, and no other lock is taken under it.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Memory, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn of(&self, memory: Memory) -> u64 {
        self.lock().get(&memory).copied().unwrap_or(0)
    }

    /// Calls `show` under the lock, so that no older figure is shown after a newer one.
    fn add(&self, memory: Memory, bytes: i128, show: impl FnOnce(u64)) {
        let mut mapped = self.lock();
        let sum = mapped.entry(memory).or_default();
        *sum = u64::try_from(i128::from(*sum) + bytes).unwrap_or(0);
        show(*sum);
    }
}

/// Bytes mapped by all slabs of a pool.
#[derive(Default)]
pub(crate) struct Room {
    mapped: Tally,
    /// Told when any client may find room that it did not find before.
    pub(crate) freed: Event,
}

impl Room {
    pub(crate) fn mapped(&self, memory: Memory) -> u64 {
        self.mapped.of(memory)
    }

    /// Bytes mapped of each device.
    pub(crate) fn cuda(&self) -> Vec<(Uuid, u64)> {
        let mapped = self.mapped.lock();
        let devices = mapped.iter().filter_map(|(memory, &mapped)| match memory {
            Memory::Cuda(uuid) if mapped > 0 => Some((*uuid, mapped)),
            _ => None,
        });
        devices.collect()
    }

    fn add(&self, memory: Memory, bytes: i128) {
        let gauge = match memory {
            Memory::Host => metrics::gauge!("s3engine_pool_mapped_bytes"),
            Memory::Cuda(uuid) => {
                metrics::gauge!("s3engine_pool_cuda_mapped_bytes", "device" => uuid.to_string())
            }
        };
        self.mapped
            .add(memory, bytes, |mapped| gauge.set(mapped as f64));
    }
}

/// Bytes of the pool's bound, of a client's and of its group's, occupied until the last holder of the slab is gone.
pub(crate) struct Reservation {
    room: Arc<Room>,
    client: Arc<Client>,
    memory: Memory,
    len: u64,
    /// Not so for memory that somebody else has allocated.
    counted: bool,
}

impl Reservation {
    fn new(room: &Arc<Room>, client: &Arc<Client>, memory: Memory, len: u64) -> Self {
        let reserved = Self {
            room: Arc::clone(room),
            client: Arc::clone(client),
            memory,
            len,
            counted: true,
        };
        reserved.add(len.into());
        reserved
    }

    /// Of memory that the caller has allocated: nothing is occupied.
    pub(crate) fn of_caller(
        room: &Arc<Room>,
        client: &Arc<Client>,
        memory: Memory,
        len: u64,
    ) -> Self {
        Self {
            room: Arc::clone(room),
            client: Arc::clone(client),
            memory,
            len,
            counted: false,
        }
    }

    fn add(&self, bytes: i128) {
        self.room.add(self.memory, bytes);
        self.client.mapped.add(self.memory, bytes, drop);
        if let Some(group) = &self.client.group {
            group.mapped.add(self.memory, bytes, drop);
        }
    }

    /// Gives back what is over `len` bytes.
    pub(crate) fn shrink(&mut self, len: u64) {
        let less = self.len.saturating_sub(len);
        self.len -= less;
        self.add(-i128::from(less));
    }

    pub(crate) fn memory(&self) -> Memory {
        self.memory
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn client(&self) -> &Arc<Client> {
        &self.client
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if !self.counted {
            return;
        }
        self.add(-i128::from(self.len));
        self.room.freed.notify(usize::MAX);
    }
}

fn left(max: u64, mapped: u64) -> u64 {
    max.saturating_sub(mapped)
}

/// What is found for a lease that no slab had room for.
pub(crate) enum Found {
    /// Room for another slab.
    Room(Reservation),
    /// Room in a slab after all: it came back from quarantine, or others gave it back.
    Slot(Arc<Slab>, Place),
}

impl Shared {
    /// Takes a slab's bytes out of the bounds: a full slab where it fits, else as little as the lease needs, giving
    /// up idle slabs for it if that helps.
    pub(crate) fn find_room(
        &self,
        client: &Arc<Client>,
        wanted: Wanted,
    ) -> Result<Found, PoolError> {
        let needed = wanted.len.max(1).next_multiple_of(SLAB_ALIGN);
        let memory = wanted.memory;
        let of_pool = self.bound(memory)?;
        let of_client = client.bound(of_pool);
        let slab_bytes = client.slab_bytes.min(of_client);
        let whole = slab_bytes.next_multiple_of(SLAB_ALIGN).max(needed);
        // Only one looks for room at a time; meanwhile it only grows.
        let _looking = self
            .making_room
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let of_client = || left(of_client, client.mapped.of(memory));
        let of_group = || {
            let group = client.group.as_ref();
            group.map_or(u64::MAX, |group| {
                left(group.max_bytes, group.mapped.of(memory))
            })
        };
        let of_pool = || left(of_pool, self.room.mapped(memory));
        let own = |other: &Client| other.id == client.id;
        let theirs = |other: &Client| other.is_with(client);
        let all = |_: &Client| true;
        type Of<'a> = &'a dyn Fn(&Client) -> bool;
        let scopes: [(&dyn Fn() -> u64, Of<'_>, MemoryBound); 3] = [
            (&of_client, &own, MemoryBound::Client),
            (&of_group, &theirs, MemoryBound::Group),
            (&of_pool, &all, MemoryBound::Pool),
        ];
        for (room, of, _) in scopes {
            let room = room();
            if room >= needed {
                continue;
            }
            let found = self.give_up_idle(needed - room, client, wanted, of)?;
            if let Some((slab, place)) = found {
                return Ok(Found::Slot(slab, place));
            }
        }
        let short = scopes.iter().find(|(room, ..)| room() < needed);
        if let Some(&(.., bound)) = short {
            return Err(self.full(client, wanted, bound)?);
        }
        let room = of_client().min(of_group()).min(of_pool());
        let len = whole.min(room - room % SLAB_ALIGN);
        Ok(Found::Room(Reservation::new(
            &self.room, client, memory, len,
        )))
    }

    /// Destroys slabs of such clients that nobody uses, as many as make `missing` bytes of room, but only where that
    /// suffices. Where one of the client's own suffices as it is, that is used instead of one like it.
    fn give_up_idle(
        &self,
        missing: u64,
        client: &Client,
        wanted: Wanted,
        of: &dyn Fn(&Client) -> bool,
    ) -> Result<Option<(Arc<Slab>, Place)>, PoolError> {
        let mut accounts = self.lock();
        if let Some(found) = accounts.lease(client, wanted)? {
            accounts.report();
            return Ok(Some(found));
        }
        let taken = accounts.take_idle(missing, wanted.memory, client.id, of);
        drop(accounts);
        let deadline = self.revoke_deadline();
        for entry in taken {
            // Unconfirmed is counted by the ledger; the mapping goes either way, so nobody reads it again.
            let _ = self.revoke(&entry.slab, deadline);
            if entry.is_exported() {
                // Its process may be slow to unmap it, or stopped.
                let _ = entry.slab.discard();
            }
        }
        Ok(None)
    }

    /// The error of a bound that leaves no room now.
    pub(crate) fn full(
        &self,
        client: &Client,
        wanted: Wanted,
        bound: MemoryBound,
    ) -> Result<PoolError, PoolError> {
        let memory = wanted.memory;
        let of_pool = self.bound(memory)?;
        let (leased, max_bytes) = match (bound, &client.group) {
            (MemoryBound::Group, Some(group)) => (group.mapped.of(memory), group.max_bytes),
            (MemoryBound::Client, _) => {
                let leased = self.lock().leased(Some(client.id), memory);
                (leased, client.bound(of_pool))
            }
            _ => (self.lock().leased(None, memory), of_pool),
        };
        Ok(PoolError::WouldBlock {
            len: wanted.len,
            leased,
            max_bytes,
            bound,
        })
    }
}
