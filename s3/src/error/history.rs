//! The attempts that led to an error.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use super::kind::{Phase, Printable};

/// Of a long history the first attempts tell what it began with,
const FIRST: usize = 3;

/// and the last ones what it ended with.
const LAST: usize = 5;

/// One attempt at a request, and what it failed with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Which one, from 1.
    pub number: u32,
    /// When it began, since the first one did.
    pub began: Duration,
    /// How long it took.
    pub took: Duration,
    /// The phase in which it failed.
    pub phase: Option<Phase>,
    /// The address that was talked to.
    pub address: Option<SocketAddr>,
    /// What it failed with, on one line.
    pub what: String,
}

/// Failed attempts at one request, the first and the last of them where they are many.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History(Vec<Attempt>);

impl History {
    /// The most attempts of which one is kept.
    pub const MOST: usize = FIRST + LAST;

    /// Adds the attempt after those that are there.
    pub fn push(&mut self, attempt: Attempt) {
        if self.0.len() == Self::MOST {
            self.0.remove(FIRST);
        }
        self.0.push(attempt);
    }

    /// Those that are kept, in their order. A gap in their numbers is where others were.
    pub fn attempts(&self) -> &[Attempt] {
        &self.0
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (began, took) = (self.began.as_secs_f64(), self.took.as_secs_f64());
        write!(
            f,
            "attempt {} at {began:.3} s, for {took:.3} s",
            self.number
        )?;
        if let Some(phase) = self.phase {
            write!(f, ", in phase {phase}")?;
        }
        if let Some(address) = self.address {
            write!(f, ", at {address}")?;
        }
        write!(f, ": {}", Printable(&self.what))
    }
}

/// One line for each attempt, and for each gap.
impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut before = 0_u32;
        for attempt in &self.0 {
            let missing = attempt.number.saturating_sub(before.saturating_add(1));
            if missing > 0 {
                writeln!(f, "  ({missing} more)")?;
            }
            writeln!(f, "  {attempt}")?;
            before = attempt.number;
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn attempt(number: u32) -> Attempt {
        Attempt {
            number,
            began: Duration::from_millis(u64::from(number) * 10),
            took: Duration::from_millis(5),
            phase: Some(Phase::Connect),
            address: Some("10.0.0.5:9000".parse().unwrap()),
            what: format!("refused {number}"),
        }
    }

    #[test]
    fn a_long_history_keeps_its_beginning_and_its_end() {
        let mut history = History::default();
        for number in 1..=20 {
            history.push(attempt(number));
            assert!(history.attempts().len() <= History::MOST);
        }
        let kept: Vec<_> = history.attempts().iter().map(|one| one.number).collect();
        assert_eq!(kept, [1, 2, 3, 16, 17, 18, 19, 20]);
        let text = history.to_string();
        assert_eq!(text.lines().count(), 9, "{text}");
        assert_eq!(text.lines().nth(3), Some("  (12 more)"));
        assert_eq!(
            text.lines().next(),
            Some(
                "  attempt 1 at 0.010 s, for 0.005 s, in phase connect, at 10.0.0.5:9000: refused 1"
            )
        );
    }
}
