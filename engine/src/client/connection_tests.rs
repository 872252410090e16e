//! A service that answers late, and what becomes of its answers.

use std::os::unix::net::UnixListener;

use s3engine_pool::cuda::{CudaCause, CudaError, Uuid};
use s3engine_pool::{Memory as MemoryKind, MemoryError, PoolError, RemotePool, SlabId, SlotId};
use s3engine_ring::{Bell, SharedQueue};
use s3engine_s3::object::ObjectInfo;

use super::*;
use crate::client::memory::Memory;
use crate::control::{IpcHandle, Kind, LARGEST_ASKED, Leased, Slab, Slot, send_with_fds};

const BRIEFLY: Duration = Duration::from_millis(20);
const LONG: Duration = Duration::from_secs(30);

/// The service's side of one session, said and heard by the test.
struct Fake {
    socket: UnixStream,
    frames: Frames,
}

impl Fake {
    /// A session of a client that waits so long.
    fn new(patience: Duration) -> (Self, Arc<Connection>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let greets = thread::spawn(move || {
            let (socket, _) = listener.accept().unwrap();
            socket.set_read_timeout(Some(LONG)).unwrap();
            let frames = Frames::new(LARGEST_ASKED);
            let mut fake = Self { socket, frames };
            let _: Hello = fake.hear();
            let welcome = Welcome {
                version: VERSIONS.1,
                session: 1,
                endpoint: "http://s3:9000".to_owned(),
                fabric: Err("none".to_owned()),
                max_bytes: 1 << 20,
                max_entries: 8,
            };
            fake.say(&encode(&Greeting::Welcome(welcome), 0), &[]);
            fake
        });
        let options = ConnectOptions {
            patience,
            ..ConnectOptions::default()
        };
        let connection = Connection::open(&path, &options).unwrap();
        (greets.join().unwrap(), connection)
    }

    fn hear<T: serde::de::DeserializeOwned>(&mut self) -> T {
        loop {
            if let Some((message, _)) = self.frames.next().unwrap() {
                return message;
            }
            assert!(self.frames.receive(&self.socket).unwrap(), "it has left");
        }
    }

    /// What is asked next, but whether this lives.
    fn asked(&mut self) -> (u64, Ask) {
        loop {
            let Request { id, ask } = self.hear();
            if !matches!(ask, Ask::Ping) {
                return (id, ask);
            }
        }
    }

    fn say(&mut self, frame: &[u8], fds: &[OwnedFd]) {
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        let flags = rustix::net::SendFlags::empty();
        let sent = send_with_fds(&self.socket, frame, &fds, flags).unwrap();
        assert_eq!(sent, frame.len());
    }

    fn answer(&mut self, id: u64, said: Said, fds: &[OwnedFd]) {
        let said = Ok(said);
        self.say(&encode(&Answer { id, said }, fds.len()), fds);
    }

    /// Asserts that the client says that it does not wait any more.
    fn assert_forgets(&mut self, id: u64) {
        let (_, forget) = self.asked();
        assert!(
            matches!(forget, Ask::Forget { request } if request == id),
            "{forget:?}"
        );
    }
}

fn assert_late(answered: &Answered) {
    let Err(Failure::Refused(why)) = answered else {
        panic!("{answered:?}");
    };
    assert!(why.contains("not answered within 20ms"), "{why}");
}

#[test]
fn a_lease_that_comes_too_late_is_freed_at_once() {
    let (mut fake, connection) = Fake::new(BRIEFLY);
    assert_late(&connection.ask_now(Ask::Lease {
        memory: Kind::Host,
        len: 1,
        align: 1,
    }));
    let (id, _) = fake.asked();
    fake.assert_forgets(id);
    let slot = Slot::from(SlotId {
        slab: SlabId(7),
        index: 3,
        generation: 2,
    });
    let (offset, slab) = (0, None);
    let leased = Leased { slot, offset, slab };
    fake.answer(id, Said::Leased(leased), &[]);
    let (_, free) = fake.asked();
    assert!(
        matches!(&free, Ask::Free { slots } if *slots == [slot]),
        "{free:?}"
    );
}

#[test]
fn an_object_that_is_opened_too_late_is_closed_at_once() {
    let (mut fake, connection) = Fake::new(BRIEFLY);
    let (bucket, key) = ("b".to_owned(), "k".to_owned());
    let ask = connection.ask(Ask::Open {
        bucket,
        key,
        options: None,
    });
    let asked = tokio::runtime::Builder::new_current_thread().build();
    assert_late(&asked.unwrap().block_on(ask));
    let (id, _) = fake.asked();
    fake.assert_forgets(id);
    let (object, info) = (9, ObjectInfo::default());
    fake.answer(id, Said::Opened { object, info }, &[]);
    let (_, close) = fake.asked();
    assert!(matches!(close, Ask::Close { object: 9 }), "{close:?}");
}

