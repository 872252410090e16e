//! What both ends of a queue share beside its rings.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use event_listener::{Event, Listener};
use s3engine_pool::{Buffer, SlotId};
use s3engine_ring::Bell;
use tokio::sync::Notify;

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
