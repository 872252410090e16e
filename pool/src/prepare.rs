//! Memory that is made and registered before anybody asks for it.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::thread;
use std::time::{Duration, Instant};

use crate::memory::Memory;
use crate::options::PoolError;
use crate::pool::Pool;

/// Drivers register one after the other for the most part: more threads gain nothing.
const MOST_THREADS: usize = 8;

/// What was made ready, and how long that took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prepared {
    /// Slabs that are there.
    pub slabs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Registrations of them that were made, with all fabrics.
    pub registered: u64,
    /// Registrations that failed; each is told to the transfer that meets it.
    pub failed: u64,
    /// How long making them took.
    pub making: Duration,
    /// How long registering them took, by several threads.
    pub registering: Duration,
}

impl Pool {
    /// Makes slabs of so many bytes together, and registers them with every fabric, several at once: no transfer waits for
    /// either then. What cannot be registered is no error here.
    pub fn prepare(&self, memory: Memory, bytes: u64) -> Result<Prepared, PoolError> {
        let shared = &self.owner()?.shared;
        let slab_bytes = shared.options.slab_bytes;
        let began = Instant::now();
        let mut held = Vec::new();
        let mut made = 0;
        // Held, so that each is another one.
        while made < bytes {
            let buffer = self.try_alloc(slab_bytes.min(bytes - made), memory)?;
            made += buffer.len();
            held.push(buffer);
        }
        let making = began.elapsed();
        let before = shared.counters.stats();
        let mut slabs: Vec<_> = held.iter().map(|buffer| buffer.slot().slab).collect();
        slabs.sort();
        slabs.dedup();
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let left = Mutex::new(slabs.iter());
        let began = Instant::now();
        thread::scope(|scope| {
            for _ in 0..threads.min(MOST_THREADS).min(slabs.len()) {
                scope.spawn(|| {
                    loop {
                        let next = left.lock().unwrap_or_else(PoisonError::into_inner).next();
                        let Some(slab) = next.and_then(|slab| self.slab(*slab)) else {
                            return;
                        };
                        shared.register_ahead(&slab);
                    }
                });
            }
        });
        let after = shared.counters.stats();
        Ok(Prepared {
            slabs: slabs.len() as u64,
            bytes: made,
            registered: after.registered - before.registered,
            failed: after.failed - before.failed,
            making,
            registering: began.elapsed(),
        })
    }
}
