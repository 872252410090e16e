//! Each path and each reason, under each policy.

use s3engine::{
    ErrorKind, Flags, Get, LoopbackOptions, Memory, Path, Policy, PoolOptions, Rdma, Reason,
};
use s3engine_pool::RegisterError;
use s3engine_s3::fabric::TokenError;
use s3engine_tests::{
    FailingFabric, Failure, Rig, assert_invariants, block_on, canned_server, loopback,
    quick_builder,
};
use s3sim::{Action, Counters, Kind, Rule, content};

const KEY: &str = "300KiB-x";
const SIZE: u64 = 300 << 10;

fn on_rdma(action: Action) -> Rule {
    Rule::new(action).only(Kind::Rdma)
}

/// What the server has counted since `before`.
fn since(rig: &Rig, before: Counters) -> (u64, u64) {
    let now = rig.sim.counters();
    (
        now.requests - before.requests,
        now.rdma_read_bytes - before.rdma_read_bytes,
    )
}

#[test]
fn bytes_come_by_rdma_where_that_works() {
    for policy in [Policy::PreferRdma, Policy::RequireRdma] {
        let rig = Rig::new([]);
        let completion = rig.get_whole(policy, KEY);
        assert_eq!(
            (completion.path(), completion.reason()),
            (Path::Rdma, Reason::Ok)
        );
        assert_eq!(completion.flags(), Flags::NOT_VERIFIED);
        assert_eq!(completion.bytes_by_path().rdma, SIZE);
        assert_eq!(completion.info().size, Some(SIZE));
        content::verify(KEY, 0, 0, completion.data().unwrap()).unwrap();
        let stages = completion.stages();
        assert!(stages.queued.is_some() && stages.registered.is_some());
        let counters = rig.sim.counters();
        assert_eq!(
            (counters.rdma_read_ops, counters.rdma_read_bytes),
            (1, SIZE)
        );
        assert_eq!((counters.requests, counters.rdma_clients), (1, 1));
        drop(completion);
        rig.assert_drains();
    }
}

#[test]
fn an_empty_object_is_a_success_on_either_path() {
    let rig = Rig::new([]);
    for policy in [Policy::PreferRdma, Policy::RequireRdma, Policy::Http] {
        let completion = rig.get(policy, Get::new("bench", "0").into(rig.buffer(1 << 20)));
        assert!(completion.is_ok(), "{completion:?}");
        assert_eq!(completion.bytes(), 0);
        let completion = rig.get(policy, Get::new("bench", "0"));
        assert!(completion.is_ok(), "{completion:?}");
        assert_eq!(completion.bytes(), 0);
    }
    // So large a buffer that the first request asks for a range, which an empty object does not have.
    let rig = Rig::with([], |builder, _| builder.part_sizes(256 << 10, 256 << 10));
    for policy in [Policy::PreferRdma, Policy::RequireRdma, Policy::Http] {
        let completion = rig.get(policy, Get::new("bench", "0").into(rig.buffer(1 << 20)));
        assert!(completion.is_ok(), "{completion:?}");
        assert_eq!(completion.bytes(), 0);
    }
}

#[test]
fn policy_http_is_an_intent_and_touches_no_fabric() {
    let refused = RegisterError {
        errno: Some(12),
        text: "no".into(),
    };
    let rig = Rig::with([], |builder, folder| {
        builder.rdma(FailingFabric::of(folder, Failure::Register(refused)))
    });
    let completion = rig.get_whole(Policy::Http, KEY);
    assert_eq!(
        (completion.path(), completion.reason()),
        (Path::Http, Reason::Policy)
    );
    assert_eq!(completion.flags(), Flags::HTTP_INTENDED);
    assert_eq!(completion.fallback(), None);
    content::verify(KEY, 0, 0, completion.data().unwrap()).unwrap();
    assert_eq!(rig.engine.pool().stats().ledger.failed, 0);
}

