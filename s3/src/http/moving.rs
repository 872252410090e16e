//! Whether a body moves: enough bytes over each stretch of time that was spent waiting for them. A pure rule.

use std::time::Duration;

use tokio::time::Instant;

/// Counts what came of one body, and for how long the server was waited for. What the receiver takes for itself, for
/// memory or its turn, does not count.
pub(super) struct Moving {
    /// The longest stretch,
    pub(super) limit: Duration,
    /// and the bytes that end one.
    least: u64,
    /// Of the present stretch: bytes that came,
    moved: u64,
    /// time waited before the present pause,
    waited: Duration,
    /// and when that began.
    since: Option<Instant>,
}

impl Moving {
    pub(super) fn new(limit: Duration, least: u64) -> Moving {
        Moving {
            limit,
            least,
            moved: 0,
            waited: Duration::ZERO,
            since: None,
        }
    }

    /// Bytes have come. The time is asked for only after a pause.
    pub(super) fn took(&mut self, bytes: u64, now: impl FnOnce() -> Instant) {
        self.moved = self.moved.saturating_add(bytes);
        if self.moved >= self.least {
            (self.moved, self.waited, self.since) = (0, Duration::ZERO, None);
        } else if let Some(since) = self.since.take() {
            self.waited += now().saturating_duration_since(since);
        }
    }

    /// Nothing is there now: when that has gone on for too long.
    pub(super) fn due(&mut self, now: Instant) -> Instant {
        let since = *self.since.get_or_insert(now);
        since + self.limit.saturating_sub(self.waited)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMIT: Duration = Duration::from_secs(10);

    /// Waits of so many seconds, each ended by so many bytes. Whether one of them was too long.
    fn stalls(least: u64, rounds: &[(u64, u64)]) -> bool {
        let (mut moving, mut now) = (Moving::new(LIMIT, least), Instant::now());
        rounds.iter().any(|&(seconds, bytes)| {
            let due = moving.due(now);
            now += Duration::from_secs(seconds);
            moving.took(bytes, || now);
            now >= due
        })
    }

    #[test]
    fn r23_a_body_that_moves_less_than_it_must_stalls_and_a_slow_one_does_not() {
        assert!(stalls(4096, &[(10, 0)]), "silence");
        assert!(stalls(4096, &[(1, 1); 11]), "a byte a second");
        assert!(stalls(4096, &[(9, 4095), (2, 0)]));
        assert!(!stalls(4096, &[(9, 4096); 1000]), "slow for hours");
        assert!(!stalls(4096, &[(3, 2048); 1000]));
        assert!(!stalls(1, &[(9, 1); 1000]));
        assert!(!stalls(0, &[(9, 1); 1000]));
        assert!(stalls(0, &[(10, 1)]), "silence still");
    }

    #[test]
    fn r26_what_the_receiver_takes_for_itself_is_no_stall() {
        let (mut moving, mut now) = (Moving::new(LIMIT, 4096), Instant::now());
        for _ in 0..100 {
            assert!(now < moving.due(now));
            now += Duration::from_millis(10);
            moving.took(1, || now);
            // For memory, or its turn.
            now += Duration::from_secs(60);
        }
    }

    proptest! {
        #[test]
        fn no_stretch_of_waiting_is_longer_than_the_limit_without_its_bytes(
            rounds in proptest::collection::vec((0..9_u64, 0..6000_u64), 1..200),
        ) {
            let told = rounds.iter().scan((0, 0), |(waited, moved), &(seconds, bytes)| {
                (*waited, *moved) = (*waited + seconds, *moved + bytes);
                let late = *waited >= LIMIT.as_secs();
                if *moved >= 4096 {
                    (*waited, *moved) = (0, 0);
                }
                Some(late)
            });
            prop_assert_eq!(stalls(4096, &rounds), told.into_iter().any(|late| late));
        }
    }
}
