//! Every interleaving of small runs, under the model checker:
//! `RUSTFLAGS="--cfg ring_loom" cargo test --release -p s3engine-ring --lib models`
//!
//! Each model runs twice, with the roles of the spawned and the first thread swapped: the checker misses some
//! missing orderings in one of the two. A lost wake shows as a deadlock, an unordered access as a panic.

use loom::model::Builder;
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use super::spsc::{Consumer, NoRoom, Producer};
use super::*;

/// What one thread does.
type Side = Box<dyn FnOnce() + Send>;

type Ends = (Producer<1>, Consumer<1>);

fn ring(capacity: u32, start: u32) -> Ends {
    let bytes = capacity as usize * 8;
    let region = Region::heap(512 + bytes);
    let (tail, head, event) = (0, 128, 256);
    let producer = Producer::new(
        region.own_entries(512, capacity),
        region.own_cursor(tail),
        region.cursor(head),
        region.cursor(event),
        start,
    );
    let consumer = Consumer::new(
        region.entries(512, capacity),
        region.cursor(tail),
        region.own_cursor(head),
        region.own_cursor(event),
        start,
    );
    (producer, consumer)
}

/// Runs the two sides that `make` returns, in both assignments to threads.
fn both_ways<A, B>(make: impl Fn() -> (A, B) + Send + Sync + 'static)
where
    A: FnOnce() + Send + 'static,
    B: FnOnce() + Send + 'static,
{
    let make = std::sync::Arc::new(make);
    for swapped in [false, true] {
        let make = make.clone();
        let mut builder = Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(move || {
            let (a, b) = make();
            let (spawned, first): (Side, Side) = if swapped {
                (Box::new(b), Box::new(a))
            } else {
                (Box::new(a), Box::new(b))
            };
            let other = thread::spawn(spawned);
            first();
            other.join().unwrap();
        });
    }
}

fn push(producer: &mut Producer<1>, value: u64) {
    loop {
        match producer.push(&[value]) {
            Ok(()) => return,
            Err(NoRoom::Full) => thread::yield_now(),
            Err(NoRoom::Jump(jump)) => panic!("{jump}"),
        }
    }
}

fn pop(consumer: &mut Consumer<1>) -> u64 {
    loop {
        match consumer.pop().unwrap() {
            Some([value]) => return value,
            None => thread::yield_now(),
        }
    }
}

fn fifo(capacity: u32, start: u32, count: u64) {
    both_ways(move || {
        let (mut producer, mut consumer) = ring(capacity, start);
        let fill = move || {
            for value in 1..=count {
                push(&mut producer, value);
                let _ = producer.publish();
            }
        };
        let drain = move || {
            for value in 1..=count {
                assert_eq!(pop(&mut consumer), value);
                consumer.release();
            }
            assert_eq!(consumer.pop(), Ok(None));
        };
        (fill, drain)
    });
}

#[test]
fn entries_come_in_order() {
    fifo(4, 0, 3);
}

#[test]
fn a_full_ring_waits_and_an_empty_one_has_nothing() {
    fifo(1, 0, 3);
}

#[test]
fn cursors_wrap() {
    fifo(2, u32::MAX - 1, 4);
}

#[test]
fn a_batch_is_seen_whole_or_not_at_all() {
    both_ways(|| {
        let (mut producer, mut consumer) = ring(4, u32::MAX);
        let fill = move || {
            for batch in [[1, 2], [3, 4]] {
                batch.iter().for_each(|value| push(&mut producer, *value));
                let _ = producer.publish();
            }
        };
        let drain = move || {
            let mut expected = 1;
            while expected <= 4 {
                let ready = consumer.ready().unwrap();
                assert!(ready % 2 == 0, "{ready} of batches of 2");
                if ready == 0 {
                    thread::yield_now();
                }
                for _ in 0..ready {
                    assert_eq!(consumer.pop(), Ok(Some([expected])));
                    expected += 1;
                }
            }
        };
        (fill, drain)
    });
}

/// Sleeps without a bound, so that a wake that is lost is a deadlock.
#[derive(Clone)]
struct Sleeper(Arc<(Mutex<bool>, Condvar)>);

impl Sleeper {
    fn new() -> Self {
        Sleeper(Arc::new((Mutex::new(false), Condvar::new())))
    }

    fn ring(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_one();
    }

    fn sleep(&self) {
        let mut rung = self.0.0.lock().unwrap();
        while !*rung {
            rung = self.0.1.wait(rung).unwrap();
        }
        *rung = false;
    }
}

/// A consumer that sleeps for `want` entries at a time, of `batches` that are published apart.
fn park(start: u32, batches: &'static [u64], want: u32) {
    let total: u64 = batches.iter().sum();
    both_ways(move || {
        let (mut producer, mut consumer) = ring(4, start);
        let bell = Sleeper::new();
        let heard = bell.clone();
        let fill = move || {
            let mut value = 0;
            for batch in batches {
                for _ in 0..*batch {
                    value += 1;
                    push(&mut producer, value);
                }
                if producer.publish() {
                    bell.ring();
                }
            }
        };
        let drain = move || {
            let mut expected = 1;
            while expected <= total {
                let left = (total + 1 - expected) as u32;
                while consumer.park(want.min(left)).unwrap() {
                    heard.sleep();
                }
                while let Some(entry) = consumer.pop().unwrap() {
                    assert_eq!(entry, [expected]);
                    expected += 1;
                }
            }
        };
        (fill, drain)
    });
}

#[test]
fn a_sleeper_is_woken_for_one_entry() {
    park(0, &[1], 1);
    park(u32::MAX, &[1, 1], 1);
}

#[test]
fn a_sleeper_is_woken_for_the_entry_that_it_asked_for() {
    park(u32::MAX, &[1, 1, 1], 2);
    park(0, &[2, 2], 3);
}

fn queue(entries: u32) -> (Client, Service) {
    let layout = Layout::new(entries).unwrap();
    Regions::heap(layout).ends(layout, u32::MAX).unwrap()
}

/// Two completions with details for each request: full use of the credit, and of records again and again.
#[test]
fn credit_that_came_back_has_room_on_both_rings() {
    const REQUESTS: u64 = 2;
    both_ways(|| {
        let (mut client, mut service) = queue(1);
        let ask = move || {
            for user_data in 0..REQUESTS {
                client.push_nop(user_data).unwrap();
                let _ = client.submit(0);
                let mut ended = false;
                while !ended {
                    match client.reap().unwrap() {
                        Some(reaped) => {
                            assert_eq!(reaped.detail().unwrap().error_a, user_data);
                            ended = reaped.cqe.is_terminal();
                        }
                        None => thread::yield_now(),
                    }
                }
            }
        };
        let serve = move || {
            let mut served = 0;
            while served < REQUESTS {
                let Some(Taken::Nop(ticket)) = service.take().unwrap() else {
                    thread::yield_now();
                    continue;
                };
                let detail = Detail {
                    error_a: ticket.user_data(),
                    ..Detail::default()
                };
                let outcome = Outcome::default();
                service.announce(&ticket, &outcome, Some(&detail)).unwrap();
                service.complete(ticket, &outcome, Some(&detail)).unwrap();
                let _ = service.publish();
                served += 1;
            }
        };
        (ask, serve)
    });
}

/// Both sides sleep whenever they may.
#[test]
fn client_and_service_wake_each_other() {
    const REQUESTS: u64 = 2;
    both_ways(|| {
        let (mut client, mut service) = queue(1);
        let (to_service, to_client) = (Sleeper::new(), Sleeper::new());
        let (service_hears, client_hears) = (to_service.clone(), to_client.clone());
        let ask = move || {
            for user_data in 0..REQUESTS {
                client.push_nop(user_data).unwrap();
                if client.submit(0) {
                    to_service.ring();
                }
                while client.park(1).unwrap() {
                    client_hears.sleep();
                }
                assert_eq!(client.reap().unwrap().unwrap().cqe.user_data, user_data);
            }
        };
        let serve = move || {
            for _ in 0..REQUESTS {
                while service.park(1).unwrap() {
                    service_hears.sleep();
                }
                let Some(Taken::Nop(ticket)) = service.take().unwrap() else {
                    panic!("a request was ready");
                };
                service.complete(ticket, &Outcome::default(), None).unwrap();
                if service.publish() {
                    to_client.ring();
                }
            }
        };
        (ask, serve)
    });
}

/// The first request is cancelled while it may be under way, over, or not even taken; both have the same number.
#[test]
fn a_cancel_that_races_the_completion_reaches_its_request_or_none() {
    const REQUESTS: u64 = 2;
    both_ways(|| {
        let (mut client, mut service) = queue(1);
        let ask = move || {
            for user_data in 0..REQUESTS {
                let entry = client.push_nop(user_data).unwrap();
                let _ = client.submit(0);
                if user_data == 0 {
                    client.push_cancel(entry).unwrap();
                    let _ = client.submit(0);
                }
                loop {
                    let reaped = client.reap().unwrap().map(|reaped| reaped.cqe.user_data);
                    match reaped {
                        Some(ended) => break assert_eq!(ended, user_data),
                        None => thread::yield_now(),
                    }
                }
            }
        };
        let serve = move || {
            let mut served = 0;
            while served < REQUESTS {
                match service.take().unwrap() {
                    Some(Taken::Nop(ticket)) => {
                        match service.take().unwrap() {
                            Some(Taken::Cancel(entry)) => {
                                assert_eq!((entry, ticket.user_data()), (ticket.entry(), 0));
                            }
                            other => assert_eq!(other, None),
                        }
                        service.complete(ticket, &Outcome::default(), None).unwrap();
                        let _ = service.publish();
                        served += 1;
                    }
                    None => thread::yield_now(),
                    other => panic!("{other:?}"),
                }
            }
        };
        (ask, serve)
    });
}

/// The ring is as full as it can be: the cancels of two requests stand in it, of which the first has ended.
#[test]
fn a_cancel_has_room_whenever_its_request_had() {
    both_ways(|| {
        let (mut client, mut service) = queue(1);
        let first = client.push_nop(0).unwrap();
        let _ = client.submit(0);
        let Some(Taken::Nop(ticket)) = service.take().unwrap() else {
            panic!("a request was submitted");
        };
        service.complete(ticket, &Outcome::default(), None).unwrap();
        let _ = service.publish();
        client.push_cancel(first).unwrap();
        assert!(client.reap().unwrap().is_some());
        let second = client.push_nop(1).unwrap();
        client.push_cancel(second).unwrap();
        let _ = client.submit(0);

        let ask = move || {
            while client.reap().unwrap().is_none() {
                thread::yield_now();
            }
            let third = client.push_nop(2).unwrap();
            client.push_cancel(third).unwrap();
        };
        let serve = move || {
            let Some(Taken::Nop(ticket)) = service.take().unwrap() else {
                panic!("a request was submitted");
            };
            service.complete(ticket, &Outcome::default(), None).unwrap();
            let _ = service.publish();
        };
        (ask, serve)
    });
}
