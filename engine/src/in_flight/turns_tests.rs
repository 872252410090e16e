use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const MIB: u64 = 1 << 20;
/// The least of many requests that are all far from the least cost.
const LEAST_SIZE: u64 = 1 << 19;
const NO_CAPS: Limits = Limits {
    requests: usize::MAX,
    bytes: u64::MAX,
};

/// What one waits with: share, bytes, and the number by which the test knows it.
type Asked = (ShareId, u64, u64);

/// Shares with requests, driven by hand and checked after each step.
struct Bench {
    turns: Turns<Asked>,
    shares: Vec<ShareId>,
    running: Vec<Grant>,
    /// By the test's number.
    waiting: BTreeMap<u64, (ShareId, Ticket, u64)>,
    asked: u64,
    /// The number that each share was served last, to see that the first come is the first served.
    served: BTreeMap<ShareId, u64>,
    /// Cost by share of what was admitted to those who waited.
    costs: BTreeMap<ShareId, i64>,
}

impl Bench {
    fn new(limits: Limits, shares: &[(u32, Limits)]) -> Self {
        let mut turns = Turns::new(limits);
        let window = turns.windows().open();
        let join = |&(weight, caps): &(u32, Limits)| {
            turns.join(window, NonZeroU32::new(weight).unwrap(), caps)
        };
        let shares = shares.iter().map(join).collect();
        Self {
            turns,
            shares,
            running: Vec::new(),
            waiting: BTreeMap::new(),
            asked: 0,
            served: BTreeMap::new(),
            costs: BTreeMap::new(),
        }
    }

    fn ask(&mut self, share: ShareId, bytes: u64) {
        let number = self.asked;
        self.asked += 1;
        match self.turns.start(share, bytes) {
            Some(grant) => {
                assert!(self.waiting.is_empty(), "nobody is passed");
                self.running.push(grant);
            }
            None => {
                let ticket = self.turns.wait(share, bytes, (share, bytes, number));
                self.waiting.insert(number, (share, ticket, bytes));
            }
        }
        self.settle();
    }

    /// Takes in who may start. Returns them.
    fn settle(&mut self) -> Vec<Asked> {
        let mut started = Vec::new();
        while let Some((asked, grant)) = self.turns.next() {
            let (share, bytes, number) = asked;
            assert!(
                self.waiting.remove(&number).is_some(),
                "{number} does not wait"
            );
            let last = self.served.insert(share, number);
            assert!(
                last.is_none_or(|last| last < number),
                "first come, first served"
            );
            assert_eq!(grant.share, share);
            assert!(grant.bytes <= bytes);
            *self.costs.entry(share).or_default() += cost(grant.bytes);
            self.running.push(grant);
            started.push(asked);
        }
        self.check();
        started
    }

    fn finish(&mut self, nth: usize) -> Vec<Asked> {
        let grant = self.running.remove(nth);
        self.turns.finish(grant);
        self.settle()
    }

    fn refund(&mut self, nth: usize, real: u64) {
        let before = self.running[nth].bytes;
        self.turns.refund(&mut self.running[nth], real);
        assert_eq!(self.running[nth].bytes, before.min(real));
        self.settle();
    }

    fn give_up(&mut self, nth: usize) {
        let Some(&number) = self.waiting.keys().nth(nth) else {
            return;
        };
        let (share, ticket, _) = self.waiting.remove(&number).unwrap();
        let (.., given_up) = self.turns.give_up(share, ticket).unwrap();
        assert_eq!(given_up, number);
        assert!(self.turns.give_up(share, ticket).is_none());
        self.settle();
    }

    fn held(&self, share: ShareId) -> Load {
        let of_share = self.running.iter().filter(|grant| grant.share == share);
        of_share.fold(Load::default(), |mut load, grant| {
            load.add(grant.bytes);
            load
        })
    }

    /// The oldest request of a share that is under way.
    fn of(&self, share: ShareId) -> Option<usize> {
        self.running.iter().position(|grant| grant.share == share)
    }

    fn lane(&self, lane: Lane) -> Load {
        let of_lane = self.running.iter().filter(|grant| grant.lane == lane);
        of_lane.fold(Load::default(), |mut load, grant| {
            load.add(grant.bytes);
            load
        })
    }

