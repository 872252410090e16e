use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::fs::{MemfdFlags, SealFlags};
use s3engine_pool::{Mapping, Memory, Registrar, RegistrationHandle, Segment, SlabId};

use super::folder::{Folder, socket_name};
use super::identity::Identity;
use super::socket::{self, Received};
use super::wire::Message;
use super::*;
use crate::fabric::TokenError;
use crate::token::Token;

mod cost;
mod refusal;
mod revocation;

const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(50);

/// Sealed memory of the owner, at an address of its own.
struct Slab {
    id: u32,
    base: u64,
    fd: OwnedFd,
    memory: Mapping,
}

impl Slab {
    fn new(id: u32, len: u64) -> Self {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("test", flags).unwrap();
        rustix::fs::ftruncate(&fd, len).unwrap();
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).unwrap();
        let memory = Mapping::import(fd.as_fd(), len).unwrap();
        Self {
            id,
            base: 0x7000_0000_0000 + (u64::from(id) << 32),
            fd,
            memory,
        }
    }

    fn segment(&self, fd_offset: u64, len: u64) -> Segment<'_> {
        let (slab, memory) = (SlabId(self.id), Memory::Host);
        let address = self.base + fd_offset;
        Segment {
            slab,
            index: 0,
            memory,
            address,
            len,
            fd: Some(self.fd.as_fd()),
            fd_offset,
            slab_len: self.memory.len(),
            cuda: None,
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.memory.len() as usize];
        self.memory.read(0, &mut bytes).unwrap();
        bytes
    }
}

struct Setup {
    _temp: tempfile::TempDir,
    folder: PathBuf,
    owner: Loopback,
    slab: Slab,
    handle: RegistrationHandle,
}

impl Setup {
    /// An owner with one registration of `len` bytes.
    fn new(len: u64) -> Self {
        Self::with(len, LoopbackOptions::default())
    }

    fn with(len: u64, options: LoopbackOptions) -> Self {
        let temp = tempfile::tempdir().unwrap();
        let folder = temp.path().join("loopback");
        let owner = Loopback::open(LoopbackOptions {
            folder: Some(folder.clone()),
            ..options
        })
        .unwrap();
        let slab = Slab::new(0, len);
        let handle = owner.register(slab.segment(0, len)).unwrap();
        Self {
            _temp: temp,
            folder,
            owner,
            slab,
            handle,
        }
    }

    fn peer(&self) -> Peer {
        Peer::new(PeerOptions {
            folder: Some(self.folder.clone()),
            timeout: LONG,
        })
    }

    /// A token for a window of the registration.
    fn token(&self, offset: u64, len: u64) -> Token {
        self.owner
            .token(self.handle, self.slab.base + offset, len)
            .unwrap()
    }

    fn revoke(&self) -> Result<(), String> {
        self.owner.revoke(self.handle, LONG).map_err(|e| e.text)
    }

    /// A connection that says hello and then only what the test says.
    fn silent_peer(&self) -> OwnedFd {
        let socket = self.connect();
        let capability = Identity::of(&self.token(0, 1)).unwrap().capability;
        socket::send(&socket, &Message::Hello { capability }, None).unwrap();
        assert!(matches!(
            hear(&socket),
            Received::Message(Message::Welcome, None)
        ));
        socket
    }

    fn connect(&self) -> OwnedFd {
        let folder = Folder::open(Some(&self.folder)).unwrap();
        let name = socket_name(&Identity::of(&self.token(0, 1)).unwrap().instance());
        let socket = socket::new().unwrap();
        rustix::net::connect(&socket, &folder.address(&name).unwrap()).unwrap();
        socket
    }
}

fn hear(socket: &OwnedFd) -> Received {
    let deadline = socket::deadline(LONG);
    loop {
        match socket::receive(socket).unwrap() {
            Received::Empty => assert!(
                socket::wait(socket, PollFlags::IN, Some(deadline)).unwrap(),
                "silence"
            ),
            received => return received,
        }
    }
}