#[test]
fn a_fabric_that_is_not_found_is_a_fallback() {
    let rig = Rig::with([], |builder, _| builder.rdma(Rdma::Auto));
    assert!(rig.engine.fabric().is_err());
    let completion = rig.get_whole(Policy::PreferRdma, KEY);
    assert_eq!(
        (completion.path(), completion.reason()),
        (Path::Http, Reason::NoFabric)
    );
    assert_eq!(completion.flags(), Flags::FELL_BACK);
    let failed = rig.get_whole(Policy::RequireRdma, KEY);
    assert_eq!(
        (failed.path(), failed.reason()),
        (Path::None, Reason::NoFabric)
    );
    assert_eq!(rig.sim.counters().requests, 1, "nothing was asked for");
}

#[test]
fn a_fabric_that_is_off_is_an_intent() {
    let rig = Rig::with([], |builder, _| builder.rdma(Rdma::Off));
    let completion = rig.get_whole(Policy::PreferRdma, KEY);
    assert_eq!(
        (completion.path(), completion.reason()),
        (Path::Http, Reason::Policy)
    );
    assert_eq!(completion.flags(), Flags::HTTP_INTENDED);
    let failed = rig.get_whole(Policy::RequireRdma, KEY);
    assert_eq!(
        (failed.path(), failed.reason()),
        (Path::None, Reason::NoFabric)
    );
}

#[test]
fn a_fabric_that_cannot_start_is_a_fallback_that_says_so() {
    let rig = Rig::with([], |builder, folder| {
        std::fs::write(folder, "a file where a folder should be").unwrap();
        builder.rdma(Rdma::Loopback(loopback(folder)))
    });
    assert!(rig.engine.fabric().is_err());
    let completion = rig.get_whole(Policy::PreferRdma, KEY);
    assert_eq!(
        (completion.path(), completion.reason()),
        (Path::Http, Reason::FabricInitFailed)
    );
    assert_eq!(completion.flags(), Flags::FELL_BACK);
    assert!(completion.fallback().unwrap().detail.contains("loopback"));
    let failed = rig.get_whole(Policy::RequireRdma, KEY);
    assert_eq!(failed.reason(), Reason::FabricInitFailed);
    assert!(failed.error().unwrap().to_string().contains("loopback"));
}

#[test]
fn small_objects_go_by_http_with_intent_unless_rdma_is_required() {
    let rig = Rig::new([]);
    let completion = rig.get_whole(Policy::PreferRdma, "1KiB-small");
    assert_eq!(
        (completion.path(), completion.reason()),
        (Path::Http, Reason::BelowThreshold)
    );
    assert_eq!(completion.flags(), Flags::HTTP_INTENDED);
    let completion = rig.get_whole(Policy::RequireRdma, "1KiB-small");
    assert_eq!(
        (completion.path(), completion.reason()),
        (Path::Rdma, Reason::Ok)
    );
    let completion = rig.get_whole(Policy::PreferRdma, "64KiB-at-the-threshold");
    assert_eq!(completion.path(), Path::Rdma);
}

#[test]
fn a_registration_that_failed_never_looks_like_http_that_was_asked_for() {
    let error = RegisterError {
        errno: Some(12),
        text: "the card has no more keys".into(),
    };
    let rig = Rig::with([], |builder, folder| {
        builder.rdma(FailingFabric::of(folder, Failure::Register(error)))
    });
    for _ in 0..3 {
        let completion = rig.get_whole(Policy::PreferRdma, KEY);
        assert_eq!(
            (completion.path(), completion.reason()),
            (Path::Http, Reason::RegistrationFailed)
        );
        assert_eq!(completion.flags(), Flags::REG_FAILED | Flags::FELL_BACK);
        let detail = &completion.fallback().unwrap().detail;
        assert!(detail.contains("the card has no more keys"), "{detail}");
        assert!(detail.contains("errno 12"), "{detail}");
        content::verify(KEY, 0, 0, completion.data().unwrap()).unwrap();
    }
    assert_eq!(
        rig.engine.pool().stats().ledger.failed,
        1,
        "tried once, then known"
    );
    let requests = rig.sim.counters().requests;
    let failed = rig.get_whole(Policy::RequireRdma, KEY);
    assert_eq!(
        (failed.path(), failed.reason()),
        (Path::None, Reason::RegistrationFailed)
    );
    assert_eq!(failed.flags(), Flags::REG_FAILED);
    let text = failed.error().unwrap().to_string();
    assert!(
        text.contains("the card has no more keys") && text.contains("errno 12"),
        "{text}"
    );
    assert_eq!(rig.sim.counters().requests, requests);
    assert_eq!(rig.sim.counters().rdma_clients, 0);
}

