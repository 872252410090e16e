//! The 81-character text of `x-amz-rdma-token`, which names a window of memory to the server.
//!
//! ```text
//! address          size     rkey     lid  dctn   g gid
//! 0102030405060708:01020304:01020304:0102:010203:1:0102030405060708090a0b0c0d0e0f10
//! 0                17       26       35   40    47 49                              81
//! ```
//!
//! Hexadecimal, most significant digit first, zero padded; `g` is `1` where a GID follows.

use std::fmt;
use std::ops::Range;

const ADDRESS: Range<usize> = 0..16;
const SIZE: Range<usize> = 17..25;
const RKEY: Range<usize> = 26..34;
const LID: Range<usize> = 35..39;
const DCTN: Range<usize> = 40..46;
const FLAG: usize = 47;
const GID: Range<usize> = 49..81;
const COLONS: [usize; 6] = [16, 25, 34, 39, 46, 48];

/// A window of memory that a server may write to, and where to reach it.
///
/// Whoever knows the token's text can write there until the registration is revoked, so there is
/// no `Display`: [`Token::encode`] is called where the header is made and nowhere else.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token {
    /// Address of the window's first byte, as the fabric knows it.
    pub address: u64,
    /// The window's length in bytes.
    pub size: u32,
    /// The registration's remote key.
    pub rkey: u32,
    /// The port's local identifier; 0 on RoCE.
    pub lid: u16,
    /// The target's number.
    pub dctn: Dctn,
    /// The port's global identifier, in network order, where the token carries one.
    pub gid: Option<[u8; 16]>,
}

/// The number of a dynamically connected target: 24 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dctn(u32);

impl Dctn {
    /// The number, where it fits into 24 bits.
    pub const fn new(number: u32) -> Option<Self> {
        if number < 1 << 24 {
            Some(Self(number))
        } else {
            None
        }
    }

    /// The number.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl Token {
    /// The length of every token's text.
    pub const LEN: usize = 81;

    /// The header's value: exactly [`Token::LEN`] characters, lower-case.
    pub fn encode(&self) -> String {
        let text = format!(
            "{:016x}:{:08x}:{:08x}:{:04x}:{:06x}:{}:{:032x}",
            self.address,
            self.size,
            self.rkey,
            self.lid,
            self.dctn.get(),
            u8::from(self.gid.is_some()),
            u128::from_be_bytes(self.gid.unwrap_or_default()),
        );
        debug_assert_eq!(text.len(), Self::LEN);
        text
    }

    /// Reads a header's value; digits may be of either case. A GID without its flag is ignored.
    pub fn parse(text: &str) -> Result<Self, TokenParseError> {
        let bytes = text.as_bytes();
        if bytes.len() != Self::LEN {
            return Err(TokenParseError::Length { len: bytes.len() });
        }
        if let Some(&position) = COLONS.iter().find(|&&p| bytes[p] != b':') {
            return Err(TokenParseError::Colon { position });
        }
        let has_gid = match bytes[FLAG] {
            b'0' => false,
            b'1' => true,
            _ => return Err(TokenParseError::Flag { position: FLAG }),
        };
        let gid = hex(bytes, GID)?.to_be_bytes();
        // The casts lose nothing: each field has as many digits as its type holds.
        Ok(Self {
            address: hex(bytes, ADDRESS)? as u64,
            size: hex(bytes, SIZE)? as u32,
            rkey: hex(bytes, RKEY)? as u32,
            lid: hex(bytes, LID)? as u16,
            dctn: Dctn(hex(bytes, DCTN)? as u32),
            gid: has_gid.then_some(gid),
        })
    }
}

/// The number that the hexadecimal digits at `range` say: at most 32 of them.
fn hex(bytes: &[u8], range: Range<usize>) -> Result<u128, TokenParseError> {
    range.into_iter().try_fold(0, |number, position| {
        let digit = char::from(bytes[position])
            .to_digit(16)
            .ok_or(TokenParseError::Digit { position })?;
        Ok(number << 4 | u128::from(digit))
    })
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token")
            .field("address", &format_args!("{:#x}", self.address))
            .field("size", &self.size)
            .field("rkey", &format_args!("{:#x}", self.rkey))
            .field("lid", &self.lid)
            .field("dctn", &self.dctn.get())
            .field("gid", &self.gid.map(|_| Redacted))
            .finish()
    }
}

struct Redacted;

impl fmt::Debug for Redacted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("redacted")
    }
}

