//! The range of `--range`, as HTTP writes it, and the chunks that a transfer is made of. Pure.

use std::str::FromStr;

/// What is wanted of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RangeArg {
    /// From a byte on, up to and including another one or to the end.
    From { first: u64, last: Option<u64> },
    /// So many bytes at the end.
    Last(u64),
}

/// A text that is no range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadRange {
    #[error(
        "{text:?} is not a range: write FIRST-LAST (both included), FIRST- or -COUNT, in bytes"
    )]
    Form { text: String },
    #[error("{text:?} begins at byte {}, where no object has one", u64::MAX)]
    TooFar { text: String },
}

impl FromStr for RangeArg {
    type Err = BadRange;

    fn from_str(text: &str) -> Result<Self, BadRange> {
        let own = || text.to_owned();
        match parse(text) {
            None => Err(BadRange::Form { text: own() }),
            // The length of an object that has this byte is no number of 64 bits.
            Some(RangeArg::From {
                first: u64::MAX, ..
            }) => Err(BadRange::TooFar { text: own() }),
            Some(range) => Ok(range),
        }
    }
}

fn parse(text: &str) -> Option<RangeArg> {
    let number = |digits: &str| -> Option<u64> {
        let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        plain.then(|| digits.parse().ok()).flatten()
    };
    match text.split_once('-')? {
        ("", count) => number(count).filter(|count| *count > 0).map(RangeArg::Last),
        (first, "") => Some(RangeArg::From {
            first: number(first)?,
            last: None,
        }),
        (first, last) => {
            let (first, last) = (number(first)?, number(last)?);
            (first <= last).then_some(RangeArg::From {
                first,
                last: Some(last),
            })
        }
    }
}

/// A range of an object that is to be fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Where it starts in the object.
    pub(crate) offset: u64,
    /// Its bytes.
    pub(crate) len: u64,
}

impl Extent {
    /// What to fetch of an object of `size` bytes.
    ///
    /// A range that begins past the end is left as one byte there: the server's answer says what is wrong.
    pub(crate) fn resolve(range: Option<RangeArg>, size: u64) -> Self {
        let past_the_end = |offset| Self { offset, len: 1 };
        match range {
            None => Self {
                offset: 0,
                len: size,
            },
            Some(RangeArg::From { first, .. }) if first >= size => past_the_end(first),
            Some(RangeArg::From { first, last }) => {
                let last = last.unwrap_or(u64::MAX).min(size - 1);
                Self {
                    offset: first,
                    len: last - first + 1,
                }
            }
            Some(RangeArg::Last(_)) if size == 0 => past_the_end(0),
            Some(RangeArg::Last(count)) => {
                let len = count.min(size);
                Self {
                    offset: size - len,
                    len,
                }
            }
        }
    }

    /// Its `nth` chunk of `chunk` bytes, and where that chunk belongs in the output.
    pub(crate) fn chunk(&self, nth: u64, chunk: u64) -> Option<Chunk> {
        let at = nth.checked_mul(chunk).filter(|at| *at < self.len)?;
        Some(Chunk {
            at,
            offset: self.offset.checked_add(at)?,
            len: chunk.min(self.len - at),
        })
    }
}

/// A part of an extent that one GET fetches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// Where it belongs in the output.
    pub(crate) at: u64,
    /// Where it starts in the object.
    pub(crate) offset: u64,
    /// Its bytes.
    pub(crate) len: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn resolve(text: &str, size: u64) -> (u64, u64) {
        let extent = Extent::resolve(Some(text.parse().unwrap()), size);
        (extent.offset, extent.len)
    }

    #[test]
    fn ranges_are_inclusive_and_end_with_the_object() {
        assert_eq!(resolve("0-0", 10), (0, 1));
        assert_eq!(resolve("2-5", 10), (2, 4));
        assert_eq!(resolve("2-99", 10), (2, 8));
        assert_eq!(resolve("2-", 10), (2, 8));
        assert_eq!(resolve("-3", 10), (7, 3));
        assert_eq!(resolve("-99", 10), (0, 10));
        assert_eq!(resolve("0-18446744073709551615", 10), (0, 10));
    }

    #[test]
    fn a_range_past_the_end_still_asks_the_server() {
        assert_eq!(resolve("10-", 10), (10, 1));
        let (last, text) = (u64::MAX - 1, "18446744073709551614-");
        assert_eq!(resolve(text, 10), (last, 1));
        assert_eq!(resolve("-1", 0), (0, 1));
    }

    #[test]
    fn what_is_no_range_is_refused() {
        for text in [
            "",
            "-",
            "5",
            "5-4",
            "-0",
            "a-b",
            "+1-2",
            "1-+2",
            " 1-2",
            "1-2-3",
            "0-1,3-4",
            "99999999999999999999-",
            "18446744073709551615-",
            "18446744073709551615-18446744073709551615",
        ] {
            assert!(text.parse::<RangeArg>().is_err(), "{text}");
        }
    }

    #[test]
    fn an_empty_object_has_no_chunks() {
        assert_eq!(Extent::resolve(None, 0).chunk(0, 8), None);
    }

    proptest! {
        #[test]
        fn chunks_cover_every_byte_exactly_once(
            first in 0u64..1 << 40, count in 1u64..1 << 30, beyond in 0u64..1 << 30, chunk in 1u64 << 20..1 << 26,
        ) {
            let range = RangeArg::From { first, last: Some(first + count - 1) };
            let extent = Extent::resolve(Some(range), first + count + beyond);
            prop_assert_eq!(extent, Extent { offset: first, len: count });
            let mut at = 0;
            for nth in 0.. {
                let Some(part) = extent.chunk(nth, chunk) else { break };
                prop_assert_eq!((part.at, part.offset), (at, first + at));
                prop_assert!(part.len > 0 && part.len <= chunk);
                at += part.len;
            }
            prop_assert_eq!(at, count);
        }
    }
}