#[test]
fn the_limit_of_the_fabric_itself_is_a_failed_registration_too() {
    let rig = Rig::with([], |builder, folder| {
        let options = LoopbackOptions {
            max_registered: Some(1 << 20),
            ..loopback(folder)
        };
        builder.rdma(Rdma::Loopback(options))
    });
    let completion = rig.get_whole(Policy::PreferRdma, KEY);
    assert_eq!(completion.reason(), Reason::RegistrationFailed);
    assert!(completion.flags().contains(Flags::REG_FAILED));
    assert!(completion.fallback().unwrap().detail.contains("errno 12"));
}

#[test]
fn a_token_that_cannot_be_made_has_its_own_reason() {
    let provider = TokenError::Provider {
        text: "the port has no address".into(),
    };
    let too_long = TokenError::TooLong {
        len: SIZE,
        limit: 9,
    };
    for (error, reason, text) in [
        (provider, Reason::TokenFailed, "the port has no address"),
        (too_long, Reason::ProtocolLimit, "limit of 9 bytes"),
    ] {
        let rig = Rig::with([], |builder, folder| {
            builder.rdma(FailingFabric::of(folder, Failure::Token(error)))
        });
        let completion = rig.get_whole(Policy::PreferRdma, KEY);
        assert_eq!(
            (completion.path(), completion.reason()),
            (Path::Http, reason)
        );
        assert_eq!(completion.flags(), Flags::FELL_BACK);
        assert!(completion.fallback().unwrap().detail.contains(text));
        let failed = rig.get_whole(Policy::RequireRdma, KEY);
        assert_eq!((failed.path(), failed.reason()), (Path::None, reason));
        assert_eq!(rig.sim.counters().requests, 1);
        drop((completion, failed));
        rig.assert_drains();
    }
}

#[test]
fn a_token_that_the_server_cannot_resolve_is_rejected() {
    let rig = Rig::with([], |builder, folder| {
        builder.rdma(FailingFabric::of(folder, Failure::ForgedToken))
    });
    let completion = rig.get_whole(Policy::PreferRdma, KEY);
    assert_eq!(
        (completion.path(), completion.reason()),
        (Path::Http, Reason::TokenRejected)
    );
    let failed = rig.get_whole(Policy::RequireRdma, KEY);
    assert_eq!(failed.reason(), Reason::TokenRejected);
    assert_eq!(failed.error().unwrap().status(), Some(400));
}

#[test]
fn what_is_longer_than_a_registration_is_cut_and_not_refused() {
    let rig = Rig::with([], |builder, folder| {
        let pool = PoolOptions {
            slab_bytes: 8 << 20,
            max_bytes: Some(16 << 20),
            ..PoolOptions::default()
        };
        builder
            .pool(pool)
            .rdma(FailingFabric::of(folder, Failure::SegmentLimit(2 << 20)))
    });
    // So that the GET does not begin where a registration does.
    let _before = rig.buffer(12 << 10);
    let completion = rig.get_whole(Policy::RequireRdma, "5MiB-x");
    assert_eq!(completion.path(), Path::Rdma, "{completion:?}");
    content::verify("5MiB-x", 0, 0, completion.data().unwrap()).unwrap();
    assert_eq!(rig.sim.counters().rdma_read_ops, 3);
    assert_eq!(rig.engine.pool().stats().ledger.registered, 3);
}

