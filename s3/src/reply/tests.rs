use proptest::prelude::*;

use super::*;

/// A GET of bytes 100..150 of an object of 1000 bytes, answered as it must be.
fn fine() -> (Reply<'static>, Expected<'static>) {
    let reply = Reply {
        status: 206,
        rdma_reply: Some("206"),
        bytes_transferred: Some("50"),
        content_length: Some(0),
        content_range: range(100, 149, Some(1000)),
        etag: Some("\"a\""),
        s3_code: None,
        s3_message: None,
    };
    let expected = Expected {
        offset: 100,
        window: 64,
        exact: Some(50),
        ranged: true,
        etag: Some("\"a\""),
        total: Some(1000),
    };
    (reply, expected)
}

/// A GET of a whole object whose size nobody knows yet, into a window of 64 bytes.
fn fine_whole() -> (Reply<'static>, Expected<'static>) {
    let (reply, _) = fine();
    let reply = Reply {
        status: 200,
        rdma_reply: Some("200"),
        content_range: None,
        ..reply
    };
    (
        reply,
        Expected {
            window: 64,
            ..Expected::default()
        },
    )
}

fn range(first: u64, last: u64, total: Option<u64>) -> Option<ContentRange> {
    Some(ContentRange { first, last, total })
}

/// The verdict on the ranged answer after a change.
fn ranged(change: impl FnOnce(&mut Reply<'static>, &mut Expected<'static>)) -> Verdict {
    let (mut reply, mut expected) = fine();
    change(&mut reply, &mut expected);
    judge(&reply, &expected)
}

/// The verdict on the answer for a whole object after a change.
fn whole(change: impl FnOnce(&mut Reply<'static>, &mut Expected<'static>)) -> Verdict {
    let (mut reply, mut expected) = fine_whole();
    change(&mut reply, &mut expected);
    judge(&reply, &expected)
}

fn unusable_header(verdict: Verdict) -> (&'static str, Reason) {
    match verdict {
        Verdict::Unusable { header, reason, .. } => (header, reason),
        other => panic!("{other:?} is not unusable"),
    }
}

#[test]
fn a_transfer_of_what_was_asked_for_is_a_success() {
    assert_eq!(ranged(|_, _| ()), Verdict::Transferred { bytes: 50 });
    assert_eq!(whole(|_, _| ()), Verdict::Transferred { bytes: 50 });
    assert_eq!(ranged(|_, _| ()).reason(), Reason::Ok);
}

#[test]
fn status_and_reply_may_be_200_or_206_in_any_mix() {
    for status in [200, 206] {
        for code in ["200", "206", " 206 "] {
            let verdict = ranged(|r, _| (r.status, r.rdma_reply) = (status, Some(code)));
            assert_eq!(
                verdict,
                Verdict::Transferred { bytes: 50 },
                "{status} {code}"
            );
        }
    }
}

#[test]
fn no_content_is_an_empty_object_with_or_without_a_count() {
    for count in [None, Some("0")] {
        for status in [200, 204] {
            for (ask_range, exact) in [(false, None), (false, Some(0)), (true, None)] {
                let verdict = whole(|r, e| {
                    (r.status, r.rdma_reply, r.bytes_transferred) = (status, Some("204"), count);
                    (e.ranged, e.exact) = (ask_range, exact);
                });
                assert_eq!(verdict, Verdict::Transferred { bytes: 0 });
            }
        }
    }
}

#[test]
fn no_content_for_an_object_with_bytes_is_a_mismatch() {
    let verdict = ranged(|r, _| (r.rdma_reply, r.bytes_transferred) = (Some("204"), None));
    assert_eq!(
        verdict,
        Verdict::BytesMismatch {
            said: 0,
            expected: 50
        }
    );
    let verdict = whole(|r, _| r.rdma_reply = Some("204"));
    assert_eq!(
        verdict,
        Verdict::BytesMismatch {
            said: 50,
            expected: 0
        }
    );
}

