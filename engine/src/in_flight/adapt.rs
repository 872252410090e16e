//! How many requests at once an endpoint bears, learned from how requests end. No I/O, no clock, no lock.
//!
//! ```text
//!  places
//!  ceiling ─────╮                        ╭──── probes upwards, faster the longer nothing is refused
//!               │ refused                │
//!  good ┄┄┄┄┄┄┄┄│┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄╭┄┄┄┄┄╯       half of what is missing, each round trip
//!               ╰─╮             ╱
//!  floor          ╰────────────╯                   twice as many, each round trip
//! ```
//! 1. A round trip is over when as many requests have ended as were under way when it began.
//! 2. One in which a part of the requests was refused (an overload, a timeout, a lost connection) takes that part off
//!    the window, half of it at most: what remains is what the server has borne. Several refusals of one round trip
//!    count once.
//! 3. Each request that is answered widens the window, if that is what bounds the endpoint: fast up to the level that
//!    was good before, then by one place a round trip, by two the next, and so on.
//! 4. While nothing is answered at all, a place rests after each refusal, longer from round trip to round trip: that
//!    is what makes requests fewer where refusals come faster than answers do.
//! 5. When answers take much longer than they did, fewer requests are tried for a while ([`Trials`]).

use std::time::{Duration, Instant};

use super::trials::{Trials, Verdict};

/// The least window: with one place, a single slow request would keep anybody from seeing that others are answered.
const FLOOR: f64 = 2.0;

/// How long a place rests after the first round trip without an answer; doubled by each one more.
const REST: Duration = Duration::from_millis(25);

/// The longest rest of a place, which is also how late the end of an outage may be seen.
const LONGEST_REST: Duration = Duration::from_secs(1);

/// The longest rest that a server can ask for.
const LONGEST_ASKED: Duration = Duration::from_secs(2);

/// Why a window became smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// 503, 429 or another answer that says so.
    SlowDown,
    /// No answer in time.
    Timeout,
    /// No connection, or one that broke.
    Lost,
    /// Answers took longer, and fewer requests brought as much.
    Latency,
}

impl Cause {
    pub(crate) const ALL: [Cause; 4] =
        [Cause::SlowDown, Cause::Timeout, Cause::Lost, Cause::Latency];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Cause::SlowDown => "slow-down",
            Cause::Timeout => "timeout",
            Cause::Lost => "lost",
            Cause::Latency => "latency",
        }
    }
}

/// How a request ended, as far as it tells something of the endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The server did what it was asked to.
    Served { bytes: u64 },
    /// It answered something else, such as that there is no such object.
    Answered,
    Refused {
        cause: Cause,
        /// How long the server asked to wait.
        retry_after: Option<Duration>,
    },
}

/// The end of one request.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    pub(super) now: Instant,
    /// How long the request took.
    pub(super) took: Duration,
    /// Places that were taken, the request's own among them.
    pub(super) used: f64,
    pub(super) ending: Ending,
}

/// Requests since the round trip began.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    /// After how many it is over: those under way at the first end.
    size: f64,
    served: f64,
    refused: [f64; Cause::ALL.len()],
}

impl Round {
    fn ended(&self) -> f64 {
        self.served + self.refused()
    }

    fn refused(&self) -> f64 {
        self.refused.iter().sum()
    }

    /// What most of the refusals were.
    fn cause(&self) -> Cause {
        let count = |cause: &Cause| self.refused[*cause as usize];
        let most = Cause::ALL
            .into_iter()
            .max_by(|a, b| count(a).total_cmp(&count(b)));
        most.unwrap_or(Cause::SlowDown)
    }
}

/// The window of one endpoint.
#[derive(Debug)]
pub(super) struct Adapt {
    ceiling: f64,
    window: f64,
    /// The level up to which the window grows fast.
    good: f64,
    /// By how many places more than one the next round trip widens the window beyond that.
    climb: f64,
    round: Round,
    /// Round trips one after the other without an answer.
    lost_rounds: u32,
    trials: Trials,
    shrinks: [u64; Cause::ALL.len()],
}

