//! Which client holds which slabs and slots, with running sums: leasing looks at one client only, and no
//! figure is counted by walking but that of an error which says what is full. Everything here happens under one
//! lock, and none of it blocks.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Instant;

use crate::buffer::Place;
use crate::client::{Client, ClientId};
use crate::cuda::{CudaError, CudaKind, CudaMemory};
use crate::memory::{MappedPages, Memory, Smaps};
use crate::options::PoolError;
use crate::quarantine::{QuarantinedSlot, Status};
use crate::shared::Shared;
use crate::slab::{Slab, SlabId, SlabStats};
use crate::slots::{SlotId, Slots};

/// Slots in one allocation of a client of another process: a byte each would be too many.
const MOST_SLOTS: usize = 4096;

/// What a client wants to lease.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) len: u64,
    pub(crate) memory: Memory,
    pub(crate) align: u64,
}

pub(crate) struct SlabState {
    pub(crate) slab: Arc<Slab>,
    pub(crate) slots: Slots,
    pub(crate) status: Status,
    quarantined: Vec<QuarantinedSlot>,
    /// Whether another process may map it.
    exported: bool,
    /// When a lease of it last ended, by the count of leases that did.
    used: u64,
}

impl SlabState {
    pub(crate) fn quarantined(&self) -> &[QuarantinedSlot] {
        &self.quarantined
    }

    pub(crate) fn is_exported(&self) -> bool {
        self.exported
    }

    fn is_idle(&self) -> bool {
        self.slots.leased_bytes() == 0 && matches!(self.status, Status::Active)
    }

    fn sums(&self) -> Sums {
        Sums {
            leased: self.slots.leased_bytes(),
            quarantined: self.quarantined.iter().map(QuarantinedSlot::len).sum(),
        }
    }

    /// Tells who waits for a quarantined slot that it does not come back.
    pub(crate) fn end(self) {
        self.quarantined
            .into_iter()
            .for_each(QuarantinedSlot::retire);
    }
}

/// A slab's figures as they were under the lock. Its pages are looked up after it.
pub(crate) struct Figures {
    id: SlabId,
    memory: Memory,
    bytes: u64,
    sums: Sums,
    cuda: Option<CudaKind>,
    pages: Option<MappedPages>,
}

impl Figures {
    pub(crate) fn of(entry: &SlabState) -> Self {
        Self {
            id: entry.slab.id(),
            memory: entry.slab.memory(),
            bytes: entry.slab.len(),
            sums: entry.sums(),
            cuda: entry.slab.cuda().map(CudaMemory::kind),
            pages: entry.slab.pages().cloned(),
        }
    }

    /// In the order of the slabs' numbers.
    pub(crate) fn stats(mut all: Vec<Self>) -> Vec<SlabStats> {
        all.sort_by_key(|slab| slab.id);
        let smaps = Smaps::default();
        let slabs = all.into_iter().map(|slab| SlabStats {
            id: slab.id,
            memory: slab.memory,
            bytes: slab.bytes,
            leased: slab.sums.leased,
            quarantined: slab.sums.quarantined,
            cuda: slab.cuda,
            pages: slab.pages.map(|pages| pages.get(&smaps)),
        });
        slabs.collect()
    }
}

/// Bytes leased, quarantined ones included, and bytes quarantined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    pub(crate) leased: u64,
    pub(crate) quarantined: u64,
}

impl Sums {
    fn subtract(&mut self, other: Sums) {
        self.leased -= other.leased;
        self.quarantined -= other.quarantined;
    }
}

/// What one client holds.
pub(crate) struct Account {
    pub(crate) client: Arc<Client>,
    pub(crate) slabs: BTreeMap<SlabId, SlabState>,
    pub(crate) made: u64,
    pub(crate) exports: u64,
    sums: Sums,
    /// Gives nothing any more, and ends with its last slab.
    retired: bool,
}

/// What became of a slab when a lease in it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Released {
    /// It had been given up before.
    Gone,
    /// Others use it.
    Busy,
    /// Nobody uses it.
    Idle,
    /// Nobody uses it, and nobody will.
    Orphaned,
}

/// A slab's entry, and the sums that it is part of.
struct Located<'a> {
    entry: &'a mut SlabState,
    sums: [&'a mut Sums; 2],
    retired: bool,
}

/// All accounts of a pool.
#[derive(Default)]
pub(crate) struct Accounts {
    accounts: HashMap<ClientId, Account>,
    pub(crate) total: Sums,
    pub(crate) made: u64,
    pub(crate) exports: u64,
    released: u64,
}