/// What a server can answer to a token, what that is called, and how many requests it takes to get the
/// object all the same, and to find out that RDMA does not carry it.
fn lies() -> Vec<(Action, Reason, u64, u64)> {
    let wrong_bytes = |value, delta| Action::WrongBytes { value, delta };
    vec![
        (Action::DeclineWithBody, Reason::ServerDeclined, 1, 1),
        (Action::DeclineWithError, Reason::ServerDeclined, 2, 1),
        (Action::IgnoreToken, Reason::ReplyMissing, 1, 1),
        (Action::IgnoreTokenEmpty, Reason::ReplyMissing, 2, 1),
        (wrong_bytes(Some(7), None), Reason::BytesMismatch, 2, 1),
        (wrong_bytes(None, Some(-1)), Reason::BytesMismatch, 2, 1),
        (wrong_bytes(None, Some(1)), Reason::BytesMismatch, 2, 1),
        (wrong_bytes(Some(0), None), Reason::BytesMismatch, 2, 1),
        (Action::MissingBytes, Reason::BytesMissing, 2, 1),
        (Action::MissingReply, Reason::ReplyMissing, 2, 1),
        (Action::TokenRejected, Reason::TokenRejected, 2, 1),
        (Action::TokenRejectedAistor, Reason::TokenRejected, 2, 1),
        // Answered, so it may be tried again; where there is no other way, it is.
        (Action::RdmaTransferFailed, Reason::RdmaError, 2, 3),
        (
            Action::WrongRange { shift: 10 },
            Reason::BytesMismatch,
            2,
            1,
        ),
        (
            Action::WrongLength { delta: 5 },
            Reason::BytesMismatch,
            2,
            1,
        ),
    ]
}

#[test]
fn each_lie_of_a_server_is_a_fallback_with_its_own_reason() {
    for (action, reason, requests, _) in lies() {
        let rig = Rig::new([on_rdma(action.clone())]);
        let before = rig.sim.counters();
        let buffer = rig.buffer(SIZE);
        let slot = buffer.slot();
        // A part of the object, of which the reply must name the place.
        let get = Get::new("bench", "1MiB-y").range(4096, SIZE).into(buffer);
        let completion = rig.get(Policy::PreferRdma, get);
        assert_eq!(
            (completion.path(), completion.reason()),
            (Path::Http, reason),
            "{action:?}: {completion:?}"
        );
        assert_eq!(completion.flags(), Flags::FELL_BACK, "{action:?}");
        assert_eq!(completion.bytes_by_path().http, SIZE, "{action:?}");
        content::verify("1MiB-y", 0, 4096, completion.data().unwrap()).unwrap();
        assert_eq!(since(&rig, before).0, requests, "{action:?}");
        let buffer = completion.into_buffer().unwrap();
        assert_eq!(buffer.slot(), slot, "an answered failure moves nothing");
        drop(buffer);
        rig.assert_drains();
        assert_eq!(rig.engine.pool().stats().ledger.revoked, 0, "{action:?}");
    }
}

#[test]
fn each_lie_of_a_server_is_a_failure_where_rdma_is_required() {
    for (action, reason, _, requests) in lies() {
        let rig = Rig::new([on_rdma(action.clone())]);
        let before = rig.sim.counters();
        let failed = rig.get_whole(Policy::RequireRdma, KEY);
        assert_eq!(
            (failed.path(), failed.reason()),
            (Path::None, reason),
            "{action:?}: {failed:?}"
        );
        assert_eq!(failed.flags(), Flags::empty(), "{action:?}");
        assert_eq!(since(&rig, before).0, requests, "{action:?}");
        let counters = rig.sim.counters();
        assert_eq!(
            counters.faults, counters.requests,
            "{action:?}: a request without a token"
        );
        let kind = failed.error().unwrap().kind();
        assert!(
            matches!(kind, ErrorKind::Rdma { detail, .. } if !detail.is_empty()),
            "{action:?}: {kind:?}"
        );
        assert!(
            failed.into_buffer().is_some(),
            "{action:?}: nothing is in doubt"
        );
        rig.assert_drains();
    }
}

