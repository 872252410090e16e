//! What the parts of a GET come to.

use std::collections::BTreeMap;

use super::{Checksum, Mode, Offered, Unverified, Verified};

/// The checksum of an object from what its parts say, in whatever order they arrive.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Stretches of the object by where they begin; neighbours are joined.
    stretches: BTreeMap<u64, Stretch>,
    /// What the answers offer.
    offered: Option<Offered>,
    /// How many parts came.
    parts: u32,
    /// Some of their bytes have passed no processor.
    unseen: bool,
}

#[derive(Clone, Copy, Debug)]
struct Stretch {
    len: u64,
    sum: Checksum,
}

/// Bytes that do not have their checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// What the server says.
    pub expected: Checksum,
    /// What the bytes have.
    pub found: Checksum,
}

impl Tally {
    /// An answer, or an earlier one that the GET is bound to, offers this.
    pub fn offer(&mut self, offered: Option<Offered>) {
        self.offered = match (self.offered, offered) {
            // They differ: at least one is not of the whole object.
            (Some(Offered::Whole(a)), Some(Offered::Whole(b)))
                if a.algorithm() == b.algorithm() && a != b =>
            {
                Some(Offered::Unclear)
            }
            (Some(known @ (Offered::Whole(_) | Offered::Unclear)), _) => Some(known),
            (known, new) => new.or(known),
        };
    }

    /// A part of so many bytes has arrived, with where it begins and its sum where that is known. `seen`: a processor
    /// has had its bytes.
    pub fn add(&mut self, len: u64, sum: Option<(u64, Checksum)>, seen: bool) {
        self.parts = self.parts.saturating_add(1);
        self.unseen |= len > 0 && !seen && sum.is_none();
        if let (1.., Some((offset, sum))) = (len, sum) {
            self.join(offset, Stretch { len, sum });
        }
    }

    fn join(&mut self, offset: u64, part: Stretch) {
        let mut at = offset;
        let mut whole = part;
        if let Some((&start, before)) = self.stretches.range(..offset).next_back()
            && start.checked_add(before.len) == Some(offset)
            && let Some(joined) = before.join(&whole)
        {
            (at, whole) = (start, joined);
        }
        if let Some(end) = at.checked_add(whole.len)
            && let Some(joined) = self.stretches.get(&end).and_then(|next| whole.join(next))
        {
            self.stretches.remove(&end);
            whole = joined;
        }
        self.stretches.insert(at, whole);
    }

    /// The sum of the `len` bytes from `offset` on, if it is known.
    pub fn sum(&self, offset: u64, len: u64) -> Option<Checksum> {
        let stretch = self.stretches.get(&offset)?;
        (stretch.len == len).then_some(stretch.sum)
    }

    /// All bytes are in memory again, and sum up to this.
    pub fn read_again(&mut self, len: u64, sum: Checksum) {
        *self = Self {
            offered: self.offered,
            ..Self::default()
        };
        self.add(len, Some((0, sum)), true);
    }

    /// Whether the `len` bytes that came from `offset` on are those of the object, of which `whole` says whether
    /// they are all.
    pub fn judge(
        &self,
        mode: Mode,
        (offset, len): (u64, u64),
        whole: bool,
    ) -> Result<Verified, Mismatch> {
        let not = |why| Ok(Verified::NotVerified(why));
        if mode == Mode::Off {
            return not(Unverified::Off);
        }
        if !whole {
            return not(match len {
                0 => Unverified::Nothing,
                _ => Unverified::Range,
            });
        }
        let expected = match self.offered {
            None | Some(Offered::Composite | Offered::Unclear) if len == 0 => {
                return not(Unverified::Nothing);
            }
            None => return not(Unverified::NotOffered),
            Some(Offered::Composite) => return not(Unverified::Composite),
            Some(Offered::Unclear) => return not(Unverified::Unclear),
            Some(Offered::Whole(expected)) => expected,
        };
        let found = match len {
            0 => Some(super::Sum::new(expected.algorithm()).finish()),
            _ => self.sum(offset, len),
        };
        match found.filter(|found| found.algorithm() == expected.algorithm()) {
            Some(found) if found == expected => Ok(Verified::Verified(expected.algorithm())),
            Some(found) => Err(Mismatch { expected, found }),
            None if !expected.algorithm().joins() && self.parts > 1 => not(Unverified::Parts),
            None if self.unseen => not(Unverified::Unseen),
            // The parts were summed by different algorithms, as their answers differ.
            None => not(Unverified::Unclear),
        }
    }

    /// Whether some bytes have passed no processor.
    pub fn is_unseen(&self) -> bool {
        self.unseen
    }

    /// What the answers so far offer.
    pub fn offered(&self) -> Option<Offered> {
        self.offered
    }
}

