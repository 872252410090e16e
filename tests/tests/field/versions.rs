//! Objects that change while they are read.

use s3engine::{ErrorKind, Get, Memory, Policy, Reason};
use s3engine_tests::{Thing, Verb, block_on, on_both_hosts};
use s3sim::{Action, Kind, Rule};

use super::rig;

/// The ways to bytes, and what requests on each of them are called.
const WAYS: [(Policy, Kind); 2] = [
    (Policy::Http, Kind::Http),
    (Policy::RequireRdma, Kind::Rdma),
];

/// That every GET of several requests notices a change at its second one, and that the next gets the new version.
fn assert_noticed(action: &Action) {
    for (policy, kind) in WAYS {
        for verb in Verb::OF_PARTS {
            let rule = || Rule::new(action.clone()).only(kind).skip(1).count(1);
            on_both_hosts(
                || rig(vec![rule()]),
                |host| {
                    let what = format!("{verb:?} under {policy}, {}", host.name);
                    let key = Thing::nth(0).key;
                    let answer = verb.ask(host.engine, policy, &Thing::nth(0));
                    let error = answer.expect_err(&what);
                    assert_eq!(error.reason(), Reason::Modified, "{what}: {error}");
                    assert!(matches!(error.kind(), ErrorKind::Modified { .. }), "{what}");
                    let now = Thing::synthetic(&key, 1);
                    verb.ask(host.engine, policy, &now).expect(&what);
                },
            );
        }
    }
}

#[test]
fn r1_an_object_overwritten_between_its_ranges_is_never_mixed() {
    assert_noticed(&Action::Swap);
}

#[test]
fn r2_a_server_that_ignores_if_match_mixes_nothing_either() {
    assert_noticed(&Action::IgnoreIfMatch { swap: true });
}

#[test]
fn r1_an_opened_object_that_is_overwritten_is_an_error_from_then_on() {
    for action in [Action::Swap, Action::IgnoreIfMatch { swap: true }] {
        for (policy, kind) in WAYS {
            let rule = || Rule::new(action.clone()).only(kind).skip(4).count(1);
            on_both_hosts(
                || rig(vec![rule()]),
                |host| {
                    let thing = Thing::nth(0);
                    let opened = block_on(host.engine.open("bench", &thing.key)).unwrap();
                    let whole = || {
                        let len = thing.bytes.len() as u64;
                        let buffer = host.engine.pool().try_alloc(len, Memory::Host).unwrap();
                        block_on(
                            host.engine
                                .get(Get::of(&opened).into(buffer).policy(policy)),
                        )
                    };
                    assert!(whole().data() == Some(&thing.bytes));
                    let changed = whole();
                    assert_eq!(changed.reason(), Reason::Modified, "{changed:?}");
                    assert!(changed.bytes() == 0 && changed.data().unwrap_or_default().is_empty());
                },
            );
        }
    }
}
