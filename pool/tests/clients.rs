//! The owner's side of clients: whose slabs are whose, how they end, and within which bounds.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};
use std::time::Duration;

use books::{Books, block_on, client, pool_with, wait_until};
use s3engine_pool::{
    Buffer, ClientOptions, GroupOptions, ImportedSlab, Landing, Memory, Pool, PoolError, SlabId,
    SlotId, Window,
};

mod books;

const MIB: u64 = 1 << 20;

fn pool(max: u64) -> Pool {
    pool_with(&Arc::default(), max)
}

fn alloc(pool: &Pool, len: u64) -> Buffer {
    pool.alloc(len, Memory::Host, Duration::from_secs(20))
        .unwrap()
}

/// A transfer that nobody answers: its slot goes to quarantine.
fn lose(pool: &Pool, buffer: Buffer) {
    let mut landing = buffer.into_landing();
    drop(armed(pool, &mut landing));
}

fn armed(pool: &Pool, landing: &mut Landing) -> Window {
    let mut window = landing.window(0, landing.len().min(4096)).unwrap();
    window.arm(pool.fabric(0).unwrap()).unwrap();
    window
}

#[test]
fn a_client_and_the_owner_lease_from_different_slabs_of_one_pool() {
    let host = pool(16 * MIB);
    let (a, b) = (client(&host, "a"), client(&host, "b"));
    let buffers = [alloc(&host, 1), alloc(&a, 1), alloc(&b, 1)];
    let slabs = buffers.each_ref().map(|buffer| buffer.slot().slab);
    assert!(slabs[0] != slabs[1] && slabs[1] != slabs[2] && slabs[0] != slabs[2]);
    assert_eq!(
        [&host, &a, &b].map(Pool::slabs),
        slabs.map(|slab| vec![slab])
    );
    for buffer in &buffers {
        assert!([&host, &a, &b].iter().all(|pool| buffer.is_of(pool)));
        assert!(!buffer.is_of(&pool(4 * MIB)));
        assert_eq!((buffer.offset(), buffer.slab_len()), (0, 4 * MIB));
    }
    let stats = host.stats();
    assert_eq!((stats.mapped, stats.clients), (12 * MIB, 2));
    let of_a = a.client_stats().unwrap();
    assert_eq!((of_a.mapped, of_a.leased), (4 * MIB, 4096));
    assert_eq!((&*of_a.name, of_a.slabs[0].id), ("a", slabs[1]));
}

#[test]
fn a_slot_resolves_for_its_own_client_and_generation_only() {
    let host = pool(16 * MIB);
    let (a, b) = (client(&host, "a"), client(&host, "b"));
    let buffer = alloc(&a, 1);
    let slot = buffer.slot();
    assert!(a.resolve(slot).is_ok());
    assert!(b.resolve(slot).is_err() && host.resolve(slot).is_err());
    drop(buffer);
    assert!(a.resolve(slot).is_err());
    let again = alloc(&a, 1);
    assert_eq!(again.slot().index, slot.index);
    assert!(a.resolve(slot).is_err(), "an older generation");
    let elsewhere = SlotId {
        slab: SlabId(u32::MAX),
        ..again.slot()
    };
    assert!(a.resolve(elsewhere).is_err());
}

#[test]
fn only_a_clients_own_slabs_are_exported_to_it() {
    let host = pool(16 * MIB);
    let (a, b) = (client(&host, "a"), client(&host, "b"));
    let buffer = alloc(&a, 1);
    let slab = buffer.slot().slab;
    for other in [&host, &b] {
        assert!(matches!(other.export(slab), Err(PoolError::UnknownSlab { slab: s }) if s == slab));
    }
    let export = a.export(slab).unwrap();
    assert_eq!((export.len, export.read_only), (4 * MIB, false));
    let flags = rustix::io::fcntl_getfd(export.share.fd().unwrap()).unwrap();
    assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    assert_eq!(a.client_stats().unwrap().exports, 1);
    assert_eq!(host.stats().exports, 1);
    a.retire();
    assert!(matches!(a.export(slab), Err(PoolError::Retired { .. })));
}

