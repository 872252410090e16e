//! The client's side: imported slabs, the buffers in them, and a pool that another process answers for. The two
//! sides are in one process here, and so each sees what the other does.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use books::{Books, block_on, client, pool_with};
use s3engine_pool::cuda::CallersRange;
use s3engine_pool::{
    Buffer, ClientOptions, GiveBack, ImportError, ImportedSlab, Memory, OutOfBounds, Pool,
    PoolError, PoolStats, RemotePool, SlabId, SlotId,
};

mod books;

const MIB: u64 = 1 << 20;

/// What a service and its session do, without the socket between: the owner's buffers are kept by name, and the
/// client's are imported.
struct Session {
    me: Weak<Session>,
    owner: Pool,
    leased: Mutex<Vec<Buffer>>,
    slabs: Mutex<Vec<Arc<ImportedSlab>>>,
    given_back: Mutex<Vec<SlotId>>,
    lost: AtomicBool,
}

impl Session {
    fn start(owner: Pool) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            owner,
            leased: Mutex::default(),
            slabs: Mutex::default(),
            given_back: Mutex::default(),
            lost: AtomicBool::new(false),
        })
    }

    fn slab(&self, id: SlabId) -> Arc<ImportedSlab> {
        let mut slabs = self.slabs.lock().unwrap();
        if let Some(slab) = slabs.iter().find(|slab| slab.id() == id) {
            return Arc::clone(slab);
        }
        let export = self.owner.export(id).unwrap();
        let slab = ImportedSlab::map(export.share.fd().unwrap(), export.len, id, export.read_only);
        slabs.push(slab.unwrap());
        Arc::clone(&slabs[slabs.len() - 1])
    }

    fn given_back(&self) -> Vec<SlotId> {
        self.given_back.lock().unwrap().clone()
    }
}

impl GiveBack for Session {
    fn give_back(&self, slot: SlotId) {
        self.given_back.lock().unwrap().push(slot);
        let mut leased = self.leased.lock().unwrap();
        leased.retain(|buffer| buffer.slot() != slot);
    }

    fn is_alive(&self) -> bool {
        !self.lost.load(Ordering::SeqCst)
    }
}

impl RemotePool for Session {
    fn try_alloc(&self, len: u64, memory: Memory, align: u64) -> Result<Buffer, PoolError> {
        if !self.is_alive() {
            let why = "it closed the socket".into();
            return Err(PoolError::Lost { why });
        }
        let lease = self.owner.try_alloc_aligned(len, memory, align)?;
        let slab = self.slab(lease.slot().slab);
        let (slot, offset) = (lease.slot(), lease.offset());
        let me = self.me.upgrade().unwrap();
        let imported = Buffer::imported(&slab, slot, offset, len, align, me).unwrap();
        self.leased.lock().unwrap().push(lease);
        Ok(imported)
    }

    fn adopt(&self, _: CallersRange, _: u64, _: u64) -> Result<Buffer, PoolError> {
        Err(PoolError::NotOwner)
    }

    fn forget(&self, _: u64, _: u64) -> Result<bool, PoolError> {
        Ok(true)
    }

    fn changed(&self) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(self.owner.changed())
    }

    fn stats(&self) -> PoolStats {
        self.owner.stats()
    }

    fn is_giver(&self, giver: &dyn GiveBack) -> bool {
        std::ptr::addr_eq(giver, self)
    }
}

struct Setup {
    host: Pool,
    session: Arc<Session>,
    /// As a client's code sees it.
    pool: Pool,
}

fn setup(max: u64, read_only: bool) -> Setup {
    let host = pool_with(&Arc::<Books>::default(), max);
    let options = ClientOptions {
        read_only,
        ..ClientOptions::named("client")
    };
    let session = Session::start(host.for_client(options).unwrap());
    let pool = Pool::remote(Arc::clone(&session) as Arc<dyn RemotePool>);
    Setup {
        host,
        session,
        pool,
    }
}

#[test]
fn owner_and_client_see_the_same_bytes_at_different_addresses() {
    let s = setup(8 * MIB, false);
    let mut first = s.pool.try_alloc(5000, Memory::Host).unwrap();
    let second = s.pool.try_alloc(100, Memory::Host).unwrap();
    assert_eq!((first.len(), first.memory()), (5000, Memory::Host));
    assert_eq!(second.slot().slab, first.slot().slab);
    assert_eq!((second.offset(), second.slab_len()), (8192, 4 * MIB));
    assert_eq!(second.address() - first.address(), 8192);
    assert!(first.address().is_multiple_of(4096));
    first.as_mut_slice().unwrap().fill(7);
    let leased = s.session.leased.lock().unwrap();
    assert_ne!(leased[0].address(), first.address());
    assert_eq!(leased[0].as_slice(), first.as_slice());
    assert!(leased[0].as_slice().unwrap().iter().all(|byte| *byte == 7));
}

