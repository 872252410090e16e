//! Submission, completion and cancelling, by one thread and by many.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use s3engine::{Completion, Flags, Get, Path, Policy, QueueOptions, Reason, Timeouts};
use s3engine_tests::{PATIENCE, Rig, assert_invariants, block_on, drain, wait_until};
use s3sim::{Action, Rule, content};

const KEY: &str = "300KiB-q";
const SIZE: u64 = 300 << 10;

#[test]
fn a_batch_is_submitted_at_once_and_each_get_ends_once() {
    let rig = Rig::new([]);
    let mut queue = rig.queue();
    let mut tickets = Vec::new();
    for nth in 0..20 {
        let get = Get::new("bench", format!("100KiB-{nth}")).user_data(nth);
        tickets.push(queue.push(get).unwrap());
    }
    assert_eq!(rig.sim.counters().requests, 0, "staged only");
    assert_eq!(queue.submit(), 20);
    assert_eq!(queue.submit(), 0);
    assert_eq!(queue.outstanding(), 20);
    let completions = drain(&mut queue);
    assert_eq!(completions.len(), 20);
    for completion in &completions {
        assert_invariants(completion, Policy::PreferRdma);
        let nth = completion.user_data();
        assert_eq!(completion.ticket(), tickets[nth as usize]);
        content::verify(&format!("100KiB-{nth}"), 0, 0, completion.data().unwrap()).unwrap();
    }
    drop(completions);
    rig.assert_drains();
}

#[test]
fn waiting_is_for_no_more_than_there_is() {
    let rig = Rig::new([Rule::new(Action::NeverAnswer).key("*never")]);
    let mut queue = rig.queue();
    assert_eq!(queue.wait(5, PATIENCE), Ok(0), "nothing is outstanding");
    assert!(queue.next(PATIENCE).unwrap().is_none());
    queue.push(Get::new("bench", KEY)).unwrap();
    assert_eq!(queue.wait(5, PATIENCE), Ok(0), "staged is not outstanding");
    queue.submit();
    assert_eq!(queue.wait(5, PATIENCE), Ok(1));
    assert_eq!(queue.completions().count(), 1);
    let ticket = queue.push(Get::new("bench", "1KiB-never")).unwrap();
    queue.submit();
    let waited = queue.wait(1, Duration::from_millis(20)).unwrap_err();
    assert_eq!((waited.ready, waited.wanted, waited.outstanding), (0, 1, 1));
    queue.cancel(ticket);
    assert_eq!(
        queue.next(PATIENCE).unwrap().unwrap().reason(),
        Reason::Cancelled
    );
}

#[test]
fn a_full_queue_hands_the_get_back_and_has_room_again() {
    let rig = Rig::new([]);
    let mut queue = rig.engine.queue(QueueOptions { capacity: 2 });
    queue.push(Get::new("bench", KEY)).unwrap();
    queue.submit();
    queue.push(Get::new("bench", KEY)).unwrap();
    let buffer = rig.buffer(SIZE);
    let slot = buffer.slot();
    let full = queue.push(Get::new("bench", KEY).into(buffer)).unwrap_err();
    assert_eq!(full.capacity, 2);
    queue.submit();
    // Completed and not taken: still full.
    queue.wait(2, PATIENCE).unwrap();
    let full = queue.push(full.get).unwrap_err();
    assert!(queue.completions().next().unwrap().is_ok());
    queue.push(full.get).unwrap();
    queue.submit();
    let completions = drain(&mut queue);
    let buffer = completions.into_iter().last().unwrap().into_buffer();
    assert_eq!(buffer.unwrap().slot(), slot, "the buffer came along");
}

#[test]
fn a_get_can_be_cancelled_whether_staged_or_under_way() {
    let rig = Rig::new([Rule::new(Action::NeverAnswer)]);
    let mut queue = rig.queue();
    let staged = queue.push(Get::new("bench", KEY)).unwrap();
    assert!(queue.cancel(staged));
    let end = queue.next(PATIENCE).unwrap().unwrap();
    assert_eq!((end.ticket(), end.reason()), (staged, Reason::Cancelled));
    assert_invariants(&end, Policy::PreferRdma);
    assert!(!queue.cancel(staged), "it has ended");

    let faults = rig.sim.counters().faults;
    let get = Get::new("bench", KEY).into(rig.buffer(SIZE));
    let under_way = queue.push(get.policy(Policy::Http)).unwrap();
    queue.submit();
    wait_until("it is under way", || rig.sim.counters().faults > faults);
    assert!(queue.cancel(under_way));
    let end = queue.next(PATIENCE).unwrap().unwrap();
    assert_eq!((end.ticket(), end.reason()), (under_way, Reason::Cancelled));
    assert!(end.into_buffer().is_some(), "nobody else can write to it");
    rig.assert_drains();
}

