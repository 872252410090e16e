//! The detail record of a completion: what more there is to say than its 32 bytes hold.
//!
//! ```text
//!   0  14 numbers of 8 bytes: times, bytes, sizes
//! 112  slab, slot, generation, errno
//! 128  attempts, fallback, phase, flags, what a checksum has shown
//! 136  the lengths of 11 texts
//! 160  the texts, one after the other, in the order of `TextKind`
//! ```
//! Names (an ETag, an id) are whole or not there; prose that is too long is cut. Either way a flag says so.

use std::mem::{offset_of, size_of};

use zerocopy::{FromBytes, Immutable, IntoBytes, transmute};

use super::abi::{CQE_SIZE, Cqe, assert_layout};
use super::words::{OwnWords, Words};

/// Of a time or size in a [`Detail`]: not reached, not known.
pub const UNKNOWN: u64 = u64::MAX;

/// Detail flag: a text did not fit. Prose is cut, a name is left out.
pub const DETAIL_CUT: u8 = 1 << 0;
/// Detail flag: the error's cause is an error of the operating system, `errno`.
pub const DETAIL_ERRNO: u8 = 1 << 1;
/// Detail flag: a slot is handed back.
pub const DETAIL_SLOT: u8 = 1 << 2;
/// Detail flag: the error is of the HEAD that came before the GET.
pub const DETAIL_OF_HEAD: u8 = 1 << 3;
/// Detail flag: the completion's status is that of the answer that the error is about.
pub const DETAIL_STATUS: u8 = 1 << 4;

/// Detail flag: the error is final only because all requests together have no retries left.
pub const DETAIL_BUDGET: u8 = 1 << 5;

/// Bytes for all texts of a record.
const TEXT_BYTES: usize = 864;

/// The most bytes of one text, but for the last one, which has all that is left.
const MOST: usize = 255;

/// The texts of a record, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TextKind {
    /// The object's ETag, as received.
    ETag,
    /// The object's version.
    VersionId,
    /// The server's id of the request.
    RequestId,
    /// The id of the host that answered.
    HostId,
    /// The address that was talked to.
    Address,
    /// The error: its S3 code, or what was expected, or its whole text. Of a success: the object's checksum.
    First,
    /// The error: the server's message, or what was found, or a region. Of a success: what the bytes sum up to.
    Second,
    /// The error: a host.
    Third,
    /// Why RDMA was not used, where it was wanted.
    Fallback,
    /// What lies beneath the error.
    Cause,
    /// What was tried, a line for each attempt.
    History,
}

impl TextKind {
    /// All kinds, in their order.
    pub const ALL: [TextKind; 11] = [
        TextKind::ETag,
        TextKind::VersionId,
        TextKind::RequestId,
        TextKind::HostId,
        TextKind::Address,
        TextKind::First,
        TextKind::Second,
        TextKind::Third,
        TextKind::Fallback,
        TextKind::Cause,
        TextKind::History,
    ];

    /// Whether half of it would be wrong, not just short.
    fn is_name(self) -> bool {
        self as u8 <= TextKind::Address as u8
    }
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
    /// The bytes of the slot handed back, with [`DETAIL_SLOT`],
    pub slot_len: u64,
    /// and where it begins in its slab.
    pub slot_at: u64,
    /// First number of the error: bytes received or needed, or nanoseconds waited.
    pub error_a: u64,
    /// Second number of the error: bytes expected or there.
    pub error_b: u64,
    /// Nanoseconds that the server asked to wait.
    pub retry_after_ns: u64,
    /// The slot handed back: its slab,
    pub slab: u32,
    /// its number in that,
    pub slot: u32,
    /// and its generation.
    pub generation: u32,
    /// The operating system's error number, with [`DETAIL_ERRNO`].
    pub errno: i32,
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
    /// The code of what a checksum has shown of the bytes; 0 is that none was asked for.
    pub verified: u8,
    /// Bytes of each text.
    pub text_lens: [u16; 11],
    /// 0.
    pub reserved_too: u16,
    /// The texts, one after the other.
    pub texts: [u8; TEXT_BYTES],
}

