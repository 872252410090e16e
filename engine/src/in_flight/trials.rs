//! Whether fewer requests at once would bring as much: pure.
//!
//! Answers that take longer may mean two things. Requests queue at the server: then fewer of them bring as much, and
//! each comes sooner. Or each is slower for its own reasons: then fewer bring less. What it is shows when fewer are
//! tried, so that is done: for one sample, when three samples in a row took twice as long as they used to.

use std::time::Instant;

use super::adapt::End;

/// Requests of a sample: so many that the rates of two of them differ by a tenth through chance only rarely.
const SAMPLE: u32 = 256;

/// So many samples in a row must be late.
const LATE: u32 = 3;

/// How many times as long as usual is late.
const TOO_LONG: f64 = 2.0;

/// What part of the window is tried.
const TRIED: f64 = 0.75;

/// With at least this part of the rate, fewer requests bring as much.
const AS_MUCH: f64 = 0.9;

/// How much of what is longer than usual becomes usual with each sample.
const FORGETTING: f64 = 1.0 / 1024.0;

/// What comes of the end of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Verdict {
    GoOn,
    /// So many places are to be tried.
    Try(f64),
    /// They brought as much.
    Keep,
    /// They did not: there are to be so many again.
    TakeBack(f64),
}

/// Requests that ended one after the other.
#[derive(Clone, Copy, Debug)]
struct Sample {
    began: Instant,
    ends: u32,
    seconds: f64,
    bytes: f64,
    /// Whether the window was what bounded them.
    bounded: bool,
}

impl Sample {
    fn since(began: Instant) -> Self {
        Self {
            began,
            ends: 0,
            seconds: 0.0,
            bytes: 0.0,
            bounded: true,
        }
    }

    fn usual(&self) -> Usual {
        let ends = f64::from(self.ends);
        Usual {
            seconds: self.seconds / ends,
            bytes: self.bytes / ends,
        }
    }

    /// Requests a second.
    fn rate(&self, now: Instant) -> f64 {
        let seconds = now.saturating_duration_since(self.began).as_secs_f64();
        f64::from(self.ends) / seconds.max(1e-9)
    }
}

/// What a request takes and brings on average.
#[derive(Clone, Copy, Debug)]
struct Usual {
    seconds: f64,
    bytes: f64,
}

impl Usual {
    /// Times of requests for other amounts cannot be compared.
    fn is_like(&self, other: &Usual) -> bool {
        let (less, more) = (self.bytes.min(other.bytes), self.bytes.max(other.bytes));
        more <= less * 1.25 + 1024.0
    }
}

/// A trial of fewer requests.
#[derive(Clone, Copy, Debug)]
struct Trial {
    window_before: f64,
    rate_before: f64,
    usual_before: Usual,
    /// Requests still to end that began before it.
    older: f64,
}

#[derive(Debug, Default)]
pub(super) struct Trials {
    sample: Option<Sample>,
    usual: Option<Usual>,
    late: u32,
    trial: Option<Trial>,
}

impl Trials {
    pub(super) fn is_under_way(&self) -> bool {
        self.trial.is_some()
    }

    pub(super) fn answers_are_late(&self) -> bool {
        self.late > 0
    }

    /// Forgets what was being measured.
    pub(super) fn reset(&mut self) {
        (self.sample, self.trial, self.late) = (None, None, 0);
    }

    /// Takes in a request that was served within a window; no fewer places than `fewest` are tried.
    pub(super) fn served(&mut self, end: &End, bytes: u64, window: f64, fewest: f64) -> Verdict {
        if let Some(trial) = self.trial.as_mut().filter(|trial| trial.older > 0.0) {
            trial.older -= 1.0;
            self.sample = None;
            return Verdict::GoOn;
        }
        let sample = self.sample.get_or_insert_with(|| Sample::since(end.now));
        sample.ends += 1;
        sample.seconds += end.took.as_secs_f64();
        sample.bytes += bytes as f64;
        sample.bounded &= end.used >= window.floor() * 0.75;
        if sample.ends < SAMPLE {
            return Verdict::GoOn;
        }
        let sample = *sample;
        self.sample = Some(Sample::since(end.now));
        match self.trial.take() {
            Some(trial) => self.judge(trial, &sample, end.now),
            None => self.look(&sample, end, window, fewest),
        }
    }

    fn judge(&mut self, trial: Trial, sample: &Sample, now: Instant) -> Verdict {
        self.late = 0;
        let comparable = sample.bounded && sample.usual().is_like(&trial.usual_before);
        if comparable && sample.rate(now) >= trial.rate_before * AS_MUCH {
            // Still late, until a sample says otherwise: nothing is to be added before that.
            self.late = 1;
            return Verdict::Keep;
        }
        // Each request is slower for its own reasons: that is what is usual now.
        self.usual = Some(trial.usual_before);
        Verdict::TakeBack(trial.window_before)
    }

    fn look(&mut self, sample: &Sample, end: &End, window: f64, fewest: f64) -> Verdict {
        let found = sample.usual();
        let Some(usual) = self.usual.as_mut().filter(|usual| usual.is_like(&found)) else {
            self.usual = Some(found);
            self.late = 0;
            return Verdict::GoOn;
        };
        let is_late = sample.bounded && found.seconds > usual.seconds * TOO_LONG;
        let longer = found.seconds - usual.seconds;
        usual.seconds += longer.min(longer * FORGETTING);
        usual.bytes = found.bytes;
        self.late = if is_late { self.late + 1 } else { 0 };
        let fewer = (window * TRIED).max(fewest);
        if self.late < LATE || fewer >= window.floor() {
            return Verdict::GoOn;
        }
        self.trial = Some(Trial {
            window_before: window,
            rate_before: sample.rate(end.now),
            usual_before: found,
            older: end.used,
        });
        Verdict::Try(fewer)
    }
}
