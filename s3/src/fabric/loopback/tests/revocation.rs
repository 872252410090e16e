//! What revocation promises, with peers that confirm, keep silent, leave or die.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::process::{Pid, Signal, WaitOptions};

use super::*;

#[test]
fn after_a_revocation_nothing_lands_by_any_way() {
    let setup = Setup::new(4096);
    let peer = setup.peer();
    let token = setup.token(0, 10);
    let window = peer.window(&token).unwrap();
    window.write(0, &[1; 10]).unwrap();
    let before = setup.slab.bytes();
    setup.revoke().unwrap();
    assert!(window.is_revoked());
    assert_eq!(
        window.write(0, &[2; 10]),
        Err(PeerError::Revoked {
            rkey: token.rkey,
            written: 0
        })
    );
    assert_eq!(
        window.write(0, &[]),
        Err(PeerError::Revoked {
            rkey: token.rkey,
            written: 0
        })
    );
    assert_eq!(
        peer.write(&token, 0, &[2; 10]),
        Err(PeerError::UnknownKey { rkey: token.rkey })
    );
    assert!(setup.owner.token(setup.handle, setup.slab.base, 1).is_err());
    assert_eq!(setup.slab.bytes(), before);
    assert_eq!(peer.stats().mappings, 0);
    // Once more is fine, and a new registration has a new key.
    setup.revoke().unwrap();
    let again = setup.owner.register(setup.slab.segment(0, 4096)).unwrap();
    assert_ne!(again, setup.handle);
    let token = setup.owner.token(again, setup.slab.base, 10).unwrap();
    peer.write(&token, 0, &[3; 10]).unwrap();
    assert_eq!(peer.stats().owners, 1);
}

#[test]
fn a_revocation_waits_for_writers_and_memory_never_changes_after_it() {
    let len = 64 << 10;
    let setup = Setup::new(len);
    let peer = setup.peer();
    for round in 0..40 {
        let handle = setup.owner.register(setup.slab.segment(0, len)).unwrap();
        let token = setup.owner.token(handle, setup.slab.base, len).unwrap();
        let rounds_done = AtomicU64::new(0);
        let started = Barrier::new(4);
        std::thread::scope(|scope| {
            for writer in 0..3u8 {
                let (peer, token, rounds_done, started) = (&peer, &token, &rounds_done, &started);
                scope.spawn(move || {
                    let window = peer.window(token).unwrap();
                    started.wait();
                    let mut fill: u8 = writer;
                    let begun = Instant::now();
                    let error = loop {
                        assert!(begun.elapsed() < LONG, "writes land for ever");
                        // Never 0, which is what memory must be after the revocation.
                        fill = fill.wrapping_add(3) | 1;
                        match window.write(0, &vec![fill; len as usize]) {
                            Ok(()) => rounds_done.fetch_add(1, Ordering::Relaxed),
                            Err(error) => break error,
                        };
                    };
                    assert!(matches!(error, PeerError::Revoked { .. }), "{error:?}");
                });
            }
            started.wait();
            until("writers write", || {
                rounds_done.load(Ordering::Relaxed) > round % 4
            });
            setup.owner.revoke(handle, LONG).unwrap();
            setup.slab.memory.write(0, &vec![0; len as usize]).unwrap();
            let written = rounds_done.load(Ordering::Relaxed);
            for _ in 0..5 {
                assert!(
                    setup.slab.bytes().iter().all(|&b| b == 0),
                    "a late write after {written} writes"
                );
                std::thread::yield_now();
            }
        });
        assert!(setup.slab.bytes().iter().all(|&b| b == 0));
    }
    assert_eq!(peer.stats().mappings, 0);
}

#[test]
fn a_peer_that_leaves_during_a_revocation_does_not_confirm_while_its_windows_can_write() {
    let len = 64 << 10;
    let setup = Setup::new(len);
    for _ in 0..30 {
        // Many keys: a peer that leaves takes its time to end them all.
        let keys: Vec<_> = (0..24)
            .map(|_| setup.owner.register(setup.slab.segment(0, len)).unwrap())
            .collect();
        let peer = setup.peer();
        let windows: Vec<_> = keys
            .iter()
            .map(|&key| {
                let token = setup.owner.token(key, setup.slab.base, len).unwrap();
                peer.window(&token).unwrap()
            })
            .collect();
        let started = Barrier::new(3);
        std::thread::scope(|scope| {
            for window in [&windows[0], &windows[23]] {
                let started = &started;
                scope.spawn(move || {
                    started.wait();
                    let begun = Instant::now();
                    while window.write(0, &vec![7; len as usize]).is_ok() {
                        assert!(begun.elapsed() < LONG, "writes land for ever");
                    }
                });
            }
            started.wait();
            let leaving = scope.spawn(move || drop(peer));
            for key in [keys[0], keys[23]] {
                setup.owner.revoke(key, LONG).unwrap();
            }
            setup.slab.memory.write(0, &vec![0; len as usize]).unwrap();
            leaving.join().unwrap();
        });
        assert!(
            setup.slab.bytes().iter().all(|byte| *byte == 0),
            "a write landed after the revocation was confirmed"
        );
        for key in keys {
            setup.owner.revoke(key, LONG).unwrap();
        }
    }
}