#[test]
fn staged_gets_of_a_dropped_queue_give_their_memory_back() {
    let rig = Rig::new([]);
    let mut queue = rig.queue();
    queue
        .push(Get::new("bench", KEY).into(rig.buffer(SIZE)))
        .unwrap();
    drop(queue);
    rig.assert_drains();
    assert_eq!(rig.sim.counters().requests, 0);
}

#[test]
fn a_get_of_no_bytes_asks_nobody() {
    let rig = Rig::new([]);
    for policy in [Policy::PreferRdma, Policy::RequireRdma, Policy::Http] {
        let completion = rig.get(policy, Get::new("bench", "no such key").range(5, 0));
        assert!(completion.is_ok(), "{completion:?}");
        assert_eq!(
            (completion.path(), completion.reason()),
            (Path::None, Reason::Ok)
        );
        let buffer = rig.buffer(4096);
        let slot = buffer.slot();
        let completion = rig.get(policy, Get::new("bench", KEY).range(5, 0).into(buffer));
        assert_eq!(completion.into_buffer().unwrap().slot(), slot);
    }
    assert_eq!(rig.sim.counters().requests, 0);
}

#[test]
fn an_object_of_no_bytes_and_a_range_of_none_give_a_buffer_of_none() {
    let rig = Rig::new([]);
    for get in [
        Get::new("bench", "0B-empty"),
        Get::new("bench", KEY).range(5, 0),
    ] {
        let completion = rig.get(Policy::PreferRdma, get);
        assert_eq!((completion.path(), completion.bytes()), (Path::None, 0));
        assert_eq!(completion.result().unwrap().len(), 0);
    }
    assert_eq!(rig.sim.counters().requests, 1, "one HEAD");
}

#[test]
fn a_deadline_that_cannot_be_counted_is_as_good_as_none() {
    let rig = Rig::new([]);
    let mut queue = rig.queue();
    for _ in 0..3 {
        let get = Get::new("bench", KEY).into(rig.buffer(SIZE));
        queue.push(get.deadline(Duration::MAX)).unwrap();
    }
    queue.submit();
    assert!(drain(&mut queue).iter().all(Completion::is_ok));
}

#[test]
fn dropping_an_engine_or_a_future_ends_a_head_that_nobody_answers() {
    let rig = Rig::with([Rule::new(Action::NeverAnswer)], |builder, _| {
        builder.timeouts(Timeouts {
            first_byte: Duration::from_secs(3600),
            ..Timeouts::default()
        })
    });
    let began = Instant::now();
    let head = rig.engine.head("bench", KEY);
    let get = rig.engine.get(Get::new("bench", "1MiB-x"));
    let sim = rig.sim;
    let given_up = block_on(async { tokio::time::timeout(Duration::from_millis(100), head).await });
    assert!(given_up.is_err());
    // The last handle: the engine's threads end here.
    drop((rig.engine, get));
    assert!(began.elapsed() < PATIENCE);
    assert!(sim.counters().requests >= 1, "somebody did ask");
}

#[test]
fn what_cannot_be_asked_for_is_refused_without_a_request() {
    let rig = Rig::new([]);
    let other = Rig::new([]);
    for get in [
        Get::new("bench", ""),
        Get::new("bench", KEY).range(u64::MAX, 2),
        Get::new("bench", KEY).range(0, 1 << 40),
        Get::new("bench", KEY).range(0, SIZE).into(rig.buffer(4096)),
        Get::new("bench", KEY).into(other.buffer(SIZE)),
        Get::new("", KEY).range(0, 10),
        Get::new("no/bucket", KEY).range(0, 10),
    ] {
        let text = format!("{get:?}");
        let failed = rig.get(Policy::Http, get);
        assert_eq!(failed.path(), Path::None, "{text}");
        assert!(!failed.is_ok(), "{text}");
    }
    assert_eq!(rig.sim.counters().requests, 0);
    rig.assert_drains();
    other.assert_drains();
}

