//! Both ends together, in one thread and in two.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;

fn queue(entries: u32, start: u32) -> (Client, Service) {
    let layout = Layout::new(entries).unwrap();
    Regions::heap(layout).ends(layout, start).unwrap()
}

fn key_of(record: &Record) -> &str {
    match &record.object {
        Object::Named { key, .. } => key,
        Object::Opened(_) => panic!("not by its name"),
    }
}

fn whole<'a>(bucket: &'a str, key: &'a str) -> GetRequest<'a> {
    GetRequest {
        object: Object::Named {
            bucket,
            key,
            etag: None,
            version: None,
        },
        options: None,
        range: None,
        destination: Destination::LeaseHost,
        policy: None,
        deadline_ms: 0,
    }
}

#[test]
fn a_get_arrives_as_it_was_pushed_and_its_detail_comes_back() {
    let (mut client, mut service) = queue(4, 0);
    let slot = Destination::Slot {
        slab: 1,
        slot: 2,
        generation: 3,
        fixed: false,
    };
    let get = GetRequest {
        options: None,
        range: Some((5, 6)),
        destination: slot,
        policy: Some(Policy::Http),
        ..whole("train", "k/\u{e9}")
    };
    client.push_get(&get, 42).unwrap();
    assert_eq!(service.take(), Ok(None), "staged is not submitted");
    let _ = client.submit(99);
    let Ok(Some(Taken::Get(ticket, get))) = service.take() else {
        panic!()
    };
    let (checked, record) = *get;
    assert_eq!((key_of(&record), record.submitted_ns), ("k/\u{e9}", 99));
    assert_eq!(
        (checked.range, checked.policy),
        (Some((5, 6)), Some(Policy::Http))
    );
    assert_eq!(checked.destination, slot);

    let mut detail = Detail::default();
    detail.add(TextKind::VersionId, "v1");
    let outcome = Outcome {
        bytes: 6,
        path: path_code("http").unwrap(),
        ..Outcome::default()
    };
    service.complete(ticket, &outcome, Some(&detail)).unwrap();
    let _ = service.publish();
    let reaped = client.reap().unwrap().unwrap();
    assert_eq!((reaped.cqe.user_data, reaped.cqe.bytes), (42, 6));
    assert_eq!(path_name(reaped.cqe.path), Some("http"));
    assert_eq!(reaped.detail(), Some(detail));
}

#[test]
fn a_request_that_cannot_be_is_refused_at_push() {
    let (mut client, _) = queue(1, 0);
    let get = GetRequest {
        options: None,
        range: Some((u64::MAX, 2)),
        ..whole("b", "k")
    };
    let (offset, len) = (u64::MAX, 2);
    let why = Meaning::RangeOverflow { offset, len };
    assert_eq!(client.push_get(&get, 0), Err(PushError::Request(why)));
    assert_eq!(client.in_flight(), 0);
    assert!(
        client.push_get(&whole("b", "k"), 0).is_ok(),
        "no credit was lost"
    );
    assert_eq!(client.push_nop(0), Err(PushError::Full { entries: 1 }));
}

#[test]
fn a_name_changed_to_nonsense_after_the_push_is_an_error_completion() {
    let layout = Layout::new(1).unwrap();
    let regions = Regions::heap(layout);
    let (mut client, mut service) = regions.ends(layout, 0).unwrap();
    client.push_get(&whole("b", "k"), 7).unwrap();
    regions
        .client
        .own_words(layout.arena(), 24)
        .store(2, &[u64::MAX]);
    let _ = client.submit(0);
    let why = Meaning::NameText {
        what: "bucket",
        wanted: "UTF-8",
    };
    assert_eq!(service.take(), Ok(Some(Taken::Refused(why))));
    let _ = service.publish();
    let reaped = client.reap().unwrap().unwrap();
    assert_eq!(
        (reaped.cqe.user_data, reaped.cqe.error),
        (7, INVALID_REQUEST)
    );
    assert_eq!(
        reaped.detail().unwrap().text(TextKind::First),
        Some("the bucket is not UTF-8")
    );
}

#[test]
fn an_end_is_announced_once() {
    let (mut client, mut service) = queue(1, 0);
    client.push_nop(1).unwrap();
    let _ = client.submit(0);
    let Ok(Some(Taken::Nop(ticket))) = service.take() else {
        panic!()
    };
    service
        .announce(&ticket, &Outcome::default(), None)
        .unwrap();
    let again = service.announce(&ticket, &Outcome::default(), None);
    assert_eq!(again, Err(AnnounceError::Again));
    service
        .complete(
            ticket,
            &Outcome {
                flags: CQE_MORE,
                ..Outcome::default()
            },
            None,
        )
        .unwrap();
    let _ = service.publish();
    assert!(!client.reap().unwrap().unwrap().cqe.is_terminal());
    assert_eq!(
        client.push_nop(2),
        Err(PushError::Full { entries: 1 }),
        "its credit is not back"
    );
    assert!(client.reap().unwrap().unwrap().cqe.is_terminal());
    assert!(client.push_nop(2).is_ok());
}

