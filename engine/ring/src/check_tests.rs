use proptest::prelude::*;

use super::*;
use crate::fuzz_sqe;

const LIMITS: Limits = Limits {
    entries: 8,
    arena: 8 * 1408,
};

fn get() -> Sqe {
    Sqe {
        op: OP_GET,
        sequence: 5,
        user_data: 77,
        entry: 3,
        slab: 1,
        slot: 2,
        generation: 4,
        offset: 10,
        len: 20,
        name_at: 1408,
        key_len: 4,
        bucket_len: 5,
        ..Sqe::default()
    }
}

fn malformed(raw: Sqe) -> Malformed {
    match check(&raw, 5, &LIMITS) {
        Err(Rejected::Malformed(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn options_lie_within_their_record_and_need_their_flag() {
    let options_len = 100;
    let reserved = Malformed::Reserved { sequence: 5 };
    assert_eq!(
        malformed(Sqe {
            options_len,
            ..get()
        }),
        reserved
    );
    let with = Sqe {
        flags: SQE_OPTIONS,
        options_len,
        ..get()
    };
    let checked = check(&with, 5, &LIMITS).unwrap();
    let CheckedOp::Get(get) = checked.op() else {
        panic!("a GET")
    };
    let (start, end) = get.record.bounds();
    assert_eq!(end - start, HEAD + 5 + 4 + 100);
    for options_len in [STRIPE as u16, u16::MAX] {
        let why = meaning(Sqe {
            options_len,
            ..with
        });
        assert!(matches!(why, Meaning::RecordTooLong { .. }), "{why}");
    }
    let name_at = LIMITS.arena - 64;
    let why = meaning(Sqe { name_at, ..with });
    assert!(matches!(why, Meaning::RecordOutside { .. }), "{why}");
}

fn meaning(raw: Sqe) -> Meaning {
    match check(&raw, 5, &LIMITS) {
        Err(Rejected::Meaning {
            entry: 3,
            user_data: 77,
            why,
        }) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_get_keeps_what_it_says() {
    let raw = Sqe {
        policy: 1,
        flags: SQE_FIXED,
        deadline_ms: 9,
        etag_len: 6,
        ..get()
    };
    let checked = check(&raw, 5, &LIMITS).unwrap();
    assert_eq!((checked.entry(), checked.user_data()), (3, 77));
    let expected = CheckedGet {
        policy: Some(Policy::RequireRdma),
        destination: Destination::Slot {
            slab: 1,
            slot: 2,
            generation: 4,
            fixed: true,
        },
        range: Some((10, 20)),
        record: RecordRef {
            at: 1408,
            bucket_len: 5,
            key_len: 4,
            etag_len: 6,
            version_len: 0,
            options_len: 0,
            number: Number::Unused,
        },
        deadline_ms: NonZeroU32::new(9),
    };
    assert_eq!(checked.op(), &CheckedOp::Get(expected));
}

#[test]
fn what_breaks_the_form_is_malformed() {
    let is_op = |raw| matches!(malformed(raw), Malformed::Op { sequence: 5, .. });
    for op in [3, 4, 255] {
        assert!(is_op(Sqe { op, ..get() }), "{op}");
    }
    for flags in [64, 0x8000, SQE_FIXED | SQE_LEASE, SQE_PINNED | SQE_OPENED] {
        let why = malformed(Sqe { flags, ..get() });
        assert_eq!(why, Malformed::Flags { sequence: 5, flags });
    }
    let why = malformed(Sqe { policy: 4, ..get() });
    assert_eq!(
        why,
        Malformed::Policy {
            sequence: 5,
            policy: 4
        }
    );
    let why = malformed(Sqe {
        sequence: 6,
        ..get()
    });
    assert_eq!(
        why,
        Malformed::Sequence {
            expected: 5,
            found: 6
        }
    );
    let why = malformed(Sqe { entry: 8, ..get() });
    assert_eq!(
        why,
        Malformed::Entry {
            sequence: 5,
            entry: 8,
            entries: 8
        }
    );
}

#[test]
fn the_short_way_to_a_nop_compares_the_sequence() {
    let sequence = 5;
    let words = Sqe {
        sequence,
        ..Sqe::default()
    }
    .to_words();
    assert_eq!(nop(&words, 5), Some((0, 0)));
    assert_eq!(nop(&words, 6), None);
}

#[test]
fn a_field_that_is_not_used_must_be_zero() {
    let reserved = Malformed::Reserved { sequence: 5 };
    let nop = Sqe {
        sequence: 5,
        ..Sqe::default()
    };
    assert!(check(&nop, 5, &LIMITS).is_ok());
    assert_eq!(malformed(Sqe { len: 1, ..nop }), reserved);
    assert_eq!(malformed(Sqe { flags: 1, ..nop }), reserved);
    assert_eq!(
        malformed(Sqe {
            options_len: 1,
            ..get()
        }),
        reserved
    );
    assert_eq!(malformed(Sqe { memory: 1, ..get() }), reserved);
    let version_len = 1;
    assert_eq!(
        malformed(Sqe {
            version_len,
            ..get()
        }),
        reserved
    );
    let flags = SQE_OPENED;
    assert_eq!(malformed(Sqe { flags, ..get() }), reserved);
    let op = OP_CANCEL;
    assert_eq!(
        check(&Sqe { op, ..nop }, 5, &LIMITS).unwrap().op(),
        &CheckedOp::Cancel
    );
    let user_data = 1;
    assert_eq!(
        malformed(Sqe {
            op,
            user_data,
            ..nop
        }),
        reserved
    );
    assert_eq!(
        malformed(Sqe {
            flags: SQE_LEASE,
            ..get()
        }),
        reserved
    );
}

#[test]
fn what_cannot_be_is_wrong_in_meaning_only() {
    let (offset, len) = (u64::MAX - 3, 4);
    assert_eq!(
        meaning(Sqe {
            offset,
            len,
            ..get()
        }),
        Meaning::RangeOverflow { offset, len }
    );
    let why = meaning(Sqe {
        flags: SQE_WHOLE,
        ..get()
    });
    assert_eq!(
        why,
        Meaning::RangeOfWhole {
            offset: 10,
            len: 20
        }
    );
    let lease = Sqe {
        flags: SQE_LEASE,
        slab: 0,
        slot: 0,
        generation: 0,
        ..get()
    };
    assert!(check(&lease, 5, &LIMITS).is_ok());
    assert_eq!(
        meaning(Sqe { memory: 9, ..lease }),
        Meaning::Memory { memory: 9 }
    );
}

#[test]
fn a_name_must_lie_within_the_arena() {
    let arena = LIMITS.arena;
    assert!(
        check(
            &Sqe {
                name_at: arena - 32,
                ..get()
            },
            5,
            &LIMITS
        )
        .is_ok()
    );
    for name_at in [arena - 24, arena, u32::MAX - 7, 4, 1409] {
        let why = meaning(Sqe { name_at, ..get() });
        assert_eq!(
            why,
            Meaning::RecordOutside {
                at: name_at,
                len: 25,
                arena
            }
        );
    }
    let length = |raw| matches!(meaning(raw), Meaning::NameLength { .. });
    assert!(length(Sqe {
        bucket_len: 0,
        ..get()
    }));
    assert!(length(Sqe {
        key_len: 0,
        ..get()
    }));
    assert!(length(Sqe {
        key_len: 1025,
        ..get()
    }));
    assert!(length(Sqe {
        etag_len: 129,
        ..get()
    }));
    let opened = Sqe {
        flags: SQE_OPENED,
        bucket_len: 0,
        key_len: 0,
        ..get()
    };
    let Ok(CheckedOp::Get(by_id)) = check(&opened, 5, &LIMITS).map(|checked| *checked.op()) else {
        panic!("an id needs no name")
    };
    assert_eq!(by_id.record.number, Number::OpenedId);
}

proptest! {
    #[test]
    fn any_bytes_are_judged(data in prop::collection::vec(any::<u8>(), 0..70)) {
        fuzz_sqe(&data);
    }

    #[test]
    fn bytes_near_a_correct_nop_are_judged_alike_by_the_short_way_and_the_long(
        at in 0..64usize,
        byte in any::<u8>(),
        entry in 0..9u32,
        user_data in any::<u64>(),
        sequence in any::<u32>(),
    ) {
        let nop = Sqe { entry, user_data, sequence, ..Sqe::default() };
        let mut bytes: [u8; SQE_SIZE] = zerocopy::transmute!(nop);
        fuzz_sqe(&bytes);
        bytes[at] = byte;
        fuzz_sqe(&bytes);
    }

    #[test]
    fn bytes_near_a_correct_get_are_judged(at in 0..64usize, byte in any::<u8>(), also in 0..64usize, other in any::<u8>()) {
        let mut bytes: [u8; SQE_SIZE] = zerocopy::transmute!(get());
        bytes[at] = byte;
        bytes[also] = other;
        fuzz_sqe(&bytes);
    }
}
