use super::*;
use proptest::prelude::*;

fn of(kind: ErrorKind) -> Error {
    Error::new("GET", "b", "k", kind)
}

fn status(status: u16, code: Option<&str>) -> Error {
    of(ErrorKind::Status {
        status,
        code: code.map(str::to_owned),
        message: None,
    })
}

fn policy(max_attempts: u32) -> RetryPolicy {
    RetryPolicy {
        max_attempts,
        ..RetryPolicy::default()
    }
}

fn waits(max_attempts: u32, error: &Error, random: f64) -> Vec<Duration> {
    let (policy, budget) = (policy(max_attempts), RetryBudget::new(1000));
    let mut attempts = Attempts::new(&policy, &budget);
    let mut waits = Vec::new();
    while let Ok((wait, _)) = attempts.failed(error.clone(), Failed::default(), random) {
        waits.push(wait);
    }
    waits
}

#[test]
fn r25_all_that_may_pass_by_itself_is_tried_again_and_nothing_else() {
    let timeout = |phase| {
        let after = Duration::from_secs(1);
        of(ErrorKind::Timeout { phase, after })
    };
    let cut = ErrorKind::Truncated {
        received: 1,
        expected: 2,
    };
    let garbled = || of(ErrorKind::Protocol("a chunk without a size".into()));
    let mut passing = vec![
        of(ErrorKind::Connect("refused".into())),
        of(ErrorKind::Reset("gone".into())),
        of(cut),
        garbled().with_phase(Phase::Body),
        status(400, Some("RequestTimeout")),
        status(200, Some("InternalError")),
        status(403, Some("ThrottlingException")),
    ];
    let phases = [
        Phase::Resolve,
        Phase::Connect,
        Phase::Send,
        Phase::FirstByte,
        Phase::Body,
    ];
    passing.extend(phases.map(timeout));
    passing.extend([408, 429, 500, 502, 503, 504, 509].map(|code| status(code, None)));
    for error in passing {
        assert_eq!(waits(3, &error, 0.5).len(), 2, "{error}");
    }
    let mut lasting = vec![
        garbled().with_phase(Phase::FirstByte),
        of(ErrorKind::Config("no key".into())),
        of(ErrorKind::Deadline),
        of(ErrorKind::Cancelled),
        of(ErrorKind::RangeNotSatisfiable { size: None }),
        of(ErrorKind::BufferTooSmall { needed: 2, have: 1 }),
        of(ErrorKind::Modified {
            expected: "a".into(),
            found: "b".into(),
        }),
    ];
    lasting.extend([301, 400, 401, 403, 404, 409, 412, 501].map(|code| status(code, None)));
    for error in lasting {
        assert_eq!(waits(3, &error, 0.5).len(), 0, "{error}");
    }
}

#[test]
fn waits_double_up_to_the_cap() {
    let waits = waits(100, &status(500, None), 1.0);
    assert_eq!(waits.len(), 99);
    assert_eq!(waits[0], Duration::from_millis(50));
    assert_eq!(waits[1], Duration::from_millis(100));
    assert_eq!(waits[98], Duration::from_secs(2));
}

#[test]
fn a_server_may_ask_for_more_time_but_not_for_ever() {
    let wait = |after| {
        let error = status(503, None).with_retry_after(Some(Duration::from_secs(after)));
        waits(2, &error, 0.0)
    };
    assert_eq!(wait(7), [Duration::from_secs(7)]);
    assert_eq!(wait(u64::MAX), [LONGEST_RETRY_AFTER]);
}

#[test]
fn a_failure_of_rdma_is_tried_again_only_where_nothing_else_may_carry_the_bytes() {
    let (policy, budget) = (policy(3), RetryBudget::new(10));
    let error = || {
        let reason = Reason::RdmaError;
        let detail = "the peer says no".to_owned();
        of(ErrorKind::Rdma { reason, detail })
    };
    let answered = Failed::default();
    let mut strict = Attempts::new(&policy, &budget).rdma_only(true);
    assert!(strict.failed(error(), answered, 0.5).is_ok());
    let mut lenient = Attempts::new(&policy, &budget);
    assert!(lenient.failed(error(), answered, 0.5).is_err());
    // Whoever may still write: never in the same memory.
    let mut strict = Attempts::new(&policy, &budget).rdma_only(true);
    let silent = Failed {
        in_doubt: true,
        ..answered
    };
    assert!(strict.failed(error(), silent, 0.5).is_err());
}

