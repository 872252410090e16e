//! What requests say besides the name of their object, in this process and through the host service.

use s3engine::service::{Service, ServiceOptions};
use s3engine::{
    ConnectOptions, CustomerKey, Engine, ErrorKind, ExtraHeaders, Flags, Get, ListQuery, Memory,
    Path, Policy, QueueOptions, Reason, RequestOptions,
};
use s3engine_tests::{Rig, ServiceRig, block_on, drain, quick_builder, recording_server};
use s3sim::content;

fn options() -> RequestOptions {
    RequestOptions {
        version_id: Some("v1".into()),
        customer_key: Some(CustomerKey::new([7; 32])),
        request_payer: true,
        expected_bucket_owner: Some("123456789012".into()),
        headers: ExtraHeaders::default(),
    }
}

fn with_header() -> RequestOptions {
    RequestOptions {
        headers: ExtraHeaders::of([("x-trace", "7")]).unwrap(),
        ..options()
    }
}

const ANSWER: &str =
    "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nETag: \"a\"\r\nx-amz-version-id: v1\r\n\r\n";

const OF_OBJECT: [&str; 4] = [
    "x-amz-request-payer: requester",
    "x-amz-expected-bucket-owner: 123456789012",
    "x-amz-server-side-encryption-customer-algorithm: aes256",
    "x-amz-server-side-encryption-customer-key-md5: ",
];

/// A service over `engine` that lets its clients add this header.
fn service(engine: &Engine, headers: &[&str]) -> (tempfile::TempDir, Service, Engine) {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s3engine").join("s3engine.sock");
    let service = Service::start(ServiceOptions {
        socket: socket.clone(),
        endpoints: vec![("main".to_owned(), engine.clone())],
        allow: Vec::new(),
        rules: Vec::new(),
        client_headers: headers.iter().map(|name| (*name).to_owned()).collect(),
        caps: s3engine::service::Caps {
            slab_bytes: 4 << 20,
            ..Default::default()
        },
    });
    let service = service.unwrap();
    let client = Engine::connect(&socket, ConnectOptions::default()).unwrap();
    (folder, service, client)
}

#[test]
fn options_reach_the_server_from_every_side() {
    let (url, requests) = recording_server(ANSWER);
    let engine = quick_builder(&url).build().unwrap();
    let (_folder, _service, client) = service(&engine, &["X-Trace"]);
    for engine in [&engine, &client] {
        let buffer = engine.pool().try_alloc(64, Memory::Host).unwrap();
        let get = Get::new("bench", "k").options(with_header()).into(buffer);
        let done = block_on(engine.get(get));
        assert!(done.is_ok(), "{done:?}");
        block_on(engine.head_with("bench", "k", with_header())).unwrap();
        let opened = block_on(engine.open_with("bench", "k", with_header())).unwrap();
        assert_eq!(opened.info().version_id.as_deref(), Some("v1"));
        for method in ["get", "head", "head"] {
            let request = requests.recv_timeout(s3engine_tests::PATIENCE).unwrap();
            let request = request.to_lowercase();
            let line = format!("{method} /bench/k?versionid=v1 ");
            assert!(request.starts_with(&line), "{request}");
            for header in OF_OBJECT.into_iter().chain(["x-trace: 7"]) {
                assert!(request.contains(header), "{header} in {request}");
            }
        }
        let mut lister = engine.list_with("bench", ListQuery::default(), with_header());
        assert!(block_on(lister.next()).is_err(), "it is no list");
        let request = requests.recv_timeout(s3engine_tests::PATIENCE).unwrap();
        let request = request.to_lowercase();
        assert!(request.starts_with("get /bench?") && request.contains("x-trace: 7"));
        assert!(request.contains("x-amz-request-payer") && !request.contains("customer"));
        // It may have been asked more than once.
        while requests.try_recv().is_ok() {}
    }
}

