//! Byte ranges: what a request asks for, and what an answer says it carries.

use std::fmt;

/// A non-empty range of bytes of an object; its end does not overflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ByteRange {
    /// The first byte.
    pub offset: u64,
    /// How many bytes, at least one.
    pub len: u64,
}

/// A pair of numbers that is no range, or a header that says none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    /// A range of no bytes cannot be asked for.
    #[error("a range from {offset} of 0 bytes cannot be asked for")]
    Empty {
        /// The first byte asked for.
        offset: u64,
    },
    /// Offset and length together pass the largest offset.
    #[error("a range from {offset} of {len} bytes ends past the largest offset")]
    Overflow {
        /// The first byte asked for.
        offset: u64,
        /// The bytes asked for.
        len: u64,
    },
    /// A `Content-Range` that is not `bytes first-last/total`.
    #[error("Content-Range {text:?} is not \"bytes first-last/total\"")]
    BadContentRange {
        /// The header's value.
        text: String,
    },
}

impl ByteRange {
    /// A range of `len` bytes from `offset`.
    pub fn new(offset: u64, len: u64) -> Result<ByteRange, RangeError> {
        if len == 0 {
            return Err(RangeError::Empty { offset });
        }
        match offset.checked_add(len) {
            Some(_) => Ok(ByteRange { offset, len }),
            None => Err(RangeError::Overflow { offset, len }),
        }
    }

    /// The last byte of the range.
    pub fn last(&self) -> u64 {
        self.offset.saturating_add(self.len.saturating_sub(1))
    }

    /// The value of the `Range` header that asks for it.
    pub fn header_value(&self) -> String {
        format!("bytes={self}")
    }
}

impl fmt::Display for ByteRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.offset, self.last())
    }
}

/// The `Content-Range` of a partial answer; `first <= last < total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentRange {
    /// The first byte carried.
    pub first: u64,
    /// The last byte carried.
    pub last: u64,
    /// The size of the whole object, where the server says it.
    pub total: Option<u64>,
}

impl ContentRange {
    /// Reads `bytes first-last/total` or `bytes first-last/*`; nothing else.
    pub fn parse(text: &str) -> Result<ContentRange, RangeError> {
        parse_content_range(text).ok_or_else(|| RangeError::BadContentRange {
            text: text.chars().take(64).collect(),
        })
    }

    /// How many bytes it covers.
    // No `is_empty`: it covers at least one byte.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.last.saturating_sub(self.first).saturating_add(1)
    }
}

fn parse_content_range(text: &str) -> Option<ContentRange> {
    let (span, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = span.split_once('-')?;
    let (first, last) = (decimal(first)?, decimal(last)?);
    let total = match total {
        "*" => None,
        number => Some(decimal(number)?),
    };
    // No object is so large that the largest number is one of its offsets.
    let ordered = first <= last && last < total.unwrap_or(u64::MAX);
    ordered.then_some(ContentRange { first, last, total })
}

/// The size of the object in `bytes */size`, the form that goes with a 416.
pub fn unsatisfied_total(text: &str) -> Option<u64> {
    decimal(text.strip_prefix("bytes */")?)
}

/// Digits only: `str::parse` would also take a sign.
fn decimal(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if digits { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_empty_or_overflowing_range_is_refused() {
        assert_eq!(ByteRange::new(7, 0), Err(RangeError::Empty { offset: 7 }));
        assert!(ByteRange::new(u64::MAX, 1).is_err());
        assert_eq!(
            ByteRange::new(u64::MAX - 1, 1).unwrap().last(),
            u64::MAX - 1
        );
    }

    #[test]
    fn malformed_content_ranges_are_refused() {
        for text in [
            "",
            "bytes",
            "bytes ",
            "bytes 0-1",
            "bytes 1-0/5",
            "bytes 0-5/5",
            "bytes +0-1/5",
            "bytes 0-1/",
            "bytes  0-1/5",
            "bytes 0-1/5 ",
            "bytes=0-1/5",
            "bytes */5",
            "items 0-1/5",
            "bytes 0-1/-5",
            "bytes 0-18446744073709551616/*",
            "bytes 0-1,3-4/5",
        ] {
            assert!(ContentRange::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn the_largest_offsets_do_not_wrap() {
        let whole = ContentRange::parse("bytes 0-18446744073709551614/*").unwrap();
        assert_eq!(whole.len(), u64::MAX);
        // One byte more, and the number of bytes is none of 64 bits.
        assert!(ContentRange::parse("bytes 0-18446744073709551615/*").is_err());
    }

    #[test]
    fn the_unsatisfied_form_gives_the_size() {
        assert_eq!(unsatisfied_total("bytes */0"), Some(0));
        assert_eq!(unsatisfied_total("bytes */123"), Some(123));
        assert_eq!(unsatisfied_total("bytes */*"), None);
        assert_eq!(unsatisfied_total("bytes 0-1/2"), None);
    }

    proptest! {
        #[test]
        fn a_range_asked_for_is_the_range_read_back(offset in 0..u64::MAX / 2, len in 1..u64::MAX / 2, more in 1..1000_u64) {
            let range = ByteRange::new(offset, len).unwrap();
            let total = range.last() + more;
            let read = ContentRange::parse(&format!("bytes {range}/{total}")).unwrap();
            prop_assert_eq!(read, ContentRange { first: offset, last: range.last(), total: Some(total) });
            prop_assert_eq!(read.len(), len);
            prop_assert_eq!(range.header_value(), format!("bytes={range}"));
        }

        #[test]
        fn any_text_is_parsed_or_refused(text in "(bytes )?[-0-9*/ ]{0,50}") {
            if let Ok(read) = ContentRange::parse(&text) {
                prop_assert!(read.first <= read.last && read.total.is_none_or(|total| read.last < total));
            }
            let _ = unsatisfied_total(&text);
        }
    }
}
