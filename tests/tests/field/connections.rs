//! Connections that break, go silent, or were dead before they were used.

use std::thread;
use std::time::{Duration, Instant};

use s3engine::{EngineBuilder, ErrorKind, Phase, Policy, Reason, RetryPolicy, Timeouts};
use s3engine_tests::{PATIENCE, Thing, Verb, on_both_hosts, wait_until};
use s3sim::{Action, Kind, Rule, Sim, SimOptions};

use super::{always, ask_all, assert_none, assert_overcome, first, in_bodies, rig, rig_with};

const HTTP: &[Policy] = &[Policy::Http];
/// Longer than any test.
const FOREVER: u64 = 3_600_000;

/// Waits no longer than this for anything that a server says.
fn brisk(wait: Duration, max_attempts: u32) -> impl Fn(EngineBuilder) -> EngineBuilder {
    move |builder| {
        let retry = RetryPolicy {
            max_attempts,
            base: Duration::from_millis(1),
            ..RetryPolicy::default()
        };
        builder.retry(retry).timeouts(Timeouts {
            first_byte: wait,
            stall: wait,
            rdma_base: wait,
            ..Timeouts::default()
        })
    }
}

fn once(builder: EngineBuilder) -> EngineBuilder {
    builder.threads(1).retry(RetryPolicy {
        max_attempts: 1,
        ..RetryPolicy::default()
    })
}

#[test]
fn r19_a_connection_that_was_closed_as_the_request_came_costs_no_attempt() {
    for action in [Action::Reset { after: None }, Action::Cut { after: None }] {
        for verb in Verb::ALL {
            on_both_hosts(
                || rig_with(vec![], once),
                |host| {
                    verb.ask(host.engine, Policy::Http, &Thing::nth(0)).unwrap();
                    let faults = host.rig.sim.faults();
                    for rule in first(1, always(&action)) {
                        faults.push(rule).unwrap();
                    }
                    let answer = verb.ask(host.engine, Policy::Http, &Thing::nth(0));
                    answer.unwrap_or_else(|error| panic!("{verb:?}, {}: {error}", host.name));
                    assert!(host.rig.sim.counters().faults >= 1);
                },
            );
        }
    }
}

#[test]
fn r20_a_connection_that_is_dead_is_not_used() {
    // Each answer is honest, and the end that nobody announced follows it.
    let hangs_up = Action::Cut {
        after: Some(u64::MAX),
    };
    for verb in Verb::ALL {
        on_both_hosts(
            || rig_with(always(&hangs_up), once),
            |host| {
                for _ in 0..3 {
                    let answer = verb.ask(host.engine, Policy::Http, &Thing::nth(0));
                    answer.unwrap_or_else(|error| panic!("{verb:?}, {}: {error}", host.name));
                }
            },
        );
    }
}

#[test]
fn r22_every_verb_ends_by_its_deadline_and_says_what_it_waited_for() {
    for action in [
        Action::NeverAnswer,
        Action::Stall {
            after: Some(10),
            ms: FOREVER,
        },
        Action::SlowDown {
            retry_after: Some(3600),
        },
    ] {
        let impatient = |builder: EngineBuilder| builder.deadline(Duration::from_millis(400));
        // A HEAD has no body that could stall.
        let verbs = match action {
            Action::Stall { .. } => vec![Verb::List, Verb::Given, Verb::Piece],
            _ => vec![Verb::Head, Verb::List, Verb::Given, Verb::Piece],
        };
        on_both_hosts(
            || rig_with(always(&action), impatient),
            |host| {
                ask_all(host, &verbs, HTTP, |answer, what| {
                    let error = answer.expect_err(what);
                    assert_eq!(error.reason(), Reason::Deadline, "{what}: {error}");
                    let line = error.to_string();
                    assert!(
                        line.contains("attempt") && !line.contains('\n'),
                        "{what}: {line}"
                    );
                });
            },
        );
    }
}

#[test]
fn r23_a_server_that_goes_silent_in_the_middle_is_given_up() {
    let stall = Action::Stall {
        after: Some(10),
        ms: FOREVER,
    };
    let verbs = [Verb::List, Verb::Given, Verb::Piece];
    // Long enough for honest heads on a busy host.
    let second = Duration::from_secs(1);
    on_both_hosts(
        || rig_with(in_bodies(&stall), brisk(second, 1)),
        |host| {
            ask_all(host, &verbs, HTTP, |answer, what| {
                let error = answer.expect_err(what);
                let phase = match error.kind() {
                    ErrorKind::Timeout { phase, .. } => Some(*phase),
                    _ => None,
                };
                assert_eq!(phase, Some(Phase::Body), "{what}: {error}");
            });
        },
    );
    let once = first(1, in_bodies(&stall));
    on_both_hosts(
        || rig_with(vec![], brisk(2 * second, 5)),
        |host| assert_overcome(host, &[Verb::List, Verb::Given], HTTP, &once),
    );
}

#[test]
fn r25_resets_are_overcome_by_every_verb() {
    for after in [None, Some(0), Some(100)] {
        let action = Action::Reset { after };
        let head = Rule::new(action.clone()).only(Kind::Head);
        let rules = [in_bodies(&action), vec![head]].concat();
        // A HEAD has no bytes after which it could break.
        let verbs = match after {
            None => vec![Verb::Head, Verb::List, Verb::Whole, Verb::Piece],
            Some(_) => vec![Verb::List, Verb::Whole, Verb::Piece],
        };
        on_both_hosts(
            || rig(rules.clone()),
            |host| {
                assert_none(host, &verbs, HTTP);
                let twice = first(2, rules.clone());
                assert_overcome(host, &verbs, HTTP, &twice);
                let of_rdma = Rule::new(action.clone()).only(Kind::Rdma).count(1);
                let policies = [Policy::RequireRdma, Policy::PreferRdma];
                assert_overcome(host, &Verb::OF_PARTS, &policies, &[of_rdma]);
            },
        );
    }
}

#[test]
fn r25_a_server_that_comes_back_is_found_by_who_still_asks() {
    for verb in [Verb::Head, Verb::List, Verb::Given] {
        let patient = |builder: EngineBuilder| {
            builder.retry(RetryPolicy {
                max_attempts: 1000,
                base: Duration::from_millis(5),
                cap: Duration::from_millis(20),
                budget: 1000,
            })
        };
        on_both_hosts(
            || rig_with(vec![], patient),
            |host| {
                // The port of a server that has ended; nobody but the next one listens there.
                let listed = Thing::listed();
                let options = SimOptions {
                    listed,
                    ..SimOptions::default()
                };
                let address = Sim::start(options.clone()).unwrap().addr();
                let engine = s3engine_tests::quick_builder(&format!("http://{address}"))
                    .credentials(s3engine_tests::credentials("s3sim", "s3simsecret"))
                    .part_sizes(64 << 10, 64 << 10);
                let engine = patient(engine).build().unwrap();
                let began = Instant::now();
                thread::scope(|scope| {
                    let asked = scope.spawn(|| verb.ask(&engine, Policy::Http, &Thing::nth(0)));
                    thread::sleep(Duration::from_millis(50));
                    let mut sim = None;
                    wait_until("the port is free", || {
                        let listen = address;
                        sim = Sim::start(SimOptions {
                            listen,
                            ..options.clone()
                        })
                        .ok();
                        sim.is_some()
                    });
                    asked.join().unwrap().unwrap();
                });
                assert!(began.elapsed() < PATIENCE, "{}", host.name);
            },
        );
    }
}
