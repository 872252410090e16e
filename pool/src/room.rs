//! The pool's bound: how many bytes are mapped, and how room for a slab is found within it.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use event_listener::Event;

use crate::accounts::Wanted;
use crate::buffer::Place;
use crate::client::Client;
use crate::memory::SLAB_ALIGN;
use crate::options::{MemoryBound, PoolError};
use crate::shared::Shared;
use crate::slab::Slab;

/// Bytes mapped by all slabs of a pool.
#[derive(Default)]
pub(crate) struct Room {
    mapped: Mutex<u64>,
    /// Told when any client may find room that it did not find before.
    pub(crate) freed: Event,
}

impl Room {
    /// Held for a sum at most, and no other lock is taken under it.
    fn lock(&self) -> MutexGuard<'_, u64> {
        self.mapped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn mapped(&self) -> u64 {
        *self.lock()
    }

    /// Under the lock, so that no older figure is shown after a newer one.
    fn add(&self, bytes: i128) {
        let mut mapped = self.lock();
        *mapped = u64::try_from(i128::from(*mapped) + bytes).unwrap_or(0);
        metrics::gauge!("s3engine_pool_mapped_bytes").set(*mapped as f64);
    }
}

/// Bytes of the pool's bound, of a client's and of its group's, occupied until the last holder of the slab is gone.
pub(crate) struct Reservation {
    room: Arc<Room>,
    client: Arc<Client>,
    len: u64,
}

impl Reservation {
    fn new(room: &Arc<Room>, client: &Arc<Client>, len: u64) -> Self {
        room.add(len.into());
        client.mapped.fetch_add(len, Ordering::AcqRel);
        if let Some(group) = &client.group {
            group.mapped.fetch_add(len, Ordering::AcqRel);
        }
        Self {
            room: Arc::clone(room),
            client: Arc::clone(client),
            len,
        }
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
        self.client.mapped.fetch_sub(self.len, Ordering::AcqRel);
        if let Some(group) = &self.client.group {
            group.mapped.fetch_sub(self.len, Ordering::AcqRel);
        }
        self.room.add(-i128::from(self.len));
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
        let slab_bytes = client.slab_bytes.min(client.max_bytes);
        let whole = slab_bytes.next_multiple_of(SLAB_ALIGN).max(needed);
        // Only one looks for room at a time; meanwhile it only grows.
        let _looking = self
            .making_room
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let of_client = || left(client.max_bytes, client.mapped.load(Ordering::Acquire));
        let of_group = || client.group.as_ref().map_or(u64::MAX, |group| group.left());
        let of_pool = || left(self.max_bytes, self.room.mapped());
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
            return Err(self.full(client, wanted.len, bound));
        }
        let room = of_client().min(of_group()).min(of_pool());
        let len = whole.min(room - room % SLAB_ALIGN);
        Ok(Found::Room(Reservation::new(&self.room, client, len)))
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
        let taken = accounts.take_idle(missing, client.id, of);
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
    pub(crate) fn full(&self, client: &Client, len: u64, bound: MemoryBound) -> PoolError {
        let (leased, max_bytes) = match (bound, &client.group) {
            (MemoryBound::Group, Some(group)) => {
                (group.mapped.load(Ordering::Acquire), group.max_bytes)
            }
            (MemoryBound::Client, _) => (self.lock().sums(client.id).leased, client.max_bytes),
            _ => (self.lock().total.leased, self.max_bytes),
        };
        PoolError::WouldBlock {
            len,
            leased,
            max_bytes,
            bound,
        }
    }
}