impl Stretch {
    fn join(&self, after: &Stretch) -> Option<Stretch> {
        Some(Stretch {
            len: self.len.checked_add(after.len)?,
            sum: self.sum.join(&after.sum, after.len)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Algorithm, Sum};
    use super::*;
    use proptest::prelude::*;

    fn sum(algorithm: Algorithm, bytes: &[u8]) -> Checksum {
        let mut sum = Sum::new(algorithm);
        sum.update(bytes);
        sum.finish()
    }

    fn judged(tally: &Tally, len: u64) -> Result<Verified, Mismatch> {
        tally.judge(Mode::WhenOffered, (0, len), true)
    }

    fn offering(offered: Offered) -> Tally {
        let mut tally = Tally::default();
        tally.offer(Some(offered));
        tally
    }

    #[test]
    fn one_wrong_byte_is_a_mismatch() {
        for algorithm in Algorithm::ALL {
            let expected = sum(*algorithm, b"right");
            let mut tally = offering(Offered::Whole(expected));
            let found = sum(*algorithm, b"wrong");
            tally.add(5, Some((0, found)), true);
            assert_eq!(judged(&tally, 5), Err(Mismatch { expected, found }));
        }
    }

    #[test]
    fn what_cannot_be_verified_says_why() {
        let crc = sum(Algorithm::Crc32, b"abc");
        let hash = sum(Algorithm::Sha256, b"abc");
        let not = |why| Ok(Verified::NotVerified(why));
        for (offered, why) in [
            (None, Unverified::NotOffered),
            (Some(Offered::Composite), Unverified::Composite),
            (Some(Offered::Unclear), Unverified::Unclear),
        ] {
            let mut tally = Tally::default();
            tally.offer(offered);
            tally.add(3, None, true);
            assert_eq!(judged(&tally, 3), not(why));
        }
        let mut parts = offering(Offered::Whole(hash));
        parts.add(1, None, true);
        parts.add(2, None, true);
        assert_eq!(judged(&parts, 3), not(Unverified::Parts));
        let mut unseen = offering(Offered::Whole(crc));
        unseen.add(3, None, false);
        assert_eq!(judged(&unseen, 3), not(Unverified::Unseen));
        unseen.read_again(3, crc);
        assert_eq!(judged(&unseen, 3), Ok(Verified::Verified(Algorithm::Crc32)));
        let mut fine = offering(Offered::Whole(crc));
        fine.add(3, Some((0, crc)), true);
        assert_eq!(judged(&fine, 3), Ok(Verified::Verified(Algorithm::Crc32)));
        assert_eq!(fine.judge(Mode::Off, (0, 3), true), not(Unverified::Off));
        let range = fine.judge(Mode::Required, (0, 3), false);
        assert_eq!(range, not(Unverified::Range));
        let of_nothing = fine.judge(Mode::Required, (9, 0), false);
        assert_eq!(of_nothing, not(Unverified::Nothing));
    }

    #[test]
    fn r57_answers_that_contradict_each_other_show_nothing() {
        let mut tally = Tally::default();
        for part in [b"abc", b"def"] {
            // A server that gives the checksum of the range and calls it the object's.
            tally.offer(Some(Offered::Whole(sum(Algorithm::Crc32, part))));
        }
        tally.offer(Some(Offered::Whole(sum(Algorithm::Crc32, b"abc"))));
        tally.add(6, Some((0, sum(Algorithm::Crc32, b"abcdef"))), true);
        assert_eq!(
            judged(&tally, 6),
            Ok(Verified::NotVerified(Unverified::Unclear))
        );
    }

    #[test]
    fn an_empty_object_has_a_checksum_too() {
        let empty = sum(Algorithm::Crc64Nvme, b"");
        assert_eq!(
            judged(&offering(Offered::Whole(empty)), 0),
            Ok(Verified::Verified(Algorithm::Crc64Nvme))
        );
        let wrong = offering(Offered::Whole(sum(Algorithm::Crc64Nvme, b"x")));
        assert!(judged(&wrong, 0).is_err());
        let nothing = judged(&offering(Offered::Composite), 0);
        assert_eq!(nothing, Ok(Verified::NotVerified(Unverified::Nothing)));
    }

    proptest! {
        #[test]
        fn parts_in_any_order_come_to_the_whole(
            parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..20),
            order in any::<u64>(),
            start in 0..u64::MAX / 2,
        ) {
            let whole = parts.concat();
            let expected = sum(Algorithm::Crc64Nvme, &whole);
            let mut at = start;
            let mut all: Vec<_> = parts
                .iter()
                .map(|part| {
                    let offset = at;
                    at += part.len() as u64;
                    (offset, part)
                })
                .collect();
            // Any order that the number gives.
            all.sort_by_key(|(offset, _)| offset.wrapping_mul(order | 1).rotate_left(17));
            let mut tally = offering(Offered::Whole(expected));
            for (offset, part) in all {
                tally.add(part.len() as u64, Some((offset, sum(Algorithm::Crc64Nvme, part))), true);
            }
            prop_assert!(tally.stretches.len() <= 1);
            let judged = tally.judge(Mode::Required, (start, whole.len() as u64), true);
            prop_assert_eq!(judged, Ok(Verified::Verified(Algorithm::Crc64Nvme)));
        }
    }
}
