//! What is refused: by whom, how it is told, and that nothing changed.

use super::*;

#[test]
fn a_write_outside_its_window_is_refused_and_changes_nothing() {
    let setup = Setup::new(4096);
    let peer = setup.peer();
    let window = peer.window(&setup.token(100, 50)).unwrap();
    assert_eq!((window.len(), window.is_empty()), (50, false));
    for (offset, len) in [
        (0, 51),
        (50, 1),
        (51, 0),
        (1, 50),
        (u64::MAX, 2),
        (u64::MAX - 100, 0),
    ] {
        let refused = window.write(offset, &vec![1; len]);
        let expected = PeerError::OutOfWindow {
            offset,
            len: len as u64,
            window: 50,
        };
        assert_eq!(refused, Err(expected));
    }
    assert_eq!(setup.slab.bytes(), vec![0; 4096]);
    let stats = peer.stats();
    assert_eq!(
        (
            stats.refused_writes,
            stats.refused_bytes,
            stats.landed_writes
        ),
        (6, 104, 0)
    );
    window.write(50, &[]).unwrap();
}

#[test]
fn a_token_for_a_window_outside_the_registration_is_neither_made_nor_followed() {
    let setup = Setup::new(4096);
    let base = setup.slab.base;
    for (address, len) in [
        (base - 1, 1),
        (base, 4097),
        (base + 4096, 1),
        (base + 1, 4096),
        (0, 0),
    ] {
        let made = setup.owner.token(setup.handle, address, len);
        assert!(matches!(made, Err(TokenError::Provider { .. })), "{made:?}");
        let forged = Token {
            address,
            size: len as u32,
            ..setup.token(0, 1)
        };
        let refused = setup.peer().window(&forged).map(|_| ());
        let rkey = forged.rkey;
        assert_eq!(
            refused,
            Err(PeerError::OutOfRegistration { address, len, rkey })
        );
    }
    let len = u64::from(u32::MAX) + 1;
    let long = setup.owner.token(setup.handle, base, len);
    assert_eq!(
        long,
        Err(TokenError::TooLong {
            len,
            limit: u64::from(u32::MAX)
        })
    );
    let unknown = setup.owner.token(RegistrationHandle(u64::MAX), base, 1);
    assert!(matches!(unknown, Err(TokenError::Provider { .. })));
}

#[test]
fn a_wrong_capability_is_refused() {
    let setup = Setup::new(4096);
    let peer = setup.peer();
    let token = setup.token(0, 10);
    let mut gid = token.gid.unwrap();
    gid[15] ^= 1;
    let refused = peer.write(
        &Token {
            gid: Some(gid),
            ..token
        },
        0,
        &[1],
    );
    assert!(
        matches!(
            refused,
            Err(PeerError::Refused {
                why: Refusal::Capability,
                ..
            })
        ),
        "{refused:?}"
    );
    let refused = peer.write(&Token { gid: None, ..token }, 0, &[1]);
    assert!(
        matches!(refused, Err(PeerError::BadToken { .. })),
        "{refused:?}"
    );
    assert_eq!(setup.slab.bytes(), vec![0; 4096]);
    assert_eq!(
        peer.stats(),
        PeerStats {
            refused_writes: 2,
            refused_bytes: 2,
            ..PeerStats::default()
        }
    );
    // The right one is not mistaken for it.
    peer.write(&token, 0, &[1]).unwrap();
}

#[test]
fn a_stranger_gets_nothing_before_hello() {
    let setup = Setup::new(4096);
    let rkey = setup.token(0, 1).rkey;
    for first in [
        Message::Fetch { rkey },
        Message::Bye,
        Message::Revoked { rkey },
    ] {
        let socket = setup.connect();
        socket::send(&socket, &first, None).unwrap();
        assert!(matches!(hear(&socket), Received::End));
    }
    let socket = setup.connect();
    rustix::net::send(&socket, b"huh", rustix::net::SendFlags::empty()).unwrap();
    assert!(matches!(hear(&socket), Received::End));
    until("strangers are forgotten", || setup.owner.peers() == 0);
}

#[test]
fn a_key_that_is_not_registered_is_told_apart_from_an_owner_that_is_not_there() {
    let setup = Setup::new(4096);
    let peer = setup.peer();
    let token = setup.token(0, 10);
    let rkey = token.rkey.wrapping_add(1);
    let unknown = peer.window(&Token { rkey, ..token }).map(|_| ());
    assert_eq!(unknown, Err(PeerError::UnknownKey { rkey }));
    let lid = token.lid ^ 1;
    let nobody = peer.window(&Token { lid, ..token }).map(|_| ());
    assert!(
        matches!(nobody, Err(PeerError::NoSuchOwner { .. })),
        "{nobody:?}"
    );
    let elsewhere = PeerOptions {
        folder: Some(setup.folder.join("none")),
        timeout: LONG,
    };
    let nobody = Peer::new(elsewhere).window(&token).map(|_| ());
    assert!(
        matches!(nobody, Err(PeerError::NoSuchOwner { .. })),
        "{nobody:?}"
    );
    peer.write(&token, 0, &[1]).unwrap();
}

