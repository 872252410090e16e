//! The entries as they lie in shared memory: raw, little-endian, without padding, any bits allowed.
//!
//! Nothing here is believed: [`check`](super::check) turns a copied [`Sqe`] into another type.

use std::mem::{offset_of, size_of};

use zerocopy::{FromBytes, Immutable, IntoBytes, transmute};

#[cfg(not(target_endian = "little"))]
compile_error!("the ABI is little-endian and is written as the processor has it");

/// The version of layout and meaning that this code speaks.
pub const VERSION: u32 = 1;

/// The oldest version of a peer that is accepted: the one before, once there is one.
pub const OLDEST_VERSION: u32 = 1;

const _: () = assert!(OLDEST_VERSION == VERSION || OLDEST_VERSION + 1 == VERSION);

/// Whether a peer of that version is accepted.
pub const fn accepts(version: u32) -> bool {
    version >= OLDEST_VERSION && version <= VERSION
}

/// Does nothing, and completes.
pub const OP_NOP: u8 = 0;
/// Reads an object or a range of it.
pub const OP_GET: u8 = 1;
/// Reserved: ends a request early. Refused in version 1.
pub const OP_CANCEL: u8 = 2;
/// Reserved: gives an object an id. Refused in version 1.
pub const OP_OPEN: u8 = 3;

/// SQE flag: the bytes land in the slot given and in no other.
pub const SQE_FIXED: u16 = 1 << 0;
/// SQE flag: the whole object; `offset` and `len` are 0.
pub const SQE_WHOLE: u16 = 1 << 1;
/// SQE flag: no slot is given, the service leases one of kind `memory`; the slot fields are 0.
pub const SQE_LEASE: u16 = 1 << 2;
/// All SQE flags of this version.
pub const SQE_FLAGS: u16 = SQE_FIXED | SQE_WHOLE | SQE_LEASE;

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

/// CQE `detail`: there is no record.
pub const NO_DETAIL: u32 = u32::MAX;

/// Of a time or size in a [`Detail`]: not reached, not known.
pub const UNKNOWN: u64 = u64::MAX;

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
    /// Where bucket, key and ETag begin in the key arena, one after the other; a multiple of 8.
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
    /// 0.
    pub reserved: [u8; 3],
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

/// What more there is to say of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Detail {
    /// Nanoseconds from submission until it was admitted,
    pub queued_ns: u64,
    /// its memory's registration was known,
    pub registered_ns: u64,
    /// the head of its first answer arrived,
    pub first_byte_ns: u64,
    /// it was complete.
    pub done_ns: u64,
    /// Bytes by a fabric.
    pub rdma_bytes: u64,
    /// Bytes in HTTP bodies.
    pub http_bytes: u64,
    /// Bytes from memory that held them.
    pub cache_bytes: u64,
    /// The size of the whole object.
    pub total_size: u64,
    /// When the object was last written, in nanoseconds since 1970.
    pub last_modified_ns: u64,
    /// The bytes of the slot handed back.
    pub slot_len: u64,
    /// First number of the error: bytes received or needed, or nanoseconds waited.
    pub error_a: u64,
    /// Second number of the error: bytes expected or there.
    pub error_b: u64,
    /// The slot handed back: its slab,
    pub slab: u32,
    /// its number in that,
    pub slot: u32,
    /// and its generation.
    pub generation: u32,
    /// The operating system's error number; 0 is none.
    pub errno: i32,
    /// Names the whole error text in the service, where `text` is only its beginning; 0 is none.
    pub text_id: u32,
    /// Bytes of the whole error text.
    pub text_len: u32,
    /// Which attempt it was, from 1.
    pub attempt: u16,
    /// How many attempts were allowed.
    pub attempts: u16,
    /// The code of the reason of the first fallback; 0 is none.
    pub fallback: u8,
    /// The stage of the request in which the error happened, from 1; 0 is unknown.
    pub phase: u8,
    /// `DETAIL_...`
    pub flags: u8,
    /// Bytes of `etag`.
    pub etag_len: u8,
    /// Bytes of `version_id`.
    pub version_id_len: u8,
    /// Bytes of `request_id`.
    pub request_id_len: u8,
    /// Bytes of `text`.
    pub text_here: u8,
    /// 0.
    pub reserved: u8,
    /// The object's ETag, as received.
    pub etag: [u8; 128],
    /// The object's version.
    pub version_id: [u8; 128],
    /// The server's id of the request.
    pub request_id: [u8; 64],
    /// The beginning of the error text.
    pub text: [u8; 60],
}