#[test]
fn a_client_stays_within_its_own_bound_and_slab_size() {
    let host = pool(32 * MIB);
    let options = ClientOptions {
        max_bytes: Some(8 * MIB),
        slab_bytes: Some(2 * MIB),
        ..ClientOptions::named("small")
    };
    let small = host.for_client(options).unwrap();
    let first = alloc(&small, 1);
    assert_eq!(small.client_stats().unwrap().mapped, 2 * MIB);
    assert!(matches!(
        small.try_alloc(8 * MIB + 1, Memory::Host),
        Err(PoolError::TooLarge { max_bytes, .. }) if max_bytes == 8 * MIB
    ));
    assert!(matches!(
        small.try_alloc(8 * MIB, Memory::Host),
        Err(PoolError::WouldBlock { leased: 4096, max_bytes, .. }) if max_bytes == 8 * MIB
    ));
    drop(first);
    // Its idle slab makes room within its own bound.
    assert_eq!(alloc(&small, 8 * MIB).len(), 8 * MIB);
    for (max_bytes, slab_bytes) in [(Some(MIB), None), (None, Some(MIB))] {
        let options = ClientOptions {
            max_bytes,
            slab_bytes,
            ..ClientOptions::named("too small")
        };
        assert!(matches!(
            host.for_client(options),
            Err(PoolError::TooSmall { .. })
        ));
    }
}

#[test]
fn a_retired_clients_slabs_go_with_their_last_lease() {
    let books = Arc::<Books>::default();
    let host = pool_with(&books, 16 * MIB);
    let a = client(&host, "a");
    let (held, idle) = (alloc(&a, 4 * MIB), alloc(&a, 4 * MIB));
    let mut landing = held.into_landing();
    let mut window = armed(&host, &mut landing);
    window.disarm();
    drop((window, idle));
    assert!(!a.is_retired());
    a.retire();
    a.retire();
    assert!(a.is_retired());
    wait_until("the idle slab is unmapped", || {
        host.stats().mapped == 4 * MIB
    });
    let refused = a.try_alloc(1, Memory::Host).unwrap_err();
    assert!(refused.to_string().contains("client a has ended"));
    assert_eq!(books.live(), 1, "not revoked under a lease");
    let buffer = landing.finish().unwrap();
    assert!(buffer.as_slice().is_some(), "what was leased still is");
    drop(buffer);
    wait_until("the last slab is unmapped", || host.stats().mapped == 0);
    assert_eq!((books.live(), host.stats().clients), (0, 0));
    let gone = a.client_stats().unwrap();
    assert_eq!((gone.mapped, gone.leased, gone.slabs.len()), (0, 0, 0));
    assert!(a.slabs().is_empty() && a.is_retired());
}

#[test]
fn the_end_of_a_clients_last_handle_retires_it() {
    let host = pool(16 * MIB);
    let a = client(&host, "a");
    let buffer = alloc(&a, 1);
    drop(alloc(&host, 1));
    let clone = a.clone();
    drop(a);
    assert!(!clone.is_retired());
    drop(clone);
    drop(buffer);
    wait_until("its slab is unmapped", || host.stats().mapped == 4 * MIB);
    assert_eq!(host.slabs().len(), 1, "the owner's own stay");
}

#[test]
fn who_waits_for_memory_hears_at_once_what_may_have_brought_it() {
    let host = pool(16 * MIB);
    let (a, b) = (client(&host, "a"), client(&host, "b"));
    let held = a.alloc_many(2, MIB, Memory::Host).unwrap();
    let (mut of_a, mut of_b) = (pin!(a.changed()), pin!(b.changed()));
    assert!(!is_ready(&mut of_a) && !is_ready(&mut of_b));
    let mut held = held.into_iter();
    drop(held.next());
    assert!(is_ready(&mut of_a), "a lease of its own ended");
    assert!(!is_ready(&mut of_b), "a's slab is not idle");
    drop(held.next());
    assert!(is_ready(&mut of_b), "a's slab is idle, and may make room");
    let (mut of_a, of_b) = (pin!(a.changed()), pin!(b.changed()));
    a.retire();
    assert!(is_ready(&mut of_a), "it gets nothing any more");
    block_on(of_b);
    assert_eq!(host.stats().mapped, 0, "a's slab is gone");
}

