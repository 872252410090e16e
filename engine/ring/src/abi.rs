//! The entries as they lie in shared memory: raw, little-endian, without padding, any bits allowed.
//!
//! Nothing here is believed: [`check`](super::check) turns a copied [`Sqe`] into another type. What a completion
//! says beyond its 32 bytes is in a [`Detail`](super::Detail).

use std::mem::{offset_of, size_of};

use zerocopy::{FromBytes, Immutable, IntoBytes};

#[cfg(not(target_endian = "little"))]
compile_error!("the ABI is little-endian and is written as the processor has it");

/// The version of layout and meaning that this code speaks.
pub const VERSION: u32 = 2;

/// The oldest version of a peer that is accepted: the one before.
pub const OLDEST_VERSION: u32 = 1;

const _: () = assert!(OLDEST_VERSION == VERSION || OLDEST_VERSION + 1 == VERSION);

/// From this version on GETs have options ([`SQE_OPTIONS`]), and completions say what a checksum has shown.
pub const OPTIONS_VERSION: u32 = 2;

/// Whether a peer of that version is accepted.
pub const fn accepts(version: u32) -> bool {
    version >= OLDEST_VERSION && version <= VERSION
}

/// Does nothing, and completes.
pub const OP_NOP: u8 = 0;
/// Reads an object or a range of it.
pub const OP_GET: u8 = 1;
/// Asks for the early end of request `entry`, which was submitted before and completes all the same. Has no
/// completion of its own; all other fields but `sequence` are 0.
pub const OP_CANCEL: u8 = 2;

/// SQE flag: the bytes land in the slot given and in no other.
pub const SQE_FIXED: u16 = 1 << 0;
/// SQE flag: the whole object; `offset` and `len` are 0.
pub const SQE_WHOLE: u16 = 1 << 1;
/// SQE flag: no slot is given, the service leases one of kind `memory`; the slot fields are 0.
pub const SQE_LEASE: u16 = 1 << 2;
/// SQE flag: the object must be one version: of the size in its arena record, and with ETag and version there.
pub const SQE_PINNED: u16 = 1 << 3;
/// SQE flag: the object is named by the id in its arena record, which opening it gave; all lengths are 0.
pub const SQE_OPENED: u16 = 1 << 4;
/// SQE flag: options follow the texts of the record in the arena, as many bytes as `options_len` says.
pub const SQE_OPTIONS: u16 = 1 << 5;
/// All SQE flags of this version.
pub const SQE_FLAGS: u16 =
    SQE_FIXED | SQE_WHOLE | SQE_LEASE | SQE_PINNED | SQE_OPENED | SQE_OPTIONS;

/// Memory kind: of the host.
pub const MEMORY_HOST: u8 = 0;

/// CQE flag: RDMA was wanted, and some bytes went by HTTP.
pub const CQE_FELL_BACK: u16 = 1 << 0;
/// CQE flag: HTTP was wanted.
pub const CQE_HTTP_INTENDED: u16 = 1 << 1;
/// CQE flag: memory could not be registered.
pub const CQE_REG_FAILED: u16 = 1 << 2;
/// CQE flag: no processor saw the bytes and no checksum was checked.
pub const CQE_NOT_VERIFIED: u16 = 1 << 3;
/// CQE flag: fewer bytes than asked for, because the object ends there.
pub const CQE_PARTIAL: u16 = 1 << 4;
/// CQE flag: another completion of the same request follows.
pub const CQE_MORE: u16 = 1 << 5;
/// CQE flag: the slot is not the one that was submitted.
pub const CQE_MOVED: u16 = 1 << 6;
/// CQE flag: bytes went through staging in host memory on their way to a device.
pub const CQE_STAGED: u16 = 1 << 7;

/// CQE `detail`: there is no record.
pub const NO_DETAIL: u32 = u32::MAX;

