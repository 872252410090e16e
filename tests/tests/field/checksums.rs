//! Checksums that servers keep with objects.

use s3engine::{Algorithm, ChecksumMode, Policy, Unverified, Verified};
use s3engine_tests::{Hosted, Rig, Thing, Verb, on_both_hosts};
use s3sim::{Action, Checksum, Kind, Rule, SimOptions};

use super::{assert_all, rig_of};

const HTTP: &[Policy] = &[Policy::Http];

/// Those that come in one request or more, and are the whole of their object.
const WHOLE: [Verb; 3] = [Verb::Whole, Verb::Given, Verb::Fixed];

fn rig(checksum: &str, rules: Vec<Rule>) -> Rig {
    let checksum: Checksum = checksum.parse().unwrap();
    let options = SimOptions {
        faults: rules,
        listed: Thing::listed(),
        checksum: Some(checksum),
        ..SimOptions::default()
    };
    rig_of(options, |builder| builder)
}

fn verified(host: &Hosted<'_>, verb: Verb, thing: &Thing) -> Verified {
    let end = verb.get(host.engine, Policy::Http, thing);
    end.unwrap_or_else(|error| panic!("{verb:?}, {}: {error}", host.name))
        .verified()
}

#[test]
fn sums_of_whole_objects_are_checked_by_every_algorithm_that_can_be() {
    for (name, algorithm) in [
        ("crc32", Algorithm::Crc32),
        ("crc32c", Algorithm::Crc32c),
        ("crc64nvme", Algorithm::Crc64Nvme),
        ("sha1", Algorithm::Sha1),
        ("sha256", Algorithm::Sha256),
    ] {
        on_both_hosts(
            || rig(name, vec![]),
            |host| {
                assert_all(host, &Verb::ALL, Policy::ALL);
                let one = Thing::synthetic("field/3001-one-request", 0);
                for verb in WHOLE {
                    assert_eq!(verified(host, verb, &one), Verified::Verified(algorithm));
                    let expected = match algorithm.joins() {
                        true => Verified::Verified(algorithm),
                        false => Verified::NotVerified(Unverified::Parts),
                    };
                    assert_eq!(verified(host, verb, &Thing::nth(0)), expected, "{name}");
                }
                let range = verified(host, Verb::Range, &Thing::nth(0));
                assert_eq!(range, Verified::NotVerified(Unverified::Range), "{name}");
            },
        );
    }
}

#[test]
fn r57_a_sum_of_parts_is_no_sum_of_the_object_with_or_without_its_suffix() {
    for name in ["crc32:composite", "sha256:composite"] {
        // As servers are that say nothing of the type.
        let without_type = Action::Headers {
            set: Default::default(),
            drop: vec!["x-amz-checksum-type".to_owned()],
        };
        for rules in [vec![], vec![Rule::new(without_type)]] {
            on_both_hosts(
                || rig(name, rules.clone()),
                |host| {
                    assert_all(host, &Verb::ALL, Policy::ALL);
                    for verb in Verb::GETS {
                        let verified = verified(host, verb, &Thing::nth(0));
                        assert!(
                            matches!(verified, Verified::NotVerified(_)),
                            "{name}: {verb:?}"
                        );
                    }
                },
            );
        }
    }
}

#[test]
fn r58_servers_without_checksums_are_read_unless_one_is_required() {
    let required = |mode| {
        let options = SimOptions {
            listed: Thing::listed(),
            ..SimOptions::default()
        };
        rig_of(options, move |builder| builder.checksum(mode))
    };
    for mode in [ChecksumMode::Off, ChecksumMode::WhenOffered] {
        on_both_hosts(
            || required(mode),
            |host| assert_all(host, &Verb::ALL, Policy::ALL),
        );
    }
    on_both_hosts(
        || required(ChecksumMode::Required),
        |host| super::assert_none(host, &Verb::GETS, Policy::ALL),
    );
}

#[test]
fn r59_each_attempt_is_summed_from_its_own_beginning() {
    // Half of a part comes twice: a sum that went on would count it twice.
    for action in [
        Action::Flip { at: 100 },
        Action::Cut {
            after: Some(30_000),
        },
        Action::Reset {
            after: Some(30_000),
        },
        Action::SlowDown { retry_after: None },
    ] {
        on_both_hosts(
            || {
                rig(
                    "crc64nvme",
                    vec![Rule::new(action.clone()).only(Kind::Http).count(4)],
                )
            },
            |host| {
                for verb in WHOLE {
                    let verified = verified(host, verb, &Thing::nth(0));
                    assert_eq!(
                        verified,
                        Verified::Verified(Algorithm::Crc64Nvme),
                        "{action:?}"
                    );
                }
            },
        );
    }
}

#[test]
fn bytes_that_are_not_those_that_were_stored_are_an_error() {
    for (action, policies) in [
        (Action::Flip { at: 100_000 }, HTTP),
        (Action::Flip { at: 200_002 }, &[Policy::RequireRdma]),
        (Action::WrongChecksum, Policy::ALL),
    ] {
        on_both_hosts(
            || rig("crc32c", vec![Rule::new(action.clone())]),
            |host| {
                super::assert_none(host, &WHOLE, policies);
                // What is not of them is not spoilt.
                host.rig.sim.faults().clear();
                assert_all(host, &Verb::ALL, Policy::ALL);
            },
        );
    }
}
