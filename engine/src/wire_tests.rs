use proptest::prelude::*;
use s3engine_ring::{
    CQE_FELL_BACK, CQE_HTTP_INTENDED, CQE_MORE, CQE_MOVED, CQE_NOT_VERIFIED, CQE_PARTIAL,
    CQE_REG_FAILED, CQE_STAGED, DETAIL_CUT, Layout, Regions, Taken,
};
use s3engine_s3::checksum::Algorithm;

use s3engine_s3::error::{Attempt, History};

use super::*;

#[test]
fn the_flags_of_a_completion_are_the_bits_of_the_abi() {
    let pairs = [
        (Flags::FELL_BACK, CQE_FELL_BACK),
        (Flags::HTTP_INTENDED, CQE_HTTP_INTENDED),
        (Flags::REG_FAILED, CQE_REG_FAILED),
        (Flags::NOT_VERIFIED, CQE_NOT_VERIFIED),
        (Flags::PARTIAL, CQE_PARTIAL),
        (Flags::MORE, CQE_MORE),
        (Flags::MOVED, CQE_MOVED),
        (Flags::STAGED, CQE_STAGED),
    ];
    for (flag, bit) in pairs {
        assert_eq!(flag.bits(), u32::from(bit), "{flag:?}");
    }
    assert_eq!(Flags::all().bits().count_ones() as usize, pairs.len());
}

#[test]
fn everything_that_a_checksum_can_show_has_a_code() {
    let shows = Algorithm::ALL.iter().map(|of| Verified::Verified(*of));
    let not = Unverified::ALL
        .iter()
        .map(|why| Verified::NotVerified(*why));
    for told in shows.chain(not) {
        let code = verified_code(shown(told)).unwrap();
        assert_eq!(super::verified(code), told);
    }
    let of_old_services = super::verified(0);
    assert_eq!(of_old_services, Verified::NotVerified(Unverified::Off));
}

#[test]
fn a_get_that_wants_two_versions_cannot_be_said() {
    let info = ObjectInfo {
        etag: Some(ETag::new("\"a\"")),
        size: Some(1),
        ..ObjectInfo::default()
    };
    let get = |etag| Get::new("b", "k").version(&info).if_match(ETag::new(etag));
    assert!(request(&get("\"a\""), None).is_ok());
    let Err(ErrorKind::Modified { expected, found }) = request(&get("\"b\""), None) else {
        panic!("no object is both")
    };
    assert_eq!((&*expected, &*found), ("etag \"b\"", "etag \"a\""));
}

fn options_of() -> impl Strategy<Value = (Option<Mode>, Option<Checksum>, RequestOptions)> {
    let options = (
        maybe("[ -~]{0,30}".boxed()),
        proptest::option::of(any::<([u8; 32], bool)>()),
        any::<bool>(),
        maybe("[0-9]{0,12}".boxed()),
        proptest::collection::vec(("x-[a-z]{1,9}", "[!-~]{0,20}"), 0..4),
    );
    let options = options.prop_map(|(version_id, key, request_payer, owner, headers)| {
        let headers = headers.iter().map(|(name, value)| (&**name, &**value));
        RequestOptions {
            version_id,
            customer_key: key.map(|(key, plain)| match plain {
                true => CustomerKey::new(key).over_plain_http(),
                false => CustomerKey::new(key),
            }),
            request_payer,
            expected_bucket_owner: owner,
            headers: ExtraHeaders::of(headers).unwrap(),
        }
    });
    let mode = proptest::option::of(proptest::sample::select(Mode::ALL));
    (mode, proptest::option::of(checksum()), options)
}