#[test]
fn a_transfer_of_0_bytes_is_a_success_where_the_object_is_empty() {
    let verdict = whole(|r, e| (r.bytes_transferred, e.exact) = (Some("0"), Some(0)));
    assert_eq!(verdict, Verdict::Transferred { bytes: 0 });
}

#[test]
fn plain_http_errors_come_before_everything_else() {
    for status in [401, 403, 404, 416] {
        for code in ["InvalidRDMAToken", "RDMATransferFailed", "AccessDenied"] {
            let verdict = ranged(|r, _| {
                (r.status, r.rdma_reply, r.s3_code) = (status, Some("501"), Some(code));
            });
            assert_eq!(verdict, Verdict::Http);
            assert_eq!(verdict.reason(), Reason::HttpError);
        }
    }
}

#[test]
fn a_failed_precondition_is_a_changed_object_where_one_was_set() {
    assert_eq!(ranged(|r, _| r.status = 412), Verdict::Modified);
    assert_eq!(
        ranged(|r, e| (r.status, e.etag) = (412, None)),
        Verdict::Http
    );
}

#[test]
fn a_decline_beats_every_other_status_and_code() {
    for status in [200, 206, 204, 302, 400, 429, 500, 501, 503] {
        let verdict = ranged(|r, _| {
            (r.status, r.rdma_reply) = (status, Some("501"));
            (r.s3_code, r.s3_message) = (Some("InvalidRDMAToken"), Some("RDMA token"));
        });
        assert_eq!(
            verdict,
            Verdict::Declined {
                object_in_body: false
            },
            "{status}"
        );
        assert_eq!(verdict.reason(), Reason::ServerDeclined);
    }
}

#[test]
fn a_decline_says_whether_the_object_is_in_the_body() {
    let declined = |status, length, exact| {
        ranged(|r, e| {
            (r.status, r.rdma_reply, r.content_length) = (status, Some("501"), length);
            e.exact = exact;
        })
    };
    for (status, length, exact, object_in_body) in [
        (200, Some(50), Some(50), true),
        (206, Some(50), None, true),
        (200, None, None, true),
        (200, Some(0), Some(0), true),
        (200, Some(0), Some(50), false),
        (200, Some(0), None, false),
        (204, None, None, false),
        (503, Some(50), Some(50), false),
    ] {
        let verdict = declined(status, length, exact);
        assert_eq!(
            verdict,
            Verdict::Declined { object_in_body },
            "{status} {length:?} {exact:?}"
        );
    }
}

#[test]
fn a_rejected_token_is_told_by_code_or_by_the_message_of_a_500() {
    for status in [200, 400, 500, 503] {
        let verdict = ranged(|r, _| {
            (r.status, r.rdma_reply, r.s3_code) = (status, None, Some("InvalidRDMAToken"));
        });
        assert_eq!(verdict, Verdict::TokenRejected);
    }
    let message = "unexpected suffix on client RDMA token: got length 115, expected exactly 81";
    let by_message = |status, text| {
        ranged(|r, _| {
            (r.status, r.rdma_reply) = (status, None);
            (r.s3_code, r.s3_message) = (Some("InternalError"), Some(text));
        })
    };
    assert_eq!(by_message(500, message), Verdict::TokenRejected);
    assert_eq!(
        by_message(500, "We encountered an internal error"),
        Verdict::Http
    );
    assert_eq!(by_message(503, message), Verdict::Http);
    assert_eq!(Verdict::TokenRejected.reason(), Reason::TokenRejected);
}

#[test]
fn a_failed_remote_write_is_told_by_its_code() {
    let verdict = ranged(|r, _| (r.status, r.s3_code) = (500, Some("RDMATransferFailed")));
    assert_eq!(
        (verdict.reason(), verdict),
        (Reason::RdmaError, Verdict::RdmaError)
    );
}

#[test]
fn other_statuses_and_s3_errors_are_http_errors_even_with_a_fine_reply() {
    for status in [
        0, 100, 199, 201, 202, 300, 302, 304, 307, 400, 405, 429, 500, 503, 999,
    ] {
        assert_eq!(ranged(|r, _| r.status = status), Verdict::Http, "{status}");
    }
    assert_eq!(ranged(|r, _| r.s3_code = Some("SlowDown")), Verdict::Http);
}