    /// The oldest request of each share that waits.
    fn heads(&self) -> BTreeMap<ShareId, u64> {
        let mut heads = BTreeMap::new();
        for &(share, _, bytes) in self.waiting.values() {
            heads.entry(share).or_insert(bytes);
        }
        heads
    }

    /// Bounds, caps, and that nothing is left idle: told from what the test itself knows is running and waiting.
    fn check(&self) {
        let (limits, load) = (self.turns.limits, self.turns.load());
        assert_eq!(load.requests, self.running.len());
        assert_eq!(
            load.bytes,
            self.running.iter().map(|grant| grant.bytes).sum::<u64>()
        );
        assert!(load.requests <= limits.requests && load.bytes <= limits.bytes);

        let kept = match self.shares.len() {
            1 => (0, 0),
            _ => (self.turns.kept.requests, self.turns.kept.bytes),
        };
        let (open, reserve) = (self.lane(Lane::Open), self.lane(Lane::Reserve));
        assert!(reserve.requests <= kept.0 && reserve.bytes <= kept.1);
        let size = (limits.requests - kept.0, limits.bytes - kept.1);
        assert!(open.requests <= size.0 && open.bytes <= size.1);

        let heads = self.heads();
        let is_active =
            |share: &&ShareId| self.held(**share).requests > 0 || heads.contains_key(*share);
        let weight = |share: &ShareId| u64::from(self.turns.shares[*share].weight);
        let active: u64 = self.shares.iter().filter(is_active).map(weight).sum();
        assert_eq!(self.turns.active_weight, active);

        let mut ready = Vec::new();
        for &share in &self.shares {
            let (held, caps) = (self.held(share), self.turns.shares[share].caps);
            assert!(held.requests <= caps.requests);
            let one = self
                .running
                .iter()
                .filter(|grant| grant.share == share && grant.bytes > 0);
            assert!(
                held.bytes <= caps.bytes || one.count() == 1,
                "caps of {share}"
            );
            let Some(&head) = heads.get(&share) else {
                continue;
            };
            let bytes = head.min(size.1);
            let fits = held.bytes == 0 || held.bytes.saturating_add(bytes) <= caps.bytes;
            if !fits || held.requests == caps.requests {
                continue;
            }
            let part = (limits.requests as u64 * weight(&share) / active).max(1);
            let within = (held.requests as u64) < part;
            let credit = self.turns.shares[share].credit;
            let in_debt = credit.div_euclid(weight(&share) as i64) <= -(kept.1 as i64);
            let fits_open = open.has_room(
                bytes,
                Limits {
                    requests: size.0,
                    bytes: size.1,
                },
            );
            let fits_reserve = reserve.has_room(
                bytes,
                Limits {
                    requests: kept.0,
                    bytes: kept.1,
                },
            );
            let fits_reserve = within && bytes <= SMALL && fits_reserve;
            assert!(
                in_debt || !fits_reserve,
                "the reserve is idle, {share} waits"
            );
            ready.push((within, fits_open, fits_reserve));
        }
        let some_within = ready.iter().any(|&(within, ..)| within);
        ready.retain(|&(within, ..)| within || !some_within);
        let idle =
            ready.iter().all(|&(_, open, _)| open) || ready.iter().all(|&(.., reserve)| reserve);
        let idle = idle && !ready.is_empty();
        assert!(
            !idle,
            "there is room for each that may have its turn: {ready:?}"
        );
    }
}

#[derive(Clone, Debug)]
enum Step {
    Ask(usize, u64),
    Finish(usize),
    Refund(usize, u64),
    GiveUp(usize),
}

fn bytes() -> impl Strategy<Value = u64> {
    prop_oneof![
        1 => Just(0),
        6 => 1..2 * MIB,
        4 => 2 * MIB..40 * MIB,
        1 => Just(u64::MAX),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (any::<usize>(), bytes()).prop_map(|(share, bytes)| Step::Ask(share, bytes)),
        4 => any::<usize>().prop_map(Step::Finish),
        1 => (any::<usize>(), bytes()).prop_map(|(nth, real)| Step::Refund(nth, real)),
        1 => any::<usize>().prop_map(Step::GiveUp),
    ]
}

fn share() -> impl Strategy<Value = (u32, Limits)> {
    let caps = prop_oneof![
        Just(NO_CAPS),
        (1usize..6, 1..64 * MIB).prop_map(|(requests, bytes)| Limits { requests, bytes }),
    ];
    (1u32..5, caps)
}