impl Accounts {
    pub(crate) fn open(&mut self, client: Arc<Client>) {
        let account = Account {
            client: Arc::clone(&client),
            slabs: BTreeMap::new(),
            made: 0,
            exports: 0,
            sums: Sums::default(),
            retired: false,
        };
        self.accounts.insert(client.id, account);
    }

    /// The account, even of a retired client as long as slabs of it are left.
    pub(crate) fn get(&self, client: ClientId) -> Option<&Account> {
        self.accounts.get(&client)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Account> {
        self.accounts.values()
    }

    /// Clients that are there or hold something still, the process itself not counted.
    pub(crate) fn clients(&self) -> usize {
        self.accounts.len() - usize::from(self.accounts.contains_key(&Shared::HOST))
    }

    pub(crate) fn is_retired(&self, client: ClientId) -> bool {
        self.get(client).is_none_or(|account| account.retired)
    }

    /// Bytes of a kind of memory that one client has leased, or all have.
    pub(crate) fn leased(&self, client: Option<ClientId>, memory: Memory) -> u64 {
        let accounts = self.accounts.values();
        let of = accounts.filter(|account| client.is_none_or(|id| account.client.id == id));
        of.flat_map(|account| account.slabs.values())
            .filter(|entry| entry.slab.memory() == memory)
            .map(|entry| entry.slots.leased_bytes())
            .sum()
    }

    pub(crate) fn sums(&self, client: ClientId) -> Sums {
        self.get(client)
            .map_or(Sums::default(), |account| account.sums)
    }

    pub(crate) fn slab_mut(&mut self, slab: &Slab) -> Option<&mut SlabState> {
        Some(self.locate(slab)?.entry)
    }

    fn locate(&mut self, slab: &Slab) -> Option<Located<'_>> {
        let account = self.accounts.get_mut(&slab.client().id)?;
        Some(Located {
            entry: account.slabs.get_mut(&slab.id())?,
            sums: [&mut account.sums, &mut self.total],
            retired: account.retired,
        })
    }

    /// The account of a client that may lease, and the total it counts towards.
    fn working(&mut self, client: &Client) -> Result<(&mut Account, &mut Sums), PoolError> {
        let account = self.accounts.get_mut(&client.id);
        let account = account.filter(|account| !account.retired);
        let account = account.ok_or_else(|| PoolError::Retired {
            client: Arc::clone(&client.name),
        })?;
        Ok((account, &mut self.total))
    }

    /// A slot in one of the client's slabs, if there is room.
    pub(crate) fn lease(
        &mut self,
        client: &Client,
        wanted: Wanted,
    ) -> Result<Option<(Arc<Slab>, Place)>, PoolError> {
        let Wanted { len, memory, align } = wanted;
        let (account, total) = self.working(client)?;
        let takes_work = |entry: &&mut SlabState| {
            matches!(entry.status, Status::Active)
                && entry.slab.memory() == memory
                && !entry.slab.is_adopted()
        };
        let found = account
            .slabs
            .values_mut()
            .filter(takes_work)
            .find_map(|entry| {
                let before = entry.slots.leased_bytes();
                let (slot, offset) = entry.slots.lease(len, align)?;
                let place = Place {
                    slot,
                    offset,
                    len,
                    align,
                };
                let taken = entry.slots.leased_bytes() - before;
                Some((Arc::clone(&entry.slab), place, taken))
            });
        Ok(found.map(|(slab, place, taken)| {
            account.sums.leased += taken;
            total.leased += taken;
            (slab, place)
        }))
    }

    /// A slot of the memory that `is` tells from other such, `len` bytes at `at` of it, if it is known.
    pub(crate) fn lease_adopted(
        &mut self,
        client: &Client,
        is: impl Fn(&Slab) -> bool,
        at: u64,
        len: u64,
    ) -> Result<Option<(Arc<Slab>, Place)>, PoolError> {
        let (account, total) = self.working(client)?;
        let mut slabs = account.slabs.values_mut();
        let Some(entry) = slabs.find(|entry| entry.slab.is_adopted() && is(&entry.slab)) else {
            return Ok(None);
        };
        let have = entry.slab.len();
        if at.checked_add(len).is_none_or(|end| end > have) || len == 0 {
            return Err(CudaError::Unusable {
                what: "cannot fill the caller's memory",
                why: format!("{len} bytes at {at} are not of its {have} bytes"),
            })?;
        }
        let leased = entry.slots.leased();
        if leased >= MOST_SLOTS && client.id != Shared::HOST {
            return Err(CudaError::Unusable {
                what: "cannot fill the caller's memory",
                why: format!("there are {leased} buffers of this allocation"),
            })?;
        }
        let active = matches!(entry.status, Status::Active);
        let slot = active.then(|| entry.slots.lease_at(at, len)).flatten();
        let slot = slot.ok_or_else(|| CudaError::Unusable {
            what: "cannot fill the caller's memory",
            why: "another GET fills some of these bytes, or may still do so".to_owned(),
        })?;
        let place = Place {
            slot,
            offset: at,
            len,
            align: Slots::GRAIN,
        };
        account.sums.leased += len;
        total.leased += len;
        Ok(Some((Arc::clone(&entry.slab), place)))
    }