#[test]
fn a_spent_budget_makes_errors_final_and_successes_fill_it_again() {
    let (policy, budget) = (policy(3), RetryBudget::new(2));
    let fail = || {
        let mut attempts = Attempts::new(&policy, &budget);
        attempts.failed(status(503, None), Failed::default(), 0.5)
    };
    assert!(fail().is_ok() && fail().is_ok());
    let spent = fail().unwrap_err();
    assert!(spent.is_budget_spent());
    assert_eq!(
        spent.to_string(),
        "GET s3://b/k: 503 Service Unavailable, attempt 1 of 3, retry budget spent"
    );
    for _ in 0..5 {
        Attempts::new(&policy, &budget).succeeded();
    }
    assert!(fail().is_ok());
    assert!(fail().is_err());
    for _ in 0..1000 {
        budget.give_back();
    }
    assert_eq!(budget.left(), 2, "it never holds more than at first");
}

#[test]
fn r24_attempts_that_bring_bytes_do_not_count_within_reason() {
    let (policy, budget) = (policy(3), RetryBudget::new(3));
    let mut attempts = Attempts::new(&policy, &budget);
    let lost = || of(ErrorKind::Reset("gone".into()));
    let moved = Failed {
        gained: 1 << 20,
        ..Failed::default()
    };
    let mut count = 0;
    let last = loop {
        count += 1;
        match attempts.failed(lost(), moved, 1.0) {
            // As soon as after the first failure.
            Ok((wait, _)) => assert!(wait <= policy.base),
            Err(error) => break error,
        }
        assert!(count < 1000, "it ends");
    };
    assert_eq!(count, 19);
    assert_eq!(budget.left(), 3, "nothing was asked for twice");
    assert_eq!(last.history().attempts().len(), History::MOST);

    // A server that drips a byte each time makes no progress.
    let drip = Failed { gained: 1, ..moved };
    let mut attempts = Attempts::new(&policy, &budget);
    assert!(attempts.failed(lost(), drip, 1.0).is_ok());
    assert!(attempts.failed(lost(), drip, 1.0).is_ok());
    let error = attempts.failed(lost(), drip, 1.0).unwrap_err();
    assert_eq!((error.attempt(), error.attempts()), (3, 3));

    // One attempt is one attempt.
    let once = super::tests::policy(1);
    let mut attempts = Attempts::new(&once, &budget);
    assert!(attempts.failed(lost(), moved, 1.0).is_err());
}

#[test]
fn an_error_tells_every_attempt_with_its_time() {
    let (policy, budget) = (policy(3), RetryBudget::new(3));
    let mut attempts = Attempts::new(&policy, &budget);
    let mut fail = |error: Error, began| {
        let how = Failed {
            began: Duration::from_millis(began),
            took: Duration::from_millis(7),
            ..Failed::default()
        };
        attempts.failed(error.with_phase(Phase::FirstByte), how, 0.0)
    };
    fail(of(ErrorKind::Reset("gone".into())), 0).unwrap();
    let error = fail(status(404, Some("NoSuchKey")), 50).unwrap_err();
    let told: Vec<_> = error.history().attempts().iter().collect();
    assert_eq!(told.len(), 2);
    assert_eq!(told[0].what, "connection lost: gone");
    assert_eq!(
        (told[1].number, told[1].began),
        (2, Duration::from_millis(50))
    );
}

proptest! {
    #[test]
    fn every_wait_is_bounded_and_there_is_always_a_last_attempt(
        max_attempts in 1..200_u32, random: f64, base in 0..u64::MAX, asked: Option<u64>,
        gained in proptest::collection::vec(0..1_u64 << 20, 1..20),
    ) {
        let policy = RetryPolicy { max_attempts, base: Duration::from_millis(base), ..RetryPolicy::default() };
        let budget = RetryBudget::new(u32::MAX);
        let mut attempts = Attempts::new(&policy, &budget);
        let asked = asked.map(Duration::from_secs);
        let mut count = 0_u32;
        for gained in gained.iter().cycle() {
            count += 1;
            let how = Failed { gained: *gained, ..Failed::default() };
            let Ok((wait, error)) = attempts.failed(status(503, None).with_retry_after(asked), how, random) else { break };
            prop_assert!(wait <= policy.cap.max(LONGEST_RETRY_AFTER));
            prop_assert!(error.attempt() == count && error.attempts() >= count);
        }
        prop_assert!(count <= max_attempts + RetryPolicy::RENEWALS);
    }
}
