//! The other end of a queue, where that is in the host service.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use s3engine_pool::{Buffer, GiveBack, Pool, SlotId};
use s3engine_ring::{Bell, Detail, EventBell, SocketBell};
use s3engine_s3::error::ErrorKind;

use super::memory::Holdings;
use crate::far::Far;
use crate::wire;

/// Alignment of slots whose own is not known: that of every slot.
const ALIGN: u64 = 4096;

pub(super) struct There {
    holdings: Arc<Holdings>,
    pool: Pool,
    /// That the service speaks.
    version: u32,
    /// What this end hears, and what it rings.
    heard: Arc<SocketBell>,
    rung: EventBell,
    /// What was handed over and has not come back: where it starts, its length and its alignment.
    given: HashMap<SlotId, (u64, u64, u64)>,
    lost: Cell<bool>,
}

impl There {
    pub(super) fn new(
        holdings: Arc<Holdings>,
        pool: Pool,
        version: u32,
        heard: SocketBell,
        rung: EventBell,
    ) -> Self {
        Self {
            holdings,
            pool,
            version,
            heard: Arc::new(heard),
            rung,
            given: HashMap::new(),
            lost: Cell::new(false),
        }
    }
}

impl Far for There {
    fn version(&self) -> u32 {
        self.version
    }

    fn accepts(&self, buffer: &Buffer) -> bool {
        self.holdings.is_alive() && buffer.is_of(&self.pool)
    }

    fn put(&mut self, buffer: Buffer) {
        let place = (buffer.offset(), buffer.len(), buffer.align());
        self.given.insert(buffer.slot(), place);
        // The service answers for the slot from here on: it may lease it anew before its completion is heard here.
        self.holdings.surrender(buffer);
    }

    fn take(
        &mut self,
        given: Option<SlotId>,
        detail: &Detail,
    ) -> Result<Option<Buffer>, ErrorKind> {
        let place = given.and_then(|given| self.given.remove(&given));
        let Some(back) = wire::slot_back(detail) else {
            return Ok(None);
        };
        let (offset, len) = (detail.slot_at, detail.slot_len);
        // The caller answers for that part of his memory and for no other.
        let same =
            given == Some(back) && place.is_some_and(|(at, of, _)| (at, of) == (offset, len));
        if !same && self.holdings.is_adopted(back.slab) {
            let why = "it hands back another part of the caller's memory".to_owned();
            return Err(ErrorKind::Service(why));
        }
        let align = place.map_or(ALIGN, |(.., align)| align);
        match self.holdings.adopt(back, offset, len, align) {
            Ok(buffer) => Ok(Some(buffer)),
            Err(error) => Err(ErrorKind::Service(error.to_string())),
        }
    }

    fn ring(&self) {
        if self.rung.ring().is_err() {
            self.lost.set(true);
        }
    }

    fn wait(&self, timeout: Duration) {
        if self.heard.wait(timeout).is_err() {
            self.lost.set(true);
        }
    }

    fn is_lost(&self) -> bool {
        self.lost.get() || self.holdings.connection.is_lost()
    }

    fn waits_on(&self) -> Option<Arc<SocketBell>> {
        Some(Arc::clone(&self.heard))
    }

    fn close(&mut self) {
        // The service cancels and frees what was handed over when it sees the bell's end.
    }

    fn leave(self: Box<Self>) {
        std::mem::forget(self);
    }
}
