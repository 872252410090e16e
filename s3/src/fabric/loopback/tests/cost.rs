//! What a registration costs where a simulated server says so.

use std::thread;

use rustix::fs::{FlockOperation, flock};

use super::*;

const COST: Duration = Duration::from_millis(20);

fn owner(folder: &Path) -> Loopback {
    Loopback::open(LoopbackOptions {
        folder: Some(folder.to_owned()),
        ..LoopbackOptions::default()
    })
    .unwrap()
}

#[test]
fn registrations_of_all_owners_take_their_time_one_after_the_other() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path().join("loopback");
    let _cost = RegistrationCost::publish(Some(&folder), COST).unwrap();
    let owners = [owner(&folder), owner(&folder)];
    let slabs = [0, 1, 2].map(|id| Slab::new(id, 4096));
    let began = Instant::now();
    thread::scope(|scope| {
        for (owner, slab) in owners
            .iter()
            .flat_map(|o| slabs.iter().map(move |s| (o, s)))
        {
            scope.spawn(|| owner.register(slab.segment(0, 4096)).unwrap());
        }
    });
    assert!(began.elapsed() >= 6 * COST, "{:?}", began.elapsed());
}

#[test]
fn an_owner_that_was_there_before_pays_nothing() {
    let setup = Setup::new(4096);
    let _cost = RegistrationCost::publish(Some(&setup.folder), COST).unwrap();
    // Nobody gets a turn, and this owner needs none.
    let _turn = take_turn(&setup.folder);
    setup.owner.register(setup.slab.segment(0, 4096)).unwrap();
}

#[test]
fn transfers_do_not_wait_for_a_registration_that_waits_for_its_turn() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path().join("loopback");
    let _cost = RegistrationCost::publish(Some(&folder), COST).unwrap();
    let owner = owner(&folder);
    let (first, second) = (Slab::new(0, 4096), Slab::new(1, 4096));
    let handle = owner.register(first.segment(0, 4096)).unwrap();
    let turn = take_turn(&folder);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| owner.register(second.segment(0, 4096)).unwrap());
        let peer = Peer::new(PeerOptions {
            folder: Some(folder.clone()),
            timeout: LONG,
        });
        for i in 0..20 {
            let token = owner.token(handle, first.base + i, 1).unwrap();
            peer.write(&token, 0, &[7]).unwrap();
            thread::sleep(Duration::from_millis(2));
        }
        owner.revoke(handle, LONG).unwrap();
        assert!(!waiting.is_finished(), "it did not wait for its turn");
        drop(turn);
    });
    assert_eq!(first.bytes()[..21], [[7; 20].as_slice(), &[0]].concat());
}

/// Registers, as far as others can see, until it is dropped.
fn take_turn(folder: &Path) -> std::fs::File {
    let file = std::fs::File::open(folder.join("registration-turn")).unwrap();
    flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
    file
}
