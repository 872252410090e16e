//! A handle to a pool.

use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::accounts::{Figures, Wanted};
use crate::buffer::Buffer;
use crate::client::{ClientOptions, Handle};
use crate::import::GiveBack;
use crate::landing::Landing;
use crate::ledger::{FabricId, MAX_FABRICS, RegistrationState, segment_len};
use crate::memory::{Memory, MemoryError, SLAB_ALIGN};
use crate::options::{PoolError, PoolOptions, PoolStats, bound, check_align};
use crate::process::Process;
use crate::quarantine::keep;
use crate::registrar::{Registrar, RevokeError};
use crate::remote::Remote;
use crate::shared::Shared;
use crate::slab::{Slab, SlabId};
use crate::slots::{SlotId, StaleSlot};
use crate::waiting::{Changed, wait};

/// A handle to a pool of slabs. Clones share it.
///
/// In the process that owns the pool each handle is one client's (see [`for_client`](Self::for_client)): what it
/// leases, names and exports is that client's; figures of the pool are of all.
#[derive(Clone)]
pub struct Pool {
    inner: Inner,
}

/// Whose the pool is.
#[derive(Clone)]
pub(crate) enum Inner {
    Owner(Arc<Handle>),
    Remote(Arc<Remote>),
}

impl Pool {
    /// An empty pool without fabrics. Slabs are made as leases ask for them.
    pub fn new(options: PoolOptions) -> Result<Self, PoolError> {
        Self::with_fabrics(options, Vec::new())
    }

    /// An empty pool whose slabs can be registered with `fabrics`; the n-th gets the n-th [`FabricId`].
    pub fn with_fabrics(
        options: PoolOptions,
        fabrics: Vec<Arc<dyn Registrar>>,
    ) -> Result<Self, PoolError> {
        debug_assert!(fabrics.len() <= MAX_FABRICS);
        check_align(options.align)?;
        let max_bytes = bound(&options)?;
        let shared = Arc::new(Shared::new(options, max_bytes, fabrics));
        let host = shared.open(ClientOptions::named("host"))?;
        let keeper = Arc::clone(&shared.keeper);
        let weak = Arc::downgrade(&shared);
        let spawned = thread::Builder::new()
            .name("s3engine-keeper".into())
            .spawn(move || keep(weak, keeper));
        spawned.map_err(|source| MemoryError::System {
            step: "starting the keeper thread",
            len: 0,
            memory: Memory::Host,
            source,
        })?;
        Ok(Self::of(host))
    }

    pub(crate) fn of(handle: Handle) -> Self {
        let inner = Inner::Owner(Arc::new(handle));
        Self { inner }
    }

    pub(crate) fn of_remote(remote: Remote) -> Self {
        let inner = Inner::Remote(Arc::new(remote));
        Self { inner }
    }

    /// The owner's part, where this process is the owner.
    pub(crate) fn owner(&self) -> Result<&Arc<Handle>, PoolError> {
        match self.inner()? {
            Inner::Owner(handle) => Ok(handle),
            Inner::Remote(_) => Err(PoolError::NotOwner),
        }
    }

    /// Who is to be asked, in the process that has the handle.
    pub(crate) fn inner(&self) -> Result<&Inner, PoolError> {
        match self.process().is_this() {
            true => Ok(&self.inner),
            false => Err(PoolError::Forked),
        }
    }

    fn process(&self) -> Process {
        match &self.inner {
            Inner::Owner(handle) => handle.shared.process,
            Inner::Remote(remote) => remote.process,
        }
    }

    /// The number of the n-th fabric. Nothing where another process owns the pool.
    pub fn fabric(&self, nth: usize) -> Option<FabricId> {
        let shared = &self.owner().ok()?.shared;
        (nth < shared.fabrics.len()).then_some(FabricId(nth as u8))
    }

