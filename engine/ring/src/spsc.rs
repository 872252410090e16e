//! One ring: a producer that fills entries and a consumer that copies them out.
//!
//! ```text
//!              head (consumer publishes)      tail (producer publishes)
//!               │                              │
//!   ─ free ─────┼── published, not released ───┼── filled, not published ──┬─ free ─
//!               │                              │                           │
//!               └─ consumer's private head >= head     producer's private tail
//! ```
//!
//! Cursors count entries and wrap at 2^32; entry `c` lies at `c % capacity`. Each side believes its private
//! cursor only, and judges the other's: one that moves back, or further than there are entries, is a
//! [`CursorJump`].
//!
//! Sync points (each comment names its partner):
//! - **filled**: tail store (Release) -> tail load (Acquire): the entries up to there are written.
//! - **emptied**: head store (Release) -> head load (Acquire): the entries up to there are copied out.
//! - **parked**: event store, fence, tail load against tail store, fence, event load: of a consumer about to
//!   sleep and a producer that publishes, at least one sees the other.

use super::atomics::{Ordering, fence, mutant};
use super::words::{Cursor, Entries, OwnCursor, OwnEntries};

const TAIL_STORE: Ordering = or_relaxed(1, Ordering::Release);
const TAIL_LOAD: Ordering = or_relaxed(2, Ordering::Acquire);
const HEAD_STORE: Ordering = or_relaxed(3, Ordering::Release);
const HEAD_LOAD: Ordering = or_relaxed(4, Ordering::Acquire);

const fn or_relaxed(number: u8, order: Ordering) -> Ordering {
    if mutant(number) {
        Ordering::Relaxed
    } else {
        order
    }
}

/// The other side published a cursor that it cannot have reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the {which} cursor jumped from {was} to {now}, at most {most} further was possible")]
pub struct CursorJump {
    /// `head` or `tail`.
    pub which: &'static str,
    /// What it was when last looked at.
    pub was: u32,
    /// What it is.
    pub now: u32,
    /// How far it could have moved.
    pub most: u32,
}

/// Why an entry was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoRoom {
    /// Every entry is filled and not yet released.
    Full,
    /// The other side is broken.
    Jump(CursorJump),
}

/// Follows a cursor of the other side from `was`, which may have moved by `most`.
#[inline]
fn follow(which: &'static str, was: u32, now: u32, most: u32) -> Result<u32, CursorJump> {
    if now.wrapping_sub(was) > most && !mutant(14) {
        return Err(CursorJump {
            which,
            was,
            now,
            most,
        });
    }
    Ok(now)
}