#[test]
fn a_peer_that_never_confirms_makes_the_revocation_fail_and_it_can_be_tried_again() {
    let setup = Setup::new(4096);
    let rkey = setup.token(0, 1).rkey;
    let silent = setup.silent_peer();
    fetch(&silent, rkey);
    let failed = setup.owner.revoke(setup.handle, SHORT).unwrap_err();
    assert!(failed.text.contains("did not confirm"), "{failed}");
    assert!(
        matches!(hear(&silent), Received::Message(Message::Revoke { rkey: r }, None) if r == rkey)
    );
    socket::send(&silent, &Message::Fetch { rkey }, None).unwrap();
    assert!(matches!(
        hear(&silent),
        Received::Message(Message::Unknown { .. }, None)
    ));
    socket::send(&silent, &Message::Revoked { rkey }, None).unwrap();
    setup.revoke().unwrap();
}

#[test]
fn a_peer_that_does_not_read_never_blocks_the_owner() {
    let setup = Setup::new(4096);
    let rkey = setup.token(0, 1).rkey;
    let silent = setup.silent_peer();
    // It asks until its own queue of answers is full and the owner gives it up.
    let given_up = (0..100_000).any(|_| {
        socket::send_until(&silent, &Message::Fetch { rkey }, socket::deadline(LONG)).is_err()
    });
    assert!(given_up);
    let failed = setup.owner.revoke(setup.handle, SHORT).unwrap_err();
    assert!(failed.text.contains("left without a word"), "{failed}");
    // Others are served meanwhile.
    let slab = Slab::new(1, 4096);
    let handle = setup.owner.register(slab.segment(0, 4096)).unwrap();
    setup
        .peer()
        .write(
            &setup.owner.token(handle, slab.base, 4).unwrap(),
            0,
            &[1; 4],
        )
        .unwrap();
}

#[test]
fn a_peer_that_says_goodbye_counts_as_confirmed_and_one_that_only_leaves_does_not() {
    let setup = Setup::new(4096);
    let rkey = setup.token(0, 1).rkey;
    let polite = setup.silent_peer();
    fetch(&polite, rkey);
    socket::send(&polite, &Message::Bye, None).unwrap();
    drop(polite);
    let rude = setup.silent_peer();
    let other = setup.owner.register(setup.slab.segment(0, 4096)).unwrap();
    fetch(&rude, u32::try_from(other.0).unwrap());
    drop(rude);
    setup.revoke().unwrap();
    let failed = setup.owner.revoke(other, SHORT).unwrap_err();
    assert!(failed.text.contains("left without a word"), "{failed}");
    assert_eq!(setup.owner.peers(), 1);
}

#[test]
fn a_peer_that_leaves_with_nothing_fetched_holds_nothing() {
    let setup = Setup::new(4096);
    drop(setup.silent_peer());
    until("the peer is forgotten", || setup.owner.peers() == 0);
    setup.revoke().unwrap();
}

#[test]
fn dropping_a_peer_ends_its_windows_and_confirms_for_them() {
    let setup = Setup::new(4096);
    let peer = setup.peer();
    let window = peer.window(&setup.token(0, 10)).unwrap();
    window.write(0, &[1; 10]).unwrap();
    drop(peer);
    assert!(window.is_revoked());
    assert!(window.write(0, &[2; 10]).is_err());
    assert_eq!(setup.slab.bytes()[..10], [1; 10]);
    setup.revoke().unwrap();
    until("the peer is forgotten", || setup.owner.peers() == 0);
}

