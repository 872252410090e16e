//! The pool: slabs under one hard bound, slots leased from them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use event_listener::{Event, Listener};

use crate::buffer::{Buffer, Landing, Lease, Place};
use crate::ledger::{
    Counters, FabricId, LedgerStats, MAX_FABRICS, RegistrationState, RegistrationUse,
    UnregisteredWhy, segment_len,
};
use crate::limit::{MemoryLimit, memory_limit};
use crate::memory::{HostMemory, HugePages, Memory, MemoryError, SLAB_ALIGN};
use crate::process::Process;
use crate::quarantine::{QuarantinedSlot, Status, keep};
use crate::registrar::{Registrar, RevokeError};
use crate::slab::{Reservation, Slab, SlabId, SlabStats};
use crate::slots::{SlotId, Slots, StaleSlot};

/// How a pool is made.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// Bytes of a slab. A request for more gets a slab of its own size; near the bound, slabs are smaller.
    pub slab_bytes: u64,
    /// The most bytes ever mapped. `None`: half of what this process may use. Memory of a slab that was given
    /// up counts until this process unmaps it; a peer that is silent may hold it longer.
    pub max_bytes: Option<u64>,
    /// Alignment of slots where a request names none: a power of two from 4 KiB to 2 MiB.
    pub align: u64,
    /// Whether to ask for huge pages.
    pub huge_pages: HugePages,
    /// The longest that a slab with quarantined slots waits for its other tokens before revocation.
    pub quarantine_max: Duration,
    /// More quarantined bytes than this are not waited for: revocation is at once.
    pub quarantine_max_bytes: u64,
    /// How long a revocation may take to be confirmed.
    pub revoke_timeout: Duration,
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self {
            slab_bytes: 256 << 20,
            max_bytes: None,
            align: 4096,
            huge_pages: HugePages::Auto,
            quarantine_max: Duration::from_secs(10),
            quarantine_max_bytes: 1 << 30,
            revoke_timeout: Duration::from_secs(2),
        }
    }
}

/// Why the pool has no memory to give.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// All of it is leased; some of it will come back.
    #[error("the pool is full: {len} bytes wanted, {leased} of {max_bytes} bytes leased")]
    WouldBlock {
        /// Bytes wanted.
        len: u64,
        /// Bytes leased.
        leased: u64,
        /// The pool's bound.
        max_bytes: u64,
    },
    /// Nothing came back in time.
    #[error(
        "the pool stayed full for {waited:?}: {len} bytes wanted, {leased} of {max_bytes} bytes leased"
    )]
    TimedOut {
        /// Bytes wanted.
        len: u64,
        /// Bytes leased.
        leased: u64,
        /// The pool's bound.
        max_bytes: u64,
        /// How long it was waited for.
        waited: Duration,
    },
    /// More than the pool could ever give.
    #[error("{len} bytes wanted of a pool of {max_bytes} bytes")]
    TooLarge {
        /// Bytes wanted.
        len: u64,
        /// The pool's bound.
        max_bytes: u64,
    },
    /// Not a power of two from 4 KiB to 2 MiB.
    #[error("alignment {align} is not a power of two from 4096 to {SLAB_ALIGN}")]
    Alignment {
        /// The alignment asked for.
        align: u64,
    },
    /// A pool larger than this process may use.
    #[error("a pool of {max_bytes} bytes is over the memory limit of {limit}")]
    OverMemoryLimit {
        /// The bound asked for.
        max_bytes: u64,
        /// The limit and its source.
        limit: MemoryLimit,
    },
    /// A pool too small for one slab, or a slab of no bytes.
    #[error(
        "a pool needs at least {SLAB_ALIGN} bytes, and slabs of at least that: {max_bytes} and {slab_bytes} given"
    )]
    TooSmall {
        /// The bound asked for.
        max_bytes: u64,
        /// The slab size asked for.
        slab_bytes: u64,
    },
    /// This process is a forked child of the one whose pool it is.
    #[error("this pool is of the process that forked this one: make another pool here")]
    Forked,
    /// The system gave no memory.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

/// What a pool holds at a moment.
#[derive(Clone, Debug)]
pub struct PoolStats {
    /// The bound.
    pub max_bytes: u64,
    /// Bytes mapped.
    pub mapped: u64,
    /// Bytes leased, quarantined ones included.
    pub leased: u64,
    /// Bytes in quarantine.
    pub quarantined: u64,
    /// Slabs made since the start.
    pub slabs_made: u64,
    /// The slabs there are.
    pub slabs: Vec<SlabStats>,
    /// What registering has cost.
    pub ledger: LedgerStats,
}

pub(crate) struct SlabState {
    pub(crate) slab: Arc<Slab>,
    pub(crate) slots: Slots,
    pub(crate) status: Status,
    pub(crate) quarantined: Vec<QuarantinedSlot>,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) slabs: BTreeMap<SlabId, SlabState>,
    made: u64,
}

