//! How fast a model lets bytes and operations pass.
//!
//! Everything is by an absolute schedule. A lane hands out its time in the order of asking, and each
//! request waits until the schedule's time of its piece. A timer that comes late, or a copy that takes a
//! while, delays that piece and not the schedule, so the rate holds on average. Requests ask for a small
//! piece at a time and so take turns.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// The longest piece that passes at once.
const PIECE: u64 = 256 << 10;
/// Timers tick once a millisecond and never come early: aimed half a tick early they are right on average.
const EARLY: Duration = Duration::from_micros(500);
/// How far a request may be behind its schedule and still catch up. Beyond that somebody else was slow,
/// and what the line could have carried meanwhile is lost.
const LAG: Duration = Duration::from_millis(20);

/// Something that does one thing after the other.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    free: Mutex<Option<Instant>>,
}

impl Lane {
    /// The end of a turn so long, which begins at `from` at the earliest.
    pub fn reserve(&self, from: Instant, turn: Duration) -> Instant {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let end = free.map_or(from, |free| free.max(from)) + turn;
        *free = Some(end);
        end
    }
}

/// A lane for bytes, so many a second.
#[derive(Debug)]
pub(crate) struct Line {
    lane: Lane,
    rate: u64,
}

impl Line {
    pub fn new(rate: u64) -> Arc<Line> {
        let lane = Lane::default();
        Arc::new(Line { lane, rate })
    }

    fn reserve(&self, from: Instant, bytes: u64) -> Instant {
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.rate.max(1));
        let turn = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        self.lane.reserve(from, turn)
    }
}

/// The pace of one request; without a model nothing waits.
#[derive(Debug, Default)]
pub(crate) struct Pace(Option<Paced>);

#[derive(Debug)]
struct Paced {
    /// All that the bytes have to pass.
    lines: Vec<Arc<Line>>,
    /// Where the request is in its schedule.
    at: Instant,
}

impl Pace {
    /// A request that begins now and whose bytes go over that line.
    pub fn over(line: Arc<Line>) -> Pace {
        Pace(Some(Paced {
            lines: vec![line],
            at: Instant::now(),
        }))
    }

    /// Has the bytes pass this one too.
    pub fn also_over(&mut self, line: Arc<Line>) {
        if let Some(paced) = &mut self.0 {
            paced.lines.push(line);
        }
    }

    /// How much of so many bytes may pass at once.
    pub fn piece(&self, bytes: u64) -> u64 {
        match self.0 {
            Some(_) => bytes.min(PIECE),
            None => bytes,
        }
    }

    /// Waits until so many bytes have passed.
    pub async fn pass(&mut self, bytes: u64) {
        if let Some(paced) = &mut self.0 {
            let from = paced.from();
            let ends = paced.lines.iter().map(|line| line.reserve(from, bytes));
            let end = ends.max().unwrap_or(from);
            paced.wait(end).await;
        }
    }

    /// Waits for that long.
    pub async fn spend(&mut self, time: Duration) {
        if let Some(paced) = &mut self.0 {
            let end = paced.from() + time;
            paced.wait(end).await;
        }
    }

    /// Waits for a turn so long on a lane where one begins when the one before has ended. `turn` is asked
    /// for its length only then.
    pub async fn take_turn(&mut self, desk: &Desk, turn: impl FnOnce() -> Duration) {
        if let Some(paced) = &mut self.0 {
            let _one_at_a_time = desk.taken.lock().await;
            let end = desk.lane.reserve(paced.from(), turn());
            paced.wait(end).await;
        }
    }
}

impl Paced {
    fn from(&self) -> Instant {
        let now = Instant::now();
        self.at.max(now.checked_sub(LAG).unwrap_or(now))
    }

    async fn wait(&mut self, end: Instant) {
        self.at = end;
        let wake = end.checked_sub(EARLY).unwrap_or(end);
        if wake > Instant::now() {
            sleep_until(wake).await;
        }
    }
}

/// Somebody who serves one request at a time, in their order, each for as long as is found then.
#[derive(Debug, Default)]
pub(crate) struct Desk {
    taken: tokio::sync::Mutex<()>,
    lane: Lane,
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const SECOND: Duration = Duration::from_secs(1);

    /// Sends bytes piece by piece; the time when they have all passed.
    async fn send(mut pace: Pace, bytes: u64) -> Instant {
        let mut left = bytes;
        while left > 0 {
            let piece = pace.piece(left);
            pace.pass(piece).await;
            left -= piece;
        }
        Instant::now()
    }