fn limits() -> impl Strategy<Value = Limits> {
    (1usize..20, 1..128 * MIB).prop_map(|(requests, bytes)| Limits { requests, bytes })
}

proptest! {
    #[test]
    fn bounds_and_caps_hold_and_nothing_is_idle_while_one_may_start(
        limits in limits(),
        shares in prop::collection::vec(share(), 1..6),
        steps in prop::collection::vec(step(), 1..150),
    ) {
        let mut bench = Bench::new(limits, &shares);
        for step in steps {
            let running = bench.running.len();
            match step {
                Step::Ask(share, bytes) => bench.ask(share % shares.len(), bytes),
                Step::Finish(nth) if running > 0 => drop(bench.finish(nth % running)),
                Step::Refund(nth, real) if running > 0 => bench.refund(nth % running, real),
                Step::GiveUp(nth) => bench.give_up(nth % bench.waiting.len().max(1)),
                _ => {}
            }
        }
        // All end, whoever waits: each end makes room for one at least.
        while !bench.running.is_empty() {
            bench.finish(0);
        }
        prop_assert!(bench.waiting.is_empty());
        prop_assert_eq!(bench.turns.load(), Load::default());
        prop_assert_eq!((bench.turns.active_weight, bench.turns.ring.len()), (0, 0));
        for share in bench.shares.clone() {
            bench.turns.leave(share);
        }
    }

}

proptest! {
    // Each case is hundreds of steps.
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn bytes_of_busy_shares_are_as_their_weights_where_bytes_are_short(
        weights in (1u32..9, 1u32..9),
        sizes in prop::collection::vec((LEAST_SIZE..8 * MIB, LEAST_SIZE..8 * MIB), 1..20),
        refunded in any::<bool>(),
        ends in prop::collection::vec(any::<usize>(), 200),
    ) {
        // As many requests as nobody has, so that only bytes are short.
        let limits = Limits { requests: 1 << 20, bytes: 32 * MIB };
        let mut bench = Bench::new(limits, &[(weights.0, NO_CAPS), (weights.1, NO_CAPS)]);
        // All of it is taken when they begin to wait, and they always do: one end makes room for fewer than 64.
        bench.ask(0, 32 * MIB);
        let keep_busy = |bench: &mut Bench| for share in [0, 1] {
            for _ in bench.turns.shares[share].waiting.len()..64 {
                let (of_0, of_1) = sizes[bench.asked as usize % sizes.len()];
                bench.ask(share, [of_0, of_1][share]);
            }
        };
        keep_busy(&mut bench);
        bench.finish(0);
        let mut back = 0;
        for nth in ends {
            let nth = nth % bench.running.len();
            let grant = &bench.running[nth];
            let half = grant.bytes / 2;
            if refunded && grant.share == 0 && grant.stay.is_some() {
                back += cost(grant.bytes) - cost(half);
                bench.refund(nth, half);
            }
            keep_busy(&mut bench);
            bench.finish(nth);
            prop_assert!(bench.turns.shares.iter().all(|share| !share.waiting.is_empty()));
            let of = |share, weight: u32| {
                let cost = bench.costs.get(&share).copied().unwrap_or(0);
                let back = if share == 0 { back } else { 0 };
                (cost - back) as f64 / f64::from(weight)
            };
            let apart = (of(0, weights.0) - of(1, weights.1)).abs() as u64;
            // A turn of one more than of the other; what credit one has, what it had when the other came, and
            // what debt the other has. What is refunded is credit until it is spent.
            let refunds = if refunded { limits.bytes / 2 } else { 0 };
            let credit = 2 * (QUANTUM + 8 * MIB) + refunds;
            let debt = bench.turns.kept.bytes + SMALL;
            prop_assert!(apart <= QUANTUM + credit + debt, "{apart} bytes apart");
        }
    }

    #[test]
    fn one_who_waits_waits_for_so_many_bytes_of_each_other_share_and_no_more(
        weights in prop::collection::vec(1u32..5, 2..5),
        size in LEAST_COST..16 * MIB,
        others in LEAST_SIZE..16 * MIB,
        // Enough for the most rounds of the most weight, in requests of the least size.
        ends in prop::collection::vec(any::<usize>(), 700),
    ) {
        let limits = Limits { requests: 1 << 20, bytes: 64 * MIB };
        let shares: Vec<_> = weights.iter().map(|&weight| (weight, NO_CAPS)).collect();
        let mut bench = Bench::new(limits, &shares);
        let busy = |bench: &mut Bench| {
            for share in 1..shares.len() {
                bench.ask(share, others);
            }
        };
        // Requests of the others wait by the dozen.
        (0..200).for_each(|_| busy(&mut bench));
        bench.ask(0, size);
        let start = bench.costs.clone();
        for nth in ends {
            if !bench.heads().contains_key(&0) {
                break;
            }
            bench.finish(nth % bench.running.len());
            busy(&mut bench);
            let rounds = size.div_ceil(QUANTUM * u64::from(weights[0])) as i64;
            // Small ones may also be ahead of their turns, by what the reserve lends.
            let lent = if others <= SMALL { bench.turns.kept.bytes + SMALL } else { 0 };
            for (share, &weight) in weights.iter().enumerate().skip(1) {
                let cost = bench.costs.get(&share).unwrap_or(&0) - start.get(&share).unwrap_or(&0);
                let turns = (rounds + 1) * QUANTUM as i64 * i64::from(weight);
                prop_assert!(cost <= turns + (others + lent) as i64, "share {share} got {cost}");
            }
        }
        prop_assert!(!bench.heads().contains_key(&0), "it was served");
    }
}

