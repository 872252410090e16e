//! Clients of a host service. They run in the service's own process here, over the same sockets and mappings as
//! they would in another one; `processes` has those.

use std::thread;

use s3engine::service::{Caps, Service, ServiceError};
use s3engine::{
    ConnectError, ConnectOptions, Engine, Get, ListQuery, Memory, Path, Policy, QueueOptions,
    Reason,
};
use s3engine_tests::{PATIENCE, Rig, ServiceRig, assert_invariants, block_on, drain, wait_until};
use s3sim::{Action, Kind, content};

const KEY: &str = "300KiB-served";

#[test]
fn a_client_gets_what_an_embedded_engine_gets() {
    let host = ServiceRig::new();
    let client = host.client();
    assert!(client.is_connected());
    let mut queue = client.queue(QueueOptions::default());
    for (nth, policy) in [Policy::RequireRdma, Policy::PreferRdma, Policy::Http]
        .into_iter()
        .enumerate()
    {
        let buffer = client.pool().try_alloc(300 << 10, Memory::Host).unwrap();
        let given = Get::new("bench", KEY).into(buffer);
        queue
            .push(given.policy(policy).user_data(nth as u64))
            .unwrap();
        queue
            .push(Get::new("bench", KEY).policy(policy).user_data(nth as u64))
            .unwrap();
    }
    assert_eq!(queue.submit(), 6);
    let completions = drain(&mut queue);
    assert_eq!(completions.len(), 6);
    for completion in &completions {
        let policy = [Policy::RequireRdma, Policy::PreferRdma, Policy::Http];
        assert_invariants(completion, policy[completion.user_data() as usize]);
        content::verify(KEY, 0, 0, completion.data().unwrap()).unwrap();
        let expected = match completion.user_data() {
            2 => (Path::Http, Reason::Policy),
            _ => (Path::Rdma, Reason::Ok),
        };
        assert_eq!((completion.path(), completion.reason()), expected);
    }
    drop(completions);
    let awaited = block_on(client.get(Get::new("bench", KEY).policy(Policy::Http)));
    content::verify(KEY, 0, 0, awaited.data().unwrap()).unwrap();
    drop((awaited, queue, client));
    wait_until("the client has left", || {
        host.service().clients().is_empty()
    });
    host.rig.assert_drains();
}

#[test]
fn a_key_is_sent_as_it_stands_whatever_it_looks_like() {
    let host = ServiceRig::new();
    let client = host.client();
    for key in [
        "a/../4KiB-k",
        "./4KiB-k",
        "a//./4KiB-k",
        "%2e%2e/4KiB-k",
        "a/%2F/4KiB-k",
        "a b+c/4KiB-?k#k",
        "a\\..\\/4KiB-k",
    ] {
        let end = block_on(client.get(Get::new("bench", key)));
        // The bytes of an object follow from its whole key.
        content::verify(key, 0, 0, end.data().unwrap()).unwrap();
        assert!(block_on(client.head("bench", key)).is_ok(), "{key}");
    }
}

#[test]
fn heads_lists_and_opened_objects_go_through_the_service() {
    let host = ServiceRig::new();
    let client = host.client();
    let info = block_on(client.head("bench", KEY)).unwrap();
    assert_eq!(info.size, Some(300 << 10));
    let error = block_on(client.head("bench", "none")).unwrap_err();
    assert!(
        error.is_not_found() && error.request_id().is_some(),
        "{error}"
    );
    let page = block_on(client.list("bench", ListQuery::default()).next());
    assert!(page.unwrap().is_some());
    let object = block_on(client.open("bench", KEY)).unwrap();
    let mut queue = client.queue(QueueOptions { capacity: 8 });
    queue.push(Get::of(&object).range(1000, 2000)).unwrap();
    queue.submit();
    let done = queue.next(PATIENCE).unwrap().unwrap();
    content::verify(KEY, 0, 1000, done.data().unwrap()).unwrap();
}

