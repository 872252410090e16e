//! What a GET says besides its object, as it lies in the key arena behind the object's name: pure.
//!
//! ```text
//! [tag 1|length 2|bytes ...][tag 1|length 2|bytes ...]...      lengths little-endian, tags in ascending order
//! ```
//! A tag comes once, but for that of headers. One that is not known is an error: what a client asks for is done or
//! refused, and never left away.

use super::check::Meaning;

const CHECKSUM_MODE: u8 = 1;
const CHECKSUM: u8 = 2;
const VERSION_ID: u8 = 3;
const CUSTOMER_KEY: u8 = 4;
const REQUEST_PAYER: u8 = 5;
const BUCKET_OWNER: u8 = 6;
const HEADER: u8 = 7;

/// Options of a GET. By default there are none.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// What is asked of the object's checksum: the code of a mode, other than the engine's default.
    pub checksum_mode: Option<u8>,
    /// The object's checksum, where the client knows it.
    pub checksum: Option<String>,
    /// The version that is wanted, where its size is not known.
    pub version_id: Option<String>,
    /// The key that the object is encrypted with, and whether it may go to other hosts without TLS.
    pub customer_key: Option<([u8; 32], bool)>,
    /// Who asks pays.
    pub request_payer: bool,
    /// The account that the bucket must be of.
    pub expected_bucket_owner: Option<String>,
    /// More headers: names and values.
    pub headers: Vec<(String, String)>,
}

impl Options {
    /// Whether there are none.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// The bytes that say them.
    pub(super) fn encode(&self, into: &mut Vec<u8>) {
        let mut put = |tag: u8, parts: &[&[u8]]| {
            let len: usize = parts.iter().map(|part| part.len()).sum();
            into.push(tag);
            // Too long for this is too long for the arena, which is told.
            into.extend(u16::try_from(len).unwrap_or(u16::MAX).to_le_bytes());
            parts.iter().for_each(|part| into.extend_from_slice(part));
        };
        if let Some(mode) = self.checksum_mode {
            put(CHECKSUM_MODE, &[&[mode]]);
        }
        if let Some(checksum) = &self.checksum {
            put(CHECKSUM, &[checksum.as_bytes()]);
        }
        if let Some(version) = &self.version_id {
            put(VERSION_ID, &[version.as_bytes()]);
        }
        if let Some((key, over_plain_http)) = &self.customer_key {
            put(CUSTOMER_KEY, &[key, &[u8::from(*over_plain_http)]]);
        }
        if self.request_payer {
            put(REQUEST_PAYER, &[]);
        }
        if let Some(owner) = &self.expected_bucket_owner {
            put(BUCKET_OWNER, &[owner.as_bytes()]);
        }
        for (name, value) in &self.headers {
            put(HEADER, &[name.as_bytes(), b":", value.as_bytes()]);
        }
    }

    /// Reads copied bytes.
    pub(super) fn decode(mut bytes: &[u8]) -> Result<Options, Meaning> {
        let mut options = Options::default();
        let mut last = 0;
        while let [tag, low, high, rest @ ..] = bytes {
            let len = usize::from(u16::from_le_bytes([*low, *high]));
            let Some((value, rest)) = rest.split_at_checked(len) else {
                return Err(Meaning::Options { tag: *tag });
            };
            let in_order = *tag > last || (*tag == HEADER && last == HEADER);
            let taken = options.take(*tag, value).filter(|()| in_order);
            taken.ok_or(Meaning::Options { tag: *tag })?;
            (last, bytes) = (*tag, rest);
        }
        match bytes {
            [] => Ok(options),
            [tag, ..] => Err(Meaning::Options { tag: *tag }),
        }
    }