#[test]
fn an_owner_that_goes_ends_the_windows_of_its_peers() {
    let Setup {
        _temp,
        folder,
        owner,
        slab,
        handle,
    } = Setup::new(4096);
    let token = owner.token(handle, slab.base, 10).unwrap();
    let peer = Peer::new(PeerOptions {
        folder: Some(folder.clone()),
        timeout: LONG,
    });
    let window = peer.window(&token).unwrap();
    assert_eq!((peer.stats().owners, peer.stats().connected), (1, 1));
    drop(owner);
    until("the mapping is dropped", || window.is_revoked());
    assert_eq!(peer.stats().mappings, 0);
    assert_eq!((peer.stats().owners, peer.stats().connected), (1, 0));
    until("the connection is forgotten", || {
        matches!(peer.window(&token), Err(PeerError::NoSuchOwner { .. }))
    });
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
}

const CHILD_FOLDER: &str = "S3ENGINE_TEST_LOOPBACK_FOLDER";
const CHILD_TOKEN: &str = "S3ENGINE_TEST_LOOPBACK_TOKEN";

/// Not a test by itself: the peer process that others start and kill.
#[test]
#[ignore = "run by the tests that need another process"]
fn peer_process() {
    let (Ok(folder), Ok(token)) = (std::env::var(CHILD_FOLDER), std::env::var(CHILD_TOKEN)) else {
        panic!("started without {CHILD_FOLDER} and {CHILD_TOKEN}");
    };
    let peer = Peer::new(PeerOptions {
        folder: Some(folder.into()),
        timeout: LONG,
    });
    let window = peer.window(&Token::parse(&token).unwrap()).unwrap();
    let started = Instant::now();
    // Bounded, should whoever started it be gone.
    while started.elapsed() < LONG * 3 {
        window.write(0, &[1; 64]).unwrap();
        window.write(0, &[2; 64]).unwrap();
    }
}

/// A child that is killed at the end of the test.
struct PeerProcess(Child);

impl PeerProcess {
    /// Starts a process that writes to the window without a pause, and waits for its first write.
    fn start(setup: &Setup) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args([
                "fabric::loopback::tests::revocation::peer_process",
                "--exact",
                "--ignored",
            ])
            .env(CHILD_FOLDER, &setup.folder)
            .env(CHILD_TOKEN, setup.token(0, 64).encode())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let child = Self(child);
        until("the child writes", || setup.slab.bytes()[0] != 0);
        child
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.0.id()).unwrap()).unwrap()
    }

    fn kill(&self) {
        rustix::process::kill_process(self.pid(), Signal::KILL).unwrap();
    }

    /// Returns when no thread of it runs any more.
    fn stop(&self) {
        rustix::process::kill_process(self.pid(), Signal::STOP).unwrap();
        let stopped = rustix::process::waitpid(Some(self.pid()), WaitOptions::UNTRACED).unwrap();
        assert!(stopped.unwrap().1.stopped());
    }
}

impl Drop for PeerProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn another_process_writes_until_it_confirms_the_revocation() {
    let setup = Setup::new(4096);
    let _child = PeerProcess::start(&setup);
    setup.revoke().unwrap();
    let after = setup.slab.bytes();
    for _ in 0..100 {
        assert!(setup.slab.bytes() == after);
        std::thread::yield_now();
    }
}

#[test]
fn a_killed_process_counts_as_confirmed() {
    let setup = Setup::new(4096);
    let child = PeerProcess::start(&setup);
    child.kill();
    setup.revoke().unwrap();
    let after = setup.slab.bytes();
    drop(child);
    assert!(setup.slab.bytes() == after);
    assert_eq!(setup.owner.peers(), 0);
}

#[test]
fn a_stopped_process_does_not_confirm_until_it_is_killed() {
    let setup = Setup::new(4096);
    let child = PeerProcess::start(&setup);
    child.stop();
    let failed = setup.owner.revoke(setup.handle, SHORT).unwrap_err();
    assert!(failed.text.contains(&child.0.id().to_string()), "{failed}");
    child.kill();
    setup.revoke().unwrap();
}

#[test]
fn a_revocation_in_wait_ends_as_soon_as_the_process_dies() {
    let setup = Arc::new(Setup::new(4096));
    let child = PeerProcess::start(&setup);
    child.stop();
    let asked = Arc::new(AtomicBool::new(false));
    let revoking = std::thread::spawn({
        let (setup, asked) = (setup.clone(), asked.clone());
        move || {
            asked.store(true, Ordering::Release);
            setup.revoke()
        }
    });
    until("the revocation is asked for", || {
        asked.load(Ordering::Acquire)
    });
    child.kill();
    revoking.join().unwrap().unwrap();
}