#[test]
fn waiting_is_clamped_to_what_was_submitted() {
    let (mut client, mut service) = queue(4, 0);
    assert_eq!(client.park(3), Ok(false), "nothing is outstanding");
    client.push_nop(0).unwrap();
    assert_eq!(client.park(3), Ok(false), "staged requests do not complete");
    let _ = client.submit(0);
    client.push_nop(1).unwrap();
    assert_eq!(client.park(3), Ok(true));
    let Ok(Some(Taken::Nop(ticket))) = service.take() else {
        panic!()
    };
    service.complete(ticket, &Outcome::default(), None).unwrap();
    assert!(service.publish(), "one is all there can be");
    assert_eq!(client.ready(), Ok(1));
}

#[test]
fn a_cancel_reaches_the_request_it_was_for_and_no_later_one() {
    let (mut client, mut service) = queue(2, 0);
    let entry = client.push_nop(1).unwrap();
    client.push_cancel(entry).unwrap();
    client.push_cancel(entry).unwrap();
    let _ = client.submit(0);
    assert_eq!(client.park(9), Ok(true), "a cancel alone completes nothing");
    let Ok(Some(Taken::Nop(ticket))) = service.take() else {
        panic!()
    };
    assert_eq!(service.take(), Ok(Some(Taken::Cancel(ticket.entry()))));
    assert_eq!(service.take(), Ok(None), "once a request");
    service
        .announce(&ticket, &Outcome::default(), None)
        .unwrap();
    service.complete(ticket, &Outcome::default(), None).unwrap();
    let _ = service.publish();
    assert!(client.reap().unwrap().is_some() && client.reap().unwrap().is_some());

    let late = client.push_nop(2).unwrap();
    let _ = client.submit(0);
    let Ok(Some(Taken::Nop(ticket))) = service.take() else {
        panic!()
    };
    client.push_cancel(late).unwrap();
    let _ = client.submit(0);
    service.complete(ticket, &Outcome::default(), None).unwrap();
    let _ = service.publish();
    assert_eq!(service.take(), Ok(None), "it has ended");
    assert!(client.reap().unwrap().is_some());
    client.push_cancel(late).unwrap();
    let _ = client.submit(0);
    assert_eq!(service.ready(), Ok(0), "nothing was staged for it");
}

#[test]
fn there_is_room_for_a_request_its_cancel_and_that_of_the_one_before() {
    let (mut client, mut service) = queue(1, 0);
    let mut ask = |user_data| {
        let entry = client.push_nop(user_data).unwrap();
        let _ = client.submit(0);
        let Ok(Some(Taken::Nop(ticket))) = service.take() else {
            panic!()
        };
        client.push_cancel(entry).unwrap();
        let _ = client.submit(0);
        assert_eq!(client.staged(), 0);
        service.complete(ticket, &Outcome::default(), None).unwrap();
        let _ = service.publish();
        assert!(client.reap().unwrap().is_some());
    };
    for user_data in 0..9 {
        ask(user_data);
    }
    let entry = client.push_nop(9).unwrap();
    client.push_cancel(entry).unwrap();
    assert_eq!(client.staged(), 1, "a cancel is no request");
    let _ = client.submit(0);
    let Ok(Some(Taken::Nop(ticket))) = service.take() else {
        panic!()
    };
    assert_eq!(ticket.user_data(), 9);
    assert_eq!(service.take(), Ok(Some(Taken::Cancel(entry.number()))));
}

#[derive(Clone, Debug)]
enum Step {
    Push,
    Cancel(u64),
    Submit,
    Take,
    Announce(usize),
    Complete(usize, bool),
    Publish,
    Reap,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => Just(Step::Push),
        2 => any::<u64>().prop_map(Step::Cancel),
        2 => Just(Step::Submit),
        4 => Just(Step::Take),
        2 => any::<usize>().prop_map(Step::Announce),
        3 => (any::<usize>(), any::<bool>()).prop_map(|(nth, with)| Step::Complete(nth, with)),
        2 => Just(Step::Publish),
        4 => Just(Step::Reap),
    ];
    prop::collection::vec(step, 0..300)
}

