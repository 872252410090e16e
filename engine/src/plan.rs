//! How a GET is cut into parts. Pure.

use s3engine_s3::range::ByteRange;

/// One request of a GET: a range of the object and where its bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Bytes of the object.
    pub range: ByteRange,
    /// Offset in the buffer.
    pub at: u64,
}

/// Where no request may cross in the buffer: at `first`, and from there every `step` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cuts {
    pub first: u64,
    pub step: u64,
}

impl Cuts {
    /// Nothing to heed.
    pub(crate) const NONE: Self = Self {
        first: u64::MAX,
        step: u64::MAX,
    };

    /// The first cut after `at`.
    fn after(self, at: u64) -> u64 {
        match at.checked_sub(self.first) {
            None => self.first,
            Some(past) => {
                let step = self.step.max(1);
                self.first
                    .saturating_add((past / step + 1).saturating_mul(step))
            }
        }
    }
}

/// Bytes `done..len` of a request that starts at `offset` in the object, in parts of at most `part_size`.
pub(crate) fn parts(
    offset: u64,
    done: u64,
    len: u64,
    part_size: u64,
    cuts: Cuts,
) -> impl Iterator<Item = Part> {
    let part_size = part_size.max(1);
    let mut at = done;
    std::iter::from_fn(move || {
        if at >= len {
            return None;
        }
        let end = at.saturating_add(part_size).min(cuts.after(at)).min(len);
        let range = ByteRange::new(offset.checked_add(at)?, end - at).ok()?;
        let part = Part { range, at };
        at = end;
        Some(part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parts_cover_every_byte_exactly_once(
            offset in 0u64..1 << 50,
            len in 0u64..1 << 34,
            done in 0u64..1 << 20,
            part_size in 1u64 << 20..1 << 30,
            first in 1u64..1 << 33,
            step in 1u64 << 20..1 << 33,
        ) {
            let cuts = Cuts { first, step };
            let mut at = done;
            for part in parts(offset, done, len, part_size, cuts) {
                prop_assert_eq!(part.at, at, "no gap and no overlap");
                prop_assert_eq!(part.range.offset, offset + at);
                prop_assert!(part.range.len > 0 && part.range.len <= part_size);
                let last = at + part.range.len - 1;
                let segment = |byte: u64| if byte < first { 0 } else { 1 + (byte - first) / step };
                prop_assert_eq!(segment(at), segment(last), "no part crosses a cut");
                at += part.range.len;
            }
            prop_assert_eq!(at, len.max(done));
        }

        #[test]
        fn without_cuts_every_part_but_the_last_is_full(len in 1u64..1 << 40, part_size in 1u64 << 23..1 << 30) {
            let count = parts(0, 0, len, part_size, Cuts::NONE).count() as u64;
            prop_assert_eq!(count, len.div_ceil(part_size));
        }
    }

    /// Sizes at which others have wrapped.
    const EDGES: [u64; 9] = [
        (1 << 31) - 1,
        1 << 31,
        (1 << 32) - 1,
        1 << 32,
        (1 << 32) + 1,
        (1 << 33) + 1,
        5 << 30,
        5 << 40,
        (6 << 40) + 1,
    ];

    #[test]
    fn r63_no_part_is_longer_than_a_token_can_say() {
        let most = u64::from(u32::MAX);
        for len in EDGES {
            let all: Vec<_> = parts(7, 0, len, most, Cuts::NONE).collect();
            assert!(all.iter().all(|part| part.range.len <= most));
            assert_eq!(all.iter().map(|part| part.range.len).sum::<u64>(), len);
            assert_eq!(all.len() as u64, len.div_ceil(most));
        }
    }

    #[test]
    fn r64_parts_by_http_are_counted_right_at_the_same_sizes() {
        for len in EDGES {
            let mut end = 0;
            for part in parts(0, 0, len, 64 << 20, Cuts::NONE) {
                assert_eq!((part.at, part.range.offset), (end, end));
                end += part.range.len;
                let header = part.range.header_value();
                assert_eq!(header, format!("bytes={}-{}", part.at, end - 1));
            }
            assert_eq!(end, len);
        }
    }

    #[test]
    fn the_end_of_the_number_range_is_no_panic() {
        assert_eq!(parts(u64::MAX, 0, 5, 2, Cuts::NONE).count(), 0);
        assert_eq!(parts(0, 0, u64::MAX, u64::MAX, Cuts::NONE).count(), 1);
    }
}