impl Adapt {
    /// As wide as it may be: nothing is known against it.
    pub(super) fn new(ceiling: usize) -> Self {
        let ceiling = ceiling.max(1) as f64;
        Self {
            ceiling,
            window: ceiling,
            good: ceiling,
            climb: 0.0,
            round: Round::default(),
            lost_rounds: 0,
            trials: Trials::default(),
            shrinks: Default::default(),
        }
    }

    /// Places, between one and the ceiling.
    pub(super) fn places(&self) -> usize {
        self.window as usize
    }

    /// How often the window became smaller, by cause.
    pub(super) fn shrinks(&self) -> [u64; Cause::ALL.len()] {
        self.shrinks
    }

    /// Takes in how a request ended. Returns how long its place rests, at most: callers are to spread that, so that
    /// places do not come back together.
    pub(super) fn ended(&mut self, end: &End) -> Duration {
        if self.round.ended() == 0.0 {
            self.round.size = end.used.max(1.0);
        }
        match end.ending {
            Ending::Served { bytes } => {
                self.answered(end);
                self.judge(end, bytes);
            }
            Ending::Answered => self.answered(end),
            Ending::Refused { cause, .. } => {
                self.round.refused[cause as usize] += 1.0;
                // Fewer requests that are being tried stay fewer.
                self.trials.reset();
            }
        }
        if self.round.ended() >= self.round.size {
            self.close_round();
        }
        match end.ending {
            Ending::Refused { retry_after, .. } => self.rest(retry_after),
            _ => Duration::ZERO,
        }
    }

    fn answered(&mut self, end: &End) {
        self.round.served += 1.0;
        self.lost_rounds = 0;
        let bounds = end.used * 2.0 >= self.window;
        let wait_and_see = self.trials.is_under_way()
            || self.trials.answers_are_late() && self.window >= self.good;
        if !bounds || wait_and_see {
            return;
        }
        let missing = self.good - self.window;
        let each_round = match missing > 0.0 {
            true => (missing / 2.0).max(1.0),
            false => 1.0 + self.climb,
        };
        // Never more than twice as many after a round trip.
        self.widen_to(self.window + (each_round / self.window).min(1.0));
    }

    fn judge(&mut self, end: &End, bytes: u64) {
        let fewest = self.floor().max(self.ceiling / 8.0);
        match self.trials.served(end, bytes, self.window, fewest) {
            Verdict::GoOn => {}
            Verdict::Try(fewer) => self.window = fewer,
            Verdict::Keep => {
                self.good = self.window;
                self.climb = 0.0;
                self.shrinks[Cause::Latency as usize] += 1;
            }
            Verdict::TakeBack(before) => self.widen_to(before),
        }
    }

    fn close_round(&mut self) {
        let round = std::mem::take(&mut self.round);
        let refused = round.refused();
        if refused == 0.0 {
            if self.window >= self.good {
                self.climb += 1.0;
            }
            return;
        }
        let level = self.window.min(round.size).max(self.floor());
        match round.served > 0.0 {
            true => self.good = level,
            // What was good before the outage may be good after it.
            false => self.lost_rounds = self.lost_rounds.saturating_add(1),
        }
        let borne = round.served / (round.served + refused);
        let narrower = (level * borne.max(0.5)).max(self.floor());
        if narrower < self.window {
            self.shrinks[round.cause() as usize] += 1;
            self.window = narrower;
        }
        self.climb = 0.0;
    }

    fn rest(&self, asked: Option<Duration>) -> Duration {
        let Some(doublings) = self.lost_rounds.checked_sub(1) else {
            return Duration::ZERO;
        };
        let rest = REST
            .saturating_mul(1 << doublings.min(20))
            .min(LONGEST_REST);
        rest.max(asked.unwrap_or_default().min(LONGEST_ASKED))
    }

    fn widen_to(&mut self, window: f64) {
        self.window = window.clamp(self.floor(), self.ceiling);
    }

    fn floor(&self) -> f64 {
        FLOOR.min(self.ceiling)
    }
}

#[cfg(test)]
#[path = "adapt_tests.rs"]
mod tests;
