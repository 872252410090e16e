//! What requests wait for, told to whoever asks why nothing moves.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dashmap::DashMap;
use s3engine_s3::progress::Progress;
use s3engine_s3::range::ByteRange;
use serde::{Deserialize, Serialize};

/// The most that are told at once: the oldest.
const MOST: usize = 256;

/// A request, or a part of one, that has not ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outstanding {
    /// The session of the host service's client that it is for; none where it is this program's own.
    pub session: Option<u64>,
    /// `GET`, `HEAD` or `LIST`.
    pub operation: Cow<'static, str>,
    /// The bucket.
    pub bucket: String,
    /// The key; empty for a list.
    pub key: String,
    /// First byte and length, of a part of a GET.
    pub part: Option<(u64, u64)>,
    /// How long ago it was submitted.
    pub since: Duration,
    /// What it waits for, in words.
    pub waits_for: String,
}

impl fmt::Display for Outstanding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(session) = self.session {
            write!(f, "session {session}: ")?;
        }
        let (bucket, key) = (self.bucket.escape_debug(), self.key.escape_debug());
        write!(f, "{} s3://{bucket}/{key}", self.operation)?;
        if let Some((first, len)) = self.part {
            let last = first.saturating_add(len.saturating_sub(1));
            write!(f, " bytes {first}-{last}")?;
        }
        let since = self.since.as_secs_f64();
        write!(f, ", {since:.1} s, waits for {}", self.waits_for)
    }
}

/// What is asked for.
pub(crate) struct Asked {
    pub(crate) operation: &'static str,
    pub(crate) bucket: Arc<str>,
    pub(crate) key: Arc<str>,
    pub(crate) part: Option<ByteRange>,
    pub(crate) submitted: Instant,
}

struct Entry {
    asked: Asked,
    progress: Arc<Progress>,
}

/// The requests of one program that have not ended.
#[derive(Default)]
pub(crate) struct UnderWay {
    next: AtomicU64,
    entries: DashMap<u64, Entry>,
}

impl UnderWay {
    /// Counts a request in, until what this returns is dropped.
    pub(crate) fn enter(self: &Arc<Self>, asked: Asked) -> Tracked {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let progress = Arc::new(Progress::new());
        let entry = Entry {
            asked,
            progress: Arc::clone(&progress),
        };
        self.entries.insert(number, entry);
        Tracked {
            under_way: Arc::clone(self),
            number,
            progress,
        }
    }

    /// The oldest of them, in the order in which they were submitted.
    pub(crate) fn told(&self, session: Option<u64>) -> Vec<Outstanding> {
        let mut all: Vec<_> = self
            .entries
            .iter()
            .map(|entry| (entry.asked.submitted, *entry.key()))
            .collect();
        all.sort_unstable();
        let tell = |(_, number): (Instant, u64)| {
            let entry = self.entries.get(&number)?;
            let asked = &entry.asked;
            Some(Outstanding {
                session,
                operation: Cow::Borrowed(asked.operation),
                bucket: asked.bucket.to_string(),
                key: asked.key.to_string(),
                part: asked.part.map(|part| (part.offset, part.len)),
                since: asked.submitted.elapsed(),
                waits_for: entry.progress.to_string(),
            })
        };
        all.into_iter().take(MOST).filter_map(tell).collect()
    }
}

/// A request's own entry.
pub(crate) struct Tracked {
    under_way: Arc<UnderWay>,
    number: u64,
    pub(crate) progress: Arc<Progress>,
}

impl Tracked {
    /// Counts a part of it in.
    pub(crate) fn part(&self, asked: Asked) -> Tracked {
        self.under_way.enter(asked)
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        self.under_way.entries.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use s3engine_s3::progress::Waits;

    fn asked(key: &str, age: u64) -> Asked {
        Asked {
            operation: "GET",
            bucket: "b".into(),
            key: key.into(),
            part: None,
            submitted: Instant::now() - Duration::from_secs(age),
        }
    }

    #[test]
    fn r22_a_request_is_listed_with_what_it_waits_for_until_it_ends() {
        let under_way = Arc::new(UnderWay::default());
        let young = under_way.enter(asked("young", 1));
        let old = under_way.enter(asked("old", 7));
        old.progress.waits_for(Waits::Revocation);
        let part = Asked {
            part: ByteRange::new(8, 8).ok(),
            ..asked("young", 1)
        };
        let part = young.part(part);
        let told: Vec<_> = under_way
            .told(Some(3))
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(told.len(), 3);
        assert!(
            told[0].starts_with(
                "session 3: GET s3://b/old, 7.0 s, waits for the revocation of memory"
            ),
            "{told:?}"
        );
        assert!(
            told.iter()
                .any(|line| line.contains("GET s3://b/young bytes 8-15, 1.0 s, waits for its turn")),
            "{told:?}"
        );
        drop((old, part));
        assert_eq!(under_way.told(None)[0].key, "young");
        drop(young);
        assert!(under_way.told(None).is_empty());
    }

    #[test]
    fn a_crowd_is_told_by_its_oldest() {
        let under_way = Arc::new(UnderWay::default());
        let crowd: Vec<_> = (0..2 * MOST as u64)
            .map(|nth| under_way.enter(asked(&nth.to_string(), nth)))
            .collect();
        let told = under_way.told(None);
        assert_eq!(told.len(), MOST);
        assert_eq!(told[0].key, (2 * MOST - 1).to_string());
        drop(crowd);
    }
}