#[test]
fn a_success_without_the_reply_header_says_whether_the_object_is_in_the_body() {
    for (status, length, object_in_body) in [
        (200, Some(50), true),
        (206, None, true),
        (200, Some(0), false),
        (204, None, false),
    ] {
        for header in [None, Some(""), Some("  ")] {
            let verdict = ranged(|r, _| {
                (r.status, r.rdma_reply, r.content_length) = (status, header, length);
            });
            assert_eq!(verdict, Verdict::ReplyMissing { object_in_body });
            assert_eq!(verdict.reason(), Reason::ReplyMissing);
        }
    }
}

#[test]
fn an_unknown_reply_is_an_rdma_error_if_a_number_and_no_reply_if_not() {
    for text in ["500", "0", "400", "20000000000"] {
        let found = unusable_header(ranged(|r, _| r.rdma_reply = Some(text)));
        assert_eq!(found, (REPLY_HEADER, Reason::RdmaError), "{text}");
    }
    for text in [
        "ok",
        "+200",
        "-1",
        "200 OK",
        "0x200",
        "99999999999999999999",
    ] {
        let found = unusable_header(ranged(|r, _| r.rdma_reply = Some(text)));
        assert_eq!(found, (REPLY_HEADER, Reason::ReplyMissing), "{text}");
    }
}

#[test]
fn a_count_that_is_missing_or_unreadable_is_bytes_missing() {
    for text in [None, Some(""), Some(" ")] {
        let verdict = ranged(|r, _| r.bytes_transferred = text);
        assert_eq!(
            (verdict.reason(), verdict),
            (Reason::BytesMissing, Verdict::BytesMissing)
        );
    }
    for text in ["x", "-50", "+50", "50.0", "5 0", "18446744073709551616"] {
        let found = unusable_header(ranged(|r, _| r.bytes_transferred = Some(text)));
        assert_eq!(found, (BYTES_HEADER, Reason::BytesMissing), "{text}");
    }
}

#[test]
fn a_missing_count_is_told_before_a_wrong_body_or_version() {
    let verdict = ranged(|r, _| {
        (r.bytes_transferred, r.content_length, r.etag) = (None, Some(9), Some("\"b\""));
    });
    assert_eq!(verdict, Verdict::BytesMissing);
}

#[test]
fn another_count_than_the_range_or_the_object_has_is_a_mismatch() {
    let mismatch = |said, expected| Verdict::BytesMismatch { said, expected };
    assert_eq!(
        ranged(|r, _| r.bytes_transferred = Some("49")),
        mismatch(49, 50)
    );
    assert_eq!(
        ranged(|r, _| r.bytes_transferred = Some("51")),
        mismatch(51, 50)
    );
    assert_eq!(ranged(|_, e| e.exact = Some(51)), mismatch(50, 51));
    assert_eq!(
        ranged(|r, _| r.content_range = range(100, 150, None)),
        mismatch(50, 51)
    );
    assert_eq!(whole(|_, e| e.window = 49), mismatch(50, 49));
    assert_eq!(whole(|_, e| e.total = Some(51)), mismatch(50, 51));
    // The object is longer than the window, and the server filled the window.
    assert_eq!(
        whole(|r, _| r.content_range = range(0, 49, Some(90))),
        mismatch(50, 90)
    );
    assert_eq!(mismatch(1, 2).reason(), Reason::BytesMismatch);
}