#[test]
fn a_dropped_buffer_is_given_back_once_and_a_surrendered_one_never() {
    let s = setup(8 * MIB, false);
    let dropped = s.pool.try_alloc(1, Memory::Host).unwrap();
    let surrendered = s.pool.try_alloc(1, Memory::Host).unwrap();
    let slot = dropped.slot();
    drop(dropped);
    assert_eq!(s.session.given_back(), [slot]);
    surrendered.surrender();
    assert_eq!(s.session.given_back(), [slot]);
    assert_eq!(s.host.stats().leased, 4096, "the owner answers for it");
    // Its bytes are not the client's any more, so the owner may hand them out again.
    s.session.leased.lock().unwrap().clear();
    assert_eq!(s.pool.alloc_many(2, 1, Memory::Host).unwrap().len(), 2);
    let own = s.host.try_alloc(1, Memory::Host).unwrap();
    own.surrender();
    assert_eq!(s.host.client_stats().unwrap().leased, 0);
}

#[test]
fn a_slot_that_cannot_be_what_its_owner_says_is_refused() {
    let s = setup(8 * MIB, false);
    let buffer = s.pool.try_alloc(8192, Memory::Host).unwrap();
    let slab = s.session.slab(buffer.slot().slab);
    let slot = SlotId {
        index: 9,
        ..buffer.slot()
    };
    let import = |slot, offset, len| {
        let giver = Arc::clone(&s.session) as Arc<dyn GiveBack>;
        Buffer::imported(&slab, slot, offset, len, 4096, giver).map(|buffer| buffer.len())
    };
    let have = 4 * MIB;
    for (offset, len) in [(have, 1), (0, have + 1), (u64::MAX, 2), (have - 1, 2)] {
        let source = OutOfBounds { offset, len, have };
        let error = ImportError::OutOfBounds { slot, source };
        assert_eq!(import(slot, offset, len), Err(error));
    }
    for (offset, len) in [(0, 1), (8191, 2), (4096, 4096), (0, have)] {
        let error = ImportError::Overlaps { slot };
        assert_eq!(import(slot, offset, len), Err(error), "{offset} {len}");
    }
    let elsewhere = SlotId {
        slab: SlabId(u32::MAX),
        ..slot
    };
    let other = ImportError::OtherSlab {
        slot: elsewhere,
        slab: slab.id(),
    };
    assert_eq!(import(elsewhere, 8192, 1), Err(other));
    assert!(s.session.given_back().is_empty(), "nobody had them");
    assert_eq!(import(slot, 8192, 1), Ok(1));
    assert_eq!(import(slot, have, 0), Ok(0));
    drop(buffer);
    assert_eq!(import(slot, 0, have), Ok(have));
}

#[test]
fn a_client_that_only_reads_gets_no_slice_to_write() {
    let s = setup(8 * MIB, true);
    let mut buffer = s.pool.try_alloc(5, Memory::Host).unwrap();
    let lease = s.session.leased.lock().unwrap().pop().unwrap();
    let mut landing = lease.into_landing();
    landing.window(0, 5).unwrap().write(0, b"owner").unwrap();
    assert_eq!(buffer.as_slice(), Some(&b"owner"[..]));
    assert!(buffer.as_mut_slice().is_none());
    assert!(s.session.slab(buffer.slot().slab).is_read_only());
}

#[test]
fn a_client_that_only_reads_cannot_map_what_it_gets_for_writing() {
    let s = setup(8 * MIB, true);
    let buffer = s.pool.try_alloc(5, Memory::Host).unwrap();
    let slab = buffer.slot().slab;
    let export = s.session.owner.export(slab).unwrap();
    assert!(ImportedSlab::map(export.share.fd().unwrap(), export.len, slab, false).is_err());
    assert!(ImportedSlab::map(export.share.fd().unwrap(), export.len + 1, slab, true).is_err());
}

#[test]
fn buffers_of_an_owner_that_is_gone_cannot_be_reached() {
    let s = setup(8 * MIB, false);
    let mut buffer = s.pool.try_alloc(5, Memory::Host).unwrap();
    assert!(buffer.as_slice().is_some() && buffer.as_mut_slice().is_some());
    s.session.lost.store(true, Ordering::SeqCst);
    assert!(buffer.as_slice().is_none() && buffer.as_mut_slice().is_none());
    let error = s.pool.try_alloc(1, Memory::Host).unwrap_err();
    assert!(error.to_string().contains("it closed the socket"));
}

