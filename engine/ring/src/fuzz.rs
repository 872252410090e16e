//! Entry points for fuzzers: any bytes, no panic, and what must hold of whatever is accepted.

use super::abi::{SQE_SIZE, Sqe};
use super::arena::{ArenaReader, MAX_ETAG, MAX_KEY, NameRef};
use super::check::{CheckedOp, Limits, check};
use super::layout::Layout;
use super::words::Region;

/// Judges the bytes as a submission, beside a queue of 8 entries.
pub fn fuzz_sqe(data: &[u8]) {
    let mut bytes = [0; SQE_SIZE];
    let len = data.len().min(SQE_SIZE);
    bytes[..len].copy_from_slice(&data[..len]);
    let raw: Sqe = zerocopy::transmute!(bytes);
    let limits = Limits {
        entries: 8,
        arena: 8 * 1408,
    };
    let Ok(checked) = check(&raw, raw.sequence, &limits) else {
        return;
    };
    assert!(checked.entry() < limits.entries);
    if let CheckedOp::Get(get) = checked.op() {
        let bytes = u64::from(get.name.bucket_len)
            + u64::from(get.name.key_len)
            + u64::from(get.name.etag_len);
        assert!(u64::from(get.name.at) + bytes <= u64::from(limits.arena));
        assert!(
            get.range
                .is_none_or(|(offset, len)| len > 0 && offset.checked_add(len).is_some())
        );
    }
}

/// Reads the bytes, after three that give lengths, as a name in a key arena.
pub fn fuzz_key(data: &[u8]) {
    let [bucket_len, key_len, etag_len, text @ ..] = data else {
        return;
    };
    let Ok(layout) = Layout::new(1) else { return };
    let region = Region::heap(layout.client_bytes());
    let mut words = [0; 176];
    for (word, bytes) in words.iter_mut().zip(text.chunks(8)) {
        let mut whole = [0; 8];
        whole[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_le_bytes(whole);
    }
    region
        .own_words(layout.arena(), layout.arena_bytes())
        .store(0, &words);
    let name = NameRef {
        at: 0,
        bucket_len: *bucket_len,
        key_len: u16::from(*key_len) * 4,
        etag_len: *etag_len / 2,
    };
    if let Ok(read) = ArenaReader::new(&region, layout).read(name) {
        assert_eq!(read.bucket.len(), usize::from(*bucket_len));
        assert!(read.key.len() <= MAX_KEY);
        assert!(read.etag.is_none_or(|etag| etag.len() <= MAX_ETAG));
    }
}