    /// The most bytes of a kind of memory that are ever mapped.
    pub fn max_bytes(&self, memory: Memory) -> Result<u64, PoolError> {
        Ok(self.owner()?.shared.bound(memory)?)
    }

    /// A slot of `len` bytes, if there is room now. May make a slab, which takes time.
    pub fn try_alloc(&self, len: u64, memory: Memory) -> Result<Buffer, PoolError> {
        let align = match &self.inner {
            Inner::Owner(handle) => handle.shared.options.align,
            Inner::Remote(remote) => remote.pool.align(),
        };
        self.try_alloc_aligned(len, memory, align)
    }

    /// The same at a multiple of `align`, a power of two from 4 KiB to 2 MiB.
    pub fn try_alloc_aligned(
        &self,
        len: u64,
        memory: Memory,
        align: u64,
    ) -> Result<Buffer, PoolError> {
        check_align(align)?;
        let Handle { shared, client } = match self.inner()? {
            Inner::Owner(handle) => &**handle,
            Inner::Remote(remote) => return remote.pool.try_alloc(len, memory, align),
        };
        let max_bytes = client.bound(shared.bound(memory)?);
        if len
            .checked_next_multiple_of(SLAB_ALIGN)
            .is_none_or(|needed| needed > max_bytes)
        {
            return Err(PoolError::TooLarge { len, max_bytes });
        }
        let wanted = Wanted { len, memory, align };
        if let Some(buffer) = shared.lease(client, wanted)? {
            return Ok(buffer);
        }
        shared.grow_and_lease(client, wanted)
    }

    /// A slot of `len` bytes, waiting at most `timeout` for others to give theirs back.
    pub fn alloc(&self, len: u64, memory: Memory, timeout: Duration) -> Result<Buffer, PoolError> {
        let began = Instant::now();
        loop {
            let changed = self.changes();
            match self.try_alloc(len, memory) {
                Err(PoolError::WouldBlock {
                    len,
                    leased,
                    max_bytes,
                    bound,
                }) => {
                    let waited = began.elapsed();
                    if waited >= timeout {
                        return Err(PoolError::TimedOut {
                            len,
                            leased,
                            max_bytes,
                            bound,
                            waited,
                        });
                    }
                    wait(changed, began.checked_add(timeout));
                }
                result => return result,
            }
        }
    }

    /// `count` slots of `len` bytes, or none.
    pub fn alloc_many(
        &self,
        count: usize,
        len: u64,
        memory: Memory,
    ) -> Result<Vec<Buffer>, PoolError> {
        (0..count).map(|_| self.try_alloc(len, memory)).collect()
    }

