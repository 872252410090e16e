//! Everything that HTTP can do wrong, and who overcomes it.

use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use s3engine::{Driver, ErrorKind, Get, Memory, Path, Phase, Policy, Reason, Timeouts};
use s3engine_tests::{Rig, assert_invariants, block_on, drivers, quick_builder};
use s3sim::{Action, Kind, Rule, content};

const KEY: &str = "300KiB-h";
const SIZE: u64 = 300 << 10;

/// Each with each driver that can be used here.
fn with_drivers(actions: Vec<Action>) -> impl Iterator<Item = (Driver, Action)> {
    let with = |driver| {
        actions
            .clone()
            .into_iter()
            .map(move |action| (driver, action))
    };
    drivers()
        .into_iter()
        .flat_map(with)
        .collect::<Vec<_>>()
        .into_iter()
}

/// Faults of HTTP that another attempt overcomes.
fn passing_faults() -> Vec<Action> {
    vec![
        Action::SlowDown { retry_after: None },
        Action::Cut { after: None },
        Action::Cut { after: Some(1000) },
        Action::Reset { after: None },
        Action::Reset { after: Some(1000) },
        Action::WrongLength { delta: 5 },
        Action::Status {
            code: 500,
            s3_code: Some("InternalError".into()),
            headers: Default::default(),
        },
        Action::Status {
            code: 503,
            s3_code: None,
            headers: Default::default(),
        },
    ]
}

#[test]
fn another_attempt_overcomes_what_passes() {
    for (driver, action) in with_drivers(passing_faults()) {
        let rig = Rig::with([Rule::new(action.clone()).count(2)], |builder, _| {
            builder.driver(driver)
        });
        // With room for more than the object has, so that only its end tells where it ends.
        let get = Get::new("bench", KEY).into(rig.buffer(2 * SIZE));
        let completion = rig.get(Policy::Http, get);
        assert_eq!(completion.bytes(), SIZE, "{action:?}: {completion:?}");
        content::verify(KEY, 0, 0, completion.data().unwrap()).unwrap();
        assert_eq!(rig.sim.counters().requests, 3, "{action:?}");
    }
}

#[test]
fn what_does_not_pass_is_an_error_after_the_last_attempt() {
    for (driver, action) in with_drivers(passing_faults()) {
        let rule = Rule::new(action.clone());
        let rig = Rig::with([rule], |builder, _| builder.driver(driver));
        let get = Get::new("bench", KEY).into(rig.buffer(2 * SIZE));
        let failed = rig.get(Policy::Http, get);
        assert_eq!(
            (failed.path(), failed.reason()),
            (Path::None, Reason::HttpError),
            "{action:?}: {failed:?}"
        );
        let error = failed.error().unwrap();
        // That of a body which seems to go on has brought bytes, and does not count.
        let attempts = match action {
            Action::WrongLength { .. } => 4,
            _ => 3,
        };
        let told = (error.attempt(), error.attempts());
        assert_eq!(told, (attempts, attempts), "{action:?}");
        let requests = rig.sim.counters().requests;
        assert_eq!(requests, u64::from(attempts), "{action:?}");
        assert!(failed.into_buffer().is_some());
        rig.assert_drains();
    }
}

#[test]
fn answers_that_contradict_themselves_are_errors() {
    for action in [
        Action::WrongRange { shift: 10 },
        Action::WrongLength { delta: -5 },
        Action::WrongLength { delta: 5 },
        Action::Cut { after: Some(10) },
    ] {
        let rig = Rig::new([Rule::new(action.clone()).only(Kind::Http)]);
        let get = Get::new("bench", KEY).range(1000, 50_000);
        let failed = rig.get(Policy::Http, get);
        assert_eq!(
            (failed.path(), failed.reason()),
            (Path::None, Reason::HttpError),
            "{action:?}: {failed:?}"
        );
        drop(failed);
        // The size is known from HEAD.
        let failed = rig.get(Policy::Http, Get::new("bench", KEY));
        assert!(!failed.is_ok(), "{action:?}: {failed:?}");
        drop(failed);
        rig.assert_drains();
    }
}

#[test]
fn a_body_that_stalls_is_given_up_and_a_slow_one_is_not() {
    drivers().into_iter().for_each(stalls);
}

