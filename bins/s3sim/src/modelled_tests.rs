use std::os::fd::AsFd;

use rustix::fs::{MemfdFlags, SealFlags};
use s3engine_pool::{Memory, Registrar, RegistrationHandle, Segment, SlabId};
use s3engine_s3::fabric::loopback::{Loopback, LoopbackOptions, Peer, PeerOptions};
use tokio::time::Instant;

use super::*;

const MILLI: Duration = Duration::from_millis(1);

fn model(name: &str) -> Modelled {
    Modelled::start(Model::load(name).unwrap(), None).unwrap()
}

fn assert_near(time: Duration, wanted: Duration) {
    assert!(
        time.abs_diff(wanted) <= MILLI,
        "{time:?}, wanted {wanted:?}"
    );
}

/// How long it takes to admit so many requests at a time, with as many clients.
async fn admitted(model: &Arc<Modelled>, requests: usize, clients: u64) -> Duration {
    let began = Instant::now();
    let admit = || {
        let model = model.clone();
        tokio::spawn(async move {
            let mut pace = model.begin().await;
            model.admit(&mut pace, || clients).await;
        })
    };
    for admit in (0..requests).map(|_| admit()).collect::<Vec<_>>() {
        admit.await.unwrap();
    }
    began.elapsed()
}

#[tokio::test(start_paused = true)]
async fn an_operation_takes_its_time_and_others_take_theirs_meanwhile() {
    let model = Arc::new(model("op-latency"));
    assert_near(admitted(&model, 1, 1).await, 40 * MILLI);
    assert_near(admitted(&model, 50, 8).await, 40 * MILLI);
}

#[tokio::test(start_paused = true)]
async fn each_client_beyond_the_first_makes_each_operation_dearer() {
    let model = Arc::new(model("per-client-cost"));
    for (clients, wanted) in [(0, 0), (1, 0), (2, 200), (4, 600), (8, 1400), (1, 0)] {
        let time = admitted(&model, 20, clients).await;
        assert_near(time, wanted * MILLI);
    }
}

#[tokio::test(start_paused = true)]
async fn answers_are_late_by_the_square_of_clients() {
    let model = Arc::new(model("slow-then-timeout"));
    for (clients, wanted) in [(1, 0), (2, 300), (4, 1500), (8, 6300), (1 << 40, 600_000)] {
        assert_near(admitted(&model, 3, clients).await, wanted * MILLI);
    }
}

#[tokio::test(start_paused = true)]
async fn models_with_another_cause_admit_at_once() {
    for name in ["none", "registration-contention", "far-gpu"] {
        assert_near(
            admitted(&Arc::new(model(name)), 20, 8).await,
            Duration::ZERO,
        );
    }
}

/// A client of the loopback fabric, and the server's end.
struct Fixture {
    owner: Loopback,
    peer: Peer,
    _folder: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Fixture {
        let temp = tempfile::tempdir().unwrap();
        let folder = Some(temp.path().join("loopback"));
        let owner = Loopback::open(LoopbackOptions {
            folder: folder.clone(),
            ..LoopbackOptions::default()
        });
        let peer = Peer::new(PeerOptions {
            folder,
            ..PeerOptions::default()
        });
        Fixture {
            owner: owner.unwrap(),
            peer,
            _folder: temp,
        }
    }

    fn slab(&self) -> (RegistrationHandle, SlabKey, RemoteWindow) {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("test", flags).unwrap();
        rustix::fs::ftruncate(&fd, 4096).unwrap();
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).unwrap();
        let segment = Segment {
            slab: SlabId(0),
            index: 0,
            memory: Memory::Host,
            address: 4096,
            len: 4096,
            fd: Some(fd.as_fd()),
            fd_offset: 0,
            slab_len: 4096,
            cuda: None,
        };
        let handle = self.owner.register(segment).unwrap();
        let token = self.owner.token(handle, 4096, 4096).unwrap();
        let window = self.peer.window(&token).unwrap();
        (handle, (token.gid, token.rkey), window)
    }
}

#[tokio::test]
async fn of_the_slabs_there_are_every_second_one_is_far() {
    let (model, fixture) = (model("far-gpu"), Fixture::new());
    let mut pace = model.begin().await;
    let mut far = |(_, key, window): &(RegistrationHandle, SlabKey, RemoteWindow)| {
        model.find_slab(&mut pace, *key, window);
        model.slabs.lock().unwrap()[key].far
    };
    let slabs: Vec<_> = (0..6).map(|_| fixture.slab()).collect();
    let alternating = [false, true, false, true, false, true];
    for _ in 0..2 {
        assert_eq!(slabs.iter().map(&mut far).collect::<Vec<_>>(), alternating);
    }
    // The first of new ones is near again, as if there had been none before.
    for (handle, ..) in &slabs {
        fixture.owner.revoke(*handle, 10_000 * MILLI).unwrap();
    }
    let more: Vec<_> = (0..3).map(|_| fixture.slab()).collect();
    assert_eq!(
        more.iter().map(&mut far).collect::<Vec<_>>(),
        alternating[..3]
    );
    assert_eq!(model.slabs.lock().unwrap().len(), 3);
}