/// Detail flag: the ETag is too long for the record and left out.
pub const DETAIL_LONG_ETAG: u8 = 1 << 0;
/// Detail flag: the version is too long for the record and left out.
pub const DETAIL_LONG_VERSION_ID: u8 = 1 << 1;
/// Detail flag: the request's id is too long for the record and left out.
pub const DETAIL_LONG_REQUEST_ID: u8 = 1 << 2;

/// Bytes of an [`Sqe`].
pub const SQE_SIZE: usize = size_of::<Sqe>();
/// Bytes of a [`Cqe`].
pub const CQE_SIZE: usize = size_of::<Cqe>();
/// Bytes of a [`Detail`].
pub const DETAIL_SIZE: usize = size_of::<Detail>();

pub(super) const SQE_WORDS: usize = SQE_SIZE / 8;
pub(super) const CQE_WORDS: usize = CQE_SIZE / 8;
pub(super) const DETAIL_WORDS: usize = DETAIL_SIZE / 8;

/// Fails to compile when a field is not where version 1 has it.
macro_rules! assert_layout {
    ($type:ident, $size:literal: $($field:ident $at:literal),+) => {
        const _: () = {
            assert!(size_of::<$type>() == $size);
            $(assert!(offset_of!($type, $field) == $at);)+
        };
    };
}

assert_layout!(Sqe, 64:
    op 0, policy 1, flags 2, sequence 4, user_data 8, entry 16, slab 20, slot 24, generation 28, offset 32, len 40,
    name_at 48, key_len 52, bucket_len 54, etag_len 55, deadline_ms 56, memory 60, reserved 61);
assert_layout!(Cqe, 32:
    user_data 0, bytes 8, entry 16, detail 20, flags 24, error 26, status 28, path 30, reason 31);
assert_layout!(Detail, 512:
    queued_ns 0, registered_ns 8, first_byte_ns 16, done_ns 24, rdma_bytes 32, http_bytes 40, cache_bytes 48,
    total_size 56, last_modified_ns 64, slot_len 72, error_a 80, error_b 88, slab 96, slot 100, generation 104,
    errno 108, text_id 112, text_len 116, attempt 120, attempts 122, fallback 124, phase 125, flags 126,
    etag_len 127, version_id_len 128, request_id_len 129, text_here 130, reserved 131, etag 132, version_id 260,
    request_id 388, text 452);

// Entries become words by shifts, not by reinterpreting memory: narrow stores followed by wide loads of the
// same bytes stall the processor, and that was most of the cost of a submission.
impl Sqe {
    #[inline]
    pub(super) fn to_words(self) -> [u64; SQE_WORDS] {
        let [a, b, c] = self.reserved;
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
                | u64::from(a) << 40
                | u64::from(b) << 48
                | u64::from(c) << 56,
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
            reserved: [(last >> 40) as u8, (last >> 48) as u8, (last >> 56) as u8],
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

impl Default for Detail {
    fn default() -> Detail {
        Detail {
            queued_ns: UNKNOWN,
            registered_ns: UNKNOWN,
            first_byte_ns: UNKNOWN,
            done_ns: UNKNOWN,
            total_size: UNKNOWN,
            last_modified_ns: UNKNOWN,
            ..Detail::from_words([0; DETAIL_WORDS])
        }
    }
}

impl Detail {
    pub(super) fn to_words(self) -> [u64; DETAIL_WORDS] {
        transmute!(self)
    }

    pub(super) fn from_words(words: [u64; DETAIL_WORDS]) -> Detail {
        transmute!(words)
    }

    /// Sets the ETag, or the flag that says it is too long.
    pub fn set_etag(&mut self, etag: &str) {
        let fits = put(&mut self.etag, &mut self.etag_len, etag);
        set_flag(&mut self.flags, DETAIL_LONG_ETAG, !fits);
    }

    /// Sets the version, or the flag that says it is too long.
    pub fn set_version_id(&mut self, version: &str) {
        let fits = put(&mut self.version_id, &mut self.version_id_len, version);
        set_flag(&mut self.flags, DETAIL_LONG_VERSION_ID, !fits);
    }

    /// Sets the request's id, or the flag that says it is too long.
    pub fn set_request_id(&mut self, id: &str) {
        let fits = put(&mut self.request_id, &mut self.request_id_len, id);
        set_flag(&mut self.flags, DETAIL_LONG_REQUEST_ID, !fits);
    }

    /// Sets as much of the error text as fits, and `id` to find the whole of it where that is not all.
    pub fn set_text(&mut self, text: &str, id: u32) {
        let here = &text[..text.floor_char_boundary(self.text.len())];
        put(&mut self.text, &mut self.text_here, here);
        self.text_len = u32::try_from(text.len()).unwrap_or(u32::MAX);
        self.text_id = if here.len() < text.len() { id } else { 0 };
    }

    /// The ETag. `None` if there is none, or the record is nonsense.
    pub fn etag(&self) -> Option<&str> {
        get(&self.etag, self.etag_len)
    }

    /// The version. `None` if there is none, or the record is nonsense.
    pub fn version_id(&self) -> Option<&str> {
        get(&self.version_id, self.version_id_len)
    }

    /// The request's id. `None` if there is none, or the record is nonsense.
    pub fn request_id(&self) -> Option<&str> {
        get(&self.request_id, self.request_id_len)
    }

    /// The beginning of the error text. `None` if there is none, or the record is nonsense.
    pub fn text(&self) -> Option<&str> {
        get(&self.text, self.text_here)
    }
}

fn set_flag(flags: &mut u8, flag: u8, on: bool) {
    *flags = if on { *flags | flag } else { *flags & !flag };
}

/// Stores a text with its length, or nothing if it does not fit. Returns whether it did.
fn put(field: &mut [u8], len: &mut u8, text: &str) -> bool {
    let fits = text.len() <= field.len();
    let text = if fits { text.as_bytes() } else { &[] };
    field.fill(0);
    field[..text.len()].copy_from_slice(text);
    *len = text.len() as u8;
    fits
}

fn get(field: &[u8], len: u8) -> Option<&str> {
    let text = field.get(..len.into())?;
    std::str::from_utf8(text)
        .ok()
        .filter(|text| !text.is_empty())
}

#[cfg(all(test, not(ring_loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_entry_is_little_endian_in_memory() {
        let sqe = Sqe {
            op: 0x11,
            sequence: 0x0403_0201,
            len: 0x77,
            reserved: [1, 2, 3],
            ..Sqe::default()
        };
        let words = sqe.to_words();
        assert_eq!(words[0], 0x0403_0201_0000_0011);
        assert_eq!(words[5], 0x77);
        assert_eq!(words[7], 0x0302_0100_0000_0000);
        assert_eq!(Sqe::from_words(words), sqe);
    }