    /// Completes when memory was given back, or a slab was revoked or given up, after this call.
    pub fn changed(&self) -> impl Future<Output = ()> + Send + 'static {
        self.changes()
    }

    fn changes(&self) -> Changed {
        if !self.process().is_this() {
            return Changed::Now;
        }
        match &self.inner {
            Inner::Owner(handle) => Changed::Owner {
                client: handle.client.freed.listen(),
                pool: handle.shared.room.freed.listen(),
            },
            Inner::Remote(remote) => Changed::Remote(remote.pool.changed()),
        }
    }

    /// The time within which a slot leaves quarantine, unless several slabs wait for silent peers. None where
    /// another process owns the pool: nothing is in quarantine here.
    pub fn quarantine_bound(&self) -> Duration {
        let Inner::Owner(handle) = &self.inner else {
            return Duration::ZERO;
        };
        let options = &handle.shared.options;
        let waits = options
            .quarantine_max
            .saturating_add(options.revoke_timeout);
        waits.saturating_add(Duration::from_secs(1))
    }

    /// Where in a landing a fabric's segments end: the first end, and from there every so many bytes. No
    /// request may cross one. Without that fabric they end nowhere.
    pub fn segment_ends(&self, landing: &Landing, fabric: FabricId) -> (u64, u64) {
        let registrar = match &self.inner {
            Inner::Owner(handle) => handle.shared.fabrics.get(usize::from(fabric.0)),
            Inner::Remote(_) => None,
        };
        let Some(registrar) = registrar else {
            return (u64::MAX, u64::MAX);
        };
        let limit = segment_len(&**registrar);
        (limit - landing.start() % limit, limit)
    }

    /// What the ledger says of the segments of one of the client's slabs with a fabric. Empty where none was
    /// ever used, and where another process owns the pool.
    pub fn registrations(&self, slab: SlabId, fabric: FabricId) -> Vec<RegistrationState> {
        let slab = self.slab(slab);
        slab.map_or(Vec::new(), |slab| slab.ledger.states(fabric))
    }

    /// Revokes the registrations of one of the client's slabs; the next use registers anew. For those who want to
    /// know what registering costs: memory that is used again is best left registered. Returns false where a
    /// transfer is under way in the slab, or another process owns the pool. A revocation that is not confirmed
    /// costs the slab, as any other does.
    pub fn unregister(&self, slab: SlabId) -> Result<bool, RevokeError> {
        let Ok(owner) = self.owner() else {
            return Ok(false);
        };
        let Some(slab) = self.slab(slab) else {
            return Ok(false);
        };
        owner.shared.unregister(&slab)
    }

    /// A slab of this client.
    pub(crate) fn slab(&self, slab: SlabId) -> Option<Arc<Slab>> {
        let owner = self.owner().ok()?;
        let accounts = owner.shared.lock();
        let entry = accounts.get(owner.client.id)?.slabs.get(&slab)?;
        Some(Arc::clone(&entry.slab))
    }

    /// Whether a slot id names a lease of this client that has not ended. Of another process's pool, none.
    pub fn resolve(&self, slot: SlotId) -> Result<(), StaleSlot> {
        let owner = self.owner().map_err(|_| StaleSlot(slot))?;
        let accounts = owner.shared.lock();
        let account = accounts.get(owner.client.id);
        let entry = account.and_then(|account| account.slabs.get(&slot.slab));
        entry.ok_or(StaleSlot(slot))?.slots.resolve(slot).map(drop)
    }

    /// What the pool holds now, for all its clients. In a forked child, nothing.
    pub fn stats(&self) -> PoolStats {
        if !self.process().is_this() {
            return PoolStats::default();
        }
        let shared = match &self.inner {
            Inner::Owner(handle) => &handle.shared,
            Inner::Remote(remote) => return remote.pool.stats(),
        };
        let accounts = shared.lock();
        let slabs = accounts.iter().flat_map(|account| account.slabs.values());
        let slabs = slabs.map(Figures::of).collect();
        let mut stats = PoolStats {
            max_bytes: shared.max_bytes,
            mapped: shared.room.mapped(Memory::Host),
            leased: accounts.total.leased,
            quarantined: accounts.total.quarantined,
            slabs_made: accounts.made,
            clients: accounts.clients() as u64,
            exports: accounts.exports,
            slabs: Vec::new(),
            cuda: shared.cuda_stats(),
            ledger: shared.counters.stats(),
        };
        drop(accounts);
        stats.slabs = Figures::stats(slabs);
        stats
    }

    pub(crate) fn is(&self, shared: &Arc<Shared>) -> bool {
        match &self.inner {
            Inner::Owner(handle) => Arc::ptr_eq(&handle.shared, shared),
            Inner::Remote(_) => false,
        }
    }

    pub(crate) fn is_given_by(&self, giver: &dyn GiveBack) -> bool {
        match &self.inner {
            Inner::Owner(_) => false,
            Inner::Remote(remote) => remote.process.is_this() && remote.pool.is_giver(giver),
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Pool");
        match &self.inner {
            Inner::Owner(handle) => shown
                .field("client", &handle.client.name)
                .field("max_bytes", &handle.client.max_bytes),
            Inner::Remote(_) => shown.field("owner", &"another process"),
        };
        shown.finish_non_exhaustive()
    }
}
