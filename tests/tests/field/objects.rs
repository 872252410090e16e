//! Objects that are empty, and names that are odd.

use std::collections::BTreeMap;

use s3engine::{Get, ListQuery, Memory, Policy};
use s3engine_tests::{ODD_KEYS, Thing, Verb, block_on, keys_and_prefixes, on_both_hosts};
use s3sim::{Action, Kind, Rule};

use super::{ask_all, assert_all, rig};

fn refused(headers: &[(&str, &str)]) -> Action {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    Action::Status {
        code: 416,
        s3_code: Some("InvalidRange".to_owned()),
        headers: headers.iter().map(owned).collect(),
    }
}

#[test]
fn r12_an_empty_object_is_a_success_however_a_server_refuses_its_range() {
    let thing = Thing::synthetic("field/0-empty", 0);
    for rules in [
        vec![],
        vec![Rule::new(refused(&[])).only(Kind::Http)],
        vec![Rule::new(refused(&[("content-range", "bytes */0")])).only(Kind::Http)],
    ] {
        on_both_hosts(
            || rig(rules.clone()),
            |host| {
                for verb in [Verb::Head, Verb::Whole, Verb::Given, Verb::Fixed] {
                    let answer = verb.ask(host.engine, Policy::Http, &thing);
                    answer.unwrap_or_else(|error| panic!("{verb:?} of {rules:?}: {error}"));
                }
                // Where there is room for many requests' worth.
                let buffer = host.engine.pool().try_alloc(300_000, Memory::Host).unwrap();
                let get = Get::new("bench", &*thing.key)
                    .policy(Policy::Http)
                    .into(buffer);
                let end = block_on(host.engine.get(get));
                assert!(end.is_ok() && end.bytes() == 0, "{rules:?}: {end:?}");
            },
        );
    }
}

#[test]
fn r12_an_object_that_is_not_empty_is_none_whatever_a_server_says_of_ranges() {
    let action = refused(&[]);
    on_both_hosts(
        || rig(vec![Rule::new(action.clone()).only(Kind::Http)]),
        |host| super::assert_none(host, &Verb::GETS, &[Policy::Http]),
    );
}

#[test]
fn r44_keys_are_signed_and_sent_as_they_are() {
    on_both_hosts(
        || rig(vec![]),
        |host| {
            let long = format!("{}/64-x", "long/".repeat(200));
            for key in ODD_KEYS.into_iter().chain([&*long]) {
                let thing = Thing::synthetic(key, 0);
                let verbs = Verb::GETS.into_iter().chain([Verb::Head]);
                for (verb, policy) in verbs.zip(Policy::ALL.iter().cycle()) {
                    let answer = verb.ask(host.engine, *policy, &thing);
                    answer.unwrap_or_else(|error| panic!("{verb:?} of {key:?}: {error}"));
                }
                // A prefix is sent as a key is.
                let query = ListQuery {
                    prefix: key.to_owned(),
                    delimiter: Some("/ +%".to_owned()),
                    start_after: Some("é +%2B".to_owned()),
                    ..ListQuery::default()
                };
                let found = keys_and_prefixes(host.engine, "bench", query);
                assert_eq!(found, (vec![], vec![]), "{key:?}");
            }
        },
    );
}

#[test]
fn r47_a_redirect_that_leads_nowhere_is_never_a_success() {
    let region = |code| Action::Redirect {
        code,
        location: None,
        region: None,
    };
    let bare = |code| Action::Status {
        code,
        s3_code: None,
        headers: BTreeMap::new(),
    };
    for action in [
        region(301),
        region(307),
        region(400),
        bare(300),
        bare(302),
        bare(304),
    ] {
        on_both_hosts(
            || rig(super::always(&action)),
            |host| {
                super::assert_none(host, &[Verb::Head, Verb::List, Verb::Given], Policy::ALL);
                host.rig.sim.faults().clear();
                assert_all(host, &Verb::ALL, Policy::ALL);
            },
        );
    }
}