#[test]
fn headers_of_clients_are_those_that_the_service_names() {
    let (url, requests) = recording_server(ANSWER);
    let engine = quick_builder(&url).build().unwrap();
    let (_folder, _service, client) = service(&engine, &["x-other"]);
    let denied =
        |kind: &ErrorKind| matches!(kind, ErrorKind::Denied(why) if why.contains("x-trace"));
    let get = || Get::new("bench", "k").options(with_header());
    let done = block_on(client.get(get()));
    assert!(denied(done.error().unwrap().kind()), "{done:?}");
    let mut queue = client.queue(QueueOptions::default());
    queue.push(get()).unwrap();
    queue.submit();
    assert!(denied(drain(&mut queue)[0].error().unwrap().kind()));
    let error = block_on(client.head_with("bench", "k", with_header())).unwrap_err();
    assert!(denied(error.kind()), "{error}");
    let error = block_on(client.open_with("bench", "k", with_header())).unwrap_err();
    assert!(denied(error.kind()), "{error}");
    let mut lister = client.list_with("bench", ListQuery::default(), with_header());
    assert!(denied(block_on(lister.next()).unwrap_err().kind()));
    assert!(
        requests.try_recv().is_err(),
        "nothing was asked of the server"
    );
    // What is no header of the caller's own passes.
    block_on(client.head_with("bench", "k", options())).unwrap();
}

#[test]
fn a_customers_key_is_nowhere_to_be_seen() {
    let (url, _requests) = recording_server("HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n");
    let engine = quick_builder(&url).build().unwrap();
    let get = Get::new("bench", "k").options(options());
    let shown = format!("{get:?}");
    let done = block_on(engine.get(get));
    let error = done.error().unwrap();
    for text in [
        shown,
        error.to_string(),
        format!("{error:?}"),
        format!("{done:?}"),
    ] {
        assert!(
            !text.contains("BwcHBw") && !text.contains("7, 7, 7"),
            "{text}"
        );
    }
}

/// An engine whose server nobody has: whatever ends well has asked for nothing.
fn without_server() -> Engine {
    quick_builder("http://127.0.0.1:1").build().unwrap()
}

#[test]
fn r14_no_bytes_are_there_without_asking() {
    let engine = without_server();
    let (_folder, _service, client) = service(&engine, &[]);
    for engine in [&engine, &client] {
        for offset in [0, 5, u64::MAX] {
            let get = || Get::new("bench", "k").range(offset, 0);
            let done = block_on(engine.get(get()));
            assert!(done.is_ok(), "{done:?}");
            assert_eq!((done.path(), done.reason()), (Path::None, Reason::Ok));
            assert_eq!((done.bytes(), done.flags()), (0, Flags::empty()));
            let mut queue = engine.queue(QueueOptions::default());
            queue.push(get()).unwrap();
            queue.submit();
            assert!(drain(&mut queue)[0].is_ok());
        }
    }
}

#[test]
fn r9_a_range_that_wraps_is_refused_at_the_edge() {
    let engine = without_server();
    let (_folder, _service, client) = service(&engine, &[]);
    for engine in [&engine, &client] {
        for (offset, len) in [
            (u64::MAX, 1),
            (1, u64::MAX),
            (u64::MAX, u64::MAX),
            (1 << 63, 1 << 63),
        ] {
            let get = || Get::new("bench", "k").range(offset, len);
            let done = block_on(engine.get(get()));
            let kind = done.error().unwrap().kind();
            assert!(matches!(kind, ErrorKind::Config(_)), "{done:?}");
            let mut queue = engine.queue(QueueOptions::default());
            queue.push(get()).unwrap();
            queue.submit();
            let done = drain(&mut queue).remove(0);
            let kind = done.error().unwrap().kind();
            assert!(matches!(kind, ErrorKind::Config(_)), "{done:?}");
        }
    }
}

#[test]
fn r63_a_part_that_no_token_can_name_is_no_setting() {
    for (rdma, fine) in [
        (u64::from(u32::MAX), true),
        (1 << 32, false),
        (u64::MAX, false),
    ] {
        let built = quick_builder("http://127.0.0.1:1")
            .part_sizes(1 << 20, rdma)
            .build();
        assert_eq!(built.is_ok(), fine, "{rdma}");
    }
}