#[test]
fn bytes_from_another_place_are_never_a_success() {
    let misplaced = ("content-range", Reason::BytesMismatch);
    for content_range in [range(0, 49, Some(1000)), range(101, 150, Some(1000))] {
        assert_eq!(
            unusable_header(ranged(|r, _| r.content_range = content_range)),
            misplaced
        );
    }
    // Ignoring the range and filling the window from the start gives the right number of bytes.
    let ignored =
        ranged(|r, _| (r.status, r.rdma_reply, r.content_range) = (200, Some("200"), None));
    assert_eq!(unusable_header(ignored), misplaced);
    // From the start on, or with a 206, the number suffices.
    let partial = ranged(|r, _| r.content_range = None);
    assert_eq!(partial, Verdict::Transferred { bytes: 50 });
    let from_start = ranged(|r, e| {
        (r.status, r.rdma_reply, r.content_range, e.offset) = (200, Some("200"), None, 0);
    });
    assert_eq!(from_start, Verdict::Transferred { bytes: 50 });
}

#[test]
fn a_short_range_of_unknown_size_must_end_at_the_objects_end() {
    let unknown = |content_range| {
        ranged(|r, e| {
            r.content_range = content_range;
            (e.exact, e.total) = (None, None);
        })
    };
    assert_eq!(
        unknown(range(100, 149, Some(150))),
        Verdict::Transferred { bytes: 50 }
    );
    assert_eq!(
        unknown(range(100, 149, None)),
        Verdict::Transferred { bytes: 50 }
    );
    let short = ("content-range", Reason::BytesMismatch);
    assert_eq!(unusable_header(unknown(range(100, 149, Some(151)))), short);
    assert_eq!(unusable_header(unknown(None)), short);
}

#[test]
fn a_partial_answer_for_a_whole_object_must_say_which_part() {
    let verdict = whole(|r, _| r.status = 206);
    assert_eq!(
        unusable_header(verdict),
        ("content-range", Reason::BytesMismatch)
    );
    let verdict = whole(|r, _| (r.status, r.content_range) = (206, range(0, 49, Some(50))));
    assert_eq!(verdict, Verdict::Transferred { bytes: 50 });
}

#[test]
fn a_content_range_that_is_none_is_unusable() {
    for content_range in [
        range(149, 100, None),
        range(100, 149, Some(149)),
        range(0, u64::MAX, None),
    ] {
        let found = unusable_header(ranged(|r, _| r.content_range = content_range));
        assert_eq!(found, ("content-range", Reason::BytesMismatch));
    }
}

#[test]
fn a_body_beside_a_transfer_is_a_violation() {
    let found = unusable_header(ranged(|r, _| r.content_length = Some(1)));
    assert_eq!(found, ("content-length", Reason::BytesMismatch));
    assert_eq!(
        ranged(|r, _| r.content_length = None),
        Verdict::Transferred { bytes: 50 }
    );
}

#[test]
fn another_version_is_a_changed_object() {
    for etag in ["\"b\"", "b", "W/\"a\"", "\""] {
        assert_eq!(
            ranged(|r, _| r.etag = Some(etag)),
            Verdict::Modified,
            "{etag}"
        );
    }
    assert_eq!(ranged(|_, e| e.total = Some(1001)), Verdict::Modified);
    assert_eq!(
        ranged(|r, _| r.etag = Some("a")),
        Verdict::Transferred { bytes: 50 }
    );
    let unknown = ranged(|r, e| (r.etag, e.etag) = (Some("\"b\""), None));
    assert_eq!(unknown, Verdict::Transferred { bytes: 50 });
    let missing = unusable_header(ranged(|r, _| r.etag = None));
    assert_eq!(missing, ("etag", Reason::Modified));
}