/// A share with a queue of large requests, which has all that it can get, beside one with nothing.
fn beside_a_large_one(limits: Limits) -> Bench {
    let mut bench = Bench::new(limits, &[(1, NO_CAPS), (1, NO_CAPS)]);
    (0..256).for_each(|_| bench.ask(0, 8 * MIB));
    bench
}

#[test]
fn a_small_request_starts_at_once_beside_a_full_queue_of_large_ones() {
    let mut bench = beside_a_large_one(Limits::default());
    assert_eq!(bench.held(0).requests, 56);
    for nth in 1..=8 {
        bench.ask(1, 64 << 10);
        assert_eq!(
            bench.held(1).requests,
            nth,
            "none waits for a large one to end"
        );
    }
    bench.ask(1, 64 << 10);
    assert_eq!(bench.held(1).requests, 8, "the reserve is full");
    let small = bench.of(1).unwrap();
    let started = bench.finish(small);
    assert_eq!(
        started.iter().map(|&(share, ..)| share).collect::<Vec<_>>(),
        [1]
    );
}

#[test]
fn a_newcomer_gets_its_part_of_the_requests_before_others_get_more() {
    let mut bench = beside_a_large_one(Limits::default());
    (0..256).for_each(|_| bench.ask(1, 8 * MIB));
    assert_eq!(
        bench.held(1).requests,
        0,
        "large ones do not go by the reserve"
    );
    for nth in 1..=24 {
        let of_first = bench.of(0).unwrap();
        let started = bench.finish(of_first);
        assert_eq!(
            started.iter().map(|&(share, ..)| share).collect::<Vec<_>>(),
            [1]
        );
        assert_eq!(bench.held(1).requests, nth);
    }
    for _ in 0..500 {
        bench.ask(0, 8 * MIB);
        bench.ask(1, 8 * MIB);
        bench.finish(0);
        assert!(
            [0, 1]
                .map(|share| bench.held(share).requests)
                .iter()
                .all(|&n| n <= 32)
        );
    }
}

#[test]
fn a_share_alone_may_use_everything() {
    let limits = Limits::default();
    let mut bench = Bench::new(limits, &[(1, NO_CAPS)]);
    (0..100).for_each(|_| bench.ask(0, 8 * MIB));
    assert_eq!(bench.held(0).requests, limits.requests);
}

#[test]
fn the_others_small_requests_do_not_hold_up_one_that_needs_all_the_room() {
    let limits = Limits {
        requests: 16,
        bytes: 64 * MIB,
    };
    let mut bench = Bench::new(limits, &[(1, NO_CAPS), (1, NO_CAPS)]);
    (0..100).for_each(|_| bench.ask(0, MIB));
    bench.ask(1, u64::MAX);
    let mut ends = 0;
    while bench.heads().contains_key(&1) {
        bench.ask(0, MIB);
        bench.finish(0);
        ends += 1;
        assert!(ends <= 200, "starved by small requests");
    }
    assert_eq!(
        bench.lane(Lane::Open).requests,
        1,
        "it has the open lane for itself"
    );
    bench.check();
}

