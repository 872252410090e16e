//! Checksums: over HTTP and RDMA, in one part and in many, in this process and through the host service.

use std::collections::BTreeMap;

use s3engine::{
    Algorithm, Checksum, ChecksumMode, Completion, Engine, ErrorKind, Flags, Get, Memory, Offered,
    Policy, QueueOptions, Sum, Unverified, Verified,
};
use s3engine_tests::{Rig, ServiceRig, assert_invariants, block_on, drain};
use s3sim::{Action, Kind, Rule, content};

const PART: u64 = 256 << 10;
const KEY: &str = "1048593-parts";
const SMALL: &str = "100003-small";

/// What the object's bytes sum up to.
fn checksum(algorithm: Algorithm, key: &str) -> Checksum {
    let mut sum = Sum::new(algorithm);
    let size = content::size_of_key(key).unwrap();
    content::slices(key, 0, 0, size).for_each(|piece| sum.update(piece));
    sum.finish()
}

/// A server that tells this checksum, of that type.
fn tells(checksum: Checksum, kind: Option<&str>) -> Rule {
    let name = format!("x-amz-checksum-{}", checksum.algorithm());
    let mut set = BTreeMap::from([(name, checksum.to_base64())]);
    if let Some(kind) = kind {
        set.insert("x-amz-checksum-type".to_owned(), kind.to_owned());
    }
    let drop = Vec::new();
    Rule::new(Action::Headers { set, drop })
}

fn full(algorithm: Algorithm, key: &str) -> Rule {
    tells(checksum(algorithm, key), Some("FULL_OBJECT"))
}

/// Runs a test with an engine of this process, and with a client of a host service.
fn everywhere(rules: &[Rule], test: impl Fn(&Engine)) {
    let rig = || {
        let shape = |builder: s3engine::EngineBuilder, _: &_| builder.part_sizes(PART, PART);
        Rig::with(rules.iter().cloned(), shape)
    };
    test(&rig().engine);
    let host = ServiceRig::with(rig(), |_| {});
    test(&host.client());
    host.assert_drains();
}

fn get_of(engine: &Engine, get: Get, policy: Policy) -> Completion {
    let completion = block_on(engine.get(get.policy(policy)));
    assert_invariants(&completion, policy);
    completion
}

/// The whole object into a buffer of its size: nothing else is known of it before.
fn whole(engine: &Engine, key: &str) -> Get {
    let size = content::size_of_key(key).unwrap();
    let buffer = engine.pool().try_alloc(size, Memory::Host).unwrap();
    Get::new("bench", key).into(buffer)
}

const BOTH: [Policy; 2] = [Policy::Http, Policy::RequireRdma];

#[test]
fn the_sums_of_parts_come_to_the_checksum_of_the_object() {
    for algorithm in [Algorithm::Crc64Nvme, Algorithm::Crc32c, Algorithm::Crc32] {
        everywhere(&[full(algorithm, KEY)], |engine| {
            for policy in BOTH {
                // The engine's own memory costs a HEAD.
                for get in [whole(engine, KEY), Get::new("bench", KEY)] {
                    let done = get_of(engine, get, policy);
                    assert_eq!(done.verified(), Verified::Verified(algorithm), "{done:?}");
                    assert!(!done.flags().contains(Flags::NOT_VERIFIED), "{done:?}");
                    assert_eq!(done.checksum(), Some(checksum(algorithm, KEY)));
                    content::verify(KEY, 0, 0, done.data().unwrap()).unwrap();
                }
            }
        });
    }
}

#[test]
fn a_hash_shows_something_of_an_object_in_one_answer_alone() {
    for algorithm in [Algorithm::Sha256, Algorithm::Sha1] {
        let rules = [
            full(algorithm, KEY).key("*parts"),
            full(algorithm, SMALL).key("*small"),
        ];
        everywhere(&rules, |engine| {
            for policy in BOTH {
                let small = get_of(engine, whole(engine, SMALL), policy);
                assert_eq!(small.verified(), Verified::Verified(algorithm));
                let parts = get_of(engine, whole(engine, KEY), policy);
                assert_eq!(parts.verified(), Verified::NotVerified(Unverified::Parts));
                let required = whole(engine, KEY).checksum(ChecksumMode::Required);
                let refused = get_of(engine, required, policy);
                assert_eq!(kind(&refused), &ErrorKind::NotVerified(Unverified::Parts));
            }
        });
    }
}

fn kind(completion: &Completion) -> &ErrorKind {
    completion.error().expect("an error").kind()
}

