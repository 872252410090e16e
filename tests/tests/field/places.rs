//! Where an endpoint is, as people write it.

use s3engine::Policy;
use s3engine_tests::{Hosted, Thing, Verb, on_both_hosts};
use s3sim::{Action, Sim, SimOptions};

use super::{always, ask_all, assert_all, rig, rig_of};

const HTTP: &[Policy] = &[Policy::Http];

fn listed() -> SimOptions {
    SimOptions {
        listed: Thing::listed(),
        ..SimOptions::default()
    }
}

fn redirect(location: &str) -> Action {
    Action::Redirect {
        code: 307,
        location: Some(location.to_owned()),
        region: None,
    }
}

/// Another engine over the rig's server, by a URL of one's own.
fn assert_reaches(host: &Hosted<'_>, url: &str) {
    let sim = &host.rig.sim;
    let keys = s3engine_tests::credentials(sim.access_key(), sim.secret_key());
    let engine = s3engine_tests::quick_builder(url)
        .credentials(keys)
        .part_sizes(64 << 10, 64 << 10)
        .build()
        .unwrap();
    let host = Hosted {
        name: host.name,
        engine: &engine,
        rig: host.rig,
    };
    assert_all(&host, &Verb::ALL, &[Policy::Http]);
}

#[test]
fn r45_slashes_at_the_end_of_an_endpoint_go_nowhere() {
    on_both_hosts(
        || rig(vec![]),
        |host| {
            let url = host.rig.sim.url();
            for end in ["", "/", "//"] {
                assert_reaches(host, &format!("{url}{end}"));
            }
        },
    );
}

#[test]
fn addresses_of_version_6_are_reached() {
    let on_six = SimOptions {
        listen: "[::1]:0".parse().unwrap(),
        ..listed()
    };
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        return println!("skipped: this host has no IPv6");
    }
    on_both_hosts(
        || rig_of(on_six.clone(), |builder| builder),
        |host| assert_all(host, &Verb::ALL, Policy::ALL),
    );
}

#[test]
fn r47_a_bucket_of_another_region_is_found_once_and_remembered() {
    let abroad = SimOptions {
        region: "eu-west-1".to_owned(),
        ..listed()
    };
    on_both_hosts(
        || rig_of(abroad.clone(), |builder| builder),
        |host| {
            assert_all(host, &Verb::ALL, Policy::ALL);
            let before = host.rig.sim.counters().requests;
            let answer = Verb::Piece.ask(host.engine, Policy::Http, &Thing::nth(0));
            answer.unwrap();
            assert_eq!(host.rig.sim.counters().requests, before + 1);
        },
    );
}

#[test]
fn r48_a_redirect_is_followed_as_it_stands_without_what_is_secret() {
    // It would refuse what is signed for another host.
    let other = Sim::start(SimOptions {
        anonymous: true,
        ..listed()
    });
    let other = other.unwrap();
    let to_other = redirect(&other.url());
    on_both_hosts(
        || rig(always(&to_other)),
        |host| {
            let before = other.counters().requests;
            assert_all(host, &Verb::ALL, HTTP);
            let asked = other.counters().requests - before;
            assert!(asked >= Verb::ALL.len() as u64, "{asked}");
        },
    );
}

#[test]
fn r48_a_redirect_to_where_nobody_should_go_is_an_error() {
    for location in [
        "/bench/field/round-and-round",
        "ftp://127.0.0.1/bench/x",
        "http://user:hunter2@127.0.0.1:1/bench/x",
        "http://169.254.169.254/latest/meta-data/",
        "http://0.0.0.0:1/bench/x",
        "http://[fe80::1]/bench/x",
        "http://",
    ] {
        on_both_hosts(
            || rig(always(&redirect(location))),
            |host| {
                ask_all(
                    host,
                    &[Verb::Head, Verb::List, Verb::Given],
                    HTTP,
                    |answer, what| {
                        let line = answer.expect_err(what).to_string();
                        assert!(!line.contains("hunter2"), "{line}");
                    },
                );
                host.rig.sim.faults().clear();
                assert_all(host, &Verb::ALL, HTTP);
            },
        );
    }
}