fn is_ready<F: Future>(future: &mut Pin<&mut F>) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    future.as_mut().poll(&mut context).is_ready()
}

#[test]
fn quarantine_goes_on_for_a_retired_client() {
    let books = Arc::<Books>::default();
    let host = pool_with(&books, 16 * MIB);
    let a = client(&host, "a");
    let buffer = alloc(&a, MIB);
    let slot = buffer.slot();
    books.hold_revoke.store(true, Ordering::SeqCst);
    let mut landing = buffer.into_landing();
    drop(armed(&host, &mut landing));
    let returning = landing.finish().unwrap_err();
    a.retire();
    drop(a.clone());
    wait_until("the revocation's begin", || {
        books.revoking.load(Ordering::SeqCst)
    });
    let stats = host.stats();
    assert_eq!((stats.mapped, stats.quarantined), (4 * MIB, MIB));
    books.hold_revoke.store(false, Ordering::SeqCst);
    // Who waits for the slot still gets it; the slab goes when it is dropped.
    let back = block_on(returning.wait()).unwrap();
    assert_eq!(back.slot(), slot);
    assert_eq!(host.stats().mapped, 4 * MIB);
    drop(back);
    wait_until("the slab is unmapped", || host.stats().mapped == 0);
    let stats = host.stats();
    assert_eq!((stats.leased, stats.quarantined, stats.clients), (0, 0, 0));
}

#[test]
fn a_retired_clients_slab_whose_revocation_nobody_confirms_goes_too() {
    let books = Arc::<Books>::default();
    let host = pool_with(&books, 16 * MIB);
    let a = client(&host, "a");
    books.refuse_revoke.store(true, Ordering::SeqCst);
    lose(&host, alloc(&a, MIB));
    drop(a);
    wait_until("the slab is given up", || host.stats().mapped == 0);
    let stats = host.stats();
    assert_eq!((stats.leased, stats.quarantined, stats.clients), (0, 0, 0));
    assert_eq!(stats.ledger.unconfirmed, 1);
}

#[test]
fn an_idle_slab_of_a_client_makes_room_for_another_and_its_number_never_comes_again() {
    let host = pool(8 * MIB);
    let (a, b) = (client(&host, "a"), client(&host, "b"));
    let mut buffer = alloc(&a, 8 * MIB);
    buffer.as_mut_slice().unwrap().fill(0xaa);
    let slab = buffer.slot().slab;
    let export = a.export(slab).unwrap();
    let imported = ImportedSlab::map(export.share.fd().unwrap(), export.len, slab, false).unwrap();
    drop(buffer);
    assert_eq!(a.slabs(), [slab]);
    let changed = a.changed();
    let of_b = alloc(&b, 4 * MIB);
    assert!(of_b.as_slice().unwrap().iter().all(|byte| *byte == 0));
    block_on(changed);
    assert!(a.slabs().is_empty(), "a can see that it is gone");
    assert!(matches!(a.export(slab), Err(PoolError::UnknownSlab { .. })));
    let blocks = rustix::fs::fstat(export.share.fd().unwrap())
        .unwrap()
        .st_blocks;
    assert_eq!(blocks, 0, "free although its client maps it still");
    let again = alloc(&a, 1);
    assert!(again.slot().slab != slab && again.slot().slab != of_b.slot().slab);
    drop(imported);
}

#[test]
fn idle_slabs_are_given_up_only_as_far_as_needed_and_those_first_that_were_used_least_lately() {
    let host = pool(16 * MIB);
    let clients = ["a", "b", "c", "d"].map(|name| client(&host, name));
    let slabs = clients.each_ref().map(|pool| alloc(pool, 1).slot().slab);
    drop(alloc(&clients[0], 1));
    let of_host = alloc(&host, 4 * MIB);
    assert!(clients[1].slabs().is_empty());
    for nth in [0, 2, 3] {
        assert_eq!(clients[nth].slabs(), [slabs[nth]]);
    }
    drop(of_host);
}