#[test]
fn the_reserve_goes_to_the_share_that_has_least_of_it() {
    let mut bench = Bench::new(
        Limits::default(),
        &[(1, NO_CAPS), (1, NO_CAPS), (1, NO_CAPS)],
    );
    (0..256).for_each(|_| bench.ask(0, 8 * MIB));
    (0..20).for_each(|_| bench.ask(1, 64 << 10));
    bench.ask(2, 64 << 10);
    assert_eq!((bench.held(1).requests, bench.held(2).requests), (8, 0));
    let small = bench.of(1).unwrap();
    let started = bench.finish(small);
    assert_eq!(
        started.iter().map(|&(share, ..)| share).collect::<Vec<_>>(),
        [2]
    );
}

#[test]
fn credit_is_not_saved_up_while_nothing_waits() {
    let limits = Limits {
        requests: 1 << 20,
        bytes: 8 * MIB,
    };
    let mut bench = Bench::new(limits, &[(1, NO_CAPS), (1, NO_CAPS)]);
    bench.ask(0, 7 * MIB);
    bench.ask(0, 7 * MIB);
    bench.finish(0);
    // It was charged while it waited, waits no more, and moved nothing.
    bench.refund(0, 0);
    assert_eq!(bench.turns.shares[0].credit, 0);
}

#[test]
fn a_share_that_left_makes_place_for_another_with_its_own_terms() {
    let mut bench = Bench::new(Limits::default(), &[(3, NO_CAPS), (1, NO_CAPS)]);
    bench.turns.leave(0);
    let caps = Limits {
        requests: 2,
        bytes: MIB,
    };
    assert_eq!(bench.turns.join(0, NonZeroU32::MIN, caps), 0);
    (0..3).for_each(|_| bench.ask(0, 1));
    assert_eq!(bench.held(0).requests, 2);
}

#[test]
fn requests_of_no_bytes_are_not_free() {
    let limits = Limits {
        requests: 2,
        bytes: 1 << 30,
    };
    let mut bench = Bench::new(limits, &[(1, NO_CAPS), (1, NO_CAPS)]);
    (0..4).for_each(|_| bench.ask(0, 0));
    bench.finish(0);
    assert_eq!(bench.turns.shares[0].credit, (1 << 20) - (64 << 10));
}

#[test]
fn a_share_that_may_not_use_its_turns_saves_credit_for_one_request() {
    let limits = Limits {
        requests: 1 << 20,
        bytes: 32 * MIB,
    };
    let caps = Limits {
        requests: 1,
        ..NO_CAPS
    };
    let mut bench = Bench::new(limits, &[(1, caps), (1, NO_CAPS)]);
    bench.ask(1, 32 * MIB);
    (0..300).for_each(|_| bench.ask(0, 2 * MIB));
    (0..300).for_each(|_| bench.ask(1, 2 * MIB));
    for _ in 0..200 {
        // It is paid back all that it is charged with, yet its caps let it start one at a time.
        if let Some(nth) = bench.of(0) {
            bench.refund(nth, 0);
            bench.finish(nth);
        }
        bench.finish(bench.of(1).unwrap());
        let credit = bench.turns.shares[0].credit;
        assert!(credit <= (2 * 2 * MIB + QUANTUM) as i64, "{credit} saved");
    }
}

/// Ends one request after the other, and tells whose is started for it.
fn order(bench: &mut Bench, count: usize) -> Vec<ShareId> {
    let ends = (0..count).map(|_| bench.finish(0));
    ends.flatten().map(|(share, ..)| share).collect()
}

#[test]
fn shares_with_one_request_each_take_turns_in_the_order_of_arrival() {
    let limits = Limits {
        requests: 1,
        bytes: 64 * MIB,
    };
    let mut bench = Bench::new(limits, &[(1, NO_CAPS); 4]);
    for share in [3, 2, 0, 1] {
        bench.ask(share, MIB);
    }
    assert_eq!(order(&mut bench, 3), [2, 0, 1]);
}

