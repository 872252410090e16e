//! A handle to a pool.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use event_listener::Listener;

use crate::buffer::{Buffer, Landing};
use crate::ledger::{FabricId, MAX_FABRICS, RegistrationState, segment_len};
use crate::memory::{Memory, MemoryError, SLAB_ALIGN};
use crate::options::{PoolError, PoolOptions, PoolStats, bound, check_align};
use crate::quarantine::{QuarantinedSlot, keep};
use crate::registrar::Registrar;
use crate::shared::Shared;
use crate::slab::{SlabId, SlabStats};
use crate::slots::{SlotId, StaleSlot};

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
        let shared = Arc::new(Shared::new(options, max_bytes, fabrics));
        let quarantined = Arc::clone(&shared.quarantined);
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
