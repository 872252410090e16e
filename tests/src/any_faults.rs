//! Any fault under any policy, in any order: every completion tells one consistent story, and no success
//! has wrong bytes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use s3engine::{Get, Memory, Policy, Timeouts};
use s3sim::{Action, Rule, content};

use crate::{Rig, contents};

/// Every fault but lies that nobody can see through: bytes claimed and not written, and a shorter or empty
/// object than there is.
fn action() -> impl Strategy<Value = Action> {
    let after = proptest::option::of(0..100_000_u64);
    let after_too = after.clone();
    prop_oneof![
        Just(Action::DeclineWithBody),
        Just(Action::DeclineWithError),
        Just(Action::IgnoreToken),
        Just(Action::IgnoreTokenEmpty),
        (-5..5_i64).prop_map(|delta| Action::WrongBytes {
            value: None,
            delta: Some(delta)
        }),
        Just(Action::MissingBytes),
        Just(Action::MissingReply),
        Just(Action::TokenRejected),
        Just(Action::TokenRejectedAistor),
        Just(Action::RdmaTransferFailed),
        Just(Action::WriteLate { ms: 700 }),
        Just(Action::AnswerLate { ms: 700 }),
        Just(Action::NeverAnswer),
        Just(Action::SlowDown { retry_after: None }),
        (300..600_u16).prop_map(|code| Action::Status {
            code,
            s3_code: None,
            headers: Default::default()
        }),
        after.prop_map(|after| Action::Cut { after }),
        after_too.prop_map(|after| Action::Reset { after }),
        (1..5_i64).prop_map(|delta| Action::WrongLength { delta }),
        (1..9_u64).prop_map(|shift| Action::WrongRange { shift }),
        Just(Action::Swap),
    ]
}

fn rule() -> impl Strategy<Value = Rule> {
    (action(), 0..4_u64, proptest::option::of(1..4_u64)).prop_map(|(action, skip, count)| Rule {
        count,
        ..Rule::new(action).skip(skip)
    })
}

/// Where the bytes are to go.
#[derive(Clone, Copy, Debug)]
enum Destination {
    Engine,
    Given(Memory),
    Fixed(Memory),
}

impl Destination {
    fn memory(self) -> Memory {
        match self {
            Self::Engine => Memory::Host,
            Self::Given(memory) | Self::Fixed(memory) => memory,
        }
    }
}

#[derive(Clone, Debug)]
struct Ask {
    policy: Policy,
    size: u64,
    offset: u64,
    whole: bool,
    into: Destination,
}

/// How a GET asks: for a part of the object, into memory of one of these kinds.
fn ask(kinds: &[Memory]) -> impl Strategy<Value = Ask> {
    let sizes = prop_oneof![1..5000_u64, 60_000..70_000_u64, 100_000..500_000_u64];
    let kind = proptest::sample::select(kinds.to_vec());
    let into = prop_oneof![
        Just(Destination::Engine),
        kind.clone().prop_map(Destination::Given),
        kind.prop_map(Destination::Fixed)
    ];
    let policy = proptest::sample::select(Policy::ALL);
    (policy, sizes, any::<bool>(), into, any::<u64>()).prop_map(
        |(policy, size, whole, into, place)| Ask {
            policy,
            size,
            offset: if whole { 0 } else { place % size },
            whole,
            into,
        },
    )
}

fn get(rig: &Rig, key: &str, ask: &Ask) -> Get {
    let len = ask.size - ask.offset;
    let get = Get::new("bench", key);
    let get = if ask.whole {
        get
    } else {
        get.range(ask.offset, len)
    };
    match ask.into {
        Destination::Engine => get,
        Destination::Given(memory) => get.into(rig.buffer_of(len, memory)),
        Destination::Fixed(memory) => get.into_fixed(rig.buffer_of(len, memory)),
    }
}

fn rig() -> Rig {
    Rig::with([], |builder, _| {
        builder.part_sizes(64 << 10, 128 << 10).timeouts(Timeouts {
            first_byte: Duration::from_millis(500),
            rdma_base: Duration::from_millis(300),
            ..Timeouts::default()
        })
    })
}

/// The test, with buffers in memory of these kinds.
pub fn any_faults_under_any_policy(kinds: &[Memory]) {
    let rig = rig();

    let nth = AtomicU64::new(0);
    let run = |rules: Vec<Rule>, asks: Vec<Ask>| {
        rig.sim.faults().clear();
        for rule in rules {
            rig.sim.faults().push(rule).unwrap();
        }
        for ask in asks {
            let nth = nth.fetch_add(1, Ordering::Relaxed);
            let key = format!("{}-case-{nth}", ask.size);
            let completion = rig.get(ask.policy, get(&rig, &key, &ask));
            if !completion.is_ok() {
                continue;
            }
            assert_eq!(completion.bytes(), ask.size - ask.offset, "{completion:?}");
            let buffer = completion.buffer().unwrap();
            assert_eq!(buffer.memory(), ask.into.memory());
            let data = &contents(buffer)[..completion.bytes() as usize];
            let right =
                (0..4).any(|version| content::verify(&key, version, ask.offset, data).is_ok());
            assert!(right, "bytes of no version: {completion:?}");
        }
    };
    let cases = (
        proptest::collection::vec(rule(), 0..4),
        proptest::collection::vec(ask(kinds), 1..6),
    );
    let config = ProptestConfig {
        cases: 30,
        max_shrink_iters: 50,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    // The same cases every time.
    let dice = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(config, dice);
    let result = runner.run(&cases, |(rules, asks)| {
        run(rules, asks);
        Ok(())
    });
    result.unwrap();
    rig.assert_drains();
}
