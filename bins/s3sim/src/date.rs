//! The two date formats of S3 that are not HTTP's, and days to dates and back.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

const DAY: u64 = 86_400;

/// Reads `20130524T000000Z`.
pub(crate) fn parse_amz(text: &str) -> Option<SystemTime> {
    let bytes = text.as_bytes();
    if bytes.len() != 16 || bytes[8] != b'T' || bytes[15] != b'Z' {
        return None;
    }
    let number = |at: usize, len: usize| -> Option<u64> {
        let digits = bytes.get(at..at + len)?;
        digits.iter().try_fold(0, |n, b| {
            b.is_ascii_digit().then(|| n * 10 + u64::from(b - b'0'))
        })
    };
    let (year, month, day) = (number(0, 4)?, number(4, 2)?, number(6, 2)?);
    let (hour, minute, second) = (number(9, 2)?, number(11, 2)?, number(13, 2)?);
    let sane = year >= 1970 && (1..=12).contains(&month) && (1..=31).contains(&day);
    if !sane || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let seconds = days_before(year, month, day) * DAY + hour * 3600 + minute * 60 + second;
    UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

/// Writes `2013-05-24T00:00:00.000Z`, as listings have it.
pub(crate) fn iso8601(time: SystemTime) -> String {
    let (year, month, day, rest) = split(time);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.000Z")
}

/// Days from 1970-01-01 to a date of the Gregorian calendar; years count from March, so that the
/// leap day is the last of its year.
fn days_before(year: u64, month: u64, day: u64) -> u64 {
    let year = if month <= 2 { year - 1 } else { year };
    let month = (month + 9) % 12;
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    year * 365 + year / 4 - year / 100 + year / 400 + day_of_year - 719_468
}

/// Year, month, day, and seconds of that day.
fn split(time: SystemTime) -> (u64, u64, u64, u64) {
    let seconds = time
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs();
    let days = seconds / DAY + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day, seconds % DAY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_dates_read_and_print() {
        let at = |text| {
            parse_amz(text)
                .unwrap()
                .duration_since(UNIX_EPOCH)
                .unwrap()
                .as_secs()
        };
        assert_eq!(at("19700101T000000Z"), 0);
        assert_eq!(at("20130524T000000Z"), 1_369_353_600);
        assert_eq!(at("20240229T235959Z"), 1_709_251_199);
        let time = UNIX_EPOCH + Duration::from_secs(1_709_251_199);
        assert_eq!(iso8601(time), "2024-02-29T23:59:59.000Z");
    }

    #[test]
    fn anything_else_is_refused() {
        for text in [
            "",
            "20130524",
            "20130524T000000",
            "20131324T000000Z",
            "20130524 000000Z",
            "2013é524T00000Z",
        ] {
            assert_eq!(parse_amz(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn printing_and_reading_agree(seconds in 0..200_000_000_000_u64) {
            let time = UNIX_EPOCH + Duration::from_secs(seconds);
            let basic: String = iso8601(time).replace(".000", "").replace(['-', ':'], "");
            if basic.len() == 16 {
                prop_assert_eq!(parse_amz(&basic), Some(time));
            }
        }

        #[test]
        fn arbitrary_text_never_panics(text in ".{0,20}") {
            let _ = parse_amz(&text);
        }
    }
}
