//! Memory that the host service owns, as this process has it: slabs mapped once, slots leased by message.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use event_listener::{Event, EventListener};
use s3engine_pool::cuda::{CallersRange, CudaShare, Gpu, Uuid};
use s3engine_pool::{
    Buffer, CudaStats, GiveBack, ImportedSlab, Memory as Kind, PoolError, PoolStats, RemotePool,
    SlabId, SlotId,
};

use super::connection::Connection;
use super::text;
use crate::control::{self, Ask, Failure, Leased, Said, Slab};

/// Slots of at most so many bytes are kept for the next who wants one like it: a message would cost more than
/// such a transfer.
const KEPT_SLOT: u64 = 1 << 20;

/// Bytes of slots kept so.
const KEPT: u64 = 16 << 20;

/// All memory of one session.
pub(super) struct Holdings {
    pub(super) connection: Arc<Connection>,
    state: Mutex<State>,
    /// Held while memory of the caller's is shared with the service.
    pub(super) adopting: Mutex<()>,
    /// Told when a slot is given back.
    freed: Event,
    /// Whether the session is the present one. The memory of a lost one is dead.
    alive: AtomicBool,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) slabs: HashMap<SlabId, Arc<ImportedSlab>>,
    leased: HashMap<SlotId, Place>,
    /// By kind of memory, length and alignment.
    kept: HashMap<(Kind, u64, u64), Vec<SlotId>>,
    kept_bytes: u64,
    leased_bytes: u64,
}

impl State {
    /// Bytes mapped, by kind of memory.
    fn mapped(&self) -> BTreeMap<Kind, u64> {
        let mut mapped = BTreeMap::new();
        for slab in self.slabs.values().filter(|slab| !slab.is_adopted()) {
            *mapped.entry(slab.memory()).or_default() += slab.len();
        }
        mapped
    }

    /// Of each device. Its bound is not known here: that is all that the device has.
    fn cuda(&self) -> Vec<CudaStats> {
        let of_device = |(kind, mapped)| match kind {
            Kind::Cuda(device) => Some(CudaStats {
                device,
                mapped,
                max_bytes: Gpu::find(device).map_or(0, Gpu::memory),
            }),
            _ => None,
        };
        self.mapped().into_iter().filter_map(of_device).collect()
    }
}

#[derive(Clone, Copy)]
struct Place {
    offset: u64,
    len: u64,
    align: u64,
}