#[test]
fn an_object_whose_answer_is_not_taken_is_closed_at_once() {
    let (mut fake, connection) = Fake::new(LONG);
    let (bucket, key) = ("b".to_owned(), "k".to_owned());
    let mut ask = Box::pin(connection.ask(Ask::Open {
        bucket,
        key,
        options: None,
    }));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(ask.as_mut().poll(&mut context).is_pending());
    let (id, _) = fake.asked();
    let (object, info) = (9, ObjectInfo::default());
    fake.answer(id, Said::Opened { object, info }, &[]);
    while connection.asks.has_tasks() {
        thread::yield_now();
    }
    drop(ask);
    let (_, close) = fake.asked();
    assert!(matches!(close, Ask::Close { object: 9 }), "{close:?}");
}

#[test]
fn a_queue_that_comes_too_late_ends_at_once() {
    let (mut fake, connection) = Fake::new(BRIEFLY);
    let layout = Layout::new(8).unwrap();
    assert!(connection.queue(layout).is_err());
    let (id, _) = fake.asked();
    fake.assert_forgets(id);
    let shared = SharedQueue::create(layout).unwrap();
    let (near, far) = SocketBell::pair().unwrap();
    let regions = [shared.client_region, shared.service_region];
    let rung = EventBell::new().unwrap().share().unwrap();
    let fds: Vec<_> = regions.into_iter().chain([far.into_fd(), rung]).collect();
    fake.answer(id, Said::Queue, &fds);
    drop(fds);
    let ended = near.wait(LONG);
    assert!(ended.is_err(), "the client holds its end");
    assert!(connection.lost().is_none());
}

const SLOT: Slot = Slot {
    slab: 7,
    index: 3,
    generation: 2,
};

fn slab(memory: Kind) -> Slab {
    Slab {
        slab: SLOT.slab,
        len: 2 << 20,
        read_only: false,
        memory,
        handle: (memory != Kind::Host).then_some(IpcHandle([0; 64])),
    }
}

/// What comes of asking for memory, where the service answers with that slab.
fn lease_in(slab: Slab) -> (Fake, Arc<Connection>, Result<(), PoolError>) {
    let (mut fake, connection) = Fake::new(LONG);
    let memory = Memory::new(Arc::clone(&connection));
    let asks = thread::spawn(move || memory.try_alloc(4096, MemoryKind::Host, 4096).map(drop));
    let (id, ask) = fake.asked();
    let wanted = Ask::Lease {
        memory: Kind::Host,
        len: 4096,
        align: 4096,
    };
    assert_eq!(format!("{ask:?}"), format!("{wanted:?}"));
    let leased = Leased {
        slot: SLOT,
        offset: 0,
        slab: Some(slab),
    };
    fake.answer(id, Said::Leased(leased), &[]);
    let leased = asks.join().unwrap();
    (fake, connection, leased)
}

#[test]
fn a_slot_whose_slab_cannot_be_mapped_goes_back() {
    // The one lacks its descriptor, the other a device that this process sees.
    for kind in [Kind::Host, Kind::Cuda([1; 16])] {
        let (mut fake, _connection, leased) = lease_in(slab(kind));
        let error = leased.unwrap_err();
        match (kind, &error) {
            (Kind::Host, PoolError::Refused { why }) => assert!(why.contains("descriptor")),
            (Kind::Cuda(_), PoolError::Memory(MemoryError::Cuda(_))) => {}
            _ => panic!("{error}"),
        }
        let (_, free) = fake.asked();
        assert!(
            matches!(&free, Ask::Free { slots } if *slots == [SLOT]),
            "{free:?}"
        );
    }
}

#[test]
fn memory_of_a_device_that_is_not_seen_here_is_not_asked_for() {
    let (mut fake, connection) = Fake::new(LONG);
    let memory = Memory::new(Arc::clone(&connection));
    let device = MemoryKind::Cuda(Uuid([0xab; 16]));
    let error = memory.try_alloc(4096, device, 4096).unwrap_err();
    let PoolError::Memory(MemoryError::Cuda(error)) = error else {
        panic!("{error}");
    };
    let causes = [CudaCause::NoDriver, CudaCause::NoSuchDevice];
    assert!(causes.contains(&error.cause()), "{error}");
    if let CudaError::NoSuchDevice { wanted, .. } = &error {
        assert!(wanted.starts_with("GPU-abababab-abab"));
    }
    connection.say(Ask::Close { object: 1 });
    let (_, first) = fake.asked();
    assert!(matches!(first, Ask::Close { object: 1 }), "{first:?}");
}
