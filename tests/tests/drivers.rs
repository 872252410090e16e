//! GETs by each driver, of many sizes at once, given up and cut off: what is there is right, and nothing stays behind.

use std::io::{ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use s3engine::{Driver, Get, Policy, QueueOptions, Reason};
use s3engine_tests::{PATIENCE, Rig, drivers, wait_until};
use s3sim::{Action, Rule, content};

/// Small, in one request, and in several.
const SIZES: [&str; 4] = ["4KiB", "700KiB", "2097153B", "4MiB"];

fn rig(driver: Driver, rules: impl IntoIterator<Item = Rule>) -> Rig {
    Rig::with(rules, |builder, _| {
        builder.driver(driver).part_sizes(2 << 20, 256 << 20)
    })
}

fn stalls() -> Rule {
    Rule::new(Action::Stall {
        after: Some(400_000),
        ms: 600_000,
    })
}

#[test]
fn gets_of_all_sizes_in_many_queues_bring_what_is_there() {
    for driver in drivers() {
        let rig = rig(driver, []);
        let queue = |nth: usize| {
            let mut queue = rig.engine.queue(QueueOptions { capacity: 8 });
            for round in 0..6 {
                // One after the other, then several at once; large ones alone, and among small ones.
                let count = if round % 2 == 0 { 1 } else { 4 };
                for one in 0..count {
                    let size = SIZES[(nth + round + one) % SIZES.len()];
                    let get = Get::new("bench", format!("{size}-d{nth}")).policy(Policy::Http);
                    queue.push(get).unwrap();
                }
                assert_eq!(queue.submit(), count);
                for _ in 0..count {
                    let done = queue.next(PATIENCE).unwrap().unwrap();
                    assert!(done.is_ok(), "{done:?}");
                    let size = SIZES.iter().find(|size| {
                        let key = format!("{size}-d{nth}");
                        content::size_of_key(&key) == Some(done.bytes())
                    });
                    let key = format!("{}-d{nth}", size.expect("one of the sizes"));
                    content::verify(&key, 0, 0, done.data().unwrap()).unwrap();
                }
            }
        };
        thread::scope(|scope| {
            (0..4).for_each(|nth| drop(scope.spawn(move || queue(nth))));
        });
        rig.assert_drains();
    }
}

#[test]
fn what_is_cancelled_in_the_middle_ends_at_once_and_gives_its_memory_back() {
    for driver in drivers() {
        let rig = rig(driver, [stalls()]);
        let mut queue = rig.queue();
        let tickets = ["1MiB-a", "2MiB-b", "4MiB-c"].map(|key| {
            let get = Get::new("bench", key).policy(Policy::Http);
            queue.push(get).unwrap()
        });
        queue.submit();
        wait_until("bodies on their way", || rig.sim.counters().requests >= 3);
        thread::sleep(Duration::from_millis(50));
        let began = Instant::now();
        assert!(tickets.iter().all(|ticket| queue.cancel(*ticket)));
        for _ in tickets {
            let ended = queue.next(PATIENCE).unwrap().unwrap();
            assert_eq!(ended.reason(), Reason::Cancelled, "{ended:?}");
        }
        assert!(began.elapsed() < Duration::from_secs(5));
        rig.assert_drains();
    }
}

#[test]
fn a_deadline_in_the_middle_of_a_body_is_kept() {
    for driver in drivers() {
        let rig = rig(driver, [stalls()]);
        let get = Get::new("bench", "2MiB-d").deadline(Duration::from_millis(300));
        let ended = rig.get(Policy::Http, get);
        assert_eq!(ended.reason(), Reason::Deadline, "{ended:?}");
        drop(ended);
        rig.assert_drains();
    }
}

#[test]
fn an_engine_that_goes_with_bodies_on_their_way_is_gone_soon() {
    for driver in drivers() {
        let rig = rig(driver, [stalls()]);
        let mut queue = rig.queue();
        for nth in 0..4 {
            queue
                .push(Get::new("bench", format!("2MiB-{nth}")).policy(Policy::Http))
                .unwrap();
        }
        queue.submit();
        wait_until("bodies on their way", || rig.sim.counters().requests >= 4);
        let began = Instant::now();
        drop((queue, rig));
        assert!(began.elapsed() < Duration::from_secs(5));
    }
}

#[test]
fn making_an_engine_interrupts_no_call_of_whoever_makes_it() {
    let (mut near, _far) = UnixStream::pair().unwrap();
    near.set_read_timeout(Some(Duration::from_millis(30)))
        .unwrap();
    for driver in drivers() {
        for _ in 0..5 {
            let rig = rig(driver, []);
            let waited = near.read(&mut [0]).unwrap_err();
            assert_eq!(waited.kind(), ErrorKind::WouldBlock);
            drop(rig);
            let waited = near.read(&mut [0]).unwrap_err();
            assert_eq!(waited.kind(), ErrorKind::WouldBlock);
        }
    }
}