#[test]
fn a_peer_that_knows_no_options_is_told_none_and_never_less_than_is_asked_for() {
    let info = ObjectInfo {
        size: Some(1),
        checksum: Checksum::from_base64(Algorithm::Crc32, "y/Q5Jg==").map(Offered::Whole),
        ..ObjectInfo::default()
    };
    let get = || Get::new("b", "k").version(&info);
    assert!(
        options(&Get::new("b", "k"), OPTIONS_VERSION)
            .unwrap()
            .is_none()
    );
    assert!(options(&get(), OPTIONS_VERSION).unwrap().is_some());
    let older = OPTIONS_VERSION - 1;
    assert!(
        options(&get().checksum(Mode::WhenOffered), older)
            .unwrap()
            .is_none()
    );
    let payer = RequestOptions {
        request_payer: true,
        ..RequestOptions::default()
    };
    for get in [get().checksum(Mode::Required), get().options(payer)] {
        let refused = options(&get, older).unwrap_err();
        assert!(matches!(refused, ErrorKind::Service(_)), "{refused}");
    }
}

#[test]
fn options_that_no_client_of_ours_sends_are_refused() {
    let heard = |options: Options| set_options(&mut Get::new("b", "k"), options);
    for options in [
        Options {
            checksum_mode: Some(9),
            ..Options::default()
        },
        Options {
            headers: vec![("host".into(), "elsewhere".into())],
            ..Options::default()
        },
        Options {
            headers: vec![("x-amz-rdma-token".into(), "1".into())],
            ..Options::default()
        },
    ] {
        assert!(matches!(heard(options), Err(ErrorKind::Config(_))));
    }
}

#[test]
fn a_deadline_is_never_said_shorter_than_it_is() {
    let said = |deadline| {
        let get = Get::new("b", "k").deadline(deadline);
        request(&get, None).unwrap().deadline_ms
    };
    assert_eq!(said(Duration::ZERO), 1, "0 is the engine's own");
    assert_eq!(said(Duration::from_micros(1500)), 2);
    assert_eq!(said(Duration::MAX), u32::MAX);
}

#[test]
fn numbers_and_codes_out_of_nowhere_are_no_success_and_no_panic() {
    let asked = Asked {
        ticket: Ticket(5),
        bucket: "bucket",
        key: "key",
        endpoint: "http://s3:9000",
    };
    let detail = Detail {
        rdma_bytes: u64::MAX,
        http_bytes: 1,
        ..Detail::default()
    };
    let heard = |path, reason| {
        let cqe = Cqe {
            path,
            reason,
            ..Cqe::default()
        };
        heard(&cqe, &detail, &asked)
    };
    let (rdma, ok) = (path_code("rdma").unwrap(), reason_code("ok").unwrap());
    assert!(heard(rdma, ok).is_ok());
    assert_eq!(heard(rdma, ok).bytes(), u64::MAX);
    for (path, reason) in [(0, ok), (rdma, 0), (99, ok), (rdma, 99), (0, 0)] {
        let completion = heard(path, reason);
        let error = completion.error().expect("no success");
        assert!(matches!(error.kind(), ErrorKind::Service(_)), "{error}");
    }
}

fn text() -> impl Strategy<Value = String> {
    "\\PC{0,30}"
}

fn maybe(text: impl Strategy<Value = String>) -> impl Strategy<Value = Option<String>> {
    // An empty text and none are the same on the wire.
    proptest::option::of(text).prop_map(|text| text.filter(|text| !text.is_empty()))
}

fn duration_of() -> impl Strategy<Value = Duration> {
    (0..u64::MAX / 2).prop_map(Duration::from_nanos)
}

fn checksum() -> impl Strategy<Value = Checksum> {
    let algorithm = proptest::sample::select(Algorithm::ALL);
    (algorithm, any::<[u8; 32]>()).prop_map(|(algorithm, bytes)| {
        Checksum::from_bytes(algorithm, &bytes[..algorithm.size()]).unwrap()
    })
}

fn verified() -> impl Strategy<Value = Verified> {
    prop_oneof![
        proptest::sample::select(Algorithm::ALL).prop_map(Verified::Verified),
        proptest::sample::select(Unverified::ALL).prop_map(Verified::NotVerified),
    ]
}

