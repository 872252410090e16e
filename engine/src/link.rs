//! What the ends of a queue have beside its rings: slots on their way, and bells.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use s3engine_pool::{Buffer, SlotId};
use s3engine_ring::{Bell, Detail, SocketBell};
use s3engine_s3::error::ErrorKind;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::far::Far;
use crate::wire;

/// What the engine's end of a queue has beside its rings.
pub(crate) struct Link {
    /// Slots that entries name and nobody else has.
    pub(crate) leases: Arc<Leases>,
    /// Wakes the engine's end.
    pub(crate) to_engine: Notify,
    /// Wakes the caller's end.
    pub(crate) to_caller: Arc<dyn Bell + Send + Sync>,
    /// Whether the engine's end is gone: nothing outstanding will complete.
    pub(crate) lost: AtomicBool,
}

impl Link {
    pub(crate) fn new(leases: Arc<Leases>, to_caller: Arc<dyn Bell + Send + Sync>) -> Arc<Self> {
        Arc::new(Self {
            leases,
            to_engine: Notify::new(),
            to_caller,
            lost: AtomicBool::new(false),
        })
    }
}

/// The buffers that entries of the rings name.
#[derive(Default)]
pub(crate) struct Leases(Mutex<HashMap<SlotId, Buffer>>);

impl Leases {
    fn lock(&self) -> MutexGuard<'_, HashMap<SlotId, Buffer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands a buffer to the other end.
    pub(crate) fn put(&self, buffer: Buffer) {
        self.lock().insert(buffer.slot(), buffer);
    }

    /// Gives everything back to the pool.
    pub(crate) fn clear(&self) {
        let all = std::mem::take(&mut *self.lock());
        drop(all);
    }

    /// Takes what the other end has handed over. `None` for a slot that is not on its way.
    pub(crate) fn take(&self, slot: SlotId) -> Option<Buffer> {
        self.lock().remove(&slot)
    }
}

/// The engine's end, as the caller's thread of the same process reaches it.
pub(crate) struct Here {
    pub(crate) link: Arc<Link>,
    pub(crate) closed: CancellationToken,
}

impl Far for Here {
    fn put(&mut self, buffer: Buffer) {
        self.link.leases.put(buffer);
    }

    fn accepts(&self, _: &Buffer) -> bool {
        // Judged where the GET runs.
        true
    }

    fn take(&mut self, _: Option<SlotId>, detail: &Detail) -> Result<Option<Buffer>, ErrorKind> {
        let slot = wire::slot_back(detail);
        Ok(slot.and_then(|slot| self.link.leases.take(slot)))
    }

    fn ring(&self) {
        self.link.to_engine.notify_one();
    }

    fn wait(&self, timeout: Duration) {
        // The bell of a thread of this process does not fail.
        let _ = self.link.to_caller.wait(timeout);
    }

    fn is_lost(&self) -> bool {
        self.link.lost.load(Ordering::Acquire)
    }

    fn version(&self) -> u32 {
        s3engine_ring::VERSION
    }

    fn waits_on(&self) -> Option<Arc<SocketBell>> {
        None
    }

    fn close(&mut self) {
        self.closed.cancel();
    }

    fn leave(self: Box<Self>) {
        // Its locks may be held by threads of the parent that are not here.
        std::mem::forget(self);
    }
}

/// A bell for a thread of this process.
#[derive(Default)]
pub(crate) struct Wake {
    rung: Mutex<bool>,
    heard: Condvar,
}

impl Wake {
    fn rung(&self) -> MutexGuard<'_, bool> {
        self.rung.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Bell for Wake {
    fn ring(&self) -> io::Result<()> {
        *self.rung() = true;
        // Without the lock: whoever wakes wants it at once.
        self.heard.notify_one();
        Ok(())
    }

    fn wait(&self, timeout: Duration) -> io::Result<()> {
        let silent = |rung: &mut bool| !*rung;
        let waited = self.heard.wait_timeout_while(self.rung(), timeout, silent);
        let (mut rung, _) = waited.unwrap_or_else(PoisonError::into_inner);
        *rung = false;
        Ok(())
    }
}
