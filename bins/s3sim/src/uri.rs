//! Percent-encoding as S3 has it, and the split of a request target into bucket and key.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~');
const PATH: &AsciiSet = &UNRESERVED.remove(b'/');

/// Encodes all but letters, digits and `-_.~`.
pub(crate) fn encode(text: &str) -> String {
    utf8_percent_encode(text, UNRESERVED).to_string()
}

/// The same, with `/` left as it is.
pub(crate) fn encode_path(text: &str) -> String {
    utf8_percent_encode(text, PATH).to_string()
}

/// Undoes percent-encoding; `None` where the bytes are not UTF-8.
pub(crate) fn decode(text: &str) -> Option<Cow<'_, str>> {
    percent_decode_str(text).decode_utf8().ok()
}

/// The decoded names and values of a query, in their order. `+` is a space there.
pub(crate) fn query_pairs(query: &str) -> Option<Vec<(String, String)>> {
    let decode_part = |part: &str| Some(decode(&part.replace('+', " "))?.into_owned());
    query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            Some((decode_part(name)?, decode_part(value)?))
        })
        .collect()
}

/// Splits a decoded path into bucket and key: the bucket is the first component, or the first label
/// of the host where that is one of `buckets` (virtual-host style).
pub(crate) fn bucket_and_key<'a>(
    host: &'a str,
    path: &'a str,
    buckets: &[String],
) -> (&'a str, &'a str) {
    let path = path.strip_prefix('/').unwrap_or(path);
    if let Some((label, rest)) = host.split_once('.')
        && !rest.is_empty()
        && buckets.iter().any(|bucket| bucket == label)
    {
        return (label, path);
    }
    path.split_once('/').unwrap_or((path, ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_keys_survive_encoding_and_decoding() {
        for key in ["a b", "a+b", "50%", "ü/é", "a//b", "~-_.", "tab\t"] {
            assert_eq!(decode(&encode_path(key)).unwrap(), key);
            assert_eq!(
                query_pairs(&format!("k={}", encode(key))).unwrap()[0].1,
                key
            );
        }
        assert_eq!(encode_path("a+b c/ü"), "a%2Bb%20c/%C3%BC");
        assert_eq!(decode("%ff"), None);
    }

    #[test]
    fn a_bucket_is_found_in_the_path_or_in_the_host() {
        let buckets = ["bench".to_owned()];
        let find = |host, path| bucket_and_key(host, path, &buckets);
        assert_eq!(find("127.0.0.1:9000", "/bench/a/b"), ("bench", "a/b"));
        assert_eq!(find("127.0.0.1:9000", "/bench"), ("bench", ""));
        assert_eq!(find("127.0.0.1:9000", "/bench/"), ("bench", ""));
        assert_eq!(find("bench.localhost:9000", "/a/b"), ("bench", "a/b"));
        assert_eq!(find("bench.localhost:9000", "/"), ("bench", ""));
        assert_eq!(find("other.localhost", "/bench//k"), ("bench", "/k"));
    }
}
