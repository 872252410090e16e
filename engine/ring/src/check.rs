//! From a copied, raw [`Sqe`] to a [`CheckedSqe`]: pure, and never a panic whatever the bits.

use std::num::NonZeroU32;

use super::abi::*;
use super::arena::{HEAD, MAX_ETAG, MAX_KEY, MAX_VERSION, Number, RecordRef, STRIPE};
use super::atomics::mutant;
use super::codes::{self, Policy};

/// A submission that was judged. Made by [`check`] only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckedSqe {
    entry: u32,
    user_data: u64,
    op: CheckedOp,
}

impl CheckedSqe {
    /// The client's number of the request, below the queue's entries.
    pub fn entry(&self) -> u32 {
        self.entry
    }

    /// Repeated in the completion.
    pub fn user_data(&self) -> u64 {
        self.user_data
    }

    /// What is asked for.
    pub fn op(&self) -> &CheckedOp {
        &self.op
    }
}

/// What a submission asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckedOp {
    /// Nothing.
    Nop,
    /// An object or a range of it.
    Get(CheckedGet),
    /// The end of the request with this entry's number.
    Cancel,
}

/// A GET whose fields are in range. Whether slot and object exist is for others to judge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckedGet {
    /// Other than the engine's default.
    pub policy: Option<Policy>,
    /// Where the bytes go.
    pub destination: Destination,
    /// Offset and length (no overflow); `None` is the whole object.
    pub range: Option<(u64, u64)>,
    /// Where its record lies in the key arena.
    pub record: RecordRef,
    /// Milliseconds until it is given up, other than the engine's default.
    pub deadline_ms: Option<NonZeroU32>,
}

/// Where the bytes of a GET go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Into a slot of the client's.
    Slot {
        /// Its slab.
        slab: u32,
        /// Its number in the slab.
        slot: u32,
        /// Its generation.
        generation: u32,
        /// Whether no other slot may be handed back.
        fixed: bool,
    },
    /// Into host memory that the service leases.
    LeaseHost,
}

/// A submission that no correct client makes: the end of its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// An operation that this version does not have.
    #[error("submission {sequence}: operation {op} is unknown or not served")]
    Op {
        /// The entry's number.
        sequence: u32,
        /// The operation.
        op: u8,
    },
    /// A flag that this version does not have, or flags that exclude each other.
    #[error("submission {sequence}: flags {flags:#06x} are unknown or exclude each other")]
    Flags {
        /// The entry's number.
        sequence: u32,
        /// The flags.
        flags: u16,
    },
    /// A policy that this version does not have.
    #[error("submission {sequence}: policy {policy} is unknown")]
    Policy {
        /// The entry's number.
        sequence: u32,
        /// The policy.
        policy: u8,
    },
    /// A field that must be 0 and is not.
    #[error("submission {sequence}: a field that its operation does not use is not 0")]
    Reserved {
        /// The entry's number.
        sequence: u32,
    },
    /// Another number than the entry's place in the ring has.
    #[error("submission {expected} carries the number {found}")]
    Sequence {
        /// The number of its place.
        expected: u32,
        /// The number it carries.
        found: u32,
    },
    /// A request number that is out of range or in flight already.
    #[error("submission {sequence}: request number {entry} is in flight or not below {entries}")]
    Entry {
        /// The entry's number.
        sequence: u32,
        /// The request's number.
        entry: u32,
        /// The queue's entries.
        entries: u32,
    },
}

