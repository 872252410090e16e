//! GETs of several requests: one object comes out, and one story is told.

use s3engine::{Flags, Get, Path, Policy, Reason};
use s3engine_tests::Rig;
use s3sim::{Action, Kind, Rule, content};

fn on_rdma(action: Action) -> Rule {
    Rule::new(action).only(Kind::Rdma)
}

const PART: u64 = 256 << 10;
const PARTS_KEY: &str = "2097169-parts";
const PARTS_SIZE: u64 = 2_097_169;

fn in_parts(rules: impl IntoIterator<Item = Rule>) -> Rig {
    Rig::with(rules, |builder, _| builder.part_sizes(PART, PART))
}

#[test]
fn many_parts_make_one_object() {
    for (policy, path) in [
        (Policy::PreferRdma, Path::Rdma),
        (Policy::RequireRdma, Path::Rdma),
        (Policy::Http, Path::Http),
    ] {
        let rig = in_parts([]);
        let completion = rig.get_whole(policy, PARTS_KEY);
        assert_eq!(completion.path(), path, "{completion:?}");
        assert_eq!(completion.bytes(), PARTS_SIZE);
        content::verify(PARTS_KEY, 0, 0, completion.data().unwrap()).unwrap();
        assert_eq!(rig.sim.counters().requests, 9);
        // The engine's own memory costs a HEAD.
        let completion = rig.get(policy, Get::new("bench", PARTS_KEY));
        content::verify(PARTS_KEY, 0, 0, completion.data().unwrap()).unwrap();
        assert_eq!(rig.sim.counters().requests, 9 + 10);
        let range = Get::new("bench", PARTS_KEY).range(1001, PARTS_SIZE - 2002);
        let completion = rig.get(policy, range);
        assert_eq!(completion.bytes(), PARTS_SIZE - 2002);
        content::verify(PARTS_KEY, 0, 1001, completion.data().unwrap()).unwrap();
        let by_rdma = rig.sim.counters().rdma_read_bytes;
        let wanted = if path == Path::Rdma {
            3 * PARTS_SIZE - 2002
        } else {
            0
        };
        assert_eq!(by_rdma, wanted);
    }
}

#[test]
fn one_part_that_falls_back_makes_the_get_a_fallback_and_bytes_add_up() {
    for (action, reason, requests) in [
        (Action::DeclineWithBody, Reason::ServerDeclined, 9),
        (Action::DeclineWithError, Reason::ServerDeclined, 10),
        (Action::MissingBytes, Reason::BytesMissing, 10),
        (Action::TokenRejected, Reason::TokenRejected, 10),
    ] {
        let rig = in_parts([on_rdma(action.clone()).skip(2).count(1)]);
        let completion = rig.get_whole(Policy::PreferRdma, PARTS_KEY);
        assert_eq!(
            (completion.path(), completion.reason()),
            (Path::Http, reason),
            "{action:?}: {completion:?}"
        );
        assert_eq!(
            completion.flags(),
            Flags::FELL_BACK | Flags::NOT_VERIFIED,
            "{action:?}"
        );
        let by_path = completion.bytes_by_path();
        assert_eq!(by_path.total(), PARTS_SIZE);
        // The last part is short, and any but the first may be the one.
        assert!(
            [PART, PARTS_SIZE % PART].contains(&by_path.http),
            "{by_path:?}"
        );
        content::verify(PARTS_KEY, 0, 0, completion.data().unwrap()).unwrap();
        assert_eq!(rig.sim.counters().requests, requests, "{action:?}");

        let rig = in_parts([on_rdma(action.clone()).skip(2)]);
        let failed = rig.get_whole(Policy::RequireRdma, PARTS_KEY);
        assert_eq!((failed.path(), failed.reason()), (Path::None, reason));
        assert_eq!(failed.bytes(), 0, "no partial success");
    }
}

#[test]
fn the_first_of_several_reasons_counts() {
    let rig = in_parts([
        on_rdma(Action::DeclineWithBody).count(1),
        on_rdma(Action::IgnoreToken),
    ]);
    let completion = rig.get_whole(Policy::PreferRdma, PARTS_KEY);
    assert_eq!(completion.reason(), Reason::ServerDeclined);
    assert_eq!(completion.bytes_by_path().http, PARTS_SIZE);
    content::verify(PARTS_KEY, 0, 0, completion.data().unwrap()).unwrap();
}
