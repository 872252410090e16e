use std::num::NonZeroU32;

use super::super::turns::{Grant, ShareId, Turns};
use super::*;

const MIB: u64 = 1 << 20;

fn caps(requests: usize, bytes: u64) -> Limits {
    Limits { requests, bytes }
}

/// Room for everybody, and a share for each of these groups.
fn turns<const N: usize>(groups: [Group; N]) -> (Turns<ShareId>, [ShareId; N]) {
    let mut turns = Turns::new(caps(64, 1 << 30));
    turns.windows().open();
    let shares = groups.map(|group| {
        let share = turns.join(0, NonZeroU32::MIN, Limits::NONE);
        turns.group(share, group);
        share
    });
    (turns, shares)
}

/// Starts a request, or has it wait.
fn ask(turns: &mut Turns<ShareId>, share: ShareId, bytes: u64) -> Option<Grant> {
    let grant = turns.start(share, bytes);
    if grant.is_none() {
        turns.wait(share, bytes, share);
        return turns.next().map(|(_, grant)| grant);
    }
    grant
}

fn group(number: u32, requests: usize, bytes: u64) -> Group {
    let caps = caps(requests, bytes);
    Group { number, caps }
}

#[test]
fn shares_of_a_group_reach_its_requests_together_and_no_other_waits_for_them() {
    let (user, other) = (group(7, 3, u64::MAX), group(8, 3, u64::MAX));
    let (mut turns, [a, b, c]) = turns([user, user, other]);
    let first = ask(&mut turns, a, 1).unwrap();
    let _held = [ask(&mut turns, a, 1), ask(&mut turns, b, 1)].map(Option::unwrap);
    assert!(ask(&mut turns, b, 1).is_none(), "three are under way");
    let _others = [0; 3].map(|_| ask(&mut turns, c, 1).unwrap());
    assert!(ask(&mut turns, c, 1).is_none(), "its own three too");
    turns.finish(first);
    assert_eq!(turns.next().unwrap().0, b);
    assert!(turns.next().is_none());
}

#[test]
fn a_large_request_of_a_group_is_not_passed_for_ever_by_small_ones() {
    let user = group(7, usize::MAX, 4 * MIB);
    let (mut turns, [a, b]) = turns([user; 2]);
    let mut small: Vec<_> = (0..4).map(|_| ask(&mut turns, b, MIB).unwrap()).collect();
    for _ in 0..64 {
        assert!(ask(&mut turns, b, MIB).is_none());
    }
    assert!(ask(&mut turns, a, 4 * MIB).is_none());
    let ended = (0..16).any(|_| {
        turns.finish(small.remove(0));
        let (share, grant) = turns.next().unwrap();
        small.push(grant);
        share == a
    });
    assert!(ended, "small ones go first for ever");
    // It has taken the group beyond its bytes, so nobody else of it starts.
    assert!(turns.next().is_none());
}

#[test]
fn what_is_refunded_is_free_for_the_group() {
    let user = group(7, usize::MAX, 4 * MIB);
    let (mut turns, [a, b]) = turns([user; 2]);
    let mut grant = ask(&mut turns, a, 4 * MIB).unwrap();
    assert!(ask(&mut turns, b, 1).is_none());
    turns.refund(&mut grant, 0);
    assert_eq!(turns.next().unwrap().0, b);
}

#[test]
fn a_group_ends_with_its_last_share_and_the_next_brings_its_own_caps() {
    let (mut turns, [a, b]) = turns([group(7, 1, u64::MAX); 2]);
    turns.leave(a);
    let c = turns.join(0, NonZeroU32::MIN, Limits::NONE);
    turns.group(c, group(7, 2, u64::MAX));
    let one = ask(&mut turns, c, 1).unwrap();
    assert!(ask(&mut turns, b, 1).is_none(), "b has kept it");
    turns.finish(one);
    let (_, one) = turns.next().unwrap();
    turns.finish(one);
    turns.leave(b);
    turns.leave(c);
    let d = turns.join(0, NonZeroU32::MIN, Limits::NONE);
    turns.group(d, group(7, 2, u64::MAX));
    let _both = [0; 2].map(|_| ask(&mut turns, d, 1).unwrap());
}