#[test]
fn no_transfer_of_the_client_writes_to_what_the_owner_leased_it() {
    let s = setup(8 * MIB, false);
    let buffer = s.pool.try_alloc(5000, Memory::Host).unwrap();
    let (slot, len) = (buffer.slot(), buffer.len());
    let mut landing = buffer.into_landing();
    assert!(!landing.is_draining());
    assert_eq!(landing.window(0, 1).unwrap_err().have, 0);
    let back = landing.finish().unwrap();
    assert_eq!((back.slot(), back.len()), (slot, len));
    drop(back.into_landing());
    assert_eq!(s.session.given_back(), [slot]);
}

#[test]
fn a_buffer_is_of_the_pool_whose_session_gave_it() {
    let (s, other) = (setup(8 * MIB, false), setup(8 * MIB, false));
    let buffer = s.pool.try_alloc(1, Memory::Host).unwrap();
    assert!(buffer.is_of(&s.pool) && buffer.is_of(&s.pool.clone()));
    assert!(!buffer.is_of(&other.pool) && !buffer.is_of(&s.host));
    let own = s.host.try_alloc(1, Memory::Host).unwrap();
    assert!(own.is_of(&s.host) && !own.is_of(&s.pool));
}

#[test]
fn a_remote_pool_waits_and_refuses_as_the_owners_does() {
    let s = setup(8 * MIB, false);
    let wait = Duration::from_secs(20);
    let all = s.pool.alloc(8 * MIB, Memory::Host, wait).unwrap();
    assert!(matches!(
        s.pool.try_alloc(1, Memory::Host),
        Err(PoolError::WouldBlock { .. })
    ));
    assert!(matches!(
        s.pool.alloc(1, Memory::Host, Duration::from_millis(10)),
        Err(PoolError::TimedOut { .. })
    ));
    assert!(matches!(
        s.pool.try_alloc_aligned(1, Memory::Host, 1000),
        Err(PoolError::Alignment { align: 1000 })
    ));
    let pool = s.pool.clone();
    let waiter = std::thread::spawn(move || pool.alloc(1, Memory::Host, wait).map(drop));
    let changed = s.pool.changed();
    drop(all);
    block_on(changed);
    waiter.join().unwrap().unwrap();
    let aligned = s.pool.try_alloc_aligned(1, Memory::Host, 2 * MIB).unwrap();
    assert!(aligned.address().is_multiple_of(2 * MIB));
    assert_eq!(s.pool.stats().leased, s.host.stats().leased);
}

#[test]
fn what_only_an_owner_can_do_is_an_error_or_finds_nothing_elsewhere() {
    let s = setup(8 * MIB, false);
    let buffer = s.pool.try_alloc(1, Memory::Host).unwrap();
    let slot = buffer.slot();
    let not_owner = |error: PoolError| matches!(error, PoolError::NotOwner);
    assert!(not_owner(s.pool.export(slot.slab).unwrap_err()));
    assert!(not_owner(s.pool.client_stats().unwrap_err()));
    let options = ClientOptions::named("another");
    assert!(not_owner(s.pool.for_client(options).unwrap_err()));
    s.pool.retire();
    assert!(!s.pool.is_retired() && !s.session.owner.is_retired());
    assert!(s.pool.slabs().is_empty() && s.pool.fabric(0).is_none());
    assert!(s.pool.resolve(slot).is_err());
    let fabric = s.host.fabric(0).unwrap();
    assert!(s.pool.registrations(slot.slab, fabric).is_empty());
    let landing = buffer.into_landing();
    assert_eq!(s.pool.segment_ends(&landing, fabric), (u64::MAX, u64::MAX));
    assert_eq!(s.pool.quarantine_bound(), Duration::ZERO);
}

#[test]
fn an_imported_slab_outlives_the_owners_slab_as_long_as_it_is_used() {
    let s = setup(8 * MIB, false);
    let mut buffer = s.pool.try_alloc(5, Memory::Host).unwrap();
    buffer.as_mut_slice().unwrap().copy_from_slice(b"still");
    s.session.owner.retire();
    s.session.leased.lock().unwrap().clear();
    books::wait_until("the owner's slab is gone", || s.host.stats().mapped == 0);
    assert_eq!(buffer.as_slice(), Some(&b"still"[..]));
    let next = client(&s.host, "next").try_alloc(5, Memory::Host).unwrap();
    assert_eq!(next.as_slice(), Some(&[0; 5][..]));
    assert_eq!(buffer.as_slice(), Some(&b"still"[..]));
}