    /// Adopted slabs of a client.
    pub(crate) fn adopted(&self, client: &Client) -> usize {
        let account = self.get(client.id);
        let slabs = account
            .into_iter()
            .flat_map(|account| account.slabs.values());
        slabs.filter(|entry| entry.slab.is_adopted()).count()
    }

    /// Takes out slabs of the caller's memory that nobody uses.
    pub(crate) fn take_adopted(
        &mut self,
        client: &Client,
        of: impl Fn(&Slab) -> bool,
    ) -> Vec<SlabState> {
        let account = self.get(client.id);
        let slabs = account
            .into_iter()
            .flat_map(|account| account.slabs.values());
        let idle = slabs.filter(|entry| entry.is_idle() && of(&entry.slab));
        let idle: Vec<_> = idle.map(|entry| Arc::clone(&entry.slab)).collect();
        idle.iter().filter_map(|slab| self.remove(slab)).collect()
    }

    /// Takes out slabs of the caller's memory so that at most so many are left: those used least lately, and none that
    /// is in use.
    pub(crate) fn adopted_beyond(&mut self, client: &Client, most: usize) -> Vec<SlabState> {
        let account = self.get(client.id);
        let slabs = account
            .into_iter()
            .flat_map(|account| account.slabs.values());
        let adopted: Vec<_> = slabs.filter(|entry| entry.slab.is_adopted()).collect();
        let over = adopted.len().saturating_sub(most);
        let mut idle: Vec<_> = adopted
            .into_iter()
            .filter(|entry| entry.is_idle())
            .collect();
        idle.sort_by_key(|entry| entry.used);
        let idle = idle.into_iter().take(over);
        let idle: Vec<_> = idle.map(|entry| Arc::clone(&entry.slab)).collect();
        idle.iter().filter_map(|slab| self.remove(slab)).collect()
    }

    /// Enters a slab that was made for its client.
    pub(crate) fn add(&mut self, slab: &Arc<Slab>) -> Result<(), PoolError> {
        let (account, _) = self.working(slab.client())?;
        let entry = SlabState {
            slab: Arc::clone(slab),
            slots: Slots::new(slab.id(), slab.len()),
            status: Status::Active,
            quarantined: Vec::new(),
            exported: false,
            used: 0,
        };
        account.slabs.insert(slab.id(), entry);
        account.made += 1;
        self.made += 1;
        Ok(())
    }

    /// Ends a lease.
    pub(crate) fn release(&mut self, slab: &Slab, slot: SlotId) -> Released {
        self.released += 1;
        let count = self.released;
        let Some(found) = self.locate(slab) else {
            return Released::Gone;
        };
        let freed = found.entry.slots.release(slot);
        debug_assert!(freed.is_ok(), "a lease is released once");
        found.entry.used = count;
        for sums in found.sums {
            sums.leased -= freed.unwrap_or(0);
        }
        match (found.entry.is_idle(), found.retired) {
            (false, _) => Released::Busy,
            (true, false) => Released::Idle,
            (true, true) => Released::Orphaned,
        }
    }

    /// Takes a slab out, with all that is leased in it.
    pub(crate) fn remove(&mut self, slab: &Slab) -> Option<SlabState> {
        let account = self.accounts.get_mut(&slab.client().id)?;
        let entry = account.slabs.remove(&slab.id())?;
        account.sums.subtract(entry.sums());
        self.total.subtract(entry.sums());
        self.close(slab.client().id);
        Some(entry)
    }

    /// Forgets a retired client that holds nothing.
    fn close(&mut self, client: ClientId) {
        let over = |account: &Account| account.retired && account.slabs.is_empty();
        if self.get(client).is_some_and(over) {
            self.accounts.remove(&client);
        }
    }

    /// No new leases for the client. Returns whether this ended it: not where it had ended before.
    pub(crate) fn retire(&mut self, client: ClientId) -> bool {
        let Some(account) = self.accounts.get_mut(&client) else {
            return false;
        };
        let ended = !std::mem::replace(&mut account.retired, true);
        self.close(client);
        ended
    }