#[test]
fn r7_a_range_tells_the_size_of_its_object_and_not_its_own() {
    on_both_hosts(
        || rig(vec![]),
        |host| {
            for verb in Verb::GETS {
                for &policy in Policy::ALL {
                    let thing = Thing::nth(0);
                    let end = verb.get(host.engine, policy, &thing).unwrap();
                    assert_eq!(end.info().size, Some(200_003), "{verb:?}: {end:?}");
                }
            }
        },
    );
}

#[test]
fn r8_r64_bytes_beyond_four_gigabytes_and_five_terabytes_are_where_they_should_be() {
    let decline = Rule::new(Action::DeclineWithError).key("*-declined");
    on_both_hosts(
        || rig(vec![decline.clone()]),
        |host| {
            for (key, offset) in [
                ("5GiB-x", (1 << 32) - 50_000),
                ("5GiB-x", (5 << 30) - 100_000),
                ("5GiB-declined", (1 << 32) + 1),
                ("6TiB-x", (5 << 40) + 12_345),
                ("6TiB-declined", (6 << 40) - 100_000),
            ] {
                let size = s3sim::content::size_of_key(key);
                let info = block_on(host.engine.head("bench", key)).unwrap();
                assert_eq!(info.size, size);
                let policies: &[Policy] = match key.ends_with("declined") {
                    true => &[Policy::PreferRdma],
                    false => Policy::ALL,
                };
                for &policy in policies {
                    let get = Get::new("bench", key).range(offset, 100_000).policy(policy);
                    let end = block_on(host.engine.get(get));
                    assert_eq!(
                        (end.bytes(), end.info().size),
                        (100_000, size),
                        "{key}: {end:?}"
                    );
                    s3sim::content::verify(key, 0, offset, end.data().unwrap()).unwrap();
                }
            }
        },
    );
}

#[test]
fn r9_r14_ranges_that_no_object_has_are_refused_and_those_of_nothing_are_nothing() {
    on_both_hosts(
        || rig(vec![]),
        |host| {
            let key = Thing::nth(0).key;
            let before = host.rig.sim.counters().requests;
            for &policy in Policy::ALL {
                for (offset, len) in [(u64::MAX - 10, 100), (u64::MAX, 1), (10, u64::MAX)] {
                    let get = Get::new("bench", &*key).range(offset, len).policy(policy);
                    let end = block_on(host.engine.get(get));
                    assert!(!end.is_ok() && end.bytes() == 0, "{offset} {len}: {end:?}");
                }
                for offset in [0, 7, 200_003, u64::MAX] {
                    let get = Get::new("bench", &*key).range(offset, 0).policy(policy);
                    let end = block_on(host.engine.get(get));
                    assert!(end.is_ok() && end.bytes() == 0, "{offset}: {end:?}");
                }
            }
            assert_eq!(host.rig.sim.counters().requests, before, "nothing is asked");
        },
    );
}

#[test]
fn r15_objects_with_a_weak_tag_or_none_are_read() {
    let tagged = |tag: Option<&str>| Action::Headers {
        set: tag
            .map(|tag| ("etag".to_owned(), tag.to_owned()))
            .into_iter()
            .collect(),
        drop: vec!["ETag".to_owned()],
    };
    let untagged = vec![Rule::new(tagged(None))];
    on_both_hosts(
        || rig(untagged.clone()),
        |host| {
            ask_all(host, &Verb::ALL, Policy::ALL, |answer, what| {
                // Nothing would show that parts are of one object.
                let Err(error) = answer else { return };
                let line = error.to_string();
                assert!(
                    line.contains("neither an ETag nor a version"),
                    "{what}: {line}"
                );
            });
        },
    );
    for action in [tagged(Some("W/\"1\"")), tagged(Some("W/no quotes"))] {
        on_both_hosts(
            || rig(vec![Rule::new(action.clone())]),
            |host| assert_all(host, &Verb::ALL, Policy::ALL),
        );
    }
}
