//! The key arena: where a client writes the names that its submissions refer to.
//!
//! ```text
//! entry 0          entry 1          entry 2
//! [bucket|key|etag|...][bucket|key|etag|...][...      one stripe of 1408 bytes each
//! ```
//!
//! Each request number has its own stripe, long enough for the longest bucket (255), key (1024) and ETag (128).
//! A stripe is free exactly when its request number is, so there is nothing to reclaim in any order and
//! nothing to run out of: that is worth the 1.4 KiB a request. The service does not rely on stripes: it
//! accepts any reference within the arena.

use std::fmt;
use std::sync::Arc;

use super::check::{Meaning, check_lengths};
use super::layout::Layout;
use super::words::{OwnWords, Region, Words};

/// The longest key in bytes, as S3 has it.
pub const MAX_KEY: usize = 1024;

/// The longest ETag in bytes that a request can be bound to.
pub const MAX_ETAG: usize = 128;

const LONGEST: usize = 255 + MAX_KEY + MAX_ETAG;

/// Bytes of a stripe: whole cache lines.
pub(super) const STRIPE: usize = LONGEST.next_multiple_of(64);

/// A reference into the arena that lies within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameRef {
    pub(super) at: u32,
    pub(super) bucket_len: u8,
    pub(super) key_len: u16,
    pub(super) etag_len: u8,
}

/// The object that a GET is for.
#[derive(Clone, PartialEq, Eq)]
pub struct Name {
    /// The bucket.
    pub bucket: Arc<str>,
    /// The key.
    pub key: Arc<str>,
    /// The ETag that the object must have, quotes included.
    pub etag: Option<Arc<str>>,
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}/{:?}", self.bucket, self.key)
    }
}

/// The client's end.
pub(super) struct ArenaWriter {
    words: OwnWords,
    scratch: Vec<u8>,
}

impl ArenaWriter {
    pub(super) fn new(region: &Region, layout: Layout) -> Self {
        Self {
            words: region.own_words(layout.arena(), layout.arena_bytes()),
            scratch: Vec::with_capacity(STRIPE),
        }
    }

    /// Writes a name to the stripe of `entry`, which is not in flight.
    pub(super) fn write(
        &mut self,
        entry: u32,
        bucket: &str,
        key: &str,
        etag: &str,
    ) -> Result<NameRef, Meaning> {
        check_lengths(bucket.len(), key.len(), etag.len())?;
        self.scratch.clear();
        for part in [bucket, key, etag] {
            self.scratch.extend_from_slice(part.as_bytes());
        }
        self.scratch
            .resize(self.scratch.len().next_multiple_of(8), 0);
        let at = entry as usize * STRIPE;
        let (words, _) = self.scratch.as_chunks();
        for (i, word) in words.iter().enumerate() {
            self.words.store(at / 8 + i, &[u64::from_le_bytes(*word)]);
        }
        Ok(NameRef {
            at: at as u32,
            bucket_len: bucket.len() as u8,
            key_len: key.len() as u16,
            etag_len: etag.len() as u8,
        })
    }
}

/// The service's end.
pub(super) struct ArenaReader {
    words: Words,
    scratch: [u64; STRIPE / 8],
}

impl ArenaReader {
    pub(super) fn new(region: &Region, layout: Layout) -> Self {
        Self {
            words: region.words(layout.arena(), layout.arena_bytes()),
            scratch: [0; STRIPE / 8],
        }
    }

    /// Copies a name once and judges the copy.
    pub(super) fn read(&mut self, name: NameRef) -> Result<Name, Meaning> {
        let bytes =
            usize::from(name.bucket_len) + usize::from(name.key_len) + usize::from(name.etag_len);
        let copy = &mut self.scratch[..bytes.div_ceil(8)];
        self.words.copy(name.at as usize / 8, copy);
        copy.iter_mut().for_each(|word| *word = word.to_le());
        let copy = zerocopy::IntoBytes::as_bytes(&*copy);
        split(&copy[..bytes], name)
    }
}

/// Takes a copied name apart.
fn split(copy: &[u8], name: NameRef) -> Result<Name, Meaning> {
    let text = |what, bytes| {
        let wanted = "UTF-8";
        std::str::from_utf8(bytes).map_err(|_| Meaning::NameText { what, wanted })
    };
    let (bucket, rest) = copy.split_at(name.bucket_len.into());
    let (key, etag) = rest.split_at(name.key_len.into());
    let etag = text("ETag", etag)?;
    // It becomes part of a header.
    if !etag.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        let (what, wanted) = ("ETag", "printable ASCII");
        return Err(Meaning::NameText { what, wanted });
    }
    Ok(Name {
        bucket: text("bucket", bucket)?.into(),
        key: text("key", key)?.into(),
        etag: (!etag.is_empty()).then(|| etag.into()),
    })
}

#[cfg(all(test, not(ring_loom)))]
#[path = "arena_tests.rs"]
mod tests;
