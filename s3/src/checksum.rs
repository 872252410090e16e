//! Checksums that servers keep with objects, and what they show of bytes that arrived. Pure.
//!
//! ```text
//! headers ── Offered ──┬─ whole object ──> Sum while bytes arrive ── Tally of all parts ──> Verified
//!                      └─ of parts, or unclear ─────────────────────────────────────────> NotVerified(why)
//! ```
//! A CRC of an object fetched in parts is joined from those of its parts, without reading a byte again. A hash
//! cannot be joined, so it shows something only where the object came in one answer.

mod offered;
mod sum;
mod tally;

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Serialize};

pub use self::offered::Offered;
pub use self::sum::Sum;
pub use self::tally::{Mismatch, Tally};

/// An algorithm of S3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Algorithm {
    /// CRC-64/NVME.
    Crc64Nvme,
    /// CRC-32C, of Castagnoli.
    Crc32c,
    /// CRC-32, as zlib has it.
    Crc32,
    /// SHA-256.
    Sha256,
    /// SHA-1.
    Sha1,
}

named!(Algorithm, "checksum algorithm", {
    Crc64Nvme => "crc64nvme",
    Crc32c => "crc32c",
    Crc32 => "crc32",
    Sha256 => "sha256",
    Sha1 => "sha1",
});

impl Algorithm {
    /// Whether the sums of parts can be joined.
    pub const fn joins(self) -> bool {
        matches!(self, Self::Crc64Nvme | Self::Crc32c | Self::Crc32)
    }

    /// Bytes of a value.
    pub const fn size(self) -> usize {
        match self {
            Self::Crc64Nvme => 8,
            Self::Crc32c | Self::Crc32 => 4,
            Self::Sha256 => 32,
            Self::Sha1 => 20,
        }
    }
}

/// What is asked of a GET's checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Mode {
    /// Nothing: none is asked for, and nothing is summed.
    Off,
    /// Where the server offers one that can show something, it must be right.
    #[default]
    WhenOffered,
    /// Bytes that no checksum has shown to be right are an error.
    Required,
}

named!(Mode, "checksum mode", {
    Off => "off",
    WhenOffered => "when-offered",
    Required => "required",
});

/// Whether a checksum has shown that the bytes are the object's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verified {
    /// They have the object's checksum of this algorithm.
    Verified(Algorithm),
    /// It has not.
    NotVerified(Unverified),
}

impl fmt::Display for Verified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Verified(algorithm) => write!(f, "verified {algorithm}"),
            Self::NotVerified(why) => write!(f, "not verified ({why})"),
        }
    }
}

/// Why a checksum has shown nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unverified {
    /// Nothing arrived.
    Nothing,
    /// None was asked for.
    Off,
    /// The server has none.
    NotOffered,
    /// The server has one of the checksums of the object's parts as they were written.
    Composite,
    /// The server does not say of which bytes its checksum is.
    Unclear,
    /// Not all of the object was asked for.
    Range,
    /// A hash of the whole object, which came in parts.
    Parts,
    /// No processor of this host has seen the bytes.
    Unseen,
}

named!(Unverified, "reason for not being verified", {
    Nothing => "nothing",
    Off => "off",
    NotOffered => "not-offered",
    Composite => "composite",
    Unclear => "unclear",
    Range => "range",
    Parts => "parts",
    Unseen => "unseen",
});

impl Unverified {
    /// The same in words.
    pub const fn why(self) -> &'static str {
        match self {
            Self::Nothing => "nothing arrived",
            Self::Off => "none was asked for",
            Self::NotOffered => "the server has none of this object",
            Self::Composite => "the server has one of the parts' checksums only (composite)",
            Self::Unclear => "the server does not say of which bytes its checksum is",
            Self::Range => "only a part of the object was asked for",
            Self::Parts => "a hash cannot be joined from parts, in which the object came",
            Self::Unseen => "no processor has seen the bytes, which RDMA has put into a device",
        }
    }
}

/// A checksum: an algorithm, and what it gives for some bytes.
///
/// Its text is the algorithm's name, a colon, and base64 as in S3's headers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Checksum {
    algorithm: Algorithm,
    /// As many as the algorithm has, then 0.
    value: [u8; 32],
}

impl Checksum {
    /// Of a value in base64. `None` if it is not one of this algorithm.
    pub fn from_base64(algorithm: Algorithm, text: &str) -> Option<Checksum> {
        Self::from_bytes(algorithm, &BASE64.decode(text.trim()).ok()?)
    }

    /// Of a value's bytes, the most significant one first.
    pub fn from_bytes(algorithm: Algorithm, bytes: &[u8]) -> Option<Checksum> {
        let mut value = [0; 32];
        let right = bytes.len() == algorithm.size();
        right.then(|| value[..bytes.len()].copy_from_slice(bytes))?;
        Some(Checksum { algorithm, value })
    }

