//! One chunk's copy, and the copies of one window: how many are under way, and what failed.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use cudarc::driver::sys;
use event_listener::Event;

use super::device::Gpu;
use super::driver::check;
use super::error::CudaError;
use super::staging::Chunk;
use crate::landing::Core;

/// Copies that somebody waits for.
#[derive(Default)]
pub(crate) struct Copies {
    under_way: AtomicUsize,
    /// The first failure.
    failed: OnceLock<CudaError>,
    ended: Event,
}

impl Copies {
    /// What went wrong so far.
    pub(crate) fn check(&self) -> Result<(), CudaError> {
        self.failed.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Waits until none is under way, however they end.
    pub(crate) async fn ended(&self) -> Result<(), CudaError> {
        loop {
            // Acquire: what ended copies have let go of, and what failed, is seen.
            if self.under_way.load(Ordering::Acquire) == 0 {
                return self.check();
            }
            let ended = self.ended.listen();
            if self.under_way.load(Ordering::Acquire) > 0 {
                ended.await;
            }
        }
    }

    /// One more is under way, to a slot of `core`.
    pub(crate) fn begin(self: &Arc<Self>, core: Arc<Core>) -> Landed {
        self.under_way.fetch_add(1, Ordering::Relaxed);
        Landed {
            core: Some(core),
            copies: Arc::clone(self),
        }
    }

    fn end(&self, result: Result<(), CudaError>) {
        if let Err(error) = result {
            let _ = self.failed.set(error);
        }
        if self.under_way.fetch_sub(1, Ordering::Release) == 1 {
            self.ended.notify(usize::MAX);
        }
    }
}

/// A chunk that is to be copied.
pub(super) struct Job {
    /// Goes back to the ring first: who is told that its copy is done may want it.
    chunk: Chunk,
    at: u64,
    landed: Landed,
}

/// Tells that a copy has ended: in an error, unless something else is said.
pub(crate) struct Landed {
    /// As long as this is here, the destination is nobody else's.
    core: Option<Arc<Core>>,
    copies: Arc<Copies>,
}

impl Job {
    pub(super) fn new(chunk: Chunk, core: Arc<Core>, at: u64, copies: &Arc<Copies>) -> Self {
        let landed = copies.begin(core);
        Self { chunk, at, landed }
    }

    pub(super) fn bytes(&self) -> usize {
        self.chunk.len()
    }

    /// Has the device copy it, after all that is in the stream. A context is bound.
    pub(super) fn issue(&self, gpu: &Gpu, stream: sys::CUstream) -> Result<(), CudaError> {
        let bytes = self.bytes();
        let to = self
            .landed
            .core
            .as_ref()
            .and_then(|core| core.place(self.at, bytes as u64));
        let Some(to) = to else {
            return Err(CudaError::Unusable {
                what: "cannot copy to the device",
                why: format!("{bytes} bytes at {} do not lie in the slab", self.at),
            });
        };
        let from = self.chunk.bytes().cast();
        // SAFETY: the chunk has so many bytes, which nobody writes until the job ends; the destination was just shown
        // to lie in the slab, whose memory stays mapped, and the slot leased to nobody else, as long as the job has
        // its core. A job ends only when its copy has.
        check("copying from staging", gpu, unsafe {
            sys::cuMemcpyHtoDAsync_v2(to, from, bytes, stream)
        })
    }

    /// The copy is over, or was never begun.
    pub(super) fn end(self, result: Result<(), CudaError>) {
        let Self {
            chunk, mut landed, ..
        } = self;
        drop(chunk);
        landed.end(result);
    }
}

impl Landed {
    pub(crate) fn end(&mut self, result: Result<(), CudaError>) {
        if let Some(core) = self.core.take() {
            // Before the copies are told: who waits for them then finds the landing its own.
            core.let_go();
            self.copies.end(result);
        }
    }
}

impl Drop for Landed {
    fn drop(&mut self) {
        self.end(Err(CudaError::Unusable {
            what: "cannot copy to the device",
            why: "its copier has ended".to_owned(),
        }));
    }
}
