//! Memory that two sides see, as cursors and words: the only place that touches it.
//!
//! A [`Region`] is written by one side and read by the other. The writer takes [`OwnCursor`], [`OwnEntries`] and
//! [`OwnWords`] of it, the reader [`Cursor`], [`Entries`] and [`Words`], which only load, so a read-only mapping
//! suffices for them.
//!
//! Words carry no order of their own: every access is relaxed, so that a hostile peer that writes at the wrong
//! time changes what is read and nothing else. Order comes from the cursors. Under the model checker words
//! are plain cells that report each unordered access; `--cfg ring_plain` does the same for ThreadSanitizer.

#[cfg(not(ring_loom))]
pub use machine::Region;
#[cfg(ring_loom)]
pub use model::Region;

#[cfg(not(ring_loom))]
use machine::{CursorAt, EntriesAt, WordsAt};
#[cfg(ring_loom)]
use model::{CursorAt, EntriesAt, WordsAt};

use super::atomics::Ordering;

/// A cursor or event index that the other side publishes.
pub(super) struct Cursor(CursorAt);

/// A cursor or event index that this side publishes.
pub(super) struct OwnCursor(CursorAt);

/// A ring's entries of `N` words, that the other side writes.
pub(super) struct Entries<const N: usize>(EntriesAt<N>);

/// A ring's entries of `N` words, that this side writes.
pub(super) struct OwnEntries<const N: usize>(EntriesAt<N>);

/// A run of words that the other side writes.
pub(super) struct Words(WordsAt);

/// A run of words that this side writes.
pub(super) struct OwnWords(WordsAt);

impl Region {
    pub(super) fn cursor(&self, at: usize) -> Cursor {
        Cursor(self.cursor_at(at))
    }

    pub(super) fn own_cursor(&self, at: usize) -> OwnCursor {
        OwnCursor(self.cursor_at(at))
    }

    pub(super) fn entries<const N: usize>(&self, at: usize, capacity: u32) -> Entries<N> {
        Entries(self.entries_at(at, mask(capacity)))
    }

    pub(super) fn own_entries<const N: usize>(&self, at: usize, capacity: u32) -> OwnEntries<N> {
        OwnEntries(self.entries_at(at, mask(capacity)))
    }

    pub(super) fn words(&self, at: usize, bytes: usize) -> Words {
        Words(self.words_at(at, bytes))
    }

    pub(super) fn own_words(&self, at: usize, bytes: usize) -> OwnWords {
        OwnWords(self.words_at(at, bytes))
    }
}

/// The bits of a cursor that say where its entry lies: with a power of two of entries there is always one.
fn mask(capacity: u32) -> u32 {
    assert!(capacity.is_power_of_two(), "{capacity} entries");
    capacity - 1
}

impl Cursor {
    #[inline]
    pub(super) fn load(&self, order: Ordering) -> u32 {
        self.0.get().load(order)
    }
}

impl OwnCursor {
    #[inline]
    pub(super) fn store(&self, value: u32, order: Ordering) {
        self.0.get().store(value, order);
    }
}

impl<const N: usize> Entries<N> {
    /// How many there are.
    pub(super) fn capacity(&self) -> u32 {
        self.0.mask + 1
    }

    /// Copies the entry of a cursor, each word once.
    #[inline]
    pub(super) fn load(&self, cursor: u32) -> [u64; N] {
        self.0.load(cursor)
    }
}

impl<const N: usize> OwnEntries<N> {
    /// How many there are.
    pub(super) fn capacity(&self) -> u32 {
        self.0.mask + 1
    }

    /// Fills the entry of a cursor.
    #[inline]
    pub(super) fn store(&self, cursor: u32, entry: &[u64; N]) {
        self.0.store(cursor, entry);
    }
}

impl Words {
    /// Copies as many words as `into` has, each read once.
    pub(super) fn copy(&self, at: usize, into: &mut [u64]) {
        for (i, word) in into.iter_mut().enumerate() {
            [*word] = self.0.load(at + i);
        }
    }
}

impl OwnWords {
    #[inline]
    pub(super) fn store<const N: usize>(&self, at: usize, words: &[u64; N]) {
        self.0.store(at, words);
    }

    /// Stores all of `words` from word `at` on.
    pub(super) fn paste(&self, at: usize, words: &[u64]) {
        for (i, word) in words.iter().enumerate() {
            self.0.store(at + i, &[*word]);
        }
    }
}

#[cfg(not(ring_loom))]
mod machine {
    use std::any::Any;
    use std::ptr::NonNull;
    use std::slice;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

    use super::super::atomics::mutant;

    type Owner = Arc<dyn Any + Send + Sync>;

    /// A range of memory that one side writes and the other reads.
    #[derive(Clone)]
    pub struct Region {
        base: NonNull<u8>,
        len: usize,
        owner: Owner,
    }

