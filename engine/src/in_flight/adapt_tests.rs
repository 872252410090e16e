use std::cmp::Reverse;
use std::collections::BinaryHeap;

use proptest::prelude::*;

use super::*;

/// How a server answers: from the time in seconds, the requests under way and a random number in 0..1, to how long it
/// takes and how it ends.
type Serve = dyn FnMut(f64, usize, f64) -> (f64, Ending);

const FINE: Ending = Ending::Served { bytes: 1 << 20 };

const SLOW_DOWN: Ending = Ending::Refused {
    cause: Cause::SlowDown,
    retry_after: None,
};

/// Callers that always want more, and a server.
struct Loop {
    adapt: Adapt,
    start: Instant,
    /// In seconds, as is all time here.
    now: f64,
    /// When requests end, when they began, and how.
    under_way: BinaryHeap<(Reverse<u64>, u64, u8)>,
    endings: Vec<Ending>,
    /// When places come back.
    resting: BinaryHeap<Reverse<u64>>,
    dice: u64,
    served: u64,
    refused: u64,
}

const NANO: f64 = 1e9;

impl Loop {
    fn new(ceiling: usize) -> Self {
        Self {
            adapt: Adapt::new(ceiling),
            start: Instant::now(),
            now: 0.0,
            under_way: BinaryHeap::new(),
            endings: Vec::new(),
            resting: BinaryHeap::new(),
            dice: 7,
            served: 0,
            refused: 0,
        }
    }

    fn roll(&mut self) -> f64 {
        self.dice = self
            .dice
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.dice >> 11) as f64 / (1u64 << 53) as f64
    }

    fn begin(&mut self, serve: &mut Serve) {
        while self.under_way.len() + self.resting.len() < self.adapt.places() {
            let random = self.roll();
            let (takes, ending) = serve(self.now, self.under_way.len() + 1, random);
            let number = match self.endings.iter().position(|&known| known == ending) {
                Some(at) => at,
                None => {
                    self.endings.push(ending);
                    self.endings.len() - 1
                }
            };
            let began = (self.now * NANO) as u64;
            let ends = ((self.now + takes.max(1e-6)) * NANO) as u64;
            self.under_way.push((Reverse(ends), began, number as u8));
        }
    }

    /// The next thing that happens: a request ends, or a place comes back.
    fn step(&mut self, serve: &mut Serve) {
        self.begin(serve);
        let end = self.under_way.peek().map(|&(Reverse(at), ..)| at);
        let back = self.resting.peek().map(|&Reverse(at)| at);
        if back.is_some_and(|back| end.is_none_or(|end| back <= end)) {
            self.resting.pop();
            self.now = back.unwrap() as f64 / NANO;
            return;
        }
        let (Reverse(ends), began, number) = self.under_way.pop().unwrap();
        self.now = ends as f64 / NANO;
        let ending = self.endings[usize::from(number)];
        match ending {
            Ending::Refused { .. } => self.refused += 1,
            _ => self.served += 1,
        }
        let rest = self.adapt.ended(&End {
            now: self.start + Duration::from_nanos(ends),
            took: Duration::from_nanos(ends - began),
            used: (self.under_way.len() + self.resting.len() + 1) as f64,
            ending,
        });
        if !rest.is_zero() {
            let back = self.now + rest.as_secs_f64() * (0.5 + self.roll() / 2.0);
            self.resting.push(Reverse((back * NANO) as u64));
        }
        let (places, ceiling) = (self.adapt.places(), self.adapt.ceiling as usize);
        assert!((1..=ceiling).contains(&places), "{places} of {ceiling}");
    }

    /// Goes on for so many seconds. Returns how many requests were served and refused.
    fn run(
        &mut self,
        seconds: f64,
        mut serve: impl FnMut(f64, usize, f64) -> (f64, Ending) + 'static,
    ) -> (u64, u64) {
        let (served, refused, until) = (self.served, self.refused, self.now + seconds);
        while self.now < until {
            self.step(&mut serve);
        }
        (self.served - served, self.refused - refused)
    }
}

/// Answers in 20 ms, more or less.
fn steady(_: f64, _: usize, random: f64) -> (f64, Ending) {
    (0.015 + random * 0.01, FINE)
}

/// Refuses in a millisecond.
fn outage(_: f64, _: usize, _: f64) -> (f64, Ending) {
    (0.001, SLOW_DOWN)
}

