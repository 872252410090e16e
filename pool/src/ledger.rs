//! The registration ledger: for each (slab, segment, fabric) whether it is registered, or why not.
//!
//! Registered once, at first use or, for clients of a service, when the slab is made; read without a lock from
//! then on. What fails is tried once more after a moment; then the failure is kept, and not before a while has passed
//! does one transfer try again. Revocation is the pool's (see `quarantine`),
//! after which a segment is unregistered and the next use registers it anew.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;

use crate::SlabId;
use crate::memory::SLAB_ALIGN;
use crate::registrar::{RegisterError, Registrar, RegistrationHandle, RevokeError, Segment};

/// A fabric's number in one pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FabricId(pub(crate) u8);

/// More than the ways to move bytes that one host has.
pub(crate) const MAX_FABRICS: usize = 8;

/// One live registration of one segment.
pub struct Registration {
    fabric: FabricId,
    handle: RegistrationHandle,
    in_use: AtomicUsize,
}

impl Registration {
    /// The fabric's number for it.
    pub fn handle(&self) -> RegistrationHandle {
        self.handle
    }

    /// The fabric it is with.
    pub fn fabric(&self) -> FabricId {
        self.fabric
    }
}

/// Says that a token of this registration is out: revocation waits for it, up to a bound.
pub struct RegistrationUse(Arc<Registration>);

impl RegistrationUse {
    /// The registration in use.
    pub fn registration(&self) -> &Registration {
        &self.0
    }
}

impl Drop for RegistrationUse {
    fn drop(&mut self) {
        self.0.in_use.fetch_sub(1, Ordering::Release);
    }
}

/// Why a window has no registration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnregisteredWhy {
    /// The provider refused; found now or earlier.
    #[error("registration failed: {0}")]
    Failed(RegisterError),
    /// The window lies in two segments, or is longer than one.
    #[error("a window of {len} bytes at {offset} does not fit one segment of {limit} bytes")]
    OverLimit {
        /// Where in the slab the window starts.
        offset: u64,
        /// The window's length.
        len: u64,
        /// The fabric's segment length.
        limit: u64,
    },
    /// The slab is being revoked; after that it can be used again, or is gone.
    #[error("slab {} is being revoked", .0.0)]
    Draining(SlabId),
    /// The slab's revocation was not confirmed: nothing is registered in it any more.
    #[error("slab {} was given up: its revocation was not confirmed", .0.0)]
    GivenUp(SlabId),
}

/// What the ledger says about one segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegistrationState {
    /// Never used, or revoked since.
    Unregistered,
    /// A target for remote writes.
    Registered(RegistrationHandle),
    /// The provider refused.
    Failed(RegisterError),
}

#[derive(Default)]
struct Entry {
    current: ArcSwapOption<Registration>,
    /// Held while registering, so that it happens once; keeps the failure, and when it was.
    failed: Mutex<Option<(RegisterError, Instant)>>,
}

/// With whom memory is registered, and how often that is tried.
#[derive(Clone, Copy)]
pub(crate) struct Registering<'a> {
    pub(crate) registrar: &'a dyn Registrar,
    pub(crate) counters: &'a Counters,
    /// How long a failure stands.
    pub(crate) cool_down: Duration,
}

/// The pause before what has failed is tried once more.
const BACKOFF: Duration = Duration::from_millis(20);
/// What took as long to fail is not tried at once again.
const SLOW: Duration = Duration::from_secs(1);

/// Counts since the pool was made, all fabrics together.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) registered: AtomicU64,
    pub(crate) ahead: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) retried: AtomicU64,
    pub(crate) revoked: AtomicU64,
    pub(crate) unconfirmed: AtomicU64,
    pub(crate) nanoseconds: AtomicU64,
}

/// What registering has cost since the pool was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LedgerStats {
    /// Registrations that succeeded.
    pub registered: u64,
    /// Of these, made together with their slab: no GET waited for them.
    pub ahead: u64,
    /// Registrations that failed, tried once more or not.
    pub failed: u64,
    /// Registrations that were tried once more.
    pub retried: u64,
    /// Registrations revoked and confirmed.
    pub revoked: u64,
    /// Revocations that nobody confirmed: their slabs were given up.
    pub unconfirmed: u64,
    /// Time spent in registering.
    pub time: Duration,
}

