use std::num::NonZeroU32;

use super::super::turns::{Grant, ShareId, Turns};
use super::*;

const MIB: u64 = 1 << 20;

/// Two endpoints, with room for both, and a share for each; one more for the first.
fn turns() -> (Turns<ShareId>, [WindowId; 2], [ShareId; 3]) {
    let mut turns = Turns::new(Limits {
        requests: 64,
        bytes: 1 << 30,
    });
    let windows = [turns.windows().open(), turns.windows().open()];
    let shares = [windows[0], windows[1], windows[0]]
        .map(|window| turns.join(window, NonZeroU32::MIN, Limits::NONE));
    (turns, windows, shares)
}

fn bounds(requests: usize, bytes: u64) -> Limits {
    Limits { requests, bytes }
}

/// Asks so often, and takes in who may start.
fn ask(turns: &mut Turns<ShareId>, share: ShareId, bytes: u64, times: usize) -> Vec<Grant> {
    for _ in 0..times {
        turns.wait(share, bytes, share);
    }
    started(turns)
}

fn started(turns: &mut Turns<ShareId>) -> Vec<Grant> {
    std::iter::from_fn(|| turns.next().map(|(_, grant)| grant)).collect()
}

#[test]
fn an_endpoint_that_bears_little_gets_little_and_the_others_do_not_wait_for_it() {
    let (mut turns, [first, _], [a, b, _]) = turns();
    turns.windows().bound(first, bounds(3, u64::MAX));
    let mut of_a = ask(&mut turns, a, MIB, 50);
    assert_eq!(of_a.len(), 3);
    assert_eq!(
        ask(&mut turns, b, MIB, 50).len(),
        50,
        "more wait of the first"
    );
    turns.finish(of_a.pop().unwrap());
    assert_eq!(started(&mut turns).len(), 1);
}

#[test]
fn a_window_that_got_wider_lets_in_who_waits_and_a_smaller_one_ends_nothing() {
    let (mut turns, [window, _], [a, ..]) = turns();
    turns.windows().bound(window, bounds(4, u64::MAX));
    let mut running = ask(&mut turns, a, MIB, 20);
    turns.windows().bound(window, bounds(9, u64::MAX));
    running.extend(started(&mut turns));
    assert_eq!(running.len(), 9);
    turns.windows().bound(window, bounds(2, u64::MAX));
    for left in (1..9).rev() {
        turns.finish(running.pop().unwrap());
        assert_eq!(started(&mut turns).len(), usize::from(left < 2));
        if left < 2 {
            break;
        }
    }
}

#[test]
fn shares_of_one_window_share_it_by_turns() {
    let (mut turns, [window, _], [a, _, c]) = turns();
    turns.windows().bound(window, bounds(4, u64::MAX));
    let mut running = ask(&mut turns, a, MIB, 100);
    assert!(ask(&mut turns, c, MIB, 100).is_empty());
    let mut of_c = 0;
    for _ in 0..80 {
        turns.finish(running.remove(0));
        let next = started(&mut turns);
        assert_eq!(next.len(), 1);
        of_c += usize::from(next[0].share == c);
        running.extend(next);
    }
    assert!((38..=42).contains(&of_c), "{of_c} of 80");
}

#[test]
fn bytes_of_a_window_are_bounded_but_for_the_last_request() {
    let (mut turns, [window, _], [a, ..]) = turns();
    turns.windows().bound(window, bounds(16, 100 * MIB));
    let mut running = ask(&mut turns, a, 256 * MIB, 3);
    assert_eq!(running.len(), 1);
    let grant = &mut running[0];
    turns.refund(grant, 40 * MIB);
    assert_eq!(started(&mut turns).len(), 1);
    assert_eq!(turns.windows().taken(window).bytes, 296 * MIB);
}

#[test]
fn a_place_that_rests_is_nobodys() {
    let (mut turns, [window, _], [a, ..]) = turns();
    turns.windows().bound(window, bounds(2, u64::MAX));
    let mut running = ask(&mut turns, a, MIB, 5);
    assert_eq!(running.len(), 2);
    turns.windows().rest(window);
    turns.finish(running.pop().unwrap());
    assert!(started(&mut turns).is_empty());
    turns.windows().wake(window);
    assert_eq!(started(&mut turns).len(), 1);
}

#[test]
fn one_that_comes_back_goes_before_those_that_came_later() {
    let (mut turns, [window, _], [a, ..]) = turns();
    turns.windows().bound(window, bounds(1, u64::MAX));
    let first = turns.start(a, MIB).unwrap();
    let second = ask(&mut turns, a, MIB, 3);
    assert!(second.is_empty());
    let ticket = first.ticket;
    turns.finish(first);
    let second = started(&mut turns).pop().unwrap();
    turns.wait_at(a, ticket, MIB, a);
    turns.finish(second);
    assert_eq!(started(&mut turns).pop().unwrap().ticket, ticket);
}