/// Whether publishing `old..new` passes the entry that the consumer wants to be woken for.
#[inline]
fn wakes(old: u32, new: u32, event: u32) -> bool {
    if mutant(12) {
        return new.wrapping_sub(event) < new.wrapping_sub(old);
    }
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

/// The side that fills entries.
pub(super) struct Producer<const WORDS: usize> {
    entries: OwnEntries<WORDS>,
    tail_out: OwnCursor,
    head_in: Cursor,
    event_in: Cursor,
    capacity: u32,
    /// The next entry to fill.
    tail: u32,
    /// What the consumer may see.
    published: u32,
    /// What the consumer had released when last looked at,
    head: u32,
    /// and the first entry for which that leaves no room.
    end: u32,
}

impl<const WORDS: usize> Producer<WORDS> {
    /// A producer whose first entry is `start`; publishes that.
    pub(super) fn new(
        entries: OwnEntries<WORDS>,
        tail_out: OwnCursor,
        head_in: Cursor,
        event_in: Cursor,
        start: u32,
    ) -> Self {
        tail_out.store(start, Ordering::Relaxed);
        Self {
            end: start.wrapping_add(entries.capacity()),
            capacity: entries.capacity(),
            entries,
            tail_out,
            head_in,
            event_in,
            tail: start,
            published: start,
            head: start,
        }
    }

    /// Fills the next entry. The consumer sees it after [`publish`](Self::publish).
    #[inline]
    pub(super) fn push(&mut self, entry: &[u64; WORDS]) -> Result<(), NoRoom> {
        if self.tail == self.end {
            self.make_room()?;
        }
        if mutant(7) {
            self.tail_out.store(self.tail.wrapping_add(1), TAIL_STORE);
        }
        self.entries.store(self.tail, entry);
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }

    /// Looks again at what the consumer has released: once in `capacity` entries at most times.
    #[cold]
    fn make_room(&mut self) -> Result<(), NoRoom> {
        // Emptied: pairs with the store in `release`, so the entry is copied out before it is filled.
        let now = self.head_in.load(HEAD_LOAD);
        let most = self.published.wrapping_sub(self.head);
        self.head = follow("head", self.head, now, most).map_err(NoRoom::Jump)?;
        self.end = self.head.wrapping_add(self.capacity + mutant(8) as u32);
        if self.tail == self.end {
            return Err(NoRoom::Full);
        }
        Ok(())
    }

    /// Shows the consumer all filled entries. Returns whether it wants the bell for them.
    #[must_use = "the consumer sleeps until the bell rings"]
    #[inline]
    pub(super) fn publish(&mut self) -> bool {
        let old = std::mem::replace(&mut self.published, self.tail);
        if old == self.tail {
            return false;
        }
        // Filled: pairs with the load in `Consumer::refresh`.
        self.tail_out.store(self.tail, TAIL_STORE);
        // Parked: pairs with the fence in `Consumer::park`.
        if !mutant(5) {
            fence(Ordering::SeqCst);
        }
        wakes(old, self.tail, self.event_in.load(Ordering::Relaxed))
    }

    /// Entries filled and not published.
    pub(super) fn unpublished(&self) -> u32 {
        self.tail.wrapping_sub(self.published)
    }

    /// The number of the next entry.
    #[inline]
    pub(super) fn tail(&self) -> u32 {
        self.tail
    }
}

/// The side that copies entries out.
pub(super) struct Consumer<const WORDS: usize> {
    entries: Entries<WORDS>,
    tail_in: Cursor,
    head_out: OwnCursor,
    event_out: OwnCursor,
    capacity: u32,
    /// The next entry to copy out.
    head: u32,
    /// What the producer had published when last looked at.
    tail: u32,
}

impl<const WORDS: usize> Consumer<WORDS> {
    /// A consumer whose first entry is `start`; publishes that, and that it wants no bell.
    pub(super) fn new(
        entries: Entries<WORDS>,
        tail_in: Cursor,
        head_out: OwnCursor,
        event_out: OwnCursor,
        start: u32,
    ) -> Self {
        head_out.store(start, Ordering::Relaxed);
        event_out.store(start.wrapping_sub(1), Ordering::Relaxed);
        Self {
            capacity: entries.capacity(),
            entries,
            tail_in,
            head_out,
            event_out,
            head: start,
            tail: start,
        }
    }

    /// Copies the next entry out, if there is one. Its place is the producer's again after
    /// [`release`](Self::release).
    #[inline]
    pub(super) fn pop(&mut self) -> Result<Option<[u64; WORDS]>, CursorJump> {
        if self.head == self.tail {
            self.refresh()?;
            if self.head == self.tail {
                return Ok(None);
            }
        }
        if mutant(17) {
            self.head_out.store(self.head.wrapping_add(1), HEAD_STORE);
        }
        let entry = self.entries.load(self.head);
        self.head = self.head.wrapping_add(1);
        Ok(Some(entry))
    }

    /// Gives the producer the places of all entries that were copied out.
    #[inline]
    pub(super) fn release(&mut self) {
        // Emptied: pairs with the load in `Producer::push`.
        self.head_out.store(self.head, HEAD_STORE);
    }

    /// How many entries can be copied out.
    pub(super) fn ready(&mut self) -> Result<u32, CursorJump> {
        self.refresh()?;
        Ok(self.tail.wrapping_sub(self.head))
    }

    /// Asks for the bell as soon as `count` (at least 1) entries can be copied out. Returns whether to sleep:
    /// false if they are there already.
    #[must_use = "sleeping on false may last for ever"]
    pub(super) fn park(&mut self, count: u32) -> Result<bool, CursorJump> {
        let count = count.clamp(1, self.capacity);
        let last = count - !mutant(13) as u32;
        self.event_out
            .store(self.head.wrapping_add(last), Ordering::Relaxed);
        // Parked: pairs with the fence in `Producer::publish`. Without it the load could go first, and the
        // producer could read the old event index after that load missed its tail.
        if !mutant(6) {
            fence(Ordering::SeqCst);
        }
        if mutant(10) {
            return Ok(true);
        }
        Ok(self.ready()? < count)
    }

    /// The number of the next entry.
    #[inline]
    pub(super) fn head(&self) -> u32 {
        self.head
    }

    #[inline]
    fn refresh(&mut self) -> Result<(), CursorJump> {
        // Filled: pairs with the store in `publish`.
        let now = self.tail_in.load(TAIL_LOAD);
        let most = self.capacity - self.tail.wrapping_sub(self.head);
        self.tail = follow("tail", self.tail, now, most)?;
        Ok(())
    }
}

#[cfg(all(test, not(ring_loom)))]
#[path = "spsc_tests.rs"]
mod tests;
