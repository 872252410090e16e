//! What both ends of a queue within one process share beside its rings.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use event_listener::{Event, Listener};
use s3engine_pool::{Buffer, SlotId};
use s3engine_ring::{Bell, Detail};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::far::Far;
use crate::wire;

/// Slots on their way between the two ends, and the bells.
#[derive(Default)]
pub(crate) struct Link {
    pub(crate) leases: Leases,
    /// Wakes the engine's end.
    pub(crate) to_engine: Notify,
    /// Wakes the caller's end.
    pub(crate) to_caller: Wake,
    /// Whether the engine's end is gone: nothing outstanding will complete.
    pub(crate) lost: AtomicBool,
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

    fn take(&mut self, _: Option<SlotId>, detail: &Detail) -> Option<Buffer> {
        self.link.leases.take(wire::slot_back(detail)?)
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
    rung: AtomicBool,
    event: Event,
}

impl Bell for Wake {
    fn ring(&self) -> io::Result<()> {
        self.rung.store(true, Ordering::Release);
        self.event.notify(1);
        Ok(())
    }

    fn wait(&self, timeout: Duration) -> io::Result<()> {
        let heard = self.event.listen();
        if !self.rung.swap(false, Ordering::Acquire) {
            let _ = heard.wait_timeout(timeout);
            self.rung.store(false, Ordering::Relaxed);
        }
        Ok(())
    }
}
