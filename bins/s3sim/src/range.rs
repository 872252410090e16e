//! The `Range` header of one request against one object.

/// What a request's `Range` comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ranged {
    /// No range, or one that HTTP says to ignore: the whole object.
    Whole,
    /// `len` (at least 1) bytes from `first` on.
    Part { first: u64, len: u64 },
    /// A range with nothing of the object in it.
    Unsatisfiable,
}

/// Reads `bytes=a-b`, `bytes=a-` and `bytes=-n`; anything else is ignored, as HTTP demands.
pub(crate) fn parse(header: Option<&str>, size: u64) -> Ranged {
    match header.and_then(bounds) {
        None => Ranged::Whole,
        Some((Some(first), last)) => match last {
            Some(last) if last < first => Ranged::Whole,
            _ if first >= size => Ranged::Unsatisfiable,
            _ => {
                let last = last.unwrap_or(u64::MAX).min(size - 1);
                Ranged::Part {
                    first,
                    len: last - first + 1,
                }
            }
        },
        Some((None, Some(suffix))) => match suffix.min(size) {
            0 => Ranged::Unsatisfiable,
            len => Ranged::Part {
                first: size - len,
                len,
            },
        },
        Some((None, None)) => Ranged::Whole,
    }
}

/// The numbers on both sides of the dash; `None` where the text is no single byte range.
fn bounds(header: &str) -> Option<(Option<u64>, Option<u64>)> {
    let (unit, spec) = header.split_once('=')?;
    if !unit.trim().eq_ignore_ascii_case("bytes") {
        return None;
    }
    let (first, last) = spec.trim().split_once('-')?;
    Some((number(first)?, number(last)?))
}

/// `Some(None)` for nothing, `None` for something that is no number. A number over u64 saturates:
/// it lies beyond every object all the same.
fn number(text: &str) -> Option<Option<u64>> {
    if text.is_empty() {
        return Some(None);
    }
    text.bytes()
        .all(|b| b.is_ascii_digit())
        .then(|| Some(text.parse().unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_three_forms_and_their_edges() {
        let part = |first, len| Ranged::Part { first, len };
        for (header, size, expected) in [
            ("bytes=0-9", 100, part(0, 10)),
            ("bytes=0-0", 1, part(0, 1)),
            ("bytes=90-200", 100, part(90, 10)),
            ("bytes=99-", 100, part(99, 1)),
            ("bytes=-1", 100, part(99, 1)),
            ("bytes=-500", 100, part(0, 100)),
            ("Bytes=5-99999999999999999999999", 10, part(5, 5)),
            ("bytes=100-", 100, Ranged::Unsatisfiable),
            ("bytes=100-101", 100, Ranged::Unsatisfiable),
            ("bytes=-0", 100, Ranged::Unsatisfiable),
            ("bytes=0-", 0, Ranged::Unsatisfiable),
            ("bytes=-5", 0, Ranged::Unsatisfiable),
            ("bytes=9-5", 100, Ranged::Whole),
            ("bytes=-", 100, Ranged::Whole),
            ("bytes=1-2,4-5", 100, Ranged::Whole),
            ("items=0-9", 100, Ranged::Whole),
            ("bytes=a-9", 100, Ranged::Whole),
            ("bytes", 100, Ranged::Whole),
        ] {
            assert_eq!(parse(Some(header), size), expected, "{header} of {size}");
        }
        assert_eq!(parse(None, 5), Ranged::Whole);
    }

    proptest! {
        #[test]
        fn a_part_always_lies_within_the_object(header in "(bytes=)?[0-9]{0,22}-?[0-9]{0,22}", size in any::<u64>()) {
            if let Ranged::Part { first, len } = parse(Some(&header), size) {
                prop_assert!(len >= 1 && first < size && len <= size - first);
            }
        }
    }
}
