//! What is tried again, what goes on where it broke off, what an error tells of it, and what waits: embedded, and
//! through the host service.

use std::time::Duration;

use cuda_standin::with_standin;
use s3engine::cuda::STAGING_CHUNK;
use s3engine::{
    Engine, Error, ErrorKind, Flags, Get, ListQuery, Memory, Outstanding, Phase, Policy,
    PoolOptions, RetryPolicy, Timeouts,
};
use s3engine_tests::{PATIENCE, Rig, ServiceRig, assert_invariants, block_on, wait_until};
use s3sim::{Action, Kind, Rule, content};

const KEY: &str = "1MiB-again";
const SIZE: u64 = 1 << 20;

/// Runs a check on an engine of this process and on a client of a host service, each over a server of its own.
fn both(rig: impl Fn() -> Rig, check: impl Fn(&Engine, &Rig)) {
    let embedded = rig();
    check(&embedded.engine, &embedded);
    embedded.assert_drains();
    let host = ServiceRig::with(rig(), |_| {});
    let client = host.client();
    check(&client, &host.rig);
    drop(client);
    host.assert_drains();
}

fn buffered(engine: &Engine, key: &str, len: u64) -> Get {
    let buffer = engine.pool().alloc(len, Memory::Host, PATIENCE).unwrap();
    Get::new("bench", key).into(buffer).policy(Policy::Http)
}

fn error_of(engine: &Engine, get: Get) -> Error {
    let completion = block_on(engine.get(get));
    assert_invariants(&completion, Policy::Http);
    completion.result().map(drop).unwrap_err()
}

#[test]
fn r24_a_server_that_cuts_every_answer_is_read_to_the_end() {
    // Anew from the beginning each time, it would never come further.
    for action in [
        Action::Cut {
            after: Some(300_000),
        },
        Action::Reset {
            after: Some(300_000),
        },
    ] {
        let rig = || Rig::new([Rule::new(action.clone()).only(Kind::Http)]);
        both(rig, |engine, rig| {
            for get in [
                buffered(engine, KEY, SIZE),
                // Whole, into more than it needs; and a range of it.
                buffered(engine, KEY, 2 * SIZE),
                Get::new("bench", KEY).policy(Policy::Http),
            ] {
                let completion = block_on(engine.get(get));
                assert_invariants(&completion, Policy::Http);
                assert_eq!(completion.bytes(), SIZE, "{action:?}: {completion:?}");
                content::verify(KEY, 0, 0, completion.data().unwrap()).unwrap();
            }
            let range = buffered(engine, KEY, SIZE).range(100, SIZE - 200);
            let completion = block_on(engine.get(range));
            assert_eq!(completion.bytes(), SIZE - 200, "{completion:?}");
            content::verify(KEY, 0, 100, completion.data().unwrap()).unwrap();
            assert!(rig.sim.counters().faults >= 12);
        });
    }
}

#[test]
fn r24_bytes_whose_copies_to_a_device_have_ended_are_kept() {
    with_standin(|| {
        let chunk = STAGING_CHUNK as u64;
        let cut = Action::Cut {
            after: Some(chunk + 1000),
        };
        let rig = Rig::with([Rule::new(cut).only(Kind::Http)], |builder, _| {
            builder.part_sizes(64 << 20, 64 << 20).pool(PoolOptions {
                slab_bytes: 4 * chunk,
                max_cuda_bytes: Some(16 * chunk),
                ..PoolOptions::default()
            })
        });
        let size = 3 * chunk + 7;
        let key = format!("{size}-device");
        let memory = Memory::cuda(0).unwrap();
        let buffer = rig.engine.pool().alloc(size, memory, PATIENCE).unwrap();
        let completion = rig.get(Policy::Http, Get::new("bench", &*key).into(buffer));
        assert_eq!(completion.bytes(), size, "{completion:?}");
        assert!(completion.flags().contains(Flags::STAGED));
        s3engine_tests::assert_holds(&completion, &key, 0);
    });
}

#[test]
fn r1_an_object_replaced_while_a_part_breaks_off_is_never_a_mix() {
    let cut = Action::Cut {
        after: Some(300_000),
    };
    let rig = || {
        Rig::new([
            Rule::new(cut.clone()).only(Kind::Http).count(1),
            Rule::new(Action::Swap).only(Kind::Http).count(1),
        ])
    };
    both(rig, |engine, _| {
        let error = error_of(engine, buffered(engine, KEY, SIZE));
        assert!(
            matches!(error.kind(), ErrorKind::Modified { .. }),
            "{error}"
        );
    });
}

#[test]
fn r23_a_body_that_drips_is_given_up() {
    let drip = Action::Trickle { bytes: 1, ms: 20 };
    let rig = || {
        Rig::with([Rule::new(drip.clone()).only(Kind::Http)], |builder, _| {
            builder.timeouts(Timeouts {
                stall: Duration::from_millis(300),
                ..Timeouts::default()
            })
        })
    };
    both(rig, |engine, _| {
        let error = error_of(engine, buffered(engine, KEY, SIZE));
        assert!(
            matches!(
                error.kind(),
                ErrorKind::Timeout {
                    phase: Phase::Body,
                    ..
                }
            ),
            "{error}"
        );
    });
}