#[test]
fn a_service_that_ends_loses_its_clients_and_the_next_one_serves_them() {
    let slow = s3sim::Rule::new(Action::AnswerLate { ms: 3000 })
        .only(Kind::Http)
        .key("*slow");
    let mut host = ServiceRig::with(Rig::new([slow]), |_| {});
    let client = host.client();
    let mut queue = client.queue(QueueOptions::default());
    let buffer = client.pool().try_alloc(1 << 20, Memory::Host).unwrap();
    let other = client.pool().try_alloc(1 << 20, Memory::Host).unwrap();
    queue
        .push(
            Get::new("bench", "1MiB-slow")
                .into(buffer)
                .policy(Policy::Http),
        )
        .unwrap();
    queue.submit();
    let awaited = client.get(Get::new("bench", "1MiB-slow").policy(Policy::Http));
    host.service = None;
    let lost = queue.next(PATIENCE).unwrap().unwrap();
    assert_eq!(
        (lost.path(), lost.reason()),
        (Path::None, Reason::ServiceLost)
    );
    assert!(lost.into_buffer().is_none(), "a peer may still write to it");
    assert_eq!(block_on(awaited).reason(), Reason::ServiceLost);
    assert!(
        other.as_slice().is_none(),
        "the memory of the session is dead"
    );
    // While nobody serves, each GET says so.
    queue.push(Get::new("bench", KEY)).unwrap();
    queue.submit();
    let lost = queue.next(PATIENCE).unwrap().unwrap();
    assert_eq!(lost.reason(), Reason::ServiceLost);
    assert!(client.pool().try_alloc(1, Memory::Host).is_err());

    host.service = Some(Service::start(host.options()).unwrap());
    queue.push(Get::new("bench", KEY).into(other)).unwrap();
    queue.push(Get::new("bench", KEY)).unwrap();
    queue.submit();
    let ends = drain(&mut queue);
    let stale: Vec<_> = ends.iter().filter(|end| !end.is_ok()).collect();
    assert_eq!(stale.len(), 1);
    assert_eq!(stale[0].reason(), Reason::StaleBuffer);
    let good = ends.iter().find(|end| end.is_ok()).unwrap();
    content::verify(KEY, 0, 0, good.data().unwrap()).unwrap();
}

#[test]
fn who_waits_for_more_than_came_before_the_services_end_gets_it_and_learns_that_the_rest_is_lost() {
    let silent = s3sim::Rule::new(Action::NeverAnswer).key("*-silent");
    let mut host = ServiceRig::with(Rig::new([silent]), |_| {});
    let client = host.client();
    let mut queue = client.queue(QueueOptions::default());
    for key in [KEY, "1MiB-silent"] {
        let buffer = client.pool().try_alloc(1 << 20, Memory::Host).unwrap();
        let get = Get::new("bench", key).policy(Policy::Http);
        queue.push(get.into(buffer)).unwrap();
    }
    queue.submit();
    assert_eq!(queue.wait(1, PATIENCE), Ok(1));
    host.service = None;
    assert_eq!(queue.wait(2, PATIENCE), Ok(2));
    let ends: Vec<_> = queue.completions().map(|end| end.reason()).collect();
    assert_eq!(ends, [Reason::Policy, Reason::ServiceLost]);
}

#[test]
fn a_second_service_at_the_same_socket_is_refused_and_a_dead_ones_socket_is_replaced() {
    let mut host = ServiceRig::new();
    let second = Service::start(host.options());
    assert!(matches!(second, Err(ServiceError::Runs { .. })));
    assert!(
        block_on(host.client().head("bench", KEY)).is_ok(),
        "the first goes on"
    );
    host.service = None;
    drop(std::os::unix::net::UnixListener::bind(host.socket()).unwrap());
    host.service = Some(Service::start(host.options()).unwrap());
    assert!(block_on(host.client().head("bench", KEY)).is_ok());
}

#[test]
fn what_is_not_a_socket_is_never_replaced() {
    let mut host = ServiceRig::new();
    host.service = None;
    std::fs::write(host.socket(), b"a file of somebody's").unwrap();
    let refused = Service::start(host.options()).unwrap_err();
    assert!(refused.to_string().contains("not a socket"), "{refused}");
    assert_eq!(
        std::fs::read(host.socket()).unwrap(),
        b"a file of somebody's"
    );
}

#[test]
fn caps_that_would_keep_everybody_out_are_refused() {
    let host = ServiceRig::new();
    let breaks: [fn(&mut Caps); 5] = [
        |caps| caps.sessions = 0,
        |caps| caps.entries = 3,
        |caps| caps.entries = u32::MAX,
        |caps| caps.bytes = Some(1),
        |caps| caps.requests = Some(0),
    ];
    for broken in breaks {
        let mut options = host.options();
        options.socket = host.rig.folder().join("other.sock");
        broken(&mut options.caps);
        let refused = Service::start(options);
        assert!(
            matches!(refused, Err(ServiceError::Caps { .. })),
            "{refused:?}"
        );
    }
}

#[test]
fn the_rings_of_all_queues_are_bounded_together() {
    let host = ServiceRig::with(Rig::new([]), |options| options.caps.queue_bytes = 5 << 20);
    let (one, other) = (host.client(), host.client());
    let first = one.queue(QueueOptions { capacity: 1024 });
    let served = |client: &Engine| {
        let mut queue = client.queue(QueueOptions { capacity: 1024 });
        queue.push(Get::new("bench", KEY)).unwrap();
        queue.submit();
        queue.next(PATIENCE).unwrap().unwrap().is_ok()
    };
    assert!(!served(&other), "there is no room for a second one");
    drop(first);
    wait_until("it has room again", || served(&other));
}

