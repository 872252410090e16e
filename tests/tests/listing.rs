//! Lists against the simulator: pages, what is asked again, what ends them.

use std::pin::pin;
use std::thread;
use std::time::Duration;

use s3engine::{Engine, ErrorKind, ListQuery, RetryPolicy, Timeouts};
use s3engine_tests::{
    PATIENCE, block_on, canned_server, credentials, keys_and_prefixes, quick_builder, wait_until,
};
use s3sim::{Action, Kind, Listed, Rule, Sim, SimOptions};

const BUCKET: &str = "bench";
const COUNT: usize = 2500;

/// A simulator with [`COUNT`] names, and an engine over it.
fn rig(faults: impl IntoIterator<Item = Rule>) -> (Sim, Engine) {
    let listed = Listed {
        count: COUNT as u32,
        size: 4096,
        prefix: "set/".into(),
    };
    let options = SimOptions {
        threads: 1,
        listed,
        faults: faults.into_iter().collect(),
        ..SimOptions::default()
    };
    let sim = Sim::start(options).unwrap();
    let engine = quick_builder(&sim.url())
        .credentials(credentials(sim.access_key(), sim.secret_key()))
        .build()
        .unwrap();
    (sim, engine)
}

fn names() -> Vec<String> {
    (0..COUNT).map(|i| format!("set/4096-{i:010}")).collect()
}

fn pages_of(max_keys: u32) -> ListQuery {
    ListQuery {
        max_keys: Some(max_keys),
        ..ListQuery::default()
    }
}

#[test]
fn every_name_comes_once_whatever_the_size_of_a_page() {
    let (sim, engine) = rig([]);
    for (query, pages) in [
        (ListQuery::default(), 3),
        (pages_of(5000), 3),
        (pages_of(500), 5),
        (pages_of(999), 3),
        (pages_of(2), 1250),
    ] {
        let before = sim.counters().requests;
        let (keys, prefixes) = keys_and_prefixes(&engine, BUCKET, query.clone());
        assert!(keys == names() && prefixes.is_empty(), "{query:?}");
        assert_eq!(sim.counters().requests - before, pages, "{query:?}");
    }
}

#[test]
fn a_prefix_a_delimiter_and_a_start_narrow_the_list() {
    let (_sim, engine) = rig([]);
    let of = |query| keys_and_prefixes(&engine, BUCKET, query);
    let query = ListQuery {
        prefix: "set/4096-00000012".into(),
        ..pages_of(7)
    };
    assert_eq!(of(query).0, names()[1200..1300]);
    let query = ListQuery {
        delimiter: Some("/".into()),
        ..ListQuery::default()
    };
    assert_eq!(of(query), (vec![], vec!["set/".to_owned()]));
    let query = ListQuery {
        delimiter: Some("-".into()),
        prefix: "set/".into(),
        ..ListQuery::default()
    };
    assert_eq!(of(query), (vec![], vec!["set/4096-".to_owned()]));
    let query = ListQuery {
        start_after: Some("set/4096-0000002489".into()),
        ..pages_of(3)
    };
    assert_eq!(of(query).0, names()[2490..]);
    let query = ListQuery {
        prefix: "nothing".into(),
        ..ListQuery::default()
    };
    assert_eq!(of(query), (vec![], vec![]));
}

#[test]
fn r27_pages_are_asked_for_only_when_they_are_wanted() {
    let (sim, engine) = rig([]);
    let mut lister = engine.list(BUCKET, ListQuery::default());
    assert_eq!(sim.counters().requests, 0);
    let first = block_on(lister.next()).unwrap().unwrap();
    assert_eq!((first.objects.len(), sim.counters().requests), (1000, 1));
    let object = &first.objects[0];
    assert_eq!(
        (object.key.as_str(), object.size),
        ("set/4096-0000000000", 4096)
    );
    let info = block_on(engine.head(BUCKET, &object.key)).unwrap();
    assert_eq!(info.etag, object.etag);
    // Another list goes on where this one stopped.
    let rest = ListQuery {
        continuation: first.next.clone(),
        ..ListQuery::default()
    };
    assert_eq!(keys_and_prefixes(&engine, BUCKET, rest).0, names()[1000..]);
}

#[test]
fn after_the_last_page_there_is_none_and_nothing_is_asked() {
    let (sim, engine) = rig([]);
    let mut lister = engine.list(BUCKET, ListQuery::default());
    while block_on(lister.next()).unwrap().is_some() {}
    let requests = sim.counters().requests;
    assert_eq!(block_on(lister.next()).unwrap(), None);
    assert_eq!(sim.counters().requests, requests);
}

