//! Either side against a peer that writes anything, anywhere in its region.

use proptest::prelude::*;

use super::atomics::Ordering;
use super::layout::*;
use super::*;

#[derive(Clone, Debug)]
enum Write {
    Cursor { which: usize, value: u32 },
    Word { at: usize, value: u64 },
}

fn writes() -> impl Strategy<Value = Vec<Vec<Write>>> {
    let small = prop_oneof![0..20u32, any::<u32>()];
    let write = prop_oneof![
        (0..3usize, small).prop_map(|(which, value)| Write::Cursor { which, value }),
        (any::<usize>(), prop_oneof![any::<u64>(), 0..4u64])
            .prop_map(|(at, value)| Write::Word { at, value }),
    ];
    prop::collection::vec(prop::collection::vec(write, 0..12), 1..12)
}

fn apply(region: &Region, writes: &[Write]) {
    let bytes = (region.len() - HEADER) / 8 * 8;
    for write in writes {
        match *write {
            Write::Cursor { which, value } => region
                .own_cursor(which * LINE)
                .store(value, Ordering::Relaxed),
            Write::Word { at, value } => region
                .own_words(HEADER, bytes)
                .store(at % (bytes / 8), &[value]),
        }
    }
}

proptest! {
    #[test]
    fn a_service_survives_any_client(rounds in writes()) {
        let layout = Layout::new(4).unwrap();
        let regions = Regions::heap(layout);
        let (mut client, mut service) = regions.ends(layout, 0).unwrap();
        let mut tickets = Vec::new();
        for (user_data, writes) in rounds.into_iter().enumerate() {
            let _ = client.push_nop(user_data as u64);
            let _ = client.submit(0);
            apply(&regions.client, &writes);
            for _ in 0..10 {
                match service.take() {
                    Ok(Some(Taken::Nop(ticket) | Taken::Get(ticket, ..))) => tickets.push(ticket),
                    Ok(_) => {}
                    Err(ended) => prop_assert_eq!(service.take(), Err(ended), "it stays ended"),
                }
            }
            prop_assert!(tickets.len() <= 4, "credit bounds what is in flight");
            prop_assert!(service.outstanding() as usize <= 4);
            if let Some(ticket) = tickets.pop() {
                let _ = service.complete(ticket, &Outcome::default(), None);
            }
            let _ = (service.publish(), service.park(1));
        }
    }

    #[test]
    fn a_client_survives_any_service(rounds in writes()) {
        let layout = Layout::new(4).unwrap();
        let regions = Regions::heap(layout);
        let (mut client, mut service) = regions.ends(layout, 0).unwrap();
        for (user_data, writes) in rounds.into_iter().enumerate() {
            let _ = client.push_nop(user_data as u64);
            let _ = client.submit(0);
            while let Ok(Some(Taken::Nop(ticket))) = service.take() {
                let _ = service.complete(ticket, &Outcome::default(), Some(&Detail::default()));
            }
            let _ = service.publish();
            apply(&regions.service, &writes);
            for _ in 0..10 {
                match client.reap() {
                    Ok(Some(reaped)) => drop(reaped.detail().map(|detail| detail.text(TextKind::Cause).is_some())),
                    Ok(None) => {}
                    Err(broken) => prop_assert_eq!(client.reap().err(), Some(broken), "it stays broken"),
                }
            }
            prop_assert!(client.in_flight() <= 4);
            let _ = client.park(2);
        }
    }
}

fn raw(regions: &Regions, place: usize, sqe: Sqe) {
    let layout = Layout::new(4).unwrap();
    let words = regions.client.own_words(SQES, layout.sqe_bytes());
    words.store(place * 8, &sqe.to_words());
    let tail = regions.client.own_cursor(SQ_TAIL);
    tail.store(place as u32 + 1, Ordering::Release);
}

fn fixture() -> (Regions, Client, Service) {
    let layout = Layout::new(4).unwrap();
    let regions = Regions::heap(layout);
    let (client, service) = regions.ends(layout, 0).unwrap();
    (regions, client, service)
}

#[test]
fn a_request_number_in_flight_twice_ends_the_session() {
    let (regions, _client, mut service) = fixture();
    raw(
        &regions,
        0,
        Sqe {
            entry: 2,
            ..Sqe::default()
        },
    );
    let first = service.take().unwrap();
    assert!(matches!(first, Some(Taken::Nop(_))));
    raw(
        &regions,
        1,
        Sqe {
            entry: 2,
            sequence: 1,
            ..Sqe::default()
        },
    );
    let why = Malformed::Entry {
        sequence: 1,
        entry: 2,
        entries: 4,
    };
    assert_eq!(service.take(), Err(Ended::Malformed(why)));
    assert_eq!(service.ready(), Err(Ended::Malformed(why)));
}

#[test]
fn a_client_that_takes_no_completions_but_submits_on_is_overdrawn() {
    let (regions, _client, mut service) = fixture();
    for sequence in 0..9u32 {
        let entry = sequence % 4;
        let words = regions.client.own_words(SQES, 16 * 64);
        let sqe = Sqe {
            entry,
            sequence,
            ..Sqe::default()
        };
        words.store(sequence as usize % 16 * 8, &sqe.to_words());
        let tail = regions.client.own_cursor(SQ_TAIL);
        tail.store(sequence + 1, Ordering::Release);
        let Ok(Some(Taken::Nop(ticket))) = service.take() else {
            panic!()
        };
        let done = service.complete(ticket, &Outcome::default(), None);
        assert_eq!(
            done,
            if sequence < 8 {
                Ok(())
            } else {
                Err(Ended::Overdrawn)
            }
        );
        let _ = service.publish();
    }
}

#[test]
fn a_completion_of_nothing_breaks_the_queue_for_the_client() {
    let (regions, mut client, _service) = fixture();
    let cqe = Cqe {
        entry: 1,
        detail: NO_DETAIL,
        ..Cqe::default()
    };
    regions
        .service
        .own_words(CQES, 8 * 32)
        .store(0, &cqe.to_words());
    regions
        .service
        .own_cursor(CQ_TAIL)
        .store(1, Ordering::Release);
    let broken = Broken::NotInFlight { entry: 1 };
    assert_eq!(client.reap().err(), Some(broken));
    assert_eq!(client.push_nop(0), Err(PushError::Broken(broken)));
}
