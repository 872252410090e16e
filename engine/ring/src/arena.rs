//! The key arena: where a client writes the records that its submissions refer to.
//!
//! ```text
//! entry 0                                            entry 1
//! [submitted|size or id|bucket|key|etag|version|options|...] [submitted|...      one stripe of 1728 bytes each
//! ```
//!
//! Each request number has its own stripe, long enough for the longest bucket (255), key (1024), ETag (128) and
//! version (255). A stripe is free exactly when its request number is, so there is nothing to reclaim in any order
//! and nothing to run out of: that is worth the 1.7 KiB a request. The service does not rely on stripes: it
//! accepts any reference within the arena. Options get what the name leaves of a stripe: a record is never longer.

use std::sync::Arc;

use super::check::{Meaning, check_lengths};
use super::layout::Layout;
use super::options::Options;
use super::words::{OwnWords, Region, Words};

/// The longest key in bytes, as S3 has it.
pub const MAX_KEY: usize = 1024;

/// The longest ETag in bytes that a request can be bound to.
pub const MAX_ETAG: usize = 128;

/// The longest version in bytes that a request can be bound to.
pub const MAX_VERSION: usize = 255;

/// Bytes before the texts of a record: two numbers.
pub(super) const HEAD: usize = 16;

const LONGEST: usize = HEAD + 255 + MAX_KEY + MAX_ETAG + MAX_VERSION;

/// Bytes of a stripe: whole cache lines.
pub(super) const STRIPE: usize = LONGEST.next_multiple_of(64);

/// A reference into the arena that lies within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordRef {
    pub(super) at: u32,
    pub(super) bucket_len: u8,
    pub(super) key_len: u16,
    pub(super) etag_len: u8,
    pub(super) version_len: u8,
    pub(super) options_len: u16,
    /// What the second number is.
    pub(super) number: Number,
}

impl RecordRef {
    fn bytes(&self) -> usize {
        let texts = [self.bucket_len, self.etag_len, self.version_len];
        let texts: usize = texts.into_iter().map(usize::from).sum();
        HEAD + texts + usize::from(self.key_len) + usize::from(self.options_len)
    }

    /// Where it begins and ends in the arena.
    pub(super) fn bounds(&self) -> (usize, usize) {
        let start = self.at as usize;
        (start, start + self.bytes())
    }
}

/// What the second number of a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Number {
    Unused,
    PinnedSize,
    OpenedId,
}

/// What a client says of the object that it wants, texts as `Text`: `&str` when written, `Arc<str>` when read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Object<Text> {
    /// By its name.
    Named {
        /// The bucket.
        bucket: Text,
        /// The key.
        key: Text,
        /// The ETag that it must have, quotes included.
        etag: Option<Text>,
        /// The version that it must be.
        version: Option<Version<Text>>,
    },
    /// By the id that opening it gave.
    Opened(u64),
}

/// A version of an object, besides its ETag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version<Text> {
    /// The size of the whole object.
    pub size: u64,
    /// Its id, where the bucket keeps versions.
    pub id: Option<Text>,
}

