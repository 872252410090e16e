//! The ledger and quarantine as a fabric sees them: what is registered, revoked, leased again, given up.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use books::{Books, block_on};
use proptest::prelude::*;
use s3engine_pool::{
    Buffer, FabricId, Memory, Pool, PoolError, PoolOptions, Registrar, RegistrationHandle,
    RegistrationState, UnregisteredWhy, Window, WriteError,
};

mod books;

const MIB: u64 = 1 << 20;
/// The longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(10);

struct Setup {
    books: Arc<Books>,
    pool: Pool,
    fabric: FabricId,
}

fn setup(max: u64) -> Setup {
    setup_with(max, Duration::from_millis(50))
}

/// Revokes only when all tokens are in.
fn patient(max: u64) -> Setup {
    setup_with(max, Duration::from_secs(3600))
}

fn setup_with(max: u64, quarantine_max: Duration) -> Setup {
    let books = Arc::new(Books::default());
    let options = PoolOptions {
        slab_bytes: 8 * MIB,
        max_bytes: Some(max),
        quarantine_max,
        ..PoolOptions::default()
    };
    let pool = Pool::with_fabrics(options, vec![Arc::clone(&books) as Arc<dyn Registrar>]).unwrap();
    let fabric = pool.fabric(0).unwrap();
    Setup {
        books,
        pool,
        fabric,
    }
}

impl Setup {
    fn alloc(&self, len: u64) -> Buffer {
        self.pool
            .alloc(len, Memory::Host, Duration::from_secs(10))
            .unwrap()
    }

    fn arm(&self, window: &mut Window) -> RegistrationHandle {
        window.arm(self.fabric).unwrap()
    }