/// A submission. Fields that an operation does not use are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Sqe {
    /// `OP_...`
    pub op: u8,
    /// The code of a policy; 0 is the engine's default.
    pub policy: u8,
    /// `SQE_...`
    pub flags: u16,
    /// The number of this entry: the tail at which it was pushed.
    pub sequence: u32,
    /// Repeated in the completion.
    pub user_data: u64,
    /// The client's number of the request, unlike all others in flight, below the queue's entries.
    pub entry: u32,
    /// The destination: its slab,
    pub slab: u32,
    /// its slot in that,
    pub slot: u32,
    /// and the generation of the slot.
    pub generation: u32,
    /// The first byte of the object.
    pub offset: u64,
    /// How many bytes.
    pub len: u64,
    /// Where its record begins in the key arena; a multiple of 8. There are, one after the other: when it was
    /// submitted (8 bytes, nanoseconds of the monotonic clock), the size or id that `flags` speak of (8 bytes),
    /// bucket, key, ETag, version and options.
    pub name_at: u32,
    /// Bytes of the key.
    pub key_len: u16,
    /// Bytes of the bucket's name.
    pub bucket_len: u8,
    /// Bytes of the ETag that the object must have; 0 for any.
    pub etag_len: u8,
    /// Milliseconds from submission until it is given up; 0 is the engine's default.
    pub deadline_ms: u32,
    /// `MEMORY_...`, with `SQE_LEASE`.
    pub memory: u8,
    /// Bytes of the version, with `SQE_PINNED`; 0 for any.
    pub version_len: u8,
    /// Bytes of the options, with `SQE_OPTIONS`.
    pub options_len: u16,
}

/// A completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Cqe {
    /// As in the SQE.
    pub user_data: u64,
    /// Bytes that are verified to have arrived.
    pub bytes: u64,
    /// The request, as in the SQE.
    pub entry: u32,
    /// The index of its detail record, or [`NO_DETAIL`].
    pub detail: u32,
    /// `CQE_...`
    pub flags: u16,
    /// The code of the error's kind; 0 is success.
    pub error: u16,
    /// The HTTP status of the last answer; 0 if there was none.
    pub status: u16,
    /// The code of the path.
    pub path: u8,
    /// The code of the reason.
    pub reason: u8,
}

/// Bytes of an [`Sqe`].
pub const SQE_SIZE: usize = size_of::<Sqe>();
/// Bytes of a [`Cqe`].
pub const CQE_SIZE: usize = size_of::<Cqe>();

pub(super) const SQE_WORDS: usize = SQE_SIZE / 8;
pub(super) const CQE_WORDS: usize = CQE_SIZE / 8;

/// Fails to compile when a field is not where it has been since version 1.
macro_rules! assert_layout {
    ($type:ident, $size:literal: $($field:ident $at:literal),+) => {
        const _: () = {
            assert!(size_of::<$type>() == $size);
            $(assert!(offset_of!($type, $field) == $at);)+
        };
    };
}

pub(super) use assert_layout;

assert_layout!(Sqe, 64:
    op 0, policy 1, flags 2, sequence 4, user_data 8, entry 16, slab 20, slot 24, generation 28, offset 32, len 40,
    name_at 48, key_len 52, bucket_len 54, etag_len 55, deadline_ms 56, memory 60, version_len 61, options_len 62);
assert_layout!(Cqe, 32:
    user_data 0, bytes 8, entry 16, detail 20, flags 24, error 26, status 28, path 30, reason 31);

// Entries become words by shifts, not by reinterpreting memory: narrow stores followed by wide loads of the
// same bytes stall the processor, and that was most of the cost of a submission.
impl Sqe {
    #[inline]
    pub(super) fn to_words(self) -> [u64; SQE_WORDS] {
        [
            u64::from(self.op)
                | u64::from(self.policy) << 8
                | u64::from(self.flags) << 16
                | u64::from(self.sequence) << 32,
            self.user_data,
            u64::from(self.entry) | u64::from(self.slab) << 32,
            u64::from(self.slot) | u64::from(self.generation) << 32,
            self.offset,
            self.len,
            u64::from(self.name_at)
                | u64::from(self.key_len) << 32
                | u64::from(self.bucket_len) << 48
                | u64::from(self.etag_len) << 56,
            u64::from(self.deadline_ms)
                | u64::from(self.memory) << 32
                | u64::from(self.version_len) << 40
                | u64::from(self.options_len) << 48,
        ]
    }