impl Counters {
    pub(crate) fn stats(&self) -> LedgerStats {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        LedgerStats {
            registered: load(&self.registered),
            ahead: load(&self.ahead),
            failed: load(&self.failed),
            retried: load(&self.retried),
            revoked: load(&self.revoked),
            unconfirmed: load(&self.unconfirmed),
            time: Duration::from_nanos(load(&self.nanoseconds)),
        }
    }
}

/// The entries of one slab.
#[derive(Default)]
pub(crate) struct SlabLedger {
    fabrics: [OnceLock<Box<[Entry]>>; MAX_FABRICS],
    phase: AtomicU8,
}

/// Whether a slab's registrations may be used: its `phase`.
const OPEN: u8 = 0;
const DRAINING: u8 = 1;
const GIVEN_UP: u8 = 2;

impl SlabLedger {
    /// The registration that covers `len` bytes at `offset`, made now if it never was. `segment` gives
    /// the segment with a number, start and length.
    pub(crate) fn use_for<'a>(
        &self,
        fabric: FabricId,
        registering: Registering<'_>,
        slab: SlabId,
        (slab_len, offset, len): (u64, u64, u64),
        segment: impl FnOnce(u32, u64, u64) -> Segment<'a>,
    ) -> Result<RegistrationUse, UnregisteredWhy> {
        let limit = segment_len(registering.registrar);
        let over = UnregisteredWhy::OverLimit { offset, len, limit };
        let index = offset / limit;
        let start = index * limit;
        if offset
            .checked_add(len)
            .is_none_or(|end| end > start + limit)
        {
            return Err(over);
        }
        let Ok(number) = u32::try_from(index) else {
            return Err(over);
        };
        let count = slab_len.div_ceil(limit) as usize;
        let entries = self.fabrics[usize::from(fabric.0)]
            .get_or_init(|| (0..count).map(|_| Entry::default()).collect());
        let Some(entry) = entries.get(index as usize) else {
            return Err(over);
        };
        if let Some(used) = self.begin(entry, slab)? {
            return Ok(used);
        }
        let mut failed = entry.failed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(used) = self.begin(entry, slab)? {
            return Ok(used);
        }
        if let Some((error, at)) = &*failed
            && at.elapsed() < registering.cool_down
        {
            return Err(UnregisteredWhy::Failed(error.clone()));
        }
        let segment = segment(number, start, limit.min(slab_len - start));
        self.open(slab)?;
        match registering.register(segment) {
            Ok(handle) => {
                *failed = None;
                let registration = Arc::new(Registration {
                    fabric,
                    handle,
                    in_use: AtomicUsize::new(0),
                });
                entry.current.store(Some(registration));
                // Gone again only if revocation began meanwhile.
                let used = self.begin(entry, slab)?;
                used.ok_or(UnregisteredWhy::Draining(slab))
            }
            Err(error) => {
                *failed = Some((error.clone(), Instant::now()));
                Err(UnregisteredWhy::Failed(error))
            }
        }
    }

    /// Counts a use of the entry's registration, if there is one, unless revocation has begun. Counted
    /// first, looked at then: revocation either sees the use, or is seen here.
    fn begin(
        &self,
        entry: &Entry,
        slab: SlabId,
    ) -> Result<Option<RegistrationUse>, UnregisteredWhy> {
        while let Some(registration) = entry.current.load_full() {
            registration.in_use.fetch_add(1, Ordering::SeqCst);
            let used = RegistrationUse(registration);
            self.open(slab)?;
            let current = entry.current.load();
            if current
                .as_ref()
                .is_some_and(|now| Arc::ptr_eq(now, &used.0))
            {
                return Ok(Some(used));
            }
        }
        Ok(None)
    }

    fn open(&self, slab: SlabId) -> Result<(), UnregisteredWhy> {
        match self.phase.load(Ordering::SeqCst) {
            OPEN => Ok(()),
            DRAINING => Err(UnregisteredWhy::Draining(slab)),
            _ => Err(UnregisteredWhy::GivenUp(slab)),
        }
    }

    /// No new use from here on.
    pub(crate) fn drain(&self) {
        self.phase.store(DRAINING, Ordering::SeqCst);
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.phase.load(Ordering::SeqCst) == DRAINING
    }

    /// Revocation is done: unregistered, usable.
    pub(crate) fn reopen(&self) {
        self.phase.store(OPEN, Ordering::SeqCst);
    }

    /// No use ever again.
    pub(crate) fn give_up(&self) {
        self.phase.store(GIVEN_UP, Ordering::SeqCst);
    }

    /// Tokens that are out.
    pub(crate) fn in_use(&self) -> usize {
        self.entries()
            .filter_map(|entry| entry.current.load_full())
            .map(|r| r.in_use.load(Ordering::Acquire))
            .sum()
    }

    /// Revokes everything until `deadline`. All are tried; the first that is not confirmed is the error.
    pub(crate) fn revoke_all(
        &self,
        registrars: &[Arc<dyn Registrar>],
        counters: &Counters,
        deadline: Instant,
    ) -> Result<(), RevokeError> {
        let mut result = Ok(());
        for entry in self.entries() {
            let mut failed = entry.failed.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(registration) = entry.current.swap(None) else {
                *failed = None;
                continue;
            };
            let Some(registrar) = registrars.get(usize::from(registration.fabric.0)) else {
                continue;
            };
            let left = deadline.saturating_duration_since(Instant::now());
            match revoke(&**registrar, registration.handle, left) {
                Ok(()) => {
                    counters.revoked.fetch_add(1, Ordering::Relaxed);
                    metrics::counter!("s3engine_revocations_total", "fabric" => registrar.name(), "result" => "ok")
                        .increment(1);
                }
                Err(error) => {
                    counters.unconfirmed.fetch_add(1, Ordering::Relaxed);
                    metrics::counter!("s3engine_revocations_total", "fabric" => registrar.name(), "result" => "unconfirmed")
                        .increment(1);
                    result = result.and(Err(error));
                }
            }
        }
        result
    }

    pub(crate) fn states(&self, fabric: FabricId) -> Vec<RegistrationState> {
        let Some(entries) = self.fabrics[usize::from(fabric.0)].get() else {
            return Vec::new();
        };
        entries
            .iter()
            .map(|entry| match entry.current.load_full() {
                Some(registration) => RegistrationState::Registered(registration.handle),
                None => match &*entry.failed.lock().unwrap_or_else(PoisonError::into_inner) {
                    Some((error, _)) => RegistrationState::Failed(error.clone()),
                    None => RegistrationState::Unregistered,
                },
            })
            .collect()
    }

    fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.fabrics.iter().filter_map(OnceLock::get).flatten()
    }
}