#[test]
fn a_whole_object_needs_an_answer_that_tells_its_size() {
    let answer = |headers: &str| {
        format!(
            "HTTP/1.1 206 Partial Content\r\nContent-Length: 0\r\nx-amz-rdma-reply: 206\r\n{headers}\r\n"
        )
    };
    for (bytes, range) in [
        // The window is full, and the object might go on.
        (SIZE, ""),
        (SIZE, "Content-Range: bytes 0-307199/*\r\n"),
        (SIZE, "Content-Range: here and there\r\n"),
        (SIZE, "Content-Range: bytes 0-307199/307201\r\n"),
        (7, ""),
        (7, "Content-Range: bytes 0-6/*\r\n"),
        (7, "Content-Range: bytes 0-6/307200\r\n"),
    ] {
        let headers = format!("x-amz-rdma-bytes-transferred: {bytes}\r\n{range}");
        let folder = tempfile::tempdir().unwrap();
        let engine = quick_builder(&canned_server(answer(&headers)))
            .rdma(Rdma::Loopback(loopback(&folder.path().join("loopback"))))
            .build()
            .unwrap();
        let buffer = engine.pool().try_alloc(SIZE, Memory::Host).unwrap();
        let get = Get::new("bench", KEY)
            .into(buffer)
            .policy(Policy::RequireRdma);
        let failed = block_on(engine.get(get));
        assert_invariants(&failed, Policy::RequireRdma);
        let refused = [Reason::BytesMismatch, Reason::StaleBuffer];
        assert!(refused.contains(&failed.reason()), "{headers}: {failed:?}");
    }
}

#[test]
fn a_range_that_cannot_be_read_is_not_taken_for_none() {
    let answer = format!(
        "HTTP/1.1 206 Partial Content\r\nContent-Length: 0\r\nx-amz-rdma-reply: 206\r\n\
         x-amz-rdma-bytes-transferred: {SIZE}\r\nContent-Range: bytes 9-1/2\r\n\r\n"
    );
    let folder = tempfile::tempdir().unwrap();
    let engine = quick_builder(&canned_server(answer))
        .rdma(Rdma::Loopback(loopback(&folder.path().join("loopback"))))
        .build()
        .unwrap();
    let get = Get::new("bench", KEY).range(0, SIZE);
    let failed = block_on(engine.get(get.policy(Policy::RequireRdma)));
    assert_invariants(&failed, Policy::RequireRdma);
    assert_eq!(failed.reason(), Reason::BytesMismatch);
}

#[test]
fn an_object_in_the_body_of_a_decline_is_not_fetched_again() {
    let rig = Rig::new([on_rdma(Action::DeclineWithBody)]);
    let completion = rig.get_whole(Policy::PreferRdma, KEY);
    assert_eq!(completion.reason(), Reason::ServerDeclined);
    assert_eq!(rig.sim.counters().requests, 1);
    content::verify(KEY, 0, 0, completion.data().unwrap()).unwrap();
}

#[test]
fn a_server_without_the_feature_delivers_in_one_request() {
    let rig = Rig::new([on_rdma(Action::IgnoreToken)]);
    let completion = rig.get_whole(Policy::PreferRdma, KEY);
    assert_eq!(
        (completion.path(), completion.reason()),
        (Path::Http, Reason::ReplyMissing)
    );
    assert_eq!(rig.sim.counters().requests, 1);
}

#[test]
fn a_claim_that_nobody_can_check_is_marked_as_such() {
    let rig = Rig::new([on_rdma(Action::ClaimWithoutWriting)]);
    let mut buffer = rig.buffer(SIZE);
    buffer.as_mut_slice().unwrap().fill(0x5a);
    let completion = rig.get(Policy::RequireRdma, Get::new("bench", KEY).into(buffer));
    assert_eq!(completion.path(), Path::Rdma);
    assert!(completion.flags().contains(Flags::NOT_VERIFIED));
    assert!(completion.data().unwrap().iter().all(|&byte| byte == 0x5a));
}