/// Bytes of a [`Detail`].
pub const DETAIL_SIZE: usize = size_of::<Detail>();

pub(super) const DETAIL_WORDS: usize = DETAIL_SIZE / 8;

const TEXTS_AT: usize = offset_of!(Detail, texts);

assert_layout!(Detail, 1024:
    queued_ns 0, registered_ns 8, first_byte_ns 16, done_ns 24, rdma_bytes 32, http_bytes 40, cache_bytes 48,
    total_size 56, last_modified_ns 64, slot_len 72, slot_at 80, error_a 88, error_b 96, retry_after_ns 104, slab 112,
    slot 116, generation 120, errno 124, attempt 128, attempts 130, fallback 132, phase 133, flags 134, verified 135,
    text_lens 136, reserved_too 158, texts 160);

impl Default for Detail {
    fn default() -> Detail {
        Detail {
            queued_ns: UNKNOWN,
            registered_ns: UNKNOWN,
            first_byte_ns: UNKNOWN,
            done_ns: UNKNOWN,
            total_size: UNKNOWN,
            last_modified_ns: UNKNOWN,
            retry_after_ns: UNKNOWN,
            ..Detail::from_words([0; DETAIL_WORDS])
        }
    }
}

impl Detail {
    pub(super) fn from_words(words: [u64; DETAIL_WORDS]) -> Detail {
        transmute!(words)
    }

    /// Stores the record at a word; of its texts, only what there is of them.
    pub(super) fn store(self, words: &OwnWords, at: usize) {
        let used = (TEXTS_AT + self.text_bytes()).div_ceil(8);
        let all: [u64; DETAIL_WORDS] = transmute!(self);
        words.paste(at, &all[..used]);
    }

    /// Copies the record at a word, each word once. Any bits may come.
    pub(super) fn load(words: &Words, at: usize) -> Detail {
        let mut all = [0; DETAIL_WORDS];
        words.copy(at, &mut all[..TEXTS_AT / 8]);
        let used = Detail::from_words(all).text_bytes().div_ceil(8);
        words.copy(at + TEXTS_AT / 8, &mut all[TEXTS_AT / 8..][..used]);
        Detail::from_words(all)
    }

    /// Bytes of all texts, or all there is room for.
    fn text_bytes(&self) -> usize {
        let lens = self.text_lens.iter().map(|len| usize::from(*len));
        lens.sum::<usize>().min(TEXT_BYTES)
    }

    /// Bytes that a text of that kind may still have.
    pub fn room(&self, kind: TextKind) -> usize {
        let room = TEXT_BYTES - self.text_bytes();
        match kind {
            TextKind::History => room,
            _ => room.min(MOST),
        }
    }

    /// Adds a text, each kind at most once and in their order. What does not fit is cut or left out.
    pub fn add(&mut self, kind: TextKind, text: &str) {
        let at = self.text_bytes();
        let room = self.room(kind);
        let here = match text.len() <= room {
            true => text,
            false if kind.is_name() => "",
            false => &text[..text.floor_char_boundary(room)],
        };
        if here.len() < text.len() {
            self.flags |= DETAIL_CUT;
        }
        debug_assert!(self.text_lens[kind as usize..].iter().all(|len| *len == 0));
        self.texts[at..at + here.len()].copy_from_slice(here.as_bytes());
        self.text_lens[kind as usize] = here.len() as u16;
    }

    /// A text. `None` if there is none, or the record is nonsense.
    pub fn text(&self, kind: TextKind) -> Option<&str> {
        let lens = self.text_lens[..kind as usize].iter();
        let at: usize = lens.map(|len| usize::from(*len)).sum();
        let len = usize::from(self.text_lens[kind as usize]);
        let text = self.texts.get(at..at.checked_add(len)?)?;
        std::str::from_utf8(text)
            .ok()
            .filter(|text| !text.is_empty())
    }
}