    /// Counts an export of one of the client's slabs.
    pub(crate) fn export(&mut self, client: &Client, slab: SlabId) -> Result<Arc<Slab>, PoolError> {
        let (account, _) = self.working(client)?;
        let entry = account.slabs.get_mut(&slab);
        let entry = entry.filter(|entry| !entry.slab.is_adopted());
        let entry = entry.ok_or(PoolError::UnknownSlab { slab })?;
        let exported = Arc::clone(&entry.slab);
        entry.exported = true;
        account.exports += 1;
        self.exports += 1;
        Ok(exported)
    }

    /// Takes out slabs of that kind and such clients that nobody uses, together of at least `missing` bytes, or none:
    /// the asking client's own first, then those that were used least lately.
    pub(crate) fn take_idle(
        &mut self,
        missing: u64,
        memory: Memory,
        asking: ClientId,
        of: impl Fn(&Client) -> bool,
    ) -> Vec<SlabState> {
        let mut idle: Vec<_> = self
            .iter()
            .filter(|account| of(&account.client))
            .flat_map(|account| account.slabs.values())
            .filter(|entry| entry.is_idle() && entry.slab.memory() == memory)
            .filter(|entry| !entry.slab.is_adopted())
            .map(|entry| {
                let others = entry.slab.client().id != asking;
                (others, entry.used, Arc::clone(&entry.slab))
            })
            .collect();
        idle.sort_by_key(|&(others, used, ref slab)| (others, used, slab.id()));
        let mut room = 0;
        let enough = idle.iter().position(|(_, _, slab)| {
            room += slab.len();
            room >= missing
        });
        let taken = enough.map_or(0, |last| last + 1);
        let slabs = idle.into_iter().take(taken);
        slabs
            .filter_map(|(_, _, slab)| self.remove(&slab))
            .collect()
    }

    /// Takes out the slabs that nobody uses and nobody will: those of retired clients.
    pub(crate) fn take_orphans(&mut self) -> Vec<SlabState> {
        let orphans = |account: &Account| {
            let slabs = account.slabs.values();
            let orphans = slabs.filter(|entry| entry.is_idle() && account.retired);
            orphans
                .map(|entry| Arc::clone(&entry.slab))
                .collect::<Vec<_>>()
        };
        let idle: Vec<_> = self.iter().flat_map(orphans).collect();
        idle.iter().filter_map(|slab| self.remove(slab)).collect()
    }

    /// Takes out everything.
    pub(crate) fn take_all(&mut self) -> Vec<SlabState> {
        let accounts = std::mem::take(&mut self.accounts);
        self.total = Sums::default();
        accounts
            .into_values()
            .flat_map(|account| account.slabs.into_values())
            .collect()
    }

    /// Puts a leased slot into quarantine. Hands it back where its slab was given up before.
    pub(crate) fn quarantine(
        &mut self,
        slab: &Slab,
        slot: QuarantinedSlot,
    ) -> Result<(), QuarantinedSlot> {
        let Some(Located { entry, sums, .. }) = self.locate(slab) else {
            return Err(slot);
        };
        entry.slab.ledger.drain();
        if matches!(entry.status, Status::Active) {
            entry.status = Status::Draining(Instant::now());
        }
        for sums in sums {
            sums.quarantined += slot.len();
        }
        entry.quarantined.push(slot);
        Ok(())
    }

    /// Takes those slots out of a slab's quarantine that `free` says yes to. They are still leased.
    pub(crate) fn take_quarantined(
        &mut self,
        slab: &Slab,
        free: impl Fn(&QuarantinedSlot) -> bool,
    ) -> Vec<QuarantinedSlot> {
        let Some(Located { entry, sums, .. }) = self.locate(slab) else {
            return Vec::new();
        };
        let taken = entry.quarantined.extract_if(.., |slot| free(slot));
        let taken: Vec<_> = taken.collect();
        let bytes: u64 = taken.iter().map(QuarantinedSlot::len).sum();
        for sums in sums {
            sums.quarantined -= bytes;
        }
        taken
    }

    /// All slabs of all clients: for the keeper, not for the path of a lease.
    pub(crate) fn slabs_mut(&mut self) -> impl Iterator<Item = &mut SlabState> {
        let accounts = self.accounts.values_mut();
        accounts.flat_map(|account| account.slabs.values_mut())
    }

    /// Shows the sums as metrics. Under the lock, so that no older figure is shown after a newer one.
    pub(crate) fn report(&self) {
        metrics::gauge!("s3engine_pool_leased_bytes").set(self.total.leased as f64);
        metrics::gauge!("s3engine_pool_quarantined_bytes").set(self.total.quarantined as f64);
        metrics::gauge!("s3engine_pool_clients").set(self.clients() as f64);
    }
}