/// A submission that is well formed and asks for what cannot be: an error of that request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Meaning {
    /// A range that passes the largest offset.
    #[error("a range from {offset} of {len} bytes ends past the largest offset")]
    RangeOverflow {
        /// The first byte.
        offset: u64,
        /// The bytes.
        len: u64,
    },
    /// A range of an object that is wanted whole.
    #[error("the whole object is asked for, and a range from {offset} of {len} bytes")]
    RangeOfWhole {
        /// The first byte.
        offset: u64,
        /// The bytes.
        len: u64,
    },
    /// A record that is not within the key arena.
    #[error(
        "a record of {len} bytes at {at} is not within the arena of {arena} bytes, or not at a multiple of 8"
    )]
    RecordOutside {
        /// Where it begins.
        at: u32,
        /// Its bytes.
        len: u32,
        /// The arena's bytes.
        arena: u32,
    },
    /// A name and options that are too long together.
    #[error("name and options take {len} bytes, of which there may be {STRIPE}")]
    RecordTooLong {
        /// Their bytes.
        len: usize,
    },
    /// Options that are not known here, or make no sense.
    #[error("option {tag} is unknown, twice, out of order or not of its form")]
    Options {
        /// The number of the option.
        tag: u8,
    },
    /// A bucket or key without bytes, or a text with too many.
    #[error(
        "bucket of {bucket} bytes (1 to 255), key of {key} (1 to 1024), ETag of {etag} (0 to 128), version of {version} (0 to 255)"
    )]
    NameLength {
        /// The bucket's bytes.
        bucket: usize,
        /// The key's bytes.
        key: usize,
        /// The ETag's bytes.
        etag: usize,
        /// The version's bytes.
        version: usize,
    },
    /// A bucket or key that is not UTF-8, or an ETag or version that is not printable ASCII.
    #[error("the {what} is not {wanted}")]
    NameText {
        /// `bucket`, `key`, `ETag` or `version`.
        what: &'static str,
        /// What it must be.
        wanted: &'static str,
    },
    /// A kind of memory that this service does not have.
    #[error("memory kind {memory} is unknown")]
    Memory {
        /// The kind.
        memory: u8,
    },
}

/// Why a submission is not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejected {
    /// The session ends.
    Malformed(Malformed),
    /// The request is answered with an error.
    Meaning {
        /// The request's number, in range.
        entry: u32,
        /// Repeated in the completion.
        user_data: u64,
        /// What is wrong.
        why: Meaning,
    },
}

/// What a submission is judged against.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The queue's entries.
    pub entries: u32,
    /// Bytes of the key arena.
    pub arena: u32,
}

/// Judges the copy of a submission that lay at place `sequence` of the ring.
#[inline]
pub fn check(raw: &Sqe, sequence: u32, limits: &Limits) -> Result<CheckedSqe, Rejected> {
    check_form(raw, sequence, limits).map_err(Rejected::Malformed)?;
    let (entry, user_data) = (raw.entry, raw.user_data);
    let op = match raw.op {
        OP_NOP => Ok(CheckedOp::Nop),
        OP_CANCEL => Ok(CheckedOp::Cancel),
        _ => check_get(raw, limits).map(CheckedOp::Get),
    };
    match op {
        Ok(op) => Ok(CheckedSqe {
            entry,
            user_data,
            op,
        }),
        Err(why) => Err(Rejected::Meaning {
            entry,
            user_data,
            why,
        }),
    }
}

/// Request number and user data of a copied submission that [`check`] takes for a NOP, if the number is in range:
/// the same rules at once, where every word is what it must be or 0. `None` says nothing about the submission.
#[inline]
pub(super) fn nop(words: &[u64; SQE_WORDS], sequence: u32) -> Option<(usize, u64)> {
    let [first, user_data, entry, a, b, c, d, e] = *words;
    let wanted = u64::from(sequence) << 32 | u64::from(OP_NOP);
    let entry = usize::try_from(entry).ok()?;
    let unused = a | b | c | d | e == 0 || mutant(25);
    let form = first == wanted || mutant(26) && first as u32 == wanted as u32;
    (form && unused).then_some((entry, user_data))
}

#[inline]
fn check_form(raw: &Sqe, sequence: u32, limits: &Limits) -> Result<(), Malformed> {
    if raw.sequence != sequence && !mutant(18) {
        return Err(Malformed::Sequence {
            expected: sequence,
            found: raw.sequence,
        });
    }
    let entries = limits.entries;
    if raw.entry >= entries {
        return Err(Malformed::Entry {
            sequence,
            entry: raw.entry,
            entries,
        });
    }
    let unused = match raw.op {
        OP_NOP => is_bare(raw),
        OP_GET => {
            check_get_form(raw, sequence)?;
            has_only_its_destination(raw) && has_only_its_object(raw)
        }
        OP_CANCEL => is_bare(raw) && raw.user_data == 0,
        op => return Err(Malformed::Op { sequence, op }),
    };
    if unused {
        Ok(())
    } else {
        Err(Malformed::Reserved { sequence })
    }
}

fn check_get_form(raw: &Sqe, sequence: u32) -> Result<(), Malformed> {
    let flags = raw.flags;
    let has_both = |both| flags & both == both;
    let excluded = has_both(SQE_FIXED | SQE_LEASE) || has_both(SQE_PINNED | SQE_OPENED);
    if flags & !SQE_FLAGS != 0 || excluded {
        return Err(Malformed::Flags { sequence, flags });
    }
    let policy = raw.policy;
    if policy != codes::DEFAULT_POLICY && codes::policy(policy).is_none() {
        return Err(Malformed::Policy { sequence, policy });
    }
    Ok(())
}