/// A completion entry and its record as bytes, to be sent elsewhere than through a ring.
pub fn record_to_bytes(cqe: &Cqe, detail: &Detail) -> Vec<u8> {
    [cqe.as_bytes(), detail.as_bytes()].concat()
}

/// The same back. `None` for bytes of another number.
pub fn record_from_bytes(bytes: &[u8]) -> Option<(Cqe, Detail)> {
    let (cqe, detail) = bytes.split_at_checked(CQE_SIZE)?;
    Some((
        Cqe::read_from_bytes(cqe).ok()?,
        Detail::read_from_bytes(detail).ok()?,
    ))
}

#[cfg(all(test, not(ring_loom)))]
mod tests {
    use super::*;
    use crate::Region;
    use proptest::prelude::*;

    #[test]
    fn a_name_too_long_is_left_out_and_prose_is_cut_between_characters() {
        let mut detail = Detail::default();
        detail.add(TextKind::ETag, &"e".repeat(256));
        detail.add(TextKind::RequestId, "4442587FB7D0A2F9");
        assert_eq!(detail.flags, DETAIL_CUT);
        let prose = "\u{e9}".repeat(200);
        detail.add(TextKind::Second, &prose);
        assert_eq!(detail.text(TextKind::ETag), None);
        assert_eq!(detail.text(TextKind::RequestId), Some("4442587FB7D0A2F9"));
        assert_eq!(detail.text(TextKind::Second), Some(&prose[..254]));
        assert_eq!(detail.text(TextKind::Third), None);
    }

    #[test]
    fn texts_never_pass_the_end_of_the_record() {
        let mut detail = Detail::default();
        for kind in TextKind::ALL {
            detail.add(kind, &"x".repeat(200));
        }
        assert_eq!(detail.text_bytes(), TEXT_BYTES);
        assert_eq!(detail.text(TextKind::Address).map(str::len), None);
        assert_eq!(detail.text(TextKind::First).map(str::len), Some(64));
        assert_eq!(detail.text(TextKind::Cause), None);
        assert_eq!(detail.room(TextKind::History), 0);
    }

    proptest! {
        #[test]
        fn a_record_comes_back_from_memory_as_it_was_stored(
            texts in proptest::collection::vec("\\PC{0,90}", 11),
            times in any::<[u64; 4]>(),
        ) {
            let mut detail = Detail { queued_ns: times[0], done_ns: times[1], error_a: times[2], slot_len: times[3], ..Detail::default() };
            for (kind, text) in TextKind::ALL.into_iter().zip(&texts) {
                detail.add(kind, text);
            }
            let region = Region::heap(2 * DETAIL_SIZE);
            let own = region.own_words(0, 2 * DETAIL_SIZE);
            // What an earlier, longer record left there is not seen.
            own.store(DETAIL_WORDS, &[u64::MAX; DETAIL_WORDS]);
            detail.store(&own, DETAIL_WORDS);
            let read = Detail::load(&region.words(0, 2 * DETAIL_SIZE), DETAIL_WORDS);
            for (kind, text) in TextKind::ALL.into_iter().zip(&texts) {
                prop_assert_eq!(read.text(kind), detail.text(kind));
                if detail.flags & DETAIL_CUT == 0 {
                    prop_assert_eq!(read.text(kind).unwrap_or(""), text);
                }
            }
            prop_assert_eq!((read.queued_ns, read.done_ns, read.error_a, read.slot_len), times.into());
        }

        #[test]
        fn any_bits_are_a_record_that_can_be_read(words in any::<[[u64; 32]; 4]>()) {
            let all: [u64; DETAIL_WORDS] = transmute!(words);
            let region = Region::heap(DETAIL_SIZE);
            region.own_words(0, DETAIL_SIZE).store(0, &all);
            let detail = Detail::load(&region.words(0, DETAIL_SIZE), 0);
            for kind in TextKind::ALL {
                let _ = detail.text(kind);
            }
        }
    }
}
