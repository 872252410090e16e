//! What the GETs of the host service's clients wait for, told to whoever asks why nothing moves.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Instant;

use dashmap::DashMap;

/// What a GET waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Waits {
    Turn,
    Memory,
    Server,
    Revocation,
}

impl Waits {
    const ALL: [Self; 4] = [Self::Turn, Self::Memory, Self::Server, Self::Revocation];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Turn => "its turn: the limits of what is under way are reached",
            Self::Memory => "memory: its client has leased all that it may have",
            Self::Server => "the server",
            Self::Revocation => "the revocation of memory that a remote may still write to",
        }
    }
}

/// One GET that has not ended.
pub(crate) struct Progress {
    pub(crate) bucket: Arc<str>,
    pub(crate) key: Arc<str>,
    pub(crate) submitted: Instant,
    waits: AtomicU8,
}

impl Progress {
    pub(crate) fn waits(&self) -> Waits {
        Waits::ALL[usize::from(self.waits.load(Ordering::Relaxed))]
    }
}

/// The GETs of one client that have not ended.
#[derive(Default)]
pub(crate) struct UnderWay(DashMap<u64, Arc<Progress>>);

impl UnderWay {
    /// Counts a GET in, until what this returns is dropped.
    pub(crate) fn enter(
        self: &Arc<Self>,
        bucket: &Arc<str>,
        key: &Arc<str>,
        submitted: Instant,
    ) -> Tracked {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let progress = Arc::new(Progress {
            bucket: Arc::clone(bucket),
            key: Arc::clone(key),
            submitted,
            waits: AtomicU8::new(Waits::Turn as u8),
        });
        self.0.insert(number, Arc::clone(&progress));
        Tracked {
            under_way: Arc::clone(self),
            number,
            progress,
        }
    }

    /// All of them, the oldest first.
    pub(crate) fn all(&self) -> Vec<Arc<Progress>> {
        let mut all: Vec<_> = self.0.iter().map(|one| Arc::clone(&one)).collect();
        all.sort_by_key(|one| one.submitted);
        all
    }
}

/// A GET's own entry.
pub(crate) struct Tracked {
    under_way: Arc<UnderWay>,
    number: u64,
    progress: Arc<Progress>,
}

impl Tracked {
    pub(crate) fn waits_for(&self, what: Waits) {
        self.progress.waits.store(what as u8, Ordering::Relaxed);
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        self.under_way.0.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_get_is_listed_with_what_it_waits_for_until_it_ends() {
        let under_way = Arc::new(UnderWay::default());
        let (bucket, key) = ("b".into(), "k".into());
        let first = under_way.enter(&bucket, &key, Instant::now());
        let second = under_way.enter(&bucket, &"l".into(), Instant::now());
        second.waits_for(Waits::Revocation);
        let seen: Vec<_> = under_way.all().iter().map(|one| one.waits()).collect();
        assert_eq!(seen, [Waits::Turn, Waits::Revocation]);
        drop(first);
        assert_eq!(&*under_way.all()[0].key, "l");
        drop(second);
        assert!(under_way.all().is_empty());
    }

    #[test]
    fn every_number_stands_for_its_own_wait() {
        for (nth, waits) in Waits::ALL.into_iter().enumerate() {
            assert_eq!(waits as usize, nth);
        }
    }
}
