//! Synthetic objects: every byte is a function of key, version and offset.
//!
//! One tile of pseudo-random bytes repeats for ever; key and version choose where in the tile an
//! object begins. The tile is a prime number of bytes long, so no power of two, page or part size
//! is a multiple of it: a range that lands in the wrong place cannot look right.
//!
//! # Keys
//! The last component of the key (what follows the last `/`) begins with the object's size: decimal
//! digits and a unit out of none, `B`, `KiB`, `MiB`, `GiB`, `TiB`. What follows must be nothing or
//! begin with `-`, `.` or `_`: `1048576`, `64KiB`, `8MiB-0001`, `train/1GiB_x.tar`.

use std::sync::OnceLock;

/// Length of the tile: the largest prime below 2^20.
pub const TILE: u64 = 1_048_573;

/// The longest piece of [`Phase::long_slices`].
const LONG: usize = 8 << 20;

/// Where the content of one version of an object begins in the tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phase(u64);

/// The first byte that is not what it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the byte at offset {offset} of the object is {found:#04x}, not {expected:#04x}")]
pub struct Mismatch {
    /// Its offset in the object.
    pub offset: u64,
    /// What it should be.
    pub expected: u8,
    /// What it is.
    pub found: u8,
}

/// The size that a key asks for, or `None` where it does not follow the grammar or is over 2^63 - 1.
pub fn size_of_key(key: &str) -> Option<u64> {
    let name = key.rsplit('/').next()?;
    let digits = name.bytes().take_while(u8::is_ascii_digit).count();
    let number: u64 = name[..digits].parse().ok()?;
    let rest = &name[digits..];
    let unit_end = rest.find(['-', '.', '_']).unwrap_or(rest.len());
    let shift = match &rest[..unit_end] {
        "" | "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        "TiB" => 40,
        _ => return None,
    };
    let size = number.checked_mul(1 << shift)?;
    (size <= i64::MAX as u64).then_some(size)
}

/// Where an object's content begins in the tile.
pub fn phase(key: &str, version: u64) -> Phase {
    Phase(hash(key, version, 0) % TILE)
}

/// Writes the object's bytes from `offset` on into `into`.
pub fn fill(key: &str, version: u64, offset: u64, into: &mut [u8]) {
    let mut at = 0;
    for slice in slices(key, version, offset, into.len() as u64) {
        into[at..at + slice.len()].copy_from_slice(slice);
        at += slice.len();
    }
}

/// Compares `found` with the object's bytes from `offset` on.
pub fn verify(key: &str, version: u64, offset: u64, found: &[u8]) -> Result<(), Mismatch> {
    let mut at = 0;
    for expected in slices(key, version, offset, found.len() as u64) {
        let part = &found[at..at + expected.len()];
        if part != expected {
            let differs = part.iter().zip(expected).position(|(a, b)| a != b);
            let i = differs.unwrap_or(0);
            let (expected, found) = (expected[i], part[i]);
            return Err(Mismatch {
                offset: offset + (at + i) as u64,
                expected,
                found,
            });
        }
        at += expected.len();
    }
    Ok(())
}

/// The object's bytes `offset..offset + len`, as pieces of static memory.
pub fn slices(key: &str, version: u64, offset: u64, len: u64) -> Slices {
    phase(key, version).slices(offset, len)
}

impl Phase {
    /// The bytes `offset..offset + len` of content with this phase.
    pub fn slices(self, offset: u64, len: u64) -> Slices {
        self.pieces(tile(), offset, len)
    }

    /// The same in pieces of 8 MiB, which lie in more memory: for copies that have a cost of their own.
    pub(crate) fn long_slices(self, offset: u64, len: u64) -> Slices {
        self.pieces(long_tile(), offset, len)
    }

    fn pieces(self, table: &'static [u8], offset: u64, len: u64) -> Slices {
        let at = (self.0 + offset % TILE) % TILE;
        Slices {
            table,
            at: at as usize,
            left: len,
        }
    }
}

/// Pieces of static memory that make up a range of an object.
#[derive(Clone, Debug)]
pub struct Slices {
    /// The tile, or it and more of the same after it.
    table: &'static [u8],
    at: usize,
    left: u64,
}

impl Iterator for Slices {
    type Item = &'static [u8];

    fn next(&mut self) -> Option<&'static [u8]> {
        if self.left == 0 {
            return None;
        }
        let rest = &self.table[self.at..];
        let len = self.left.min(rest.len().min(LONG) as u64);
        self.left -= len;
        self.at = (self.at + len as usize) % TILE as usize;
        Some(&rest[..len as usize])
    }
}

