//! Keys that end, and clocks that are wrong.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use aws_credential_types::provider::{ProvideCredentials, future};
use s3engine::{Credentials, Policy};
use s3engine_tests::{Thing, Verb, on_both_hosts};
use s3sim::{Action, SimOptions};

use super::{always, assert_all, first, rig_of, rig_with};

/// Gives the simulator's keys, with another token each time.
#[derive(Clone, Debug, Default)]
struct Keys(Arc<AtomicU64>);

impl ProvideCredentials for Keys {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        let nth = self.0.fetch_add(1, Ordering::Relaxed);
        let token = Some(format!("token-{nth}"));
        let keys =
            aws_credential_types::Credentials::new("s3sim", "s3simsecret", token, None, "test");
        future::ProvideCredentials::ready(Ok(keys))
    }
}

#[test]
fn r40_keys_that_have_ended_are_fetched_anew_and_the_request_is_sent_again() {
    let ended = Action::Status {
        code: 400,
        s3_code: Some("ExpiredToken".to_owned()),
        headers: BTreeMap::new(),
    };
    let bodies = [&[Verb::List][..], &Verb::GETS].concat();
    for verb in bodies {
        let keys = Keys::default();
        on_both_hosts(
            || {
                let keys = Credentials::from_provider("test", keys.clone());
                rig_with(first(1, always(&ended)), move |builder| {
                    builder.credentials(keys.clone())
                })
            },
            |host| {
                let fetched = || keys.0.load(Ordering::Relaxed);
                // The first GET of an object may be its HEAD, whose answer cannot name the cause.
                let answer = verb.ask(host.engine, Policy::Http, &Thing::nth(0));
                answer.unwrap_or_else(|error| panic!("{verb:?}, {}: {error}", host.name));
                assert!(fetched() >= 2, "{verb:?}: fetched {} times", fetched());
            },
        );
    }
}

#[test]
fn r43_a_wrong_clock_is_made_up_for_in_every_request_and_again_when_it_is_put_right() {
    let options = |clock_offset| SimOptions {
        clock_offset,
        listed: Thing::listed(),
        ..SimOptions::default()
    };
    for offset in [3600, -3600] {
        on_both_hosts(
            || rig_of(options(offset), |builder| builder),
            |host| {
                // All at once: each is refused before any has learned.
                thread::scope(|scope| {
                    for (nth, verb) in Verb::ALL.into_iter().enumerate() {
                        scope.spawn(move || {
                            let answer = verb.ask(host.engine, Policy::Http, &Thing::nth(nth));
                            answer.unwrap_or_else(|error| panic!("{verb:?}: {error}"));
                        });
                    }
                });
                assert_all(host, &Verb::ALL, Policy::ALL);
                for other in [-offset, 0] {
                    host.rig.sim.set_clock_offset(other);
                    assert_all(host, &Verb::ALL, Policy::ALL);
                }
            },
        );
    }
}
