use std::collections::VecDeque;
use std::thread;

use proptest::prelude::*;

use super::*;
use crate::words::Region;

const WORDS: usize = 2;

struct Ring {
    producer: Producer<WORDS>,
    consumer: Consumer<WORDS>,
    /// What the other side could write: tail at 0, head at 128, event at 256.
    region: Region,
}

fn ring(capacity: u32, start: u32) -> Ring {
    let region = Region::heap(512 + capacity as usize * WORDS * 8);
    let (tail, head, event) = (0, 128, 256);
    Ring {
        producer: Producer::new(
            region.own_entries(512, capacity),
            region.own_cursor(tail),
            region.cursor(head),
            region.cursor(event),
            start,
        ),
        consumer: Consumer::new(
            region.entries(512, capacity),
            region.cursor(tail),
            region.own_cursor(head),
            region.own_cursor(event),
            start,
        ),
        region,
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Push,
    Publish,
    Pop,
    Release,
    Park(u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => Just(Step::Push),
        2 => Just(Step::Publish),
        4 => Just(Step::Pop),
        2 => Just(Step::Release),
        1 => (1..9u32).prop_map(Step::Park),
    ];
    prop::collection::vec(step, 0..200)
}

proptest! {
    #[test]
    fn a_ring_is_a_bounded_queue_that_shows_what_was_published(
        shift in 0..4u32,
        start in prop_oneof![any::<u32>(), (0..20u32).prop_map(|back| 0u32.wrapping_sub(back))],
        steps in steps(),
    ) {
        let capacity = 1 << shift;
        let mut ring = ring(capacity, start);
        let (mut staged, mut shown) = (VecDeque::new(), VecDeque::new());
        let (mut next, mut taken, mut wanted) = (0u64, 0usize, None);
        for step in steps {
            match step {
                Step::Push => {
                    let room = staged.len() + shown.len() + taken < capacity as usize;
                    let pushed = ring.producer.push(&[next, !next]);
                    prop_assert_eq!(pushed, if room { Ok(()) } else { Err(NoRoom::Full) });
                    if room {
                        staged.push_back(next);
                        next += 1;
                    }
                }
                Step::Publish => {
                    let before = shown.len();
                    shown.append(&mut staged);
                    let wakes = wanted.is_some_and(|wanted| before < wanted && wanted <= shown.len());
                    prop_assert_eq!(ring.producer.publish(), wakes);
                    if wakes {
                        wanted = None;
                    }
                }
                Step::Pop => {
                    let expected = shown.pop_front().map(|value| [value, !value]);
                    prop_assert_eq!(ring.consumer.pop(), Ok(expected));
                    taken += usize::from(expected.is_some());
                    // The event index is absolute: what was asked for stays the same entry.
                    wanted = wanted
                        .and_then(|wanted: usize| wanted.checked_sub(usize::from(expected.is_some())))
                        .filter(|wanted| *wanted > 0);
                }
                Step::Release => {
                    ring.consumer.release();
                    taken = 0;
                }
                Step::Park(count) => {
                    let count = count.min(capacity);
                    let sleeps = shown.len() < count as usize;
                    prop_assert_eq!(ring.consumer.park(count), Ok(sleeps));
                    wanted = Some(count as usize);
                }
            }
        }
    }

    #[test]
    fn a_wake_is_due_exactly_when_the_batch_holds_the_entry(old in any::<u32>(), len in 0..100u32, at in 0..200u32) {
        let event = old.wrapping_sub(50).wrapping_add(at);
        let holds = (50..50 + len).contains(&at);
        prop_assert_eq!(wakes(old, old.wrapping_add(len), event), holds);
    }

    #[test]
    fn a_cursor_out_of_reach_is_an_error_and_nothing_else(
        start in any::<u32>(),
        filled in 0..9u32,
        taken in 0..9u32,
        tail in any::<u32>(),
        head in any::<u32>(),
    ) {
        let mut ring = ring(8, start);
        for value in 0..filled.min(8) {
            ring.producer.push(&[value.into(); WORDS]).unwrap();
        }
        let _ = ring.producer.publish();
        let taken = (0..taken).filter(|_| ring.consumer.pop().unwrap().is_some()).count() as u32;
        ring.region.own_cursor(0).store(tail, Ordering::Relaxed);
        ring.region.own_cursor(128).store(head, Ordering::Relaxed);

        // Seen so far: everything filled, or nothing if nothing was ever taken or looked for.
        let seen = filled.min(8);
        let lied = tail.wrapping_sub(start.wrapping_add(if taken > 0 { seen } else { 0 }));
        let most = if taken > 0 { 8 - (seen - taken) } else { 8 };
        let known = taken > 0 || filled == 0;
        if known {
            prop_assert_eq!(ring.consumer.ready().is_err(), lied > most);
        } else {
            let _ = ring.consumer.ready();
        }
        while ring.producer.tail().wrapping_sub(start) < 8 {
            ring.producer.push(&[0; WORDS]).unwrap();
        }
        let pushed = ring.producer.push(&[0; WORDS]);
        let freed = head.wrapping_sub(start);
        prop_assert_eq!(matches!(pushed, Err(NoRoom::Jump(_))), freed > filled.min(8));
        prop_assert_eq!(pushed == Err(NoRoom::Full), freed == 0);
    }
}

#[test]
fn a_jump_says_what_was_seen_and_what_was_possible() {
    let mut ring = ring(4, u32::MAX);
    ring.region.own_cursor(0).store(4, Ordering::Relaxed);
    let jump = ring.consumer.pop().unwrap_err();
    assert_eq!(
        jump.to_string(),
        "the tail cursor jumped from 4294967295 to 4, at most 4 further was possible"
    );
}

#[test]
fn a_batch_that_is_empty_publishes_nothing_and_rings_no_bell() {
    let mut ring = ring(4, 7);
    assert_eq!(ring.consumer.park(1), Ok(true));
    assert!(!ring.producer.publish());
    ring.producer.push(&[1, 2]).unwrap();
    assert!(ring.producer.publish());
    assert!(!ring.producer.publish());
}

/// Run under ThreadSanitizer with `--cfg ring_plain`, it reports each access that the cursors do not order.
#[test]
fn two_threads_hand_over_every_entry_in_order() {
    const COUNT: u64 = if cfg!(debug_assertions) {
        50_000
    } else {
        500_000
    };
    let Ring {
        mut producer,
        mut consumer,
        ..
    } = ring(64, u32::MAX - 1000);
    let filler = thread::spawn(move || {
        let mut next = 0;
        while next < COUNT {
            match producer.push(&[next, !next]) {
                Ok(()) => next += 1,
                Err(NoRoom::Full) => {
                    let _ = producer.publish();
                    thread::yield_now();
                }
                Err(NoRoom::Jump(jump)) => panic!("{jump}"),
            }
            if next % 7 == 0 {
                let _ = producer.publish();
            }
        }
        let _ = producer.publish();
    });
    let mut expected = 0;
    while expected < COUNT {
        match consumer.pop().unwrap() {
            Some(entry) => {
                assert_eq!(entry, [expected, !expected]);
                expected += 1;
            }
            None => {
                consumer.release();
                thread::yield_now();
            }
        }
        if expected % 5 == 0 {
            consumer.release();
        }
    }
    filler.join().unwrap();
}