fn error_kind() -> impl Strategy<Value = ErrorKind> {
    let of_rdma = (proptest::sample::select(Reason::ALL), text());
    let status = || (300..600_u16, maybe(text()), maybe(text()), maybe(text()));
    prop_oneof![
        text().prop_map(ErrorKind::Config),
        text().prop_map(ErrorKind::Connect),
        text().prop_map(ErrorKind::Tls),
        text().prop_map(ErrorKind::Reset),
        text().prop_map(ErrorKind::Protocol),
        text().prop_map(ErrorKind::Cuda),
        text().prop_map(ErrorKind::Service),
        text().prop_map(ErrorKind::Denied),
        text().prop_map(ErrorKind::Credentials),
        (proptest::sample::select(&PHASES[..]), duration_of())
            .prop_map(|(phase, after)| ErrorKind::Timeout { phase, after }),
        any::<(u64, u64)>()
            .prop_map(|(received, expected)| ErrorKind::Truncated { received, expected }),
        status().prop_map(|(status, code, message, _)| ErrorKind::Status {
            status,
            code,
            message
        }),
        status().prop_map(|(status, code, region, host)| ErrorKind::Redirect {
            status,
            code,
            region,
            host
        }),
        (text(), text()).prop_map(|(expected, found)| ErrorKind::Modified { expected, found }),
        any::<(u64, u64)>().prop_map(|(needed, have)| ErrorKind::BufferTooSmall { needed, have }),
        proptest::option::of(0..u64::MAX).prop_map(|size| ErrorKind::RangeNotSatisfiable { size }),
        of_rdma.prop_map(|(reason, detail)| ErrorKind::Rdma { reason, detail }),
        (checksum(), checksum())
            .prop_map(|(expected, found)| ErrorKind::Checksum(Mismatch { expected, found })),
        proptest::sample::select(Unverified::ALL).prop_map(ErrorKind::NotVerified),
        Just(ErrorKind::Cancelled),
        Just(ErrorKind::Deadline),
    ]
}

#[derive(Clone, Debug)]
enum Beneath {
    Nothing,
    System(i32),
    Other(ErrorKind),
}

fn error_of_all_kinds() -> impl Strategy<Value = Error> {
    let beneath = prop_oneof![
        Just(Beneath::Nothing),
        (1..133_i32).prop_map(Beneath::System),
        error_kind()
            .prop_filter("said in words", |kind| !kind.to_string().is_empty())
            .prop_map(Beneath::Other),
    ];
    let more = (
        proptest::option::of(proptest::sample::select(&PHASES[..])),
        proptest::option::of(duration_of()),
        any::<bool>(),
        proptest::option::of(any::<std::net::SocketAddr>()),
        maybe(text()),
        maybe(text()),
        (any::<bool>(), attempts()),
    );
    (error_kind(), beneath, 1..9_u32, more).prop_map(
        |(kind, beneath, attempt, (phase, wait, head, address, request_id, host_id, tried))| {
            let (spent, history) = tried;
            let status = matches!(kind, ErrorKind::Protocol(_)).then_some(206);
            let timed = matches!(kind, ErrorKind::Timeout { .. });
            let error = Error::new(if head { "HEAD" } else { "GET" }, "bucket", "key", kind)
                .with_endpoint("http://s3:9000")
                .with_attempt(attempt, 9)
                .with_retry_after(wait)
                .with_address(address)
                .with_ids(request_id, host_id)
                .with_history(history);
            let error = match spent {
                true => error.with_budget_spent(),
                false => error,
            };
            let error = match phase.filter(|_| !timed) {
                Some(phase) => error.with_phase(phase),
                None => error,
            };
            let error = match status {
                Some(status) => error.with_status(status),
                None => error,
            };
            match beneath {
                Beneath::Nothing => error,
                Beneath::System(errno) => error.with_source(io::Error::from_raw_os_error(errno)),
                Beneath::Other(kind) => error.with_source(kind),
            }
        },
    )
}