#[test]
fn a_turn_ends_when_its_bytes_are_spent() {
    let limits = Limits {
        requests: 1,
        bytes: 64 * MIB,
    };
    let mut bench = Bench::new(
        limits,
        &[(1, NO_CAPS), (2, NO_CAPS), (1, NO_CAPS), (1, NO_CAPS)],
    );
    // What is under way is of none of those who wait.
    bench.ask(3, 1);
    for share in [0, 1, 2] {
        (0..100).for_each(|_| bench.ask(share, QUANTUM / 4));
    }
    let turns = [[0; 4].as_slice(), &[1; 8], &[2; 4]].concat();
    assert_eq!(order(&mut bench, 48), turns.repeat(3));
}

#[test]
fn the_reserve_lends_a_share_no_more_than_its_size() {
    let limits = Limits {
        requests: 1 << 20,
        bytes: 64 * MIB,
    };
    let mut bench = Bench::new(limits, &[(8, NO_CAPS), (1, NO_CAPS)]);
    // One large request is under way and does not end, the next one has its turn.
    (0..2).for_each(|_| bench.ask(0, 56 * MIB));
    (0..100).for_each(|_| bench.ask(1, MIB));
    while let Some(nth) = bench.of(1) {
        bench.finish(nth);
    }
    // The first of them did not have to wait, and as many went on credit.
    assert_eq!(bench.costs.get(&1), Some(&((8 + 8) * MIB as i64)));
    // Once nobody large waits, debts count from the least.
    bench.give_up(0);
    assert!(bench.of(1).is_some());
}

#[test]
fn small_requests_of_many_go_on_while_large_ones_do_not_end() {
    let limits = Limits::default();
    let mut bench = Bench::new(limits, &[(1, NO_CAPS), (1, NO_CAPS), (4, NO_CAPS)]);
    (0..100).for_each(|_| bench.ask(0, 8 * MIB));
    let mut ended = [0; 3];
    for _ in 0..5000 {
        for share in [1, 2] {
            (bench.turns.shares[share].waiting.len()..20).for_each(|_| bench.ask(share, SMALL));
        }
        let nth = bench
            .running
            .iter()
            .position(|grant| grant.share > 0)
            .unwrap();
        ended[bench.running[nth].share] += 1;
        bench.finish(nth);
    }
    assert!(ended[1] >= 2000 && ended[2] >= 2000, "{ended:?}");
    assert!(
        bench
            .turns
            .shares
            .iter()
            .all(|share| share.credit >= -(33 * MIB as i64))
    );
}

#[test]
fn what_is_refunded_is_given_again() {
    let limits = Limits {
        requests: 1 << 20,
        bytes: 32 * MIB,
    };
    let mut bench = Bench::new(limits, &[(1, NO_CAPS), (8, NO_CAPS)]);
    (0..100).for_each(|nth| bench.ask(nth % 2, 2 * MIB));
    let mut ended = [0; 2];
    for _ in 0..6000 {
        let share = bench.running[0].share;
        if share == 0 {
            bench.refund(0, 0);
        }
        bench.finish(0);
        ended[share] += 1;
        for share in [0, 1] {
            (bench.turns.shares[share].waiting.len()..30).for_each(|_| bench.ask(share, 2 * MIB));
        }
    }
    // A turn is worth sixteen requests that cost the least, or four. It begins with some that were not paid back.
    assert!((4700..=4900).contains(&ended[0]), "{ended:?}");
}

#[test]
fn a_share_beyond_its_part_has_no_use_of_the_reserve() {
    let mut bench = Bench::new(Limits::default(), &[(1, NO_CAPS), (1, NO_CAPS)]);
    (0..40).for_each(|_| bench.ask(0, MIB));
    (0..16).for_each(|_| bench.ask(1, MIB));
    bench.ask(0, 1);
    assert_eq!((bench.held(0).requests, bench.waiting.len()), (40, 1));
    bench.ask(1, 1);
    assert_eq!((bench.held(1).requests, bench.waiting.len()), (17, 1));
}

#[test]
fn the_bound_holds_when_the_room_of_the_reserve_opens_to_all() {
    let limits = Limits {
        requests: 8,
        bytes: 64 * MIB,
    };
    let mut bench = Bench::new(limits, &[(1, NO_CAPS), (1, NO_CAPS)]);
    (0..9).for_each(|_| bench.ask(0, MIB));
    assert_eq!(
        (bench.held(0).requests, bench.lane(Lane::Reserve).requests),
        (8, 1)
    );
    bench.turns.leave(1);
    assert!(bench.turns.next().is_none());
}