    /// What heap regions are made of: aligned as the cursors want it.
    #[repr(align(128))]
    #[allow(dead_code, reason = "reached through pointers")]
    struct Line([AtomicU64; 16]);

    // SAFETY: every access through a region is an atomic operation, and the memory belongs to `owner`,
    // which is itself Send and Sync.
    unsafe impl Send for Region {}
    // SAFETY: as above.
    unsafe impl Sync for Region {}

    impl Region {
        /// Zeroed memory of this process.
        pub fn heap(len: usize) -> Region {
            // From the kernel, which gives pages when they are touched.
            let lines = Arc::<[Line]>::new_zeroed_slice(len.div_ceil(128));
            // SAFETY: a line is numbers only, and 0 is one.
            let lines = unsafe { lines.assume_init() };
            let base = NonNull::from(&*lines).cast();
            let len = lines.len() * 128;
            Region {
                base,
                len,
                owner: Arc::new(lines),
            }
        }

        /// Memory mapped by somebody else.
        ///
        /// # Safety
        /// - `base` is aligned to 128, and `len` bytes from there stay mapped, readable and populated until
        ///   `owner` is dropped. They cannot be truncated or punched (a sealed memfd), whoever else maps them.
        /// - They are writable if the region is given to a constructor as the one its side writes.
        /// - Within this process they are accessed through regions only. What other processes do with them
        ///   is not part of this contract: they may write anything at any time.
        pub unsafe fn from_raw(base: NonNull<u8>, len: usize, owner: Owner) -> Region {
            assert!(
                base.cast::<Line>().is_aligned(),
                "a region is aligned to 128"
            );
            Region { base, len, owner }
        }

        /// Its size in bytes.
        #[allow(clippy::len_without_is_empty)]
        pub fn len(&self) -> usize {
            self.len
        }

        /// The address of `bytes` at `at`, within the region and aligned to `align`.
        fn at(&self, at: usize, bytes: usize, align: usize) -> NonNull<u8> {
            let inside = at.checked_add(bytes).is_some_and(|end| end <= self.len);
            assert!(
                inside && at.is_multiple_of(align),
                "{bytes} bytes at {at} of {}",
                self.len
            );
            // SAFETY: `at` is within the region, as just asserted.
            unsafe { self.base.add(at) }
        }

        pub(super) fn cursor_at(&self, at: usize) -> CursorAt {
            CursorAt {
                word: self.at(at, 4, 4).cast(),
                _owner: self.owner.clone(),
            }
        }

        /// `mask + 1` entries, a power of two.
        pub(super) fn entries_at<const N: usize>(&self, at: usize, mask: u32) -> EntriesAt<N> {
            let bytes = (mask as usize + 1) * size_of::<[AtomicU64; N]>();
            EntriesAt {
                first: self.at(at, bytes, 8).cast(),
                mask,
                _owner: self.owner.clone(),
            }
        }

        pub(super) fn words_at(&self, at: usize, bytes: usize) -> WordsAt {
            WordsAt {
                first: self.at(at, bytes, 8).cast(),
                count: bytes / 8,
                _owner: self.owner.clone(),
            }
        }
    }

    pub(super) struct CursorAt {
        word: NonNull<AtomicU32>,
        _owner: Owner,
    }

    pub(super) struct EntriesAt<const N: usize> {
        first: NonNull<[AtomicU64; N]>,
        pub(super) mask: u32,
        _owner: Owner,
    }

    pub(super) struct WordsAt {
        first: NonNull<AtomicU64>,
        count: usize,
        _owner: Owner,
    }

    // SAFETY: as for `Region`, which all three are parts of.
    unsafe impl Send for CursorAt {}
    // SAFETY: as for `Region`.
    unsafe impl<const N: usize> Send for EntriesAt<N> {}
    // SAFETY: as for `Region`.
    unsafe impl Send for WordsAt {}

    impl CursorAt {
        #[inline]
        pub(super) fn get(&self) -> &AtomicU32 {
            // SAFETY: in bounds and aligned by `Region::at`; mapped as long as `_owner` lives; any bits are
            // a u32. An atomic load of this size is sound on read-only memory too.
            unsafe { self.word.as_ref() }
        }
    }

    impl<const N: usize> EntriesAt<N> {
        #[inline]
        fn get(&self, cursor: u32) -> &[AtomicU64; N] {
            let place = (cursor & self.mask >> mutant(9) as u32) as usize;
            // SAFETY: `place` is at most `mask`, and `entries_at` made sure of the bounds and the alignment of
            // `mask + 1` entries; the rest as in `CursorAt::get`.
            unsafe { self.first.add(place).as_ref() }
        }

        #[inline]
        pub(super) fn load(&self, cursor: u32) -> [u64; N] {
            let entry = self.get(cursor);
            std::array::from_fn(|i| load(&entry[i]))
        }