/// Every condition of a success, said once more and in another way than `judge` does.
fn holds(r: &Reply<'_>, e: &Expected<'_>, bytes: u64) -> bool {
    let code = r.rdma_reply.unwrap_or("").trim().to_owned();
    let count = r.bytes_transferred.unwrap_or("").trim().to_owned();
    let counted = match count.as_str() {
        "" => code == "204" && bytes == 0,
        text => text.parse::<u64>() == Ok(bytes) && !text.starts_with('+'),
    };
    let right_size = bytes <= e.window && e.exact.is_none_or(|n| n == bytes);
    let said_partial = r.status == 206 || code == "206";
    let placed = match r.content_range {
        Some(c) => {
            let ends_well = c.total == Some(c.last.wrapping_add(1)) || c.total.is_none();
            c.first == e.offset
                && c.last >= c.first
                && u128::from(c.last) + 1 - u128::from(c.first) == u128::from(bytes)
                && c.total.is_none_or(|t| c.last < t)
                && (e.ranged || c.total.or(e.total).is_none_or(|t| t == bytes))
                && (e.exact.is_some() || bytes == e.window || ends_well)
                && (c.total.is_none() || e.total.is_none() || c.total == e.total)
        }
        None if e.ranged => {
            (e.offset == 0 || said_partial || bytes == 0)
                && (e.exact.is_some() || bytes == e.window || (e.offset == 0 && code == "204"))
        }
        None => {
            e.total.is_none_or(|t| t == bytes)
                && (e.exact.is_some() || !said_partial || code == "204")
        }
    };
    let quotes = |text: &str| text.trim().trim_matches('"').to_owned();
    let same_version = match (e.etag, r.etag) {
        (None, _) => true,
        (Some(known), Some(said)) => quotes(known) == quotes(said),
        (Some(_), None) => false,
    };
    matches!(r.status, 200 | 204 | 206)
        && r.s3_code.is_none()
        && ["200", "204", "206"].contains(&code.as_str())
        && (code != "204" || bytes == 0)
        && r.content_length.is_none_or(|n| n == 0)
        && counted
        && right_size
        && placed
        && same_version
}

fn words(list: &'static [&'static str]) -> impl Strategy<Value = Option<String>> {
    prop_oneof![
        4 => prop::option::weighted(0.9, prop::sample::select(list).prop_map(str::to_owned)),
        1 => any::<Option<String>>(),
    ]
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![6 => 0u64..4, 1 => any::<u64>()]
}

fn number_or_none() -> impl Strategy<Value = Option<u64>> {
    prop::option::of(number())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn nothing_panics_and_success_is_returned_just_when_every_condition_holds(
        status in prop_oneof![6 => prop::sample::select(vec![200u16, 204, 206]), 1 => any::<u16>()],
        rdma_reply in words(&["200", "204", "206", "501"]),
        bytes_transferred in words(&["0", "1", "2", "3"]),
        content_length in prop::option::of(prop_oneof![5 => Just(0), 1 => any::<u64>()]),
        content_range in prop::option::of((number(), number(), number_or_none())),
        etags in (words(&["a", "b"]), words(&["a", "b"])),
        s3 in (prop::option::weighted(0.1, words(&["InvalidRDMAToken", "NoSuchKey"])), words(&["rdma token"])),
        (offset, window, exact, total) in (number(), number(), number_or_none(), number_or_none()),
        ranged: bool,
    ) {
        let s3_code = s3.0.flatten();
        let reply = Reply {
            status,
            rdma_reply: rdma_reply.as_deref(),
            bytes_transferred: bytes_transferred.as_deref(),
            content_length,
            content_range: content_range.map(|(first, last, total)| ContentRange { first, last, total }),
            etag: etags.0.as_deref().filter(|text| !text.trim().is_empty() && !text.contains('"')),
            s3_code: s3_code.as_deref(),
            s3_message: s3.1.as_deref(),
        };
        let etag = etags.1.as_deref().filter(|text| !text.contains('"'));
        // A whole object starts at 0.
        let offset = if ranged { offset } else { 0 };
        let expected = Expected { offset, window, exact, ranged, etag, total };
        let verdict = judge(&reply, &expected);
        let _ = verdict.reason();
        let said = match &verdict {
            Verdict::Transferred { bytes } => Some(*bytes),
            _ => None,
        };
        let counted = reply.bytes_transferred.map_or("", str::trim);
        let candidate = if counted.is_empty() { Some(0) } else { counted.parse().ok() };
        match (said, candidate) {
            (Some(bytes), _) => prop_assert!(holds(&reply, &expected, bytes)),
            (None, Some(bytes)) => prop_assert!(!holds(&reply, &expected, bytes), "{verdict:?}"),
            (None, None) => {}
        }
    }
}
