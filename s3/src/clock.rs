//! The time that signatures name: this host's, put right by what the server says where the two are too far apart.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime};

/// Servers refuse what was signed 15 minutes from their time, some of them sooner.
const TOO_FAR: i64 = 5 * 60;
/// A server that is further away lies, or this host's clock was never set. Who could choose any time at all would be
/// given signatures that hold then.
const MOST: i64 = 7 * 24 * 3600;
/// Dates have whole seconds and take time to arrive: less than this is no difference.
const NEAR: i64 = 60;

/// How far an endpoint's clock is ahead of this host's, as requests of all threads learn it.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    /// In seconds; 0 where the two agree.
    ahead: AtomicI64,
}

impl Clock {
    /// How far the server's clock is ahead, as far as is known.
    pub(crate) fn ahead(&self) -> i64 {
        self.ahead.load(Ordering::Relaxed)
    }

    /// Learns from the date of an answer that refused a request, which was signed when the server was thought to be
    /// `ahead`, and whether it `said` that the time is why. Returns whether it may be: then the request is worth sending
    /// again, and the others that are under way find out by themselves.
    pub(crate) fn learn_from_refusal(
        &self,
        ahead: i64,
        said: bool,
        date: Option<SystemTime>,
        now: SystemTime,
    ) -> bool {
        let Some(date) = date else {
            // Another one may have learned it meanwhile.
            return far(self.ahead(), ahead) > NEAR;
        };
        let found = difference(date, now);
        if found.saturating_abs() > MOST {
            return false;
        }
        let was_too_far = far(found, ahead) > if said { NEAR } else { TOO_FAR };
        if was_too_far {
            self.set(found, "the server refused the time of a signature");
        }
        was_too_far
    }

    /// Learns from the date of any answer while the two clocks are thought to differ: either may be put right.
    pub(crate) fn learn(&self, date: SystemTime, now: SystemTime) {
        let found = difference(date, now);
        if found.saturating_abs() > MOST {
            return;
        }
        if far(found, self.ahead()) > NEAR || found.saturating_abs() <= NEAR {
            self.set(found, "a clock has been set");
        }
    }

    fn set(&self, found: i64, why: &'static str) {
        let ahead = if found.saturating_abs() <= NEAR {
            0
        } else {
            found
        };
        let before = self.ahead.swap(ahead, Ordering::Relaxed);
        // Each of those under way finds the same, give or take a second.
        if far(before, ahead) > NEAR || (before != 0) != (ahead != 0) {
            metrics::counter!("s3engine_clock_corrections_total").increment(1);
            tracing::warn!(
                seconds = ahead,
                "{why}: signatures are made for a clock that is so far ahead of this host's"
            );
        }
    }
}

/// A time so many seconds ahead of another.
pub(crate) fn shifted(now: SystemTime, ahead: i64) -> SystemTime {
    let by = Duration::from_secs(ahead.unsigned_abs());
    let shifted = if ahead < 0 {
        now.checked_sub(by)
    } else {
        now.checked_add(by)
    };
    shifted.unwrap_or(now)
}

fn far(a: i64, b: i64) -> i64 {
    a.saturating_sub(b).saturating_abs()
}

fn difference(date: SystemTime, now: SystemTime) -> i64 {
    let seconds = |by: Duration| i64::try_from(by.as_secs()).unwrap_or(i64::MAX);
    match date.duration_since(now) {
        Ok(ahead) => seconds(ahead),
        Err(behind) => -seconds(behind.duration()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HOUR: i64 = 3600;

    fn at(seconds: i64) -> SystemTime {
        shifted(
            SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 30),
            seconds,
        )
    }

    #[test]
    fn r43_each_of_several_that_were_refused_is_sent_again() {
        let clock = Clock::default();
        let signed = clock.ahead();
        for late in 0..4 {
            assert!(clock.learn_from_refusal(signed, true, Some(at(HOUR + late)), at(late)));
        }
        assert_eq!(clock.ahead(), HOUR);
        // The one that was signed with what was learned is refused for something else.
        assert!(!clock.learn_from_refusal(HOUR, true, Some(at(HOUR)), at(0)));
    }

    #[test]
    fn r43_one_without_a_date_goes_again_where_another_has_learned() {
        let clock = Clock::default();
        assert!(!clock.learn_from_refusal(0, true, None, at(0)));
        clock.learn_from_refusal(0, true, Some(at(-HOUR)), at(0));
        assert!(clock.learn_from_refusal(0, true, None, at(0)));
        assert!(!clock.learn_from_refusal(-HOUR, true, None, at(0)));
    }

    #[test]
    fn r43_a_clock_that_is_put_right_undoes_it() {
        let clock = Clock::default();
        clock.learn_from_refusal(0, true, Some(at(HOUR)), at(0));
        clock.learn(at(HOUR + 1), at(1));
        assert_eq!(clock.ahead(), HOUR);
        clock.learn(at(HOUR + 2), at(HOUR + 2));
        assert_eq!(clock.ahead(), 0);
        // And is found again by the next that is refused, signed with the old one or not.
        assert!(clock.learn_from_refusal(HOUR, true, Some(at(0)), at(0)));
        assert_eq!(clock.ahead(), 0);
    }

    #[test]
    fn a_refusal_while_the_clocks_agree_is_of_something_else() {
        let clock = Clock::default();
        assert!(!clock.learn_from_refusal(0, true, Some(at(30)), at(0)));
        // Not far enough, where it does not say that it is the time.
        assert!(!clock.learn_from_refusal(0, false, Some(at(200)), at(0)));
        assert_eq!(clock.ahead(), 0);
        assert!(clock.learn_from_refusal(0, true, Some(at(200)), at(0)));
    }

    proptest! {
        #[test]
        fn no_date_is_too_wild(date in prop_oneof![any::<i32>(), -1_000_000..1_000_000_i32], now in -1000..1000_i32, ahead: i64) {
            let clock = Clock::default();
            let ahead = ahead.clamp(-(1 << 40), 1 << 40);
            clock.learn_from_refusal(ahead, true, Some(at(date.into())), at(now.into()));
            clock.learn(at(date.into()), at(now.into()));
            let found = i64::from(date) - i64::from(now);
            let known = clock.ahead();
            // What is further away than any honest server's is not followed.
            let followed = if found.abs() > MOST { 0 } else { found };
            prop_assert!((known - followed).abs() <= NEAR, "{known} of {found}");
            shifted(at(now.into()), ahead);
        }
    }
}
