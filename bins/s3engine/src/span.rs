//! Durations as people write them: `500ms`, `3s`, `2m`, `1h`.

use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A duration of a flag or setting. Never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Span(pub(crate) Duration);

/// A text that is no duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a duration: write a number above 0 and ms, s, m or h")]
pub(crate) struct BadSpan {
    text: String,
}

impl FromStr for Span {
    type Err = BadSpan;

    fn from_str(text: &str) -> Result<Self, BadSpan> {
        parse(text).map(Span).ok_or_else(|| BadSpan {
            text: text.to_owned(),
        })
    }
}

impl TryFrom<String> for Span {
    type Error = BadSpan;

    fn try_from(text: String) -> Result<Self, BadSpan> {
        text.parse()
    }
}

impl From<Span> for String {
    fn from(span: Span) -> Self {
        format!("{}s", span.0.as_secs_f64())
    }
}

fn parse(text: &str) -> Option<Duration> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = text.split_at(end);
    let number: f64 = number.parse().ok()?;
    let seconds = match unit {
        "ms" => number / 1e3,
        "s" => number,
        "m" => number * 60.0,
        "h" => number * 3600.0,
        _ => return None,
    };
    // A century is more than any wait, and far from what the clock can count.
    let sensible = seconds > 0.0 && seconds < 3.2e9;
    sensible.then(|| Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_unit_counts_as_it_should() {
        for (text, ms) in [
            ("500ms", 500),
            ("3s", 3000),
            ("1.5s", 1500),
            ("2m", 120_000),
            ("1h", 3_600_000),
        ] {
            assert_eq!(text.parse(), Ok(Span(Duration::from_millis(ms))), "{text}");
        }
    }

    #[test]
    fn what_is_no_duration_is_refused() {
        for text in [
            "",
            "3",
            "s",
            "0s",
            "-1s",
            "1..2s",
            "3 s",
            "3d",
            "1e9s",
            "inf",
            "99999999999h",
        ] {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(text in "[0-9.]{0,30}(ms|s|m|h|d)?") {
            let _ = text.parse::<Span>();
        }
    }
}