    fn take(&mut self, tag: u8, value: &[u8]) -> Option<()> {
        match tag {
            CHECKSUM_MODE => match value {
                [mode] => self.checksum_mode = Some(*mode),
                _ => return None,
            },
            CHECKSUM => self.checksum = Some(text(value)?),
            VERSION_ID => self.version_id = Some(text(value)?),
            CUSTOMER_KEY => {
                let (key, over_plain_http) = value.split_first_chunk()?;
                self.customer_key = match over_plain_http {
                    [0] => Some((*key, false)),
                    [1] => Some((*key, true)),
                    _ => return None,
                };
            }
            REQUEST_PAYER if value.is_empty() => self.request_payer = true,
            BUCKET_OWNER => self.expected_bucket_owner = Some(text(value)?),
            HEADER => {
                let pair = text(value)?;
                let (name, value) = pair.split_once(':')?;
                self.headers.push((name.to_owned(), value.to_owned()));
            }
            _ => return None,
        }
        Some(())
    }
}

/// A text that becomes part of a request's head.
fn text(bytes: &[u8]) -> Option<String> {
    let printable = bytes.iter().all(|byte| matches!(byte, b' '..=b'~'));
    let text = std::str::from_utf8(bytes).ok().filter(|_| printable)?;
    Some(text.to_owned())
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Keys and headers are nobody else's business.
        f.debug_struct("Options")
            .field("checksum_mode", &self.checksum_mode)
            .field("version_id", &self.version_id)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(ring_loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn encoded(options: &Options) -> Vec<u8> {
        let mut bytes = Vec::new();
        options.encode(&mut bytes);
        bytes
    }

    prop_compose! {
        fn options()(
            checksum_mode: Option<u8>,
            checksum in proptest::option::of("[ -~]{0,60}"),
            version_id in proptest::option::of("[ -~]{0,60}"),
            customer_key: Option<([u8; 32], bool)>,
            request_payer: bool,
            expected_bucket_owner in proptest::option::of("[0-9]{12}"),
            headers in proptest::collection::vec(("[a-z-]{1,9}", "[ -~]{0,20}"), 0..4),
        ) -> Options {
            Options {
                checksum_mode, checksum, version_id, customer_key, request_payer, expected_bucket_owner, headers,
            }
        }
    }

    proptest! {
        #[test]
        fn options_come_back_as_they_were_written(options in options()) {
            prop_assert_eq!(Options::decode(&encoded(&options)), Ok(options));
        }

        #[test]
        fn any_bytes_are_options_or_an_error(bytes: Vec<u8>) {
            if let Ok(options) = Options::decode(&bytes) {
                prop_assert_eq!(encoded(&options), bytes);
            }
        }

        #[test]
        fn cut_or_changed_options_are_not_taken_for_fewer(options in options(), at: prop::sample::Index) {
            let bytes = encoded(&options);
            prop_assume!(!bytes.is_empty());
            let cut = &bytes[..at.index(bytes.len())];
            if let Ok(fewer) = Options::decode(cut) {
                // Whole options in front: the length in the submission says how many there are.
                prop_assert_eq!(encoded(&fewer), cut);
            }
        }
    }

    #[test]
    fn what_is_not_known_or_not_text_is_refused() {
        for bytes in [
            &[9, 0, 0][..],
            &[0, 0, 0],
            &[1],
            &[1, 2, 0, 1],
            &[1, 2, 0, 1, 1],
            &[3, 1, 0, b'\n'],
            &[7, 1, 0, b'a'],
            &[7, 3, 0, b'a', b':', b'\r'],
            &[5, 1, 0, 1],
            // Out of order, and twice.
            &[5, 0, 0, 1, 1, 0, 1],
            &[5, 0, 0, 5, 0, 0],
        ] {
            assert!(
                matches!(Options::decode(bytes), Err(Meaning::Options { .. })),
                "{bytes:?}"
            );
        }
        assert!(Options::decode(&[]).unwrap().is_none());
    }

    #[test]
    fn keys_and_headers_are_not_shown() {
        let options = Options {
            customer_key: Some(([77; 32], false)),
            headers: vec![("x-secret".into(), "hidden".into())],
            ..Options::default()
        };
        let shown = format!("{options:?}");
        assert!(
            !shown.contains("77") && !shown.contains("hidden"),
            "{shown}"
        );
    }
}