#[test]
fn nobody_serves_is_an_error_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("none.sock");
    let error = Engine::connect(&socket, ConnectOptions::default()).unwrap_err();
    assert!(matches!(error, ConnectError::NoService { .. }), "{error}");
    assert!(error.to_string().contains("none.sock"));
}

#[test]
fn an_endpoint_that_is_not_served_is_refused_with_the_names_there_are() {
    let host = ServiceRig::new();
    let options = ConnectOptions {
        endpoint: Some("other".to_owned()),
        ..ConnectOptions::default()
    };
    let error = Engine::connect(&host.socket(), options).unwrap_err();
    assert!(error.to_string().contains("main"), "{error}");
}

#[test]
fn no_memory_of_one_client_is_ever_anothers() {
    let host = ServiceRig::new();
    let (one, other) = (host.client(), host.client());
    let buffers: Vec<_> = [&one, &other, &one, &other]
        .into_iter()
        .map(|client| client.pool().try_alloc(100 << 10, Memory::Host).unwrap())
        .collect();
    assert_eq!(buffers[0].slot().slab, buffers[2].slot().slab);
    assert_eq!(buffers[1].slot().slab, buffers[3].slot().slab);
    assert_ne!(buffers[0].slot().slab, buffers[1].slot().slab);
    // And none accepts the other's.
    let mut queue = one.queue(QueueOptions::default());
    let [.., foreign] = <[_; 4]>::try_from(buffers).unwrap();
    queue
        .push(Get::new("bench", KEY).range(0, 10).into(foreign))
        .unwrap();
    queue.submit();
    let refused = queue.next(PATIENCE).unwrap().unwrap();
    assert_eq!(refused.reason(), Reason::StaleBuffer);
    assert!(refused.into_buffer().is_some(), "nothing is lost");
}

#[test]
fn sessions_and_queues_are_capped() {
    let host = ServiceRig::with(Rig::new([]), |options| {
        options.caps.sessions = 2;
        options.caps.queues = 1;
    });
    let one = host.client();
    let _other = host.client();
    let third = Engine::connect(&host.socket(), ConnectOptions::default()).unwrap_err();
    assert!(matches!(third, ConnectError::Refused { .. }), "{third}");
    let _first = one.queue(QueueOptions::default());
    let mut second = one.queue(QueueOptions::default());
    second.push(Get::new("bench", KEY)).unwrap();
    second.submit();
    let refused = second.next(PATIENCE).unwrap().unwrap();
    assert_eq!(refused.reason(), Reason::ServiceLost);
    let text = refused.error().unwrap().to_string();
    assert!(text.contains("queues"), "{text}");
}

#[test]
fn a_service_that_drains_ends_what_is_under_way_first_and_begins_nothing() {
    let late = s3sim::Rule::new(Action::AnswerLate { ms: 1000 }).only(Kind::Http);
    let host = ServiceRig::with(Rig::new([late.key("*-late")]), |_| {});
    let client = host.client();
    let mut queue = client.queue(QueueOptions::default());
    let get = |key: &str| Get::new("bench", key).policy(Policy::Http);
    let first = queue.push(get("300KiB-late")).unwrap();
    queue.submit();
    wait_until("it was taken", || {
        host.service()
            .clients()
            .iter()
            .any(|client| client.outstanding > 0)
    });
    thread::scope(|scope| {
        let drains = scope.spawn(|| host.service().drain(PATIENCE));
        wait_until("it drains", || {
            let refused = Engine::connect(&host.socket(), ConnectOptions::default());
            matches!(refused, Err(ConnectError::Refused { .. }))
        });
        let buffer = client.pool().try_alloc(300 << 10, Memory::Host).unwrap();
        queue.push(get(KEY).into(buffer)).unwrap();
        queue.submit();
        let refused = queue.next(PATIENCE).unwrap().unwrap();
        assert_eq!(refused.reason(), Reason::ServiceLost);
        let text = refused.error().unwrap().to_string();
        assert!(text.contains("about to end"), "{text}");
        assert!(refused.into_buffer().is_some(), "nobody wrote to it");
        let asked = [
            block_on(client.head("bench", KEY)).map(drop),
            block_on(client.open("bench", KEY)).map(drop),
            block_on(client.list("bench", ListQuery::default()).next()).map(drop),
        ];
        for error in asked.map(Result::unwrap_err) {
            assert_eq!(error.reason(), Reason::ServiceLost, "{error}");
        }
        assert!(!drains.is_finished(), "one is under way");
        let end = queue.next(PATIENCE).unwrap().unwrap();
        assert_eq!((end.ticket(), end.is_ok()), (first, true), "{end:?}");
        assert!(drains.join().unwrap());
    });
    assert!(!host.service().clients().is_empty());
}