/// A 64-bit hash of key and version, stable for ever (FNV-1a, then mixed); `salt` makes several.
pub(crate) fn hash(key: &str, version: u64, salt: u64) -> u64 {
    let mut state = 0xcbf2_9ce4_8422_2325_u64 ^ salt.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let version = version.to_le_bytes();
    for byte in key.as_bytes().iter().chain(&version) {
        state = (state ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    mix(state)
}

/// The finishing step of SplitMix64.
pub(crate) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The tile, made once by SplitMix64 from a fixed seed: the same in every build.
pub(crate) fn tile() -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    BYTES.get_or_init(|| {
        let mut bytes = Vec::with_capacity(TILE as usize + 8);
        let mut state = 0x7333_7369_6d5f_7469_u64;
        while bytes.len() < TILE as usize {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            bytes.extend_from_slice(&mix(state).to_le_bytes());
        }
        bytes.truncate(TILE as usize);
        bytes
    })
}

/// The tile over and over: wherever in the tile a piece begins, the whole of it is there.
pub(crate) fn long_tile() -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    BYTES.get_or_init(|| {
        let mut bytes = tile().repeat(2 + LONG / TILE as usize);
        bytes.truncate(TILE as usize + LONG);
        bytes
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_size_is_read_from_the_last_component_of_the_key() {
        for (key, size) in [
            ("0", 0),
            ("1048576", 1_048_576),
            ("12B", 12),
            ("64KiB", 65_536),
            ("8MiB-0001", 8 << 20),
            ("train/1GiB-x", 1 << 30),
            ("9/3TiB.tar", 3 << 40),
            ("a//7_b/..", u64::MAX),
            ("a//7_b", 7),
            ("9223372036854775807", i64::MAX as u64),
        ] {
            assert_eq!(
                size_of_key(key),
                (size != u64::MAX).then_some(size),
                "{key}"
            );
        }
        for key in [
            "",
            "x",
            "train/",
            "-1",
            "8mib",
            "8MiBx",
            "8MB",
            "9223372036854775808",
            "99999999TiB",
        ] {
            assert_eq!(size_of_key(key), None, "{key}");
        }
    }

    #[test]
    fn the_tile_is_a_prime_number_of_bytes_long() {
        assert!((2..=1024).all(|divisor| !TILE.is_multiple_of(divisor)));
        assert_eq!(tile().len() as u64, TILE);
    }

    #[test]
    fn no_shift_shorter_than_the_tile_looks_right() {
        let tile = tile();
        let twice = [tile, &tile[..64]].concat();
        for shift in 1..tile.len() {
            assert_ne!(twice[..64], twice[shift..shift + 64], "shift {shift}");
        }
    }

    #[test]
    fn keys_and_versions_differ() {
        let mut bytes = [[0; 64]; 3];
        fill("64-a", 0, 0, &mut bytes[0]);
        fill("64-b", 0, 0, &mut bytes[1]);
        fill("64-a", 1, 0, &mut bytes[2]);
        assert_ne!(bytes[0], bytes[1]);
        assert_ne!(bytes[0], bytes[2]);
        assert!(verify("64-a", 0, 0, &bytes[0]).is_ok());
        assert!(verify("64-b", 0, 0, &bytes[0]).is_err());
    }

    #[test]
    fn verify_names_the_first_wrong_byte() {
        let mut bytes = vec![0; 100];
        fill("k", 3, 1000, &mut bytes);
        bytes[40] ^= 1;
        bytes[60] ^= 1;
        let mismatch = verify("k", 3, 1000, &bytes).unwrap_err();
        assert_eq!(
            (mismatch.offset, mismatch.expected ^ mismatch.found),
            (1040, 1)
        );
    }

    #[test]
    fn long_slices_are_the_same_bytes_in_as_few_pieces_as_can_be() {
        let long = LONG as u64;
        for (start, offset, len) in [
            (0, 0, 0),
            (0, 0, long),
            (TILE - 1, 0, long),
            (TILE - 1, u64::MAX - 3, long + 1),
            (12_345, 678, 2 * long + 90),
            (12_345, TILE - 12_345, 2 * long),
        ] {
            let few: Vec<_> = Phase(start).long_slices(offset, len).collect();
            assert_eq!(few.len() as u64, len.div_ceil(long));
            let many: Vec<_> = Phase(start).slices(offset, len).collect();
            assert!(few.concat() == many.concat(), "{start} {offset} {len}");
        }
    }

    proptest! {
        #[test]
        fn any_split_of_a_range_gives_the_same_bytes(
            offset in 0..u64::MAX / 2, len in 1..3000_usize, cut in 0..3000_usize,
        ) {
            let cut = cut.min(len);
            let mut whole = vec![0; len];
            fill("key", 1, offset, &mut whole);
            let mut parts = vec![0; len];
            fill("key", 1, offset, &mut parts[..cut]);
            fill("key", 1, offset + cut as u64, &mut parts[cut..]);
            prop_assert_eq!(&whole, &parts);
            prop_assert!(verify("key", 1, offset, &whole).is_ok());
        }

        #[test]
        fn slices_cover_exactly_the_range(offset in any::<u64>(), len in 0..5 * TILE) {
            let total: u64 = slices("k", 0, offset, len).map(|s| s.len() as u64).sum();
            prop_assert_eq!(total, len);
        }

        #[test]
        fn arbitrary_keys_never_panic(key in ".*") {
            let _ = size_of_key(&key);
        }
    }
}