/// Fetches a key over a raw connection and holds it.
fn fetch(socket: &OwnedFd, rkey: u32) {
    socket::send(socket, &Message::Fetch { rkey }, None).unwrap();
    assert!(matches!(
        hear(socket),
        Received::Message(Message::Segment { .. }, Some(_))
    ));
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !done() {
        assert!(Instant::now() < deadline, "not within {LONG:?}: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_write_lands_at_its_place_and_nowhere_else() {
    let setup = Setup::new(8192);
    let peer = setup.peer();
    let token = setup.token(4000, 200);
    peer.write(&Token::parse(&token.encode()).unwrap(), 50, &[7; 100])
        .unwrap();
    let mut expected = vec![0; 8192];
    expected[4050..4150].fill(7);
    assert_eq!(setup.slab.bytes(), expected);
    let stats = peer.stats();
    assert_eq!(
        (
            stats.owners,
            stats.mappings,
            stats.landed_writes,
            stats.landed_bytes
        ),
        (1, 1, 1, 100)
    );
}

#[test]
fn a_segment_may_start_inside_its_descriptor() {
    let setup = Setup::new(4096);
    let slab = Slab::new(1, 4096 * 3);
    let handle = setup.owner.register(slab.segment(4096, 4096)).unwrap();
    let token = setup.owner.token(handle, slab.base + 4096 + 10, 5).unwrap();
    setup.peer().write(&token, 1, &[9; 4]).unwrap();
    let mut expected = vec![0; 4096 * 3];
    expected[4096 + 11..4096 + 15].fill(9);
    assert_eq!(slab.bytes(), expected);
}

#[test]
fn a_write_longer_than_one_chunk_lands_whole() {
    let len = (17 << 20) + 3;
    let setup = Setup::new(len);
    let data: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
    setup.peer().write(&setup.token(0, len), 0, &data).unwrap();
    assert!(setup.slab.bytes() == data);
}

#[test]
fn owners_slabs_and_threads_do_not_mix() {
    let first = Setup::new(64 << 10);
    let second = Loopback::open(LoopbackOptions {
        folder: Some(first.folder.clone()),
        ..LoopbackOptions::default()
    })
    .unwrap();
    let slabs = [Slab::new(1, 64 << 10), Slab::new(2, 64 << 10)];
    let mut tokens = vec![(&first.slab, first.token(0, 64 << 10))];
    for (owner, slab) in [(&first.owner, &slabs[0]), (&second, &slabs[1])] {
        let handle = owner.register(slab.segment(0, 64 << 10)).unwrap();
        tokens.push((slab, owner.token(handle, slab.base, 64 << 10).unwrap()));
    }
    let peer = first.peer();
    let together = Barrier::new(8);
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let (peer, tokens, together) = (&peer, &tokens, &together);
            scope.spawn(move || {
                together.wait();
                for (i, (_, token)) in tokens.iter().enumerate() {
                    for at in 0..16 {
                        let fill = [(thread * 16 + at) as u8 ^ (i as u8 + 1); 512];
                        peer.write(token, (thread * 16 + at) * 512, &fill).unwrap();
                    }
                }
            });
        }
    });
    for (i, (slab, _)) in tokens.iter().enumerate() {
        let expected: Vec<u8> = (0..64 << 10)
            .map(|at| (at / 512) as u8 ^ (i as u8 + 1))
            .collect();
        assert!(slab.bytes() == expected, "slab {i}");
    }
    // However many threads asked: one connection an owner, one mapping a key.
    let stats = peer.stats();
    assert_eq!(
        (stats.owners, stats.mappings, stats.landed_writes),
        (2, 3, 3 * 8 * 16)
    );
    assert_eq!((first.owner.peers(), second.peers()), (1, 1));
}

#[test]
fn sockets_of_dead_owners_are_removed_and_those_of_live_ones_stay() {
    let setup = Setup::new(4096);
    let folder = Folder::open(Some(&setup.folder)).unwrap();
    let dead = socket::new().unwrap();
    rustix::net::bind(&dead, &folder.address("00000000ff.sock").unwrap()).unwrap();
    drop(dead);
    assert_eq!(folder.sockets().unwrap().len(), 2);
    let options = LoopbackOptions {
        folder: Some(setup.folder.clone()),
        ..LoopbackOptions::default()
    };
    let second = Loopback::open(options).unwrap();
    assert!(
        !folder
            .sockets()
            .unwrap()
            .contains(&"00000000ff.sock".to_owned())
    );
    assert_eq!(folder.sockets().unwrap().len(), 2);
    drop(second);
    setup.peer().write(&setup.token(0, 1), 0, &[1]).unwrap();
}

#[test]
fn a_long_folder_path_is_no_hindrance() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path().join("x".repeat(200));
    let options = LoopbackOptions {
        folder: Some(folder.clone()),
        ..LoopbackOptions::default()
    };
    let owner = Loopback::open(options).unwrap();
    let slab = Slab::new(0, 4096);
    let handle = owner.register(slab.segment(0, 4096)).unwrap();
    let peer = Peer::new(PeerOptions {
        folder: Some(folder),
        timeout: LONG,
    });
    peer.write(&owner.token(handle, slab.base, 3).unwrap(), 0, &[5; 3])
        .unwrap();
    assert_eq!(slab.bytes()[..4], [5, 5, 5, 0]);
}

#[test]
fn neither_side_shows_the_capability() {
    let setup = Setup::new(4096);
    let token = setup.token(0, 1);
    let peer = setup.peer();
    let window = peer.window(&token).unwrap();
    let shown = format!("{:?} {peer:?} {window:?} {token:?}", setup.owner);
    let text = token.encode();
    assert!(!shown.contains(&text[49..]), "{shown}");
    assert!(
        !shown.contains(&format!("{:?}", token.gid.unwrap())),
        "{shown}"
    );
}