    fn near(time: Duration, wanted: Duration) -> bool {
        time.abs_diff(wanted) <= 2 * EARLY
    }

    #[tokio::test(start_paused = true)]
    async fn requests_share_the_line_and_its_rate_holds() {
        let line = Line::new(64 * MIB);
        let began = Instant::now();
        let sends = (0..8).map(|_| tokio::spawn(send(Pace::over(line.clone()), 16 * MIB)));
        for send in sends.collect::<Vec<_>>() {
            // All have the same share, so all end at about the end.
            let time = send.await.unwrap() - began;
            assert!(
                time > SECOND * 19 / 10 && time <= 2 * SECOND + EARLY,
                "{time:?}"
            );
        }
        assert!(near(began.elapsed(), 2 * SECOND), "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_small_request_does_not_wait_for_a_large_one() {
        let line = Line::new(64 * MIB);
        let began = Instant::now();
        let large = tokio::spawn(send(Pace::over(line.clone()), 64 * MIB));
        tokio::time::sleep(SECOND / 10).await;
        let time = send(Pace::over(line), PIECE).await - began;
        assert!(time < SECOND / 8, "{time:?}");
        assert!(near(large.await.unwrap() - began, SECOND + SECOND / 256));
    }

    #[tokio::test(start_paused = true)]
    async fn time_that_copies_and_late_timers_take_is_made_up_for() {
        let mut pace = Pace::over(Line::new(1024 * MIB));
        let began = Instant::now();
        for _ in 0..4096 {
            pace.pass(PIECE).await;
            // A quarter of what the piece takes on the line.
            tokio::time::advance(Duration::from_micros(60)).await;
        }
        let late = began.elapsed().saturating_sub(SECOND);
        assert!(late < SECOND / 100, "{:?}", began.elapsed());
        assert!(began.elapsed() >= SECOND - EARLY);
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_line_saves_nothing_up() {
        let line = Line::new(64 * MIB);
        send(Pace::over(line.clone()), PIECE).await;
        tokio::time::advance(10 * SECOND).await;
        let began = Instant::now();
        send(Pace::over(line), 64 * MIB).await;
        assert!(near(began.elapsed(), SECOND), "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn who_was_held_up_from_outside_makes_up_for_little_of_it() {
        let mut pace = Pace::over(Line::new(64 * MIB));
        pace.pass(PIECE).await;
        tokio::time::advance(10 * SECOND).await;
        let began = Instant::now();
        for _ in 0..64 * MIB / PIECE {
            pace.pass(PIECE).await;
        }
        let time = began.elapsed();
        assert!(time >= SECOND - LAG - EARLY && time <= SECOND, "{time:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_pass_all_lines_at_the_rate_of_the_slowest() {
        let (line, slow) = (Line::new(64 * MIB), Line::new(8 * MIB));
        let mut far = Pace::over(line.clone());
        far.also_over(slow);
        let began = Instant::now();
        let far = tokio::spawn(send(far, 8 * MIB));
        let near_by = send(Pace::over(line), 56 * MIB).await - began;
        // The slow one takes no more of the line than it needs.
        assert!(near(near_by, SECOND), "{near_by:?}");
        assert!(near(far.await.unwrap() - began, SECOND));
    }

    #[tokio::test(start_paused = true)]
    async fn a_desk_serves_one_at_a_time_for_as_long_as_is_found_then() {
        let desk = Arc::new(Desk::default());
        let turn = Arc::new(Mutex::new(SECOND));
        let began = Instant::now();
        let visit = || {
            let (desk, turn) = (desk.clone(), turn.clone());
            tokio::spawn(async move {
                let mut pace = Pace::over(Line::new(MIB));
                pace.take_turn(&desk, || *turn.lock().unwrap()).await;
                Instant::now()
            })
        };
        let visits: Vec<_> = (0..4).map(|_| visit()).collect();
        tokio::time::sleep(SECOND / 2).await;
        // Who waits still pays what is right at their turn.
        *turn.lock().unwrap() = Duration::ZERO;
        for visit in visits {
            assert!(near(visit.await.unwrap() - began, SECOND));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_model_nothing_waits() {
        let mut pace = Pace::default();
        let began = Instant::now();
        pace.pass(u64::MAX).await;
        pace.spend(SECOND).await;
        pace.take_turn(&Desk::default(), || SECOND).await;
        assert_eq!(
            (pace.piece(u64::MAX), began.elapsed()),
            (u64::MAX, Duration::ZERO)
        );
    }
}
