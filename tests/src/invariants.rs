//! What holds of every completion, whatever the transport, the fault and the policy.

use s3engine::{Buffer, Completion, Flags, Memory, Path, Policy, Reason, Unverified, Verified};

/// How a GET can end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Rdma,
    HttpByIntent,
    HttpByFallback,
    Cache,
    /// There was nothing to fetch.
    Nothing,
    Failure,
    /// It has not ended.
    News,
}

/// Panics, saying what is wrong, unless the completion tells one consistent story that `policy` allows.
pub fn assert_invariants(completion: &Completion, policy: Policy) {
    let end = end(completion);
    check_end(completion, policy, end);
    check_flags(completion, policy, end);
    check_bytes(completion, end);
    check_stages(completion);
}

/// Every completion is exactly one of these, judged by path, flags and error alone.
fn end(completion: &Completion) -> End {
    let flags = completion.flags();
    let fell_back = flags.contains(Flags::FELL_BACK);
    let intended = flags.contains(Flags::HTTP_INTENDED);
    match (completion.path(), completion.is_ok()) {
        _ if flags.contains(Flags::MORE) => End::News,
        (Path::None, false) => End::Failure,
        (path, false) => panic!("a failure on path {path}: {completion:?}"),
        (Path::Rdma, true) if !fell_back && !intended => End::Rdma,
        (Path::Http, true) if intended && !fell_back => End::HttpByIntent,
        (Path::Http, true) if fell_back && !intended => End::HttpByFallback,
        (Path::Cache, true) if !fell_back && !intended => End::Cache,
        (Path::None, true) if !fell_back && !intended => End::Nothing,
        _ => panic!("path and flags contradict each other: {completion:?}"),
    }
}

fn check_end(completion: &Completion, policy: Policy, end: End) {
    let reason = completion.reason();
    let fits = match end {
        End::Rdma => policy != Policy::Http && reason == Reason::Ok,
        End::HttpByIntent => match reason {
            Reason::Policy => policy != Policy::RequireRdma,
            Reason::BelowThreshold => policy == Policy::PreferRdma,
            _ => false,
        },
        End::HttpByFallback => {
            let fallback = completion.fallback().expect("a fallback has its reason");
            assert!(
                !fallback.detail.is_empty(),
                "a fallback says why: {completion:?}"
            );
            policy == Policy::PreferRdma && reason.is_of_rdma() && fallback.reason == reason
        }
        End::Cache => reason == Reason::CacheHit,
        End::Nothing => reason == Reason::Ok,
        End::Failure => {
            let error = completion.error().expect("a failure has an error");
            error.reason() == reason && is_of_failure(reason)
        }
        End::News => reason.is_of_rdma() || is_of_failure(reason),
    };
    assert!(
        fits,
        "{end:?} for {reason} does not fit {policy}: {completion:?}"
    );
    if policy == Policy::Http {
        assert!(
            !reason.is_of_rdma(),
            "RDMA was not wanted and is blamed: {completion:?}"
        );
    }
}

fn is_of_failure(reason: Reason) -> bool {
    !matches!(
        reason,
        Reason::Ok | Reason::CacheHit | Reason::Policy | Reason::BelowThreshold
    )
}

fn check_flags(completion: &Completion, policy: Policy, end: End) {
    let flags = completion.flags();
    let has = |flag| flags.contains(flag);
    if has(Flags::REG_FAILED) {
        assert_ne!(policy, Policy::Http, "{completion:?}");
        assert!(!has(Flags::HTTP_INTENDED), "{completion:?}");
    }
    if completion.reason() == Reason::RegistrationFailed {
        assert!(has(Flags::REG_FAILED), "{completion:?}");
    }
    if matches!(end, End::Failure | End::News) {
        let never = Flags::FELL_BACK | Flags::HTTP_INTENDED | Flags::NOT_VERIFIED | Flags::PARTIAL;
        assert!(!flags.intersects(never | Flags::STAGED), "{completion:?}");
    } else {
        let memory = completion.buffer().map(Buffer::memory);
        let on_device = matches!(memory, Some(Memory::Cuda(_)));
        let staged = on_device && completion.bytes_by_path().http > 0;
        assert_eq!(has(Flags::STAGED), staged, "{completion:?}");
        let shown = matches!(completion.verified(), Verified::Verified(_));
        let unseen = completion.bytes_by_path().rdma > 0 && !shown;
        assert_eq!(has(Flags::NOT_VERIFIED), unseen, "{completion:?}");
    }
    if matches!(end, End::Failure | End::News) {
        let nothing = Verified::NotVerified(Unverified::Nothing);
        assert_eq!(completion.verified(), nothing, "{completion:?}");
    }
    let buffer = completion.buffer();
    let on_device = buffer.is_some_and(|buffer| buffer.memory() != Memory::Host);
    let staged = on_device && completion.bytes_by_path().http > 0;
    assert_eq!(has(Flags::STAGED), staged, "{completion:?}");
}

fn check_bytes(completion: &Completion, end: End) {
    let by_path = completion.bytes_by_path();
    assert_eq!(completion.bytes(), by_path.total(), "{completion:?}");
    let fits = match end {
        End::Rdma => by_path.http == 0 && by_path.cache == 0,
        End::HttpByIntent => by_path.rdma == 0 && by_path.cache == 0,
        End::HttpByFallback => by_path.cache == 0,
        End::Cache => by_path.rdma == 0 && by_path.http == 0,
        End::Nothing | End::Failure | End::News => by_path.total() == 0,
    };
    assert!(
        fits,
        "bytes on a path that {end:?} does not use: {completion:?}"
    );
    let delivered = matches!(
        end,
        End::Rdma | End::HttpByIntent | End::HttpByFallback | End::Cache
    );
    if delivered {
        let buffer = completion.buffer().expect("delivered bytes have a buffer");
        assert!(buffer.len() >= completion.bytes(), "{completion:?}");
        let data = completion.data().map(|data| data.len() as u64);
        let readable = (buffer.memory() == Memory::Host).then_some(completion.bytes());
        assert_eq!(data, readable, "{completion:?}");
        assert!(completion.status().is_some(), "{completion:?}");
    }
    if end == End::News {
        assert!(
            completion.data().is_none(),
            "news has no buffer: {completion:?}"
        );
    }
}

/// A stage that was reached was reached before the end, and in order.
fn check_stages(completion: &Completion) {
    let stages = completion.stages();
    let reached = [
        stages.queued,
        stages.registered,
        stages.first_byte,
        Some(stages.done),
    ];
    let reached: Vec<_> = reached.into_iter().flatten().collect();
    assert!(reached.is_sorted(), "{completion:?}");
}