/// What all handles of a pool share.
pub(crate) struct Shared {
    pub(crate) process: Process,
    pub(crate) options: PoolOptions,
    max_bytes: u64,
    pub(crate) fabrics: Vec<Arc<dyn Registrar>>,
    pub(crate) counters: Counters,
    mapped: Arc<AtomicU64>,
    state: Mutex<State>,
    /// Held while a slab is made, so that two requests do not make two.
    growing: Mutex<()>,
    pub(crate) freed: Arc<Event>,
    pub(crate) quarantined: Arc<Event>,
}

/// A handle to a pool of slabs. Clones share it.
#[derive(Clone)]
pub struct Pool {
    shared: Arc<Shared>,
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
        let quarantined = Arc::new(Event::new());
        let shared = Arc::new(Shared {
            process: Process::current(),
            options,
            max_bytes,
            fabrics,
            counters: Counters::default(),
            mapped: Arc::default(),
            state: Mutex::default(),
            growing: Mutex::default(),
            freed: Arc::default(),
            quarantined: Arc::clone(&quarantined),
        });
        let weak = Arc::downgrade(&shared);
        let spawned = thread::Builder::new()
            .name("s3engine-keeper".into())
            .spawn(move || keep(weak, quarantined));
        spawned.map_err(|source| MemoryError::System {
            step: "starting the keeper thread",
            len: 0,
            memory: Memory::Host,
            source,
        })?;
        Ok(Self { shared })
    }

    /// The number of the n-th fabric.
    pub fn fabric(&self, nth: usize) -> Option<FabricId> {
        (nth < self.shared.fabrics.len()).then_some(FabricId(nth as u8))
    }

    /// A slot of `len` bytes, if there is room now. May make a slab, which takes time.
    pub fn try_alloc(&self, len: u64, memory: Memory) -> Result<Buffer, PoolError> {
        self.try_alloc_aligned(len, memory, self.shared.options.align)
    }

    /// The same at a multiple of `align`, a power of two from 4 KiB to 2 MiB.
    pub fn try_alloc_aligned(
        &self,
        len: u64,
        memory: Memory,
        align: u64,
    ) -> Result<Buffer, PoolError> {
        check_align(align)?;
        if !self.shared.process.is_this() {
            return Err(PoolError::Forked);
        }
        let too_large = PoolError::TooLarge {
            len,
            max_bytes: self.shared.max_bytes,
        };
        if len
            .checked_next_multiple_of(SLAB_ALIGN)
            .is_none_or(|needed| needed > self.shared.max_bytes)
        {
            return Err(too_large);
        }
        if let Some(buffer) = self.shared.lease(len, memory, align) {
            return Ok(buffer);
        }
        self.shared.grow_and_lease(len, memory, align)
    }

    /// A slot of `len` bytes, waiting at most `timeout` for others to give theirs back.
    pub fn alloc(&self, len: u64, memory: Memory, timeout: Duration) -> Result<Buffer, PoolError> {
        let began = Instant::now();
        loop {
            let freed = self.shared.freed.listen();
            match self.try_alloc(len, memory) {
                Err(PoolError::WouldBlock {
                    len,
                    leased,
                    max_bytes,
                }) => {
                    let left = timeout.saturating_sub(began.elapsed());
                    if left.is_zero() {
                        return Err(PoolError::TimedOut {
                            len,
                            leased,
                            max_bytes,
                            waited: began.elapsed(),
                        });
                    }
                    let _ = freed.wait_timeout(left);
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
        self.shared.freed.listen()
    }

    /// The time within which a slot leaves quarantine, unless several slabs wait for silent peers.
    pub fn quarantine_bound(&self) -> Duration {
        let options = &self.shared.options;
        let waits = options
            .quarantine_max
            .saturating_add(options.revoke_timeout);
        waits.saturating_add(Duration::from_secs(1))
    }

    /// Where in a landing a fabric's segments end: the first end, and from there every so many bytes. No
    /// request may cross one.
    pub fn segment_ends(&self, landing: &Landing, fabric: FabricId) -> (u64, u64) {
        let limit = segment_len(&*self.shared.fabrics[usize::from(fabric.0)]);
        (limit - landing.start() % limit, limit)
    }

    /// What the ledger says of a slab's segments with a fabric. Empty where none was ever used.
    pub fn registrations(&self, slab: SlabId, fabric: FabricId) -> Vec<RegistrationState> {
        self.shared
            .lock()
            .slabs
            .get(&slab)
            .map(|entry| entry.slab.ledger.states(fabric))
            .unwrap_or_default()
    }

    /// Whether a slot id names a lease that has not ended.
    pub fn resolve(&self, slot: SlotId) -> Result<(), StaleSlot> {
        let state = self.shared.lock();
        state
            .slabs
            .get(&slot.slab)
            .ok_or(StaleSlot(slot))?
            .slots
            .resolve(slot)
            .map(drop)
    }

    /// What the pool holds now.
    pub fn stats(&self) -> PoolStats {
        let state = self.shared.lock();
        let slabs: Vec<_> = state
            .slabs
            .iter()
            .map(|(&id, entry)| SlabStats {
                id,
                memory: entry.slab.memory(),
                bytes: entry.slab.len(),
                leased: entry.slots.leased_bytes(),
                quarantined: entry.quarantined.iter().map(QuarantinedSlot::len).sum(),
                pages: entry.slab.pages(),
            })
            .collect();
        PoolStats {
            max_bytes: self.shared.max_bytes,
            mapped: self.shared.mapped.load(Ordering::Acquire),
            leased: slabs.iter().map(|slab| slab.leased).sum(),
            quarantined: slabs.iter().map(|slab| slab.quarantined).sum(),
            slabs_made: state.made,
            slabs,
            ledger: self.shared.counters.stats(),
        }
    }

    pub(crate) fn is(&self, shared: &Arc<Shared>) -> bool {
        Arc::ptr_eq(&self.shared, shared)
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("max_bytes", &self.shared.max_bytes)
            .finish_non_exhaustive()
    }
}

fn check_align(align: u64) -> Result<(), PoolError> {
    let fine = align.is_power_of_two() && (Slots::GRAIN..=SLAB_ALIGN).contains(&align);
    fine.then_some(()).ok_or(PoolError::Alignment { align })
}

/// The pool's bound in whole slab grains, checked against what this process may use.
fn bound(options: &PoolOptions) -> Result<u64, PoolError> {
    let limit = memory_limit();
    let max_bytes = match (options.max_bytes, limit) {
        (Some(max_bytes), Some(limit)) if max_bytes > limit.bytes => {
            return Err(PoolError::OverMemoryLimit { max_bytes, limit });
        }
        (Some(max_bytes), _) => max_bytes,
        (None, Some(limit)) => limit.bytes / 2,
        (None, None) => 1 << 30,
    };
    let max_bytes = max_bytes - max_bytes % SLAB_ALIGN;
    if max_bytes == 0 || options.slab_bytes < SLAB_ALIGN {
        return Err(PoolError::TooSmall {
            max_bytes,
            slab_bytes: options.slab_bytes,
        });
    }
    Ok(max_bytes)
}

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lease(self: &Arc<Self>, len: u64, memory: Memory, align: u64) -> Option<Buffer> {
        let mut state = self.lock();
        let takes_work = |entry: &&mut SlabState| {
            matches!(entry.status, Status::Active) && entry.slab.memory() == memory
        };
        let (slab, (slot, offset)) = state
            .slabs
            .values_mut()
            .filter(takes_work)
            .find_map(|entry| Some((Arc::clone(&entry.slab), entry.slots.lease(len, align)?)))?;
        self.report(&state);
        Some(Buffer::new(Lease::new(
            Arc::clone(self),
            slab,
            Place {
                slot,
                offset,
                len,
                align,
            },
        )))
    }

    fn grow_and_lease(
        self: &Arc<Self>,
        len: u64,
        memory: Memory,
        align: u64,
    ) -> Result<Buffer, PoolError> {
        let _growing = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
        // Another request may have made a slab while this one waited.
        if let Some(buffer) = self.lease(len, memory, align) {
            return Ok(buffer);
        }
        let reserved = self.reserve(len)?;
        let memory_of_slab = match memory {
            Memory::Host => HostMemory::create(reserved.len(), self.options.huge_pages)?,
        };
        let mut state = self.lock();
        let id = SlabId::next();
        state.made += 1;
        let slab = Arc::new(Slab::host(id, memory_of_slab, reserved));
        tracing::debug!(slab = id.0, bytes = slab.len(), pages = %slab.pages(), "slab made");
        let mut slots = Slots::new(id, slab.len());
        let leased = slots.lease(len, align);
        let entry = SlabState {
            slab: Arc::clone(&slab),
            slots,
            status: Status::Active,
            quarantined: Vec::new(),
        };
        state.slabs.insert(id, entry);
        self.report(&state);
        drop(state);
        let (slot, offset) = leased.ok_or_else(|| self.would_block(len))?;
        Ok(Buffer::new(Lease::new(
            Arc::clone(self),
            slab,
            Place {
                slot,
                offset,
                len,
                align,
            },
        )))
    }

    /// Takes a slab's bytes out of the bound: a full slab where it fits, else as little as `len` needs,
    /// giving up idle slabs for it if that helps.
    fn reserve(&self, len: u64) -> Result<Reservation, PoolError> {
        let needed = len.max(1).next_multiple_of(SLAB_ALIGN);
        let slab_bytes = self.options.slab_bytes.min(self.max_bytes);
        let wanted = slab_bytes.next_multiple_of(SLAB_ALIGN).max(needed);
        let room = || self.max_bytes - self.mapped.load(Ordering::Acquire).min(self.max_bytes);
        if room() < needed {
            self.free_idle_slabs(needed);
        }
        let room = room();
        if room < needed {
            return Err(self.would_block(len));
        }
        let len = wanted.min(room - room % SLAB_ALIGN);
        Ok(Reservation::new(&self.mapped, &self.freed, len))
    }

    /// Unregisters and unmaps slabs that nobody uses, but only where that makes `needed` bytes of room.
    fn free_idle_slabs(&self, needed: u64) {
        let mut state = self.lock();
        let idle = |entry: &SlabState| {
            entry.slots.leased_bytes() == 0 && matches!(entry.status, Status::Active)
        };
        let idle_bytes: u64 = state
            .slabs
            .values()
            .filter(|e| idle(e))
            .map(|e| e.slab.len())
            .sum();
        let mapped = self.mapped.load(Ordering::Acquire);
        if mapped.saturating_sub(idle_bytes).saturating_add(needed) > self.max_bytes {
            return;
        }
        let freed: Vec<_> = state
            .slabs
            .extract_if(.., |_, entry| idle(entry))
            .map(|(_, entry)| entry)
            .collect();
        drop(state);
        let deadline = self.revoke_deadline();
        for entry in freed {
            // Unconfirmed is counted by the ledger; the mapping goes either way, so nobody reads it again.
            let _ = self.revoke(&entry.slab, deadline);
        }
    }

    fn would_block(&self, len: u64) -> PoolError {
        let leased = self
            .lock()
            .slabs
            .values()
            .map(|entry| entry.slots.leased_bytes())
            .sum();
        PoolError::WouldBlock {
            len,
            leased,
            max_bytes: self.max_bytes,
        }
    }

    /// The registration of a range of a slab with a fabric: made at first use, kept from then on.
    pub(crate) fn register(
        &self,
        slab: &Slab,
        fabric: FabricId,
        start: u64,
        len: u64,
    ) -> Result<RegistrationUse, UnregisteredWhy> {
        let registrar = &*self.fabrics[usize::from(fabric.0)];
        let range = (slab.len(), start, len);
        slab.ledger.use_for(
            fabric,
            registrar,
            &self.counters,
            slab.id(),
            range,
            |index, start, len| slab.segment(index, start, len),
        )
    }

    /// Until when all revocations that begin now must be confirmed.
    pub(crate) fn revoke_deadline(&self) -> Instant {
        let now = Instant::now();
        // A time too far to count is not waited for.
        now.checked_add(self.options.revoke_timeout).unwrap_or(now)
    }

    pub(crate) fn revoke(&self, slab: &Slab, deadline: Instant) -> Result<(), RevokeError> {
        slab.ledger
            .revoke_all(&self.fabrics, &self.counters, deadline)
    }

    /// Ends a lease.
    pub(crate) fn release(&self, slot: SlotId) {
        if !self.process.is_this() {
            return;
        }
        let mut state = self.lock();
        // A slab that was given up is not in the table any more.
        if let Some(entry) = state.slabs.get_mut(&slot.slab) {
            let released = entry.slots.release(slot);
            debug_assert!(released.is_ok(), "a lease is released once");
        }
        self.report(&state);
        drop(state);
        self.freed.notify(usize::MAX);
    }

    pub(crate) fn report(&self, state: &State) {
        let leased: u64 = state
            .slabs
            .values()
            .map(|entry| entry.slots.leased_bytes())
            .sum();
        metrics::gauge!("s3engine_pool_leased_bytes").set(leased as f64);
        metrics::gauge!("s3engine_pool_mapped_bytes")
            .set(self.mapped.load(Ordering::Relaxed) as f64);
        metrics::gauge!("s3engine_pool_quarantined_bytes").set(state.quarantined_bytes() as f64);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if !self.process.is_this() {
            // Revoking would end the parent's registrations; even the locks are the parent's.
            std::mem::forget(std::mem::take(&mut self.fabrics));
            return;
        }
        let slabs = &mut self
            .state
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .slabs;
        let slabs = std::mem::take(slabs);
        let deadline = self.revoke_deadline();
        for entry in slabs.into_values() {
            let _ = self.revoke(&entry.slab, deadline);
            entry
                .quarantined
                .into_iter()
                .for_each(QuarantinedSlot::retire);
        }
        // The keeper sees that the pool is gone, and ends.
        self.quarantined.notify(usize::MAX);
    }
}