/// Whether a submission has nothing but what every one has.
#[inline]
fn is_bare(raw: &Sqe) -> bool {
    // What is left of each word without operation, sequence, user data and request number.
    let [first, _, from, rest @ ..] = raw.to_words();
    (first as u32) >> 8 == 0 && from >> 32 == 0 && rest.iter().fold(0, |all, word| all | word) == 0
}

fn has_only_its_destination(raw: &Sqe) -> bool {
    if raw.flags & SQE_LEASE == 0 {
        raw.memory == 0
    } else {
        (raw.slab, raw.slot, raw.generation) == (0, 0, 0)
    }
}

fn has_only_its_object(raw: &Sqe) -> bool {
    if raw.flags & SQE_OPTIONS == 0 && raw.options_len != 0 {
        return false;
    }
    if raw.flags & SQE_OPENED == 0 {
        raw.version_len == 0 || raw.flags & SQE_PINNED != 0
    } else {
        (raw.bucket_len, raw.key_len, raw.etag_len, raw.version_len) == (0, 0, 0, 0)
    }
}

fn check_get(raw: &Sqe, limits: &Limits) -> Result<CheckedGet, Meaning> {
    let destination = if raw.flags & SQE_LEASE == 0 {
        Destination::Slot {
            slab: raw.slab,
            slot: raw.slot,
            generation: raw.generation,
            fixed: raw.flags & SQE_FIXED != 0,
        }
    } else if raw.memory == MEMORY_HOST {
        Destination::LeaseHost
    } else {
        return Err(Meaning::Memory { memory: raw.memory });
    };
    Ok(CheckedGet {
        policy: codes::policy(raw.policy),
        destination,
        range: check_range(raw)?,
        record: check_record(raw, limits)?,
        deadline_ms: NonZeroU32::new(raw.deadline_ms),
    })
}

fn check_range(raw: &Sqe) -> Result<Option<(u64, u64)>, Meaning> {
    let (offset, len) = (raw.offset, raw.len);
    if raw.flags & SQE_WHOLE != 0 {
        return match (offset, len) {
            (0, 0) => Ok(None),
            _ => Err(Meaning::RangeOfWhole { offset, len }),
        };
    }
    match offset.checked_add(len) {
        Some(_) => Ok(Some((offset, len))),
        None => Err(Meaning::RangeOverflow { offset, len }),
    }
}

fn check_record(raw: &Sqe, limits: &Limits) -> Result<RecordRef, Meaning> {
    let (bucket, key, etag, version) = (
        usize::from(raw.bucket_len),
        usize::from(raw.key_len),
        usize::from(raw.etag_len),
        usize::from(raw.version_len),
    );
    let number = match raw.flags & (SQE_PINNED | SQE_OPENED) {
        0 => Number::Unused,
        SQE_PINNED => Number::PinnedSize,
        _ => Number::OpenedId,
    };
    if number != Number::OpenedId {
        check_lengths([bucket, key, etag, version])?;
    }
    let len = HEAD + bucket + key + etag + version + usize::from(raw.options_len);
    if len > STRIPE {
        return Err(Meaning::RecordTooLong { len });
    }
    let len = len as u32;
    let end = raw.name_at.checked_add(len);
    let inside = end.is_some_and(|end| end <= limits.arena) || mutant(19);
    if !inside || !raw.name_at.is_multiple_of(8) {
        return Err(Meaning::RecordOutside {
            at: raw.name_at,
            len,
            arena: limits.arena,
        });
    }
    Ok(RecordRef {
        at: raw.name_at,
        bucket_len: raw.bucket_len,
        key_len: raw.key_len,
        etag_len: raw.etag_len,
        version_len: raw.version_len,
        options_len: raw.options_len,
        number,
    })
}

/// The lengths that bucket, key, ETag and version may have.
pub(super) fn check_lengths([bucket, key, etag, version]: [usize; 4]) -> Result<(), Meaning> {
    let fits = (1..=255).contains(&bucket)
        && (1..=MAX_KEY).contains(&key)
        && etag <= MAX_ETAG
        && version <= MAX_VERSION;
    if fits {
        Ok(())
    } else {
        Err(Meaning::NameLength {
            bucket,
            key,
            etag,
            version,
        })
    }
}

#[cfg(all(test, not(ring_loom)))]
#[path = "check_tests.rs"]
mod tests;