#[test]
fn an_owner_with_enough_peers_turns_more_away() {
    let setup = Setup::with(
        4096,
        LoopbackOptions {
            max_peers: 1,
            ..LoopbackOptions::default()
        },
    );
    let token = setup.token(0, 1);
    let first = setup.peer();
    first.write(&token, 0, &[1]).unwrap();
    let second = setup.peer();
    let refused = second.write(&token, 0, &[2]);
    assert!(
        matches!(
            refused,
            Err(PeerError::Refused {
                why: Refusal::Busy,
                ..
            })
        ),
        "{refused:?}"
    );
    drop(first);
    until("there is room again", || {
        second.write(&token, 0, &[2]).is_ok()
    });
}

#[test]
fn an_owner_that_does_not_answer_is_given_up_in_time() {
    let temp = tempfile::tempdir().unwrap();
    let folder = Folder::create(Some(&temp.path().join("f"))).unwrap();
    let identity = Identity::random();
    let deaf = socket::new().unwrap();
    let address = folder.address(&socket_name(&identity.instance())).unwrap();
    rustix::net::bind(&deaf, &address).unwrap();
    rustix::net::listen(&deaf, 1).unwrap();
    let options = PeerOptions {
        folder: Some(folder.path().to_owned()),
        timeout: SHORT,
    };
    let peer = Peer::new(options);
    let given_up = peer.window(&identity.token(0, 1, 1)).map(|_| ());
    assert!(
        matches!(given_up, Err(PeerError::TimedOut { .. })),
        "{given_up:?}"
    );
}

#[test]
fn registration_has_limits_that_are_told_with_an_errno_or_a_text() {
    let limits = LoopbackOptions {
        max_registered: Some(8192),
        ..LoopbackOptions::default()
    };
    let setup = Setup::with(8192, limits);
    let full = setup
        .owner
        .register(setup.slab.segment(0, 4096))
        .unwrap_err();
    assert_eq!(full.errno, Some(12));
    assert!(full.to_string().contains("limit of 8192"), "{full}");
    setup.revoke().unwrap();
    setup.owner.register(setup.slab.segment(0, 4096)).unwrap();
    assert_eq!(setup.owner.segment_limit(), 0xffff_0000);
    for (fd_offset, len) in [(0, 0xffff_0001), (0, 0), (u64::MAX - setup.slab.base, 4096)] {
        let refused = setup
            .owner
            .register(setup.slab.segment(fd_offset, len))
            .unwrap_err();
        assert_eq!(refused.errno, None, "{refused}");
    }
}

#[test]
fn memory_that_cannot_be_mapped_is_an_error_of_the_peer_and_holds_nothing() {
    let setup = Setup::new(4096);
    let file = tempfile::tempfile().unwrap();
    let segment = Segment {
        fd: Some(file.as_fd()),
        ..setup.slab.segment(0, 4096)
    };
    let handle = setup.owner.register(segment).unwrap();
    let peer = setup.peer();
    let token = setup.owner.token(handle, setup.slab.base, 1).unwrap();
    let refused = peer.write(&token, 0, &[1]);
    assert!(
        matches!(refused, Err(PeerError::Unmappable { .. })),
        "{refused:?}"
    );
    setup.owner.revoke(handle, LONG).unwrap();
    // The connection is not lost by it.
    peer.write(&setup.token(0, 1), 0, &[1]).unwrap();
}

#[test]
fn a_folder_that_is_not_private_is_refused_on_both_sides() {
    use std::os::unix::fs::PermissionsExt;
    let setup = Setup::new(4096);
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&setup.folder, open).unwrap();
    let refused = setup.peer().write(&setup.token(0, 1), 0, &[1]);
    assert!(
        matches!(
            refused,
            Err(PeerError::Folder(FolderError::NotPrivate { .. }))
        ),
        "{refused:?}"
    );
    let options = LoopbackOptions {
        folder: Some(setup.folder.clone()),
        ..LoopbackOptions::default()
    };
    let refused = Loopback::open(options).map(|_| ());
    assert!(
        matches!(
            refused,
            Err(LoopbackError::Folder(FolderError::NotPrivate { .. }))
        ),
        "{refused:?}"
    );
}
