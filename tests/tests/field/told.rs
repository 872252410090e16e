//! What errors tell.

use std::collections::BTreeMap;

use s3engine::{ErrorKind, Policy};
use s3engine_tests::{Thing, Verb, on_both_hosts};
use s3sim::Action;

use super::{always, rig};

#[test]
fn r53_an_error_says_what_where_and_why_and_how_often_it_was_tried() {
    for (code, s3_code, attempts) in [
        (403, "AccessDenied", 1),
        (404, "NoSuchKey", 1),
        (500, "InternalError", 3),
        (503, "SlowDown", 3),
    ] {
        let action = Action::Status {
            code,
            s3_code: Some(s3_code.to_owned()),
            headers: BTreeMap::new(),
        };
        on_both_hosts(
            || rig(always(&action)),
            |host| {
                let url = host.rig.sim.url();
                // HEAD has no body to name the code.
                for verb in [Verb::List, Verb::Whole, Verb::Given] {
                    let begins_with_head = verb == Verb::Whole;
                    for &policy in Policy::ALL {
                        let what = format!("{verb:?} under {policy}, {}", host.name);
                        let answer = verb.ask(host.engine, policy, &Thing::nth(0));
                        let error = answer.expect_err(&what);
                        assert_eq!(error.status(), Some(code), "{what}: {error:?}");
                        assert_eq!(error.attempt(), attempts, "{what}: {error:?}");
                        assert!(error.request_id().is_some(), "{what}: {error:?}");
                        assert!(error.host_id().is_some(), "{what}: {error:?}");
                        assert_eq!(error.endpoint(), url, "{what}");
                        assert!(error.address().is_some(), "{what}: {error:?}");
                        if !begins_with_head {
                            assert_eq!(error.code(), Some(s3_code), "{what}: {error:?}");
                        }
                        let line = error.to_string();
                        let status = code.to_string();
                        for part in [&*status, &url, "bench", error.request_id().unwrap()] {
                            assert!(line.contains(part), "{what}: {part} is not in {line}");
                        }
                        assert!(!line.contains('\n'), "{what}: {line}");
                    }
                }
            },
        );
    }
}

#[test]
fn r53_a_server_that_is_not_there_is_named_with_phase_and_cause() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let engine = s3engine_tests::quick_builder(&format!("http://{address}"));
    let engine = engine.build().unwrap();
    for verb in Verb::ALL {
        let answer = verb.ask(&engine, Policy::Http, &Thing::nth(0));
        let error = answer.expect_err("nobody listens");
        assert!(matches!(error.kind(), ErrorKind::Connect(_)), "{error:?}");
        let line = error.to_string();
        assert!(
            line.contains(&address.to_string()) && line.contains("efused"),
            "{line}"
        );
    }
}