#[test]
fn r8_objects_of_terabytes_are_read_where_they_are() {
    const KEY: &str = "6TiB-sparse";
    let host = ServiceRig::with(Rig::new([]), |_| {});
    let client = host.client();
    for engine in [&host.rig.engine, &client] {
        for policy in [Policy::Http, Policy::RequireRdma] {
            // Around 2 and 4 GiB, at 5 TiB, and at the end.
            for offset in [(1 << 31) - 7, (1 << 32) - 7, (5 << 40) - 7, (6 << 40) - 14] {
                let get = Get::new("bench", KEY).range(offset, 14).policy(policy);
                let done = block_on(engine.get(get));
                content::verify(KEY, 0, offset, done.data().expect("bytes")).unwrap();
                // R7: the size is the object's, not that of the answer.
                assert_eq!((done.bytes(), done.info().size), (14, Some(6 << 40)));
            }
            let last = Get::new("bench", KEY)
                .range((6 << 40) - 5, 14)
                .policy(policy);
            let done = block_on(engine.get(last));
            assert_eq!(done.bytes(), 5, "{done:?}");
            assert!(done.flags().contains(Flags::PARTIAL));
        }
        let small = engine.pool().try_alloc(1 << 20, Memory::Host).unwrap();
        let get = Get::new("bench", KEY).into(small).policy(Policy::Http);
        let done = block_on(engine.get(get));
        let ErrorKind::BufferTooSmall { needed, .. } = done.error().unwrap().kind() else {
            panic!("{done:?}")
        };
        assert_eq!(*needed, 6 << 40);
    }
}

#[test]
fn r12_an_empty_object_is_told_by_head_where_the_416_does_not_say_it() {
    let refused = "HTTP/1.1 416 Range Not Satisfiable\r\nContent-Length: 0\r\n\r\n";
    for (size, empty) in [(0, true), (5, false)] {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {size}\r\nETag: \"a\"\r\n\r\n");
        let answer = move |request: &str| match request.starts_with("HEAD ") {
            true => head.clone(),
            false => refused.to_owned(),
        };
        let engine = quick_builder(&s3engine_tests::answering_server(answer));
        let engine = engine.build().unwrap();
        let (_folder, _service, client) = service(&engine, &[]);
        for engine in [&engine, &client] {
            let buffer = engine.pool().try_alloc(64, Memory::Host).unwrap();
            let get = Get::new("bench", "k").into(buffer).policy(Policy::Http);
            let done = block_on(engine.get(get));
            assert_eq!((done.is_ok(), done.bytes()), (empty, 0), "{done:?}");
        }
    }
}

#[test]
fn r15_any_text_is_a_tag_and_without_one_parts_are_not_put_together() {
    for etag in ["\"not-hex--9\"", "W/\"weak\"", "bare", "\"\u{7e}x,y\""] {
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nETag: {etag}\r\n\r\nab");
        let engine = quick_builder(&s3engine_tests::canned_server(answer));
        let engine = engine.build().unwrap();
        let buffer = engine.pool().try_alloc(64, Memory::Host).unwrap();
        let done = block_on(engine.get(Get::new("bench", "k").into(buffer)));
        assert_eq!(done.data(), Some(&b"ab"[..]), "{done:?}");
        assert_eq!(done.info().etag.as_ref().unwrap().as_str(), etag);
    }
    let drop_tag = s3sim::Rule::new(s3sim::Action::Headers {
        set: Default::default(),
        drop: vec!["ETag".to_owned()],
    });
    let rig = Rig::with([drop_tag], |builder, _| {
        builder.part_sizes(64 << 10, 64 << 10)
    });
    let host = ServiceRig::with(rig, |_| {});
    let client = host.client();
    for engine in [&host.rig.engine, &client] {
        let get = |key: &str| {
            let size = content::size_of_key(key).unwrap();
            let buffer = engine.pool().try_alloc(size, Memory::Host).unwrap();
            let get = Get::new("bench", key).into(buffer).policy(Policy::Http);
            block_on(engine.get(get))
        };
        let one = get("1000-one");
        content::verify("1000-one", 0, 0, one.data().unwrap()).unwrap();
        let many = get("200000-many");
        let kind = many.error().unwrap().kind();
        assert!(
            matches!(kind, ErrorKind::Protocol(why) if why.contains("ETag")),
            "{many:?}"
        );
    }
}