proptest! {
    #[test]
    fn in_whatever_order_requests_end_nothing_overflows_and_each_ends_once(
        shift in 0..3u32,
        back in 0..40u32,
        steps in steps(),
    ) {
        let entries = 1 << shift;
        let (mut client, mut service) = queue(entries, 0u32.wrapping_sub(back));
        let mut open: Vec<(Ticket, bool)> = Vec::new();
        let mut in_flight: HashMap<u64, (Entry, String)> = HashMap::new();
        let mut next = 0;
        for step in steps {
            match step {
                Step::Push => {
                    let key = format!("key-{next}");
                    let pushed = client.push_get(&whole("bucket", &key), next);
                    if in_flight.len() == entries as usize {
                        prop_assert_eq!(pushed, Err(PushError::Full { entries }));
                    } else if let Ok(entry) = pushed {
                        in_flight.insert(next, (entry, key));
                        next += 1;
                    } else {
                        prop_assert!(false, "there was credit: {:?}", pushed);
                    }
                }
                Step::Cancel(nth) if !in_flight.is_empty() => {
                    let nth = nth as usize % in_flight.len();
                    let (entry, _) = in_flight.values().nth(nth).unwrap();
                    client.push_cancel(*entry).unwrap();
                }
                Step::Submit => drop(client.submit(0)),
                Step::Take => match service.take().unwrap() {
                    Some(Taken::Get(ticket, get)) => {
                        prop_assert_eq!(Some(key_of(&get.1)), in_flight.get(&ticket.user_data()).map(|(_, key)| &**key));
                        open.push((ticket, false));
                    }
                    Some(Taken::Cancel(entry)) => {
                        let is_open = open.iter().any(|(ticket, _)| ticket.entry() == entry);
                        prop_assert!(is_open, "a cancel of what is in flight");
                    }
                    other => prop_assert_eq!(other, None),
                },
                Step::Announce(nth) if !open.is_empty() => {
                    let nth = nth % open.len();
                    let (ticket, announced) = &mut open[nth];
                    let again = service.announce(ticket, &Outcome::default(), None);
                    prop_assert_eq!(again.is_err(), *announced);
                    *announced = true;
                }
                Step::Complete(nth, with) if !open.is_empty() => {
                    let (ticket, _) = open.swap_remove(nth % open.len());
                    let detail = Detail { error_a: ticket.user_data(), ..Detail::default() };
                    service.complete(ticket, &Outcome::default(), with.then_some(&detail)).unwrap();
                }
                Step::Publish => drop(service.publish()),
                Step::Reap => {
                    if let Some(reaped) = client.reap().unwrap() {
                        if let Some(detail) = reaped.detail() {
                            prop_assert_eq!(detail.error_a, reaped.cqe.user_data);
                        }
                        if reaped.cqe.is_terminal() {
                            prop_assert!(in_flight.remove(&reaped.cqe.user_data).is_some(), "it ended once");
                        }
                    }
                }
                _ => {}
            }
            prop_assert_eq!(client.in_flight() as usize, in_flight.len());
        }
    }
}

/// A bell of this process, of atomics only: ThreadSanitizer does not see into the standard library's locks.
#[derive(Default)]
struct FlagBell(AtomicBool);

impl Bell for FlagBell {
    fn ring(&self) -> io::Result<()> {
        self.0.store(true, Ordering::Release);
        Ok(())
    }

    fn wait(&self, timeout: Duration) -> io::Result<()> {
        let until = Instant::now() + timeout;
        while !self.0.swap(false, Ordering::Acquire) && Instant::now() < until {
            thread::yield_now();
        }
        Ok(())
    }
}

/// Both sides sleep whenever they can; a lost wake shows as a wait that ends by its bound.
#[test]
fn two_threads_that_sleep_between_batches_lose_no_request_and_no_wake() {
    const REQUESTS: u64 = if cfg!(debug_assertions) {
        5_000
    } else {
        50_000
    };
    const BOUND: Duration = Duration::from_secs(20);
    let (mut client, mut service) = queue(16, u32::MAX - 100);
    let (to_service, to_client) = (FlagBell::default(), FlagBell::default());
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut served, mut cancels) = (0, 0);
            while served < REQUESTS {
                while let Some(taken) = service.take().unwrap() {
                    let (ticket, get) = match taken {
                        Taken::Get(ticket, get) => (ticket, get),
                        Taken::Cancel(_) => {
                            cancels += 1;
                            continue;
                        }
                        other => panic!("{other:?}"),
                    };
                    assert_eq!(key_of(&get.1), ticket.user_data().to_string());
                    if served % 3 == 0 {
                        service
                            .announce(&ticket, &Outcome::default(), None)
                            .unwrap();
                    }
                    let detail = Detail {
                        error_b: ticket.user_data(),
                        ..Detail::default()
                    };
                    service
                        .complete(ticket, &Outcome::default(), Some(&detail))
                        .unwrap();
                    served += 1;
                }
                if service.publish() {
                    to_client.ring().unwrap();
                }
                if served < REQUESTS && service.park(1).unwrap() {
                    to_service.wait(BOUND).unwrap();
                }
            }
            assert!(cancels <= REQUESTS / 4, "{cancels} of requests in flight");
        });
        let (mut pushed, mut ended) = (0u64, 0);
        while ended < REQUESTS {
            while pushed < REQUESTS
                && let Ok(entry) = client.push_get(&whole("b", &pushed.to_string()), pushed)
            {
                if pushed % 4 == 3 {
                    client.push_cancel(entry).unwrap();
                }
                pushed += 1;
            }
            if client.submit(0) {
                to_service.ring().unwrap();
            }
            let want = 1 + (pushed % 5) as u32;
            let ready = client.wait(want, BOUND, &to_client).unwrap();
            assert!(ready > 0, "a wake was lost");
            while let Some(reaped) = client.reap().unwrap() {
                if reaped.cqe.is_terminal() {
                    assert_eq!(reaped.detail().unwrap().error_b, reaped.cqe.user_data);
                    ended += 1;
                }
            }
        }
        assert_eq!(client.in_flight(), 0);
    });
}