#[test]
fn r57_values_of_parts_and_of_nobody_knows_what_show_nothing() {
    let right = checksum(Algorithm::Crc32, KEY);
    for (rule, why) in [
        (tells(right, Some("COMPOSITE")), Unverified::Composite),
        // Without a type, of a range: perhaps a composite one without its suffix.
        (tells(right, None), Unverified::Unclear),
        (Rule::new(Action::Close), Unverified::NotOffered),
    ] {
        everywhere(&[rule], |engine| {
            for policy in BOTH {
                let done = get_of(engine, whole(engine, KEY), policy);
                assert_eq!(done.verified(), Verified::NotVerified(why), "{done:?}");
                let unseen = policy == Policy::RequireRdma;
                assert_eq!(done.flags().contains(Flags::NOT_VERIFIED), unseen);
            }
        });
    }
}

#[test]
fn one_wrong_byte_is_fetched_again_once_and_is_an_error_then() {
    let head = || full(Algorithm::Crc64Nvme, KEY).only(Kind::Head);
    let flip = || Rule::new(Action::Flip { at: 700_000 });
    for policy in BOTH {
        // In one part: of several nobody knows which is asked for first.
        let rules = [head(), flip().count(1)];
        let rig = Rig::with(rules, |builder, _| builder.part_sizes(2 << 20, 2 << 20));
        let get = whole(&rig.engine, KEY).checksum(ChecksumMode::Required);
        let done = rig.get(policy, get);
        assert_eq!(rig.sim.counters().requests, 3, "HEAD, and GET twice");
        assert_eq!(done.verified(), Verified::Verified(Algorithm::Crc64Nvme));
        content::verify(KEY, 0, 0, done.data().unwrap()).unwrap();

        everywhere(&[head(), flip()], |engine| {
            let get = || whole(engine, KEY).checksum(ChecksumMode::Required);
            let done = get_of(engine, get(), policy);
            let ErrorKind::Checksum(mismatch) = kind(&done) else {
                panic!("{done:?}")
            };
            assert_eq!(mismatch.expected, checksum(Algorithm::Crc64Nvme, KEY));
            assert!(done.error().unwrap().to_string().contains("crc64nvme"));
            assert_eq!(done.verified(), Verified::NotVerified(Unverified::Nothing));
            // Nothing looks where nothing is wanted.
            let off = get_of(engine, get().checksum(ChecksumMode::Off), policy);
            assert_eq!(off.verified(), Verified::NotVerified(Unverified::Off));
            assert!(content::verify(KEY, 0, 0, off.data().unwrap()).is_err());
        });
    }
}

#[test]
fn a_checksum_that_is_required_and_not_there_is_an_error_that_says_so() {
    everywhere(&[], |engine| {
        for policy in BOTH {
            let get = || whole(engine, KEY).checksum(ChecksumMode::Required);
            let done = get_of(engine, get(), policy);
            assert_eq!(kind(&done), &ErrorKind::NotVerified(Unverified::NotOffered));
            let done = get_of(engine, get().range(5, 10), policy);
            assert_eq!(kind(&done), &ErrorKind::NotVerified(Unverified::Range));
            // Of no bytes nothing can be wrong.
            let none = get_of(engine, get().range(5, 0), policy);
            assert!(none.is_ok(), "{none:?}");
        }
    });
    let composite = tells(checksum(Algorithm::Crc32, KEY), Some("COMPOSITE"));
    everywhere(&[composite], |engine| {
        let get = whole(engine, KEY).checksum(ChecksumMode::Required);
        let done = get_of(engine, get, Policy::Http);
        assert_eq!(kind(&done), &ErrorKind::NotVerified(Unverified::Composite));
    });
}

#[test]
fn ranges_of_a_known_object_sum_up_to_its_checksum() {
    let algorithm = Algorithm::Crc64Nvme;
    everywhere(&[full(algorithm, KEY).only(Kind::Head)], |engine| {
        let info = block_on(engine.head("bench", KEY)).unwrap();
        let whole = checksum(algorithm, KEY);
        assert_eq!(info.checksum, Some(Offered::Whole(whole)));
        let mut queue = engine.queue(QueueOptions::default());
        let size = info.size.unwrap();
        let step = 300_001;
        for nth in 0..size.div_ceil(step) {
            let range = Get::new("bench", KEY).range(nth * step, step);
            queue.push(range.version(&info).user_data(nth)).unwrap();
        }
        queue.submit();
        let mut ranges = drain(&mut queue);
        ranges.sort_by_key(Completion::user_data);
        let joined = ranges.iter().map(|done| {
            assert_eq!(done.verified(), Verified::NotVerified(Unverified::Range));
            (done.checksum().unwrap(), done.bytes())
        });
        let joined =
            joined.reduce(|(a, bytes), (b, more)| (a.join(&b, more).unwrap(), bytes + more));
        assert_eq!(joined, Some((whole, size)));
        // And all of it at once, through the rings.
        queue.push(Get::new("bench", KEY).version(&info)).unwrap();
        let opened = block_on(engine.open("bench", KEY)).unwrap();
        queue.push(Get::of(&opened)).unwrap();
        queue.submit();
        for done in drain(&mut queue) {
            assert_eq!(done.verified(), Verified::Verified(algorithm), "{done:?}");
        }
    });
}