        #[inline]
        pub(super) fn store(&self, cursor: u32, words: &[u64; N]) {
            let entry = self.get(cursor);
            for i in 0..N {
                store(&entry[i], words[i]);
            }
        }
    }

    impl WordsAt {
        #[inline]
        fn get(&self) -> &[AtomicU64] {
            // SAFETY: as in `CursorAt::get`, for `count` words.
            unsafe { slice::from_raw_parts(self.first.as_ptr(), self.count) }
        }

        #[inline]
        pub(super) fn load<const N: usize>(&self, at: usize) -> [u64; N] {
            let words = &self.get()[at..at + N];
            std::array::from_fn(|i| load(&words[i]))
        }

        #[inline]
        pub(super) fn store<const N: usize>(&self, at: usize, words: &[u64; N]) {
            let to = &self.get()[at..at + N];
            for i in 0..N {
                store(&to[i], words[i]);
            }
        }
    }

    #[cfg(not(ring_plain))]
    #[inline]
    fn load(word: &AtomicU64) -> u64 {
        word.load(Ordering::Relaxed)
    }

    #[cfg(not(ring_plain))]
    #[inline]
    fn store(word: &AtomicU64, value: u64) {
        word.store(value, Ordering::Relaxed);
    }

    #[cfg(ring_plain)]
    #[inline]
    fn load(word: &AtomicU64) -> u64 {
        let _ = Ordering::Relaxed;
        // SAFETY: valid as the reference is. Only for ThreadSanitizer, with peers that keep to the protocol.
        unsafe { word.as_ptr().read() }
    }

    #[cfg(ring_plain)]
    #[inline]
    fn store(word: &AtomicU64, value: u64) {
        // SAFETY: as in `load`.
        unsafe { word.as_ptr().write(value) }
    }
}

#[cfg(ring_loom)]
mod model {
    use loom::cell::UnsafeCell;
    use loom::sync::atomic::AtomicU32;
    use std::sync::Arc;

    /// The same as objects of the model checker: a cursor per 128 bytes, and a cell per word.
    #[derive(Clone)]
    pub struct Region(Arc<Objects>);

    struct Objects {
        cursors: Vec<AtomicU32>,
        words: Vec<UnsafeCell<u64>>,
    }

    // SAFETY: the model checker panics on accesses to a cell that nothing orders.
    unsafe impl Send for Objects {}
    // SAFETY: as above.
    unsafe impl Sync for Objects {}

    impl Region {
        /// Zeroed memory of this process.
        pub fn heap(len: usize) -> Region {
            Region(Arc::new(Objects {
                cursors: (0..len.min(512) / 128).map(|_| AtomicU32::new(0)).collect(),
                words: (0..len / 8).map(|_| UnsafeCell::new(0)).collect(),
            }))
        }

        /// Its size in bytes.
        #[allow(clippy::len_without_is_empty)]
        pub fn len(&self) -> usize {
            self.0.words.len() * 8
        }

        pub(super) fn cursor_at(&self, at: usize) -> CursorAt {
            CursorAt(self.0.clone(), at / 128)
        }

        pub(super) fn entries_at<const N: usize>(&self, at: usize, mask: u32) -> EntriesAt<N> {
            let words = self.words_at(at, 0);
            EntriesAt { words, mask }
        }

        pub(super) fn words_at(&self, at: usize, _bytes: usize) -> WordsAt {
            WordsAt(self.0.clone(), at / 8)
        }
    }

    pub(super) struct CursorAt(Arc<Objects>, usize);

    impl CursorAt {
        pub(super) fn get(&self) -> &AtomicU32 {
            &self.0.cursors[self.1]
        }
    }

    pub(super) struct EntriesAt<const N: usize> {
        words: WordsAt,
        pub(super) mask: u32,
    }

    impl<const N: usize> EntriesAt<N> {
        pub(super) fn load(&self, cursor: u32) -> [u64; N] {
            self.words.load((cursor & self.mask) as usize * N)
        }

        pub(super) fn store(&self, cursor: u32, words: &[u64; N]) {
            self.words.store((cursor & self.mask) as usize * N, words);
        }
    }

    pub(super) struct WordsAt(Arc<Objects>, usize);

    impl WordsAt {
        pub(super) fn load<const N: usize>(&self, at: usize) -> [u64; N] {
            // SAFETY: within the closure the pointer is valid, and races panic.
            std::array::from_fn(|i| self.0.words[self.1 + at + i].with(|word| unsafe { *word }))
        }

        pub(super) fn store<const N: usize>(&self, at: usize, words: &[u64; N]) {
            for (i, value) in words.iter().enumerate() {
                // SAFETY: as in `load`.
                self.0.words[self.1 + at + i].with_mut(|word| unsafe { *word = *value });
            }
        }
    }
}