#[test]
fn what_passes_by_itself_is_asked_again_and_nothing_is_lost() {
    for action in [
        Action::SlowDown { retry_after: None },
        Action::Status {
            code: 500,
            s3_code: None,
            headers: Default::default(),
        },
        Action::Cut {
            after: Some(10_000),
        },
        Action::Cut { after: None },
        Action::Reset {
            after: Some(10_000),
        },
        Action::WrongLength { delta: 10 },
    ] {
        let rule = Rule::new(action).only(Kind::List).skip(1).count(2);
        let (sim, engine) = rig([rule.clone()]);
        let (keys, _) = keys_and_prefixes(&engine, BUCKET, ListQuery::default());
        assert!(keys == names(), "{rule:?}");
        assert_eq!(sim.counters().faults, 2, "{rule:?}");
    }
}

#[test]
fn after_an_error_the_same_page_comes_next() {
    let rule = Rule::new(Action::SlowDown { retry_after: None }).only(Kind::List);
    let attempts = u64::from(RetryPolicy::default().max_attempts);
    let (_sim, engine) = rig([rule.skip(1).count(attempts)]);
    let mut lister = engine.list(BUCKET, ListQuery::default());
    let first = block_on(lister.next()).unwrap().unwrap();
    let failed = block_on(lister.next()).unwrap_err();
    assert_eq!((failed.code(), failed.attempt()), (Some("SlowDown"), 3));
    assert_eq!(failed.operation(), "LIST");
    let second = block_on(lister.next()).unwrap().unwrap();
    assert_eq!(first.objects.last().unwrap().key, names()[999]);
    assert_eq!(second.objects[0].key, names()[1000]);
}

#[test]
fn what_will_not_pass_is_not_asked_again() {
    let (sim, engine) = rig([]);
    let missing = block_on(engine.list("nowhere", ListQuery::default()).next()).unwrap_err();
    assert_eq!(
        (missing.status(), missing.code()),
        (Some(404), Some("NoSuchBucket"))
    );
    let unsigned = quick_builder(&sim.url()).build().unwrap();
    let refused = block_on(unsigned.list(BUCKET, ListQuery::default()).next()).unwrap_err();
    assert_eq!(refused.code(), Some("AccessDenied"));
    assert_eq!(sim.counters().requests, 2);
}

#[test]
fn a_list_that_never_ends_is_an_error_and_not_a_loop() {
    let body = "<ListBucketResult><IsTruncated>true</IsTruncated>\
                <NextContinuationToken>t</NextContinuationToken></ListBucketResult>";
    let length = body.len();
    let url = canned_server(format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}"
    ));
    let engine = quick_builder(&url).build().unwrap();
    let mut lister = engine.list(BUCKET, ListQuery::default());
    // An empty page with others to follow is lawful.
    assert!(block_on(lister.next()).unwrap().unwrap().objects.is_empty());
    let looped = block_on(lister.next()).unwrap_err();
    assert!(matches!(looped.kind(), ErrorKind::Protocol(_)), "{looped}");
}

/// Lists that never come to their end.
fn stalled() -> Rule {
    let (after, ms) = (Some(100), PATIENCE.as_millis() as u64 * 10);
    Rule::new(Action::Stall { after, ms }).only(Kind::List)
}

#[test]
fn a_page_takes_no_longer_than_the_deadline() {
    let (sim, _) = rig([stalled()]);
    let engine = quick_builder(&sim.url())
        .credentials(credentials(sim.access_key(), sim.secret_key()))
        .deadline(Duration::from_millis(50))
        .build()
        .unwrap();
    let late = block_on(engine.list(BUCKET, ListQuery::default()).next()).unwrap_err();
    assert_eq!(*late.kind(), ErrorKind::Deadline);
}

#[test]
fn the_last_handle_ends_a_list_that_stalls() {
    let (sim, _) = rig([stalled()]);
    let forever = Timeouts {
        stall: Duration::from_secs(86_400),
        ..Timeouts::default()
    };
    let engine = quick_builder(&sim.url())
        .credentials(credentials(sim.access_key(), sim.secret_key()))
        .timeouts(forever)
        .build()
        .unwrap();
    let ending = thread::spawn(move || {
        let mut lister = engine.list(BUCKET, ListQuery::default());
        drop(engine);
        block_on(async {
            let mut next = pin!(lister.next());
            while sim.counters().faults == 0 {
                let _ = tokio::time::timeout(Duration::from_millis(2), &mut next).await;
            }
        });
        // The lister goes, and the engine's threads are waited for.
    });
    wait_until("the threads end", || ending.is_finished());
    ending.join().unwrap();
}