    #[inline]
    pub(super) fn from_words(words: [u64; SQE_WORDS]) -> Sqe {
        let [first, user_data, from, to, offset, len, name, last] = words;
        Sqe {
            op: first as u8,
            policy: (first >> 8) as u8,
            flags: (first >> 16) as u16,
            sequence: (first >> 32) as u32,
            user_data,
            entry: from as u32,
            slab: (from >> 32) as u32,
            slot: to as u32,
            generation: (to >> 32) as u32,
            offset,
            len,
            name_at: name as u32,
            key_len: (name >> 32) as u16,
            bucket_len: (name >> 48) as u8,
            etag_len: (name >> 56) as u8,
            deadline_ms: last as u32,
            memory: (last >> 32) as u8,
            version_len: (last >> 40) as u8,
            options_len: (last >> 48) as u16,
        }
    }
}

impl Cqe {
    #[inline]
    pub(super) fn to_words(self) -> [u64; CQE_WORDS] {
        [
            self.user_data,
            self.bytes,
            u64::from(self.entry) | u64::from(self.detail) << 32,
            u64::from(self.flags)
                | u64::from(self.error) << 16
                | u64::from(self.status) << 32
                | u64::from(self.path) << 48
                | u64::from(self.reason) << 56,
        ]
    }

    #[inline]
    pub(super) fn from_words(words: [u64; CQE_WORDS]) -> Cqe {
        let [user_data, bytes, from, last] = words;
        Cqe {
            user_data,
            bytes,
            entry: from as u32,
            detail: (from >> 32) as u32,
            flags: last as u16,
            error: (last >> 16) as u16,
            status: (last >> 32) as u16,
            path: (last >> 48) as u8,
            reason: (last >> 56) as u8,
        }
    }

    /// Whether no other completion of the request follows.
    pub fn is_terminal(&self) -> bool {
        self.flags & CQE_MORE == 0
    }
}

#[cfg(all(test, not(ring_loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use zerocopy::transmute;

    #[test]
    fn an_entry_is_little_endian_in_memory() {
        let sqe = Sqe {
            op: 0x11,
            sequence: 0x0403_0201,
            len: 0x77,
            version_len: 1,
            options_len: 0x0302,
            ..Sqe::default()
        };
        let words = sqe.to_words();
        assert_eq!(words[0], 0x0403_0201_0000_0011);
        assert_eq!(words[5], 0x77);
        assert_eq!(words[7], 0x0302_0100_0000_0000);
        assert_eq!(Sqe::from_words(words), sqe);
    }

    #[test]
    fn a_peer_is_accepted_from_the_version_before_on() {
        assert!(accepts(VERSION) && accepts(OLDEST_VERSION) && accepts(VERSION - 1));
        assert!(!accepts(VERSION + 1) && !accepts(OLDEST_VERSION - 1));
    }

    proptest! {
        #[test]
        fn any_words_are_entries_and_come_back_the_same(
            sqe in any::<[u64; 8]>(),
            cqe in any::<[u64; 4]>(),
        ) {
            prop_assert_eq!(Sqe::from_words(sqe).to_words(), sqe);
            prop_assert_eq!(Cqe::from_words(cqe).to_words(), cqe);
            let as_memory: ([u8; 64], [u8; 32]) = (transmute!(sqe), transmute!(cqe));
            let (by_shifts, by_memory): (Sqe, Sqe) = (Sqe::from_words(sqe), transmute!(as_memory.0));
            prop_assert_eq!(by_shifts, by_memory);
            let (by_shifts, by_memory): (Cqe, Cqe) = (Cqe::from_words(cqe), transmute!(as_memory.1));
            prop_assert_eq!(by_shifts, by_memory);
        }
    }
}