fn attempts() -> impl Strategy<Value = History> {
    let attempt = (
        any::<[u32; 2]>(),
        proptest::option::of(proptest::sample::select(&PHASES[..])),
        proptest::option::of(any::<std::net::SocketAddrV4>()),
        "[ -~]{0,20}",
    );
    proptest::collection::vec(attempt, 0..4).prop_map(|attempts| {
        let mut history = History::default();
        for (nth, (us, phase, address, what)) in attempts.into_iter().enumerate() {
            let [began, took] = us.map(|us| Duration::from_micros(us.into()));
            history.push(Attempt {
                number: nth as u32 + 1,
                began,
                took,
                phase,
                address: address.map(Into::into),
                what,
            });
        }
        history
    })
}

fn completion() -> impl Strategy<Value = Completion> {
    let stages = (
        proptest::option::of(duration_of()),
        proptest::option::of(duration_of()),
        proptest::option::of(duration_of()),
        duration_of(),
    );
    let info = (
        maybe(text()),
        maybe(text()),
        proptest::option::of(0..u64::MAX),
        proptest::option::of(duration_of()),
    );
    let how = (
        proptest::sample::select(Path::ALL),
        proptest::sample::select(Reason::ALL),
        any::<u32>(),
        any::<[u32; 3]>(),
        proptest::option::of((proptest::sample::select(Reason::ALL), text())),
        proptest::option::of(error_of_all_kinds()),
        (verified(), proptest::option::of(checksum())),
    );
    (any::<u64>(), stages, info, maybe(text()), how).prop_map(
        |(user_data, stages, info, request_id, how)| {
            let (path, reason, flags, bytes, fallback, error, (verified, sum)) = how;
            let [rdma, http, cache] = bytes.map(u64::from);
            let (etag, version_id, size, modified) = info;
            Completion {
                ticket: Ticket(5),
                user_data,
                path,
                reason: error.as_ref().map_or(reason, Error::reason),
                flags: Flags::from_bits_truncate(flags) - Flags::MORE,
                by_path: BytesByPath { rdma, http, cache },
                verified: match error {
                    Some(_) => Verified::NotVerified(Unverified::Nothing),
                    None => verified,
                },
                sum: sum.filter(|_| error.is_none()),
                status: error.as_ref().and_then(Error::status).or(Some(200)),
                info: ObjectInfo {
                    etag: etag.map(ETag::new),
                    version_id,
                    size,
                    last_modified: modified.map(|since| SystemTime::UNIX_EPOCH + since),
                    checksum: sum.filter(|_| error.is_none()).map(Offered::Whole),
                },
                request_id: match &error {
                    Some(error) => error.request_id().map(str::to_owned),
                    None => request_id,
                },
                stages: Stages {
                    queued: stages.0,
                    registered: stages.1,
                    first_byte: stages.2,
                    done: stages.3,
                },
                fallback: fallback.map(|(reason, detail)| Fallback { reason, detail }),
                error,
                buffer: None,
            }
        },
    )
}

/// Through both ends of a queue.
fn through_the_rings(completion: &Completion) -> (Completion, u8) {
    let layout = Layout::new(1).unwrap();
    let (mut client, mut service) = Regions::heap(layout).ends(layout, 0).unwrap();
    let get = Get::new("bucket", "key").user_data(completion.user_data);
    client
        .push_get(&request(&get, None).unwrap(), get.user_data)
        .unwrap();
    let _ = client.submit(0);
    let Ok(Some(Taken::Get(taken, ..))) = service.take() else {
        panic!("a GET was submitted")
    };
    let (outcome, detail) = told(completion);
    service.complete(taken, &outcome, Some(&detail)).unwrap();
    let _ = service.publish();
    let reaped = client.reap().unwrap().unwrap();
    let (cqe, detail) = (reaped.cqe, reaped.detail().unwrap());
    let asked = Asked {
        ticket: Ticket(5),
        bucket: "bucket",
        key: "key",
        endpoint: "http://s3:9000",
    };
    (heard(&cqe, &detail, &asked), detail.flags)
}

