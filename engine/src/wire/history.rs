//! A history of attempts as one text of a detail record: a line for each, all of them there, the longest cut.
//!
//! ```text
//! number began_us took_us phase address what it failed with
//! 3 152000 7012 4 10.0.0.5:9000 503 SlowDown
//! ```

use std::time::Duration;

use s3engine_s3::error::{Attempt, History, Phase};

use super::{phase, phase_code};

/// Of a phase or address that is not known.
const UNKNOWN: &str = "-";

/// Shorter lines would say nothing.
const LEAST: usize = 48;

/// The text, of at most `room` bytes; and whether anything had to be cut. Empty where there is no room for all.
pub(super) fn told(history: &History, room: usize) -> (String, bool) {
    let attempts = history.attempts();
    let share = room.checked_div(attempts.len()).unwrap_or(0);
    if share < LEAST {
        return (String::new(), !attempts.is_empty());
    }
    let mut text = String::new();
    let mut cut = false;
    for attempt in attempts {
        let line = line(attempt);
        // Its line feed too.
        let end = line.floor_char_boundary(share - 1);
        cut |= end < line.len();
        text += &line[..end];
        text.push('\n');
    }
    (text, cut)
}

fn line(attempt: &Attempt) -> String {
    let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let phase = phase_code(attempt.phase);
    let address = attempt.address.map(|address| address.to_string());
    let address = address.as_deref().unwrap_or(UNKNOWN);
    // It was written on one line; that it is one here does not depend on it.
    let what = attempt.what.replace('\n', " ");
    let (number, began, took) = (attempt.number, us(attempt.began), us(attempt.took));
    format!("{number} {began} {took} {phase} {address} {what}")
}

/// The history of a text that may be anything.
pub(super) fn heard(text: &str) -> History {
    let mut history = History::default();
    // One line too many shows in what is kept, no more.
    let lines = text.lines().take(History::MOST);
    lines
        .filter_map(attempt)
        .for_each(|attempt| history.push(attempt));
    history
}

fn attempt(line: &str) -> Option<Attempt> {
    let mut words = line.splitn(6, ' ');
    let mut word = || words.next();
    let number = word()?.parse().ok()?;
    let began = Duration::from_micros(word()?.parse().ok()?);
    let took = Duration::from_micros(word()?.parse().ok()?);
    let phase: Option<Phase> = phase(word()?.parse().ok()?);
    let address = word()?.parse().ok();
    Some(Attempt {
        number,
        began,
        took,
        phase,
        address,
        what: word().unwrap_or_default().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn history(what: &[String]) -> History {
        let mut history = History::default();
        for (nth, what) in what.iter().enumerate() {
            history.push(Attempt {
                number: nth as u32 + 1,
                began: Duration::from_millis(nth as u64),
                took: Duration::from_micros(7),
                phase: (nth % 2 == 0).then_some(Phase::Body),
                address: (nth % 3 == 0).then(|| "[::1]:9000".parse().unwrap()),
                what: what.clone(),
            });
        }
        history
    }

    #[test]
    fn r30_a_history_comes_through_whole_where_there_is_room() {
        for count in [0, 1, 3, 20] {
            let history = history(&vec!["503 SlowDown".to_owned(); count]);
            let (text, cut) = told(&history, 864);
            assert_eq!((heard(&text), cut), (history, false), "{text}");
        }
    }

    #[test]
    fn with_little_room_every_attempt_is_told_in_fewer_words_or_none_is() {
        let history = history(&vec!["a long story ".repeat(20); 8]);
        let (text, cut) = told(&history, 500);
        assert!(cut && text.len() <= 500);
        assert_eq!(heard(&text).attempts().len(), 8);
        assert_eq!(told(&history, 100), (String::new(), true));
    }

    proptest! {
        #[test]
        fn any_text_is_some_history_and_any_history_fits(text: String, what in proptest::collection::vec("\\PC{0,99}", 0..12), room in 0..900_usize) {
            prop_assert!(heard(&text).attempts().len() <= History::MOST);
            let history = history(&what);
            let (text, _) = told(&history, room);
            prop_assert!(text.len() <= room);
            let heard = heard(&text);
            prop_assert!(text.is_empty() || heard.attempts().len() == history.attempts().len());
        }
    }
}