    #[test]
    fn a_text_too_long_is_left_out_and_said_so() {
        let mut detail = Detail::default();
        detail.set_etag(&"e".repeat(129));
        detail.set_request_id("4442587FB7D0A2F9");
        assert_eq!(detail.etag(), None);
        assert_eq!(detail.flags, DETAIL_LONG_ETAG);
        assert_eq!(detail.request_id(), Some("4442587FB7D0A2F9"));
        detail.set_etag("\"e\"");
        assert_eq!((detail.etag(), detail.flags), (Some("\"e\""), 0));
    }

    #[test]
    fn a_long_error_text_is_cut_between_characters_and_keeps_its_id() {
        let mut detail = Detail::default();
        let text = format!("a{}", "\u{e9}".repeat(40));
        detail.set_text(&text, 9);
        assert_eq!(detail.text(), Some(&text[..59]));
        assert_eq!((detail.text_id, detail.text_len), (9, 81));
        detail.set_text("short", 9);
        assert_eq!((detail.text(), detail.text_id), (Some("short"), 0));
    }

    #[test]
    fn a_peer_is_accepted_from_the_version_before_on() {
        assert!(accepts(VERSION) && accepts(OLDEST_VERSION));
        assert!(!accepts(VERSION + 1) && !accepts(OLDEST_VERSION - 1));
    }

    proptest! {
        #[test]
        fn any_words_are_entries_and_come_back_the_same(
            sqe in any::<[u64; 8]>(),
            cqe in any::<[u64; 4]>(),
            half in any::<[u64; 32]>(),
        ) {
            prop_assert_eq!(Sqe::from_words(sqe).to_words(), sqe);
            prop_assert_eq!(Cqe::from_words(cqe).to_words(), cqe);
            let as_memory: ([u8; 64], [u8; 32]) = (transmute!(sqe), transmute!(cqe));
            let (by_shifts, by_memory): (Sqe, Sqe) = (Sqe::from_words(sqe), transmute!(as_memory.0));
            prop_assert_eq!(by_shifts, by_memory);
            let (by_shifts, by_memory): (Cqe, Cqe) = (Cqe::from_words(cqe), transmute!(as_memory.1));
            prop_assert_eq!(by_shifts, by_memory);
            let mut words = [0; DETAIL_WORDS];
            words[..32].copy_from_slice(&half);
            words[32..].copy_from_slice(&half);
            let detail = Detail::from_words(words);
            prop_assert_eq!(detail.to_words(), words);
            let _ = (detail.etag(), detail.version_id(), detail.request_id(), detail.text());
        }
    }
}