#[test]
fn a_read_only_slab_is_filled_by_its_owner_and_registered_as_any_other() {
    let books = Arc::<Books>::default();
    let host = pool_with(&books, 16 * MIB);
    let options = ClientOptions {
        read_only: true,
        ..ClientOptions::named("other user")
    };
    let reader = host.for_client(options).unwrap();
    let buffer = alloc(&reader, 16);
    let slab = buffer.slot().slab;
    let export = reader.export(slab).unwrap();
    assert!(export.read_only);
    let mode = rustix::fs::fstat(export.share.fd().unwrap())
        .unwrap()
        .st_mode;
    assert_eq!(mode & 0o777, 0o400);
    let mut landing = buffer.into_landing();
    let mut window = landing.window(0, 5).unwrap();
    window.arm(host.fabric(0).unwrap()).unwrap();
    window.disarm();
    window.write(0, b"owner").unwrap();
    drop(window);
    assert_eq!(
        &landing.finish().unwrap().as_slice().unwrap()[..5],
        b"owner"
    );
    // Revoked and registered anew, as any other.
    lose(&host, alloc(&reader, MIB));
    wait_until("the revocation", || books.live() == 0);
    wait_until("the end of quarantine", || host.stats().quarantined == 0);
    assert_eq!(alloc(&reader, MIB).slot().slab, slab);
}

#[test]
fn many_clients_at_once_stay_within_the_bound() {
    let host = pool(24 * MIB);
    std::thread::scope(|scope| {
        for nth in 0..64 {
            let host = &host;
            scope.spawn(move || {
                let options = ClientOptions {
                    slab_bytes: Some(2 * MIB),
                    ..ClientOptions::named(format!("client {nth}"))
                };
                let pool = host.for_client(options).unwrap();
                for _ in 0..4 {
                    let mut buffer = alloc(&pool, 1 + nth * 10_000);
                    let bytes = buffer.as_mut_slice().unwrap();
                    assert!(bytes.iter().all(|byte| *byte == 0 || *byte == nth as u8));
                    bytes.fill(nth as u8);
                    assert!(host.stats().mapped <= 24 * MIB);
                }
            });
        }
    });
    wait_until("all is unmapped", || host.stats().mapped == 0);
    assert_eq!(host.stats().clients, 0);
}

/// A client that is bounded with others of the same number.
fn grouped(host: &Pool, name: &str, number: u64) -> Pool {
    let options = ClientOptions {
        group: Some(GroupOptions {
            number,
            max_bytes: 8 * MIB,
        }),
        slab_bytes: Some(2 * MIB),
        ..ClientOptions::named(name)
    };
    host.for_client(options).unwrap()
}

#[test]
fn clients_of_a_group_have_one_bound_together_and_others_do_not_feel_it() {
    let host = pool(32 * MIB);
    let (a, b) = (grouped(&host, "a", 7), grouped(&host, "b", 7));
    let other = grouped(&host, "other", 8);
    let (first, second) = (alloc(&a, 6 * MIB), alloc(&b, 2 * MIB));
    let full = b.try_alloc(2 * MIB, Memory::Host).unwrap_err();
    let text = "the part of the pool that all clients of this user have is full: 2097152 bytes wanted, 8388608 of 8388608 bytes in use";
    assert_eq!(full.to_string(), text);
    assert_eq!(alloc(&other, 8 * MIB).len(), 8 * MIB);
    assert!(matches!(
        b.try_alloc(9 * MIB, Memory::Host),
        Err(PoolError::TooLarge { max_bytes, .. }) if max_bytes == 8 * MIB
    ));
    // What one has idle is room for the other, who is told of it.
    let told = b.changed();
    drop(first);
    block_on(told);
    assert_eq!(alloc(&b, 6 * MIB).len(), 6 * MIB);
    drop(second);
}

#[test]
fn memory_of_a_client_that_has_gone_counts_for_its_group_until_it_is_free() {
    let host = pool(32 * MIB);
    let gone = grouped(&host, "gone", 7);
    let held = alloc(&gone, 8 * MIB);
    drop(gone);
    let next = grouped(&host, "next", 7);
    assert!(next.try_alloc(1, Memory::Host).is_err());
    drop(held);
    assert!(next.alloc(1, Memory::Host, Duration::from_secs(20)).is_ok());
}