proptest! {
    #[test]
    fn what_is_told_of_a_completion_is_heard(completion in completion()) {
        let (heard, flags) = through_the_rings(&completion);
        prop_assert_eq!(heard.error.is_some(), completion.error.is_some());
        prop_assert_eq!(heard.reason, completion.reason);
        // Texts of more than a record's 864 bytes are cut, and said to be.
        prop_assume!(flags & DETAIL_CUT == 0);
        let error = |completion: &Completion| completion.error.as_ref().map(|error| {
            let source = error.source().map(ToString::to_string).unwrap_or_default();
            let facts = (error.status(), error.phase(), error.retry_after(), error.address().map(|address| address.to_string()));
            let told = (error.host_id().map(str::to_owned), error.history().clone(), error.is_budget_spent());
            (error.to_string(), error.kind().clone(), source, facts, told)
        });
        let (mut told_error, heard_error) = (error(&completion), error(&heard));
        if let (Some(told), Some(heard)) = (&mut told_error, &heard_error) {
            // A timeout is of its own phase, and RDMA fails for the completion's reason.
            if matches!(told.1, ErrorKind::Timeout { .. }) {
                told.3.1 = heard.3.1;
            }
        }
        prop_assert_eq!(heard_error, told_error);
        let rest = |completion: &Completion| {
            let Completion { ticket, user_data, path, flags, by_path, status, info, request_id, stages, fallback, verified, sum, .. } = completion;
            (*ticket, *user_data, *path, *flags, *by_path, *status, info.clone(), request_id.clone(), *stages, fallback.clone(), *verified, *sum)
        };
        prop_assert_eq!(rest(&heard), rest(&completion));
    }

    #[test]
    fn what_is_asked_for_is_heard(
        size in proptest::option::of(any::<u64>()),
        etag in maybe("[ -~]{0,128}".boxed()),
        version in maybe("[ -~]{0,64}".boxed()),
        range in proptest::option::of((0..1_u64 << 60, 0..1_u64 << 60)),
        policy in proptest::option::of(proptest::sample::select(Policy::ALL)),
        deadline_ms in proptest::option::of(1..u32::MAX),
        user_data in any::<u64>(),
        (mode, checksum, asked) in options_of(),
    ) {
        let mut get = Get::new("bucket", "a/key").user_data(user_data).options(asked);
        get.checksum = mode;
        (get.range, get.policy) = (range, policy);
        get.deadline = deadline_ms.map(|ms| Duration::from_millis(ms.into()));
        let etag = etag.map(ETag::new);
        match size {
            Some(size) => get.version = Some(Pin { etag, version_id: version, size, checksum: checksum.map(Offered::Whole) }),
            None => get.if_match = etag,
        }
        let layout = Layout::new(1).unwrap();
        let (mut client, mut service) = Regions::heap(layout).ends(layout, 0).unwrap();
        let told = options(&get, OPTIONS_VERSION).unwrap();
        client.push_get(&request(&get, told.as_ref()).unwrap(), user_data).unwrap();
        let _ = client.submit(7);
        let Ok(Some(Taken::Get(ticket, taken))) = service.take() else { panic!() };
        let (checked, record) = *taken;
        let Object::Named { bucket, key, etag, version } = record.object else { panic!() };
        let mut heard = self::get(&checked, ticket.user_data(), Name::new(bucket, key, etag, version));
        if let Some(options) = record.options {
            set_options(&mut heard, *options).unwrap();
        }
        prop_assert_eq!((heard.checksum, heard.options), (get.checksum, get.options));
        prop_assert_eq!((heard.bucket, heard.key), (get.bucket, get.key));
        prop_assert_eq!((heard.range, heard.policy, heard.deadline), (get.range, get.policy, get.deadline));
        prop_assert_eq!((heard.if_match, heard.version), (get.if_match, get.version));
        prop_assert_eq!((heard.user_data, heard.fixed, record.submitted_ns), (user_data, false, 7));
    }
}
