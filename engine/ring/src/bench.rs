//! A bare ring for benchmarks, both ends in one hand. Not for use.

use super::spsc::{Consumer, Producer};
use super::words::Region;

/// Both ends of a ring of entries of `WORDS` words.
pub struct Bare<const WORDS: usize> {
    producer: Producer<WORDS>,
    consumer: Consumer<WORDS>,
}

impl<const WORDS: usize> Bare<WORDS> {
    /// An empty ring. `capacity` is a power of two.
    pub fn new(capacity: u32) -> Self {
        let bytes = capacity as usize * WORDS * 8;
        let region = Region::heap(512 + bytes);
        let (tail, head, event) = (0, 128, 256);
        let cursors = |at| region.cursor(at);
        let own = |at| region.own_cursor(at);
        Self {
            producer: Producer::new(
                region.own_entries(512, capacity),
                own(tail),
                cursors(head),
                cursors(event),
                0,
            ),
            consumer: Consumer::new(
                region.entries(512, capacity),
                cursors(tail),
                own(head),
                own(event),
                0,
            ),
        }
    }

    /// Fills an entry. Panics if the ring is full.
    #[inline]
    pub fn push(&mut self, entry: &[u64; WORDS]) {
        self.producer.push(entry).expect("room");
    }

    /// Shows all filled entries.
    #[inline]
    pub fn publish(&mut self) -> bool {
        self.producer.publish()
    }

    /// Copies an entry out.
    #[inline]
    pub fn pop(&mut self) -> Option<[u64; WORDS]> {
        self.consumer.pop().expect("an honest producer")
    }

    /// Gives back the places of entries that were copied out.
    #[inline]
    pub fn release(&mut self) {
        self.consumer.release();
    }
}