impl Holdings {
    pub(super) fn new(connection: Arc<Connection>) -> Arc<Self> {
        let holdings = Arc::new(Self {
            connection,
            state: Mutex::default(),
            adopting: Mutex::default(),
            freed: Event::new(),
            alive: AtomicBool::new(true),
        });
        let _ = holdings.connection.holdings.set(Arc::downgrade(&holdings));
        holdings
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lease(self: &Arc<Self>, kind: Kind, len: u64, align: u64) -> Result<Buffer, PoolError> {
        if let Some(buffer) = self.kept(kind, len, align) {
            return buffer;
        }
        if let Kind::Cuda(device) = kind {
            // What cannot be mapped here is not asked for.
            Gpu::find(device)?;
        }
        let Some(memory) = control::Kind::of(kind) else {
            let why = format!("no memory of kind {kind} is served");
            return Err(PoolError::Refused { why });
        };
        let ask = Ask::Lease { memory, len, align };
        let mut answered = self.connection.ask_now(ask.clone());
        if matches!(answered, Err(Failure::WouldBlock { .. })) && self.give_up_kept() {
            answered = self.connection.ask_now(ask);
        }
        let (said, fds) = answered.map_err(|failure| self.refused(kind, len, &failure))?;
        let Said::Leased(Leased { slot, offset, slab }) = said else {
            let none = Failure::Refused("it leased nothing".to_owned());
            return Err(self.refused(kind, len, &none));
        };
        if let Some(slab) = slab
            && let Err(error) = self.import(slab, &fds)
        {
            self.free(slot.into());
            return Err(error);
        }
        self.adopt(slot.into(), offset, len, align)
    }

    fn kept(
        self: &Arc<Self>,
        kind: Kind,
        len: u64,
        align: u64,
    ) -> Option<Result<Buffer, PoolError>> {
        let mut state = self.lock();
        let slot = state.kept.get_mut(&(kind, len, align))?.pop()?;
        state.kept_bytes -= len;
        let Place { offset, .. } = *state.leased.get(&slot)?;
        drop(state);
        Some(self.adopt(slot, offset, len, align))
    }

    /// Gives the slots that are kept back to the service. Returns whether there were any.
    fn give_up_kept(&self) -> bool {
        let mut state = self.lock();
        let kept: Vec<SlotId> = std::mem::take(&mut state.kept)
            .into_values()
            .flatten()
            .collect();
        state.kept_bytes = 0;
        for slot in &kept {
            if let Some(place) = state.leased.remove(slot) {
                state.leased_bytes -= place.len;
            }
        }
        drop(state);
        let any = !kept.is_empty();
        if any {
            let slots = kept.into_iter().map(Into::into).collect();
            self.connection.say(Ask::Free { slots });
        }
        any
    }

    /// Maps a slab's memory. Its descriptor is not needed any more then.
    fn import(&self, slab: Slab, fds: &[OwnedFd]) -> Result<(), PoolError> {
        let (id, len) = (SlabId(slab.slab), slab.len);
        let fd = || {
            let why = "it sent no descriptor of the memory".to_owned();
            let fd = fds.first().map(AsFd::as_fd);
            fd.ok_or(PoolError::Refused { why })
        };
        let mapped = match (slab.memory, slab.handle) {
            (control::Kind::Host, _) => ImportedSlab::map(fd()?, len, id, slab.read_only)?,
            (control::Kind::Cuda(device), handle) => {
                let share = match handle {
                    Some(handle) => CudaShare::Ipc(handle.0),
                    None => CudaShare::Descriptor(fd()?),
                };
                ImportedSlab::map_cuda(&share, len, id, Uuid(device))?
            }
        };
        self.lock().slabs.entry(id).or_insert(mapped);
        Ok(())
    }

    /// Whether it is a slab of the caller's own memory.
    pub(super) fn is_adopted(&self, slab: SlabId) -> bool {
        let state = self.lock();
        let slab = state.slabs.get(&slab);
        slab.is_some_and(|slab| slab.is_adopted())
    }

    /// Unmaps slabs that the service has destroyed; where there is a buffer of one yet, with that.
    pub(super) fn unmap(&self, slabs: &[u32]) {
        let mut state = self.lock();
        let gone = slabs.iter().map(|&id| state.slabs.remove(&SlabId(id)));
        let gone: Vec<_> = gone.collect();
        drop(state);
        // Unmapping takes time.
        drop(gone);
    }

    /// Takes a slot over that the service has leased to this process, or hands back. One that cannot be reached
    /// here goes back to the service.
    pub(super) fn adopt(
        self: &Arc<Self>,
        slot: SlotId,
        offset: u64,
        len: u64,
        align: u64,
    ) -> Result<Buffer, PoolError> {
        let place = Place { offset, len, align };
        let mut state = self.lock();
        if state.leased.insert(slot, place).is_none() {
            state.leased_bytes += place.len;
        }
        drop(state);
        let buffer = self.buffer(slot, place);
        if buffer.is_err() {
            self.free(slot);
        }
        buffer
    }

    /// Gives a slot back to the service.
    fn free(&self, slot: SlotId) {
        let mut state = self.lock();
        if let Some(place) = state.leased.remove(&slot) {
            state.leased_bytes -= place.len;
        }
        drop(state);
        let slots = vec![slot.into()];
        self.connection.say(Ask::Free { slots });
    }

    fn buffer(self: &Arc<Self>, slot: SlotId, place: Place) -> Result<Buffer, PoolError> {
        let known = self.lock().slabs.get(&slot.slab).cloned();
        let slab = match known {
            Some(slab) => slab,
            None => self.fetch(slot.slab)?,
        };
        let giver = Arc::clone(self) as Arc<dyn GiveBack>;
        let Place { offset, len, align } = place;
        Buffer::imported(&slab, slot, offset, len, align, giver).map_err(|error| {
            let why = error.to_string();
            PoolError::Refused { why }
        })
    }

    /// Asks for the memory of a slab that a completion has named.
    fn fetch(&self, id: SlabId) -> Result<Arc<ImportedSlab>, PoolError> {
        let answered = self.connection.ask_now(Ask::Slab { slab: id.0 });
        let (said, fds) = answered.map_err(|failure| self.refused(Kind::Host, 0, &failure))?;
        if let Said::Slab(slab) = said
            && slab.slab == id.0
        {
            self.import(slab, &fds)?;
        }
        let slab = self.lock().slabs.get(&id).cloned();
        slab.ok_or(PoolError::UnknownSlab { slab: id })
    }

    /// The service answers for the slot now.
    pub(super) fn surrender(&self, buffer: Buffer) {
        let slot = buffer.slot();
        buffer.surrender();
        let mut state = self.lock();
        if let Some(place) = state.leased.remove(&slot) {
            state.leased_bytes -= place.len;
        }
    }

    pub(super) fn refused(&self, kind: Kind, len: u64, failure: &Failure) -> PoolError {
        if let Some(why) = self.connection.lost() {
            return PoolError::Lost { why };
        }
        match *failure {
            Failure::WouldBlock {
                leased,
                max_bytes,
                bound,
            } => PoolError::WouldBlock {
                len,
                leased,
                max_bytes,
                bound,
            },
            Failure::TooLarge { max_bytes } => PoolError::TooLarge { len, max_bytes },
            ref other => {
                let why = text(other);
                match (other, kind) {
                    (&Failure::Cuda { cause, .. }, Kind::Cuda(device)) => {
                        PoolError::NoCuda { device, cause, why }
                    }
                    _ => PoolError::Refused { why },
                }
            }
        }
    }
}

impl GiveBack for Holdings {
    fn give_back(&self, slot: SlotId) {
        let mut state = self.lock();
        let Some(&place) = state.leased.get(&slot) else {
            return;
        };
        let Place { len, align, .. } = place;
        let slab = state.slabs.get(&slot.slab);
        let kind = slab
            .filter(|slab| !slab.is_adopted())
            .map(|slab| slab.memory());
        match kind {
            Some(kind) if len <= KEPT_SLOT && state.kept_bytes + len <= KEPT && self.is_alive() => {
                state.kept_bytes += len;
                let like_it = state.kept.entry((kind, len, align));
                like_it.or_default().push(slot);
            }
            _ => {
                drop(state);
                self.free(slot);
            }
        }
        self.freed.notify(usize::MAX);
    }