/// Segments are cut where parts of a transfer are cut too, so that few parts meet a segment's end; and at
/// least at whole huge pages.
pub(crate) fn segment_len(registrar: &dyn Registrar) -> u64 {
    const PART: u64 = 256 << 20;
    let limit = registrar.segment_limit();
    let grain = if limit >= PART { PART } else { SLAB_ALIGN };
    (limit - limit % grain).max(SLAB_ALIGN)
}

/// A registrar that panics has confirmed nothing.
fn revoke(
    registrar: &dyn Registrar,
    handle: RegistrationHandle,
    timeout: Duration,
) -> Result<(), RevokeError> {
    let revoked = catch_unwind(AssertUnwindSafe(|| registrar.revoke(handle, timeout)));
    revoked.unwrap_or_else(|_| {
        Err(RevokeError {
            text: format!("fabric {} panicked", registrar.name()),
        })
    })
}

impl Registering<'_> {
    /// Registers a segment, in two attempts at most.
    fn register(&self, segment: Segment<'_>) -> Result<RegistrationHandle, RegisterError> {
        let began = Instant::now();
        let mut result = self.registrar.register(segment);
        if result.is_err() && began.elapsed() < SLOW {
            self.counters.retried.fetch_add(1, Ordering::Relaxed);
            thread::sleep(BACKOFF);
            result = self.registrar.register(segment);
        }
        let nanoseconds = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let time = &self.counters.nanoseconds;
        time.fetch_add(nanoseconds, Ordering::Relaxed);
        let fabric = self.registrar.name();
        match &result {
            Ok(_) => {
                self.counters.registered.fetch_add(1, Ordering::Relaxed);
                metrics::counter!("s3engine_registrations_total", "fabric" => fabric).increment(1);
            }
            Err(error) => {
                self.counters.failed.fetch_add(1, Ordering::Relaxed);
                let cause = error
                    .errno
                    .map_or_else(|| "other".to_owned(), |errno| format!("errno-{errno}"));
                metrics::counter!("s3engine_registration_failures_total", "fabric" => fabric, "cause" => cause).increment(1);
                tracing::warn!(fabric, slab = segment.slab.0, segment = segment.index, len = segment.len, memory = %segment.memory, %error, again_after = ?self.cool_down, "registration failed");
            }
        }
        result
    }
}
