//! What the headers of an answer say of an object's checksum.

use http::header::CONTENT_RANGE;
use http::{HeaderMap, HeaderName, StatusCode};
use serde::{Deserialize, Serialize};

use super::{Algorithm, Checksum};
use crate::object::text;
use crate::reply::REPLY_HEADER;

const TYPE: HeaderName = HeaderName::from_static("x-amz-checksum-type");

/// What the names of all of them begin with.
const PREFIX: &str = "x-amz-checksum-";

/// The checksum that a server keeps with an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Offered {
    /// Of all of its bytes.
    Whole(Checksum),
    /// Of the checksums of its parts as they were written, which are not those that it is read in.
    Composite,
    /// It is not said of which bytes.
    Unclear,
}

impl Offered {
    /// Reads the headers of an answer. Where there are several, the one that is checked at the least cost.
    ///
    /// A value is of the whole object also where the answer carries a range of it. But only if its type says so:
    /// servers that send none leave the `-N`, by which a composite one is told, away in answers to ranges.
    pub fn of(status: StatusCode, headers: &HeaderMap) -> Option<Offered> {
        // Most objects have none, and a look for each costs more.
        if !headers.keys().any(|name| name.as_str().starts_with(PREFIX)) {
            return None;
        }
        // By a fabric, ranges may be answered with any status of success.
        let may_be_ranged = status != StatusCode::OK
            || headers.contains_key(CONTENT_RANGE)
            || headers.contains_key(REPLY_HEADER);
        let kind = text(headers, &TYPE).map(str::trim);
        let all = Algorithm::ALL.iter().filter_map(|algorithm| {
            let value = text(headers, &header(*algorithm))?;
            Some(one(*algorithm, value, kind, may_be_ranged))
        });
        all.reduce(|best, next| match best {
            Offered::Whole(_) => best,
            _ => next,
        })
    }

    /// The checksum of all of the object's bytes.
    pub fn whole(&self) -> Option<Checksum> {
        match self {
            Offered::Whole(checksum) => Some(*checksum),
            Offered::Composite | Offered::Unclear => None,
        }
    }
}

fn one(algorithm: Algorithm, value: &str, kind: Option<&str>, may_be_ranged: bool) -> Offered {
    let whole = kind.is_some_and(|kind| kind.eq_ignore_ascii_case("FULL_OBJECT"));
    // Base64 has no `-`.
    if value.contains('-') || kind.is_some_and(|kind| kind.eq_ignore_ascii_case("COMPOSITE")) {
        return Offered::Composite;
    }
    let known = whole || (kind.is_none() && !may_be_ranged);
    match Checksum::from_base64(algorithm, value).filter(|_| known) {
        Some(checksum) => Offered::Whole(checksum),
        None => Offered::Unclear,
    }
}

/// The header of an algorithm's value.
pub(crate) fn header(algorithm: Algorithm) -> HeaderName {
    HeaderName::from_static(match algorithm {
        Algorithm::Crc64Nvme => "x-amz-checksum-crc64nvme",
        Algorithm::Crc32c => "x-amz-checksum-crc32c",
        Algorithm::Crc32 => "x-amz-checksum-crc32",
        Algorithm::Sha256 => "x-amz-checksum-sha256",
        Algorithm::Sha1 => "x-amz-checksum-sha1",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CRC: &str = "y/Q5Jg==";

    fn offered(status: u16, pairs: &[(&'static str, &str)]) -> Option<Offered> {
        let headers = pairs
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()))
            .collect();
        Offered::of(StatusCode::from_u16(status).unwrap(), &headers)
    }

    fn crc() -> Option<Offered> {
        Checksum::from_base64(Algorithm::Crc32, CRC).map(Offered::Whole)
    }

    #[test]
    fn r57_composite_values_are_told_by_type_or_by_their_suffix() {
        let name = "x-amz-checksum-crc32";
        let full = ("x-amz-checksum-type", "FULL_OBJECT");
        let composite = ("x-amz-checksum-type", "COMPOSITE");
        assert_eq!(offered(200, &[(name, CRC)]), crc());
        assert_eq!(offered(200, &[(name, CRC), full]), crc());
        for headers in [
            &[(name, "y/Q5Jg==-12")][..],
            &[(name, CRC), composite],
            &[(name, "y/Q5Jg==-12"), full],
        ] {
            for status in [200, 206] {
                assert_eq!(offered(status, headers), Some(Offered::Composite));
            }
        }
    }

    #[test]
    fn r57_a_value_of_a_ranged_answer_is_of_the_whole_object_or_of_nothing() {
        let name = "x-amz-checksum-crc32";
        let full = ("x-amz-checksum-type", "FULL_OBJECT");
        assert_eq!(offered(206, &[(name, CRC), full]), crc());
        // A server that strips the suffix of a composite value where a range was asked for.
        assert_eq!(offered(206, &[(name, CRC)]), Some(Offered::Unclear));
        // Or one that has moved a range by a fabric, and says 200.
        for header in [
            ("content-range", "bytes 0-4/9"),
            ("x-amz-rdma-reply", "206"),
        ] {
            assert_eq!(offered(200, &[(name, CRC), header]), Some(Offered::Unclear));
            assert_eq!(offered(200, &[(name, CRC), full, header]), crc());
        }
    }

    #[test]
    fn the_cheapest_that_is_of_the_whole_object_is_taken() {
        let all = [
            ("x-amz-checksum-crc64nvme", "rosUhgp5mIg=-2"),
            (
                "x-amz-checksum-sha256",
                "FeKw08M4keuw8e9gnsQZQgwg4yDOlMZfvIwzEkSOsiU=",
            ),
            ("x-amz-checksum-crc32", CRC),
        ];
        assert_eq!(offered(200, &all), crc());
        assert_eq!(offered(200, &all[..1]), Some(Offered::Composite));
        assert_eq!(offered(200, &[]), None);
    }

    #[test]
    fn nonsense_shows_nothing() {
        let name = "x-amz-checksum-crc32";
        for value in ["", "0", "zzzz", "y/Q5Jg==y/Q5Jg=="] {
            assert_eq!(offered(200, &[(name, value)]), Some(Offered::Unclear));
        }
        let odd = [(name, CRC), ("x-amz-checksum-type", "HALF_OBJECT")];
        assert_eq!(offered(200, &odd), Some(Offered::Unclear));
    }
}