/// A record that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// When the client says it submitted, in nanoseconds of the monotonic clock.
    pub submitted_ns: u64,
    /// The object.
    pub object: Object<Arc<str>>,
    /// What else is said, where something is.
    pub options: Option<Box<Options>>,
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

    /// Writes a record to the stripe of `entry`, which is not in flight.
    pub(super) fn write(
        &mut self,
        entry: u32,
        object: &Object<&str>,
        options: Option<&Options>,
    ) -> Result<RecordRef, Meaning> {
        let (texts, number, value) = match *object {
            Object::Named {
                bucket,
                key,
                etag,
                version,
            } => {
                let id = version.and_then(|version| version.id);
                let texts = [bucket, key, etag.unwrap_or(""), id.unwrap_or("")];
                check_lengths(texts.map(str::len))?;
                match version {
                    Some(version) => (texts, Number::PinnedSize, version.size),
                    None => (texts, Number::Unused, 0),
                }
            }
            Object::Opened(id) => ([""; 4], Number::OpenedId, id),
        };
        let [bucket, key, etag, version] = texts.map(str::len);
        self.scratch.clear();
        for text in texts {
            self.scratch.extend_from_slice(text.as_bytes());
        }
        let named = self.scratch.len();
        if let Some(options) = options {
            options.encode(&mut self.scratch);
        }
        let len = HEAD + self.scratch.len();
        if len > STRIPE {
            return Err(Meaning::RecordTooLong { len });
        }
        let options_len = (self.scratch.len() - named) as u16;
        self.scratch
            .resize(self.scratch.len().next_multiple_of(8), 0);
        let at = entry as usize * STRIPE;
        self.words.store(at / 8, &[0, value]);
        let (words, _) = self.scratch.as_chunks();
        for (i, word) in words.iter().enumerate() {
            let word = u64::from_le_bytes(*word);
            self.words.store((at + HEAD) / 8 + i, &[word]);
        }
        Ok(RecordRef {
            at: at as u32,
            bucket_len: bucket as u8,
            key_len: key as u16,
            etag_len: etag as u8,
            version_len: version as u8,
            options_len,
            number,
        })
    }

    /// Says when the request of `entry` was submitted.
    #[inline]
    pub(super) fn stamp(&self, entry: u32, submitted_ns: u64) {
        self.words
            .store(entry as usize * STRIPE / 8, &[submitted_ns]);
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

    /// Copies a record once and judges the copy.
    pub(super) fn read(&mut self, of: &RecordRef) -> Result<Record, Meaning> {
        let bytes = of.bytes();
        let copy = &mut self.scratch[..bytes.div_ceil(8)];
        self.words.copy(of.at as usize / 8, copy);
        let (submitted_ns, value) = (copy[0], copy[1]);
        copy.iter_mut().for_each(|word| *word = word.to_le());
        let all = &zerocopy::IntoBytes::as_bytes(&*copy)[HEAD..bytes];
        let (texts, options) = all.split_at(all.len() - usize::from(of.options_len));
        let options = match options {
            [] => None,
            some => Some(Box::new(Options::decode(some)?)),
        };
        let object = match of.number {
            Number::OpenedId => Object::Opened(value),
            Number::PinnedSize => named(texts, of, Some(value))?,
            Number::Unused => named(texts, of, None)?,
        };
        Ok(Record {
            submitted_ns,
            object,
            options,
        })
    }
}

/// Takes the copied texts of a record apart.
fn named(copy: &[u8], of: &RecordRef, size: Option<u64>) -> Result<Object<Arc<str>>, Meaning> {
    let (bucket, rest) = copy.split_at(of.bucket_len.into());
    let (key, rest) = rest.split_at(of.key_len.into());
    let (etag, version) = rest.split_at(of.etag_len.into());
    let (etag, version) = (header("ETag", etag)?, header("version", version)?);
    Ok(Object::Named {
        bucket: text("bucket", bucket)?.into(),
        key: text("key", key)?.into(),
        etag,
        version: size.map(|size| Version { size, id: version }),
    })
}

fn text<'a>(what: &'static str, bytes: &'a [u8]) -> Result<&'a str, Meaning> {
    let wanted = "UTF-8";
    std::str::from_utf8(bytes).map_err(|_| Meaning::NameText { what, wanted })
}

/// A text that becomes part of a request's head.
fn header(what: &'static str, bytes: &[u8]) -> Result<Option<Arc<str>>, Meaning> {
    if !bytes.iter().all(|byte| matches!(byte, b' '..=b'~')) {
        let wanted = "printable ASCII";
        return Err(Meaning::NameText { what, wanted });
    }
    let text = text(what, bytes)?;
    Ok((!text.is_empty()).then(|| text.into()))
}

#[cfg(all(test, not(ring_loom)))]
#[path = "arena_tests.rs"]
mod tests;