#[test]
fn r30_r53_an_error_tells_each_attempt_and_the_service_tells_the_same() {
    let busy = Action::SlowDown { retry_after: None };
    both(
        || Rig::new([Rule::new(busy.clone())]),
        |engine, rig| {
            let of_get = error_of(engine, buffered(engine, KEY, SIZE));
            let of_head = block_on(engine.head("bench", KEY)).unwrap_err();
            for error in [of_get, of_head] {
                let attempts = error.history().attempts();
                assert_eq!(attempts.len(), 3, "{error:#}");
                let address = rig.sim.url().replace("http://", "").parse().ok();
                for (attempt, number) in attempts.iter().zip(1..) {
                    assert_eq!(attempt.number, number);
                    assert_eq!(attempt.phase, Some(Phase::FirstByte));
                    assert_eq!(attempt.address, address);
                    assert!(attempt.what.starts_with("503"), "{attempt}");
                }
                assert!(attempts.is_sorted_by_key(|attempt| attempt.began));
                assert!(
                    format!("{error:#}").contains("\n  attempt 3 at "),
                    "{error:#}"
                );
            }
        },
    );
}

#[test]
fn a_spent_budget_is_told_and_successes_fill_it_again() {
    let rig = || {
        let busy = Rule::new(Action::SlowDown { retry_after: None });
        Rig::with([busy.key("*busy")], |builder, _| {
            builder.retry(RetryPolicy {
                base: Duration::from_millis(1),
                budget: 3,
                ..RetryPolicy::default()
            })
        })
    };
    both(rig, |engine, _| {
        let failed = || error_of(engine, buffered(engine, "64KiB-busy", 64 << 10));
        let first = failed();
        assert!(!first.is_budget_spent() && first.attempt() == 3, "{first}");
        let second = failed();
        assert!(
            second.is_budget_spent() && second.attempt() == 2,
            "{second}"
        );
        assert!(second.to_string().ends_with(", retry budget spent"));
        assert_eq!(failed().attempt(), 1);
        // Five of them are worth one retry.
        for _ in 0..5 {
            let get = buffered(engine, "64KiB-fine", 64 << 10);
            assert!(block_on(engine.get(get)).is_ok());
        }
        assert_eq!(failed().attempt(), 2);
    });
}

/// Waits until one of the requests that are outstanding is told like that.
fn told(engine: &Engine, what: &str, is: impl Fn(&Outstanding) -> bool) {
    wait_until(what, || {
        let all = block_on(engine.outstanding()).unwrap();
        all.iter().any(&is)
    });
}

#[test]
fn r22_what_every_request_waits_for_can_be_asked() {
    let stall = Action::Stall {
        after: Some(100_000),
        ms: 600_000,
    };
    let later = Action::SlowDown {
        retry_after: Some(20),
    };
    let rig = || {
        Rig::new([
            Rule::new(stall.clone()).only(Kind::Http).key("*stalled"),
            Rule::new(Action::NeverAnswer).only(Kind::Head),
            Rule::new(Action::NeverAnswer).only(Kind::List),
            Rule::new(later.clone()).only(Kind::Http).key("*busy"),
        ])
    };
    both(rig, |engine, _| {
        let stalled = engine.get(buffered(engine, "1MiB-stalled", SIZE));
        told(engine, "the body", |one| {
            one.operation == "GET"
                && one.key == "1MiB-stalled"
                && one
                    .waits_for
                    .starts_with("the body: 100000 bytes of 1048576, ")
        });
        let busy = engine.get(buffered(engine, "64KiB-busy", 64 << 10));
        told(engine, "the next attempt", |one| {
            one.key == "64KiB-busy"
                && one.waits_for.starts_with("the next attempt in ")
                && one.waits_for.contains("attempt 1 of 3: 503 SlowDown")
        });
        drop((stalled, busy));
        // Of requests without a buffer, through the runtime that asks for them.
        block_on(async {
            let mut pages = engine.list("bench", ListQuery::default());
            let asking = async { tokio::join!(pages.next(), engine.head("bench", KEY)) };
            let seen = async {
                loop {
                    let all = engine.outstanding().await.unwrap();
                    let waits = |operation| {
                        let mut of = all.iter().filter(|one| one.operation == operation);
                        of.any(|one| one.waits_for.starts_with("the server's answer, for "))
                    };
                    if waits("HEAD") && waits("LIST") {
                        return;
                    }
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            tokio::select! {
                _ = asking => panic!("nobody answers"),
                () = seen => {}
            }
        });
        wait_until("nothing is outstanding", || {
            block_on(engine.outstanding()).unwrap().is_empty()
        });
    });
}
