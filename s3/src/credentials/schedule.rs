//! When keys are asked for anew. Pure rules: the caller brings the clock and the dice.

use std::time::Duration;

/// Keys are replaced no earlier than this before they end.
const EARLIEST: Duration = Duration::from_secs(15 * 60);
/// The least time between two fetches that nobody asked for.
const LEAST: Duration = Duration::from_secs(1);
/// The bound of the first wait after a failure; it doubles with each.
const FIRST_BACKOFF: Duration = Duration::from_millis(200);
/// The bound of any wait after a failure, while there are keys that still serve.
const LONGEST_BACKOFF: Duration = Duration::from_secs(60);
/// The same where requests wait or are signed with keys that have ended.
const LONGEST_WITHOUT_KEYS: Duration = Duration::from_secs(5);

/// How long to wait before keys that are valid for `remaining` are fetched anew.
///
/// In the last quarter of their time, and no more than 15 minutes ahead. `random` in 0..1 spreads that over half of
/// it, so that hosts that began together do not all come at once. A source that gives the same keys again is asked
/// again after the same share of what is then left.
pub(crate) fn refresh_after(remaining: Duration, random: f64) -> Duration {
    let window = (remaining / 4).min(EARLIEST);
    let ahead = window.mul_f64(1.0 - 0.5 * dice(random));
    remaining.saturating_sub(ahead).max(LEAST)
}

/// How long to wait after so many failures in a row, the last of them counted.
pub(crate) fn backoff(failures: u32, have_keys: bool, random: f64) -> Duration {
    let longest = if have_keys {
        LONGEST_BACKOFF
    } else {
        LONGEST_WITHOUT_KEYS
    };
    let doublings = failures.saturating_sub(1).min(16);
    let bound = (FIRST_BACKOFF * (1 << doublings)).min(longest);
    // Never at once: a source that is throttling is not helped by a burst.
    bound.mul_f64(0.5 + 0.5 * dice(random))
}

/// NaN clamps to NaN, and `max` turns that into 0.
fn dice(random: f64) -> f64 {
    random.clamp(0.0, 1.0).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn keys_of_an_hour_are_replaced_7_to_15_minutes_ahead() {
        let hour = Duration::from_secs(3600);
        assert_eq!(refresh_after(hour, 0.0), Duration::from_secs(45 * 60));
        assert_eq!(refresh_after(hour, 1.0), Duration::from_secs(3150));
    }

    #[test]
    fn keys_of_a_few_hours_are_not_replaced_hours_ahead() {
        let six = Duration::from_secs(6 * 3600);
        assert_eq!(refresh_after(six, 0.0), six - EARLIEST);
    }

    #[test]
    fn waits_after_failures_grow_and_stay_short_while_there_are_no_keys() {
        let longest = |failures, have_keys| backoff(failures, have_keys, 1.0);
        assert_eq!(longest(1, true), FIRST_BACKOFF);
        assert_eq!(longest(2, true), FIRST_BACKOFF * 2);
        assert_eq!(longest(u32::MAX, true), LONGEST_BACKOFF);
        assert_eq!(longest(u32::MAX, false), LONGEST_WITHOUT_KEYS);
    }

    proptest! {
        #[test]
        fn r42_refreshes_come_before_the_end_and_are_spread(remaining in 4_u64..1 << 40, a in 0.0..1.0, b in 0.0..1.0) {
            let remaining = Duration::from_secs(remaining);
            let (a_at, b_at) = (refresh_after(remaining, a), refresh_after(remaining, b));
            prop_assert!(a_at < remaining && b_at < remaining);
            let in_order = if a < b { a_at <= b_at } else { a_at >= b_at };
            prop_assert!(in_order);
            let spread = refresh_after(remaining, 1.0) - refresh_after(remaining, 0.0);
            prop_assert!(spread >= (remaining / 9).min(EARLIEST / 2));
        }

        #[test]
        fn every_wait_is_bounded_whatever_the_dice(failures: u32, have_keys: bool, random: f64, remaining: u64) {
            let wait = backoff(failures, have_keys, random);
            prop_assert!(wait >= FIRST_BACKOFF / 2 && wait <= LONGEST_BACKOFF);
            let remaining = Duration::from_secs(remaining);
            prop_assert!(refresh_after(remaining, random) <= remaining.max(LEAST));
        }
    }
}