#[test]
fn a_version_that_is_not_the_wanted_one_is_modified() {
    let rig = Rig::new([]);
    let info = block_on(rig.engine.head("bench", KEY)).unwrap();
    assert_eq!(info.size, Some(SIZE));
    let etag = info.etag.unwrap();
    for policy in [Policy::PreferRdma, Policy::RequireRdma, Policy::Http] {
        let get = || Get::new("bench", KEY).if_match(etag.clone());
        assert!(rig.get(policy, get()).is_ok());
        assert!(rig.get(policy, get().range(5, 1000)).is_ok());
    }
    rig.sim
        .faults()
        .push(Rule::new(Action::Swap).count(1))
        .unwrap();
    block_on(rig.engine.head("bench", KEY)).unwrap();
    for policy in [Policy::PreferRdma, Policy::RequireRdma, Policy::Http] {
        let get = || Get::new("bench", KEY).if_match(etag.clone());
        for get in [
            get(),
            get().range(5, 1000),
            get().into(rig.buffer(SIZE)),
            get().range(5, 200_000),
        ] {
            let failed = rig.get(policy, get);
            assert_eq!(failed.reason(), Reason::Modified, "{policy} {failed:?}");
        }
    }
}

#[test]
fn an_object_that_changes_meanwhile_is_modified_and_its_memory_clean() {
    for policy in [Policy::PreferRdma, Policy::RequireRdma, Policy::Http] {
        let rig = Rig::with([Rule::new(Action::Swap).skip(3).count(1)], |builder, _| {
            builder.part_sizes(64 << 10, 64 << 10)
        });
        let completion = rig.get_whole(policy, KEY);
        assert_eq!(completion.reason(), Reason::Modified, "{completion:?}");
        assert_eq!(completion.path(), Path::None);
        assert!(
            completion.into_buffer().is_some(),
            "all parts were answered"
        );
        rig.assert_drains();
        let completion = rig.get_whole(policy, KEY);
        content::verify(KEY, 1, 0, completion.data().unwrap()).unwrap();
    }
}

#[test]
fn an_object_that_changes_in_a_versioned_bucket_is_read_in_the_version_that_was_begun() {
    for policy in [Policy::PreferRdma, Policy::RequireRdma, Policy::Http] {
        let rig = Rig::versioned([Rule::new(Action::Swap).skip(3).count(1)], |builder, _| {
            builder.part_sizes(64 << 10, 64 << 10)
        });
        let completion = rig.get_whole(policy, KEY);
        assert_eq!(rig.sim.counters().faults, 1, "it has changed");
        content::verify(KEY, 0, 0, completion.data().unwrap()).unwrap();
        drop(completion);
        let completion = rig.get_whole(policy, KEY);
        content::verify(KEY, 1, 0, completion.data().unwrap()).unwrap();
    }
}

#[test]
fn a_future_works_on_any_executor_and_can_be_polled_by_hand() {
    let rig = Rig::new([]);
    let mut future = pin!(rig.engine.get(Get::new("bench", KEY)));
    let mut context = Context::from_waker(Waker::noop());
    let mut ready = None;
    wait_until("the future is ready", || {
        if let std::task::Poll::Ready(completion) = future.as_mut().poll(&mut context) {
            ready = Some(completion);
        }
        ready.is_some()
    });
    let completion = ready.unwrap();
    content::verify(KEY, 0, 0, completion.data().unwrap()).unwrap();
    assert_eq!(completion.result().unwrap().len(), SIZE);
}

#[test]
fn many_threads_each_with_a_queue_get_what_they_asked_for() {
    let rig = Rig::new([]);
    let run = |thread: u64| {
        let mut queue = rig.queue();
        let policies = [Policy::PreferRdma, Policy::Http, Policy::RequireRdma];
        for nth in 0..30 {
            let get = Get::new("bench", format!("100KiB-{thread}-{nth}"))
                .policy(policies[nth as usize % 3])
                .user_data(nth);
            queue.push(get).unwrap();
            queue.submit();
        }
        let completions = drain(&mut queue);
        assert_eq!(completions.len(), 30);
        for completion in completions {
            let nth = completion.user_data();
            assert_invariants(&completion, policies[nth as usize % 3]);
            let key = format!("100KiB-{thread}-{nth}");
            content::verify(&key, 0, 0, completion.data().unwrap()).unwrap();
        }
    };
    thread::scope(|scope| {
        for thread in 0..4 {
            let run = &run;
            scope.spawn(move || run(thread));
        }
    });
    rig.assert_drains();
    assert_eq!(rig.sim.counters().rdma_clients, 1);
}