#[test]
fn r28_a_server_that_refuses_gets_few_requests_and_one_that_serves_gets_all_of_them() {
    let mut run = Loop::new(64);
    let (before, _) = run.run(10.0, steady);
    assert_eq!(run.adapt.places(), 64, "nothing was refused");
    let (served, refused) = run.run(60.0, outage);
    // What was under way at the change was served still.
    assert!(served <= 64);
    assert_eq!(run.adapt.places(), 2);
    assert!(
        refused * 10 < before,
        "{refused} in 60 s after {before} in 10 s"
    );
}

#[test]
fn r29_throughput_is_back_soon_after_an_outage() {
    for seconds in [0.1, 3.0, 60.0, 600.0] {
        let mut run = Loop::new(64);
        run.run(5.0, steady);
        let (_, refused) = run.run(seconds, outage);
        assert!(refused > 0);
        let (at, served) = (run.now, run.served);
        while run.adapt.places() < 58 {
            run.step(&mut steady);
        }
        assert!(
            run.served - served <= 400,
            "{} requests",
            run.served - served
        );
        // A place rests for a second, then there are a few round trips of 20 ms.
        assert!(run.now - at < 3.0, "{} s", run.now - at);
    }
}

#[test]
fn refusals_of_one_round_trip_count_once_and_as_many_as_they_are() {
    let mut run = Loop::new(64);
    let mut asked = 0;
    // A quarter is refused, of the first 64 only: all are under way together.
    let mut serve = move |_: f64, _: usize, _: f64| {
        asked += 1;
        (
            0.02,
            if asked <= 64 && asked % 4 == 0 {
                SLOW_DOWN
            } else {
                FINE
            },
        )
    };
    for _ in 0..64 {
        run.step(&mut serve);
    }
    assert_eq!(run.adapt.places(), 48);
    assert_eq!(run.adapt.shrinks(), [1, 0, 0, 0]);
}

#[test]
fn a_server_that_bears_so_many_a_second_gets_about_so_many() {
    // Answers in 20 ms; more than 1000 a second are refused, where 64 places would bring 3200.
    let mut run = Loop::new(64);
    let (mut second, mut count) = (0, 0);
    let serve = move |now: f64, _: usize, _: f64| {
        let of = (now * 10.0) as u64;
        if of != second {
            (second, count) = (of, 0);
        }
        count += 1;
        if count > 100 {
            (0.002, SLOW_DOWN)
        } else {
            (0.02, FINE)
        }
    };
    run.run(10.0, serve);
    let (mut second, mut count) = (0, 0);
    let serve = move |now: f64, _: usize, _: f64| {
        let of = (now * 10.0) as u64;
        if of != second {
            (second, count) = (of, 0);
        }
        count += 1;
        if count > 100 {
            (0.002, SLOW_DOWN)
        } else {
            (0.02, FINE)
        }
    };
    let (served, refused) = run.run(60.0, serve);
    assert!(served > 60 * 600, "{served} of 60000 served");
    assert!(refused * 2 < served, "{refused} refused, {served} served");
}

#[test]
fn one_refusal_in_a_hundred_by_chance_costs_little() {
    let mut run = Loop::new(64);
    let mut places = 0;
    let mut rounds = 0;
    let mut serve = |_: f64, _: usize, random: f64| {
        if random < 0.01 {
            (0.005, SLOW_DOWN)
        } else {
            (0.02, FINE)
        }
    };
    for _ in 0..20_000 {
        run.step(&mut serve);
        places += run.adapt.places();
        rounds += 1;
    }
    assert!(
        places / rounds >= 48,
        "{} places on average",
        places / rounds
    );
}

#[test]
fn what_is_not_there_is_an_answer() {
    let mut run = Loop::new(16);
    run.run(1.0, |_, _, _| (0.001, Ending::Answered));
    assert_eq!((run.adapt.places(), run.adapt.shrinks()), (16, [0; 4]));
}

#[test]
fn a_single_request_that_is_refused_now_and_then_leaves_room_for_more() {
    // One at a time: the window says what it knows, and grows again when it is what bounds.
    let mut adapt = Adapt::new(64);
    let end = |ending| End {
        now: Instant::now(),
        took: Duration::from_millis(20),
        used: 1.0,
        ending,
    };
    adapt.ended(&end(SLOW_DOWN));
    assert_eq!(adapt.places(), 2);
    for _ in 0..3 {
        adapt.ended(&end(FINE));
    }
    assert!(adapt.places() > 2);
}

