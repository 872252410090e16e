//! Objects that are opened once and read many times.

use s3engine::{ErrorKind, Get, Path, Policy, Reason};
use s3engine_tests::{PATIENCE, Rig, block_on, drain};
use s3sim::{Action, Kind, Rule, content};

const KEY: &str = "300KiB-shard";

#[test]
fn many_ranges_of_an_opened_object_ask_for_its_size_once() {
    let rig = Rig::new([]);
    let object = block_on(rig.engine.open("bench", KEY)).unwrap();
    assert_eq!(object.info().size, Some(300 << 10));
    assert_eq!((object.bucket(), object.key()), ("bench", KEY));
    let mut queue = rig.queue();
    for nth in 0..30 {
        let get = Get::of(&object).range(nth * 10_000, 10_000).user_data(nth);
        queue.push(get).unwrap();
    }
    queue.push(Get::of(&object).user_data(99)).unwrap();
    queue.submit();
    for completion in drain(&mut queue) {
        let nth = completion.user_data();
        let offset = if nth == 99 { 0 } else { nth * 10_000 };
        content::verify(KEY, 0, offset, completion.data().unwrap()).unwrap();
        assert_eq!(completion.info().etag, object.info().etag);
    }
    let direct = rig.get(Policy::Http, Get::of(&object));
    content::verify(KEY, 0, 0, direct.data().unwrap()).unwrap();
    assert_eq!(
        rig.sim.counters().requests,
        1 + 32,
        "one HEAD, and the GETs"
    );
}

#[test]
fn an_object_that_was_replaced_after_it_was_opened_is_an_error() {
    let rig = Rig::new([Rule::new(Action::Swap).skip(1)]);
    let object = block_on(rig.engine.open("bench", KEY)).unwrap();
    let mut queue = rig.queue();
    queue.push(Get::of(&object).policy(Policy::Http)).unwrap();
    queue.submit();
    let end = queue.next(PATIENCE).unwrap().unwrap();
    assert_eq!((end.path(), end.reason()), (Path::None, Reason::Modified));
}

#[test]
fn an_object_stays_open_until_the_last_get_of_it_has_ended() {
    let late = Rule::new(Action::AnswerLate { ms: 100 }).only(Kind::Http);
    let rig = Rig::new([late.skip(1)]);
    let mut queue = rig.queue();
    let object = block_on(rig.engine.open("bench", KEY)).unwrap();
    for _ in 0..3 {
        queue.push(Get::of(&object).policy(Policy::Http)).unwrap();
    }
    drop(object);
    queue.submit();
    let ends = drain(&mut queue);
    assert!(ends.iter().all(|end| end.is_ok()), "{ends:?}");
}

#[test]
fn an_object_of_another_engine_is_known_by_its_name() {
    let (one, other) = (Rig::new([]), Rig::new([]));
    let here = block_on(one.engine.open("bench", KEY)).unwrap();
    let there = block_on(other.engine.open("bench", "1KiB-other")).unwrap();
    assert_eq!(here.info().size, Some(300 << 10));
    let mut queue = one.queue();
    queue.push(Get::of(&there)).unwrap();
    queue.submit();
    let end = queue.next(PATIENCE).unwrap().unwrap();
    content::verify("1KiB-other", 0, 0, end.data().unwrap()).unwrap();
}

#[test]
fn opens_of_the_same_object_at_the_same_time_share_one_request() {
    let rig = Rig::new([Rule::new(Action::AnswerLate { ms: 300 }).only(Kind::Http)]);
    let open = || rig.engine.open("bench", KEY);
    let all = block_on(async { tokio::join!(open(), open(), open(), open()) });
    for object in [all.0, all.1, all.2, all.3] {
        assert_eq!(object.unwrap().info().size, Some(300 << 10));
    }
    assert_eq!(rig.sim.counters().requests, 1);
    block_on(rig.engine.open("bench", KEY)).unwrap();
    assert_eq!(rig.sim.counters().requests, 2, "nothing is kept");
}

#[test]
fn what_is_not_there_cannot_be_opened_and_is_asked_for_again() {
    let rig = Rig::new([]);
    for _ in 0..2 {
        let error = block_on(rig.engine.open("bench", "no such object")).unwrap_err();
        assert!(error.is_not_found(), "{error}");
    }
    assert_eq!(rig.sim.counters().requests, 2);
}

#[test]
fn a_name_that_no_ring_can_carry_is_an_error_of_its_get_alone() {
    let rig = Rig::new([]);
    let mut queue = rig.queue();
    let buffer = rig.buffer(4096);
    let slot = buffer.slot();
    let long = Get::new("bench", "k".repeat(1025)).into(buffer);
    let refused = queue.push(long).unwrap();
    queue.push(Get::new("bench", KEY)).unwrap();
    assert_eq!(queue.submit(), 2);
    let ends = drain(&mut queue);
    let (bad, good): (Vec<_>, Vec<_>) = ends.into_iter().partition(|end| end.ticket() == refused);
    assert!(good[0].is_ok());
    let error = bad[0].error().unwrap();
    assert!(matches!(error.kind(), ErrorKind::Config(_)), "{error}");
    assert!(error.to_string().contains("1025"), "{error}");
    let [bad] = bad.try_into().unwrap();
    assert_eq!(bad.into_buffer().unwrap().slot(), slot, "nothing is lost");
}