    fn wait_until(&self, what: &str, mut done: impl FnMut() -> bool) {
        let began = Instant::now();
        while !done() {
            assert!(
                began.elapsed() < Duration::from_secs(20),
                "waited too long: {what}: {:?}",
                self.pool.stats()
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

#[test]
fn a_segment_is_registered_once_however_many_slots_use_it() {
    let s = setup(8 * MIB);
    let buffers = s.pool.alloc_many(8, MIB, Memory::Host).unwrap();
    let mut handles = HashSet::new();
    for buffer in buffers {
        let mut landing = buffer.into_landing();
        let mut window = landing.window(0, MIB).unwrap();
        handles.insert(s.arm(&mut window).0);
        window.disarm();
    }
    assert_eq!(handles.len(), 2, "8 MiB in segments of 4 MiB");
    assert_eq!(s.pool.stats().ledger.registered, 2);
}

#[test]
fn a_slab_is_unregistered_on_request_unless_a_transfer_is_under_way() {
    let s = setup(8 * MIB);
    let buffer = s.alloc(MIB);
    let slab = buffer.slot().slab;
    let mut landing = buffer.into_landing();
    let mut window = landing.window(0, MIB).unwrap();
    let first = s.arm(&mut window);
    assert!(!s.pool.unregister(slab).unwrap(), "a token is out");
    assert_eq!(s.pool.stats().ledger.revoked, 0);
    window.disarm();
    assert!(s.pool.unregister(slab).unwrap());
    assert_ne!(s.arm(&mut window), first, "registered anew");
    window.disarm();
    let ledger = s.pool.stats().ledger;
    assert_eq!((ledger.registered, ledger.revoked), (2, 1));
}

#[test]
fn a_slab_whose_unregistration_is_not_confirmed_is_given_up() {
    let s = setup(8 * MIB);
    let buffer = s.alloc(MIB);
    let slab = buffer.slot().slab;
    let mut landing = buffer.into_landing();
    let mut window = landing.window(0, MIB).unwrap();
    s.arm(&mut window);
    window.disarm();
    s.books.refuse_revoke.store(true, Ordering::SeqCst);
    assert!(s.pool.unregister(slab).is_err());
    assert!(matches!(
        window.arm(s.fabric),
        Err(UnregisteredWhy::GivenUp(of)) if of == slab
    ));
    assert!(
        !s.pool.unregister(slab).unwrap(),
        "it is not the pool's any more"
    );
}

#[test]
fn a_window_across_segments_is_over_the_limit() {
    let s = setup(8 * MIB);
    let mut landing = s.alloc(8 * MIB).into_landing();
    let mut window = landing.window(3 * MIB, 2 * MIB).unwrap();
    let why = window.arm(s.fabric).unwrap_err();
    assert!(
        matches!(why, UnregisteredWhy::OverLimit { offset, .. } if offset == 3 * MIB),
        "{why}"
    );
}

#[test]
fn a_failed_registration_keeps_errno_and_text_and_is_not_tried_again() {
    let s = setup(8 * MIB);
    s.books.refuse_register.store(true, Ordering::SeqCst);
    let buffer = s.alloc(MIB);
    let slab = buffer.slot().slab;
    let mut landing = buffer.into_landing();
    let mut window = landing.window(0, MIB).unwrap();
    for _ in 0..3 {
        match window.arm(s.fabric) {
            Err(UnregisteredWhy::Failed(error)) => {
                assert_eq!(error.errno, Some(12));
                assert!(
                    error.to_string().contains("no rail could register"),
                    "{error}"
                );
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(s.pool.stats().ledger.failed, 1);
    assert!(matches!(
        s.pool.registrations(slab, s.fabric)[0],
        RegistrationState::Failed(_)
    ));
}

#[test]
fn memory_is_made_ready_before_anybody_asks_for_it() {
    let s = setup(64 * MIB);
    let ready = s.pool.prepare(Memory::Host, 20 * MIB).unwrap();
    // Slabs of 8 MiB, each of two segments.
    assert_eq!((ready.slabs, ready.registered, ready.failed), (3, 6, 0));
    assert_eq!((ready.bytes, s.pool.stats().leased), (20 * MIB, 0));
    let mut landing = s.alloc(MIB).into_landing();
    let mut window = landing.window(0, MIB).unwrap();
    s.arm(&mut window);
    window.disarm();
    let stats = s.pool.stats();
    assert_eq!((stats.slabs_made, stats.ledger.registered), (3, 6));
    assert_eq!(stats.ledger.ahead, 6);
}

#[test]
fn what_cannot_be_registered_ahead_is_told_to_who_meets_it() {
    let s = setup(64 * MIB);
    s.books.refuse_register.store(true, Ordering::SeqCst);
    let ready = s.pool.prepare(Memory::Host, 8 * MIB).unwrap();
    assert_eq!((ready.slabs, ready.registered, ready.failed), (1, 0, 2));
    let mut landing = s.alloc(MIB).into_landing();
    let mut window = landing.window(0, MIB).unwrap();
    assert!(matches!(
        window.arm(s.fabric),
        Err(UnregisteredWhy::Failed(_))
    ));
    let full = s.pool.prepare(Memory::Host, 1 << 40);
    assert!(full.is_err(), "{full:?}");
}

#[test]
fn a_registration_that_fails_is_tried_once_more() {
    let s = setup(8 * MIB);
    s.books.refuse_next.store(1, Ordering::SeqCst);
    let mut landing = s.alloc(MIB).into_landing();
    let mut window = landing.window(0, MIB).unwrap();
    s.arm(&mut window);
    let ledger = s.pool.stats().ledger;
    assert_eq!(
        (ledger.registered, ledger.failed, ledger.retried),
        (1, 0, 1)
    );
    window.disarm();
}

#[test]
fn a_failure_stands_until_it_has_cooled_down_and_then_one_use_tries_again() {
    for cool_down in [Duration::from_secs(3600), Duration::ZERO] {
        let books = Arc::new(Books::default());
        let options = PoolOptions {
            slab_bytes: 8 * MIB,
            max_bytes: Some(8 * MIB),
            registration_cool_down: cool_down,
            ..PoolOptions::default()
        };
        let fabrics = vec![Arc::clone(&books) as Arc<dyn Registrar>];
        let pool = Pool::with_fabrics(options, fabrics).unwrap();
        let fabric = pool.fabric(0).unwrap();
        let buffer = pool.alloc(MIB, Memory::Host, PATIENCE).unwrap();
        let mut landing = buffer.into_landing();
        let mut window = landing.window(0, MIB).unwrap();
        // Both attempts of the first use, and no more.
        books.refuse_next.store(2, Ordering::SeqCst);
        assert!(window.arm(fabric).is_err());
        assert_eq!(books.asked.load(Ordering::SeqCst), 2);
        let again = window.arm(fabric);
        assert_eq!(again.is_ok(), cool_down.is_zero(), "{again:?}");
        let asked = books.asked.load(Ordering::SeqCst);
        assert_eq!(asked, 2 + u64::from(cool_down.is_zero()));
        window.disarm();
    }
}

#[test]
fn a_slot_dropped_while_armed_comes_back_only_after_revocation() {
    let s = setup(8 * MIB);
    let buffer = s.alloc(8 * MIB);
    let slot = buffer.slot();
    let mut landing = buffer.into_landing();
    let mut window = landing.window(0, MIB).unwrap();
    let handle = s.arm(&mut window);
    drop(window);
    let returning = landing.finish().expect_err("a late write is possible");
    drop(returning);
    // The pool is one slab: this waits for the keeper.
    let again = s.alloc(8 * MIB);
    assert!(!s.books.is_live(handle));
    assert!(s.pool.resolve(slot).is_err(), "the old generation is stale");
    assert_eq!(again.slot().slab, slot.slab, "the slab works again");
    assert_eq!(s.pool.stats().quarantined, 0);
}

#[test]
fn a_slab_that_comes_back_from_quarantine_just_now_is_used_and_not_made_anew() {
    let s = setup(8 * MIB);
    let slab = s.alloc(8 * MIB).slot().slab;
    for _ in 0..100 {
        let buffer = s.alloc(8 * MIB);
        assert_eq!(buffer.slot().slab, slab);
        let mut landing = buffer.into_landing();
        let mut window = landing.window(0, MIB).unwrap();
        s.arm(&mut window);
        drop(window);
        drop(landing);
        // Over and over, until the keeper is done in the midst of it.
        while s.pool.try_alloc(8 * MIB, Memory::Host).is_err() {}
    }
    assert_eq!(s.pool.stats().slabs_made, 1);
}

#[test]
fn an_answered_window_leaves_nothing_in_quarantine() {
    let s = setup(8 * MIB);
    let mut landing = s.alloc(MIB).into_landing();
    let mut window = landing.window(0, MIB).unwrap();
    s.arm(&mut window);
    window.disarm();
    window.write(0, b"by http then").unwrap();
    drop(window);
    let buffer = landing.finish().unwrap();
    assert_eq!(&buffer.as_slice().unwrap()[..12], b"by http then");
    assert_eq!(s.pool.stats().ledger.revoked, 0);
}

#[test]
fn a_slab_in_quarantine_takes_no_new_work_and_waits_for_its_other_tokens() {
    let s = patient(16 * MIB);
    let mut a = s.alloc(MIB).into_landing();
    let mut b = s.alloc(MIB).into_landing();
    let c = s.alloc(MIB);
    let (mut wa, mut wb) = (a.window(0, MIB).unwrap(), b.window(0, MIB).unwrap());
    let handle = s.arm(&mut wa);
    s.arm(&mut wb);
    drop(wa);
    drop(a);
    let elsewhere = s.alloc(MIB);
    assert_ne!(elsewhere.slot().slab, c.slot().slab);
    let mut c = c.into_landing();
    let mut wc = c.window(0, MIB).unwrap();
    for _ in 0..20 {
        assert!(matches!(
            wc.arm(s.fabric),
            Err(UnregisteredWhy::Draining(_))
        ));
        assert!(s.books.is_live(handle), "revoked under a token that is out");
        std::thread::sleep(Duration::from_millis(2));
    }
    wb.disarm();
    s.wait_until("revocation", || !s.books.is_live(handle));
    s.wait_until("the slab's return", || wc.arm(s.fabric).is_ok());
    wc.disarm();
    assert_eq!(s.pool.stats().ledger.registered, 2, "registered anew");
}

#[test]
fn a_slot_whose_window_is_alive_is_not_freed_by_a_revocation_that_was_under_way() {
    let s = setup(8 * MIB);
    let mut a = s.alloc(MIB).into_landing();
    let mut b = s.alloc(MIB).into_landing();
    let (mut wa, mut wb) = (a.window(0, MIB).unwrap(), b.window(0, MIB).unwrap());
    let handle = s.arm(&mut wa);
    s.books.hold_revoke.store(true, Ordering::SeqCst);
    drop(wa);
    drop(a);
    s.wait_until("the revocation's begin", || {
        s.books.revoking.load(Ordering::SeqCst)
    });
    // Quarantined while the slab is being revoked, and this process can still write to it.
    let slot = b.finish().map(|_| ()).expect_err("a window is alive");
    s.books.hold_revoke.store(false, Ordering::SeqCst);
    s.wait_until("the revocation's end", || !s.books.is_live(handle));
    s.wait_until("the other slot's return", || {
        s.pool.stats().quarantined == MIB
    });
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(s.pool.stats().quarantined, MIB, "freed under a live window");
    wb.write(0, b"late").unwrap();
    drop(wb);
    assert!(block_on(slot.wait()).is_ok());
    s.wait_until("release", || s.pool.stats().leased == 0);
}

#[test]
fn an_armed_window_is_not_written_by_this_process() {
    let s = setup(8 * MIB);
    let mut landing = s.alloc(MIB).into_landing();
    let mut window = landing.window(0, MIB).unwrap();
    s.arm(&mut window);
    assert_eq!(window.write(0, b"x"), Err(WriteError::Armed));
    window.disarm();
    assert_eq!(window.write(0, b"x"), Ok(()));
}

#[test]
fn who_waits_for_memory_wakes_when_a_slab_is_given_up() {
    let s = setup(8 * MIB);
    s.books.refuse_revoke.store(true, Ordering::SeqCst);
    let mut landing = s.alloc(8 * MIB).into_landing();
    let mut window = landing.window(0, MIB).unwrap();
    s.arm(&mut window);
    let pool = s.pool.clone();
    let waiter = std::thread::spawn(move || {
        let began = Instant::now();
        pool.alloc(8 * MIB, Memory::Host, Duration::from_secs(60))
            .map(|_| began.elapsed())
    });
    drop(window);
    drop(landing);
    let waited = waiter.join().unwrap().unwrap();
    assert!(
        waited < Duration::from_secs(50),
        "woken, not timed out: {waited:?}"
    );
}

#[test]
fn who_waits_for_a_slot_hears_when_the_pool_is_gone() {
    let s = patient(8 * MIB);
    let mut a = s.alloc(MIB).into_landing();
    let mut b = s.alloc(MIB).into_landing();
    let (mut wa, mut wb) = (a.window(0, MIB).unwrap(), b.window(0, MIB).unwrap());
    s.arm(&mut wa);
    s.arm(&mut wb);
    drop(wa);
    let returning = a.finish().unwrap_err();
    let waiter = std::thread::spawn(move || block_on(returning.wait()));
    drop(s);
    wb.disarm();
    drop((wb, b));
    // Either the slab was revoked in time, or the pool went first: the waiter hears in both cases (and
    // `block_on` gives up if it does not).
    let _ = waiter.join().unwrap();
}

#[test]
fn a_registrar_that_panics_costs_a_slab_and_nothing_else() {
    let s = setup(16 * MIB);
    s.books.panic_in_revoke.store(true, Ordering::SeqCst);
    let mut landing = s.alloc(MIB).into_landing();
    let mut window = landing.window(0, MIB).unwrap();
    s.arm(&mut window);
    drop(window);
    let returning = landing.finish().unwrap_err();
    assert!(block_on(returning.wait()).is_err());
    s.books.panic_in_revoke.store(false, Ordering::SeqCst);
    let mut landing = s.alloc(MIB).into_landing();
    let mut window = landing.window(0, MIB).unwrap();
    s.arm(&mut window);
    drop(window);
    assert!(
        block_on(landing.finish().unwrap_err().wait()).is_ok(),
        "the keeper lives"
    );
}

#[test]
fn a_token_that_never_comes_in_holds_revocation_up_only_for_a_while() {
    let s = setup(8 * MIB);
    let mut a = s.alloc(MIB).into_landing();
    let mut b = s.alloc(MIB).into_landing();
    let mut wa = a.window(0, MIB).unwrap();
    let mut wb = b.window(0, MIB).unwrap();
    let handle = s.arm(&mut wa);
    s.arm(&mut wb);
    drop(wa);
    drop(a);
    s.wait_until("revocation", || !s.books.is_live(handle));
    drop(wb);
    drop(b);
    s.wait_until("release", || s.pool.stats().leased == 0);
}

#[test]
fn an_unconfirmed_revocation_gives_the_slab_up() {
    let s = setup(16 * MIB);
    s.books.refuse_revoke.store(true, Ordering::SeqCst);
    let kept = s.alloc(MIB);
    let slab = kept.slot().slab;
    let mut landing = s.alloc(MIB).into_landing();
    let mut window = landing.window(0, MIB).unwrap();
    s.arm(&mut window);
    drop(window);
    let returning = landing.finish().unwrap_err();
    let waiter = std::thread::spawn(move || block_on(returning.wait()));
    assert!(
        waiter.join().unwrap().is_err(),
        "the slot does not come back"
    );
    let fresh = s.alloc(MIB);
    assert_ne!(fresh.slot().slab, slab);
    assert_eq!(s.pool.stats().ledger.unconfirmed, 1);
    assert_eq!(
        s.pool.stats().mapped,
        16 * MIB,
        "a holder keeps the slab's memory, and it counts"
    );
    drop(kept);
    assert_eq!(s.pool.stats().mapped, 8 * MIB);
}

#[test]
fn a_fixed_slot_comes_back_to_whoever_waits_for_it() {
    let s = setup(8 * MIB);
    let buffer = s.alloc(MIB);
    let (slot, address) = (buffer.slot(), buffer.address());
    let mut landing = buffer.into_landing();
    let mut window = landing.window(0, MIB).unwrap();
    s.arm(&mut window);
    drop(window);
    let again = block_on(landing.finish().unwrap_err().wait()).unwrap();
    assert_eq!((again.slot(), again.address()), (slot, address));
    assert_eq!(s.books.live(), 0);
}

#[test]
fn a_full_pool_blocks_and_says_so() {
    let s = setup(8 * MIB);
    let all = s.alloc(8 * MIB);
    assert!(
        matches!(s.pool.try_alloc(1, Memory::Host), Err(PoolError::WouldBlock { leased, .. }) if leased == 8 * MIB)
    );
    assert!(matches!(
        s.pool.alloc(1, Memory::Host, Duration::from_millis(10)),
        Err(PoolError::TimedOut { .. })
    ));
    assert!(matches!(
        s.pool.try_alloc(9 * MIB, Memory::Host),
        Err(PoolError::TooLarge { .. })
    ));
    let pool = s.pool.clone();
    let waiter = std::thread::spawn(move || {
        pool.alloc(MIB, Memory::Host, Duration::from_secs(10))
            .map(drop)
    });
    drop(all);
    waiter.join().unwrap().unwrap();
}

#[test]
fn idle_slabs_make_room_for_a_larger_one() {
    let s = setup(16 * MIB);
    drop(s.pool.alloc_many(3, 5 * MIB, Memory::Host).err());
    drop(s.pool.alloc_many(2, 8 * MIB, Memory::Host).unwrap());
    assert_eq!(s.pool.stats().mapped, 16 * MIB);
    assert_eq!(s.alloc(16 * MIB).len(), 16 * MIB);
}

#[test]
fn odd_settings_are_refused() {
    let options = |f: fn(&mut PoolOptions)| {
        let mut options = PoolOptions {
            max_bytes: Some(8 * MIB),
            ..PoolOptions::default()
        };
        f(&mut options);
        Pool::new(options).err()
    };
    assert!(matches!(
        options(|o| o.max_bytes = Some(u64::MAX)),
        Some(PoolError::OverMemoryLimit { .. })
    ));
    assert!(matches!(
        options(|o| o.max_bytes = Some(1)),
        Some(PoolError::TooSmall { .. })
    ));
    assert!(matches!(
        options(|o| o.slab_bytes = 0),
        Some(PoolError::TooSmall { .. })
    ));
    assert!(matches!(
        options(|o| o.align = 1000),
        Some(PoolError::Alignment { align: 1000 })
    ));
    let pool = setup(8 * MIB).pool;
    assert!(pool.try_alloc_aligned(1, Memory::Host, 4 << 20).is_err());
    let aligned = pool.try_alloc_aligned(1, Memory::Host, 2 << 20).unwrap();
    assert!(aligned.address().is_multiple_of(2 << 20));
    assert!(pool.try_alloc(u64::MAX, Memory::Host).is_err());
}

#[test]
fn windows_do_not_overlap_and_stay_inside() {
    let s = setup(8 * MIB);
    let mut landing = s.alloc(100).into_landing();
    assert!(landing.window(0, 101).is_err());
    assert!(landing.window(u64::MAX, 2).is_err());
    let mut first = landing.window(0, 50).unwrap();
    assert!(landing.window(49, 1).is_err());
    assert!(first.write(50, b"x").is_err());
    assert!(first.write(u64::MAX, b"x").is_err());
    let second = landing.window(50, 50).unwrap();
    drop((first, second));
    assert!(landing.finish().is_ok());
}

#[test]
fn dropping_the_pool_revokes_what_is_registered() {
    let s = setup(8 * MIB);
    let mut landing = s.alloc(MIB).into_landing();
    let mut window = landing.window(0, MIB).unwrap();
    s.arm(&mut window);
    window.disarm();
    drop(window);
    drop(landing);
    let books = Arc::clone(&s.books);
    drop(s);
    let began = Instant::now();
    while books.live() > 0 {
        assert!(began.elapsed() < Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[derive(Clone, Debug)]
enum Step {
    Alloc(u64),
    Free(usize),
    Transfer { nth: usize, answered: bool },
    Refuse(bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (1u64..3 * MIB).prop_map(Step::Alloc),
        any::<usize>().prop_map(Step::Free),
        (any::<usize>(), any::<bool>())
            .prop_map(|(nth, answered)| Step::Transfer { nth, answered }),
        prop::bool::weighted(0.2).prop_map(Step::Refuse),
    ]
}

/// Each case waits for quarantines to end, so there are few unless more are asked for.
fn cases() -> u32 {
    let asked = std::env::var("PROPTEST_CASES").ok();
    asked.and_then(|cases| cases.parse().ok()).unwrap_or(24)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    /// Against a model that counts: whatever the order of leases, transfers, doubts and refusals, no slot
    /// that is in doubt is leased again before its registration ended, and all comes back.
    #[test]
    fn no_slot_in_doubt_is_leased_again_before_its_registration_ended(steps in prop::collection::vec(step(), 1..60)) {
        let s = setup(16 * MIB);
        let mut held: Vec<Buffer> = Vec::new();
        // Address range and registration of every transfer that nobody answered.
        let mut doubts: Vec<(u64, u64, RegistrationHandle)> = Vec::new();
        for step in steps {
            match step {
                Step::Alloc(len) => {
                    let Ok(buffer) = s.pool.try_alloc(len, Memory::Host) else { continue };
                    for &(address, len, handle) in &doubts {
                        let apart = buffer.address() + buffer.len() <= address || address + len <= buffer.address();
                        prop_assert!(apart || !s.books.is_live(handle));
                    }
                    held.push(buffer);
                }
                Step::Free(nth) if !held.is_empty() => drop(held.swap_remove(nth % held.len())),
                Step::Transfer { nth, answered } if !held.is_empty() => {
                    let buffer = held.swap_remove(nth % held.len());
                    let (address, len) = (buffer.address(), buffer.len());
                    let mut landing = buffer.into_landing();
                    let mut window = landing.window(0, len).unwrap();
                    if let Ok(handle) = window.arm(s.fabric) {
                        prop_assert!(s.books.is_live(handle));
                        if answered { window.disarm() } else { doubts.push((address, len, handle)) }
                    }
                    let in_doubt = window.is_armed();
                    drop(window);
                    match landing.finish() {
                        Ok(buffer) => { prop_assert!(!in_doubt); held.push(buffer) }
                        Err(_) => prop_assert!(in_doubt),
                    }
                }
                Step::Refuse(refuse) => s.books.refuse_register.store(refuse, Ordering::SeqCst),
                _ => {}
            }
        }
        let leased: u64 = held.iter().map(|b| b.len().max(1).next_multiple_of(4096)).sum();
        s.wait_until("quarantine to end", || s.pool.stats().leased == leased);
        drop(held);
        let stats = s.pool.stats();
        prop_assert_eq!((stats.leased, stats.quarantined), (0, 0));
        prop_assert_eq!(stats.ledger.registered, stats.ledger.revoked + s.books.live() as u64);
    }
}