/// One GET of the mix, and what is known of it.
struct Asked {
    key: String,
    offset: u64,
    len: u64,
    policy: Policy,
    fixed: bool,
}

fn mix() -> Vec<Rule> {
    let rules = [
        (0.06, Action::SlowDown { retry_after: None }),
        (0.04, Action::Cut { after: Some(1000) }),
        (0.04, Action::Cut { after: None }),
        (0.04, Action::Reset { after: Some(1000) }),
        (0.03, Action::Reset { after: None }),
        (
            0.04,
            Action::Stall {
                after: Some(500),
                ms: 20,
            },
        ),
        (0.04, Action::WrongLength { delta: 3 }),
        (0.04, Action::WrongRange { shift: 7 }),
        (0.06, Action::DeclineWithBody),
        (0.06, Action::DeclineWithError),
        (0.06, Action::IgnoreToken),
        (0.04, Action::MissingBytes),
        (0.04, Action::RdmaTransferFailed),
        (0.04, Action::TokenRejected),
        (0.02, Action::WriteLate { ms: 700 }),
        (0.01, Action::NeverAnswer),
    ];
    let rule = |(nth, (share, action))| Rule::new(action).probability(share, nth as u64);
    rules.into_iter().enumerate().map(rule).collect()
}

fn ask(dice: &mut StdRng, nth: u64) -> Asked {
    const SIZES: [u64; 6] = [1, 4095, 64 << 10, 65 << 10, 200_001, 700 << 10];
    let size = SIZES[dice.random_range(0..SIZES.len())];
    let offset = if dice.random_bool(0.5) {
        0
    } else {
        dice.random_range(0..size)
    };
    Asked {
        key: format!("{size}-mix-{nth}"),
        offset,
        len: size - offset,
        policy: Policy::ALL[dice.random_range(0..Policy::ALL.len())],
        fixed: dice.random_bool(0.2),
    }
}

fn check_mixed(asked: &Asked, completion: &Completion) {
    assert_invariants(completion, asked.policy);
    if completion.flags().contains(Flags::MORE) {
        assert!(asked.fixed, "{completion:?}");
    } else if completion.is_ok() {
        assert_eq!(completion.bytes(), asked.len, "{completion:?}");
        let data = completion.data().unwrap();
        content::verify(&asked.key, 0, asked.offset, data).unwrap();
    }
}

#[test]
fn under_a_random_mix_of_faults_every_get_ends_once_and_no_success_is_wrong() {
    const GETS: u64 = 400;
    let rig = Rig::with(mix(), |builder, _| {
        builder.part_sizes(64 << 10, 128 << 10).timeouts(Timeouts {
            first_byte: Duration::from_secs(1),
            rdma_base: Duration::from_millis(400),
            ..Timeouts::default()
        })
    });
    let mut dice = StdRng::seed_from_u64(20_240_817);
    let mut queue = rig.engine.queue(QueueOptions { capacity: 24 });
    let mut asked = Vec::new();
    let mut ends = vec![0; GETS as usize];
    let mut succeeded = 0;
    loop {
        while (asked.len() as u64) < GETS && queue.outstanding() < 24 {
            let nth = asked.len() as u64;
            let one = ask(&mut dice, nth);
            let get = Get::new("bench", &*one.key)
                .range(one.offset, one.len)
                .policy(one.policy)
                .user_data(nth);
            let get = match (one.fixed, dice.random_bool(0.5)) {
                (true, _) => get.into_fixed(rig.buffer(one.len)),
                (false, true) => get.into(rig.buffer(one.len)),
                (false, false) => get,
            };
            let ticket = queue.push(get).unwrap();
            queue.submit();
            asked.push(one);
            if dice.random_bool(0.03) {
                queue.cancel(ticket);
            }
        }
        let Some(completion) = queue.next(PATIENCE).unwrap() else {
            break;
        };
        let nth = completion.user_data() as usize;
        check_mixed(&asked[nth], &completion);
        if !completion.flags().contains(Flags::MORE) {
            ends[nth] += 1;
            succeeded += usize::from(completion.is_ok());
        }
    }
    assert!(ends.iter().all(|&ends| ends == 1), "{ends:?}");
    assert!(
        succeeded > 100,
        "only {succeeded} succeeded: nothing was shown"
    );
    rig.assert_drains();
}
