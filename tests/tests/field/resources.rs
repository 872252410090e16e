//! Memory, and servers that have too much to do.

use std::thread;
use std::time::Duration;

use s3engine::{EngineBuilder, Get, Limits, Memory, Policy, QueueOptions, RetryPolicy};
use s3engine_tests::{PATIENCE, Thing, Verb, on_both_hosts, wait_until};
use s3sim::{Action, Kind, Rule};

use super::{rig, rig_with};

#[test]
fn r26_a_consumer_that_is_slow_and_then_fast_gets_everything() {
    on_both_hosts(
        || rig(vec![]),
        |host| {
            // More than the pool has memory for at a time: later GETs wait for what earlier ones hold.
            let mut queue = host.engine.queue(QueueOptions { capacity: 256 });
            for nth in 0..256 {
                let key = format!("{}-slow", 150_000 + nth);
                queue
                    .push(Get::new("bench", key).policy(Policy::Http))
                    .unwrap();
            }
            queue.submit();
            let mut ended = 0;
            while let Some(end) = queue.next(PATIENCE).unwrap() {
                assert!(end.is_ok(), "{}: {end:?}", host.name);
                if ended < 20 {
                    thread::sleep(Duration::from_millis(5));
                }
                ended += 1;
            }
            assert_eq!(ended, 256);
        },
    );
}

#[test]
fn r28_many_clients_bear_a_server_that_asks_them_to_slow_down() {
    let slow = |kind, passed, n| {
        let action = Action::SlowDown { retry_after: None };
        Rule::new(action).only(kind).skip(passed).count(n)
    };
    let rules = || {
        vec![
            slow(Kind::Http, 5, 20),
            slow(Kind::Head, 2, 5),
            slow(Kind::List, 0, 3),
        ]
    };
    // Every attempt of one request may meet one of the faults.
    let stubborn = |builder: EngineBuilder| {
        builder.retry(RetryPolicy {
            max_attempts: 40,
            base: Duration::from_millis(1),
            cap: Duration::from_millis(10),
            ..RetryPolicy::default()
        })
    };
    on_both_hosts(
        || rig_with(rules(), stubborn),
        |host| {
            thread::scope(|scope| {
                for of in 0..4 {
                    scope.spawn(move || {
                        for (nth, verb) in Verb::ALL.into_iter().enumerate() {
                            let thing = Thing::nth((5 * of + nth) % 20);
                            let answer = verb.ask(host.engine, Policy::Http, &thing);
                            answer.unwrap_or_else(|error| panic!("{verb:?}: {error}"));
                        }
                    });
                }
            });
            assert_eq!(host.rig.sim.counters().faults, 28, "{}", host.name);
        },
    );
}

#[test]
fn r61_memory_does_not_grow_from_epoch_to_epoch() {
    on_both_hosts(
        || rig(vec![]),
        |host| {
            let epoch = || {
                for nth in 0..20 {
                    for verb in [Verb::Whole, Verb::Given, Verb::Range] {
                        verb.ask(host.engine, Policy::Http, &Thing::nth(nth))
                            .unwrap();
                    }
                }
                let pool = host.engine.pool();
                wait_until("all memory is back", || pool.stats().leased == 0);
                pool.stats().mapped
            };
            // As many slabs as it takes while others are on their way back.
            let warm = (0..8).map(|_| epoch()).max().unwrap();
            for _ in 0..8 {
                let now = epoch();
                assert!(now <= warm + (4 << 20), "{}: {now} after {warm}", host.name);
            }
            // Memory that is dropped while its GET runs comes back too.
            let buffer = host.engine.pool().try_alloc(200_003, Memory::Host).unwrap();
            let get = Get::new("bench", Thing::nth(0).key).into(buffer);
            drop(host.engine.get(get));
        },
    );
}

#[test]
fn r35_a_request_reserves_what_its_object_has_and_not_what_a_part_may_have() {
    let held = Rule::new(Action::NeverAnswer).key("*-held");
    // Far less than one part may have.
    let bounded = |builder: EngineBuilder| {
        let limits = Limits {
            bytes: 4 << 20,
            ..Limits::default()
        };
        builder.part_sizes(999 << 20, 999 << 20).limits(limits)
    };
    on_both_hosts(
        || rig_with(vec![held.clone()], bounded),
        |host| {
            let gets: Vec<_> = (0..20)
                .map(|nth| {
                    let buffer = host.engine.pool().try_alloc(20_000, Memory::Host).unwrap();
                    let key = format!("20000-{nth}-held");
                    let get = Get::new("bench", key).policy(Policy::Http).into(buffer);
                    host.engine.get(get)
                })
                .collect();
            wait_until("all are asked for at once", || {
                host.rig.sim.counters().faults == 20
            });
            drop(gets);
        },
    );
}
