//! `Content-Range`, of answers with a part of an object and of those with none.

use s3engine_s3::range::{ByteRange, ContentRange, unsatisfied_total};

/// Reads the bytes as a `Content-Range`.
pub fn content_range(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else {
        return false;
    };
    if let Some(total) = unsatisfied_total(text) {
        assert_eq!(unsatisfied_total(&format!("bytes */{total}")), Some(total));
        assert!(ContentRange::parse(text).is_err(), "{text}");
    }
    let Ok(range) = ContentRange::parse(text) else {
        return false;
    };
    let ContentRange { first, last, total } = range;
    assert!(first <= last && total.is_none_or(|total| last < total));
    let len = u128::from(last) - u128::from(first) + 1;
    assert_eq!(u128::from(range.len()), len, "{range:?}");
    let asked = ByteRange::new(first, range.len()).expect("a range that can be asked for");
    assert_eq!(asked.last(), last);
    let total = total.map_or("*".to_owned(), |total| total.to_string());
    let again = format!("bytes {first}-{last}/{total}");
    assert_eq!(ContentRange::parse(&again), Ok(range));
    true
}
