//! Entry points for fuzzers: any bytes, no panic, and what must hold of whatever is accepted.

use super::abi::{SQE_SIZE, Sqe};
use super::arena::{ArenaReader, HEAD, MAX_ETAG, MAX_KEY, Number, Object, RecordRef, STRIPE};
use super::check::{CheckedOp, CheckedSqe, Limits, check, nop};
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
        arena: 8 * STRIPE as u32,
    };
    let judged = check(&raw, raw.sequence, &limits);
    let is_nop = |checked: &CheckedSqe| *checked.op() == CheckedOp::Nop;
    let long = judged.ok().filter(is_nop);
    let short = nop(&raw.to_words(), raw.sequence).filter(|(entry, _)| *entry < 8);
    assert_eq!(
        short,
        long.map(|checked| (checked.entry() as usize, checked.user_data())),
        "the short way to a NOP is the long one"
    );
    let Ok(checked) = judged else { return };
    assert!(checked.entry() < limits.entries);
    if let CheckedOp::Get(get) = checked.op() {
        let (start, end) = get.record.bounds();
        assert!(start.is_multiple_of(8) && end <= limits.arena as usize);
        assert!(
            get.range
                .is_none_or(|(offset, len)| offset.checked_add(len).is_some())
        );
    }
}

/// Reads the bytes, after five that say of what lengths and kind, as a record in a key arena.
pub fn fuzz_key(data: &[u8]) {
    let [
        bucket_len,
        key_len,
        etag_len,
        version_len,
        number,
        text @ ..,
    ] = data
    else {
        return;
    };
    let Ok(layout) = Layout::new(1) else { return };
    let region = Region::heap(layout.client_bytes());
    let mut words = [0; STRIPE / 8];
    for (word, bytes) in words.iter_mut().zip(text.chunks(8)) {
        let mut whole = [0; 8];
        whole[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_le_bytes(whole);
    }
    region
        .own_words(layout.arena(), layout.arena_bytes())
        .store(0, &words);
    let record = RecordRef {
        at: 0,
        bucket_len: *bucket_len,
        key_len: u16::from(*key_len) * 4,
        etag_len: *etag_len / 2,
        version_len: *version_len,
        options_len: u16::from(*number / 3),
        number: match number % 3 {
            0 => Number::Unused,
            1 => Number::PinnedSize,
            _ => Number::OpenedId,
        },
    };
    assert!(record.bounds().1 >= HEAD);
    // None such is accepted with a submission.
    if record.bounds().1 > STRIPE {
        return;
    }
    let Ok(read) = ArenaReader::new(&region, layout).read(&record) else {
        return;
    };
    assert_eq!(read.submitted_ns, words[0]);
    match read.object {
        Object::Opened(id) => assert_eq!(id, words[1]),
        Object::Named {
            bucket,
            key,
            etag,
            version,
        } => {
            assert_eq!(bucket.len(), usize::from(*bucket_len));
            assert!(key.len() <= MAX_KEY);
            assert!(etag.is_none_or(|etag| etag.len() <= MAX_ETAG));
            assert_eq!(version.is_some(), record.number == Number::PinnedSize);
        }
    }
}