#[test]
fn errors_of_the_object_are_errors_of_http_under_a_token_too() {
    let status = |code, s3_code: Option<&str>| Action::Status {
        code,
        s3_code: s3_code.map(str::to_owned),
        headers: Default::default(),
    };
    for (action, code, requests) in [
        (status(404, Some("NoSuchKey")), 404, 1),
        (status(404, None), 404, 1),
        (status(403, Some("AccessDenied")), 403, 1),
        (status(401, None), 401, 1),
        (Action::SlowDown { retry_after: None }, 503, 3),
        (status(500, Some("InternalError")), 500, 3),
        (status(418, None), 418, 1),
    ] {
        for policy in [Policy::PreferRdma, Policy::RequireRdma] {
            let rig = Rig::new([on_rdma(action.clone())]);
            let failed = rig.get_whole(policy, KEY);
            assert_eq!(
                (failed.path(), failed.reason()),
                (Path::None, Reason::HttpError),
                "{action:?}: {failed:?}"
            );
            assert_eq!(failed.status(), Some(code), "{action:?}");
            assert_eq!(failed.error().unwrap().status(), Some(code));
            assert!(failed.request_id().is_some(), "{action:?}");
            let counters = rig.sim.counters();
            assert_eq!(counters.requests, requests, "{action:?}");
            assert_eq!(counters.faults, requests, "{action:?}: HTTP was tried");
            assert!(failed.into_buffer().is_some(), "{action:?}");
        }
    }
}

#[test]
fn a_busy_server_is_asked_again_by_rdma() {
    let busy = Action::SlowDown { retry_after: None };
    for policy in [Policy::PreferRdma, Policy::RequireRdma] {
        let rig = Rig::new([on_rdma(busy.clone()).count(2)]);
        let completion = rig.get_whole(policy, KEY);
        assert_eq!(
            (completion.path(), completion.reason()),
            (Path::Rdma, Reason::Ok)
        );
        assert_eq!(rig.sim.counters().requests, 3);
    }
    let rig = Rig::new([on_rdma(Action::RdmaTransferFailed).count(1)]);
    let completion = rig.get_whole(Policy::RequireRdma, KEY);
    assert_eq!(completion.path(), Path::Rdma, "{completion:?}");
    content::verify(KEY, 0, 0, completion.data().unwrap()).unwrap();
}

#[test]
fn missing_objects_and_ranges_beyond_the_end_are_what_they_are() {
    let rig = Rig::new([]);
    for policy in [Policy::PreferRdma, Policy::RequireRdma, Policy::Http] {
        let get = Get::new("bench", "no-size").into(rig.buffer(1 << 20));
        let failed = rig.get(policy, get);
        assert_eq!(failed.reason(), Reason::HttpError);
        assert_eq!(failed.error().unwrap().code(), Some("NoSuchKey"));
        let get = Get::new("nowhere", KEY).into(rig.buffer(1 << 20));
        let failed = rig.get(policy, get);
        assert_eq!(failed.error().unwrap().code(), Some("NoSuchBucket"));
        let get = Get::new("bench", "1MiB-y").range(1 << 20, 100 << 10);
        let failed = rig.get(policy, get);
        assert_eq!(failed.status(), Some(416), "{failed:?}");
        assert_eq!(failed.reason(), Reason::HttpError);
        // The last bytes of the object, and more.
        let get = Get::new("bench", "1MiB-y").range((1 << 20) - 1000, 100 << 10);
        let partial = rig.get(policy, get);
        assert!(partial.is_ok(), "{partial:?}");
        assert!(partial.flags().contains(Flags::PARTIAL));
        assert_eq!(partial.bytes(), 1000);
        content::verify("1MiB-y", 0, (1 << 20) - 1000, partial.data().unwrap()).unwrap();
    }
}

#[test]
fn an_object_that_does_not_fit_is_refused_with_the_size_it_needs() {
    let rig = Rig::new([]);
    for policy in [Policy::PreferRdma, Policy::RequireRdma, Policy::Http] {
        let failed = rig.get(policy, Get::new("bench", "1MiB-y").into(rig.buffer(SIZE)));
        let kind = failed.error().unwrap().kind();
        let wanted = ErrorKind::BufferTooSmall {
            needed: 1 << 20,
            have: SIZE,
        };
        assert_eq!(*kind, wanted);
        assert_eq!(failed.reason(), Reason::StaleBuffer);
    }
}

/// People look reasons up there.
#[test]
fn every_reason_stands_in_the_table_of_the_documents() {
    let table = include_str!("../../docs/rdma.md");
    for reason in Reason::ALL {
        let row = |line: &&str| line.starts_with('|') && line.contains(&format!("`{reason}`"));
        assert!(table.lines().any(|line| row(&line)), "{reason}");
    }
}