fn stalls(driver: Driver) {
    let impatient = Timeouts {
        stall: Duration::from_secs(1),
        ..Timeouts::default()
    };
    let stall = Action::Stall {
        after: Some(1000),
        ms: 60_000,
    };
    let rig = Rig::with([Rule::new(stall).only(Kind::Http)], |builder, _| {
        builder.timeouts(impatient).driver(driver)
    });
    let failed = rig.get_whole(Policy::Http, KEY);
    let kind = failed.error().unwrap().kind();
    assert!(
        matches!(
            kind,
            ErrorKind::Timeout {
                phase: Phase::Body,
                ..
            }
        ),
        "{kind:?}"
    );
    let slow = Action::Trickle {
        bytes: 10 << 10,
        ms: 50,
    };
    let rig = Rig::with([Rule::new(slow)], |builder, _| {
        builder.timeouts(impatient).driver(driver)
    });
    let completion = rig.get_whole(Policy::Http, KEY);
    assert!(completion.is_ok(), "{completion:?}");
    content::verify(KEY, 0, 0, completion.data().unwrap()).unwrap();
}

#[test]
fn silence_is_given_up_by_http_too() {
    let rig = Rig::with([Rule::new(Action::NeverAnswer)], |builder, _| {
        builder.timeouts(Timeouts {
            first_byte: Duration::from_millis(200),
            ..Timeouts::default()
        })
    });
    let failed = rig.get_whole(Policy::Http, KEY);
    let kind = failed.error().unwrap().kind();
    assert!(
        matches!(
            kind,
            ErrorKind::Timeout {
                phase: Phase::FirstByte,
                ..
            }
        ),
        "{kind:?}"
    );
    assert_eq!(failed.reason(), Reason::HttpError);
    assert!(
        failed.into_buffer().is_some(),
        "nobody else can write to it"
    );
}

#[test]
fn an_endpoint_where_nobody_listens_is_one_clear_error() {
    let port = {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.local_addr().unwrap().port()
    };
    let rig = Rig::new([]);
    let folder = tempfile::tempdir().unwrap();
    let fabric = s3engine_tests::loopback(&folder.path().join("loopback"));
    let engine = quick_builder(&format!("http://127.0.0.1:{port}"))
        .rdma(s3engine::Rdma::Loopback(fabric))
        .build()
        .unwrap();
    for policy in [Policy::PreferRdma, Policy::RequireRdma, Policy::Http] {
        let buffer = engine.pool().try_alloc(SIZE, Memory::Host).unwrap();
        let get = Get::new("bench", KEY).into(buffer).policy(policy);
        let failed = block_on(engine.get(get));
        assert_invariants(&failed, policy);
        let error = failed.error().unwrap();
        assert!(matches!(error.kind(), ErrorKind::Connect(_)), "{error:?}");
        assert_eq!(failed.reason(), Reason::HttpError);
        let text = error.to_string();
        assert!(
            text.contains(&port.to_string()) && !text.contains('\n'),
            "{text}"
        );
        // Nothing was sent, so nothing is in doubt.
        assert!(failed.into_buffer().is_some());
    }
    assert_eq!(rig.sim.counters().requests, 0);
}

#[test]
fn wrong_and_missing_keys_are_refused_by_the_server() {
    for (credentials, code) in [
        (
            s3engine_tests::credentials("s3sim", "not the secret"),
            "SignatureDoesNotMatch",
        ),
        (
            s3engine_tests::credentials("nobody", "x"),
            "InvalidAccessKeyId",
        ),
        (s3engine::Credentials::anonymous(), "AccessDenied"),
    ] {
        let rig = Rig::with([], |builder, _| builder.credentials(credentials));
        for policy in [Policy::PreferRdma, Policy::RequireRdma, Policy::Http] {
            let failed = rig.get_whole(policy, KEY);
            assert_eq!(
                (failed.status(), failed.reason()),
                (Some(403), Reason::HttpError)
            );
            assert_eq!(failed.error().unwrap().code(), Some(code));
        }
        assert_eq!(rig.sim.counters().requests, 3, "403 is not tried again");
    }
}

#[test]
fn a_deadline_says_what_it_was_waiting_for() {
    let busy = Action::SlowDown {
        retry_after: Some(3600),
    };
    let rig = Rig::new([Rule::new(busy)]);
    for get in [
        Get::new("bench", KEY),
        Get::new("bench", KEY).into(rig.buffer(SIZE)),
    ] {
        let get = get
            .policy(Policy::Http)
            .deadline(Duration::from_millis(300));
        let completion = block_on(rig.engine.get(get));
        assert_eq!(completion.reason(), Reason::Deadline, "{completion:?}");
        let told = completion.error().unwrap().to_string();
        assert!(
            told.contains("after 503") && told.contains("attempt 1 of 3"),
            "{told}"
        );
    }
}