    /// The algorithm.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The value's bytes, the most significant one first.
    pub fn bytes(&self) -> &[u8] {
        &self.value[..self.algorithm.size()]
    }

    /// The value as S3's headers have it.
    pub fn to_base64(&self) -> String {
        BASE64.encode(self.bytes())
    }

    fn number(&self) -> u64 {
        let bytes = self.bytes().iter().take(8);
        bytes.fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    fn from_number(algorithm: Algorithm, number: u64) -> Checksum {
        let mut value = [0; 32];
        let len = algorithm.size().min(8);
        value[..len].copy_from_slice(&number.to_be_bytes()[8 - len..]);
        Checksum { algorithm, value }
    }

    /// That of these bytes and `len` others after them whose checksum is `after`. `None` where they cannot be
    /// joined.
    pub fn join(&self, after: &Checksum, len: u64) -> Option<Checksum> {
        let algorithm = self.algorithm;
        let crc = sum::crc(algorithm).filter(|_| after.algorithm == algorithm)?;
        let joined = crc_fast::checksum_combine(crc, self.number(), after.number(), len);
        Some(Self::from_number(algorithm, joined))
    }
}

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.algorithm, self.to_base64())
    }
}

impl fmt::Debug for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Checksum {
    type Err = NoChecksum;

    fn from_str(text: &str) -> Result<Checksum, NoChecksum> {
        let parsed = text
            .split_once(':')
            .and_then(|(algorithm, value)| Checksum::from_base64(algorithm.parse().ok()?, value));
        parsed.ok_or_else(|| NoChecksum(text.to_owned()))
    }
}

impl TryFrom<String> for Checksum {
    type Error = NoChecksum;

    fn try_from(text: String) -> Result<Checksum, NoChecksum> {
        text.parse()
    }
}

impl From<Checksum> for String {
    fn from(checksum: Checksum) -> String {
        checksum.to_string()
    }
}

/// A text that is no checksum.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no checksum")]
pub struct NoChecksum(String);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(algorithm: Algorithm, bytes: &[u8]) -> Checksum {
        let mut sum = Sum::new(algorithm);
        sum.update(bytes);
        sum.finish()
    }

    /// The check values of the algorithms' definitions, of `123456789`.
    #[test]
    fn every_algorithm_gives_its_published_value() {
        for (algorithm, value) in [
            (Algorithm::Crc32, "cbf43926"),
            (Algorithm::Crc32c, "e3069283"),
            (Algorithm::Crc64Nvme, "ae8b14860a799888"),
            (Algorithm::Sha1, "f7c3bc1d808e04732adf679965ccc34ca7ae3441"),
            (
                Algorithm::Sha256,
                "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225",
            ),
        ] {
            let found = of(algorithm, b"123456789");
            assert_eq!(hex::encode(found.bytes()), value, "{algorithm}");
            assert_eq!(found.to_string().parse(), Ok(found));
        }
        assert_eq!(of(Algorithm::Crc32, b"123456789").to_base64(), "y/Q5Jg==");
    }

    #[test]
    fn what_is_no_value_of_its_algorithm_is_none() {
        for text in ["", "y/Q5", "y/Q5Jg", "y/Q5Jg==-3", "????", "AAAAAAAAAAA="] {
            assert_eq!(
                Checksum::from_base64(Algorithm::Crc32, text),
                None,
                "{text}"
            );
        }
        for text in ["", "crc32", "md5:AAAA", "crc32:", "crc32c:AAAAAAAAAAA="] {
            assert!(text.parse::<Checksum>().is_err(), "{text}");
        }
    }

    #[test]
    fn hashes_and_unlike_sums_are_not_joined() {
        let a = of(Algorithm::Sha256, b"a");
        assert_eq!(a.join(&a, 1), None);
        let (crc, other) = (of(Algorithm::Crc32, b"a"), of(Algorithm::Crc32c, b"b"));
        assert_eq!(crc.join(&other, 1), None);
    }

    proptest! {
        #[test]
        fn the_sums_of_parts_join_to_that_of_the_whole(bytes: Vec<u8>, cut: prop::sample::Index) {
            let (a, b) = bytes.split_at(cut.index(bytes.len() + 1));
            for algorithm in [Algorithm::Crc32, Algorithm::Crc32c, Algorithm::Crc64Nvme] {
                let joined = of(algorithm, a).join(&of(algorithm, b), b.len() as u64);
                prop_assert_eq!(joined, Some(of(algorithm, &bytes)));
            }
        }
    }
}
