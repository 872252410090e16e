//! Sizes as people write them: `64MiB`, and as they read them: `4.00 GiB`.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::{Serialize, Serializer};

const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Size(pub(crate) u64);

/// A text that is no size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a size: write a whole number and B, KiB, MiB, GiB, TiB or nothing")]
pub(crate) struct BadSize {
    text: String,
}

impl FromStr for Size {
    type Err = BadSize;

    fn from_str(text: &str) -> Result<Self, BadSize> {
        parse(text).map(Size).ok_or_else(|| BadSize {
            text: text.to_owned(),
        })
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextOrBytes)
    }
}

/// In a file, a size is a text, or a number of bytes.
struct TextOrBytes;

impl Visitor<'_> for TextOrBytes {
    type Value = Size;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a size, such as \"64MiB\", or a number of bytes")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Size, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<Size, E> {
        let unexpected = || E::invalid_value(de::Unexpected::Signed(bytes), &self);
        u64::try_from(bytes).map(Size).map_err(|_| unexpected())
    }

    fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<Size, E> {
        Ok(Size(bytes))
    }
}

fn parse(text: &str) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().ok()?;
    let known = UNITS
        .iter()
        .find(|(name, _)| unit.eq_ignore_ascii_case(name));
    let shift = match (known, unit) {
        (Some((_, shift)), _) => *shift,
        (None, "" | "B" | "b") => 0,
        (None, _) => return None,
    };
    number.checked_mul(1 << shift)
}

/// The largest unit that leaves a whole number, as sizes stand in keys: `64KiB`, `1000`.
impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = |shift: u32| self.0 != 0 && self.0.trailing_zeros() >= shift;
        match UNITS.iter().find(|(_, shift)| whole(*shift)) {
            Some((unit, shift)) => f.pad(&format!("{}{unit}", self.0 >> shift)),
            None => f.pad(&self.0.to_string()),
        }
    }
}

/// Bytes to three digits: `4.00 GiB`, `17 B`.
pub(crate) fn human(bytes: f64) -> String {
    let scaled = UNITS
        .iter()
        .map(|(unit, shift)| (unit, bytes / (1u64 << shift) as f64))
        .find(|(_, number)| *number >= 1.0);
    match scaled {
        Some((unit, number)) if number >= 100.0 => format!("{number:.0} {unit}"),
        Some((unit, number)) if number >= 10.0 => format!("{number:.1} {unit}"),
        Some((unit, number)) => format!("{number:.2} {unit}"),
        None => format!("{bytes:.0} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn units_are_binary_and_their_case_does_not_matter() {
        for (text, bytes) in [
            ("0", 0),
            ("17", 17),
            ("17B", 17),
            ("64KiB", 65_536),
            ("8mib", 8 << 20),
            ("3GIB", 3 << 30),
            ("2TiB", 2 << 40),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in [
            "",
            "MiB",
            "-1",
            "+1",
            "1.5MiB",
            "64MB",
            "1 MiB",
            "1MiBx",
            "99999999TiB",
            "18446744073709551616",
        ] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }

    #[test]
    fn people_read_three_digits() {
        assert_eq!(human(0.0), "0 B");
        assert_eq!(human(1023.0), "1023 B");
        assert_eq!(human(f64::from(1 << 20) * 1.5), "1.50 MiB");
        assert_eq!(human(f64::from(1 << 30) * 42.25), "42.2 GiB");
        assert_eq!(human(f64::from(1 << 20) * 256.0), "256 MiB");
    }

    proptest! {
        #[test]
        fn a_size_printed_parses_back(bytes in any::<u64>(), shift in 0u32..50) {
            let size = Size((bytes >> shift) << shift);
            prop_assert_eq!(size.to_string().parse(), Ok(size));
        }

        #[test]
        fn any_text_is_parsed_or_refused(text in "[0-9]{0,25}[a-zA-Z]{0,4}") {
            let _ = text.parse::<Size>();
        }
    }
}
