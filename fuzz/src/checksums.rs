//! What answers say of an object's checksum, and sums of pieces that are joined.
//!
//! ```text
//! status: 206
//! x-amz-checksum-crc32: y/Q5Jg==       headers; every line that is named like none of the others
//! data: 123456789                      bytes, summed as a whole and in two pieces
//! cut: 4
//! ```

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use s3engine_s3::checksum::{Algorithm, Checksum, Offered, Sum};

use crate::fields::Fields;

/// Reads the headers that the bytes describe. Whether they show the sum of the whole object.
pub fn checksums(data: &[u8]) -> bool {
    let Some(fields) = Fields::of(data) else {
        return false;
    };
    check_joined(&fields);
    let status = fields.value("status").unwrap_or(StatusCode::OK);
    let mut headers = HeaderMap::new();
    for (name, value) in fields.all() {
        let name = name.parse::<HeaderName>();
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_str(value)) {
            headers.append(name, value);
        }
    }
    let Some(whole) = Offered::of(status, &headers).and_then(|offered| offered.whole()) else {
        return false;
    };
    check_text(&whole);
    let value = whole.to_base64();
    let said = |(name, found): (&HeaderName, &HeaderValue)| {
        let of_it = format!("x-amz-checksum-{}", whole.algorithm());
        name.as_str() == of_it && found.to_str().is_ok_and(|found| found.trim() == value)
    };
    assert!(headers.iter().any(said), "{value} is not in {headers:?}");
    let kind = headers.get("x-amz-checksum-type");
    let is_composite = kind.is_some_and(|kind| kind.as_bytes().eq_ignore_ascii_case(b"COMPOSITE"));
    assert!(!is_composite, "{headers:?}");
    // What an answer with a range says is of the whole object only where it says so.
    assert!(kind.is_some() || status == StatusCode::OK, "{headers:?}");
    true
}

fn check_text(checksum: &Checksum) {
    let (algorithm, text) = (checksum.algorithm(), checksum.to_base64());
    assert_eq!(Checksum::from_base64(algorithm, &text), Some(*checksum));
    assert_eq!(checksum.bytes().len(), algorithm.size());
    assert_eq!(
        checksum.to_string().parse::<Checksum>().ok(),
        Some(*checksum)
    );
}

/// Sums of two pieces, joined, are the sum of both.
fn check_joined(fields: &Fields<'_>) {
    let bytes = fields.text("data").unwrap_or_default().as_bytes();
    let cut = fields.value::<usize>("cut").unwrap_or_default();
    let (first, second) = bytes.split_at(cut.min(bytes.len()));
    for &algorithm in Algorithm::ALL.iter() {
        let of = |bytes: &[u8]| {
            let mut sum = Sum::new(algorithm);
            sum.update(bytes);
            sum.finish()
        };
        check_text(&of(bytes));
        let joined = of(first).join(&of(second), second.len() as u64);
        let whole = algorithm.joins().then(|| of(bytes));
        assert_eq!(joined, whole, "{algorithm} at {cut} of {bytes:?}");
    }
}