    fn pinned(&self, SlabId(slab): SlabId) {
        self.connection.say(Ask::Pinned { slab });
    }

    fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Acquire) && !self.connection.is_lost()
    }
}

/// The memory of the present session.
pub(crate) struct Memory(Mutex<Arc<Holdings>>);

impl Memory {
    pub(super) fn new(connection: Arc<Connection>) -> Self {
        Self(Mutex::new(Holdings::new(connection)))
    }

    pub(super) fn present(&self) -> Arc<Holdings> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Goes on with another session. Whatever was leased in the last one is dead.
    pub(super) fn renew(&self, connection: Arc<Connection>) {
        let mut present = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        present.alive.store(false, Ordering::Release);
        *present = Holdings::new(connection);
    }
}

impl RemotePool for Memory {
    fn try_alloc(&self, len: u64, kind: Kind, align: u64) -> Result<Buffer, PoolError> {
        self.present().lease(kind, len, align)
    }

    fn adopt(&self, range: CallersRange, at: u64, len: u64) -> Result<Buffer, PoolError> {
        self.present().adopt_callers(range, at, len)
    }

    fn forget(&self, address: u64, len: u64) -> Result<bool, PoolError> {
        self.present().disown(|of| of.overlaps(address, len))
    }

    fn changed(&self) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let present = self.present();
        let (freed, changed): (EventListener, EventListener) =
            (present.freed.listen(), present.connection.changed.listen());
        Box::pin(async move {
            tokio::select! {
                () = freed => {}
                () = changed => {}
            }
        })
    }

    fn stats(&self) -> PoolStats {
        let present = self.present();
        let state = present.lock();
        PoolStats {
            max_bytes: present.connection.welcome().max_bytes,
            mapped: state.mapped().remove(&Kind::Host).unwrap_or(0),
            cuda: state.cuda(),
            leased: state.leased_bytes - state.kept_bytes,
            ..PoolStats::default()
        }
    }

    fn is_giver(&self, giver: &dyn GiveBack) -> bool {
        let present = self.present();
        std::ptr::addr_eq(Arc::as_ptr(&present), giver)
    }
}