/// Why a text is not a token. It never repeats the text, which may be most of a valid one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenParseError {
    /// It has another length.
    #[error("an RDMA token has exactly 81 bytes, this one has {len}")]
    Length {
        /// Its length in bytes.
        len: usize,
    },
    /// A separator is not where it must be.
    #[error("byte {position} of an RDMA token must be ':'")]
    Colon {
        /// Where the separator must be.
        position: usize,
    },
    /// A field has something else than a hexadecimal digit.
    #[error("byte {position} of an RDMA token must be a hexadecimal digit")]
    Digit {
        /// Where the digit must be.
        position: usize,
    },
    /// The GID flag is neither `0` nor `1`.
    #[error("byte {position} of an RDMA token, the GID flag, must be '0' or '1'")]
    Flag {
        /// Where the flag must be.
        position: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: &str =
        "7f0011223344aabb:deadbeef:00201fab:0012:0104d2:1:00000000000000000000ffff0f0f0fea";

    fn token() -> Token {
        Token {
            address: 0x7f00_1122_3344_aabb,
            size: 0xdead_beef,
            rkey: 0x20_1fab,
            lid: 0x12,
            dctn: Dctn(0x1_04d2),
            gid: Some([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 15, 15, 15, 234]),
        }
    }

    fn any_token() -> impl Strategy<Value = Token> {
        (
            any::<(u64, u32, u32, u16)>(),
            0u32..1 << 24,
            any::<Option<[u8; 16]>>(),
        )
            .prop_map(|((address, size, rkey, lid), dctn, gid)| Token {
                address,
                size,
                rkey,
                lid,
                dctn: Dctn::new(dctn).unwrap(),
                gid,
            })
    }

    #[test]
    fn a_known_token_is_written_and_read_as_other_implementations_do() {
        assert_eq!(token().encode(), TEXT);
        assert_eq!(Token::parse(TEXT), Ok(token()));
    }

    #[test]
    fn without_a_gid_the_flag_is_0_and_the_text_carries_zeros() {
        let bare = Token {
            gid: None,
            ..token()
        };
        let text = bare.encode();
        assert!(text.ends_with(&format!(":0:{}", "0".repeat(32))), "{text}");
        assert_eq!(Token::parse(&text), Ok(bare));
    }

    #[test]
    fn a_gid_without_its_flag_is_ignored() {
        let text = TEXT.replace(":1:", ":0:");
        assert_eq!(Token::parse(&text).unwrap().gid, None);
    }

    #[test]
    fn each_violation_is_named_with_its_position() {
        let with = |position: usize, byte: u8| {
            let mut bytes = TEXT.as_bytes().to_vec();
            bytes[position] = byte;
            Token::parse(std::str::from_utf8(&bytes).unwrap())
        };
        for position in 0..Token::LEN {
            let expected = match position {
                16 | 25 | 34 | 39 | 46 | 48 => TokenParseError::Colon { position },
                47 => TokenParseError::Flag { position },
                _ => TokenParseError::Digit { position },
            };
            for byte in [b'g', b' ', b'+', b'-', 0] {
                assert_eq!(with(position, byte), Err(expected), "byte {byte}");
            }
        }
        assert_eq!(with(47, b'2'), Err(TokenParseError::Flag { position: 47 }));
        for len in [0, 80] {
            assert_eq!(
                Token::parse(&TEXT[..len]),
                Err(TokenParseError::Length { len })
            );
        }
        let long = format!("{TEXT}:0");
        assert_eq!(
            Token::parse(&long),
            Err(TokenParseError::Length { len: 83 })
        );
    }

    #[test]
    fn the_legacy_form_of_115_characters_is_refused() {
        let legacy = format!("{TEXT}:{:016x}:{:016x}", 1, 2);
        assert_eq!(
            Token::parse(&legacy),
            Err(TokenParseError::Length { len: 115 })
        );
    }

    #[test]
    fn debug_does_not_show_the_gid() {
        let shown = format!("{:?}", token());
        assert!(
            shown.contains("redacted") && shown.contains("3735928559"),
            "{shown}"
        );
        assert!(
            !shown.contains("234") && !shown.contains("0f0f0fea"),
            "{shown}"
        );
    }

    #[test]
    fn a_target_number_has_24_bits() {
        assert_eq!(Dctn::new(0xff_ffff).map(Dctn::get), Some(0xff_ffff));
        assert_eq!(Dctn::new(0x100_0000), None);
    }

    proptest! {
        #[test]
        fn every_token_is_read_back_in_either_case(token in any_token()) {
            let text = token.encode();
            prop_assert_eq!(text.len(), Token::LEN);
            prop_assert_eq!(&text, &text.to_ascii_lowercase());
            prop_assert_eq!(Token::parse(&text), Ok(token));
            prop_assert_eq!(Token::parse(&text.to_ascii_uppercase()), Ok(token));
        }

        #[test]
        fn arbitrary_text_never_panics(text in any::<String>()) {
            let _ = Token::parse(&text);
        }

        #[test]
        fn a_damaged_token_never_panics_and_what_is_accepted_is_written_the_same(
            token in any_token(),
            damage in prop::collection::vec((0..Token::LEN, any::<char>()), 1..4),
        ) {
            let mut chars: Vec<char> = token.encode().chars().collect();
            for (position, char) in damage {
                chars[position] = char;
            }
            let text: String = chars.into_iter().collect();
            if let Ok(read) = Token::parse(&text) {
                let lower = text.to_ascii_lowercase();
                prop_assert_eq!(&read.encode()[..49], &lower[..49]);
                if read.gid.is_some() {
                    prop_assert_eq!(read.encode(), lower);
                }
            }
        }
    }
}