#[test]
fn the_server_says_how_long_a_place_rests_within_bounds() {
    let refused = |seconds| {
        let mut adapt = Adapt::new(1);
        let ending = Ending::Refused {
            cause: Cause::SlowDown,
            retry_after: Some(Duration::from_secs(seconds)),
        };
        adapt.ended(&End {
            now: Instant::now(),
            took: Duration::ZERO,
            used: 1.0,
            ending,
        })
    };
    assert_eq!(refused(0), REST);
    assert_eq!(refused(1), Duration::from_secs(1));
    assert_eq!(refused(3600), LONGEST_ASKED);
}

#[test]
fn causes_are_told_apart() {
    for cause in [Cause::SlowDown, Cause::Timeout, Cause::Lost] {
        let mut run = Loop::new(8);
        let retry_after = None;
        run.run(0.05, move |_, _, _| {
            (0.01, Ending::Refused { cause, retry_after })
        });
        let shrinks = run.adapt.shrinks();
        assert!(shrinks[cause as usize] > 0);
        assert_eq!(shrinks.iter().sum::<u64>(), shrinks[cause as usize]);
    }
}

/// Serves 1000 a second however many ask: the others queue.
fn queueing(capacity: f64) -> impl FnMut(f64, usize, f64) -> (f64, Ending) {
    let mut free_at = 0.0_f64;
    move |now, _, random| {
        free_at = free_at.max(now) + (0.5 + random) / capacity;
        (free_at - now, FINE)
    }
}

#[test]
fn where_answers_come_later_and_fewer_bring_as_much_there_are_fewer() {
    let mut run = Loop::new(64);
    run.run(10.0, queueing(4000.0));
    assert_eq!(run.adapt.places(), 64);
    // The server has a quarter of its capacity left, for others came.
    run.run(60.0, queueing(1000.0));
    let places = run.adapt.places();
    assert!(places <= 40, "{places} places");
    let (served, _) = run.run(30.0, queueing(1000.0));
    assert!(served > 30 * 900, "{served} served in 30 s");
    assert!(run.adapt.shrinks()[Cause::Latency as usize] > 0);
    // And it is used again when it is there again.
    run.run(20.0, queueing(4000.0));
    assert_eq!(run.adapt.places(), 64);
}

#[test]
fn where_answers_come_later_and_fewer_bring_less_there_are_as_many_as_before() {
    let mut run = Loop::new(64);
    run.run(10.0, steady);
    // Each takes four times as long, however many there are.
    let (served, _) = run.run(60.0, |_, _, random| (0.06 + random * 0.04, FINE));
    assert_eq!(run.adapt.places(), 64);
    assert_eq!(run.adapt.shrinks(), [0; 4]);
    // One sample of 256 by fewer, of 48,000.
    assert!(served > 47_000, "{served}");
}

/// What a step of a random life does.
fn life() -> impl Strategy<Value = Vec<(u8, u16)>> {
    prop::collection::vec((0u8..6, 1u16..400), 1..20)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_window_is_never_empty_nor_beyond_its_ceiling_and_recovers(ceiling in 1usize..200, life in life()) {
        let mut run = Loop::new(ceiling);
        for (kind, steps) in life {
            let cause = Cause::ALL[usize::from(kind) % 3];
            let retry_after = (kind == 5).then_some(Duration::from_secs(9));
            let ending = match kind {
                0 => FINE,
                1 => Ending::Answered,
                _ => Ending::Refused { cause, retry_after },
            };
            for _ in 0..steps {
                // `step` asserts the bounds.
                run.step(&mut move |_, _, random| (random * 0.05, ending));
            }
        }
        let served = run.served;
        while run.adapt.places() < (ceiling * 9).div_ceil(10) {
            run.step(&mut steady);
            prop_assert!(run.served - served < 64 * ceiling as u64 + 1000, "{} of {ceiling}", run.adapt.places());
        }
    }

    #[test]
    fn noise_of_latency_leaves_the_window_alone(ceiling in 4usize..128, spread in 0.0f64..6.0, seed: u64) {
        let mut run = Loop::new(ceiling);
        run.dice = seed;
        // From nearly nothing to many times the usual, by chance.
        let mut serve = move |_: f64, _: usize, random: f64| (0.005 * (1.0 + random.powi(3) * spread), FINE);
        for _ in 0..20_000 {
            run.step(&mut serve);
            prop_assert_eq!(run.adapt.places(), ceiling);
        }
    }
}
