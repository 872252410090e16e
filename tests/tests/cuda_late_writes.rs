//! Writes to CUDA memory that come when nobody waits any more, by servers and by copies from staging: they reach nobody
//! else's bytes, and all memory comes back.

use std::thread;
use std::time::Duration;

use cuda_standin::{Standin, with_standin};
use s3engine::{
    Buffer, Completion, Engine, Flags, Get, Memory, Path, Policy, PoolOptions, Reason, Timeouts,
};
use s3engine_tests::{
    FreeMemory, Rig, ServiceRig, assert_invariants, contents, drain, fill, is_untouched, wait_until,
};
use s3sim::{Action, Kind, Rule, content};

const KEY: &str = "300KiB-late";
const SIZE: u64 = 300 << 10;
/// Of the device's memory there is no more.
const ALL: u64 = 4 << 20;
/// How late a copy from staging begins.
const COPY: Duration = Duration::from_millis(1500);

fn device() -> Memory {
    Memory::cuda(0).unwrap()
}

/// An engine that gives a request with a token up after half a second.
fn rig(rules: impl IntoIterator<Item = Rule>) -> Rig {
    Rig::with(rules, |builder, _| {
        let pool = PoolOptions {
            slab_bytes: ALL,
            max_cuda_bytes: Some(ALL),
            ..PoolOptions::default()
        };
        builder.pool(pool).timeouts(Timeouts {
            rdma_base: Duration::from_millis(500),
            rdma_min_rate: 1 << 30,
            ..Timeouts::default()
        })
    })
}

/// A write that comes two seconds after its request was given up.
fn late() -> Rule {
    let late = Rule::new(Action::WriteLate { ms: 2500 });
    late.only(Kind::Rdma).key(KEY)
}

fn buffer(engine: &Engine) -> Buffer {
    engine.pool().try_alloc(SIZE, device()).unwrap()
}

fn assert_object(buffer: &Buffer) {
    content::verify(KEY, 0, 0, &contents(buffer)[..SIZE as usize]).unwrap();
}

fn wait_for_refusals(rig: &Rig, count: u64) {
    wait_until("the late writes were refused", || {
        rig.sim.counters().late_writes_refused == count
    });
    assert_eq!(rig.sim.counters().late_writes_landed, 0);
}

#[test]
fn a_slab_with_tokens_that_are_out_is_revoked_before_anybody_has_it_again() {
    with_standin(|| {
        let rig = rig([late()]);
        let pool = rig.engine.pool();
        // So that the server has the slab mapped.
        let first = Get::new("bench", "100KiB-before").into(buffer(&rig.engine));
        let first = rig.get(Policy::RequireRdma, first);
        assert_eq!(first.path(), Path::Rdma, "{first:?}");
        drop(first);
        let mut queue = rig.queue();
        for _ in 0..4 {
            let get = Get::new("bench", KEY).into(buffer(&rig.engine));
            queue.push(get).unwrap();
        }
        queue.submit();
        wait_until("the tokens are out", || rig.sim.counters().faults == 4);
        drop(queue);
        rig.assert_drains();
        assert_eq!(pool.stats().ledger.revoked, 1);
        let free = FreeMemory::lease_of(pool, device());
        assert_eq!(free.len(), ALL, "all of the device's memory");
        wait_for_refusals(&rig, 4);
        assert!(free.is_untouched());
    });
}

#[test]
fn where_a_device_has_no_other_memory_the_slot_itself_comes_back_after_revocation() {
    with_standin(|| {
        let rig = rig([late().count(1)]);
        let given = buffer(&rig.engine);
        let slot = given.slot();
        let rest = FreeMemory::lease_of(rig.engine.pool(), device());
        let completion = rig.get(Policy::PreferRdma, Get::new("bench", KEY).into(given));
        let how = (completion.path(), completion.reason(), completion.flags());
        let flags = Flags::FELL_BACK | Flags::STAGED;
        assert_eq!(
            how,
            (Path::Http, Reason::RdmaTimeout, flags),
            "{completion:?}"
        );
        wait_for_refusals(&rig, 1);
        assert!(rest.is_untouched());
        let back = completion.into_buffer().unwrap();
        assert_eq!((back.slot(), back.memory()), (slot, device()));
        assert_object(&back);
        drop((back, rest));
        rig.assert_drains();
    });
}

/// Cancels GETs by HTTP until one of them had a copy under way, as `met` sees from its completions.
fn cancel_during_copy(
    engine: &Engine,
    get: impl Fn() -> Get,
    met: impl Fn(&[Completion]) -> bool,
) -> Vec<Completion> {
    let mut queue = engine.queue(Default::default());
    let mut pause = Duration::ZERO;
    let mut found = Vec::new();
    wait_until("a cancel met a copy", || {
        let ticket = queue.push(get().policy(Policy::Http)).unwrap();
        queue.submit();
        thread::sleep(pause);
        pause += Duration::from_millis(20);
        queue.cancel(ticket);
        found = drain(&mut queue);
        for completion in &found {
            assert_invariants(completion, Policy::Http);
        }
        met(&found)
    });
    assert_eq!(found.last().unwrap().reason(), Reason::Cancelled);
    found
}

/// A buffer that was given is nobody's until the copy has ended.
fn cancelled_copies_reach_nobody(engine: &Engine) {
    let get = || Get::new("bench", KEY).into(buffer(engine));
    let end = cancel_during_copy(engine, get, |found| {
        found.last().is_some_and(|end| end.buffer().is_none())
    });
    assert_eq!(end.len(), 1, "{end:?}");
    let mut free = Vec::new();
    wait_until("all of the device's memory is free again", || {
        free.push(FreeMemory::lease_of(engine.pool(), device()));
        free.iter().map(FreeMemory::len).sum::<u64>() == ALL
    });
    thread::sleep(COPY * 2);
    assert!(free.iter().all(FreeMemory::is_untouched));
}

/// A buffer that was fixed comes back when the copy has ended, and the caller hears that it is waited for.
fn cancelled_copies_into_a_fixed_buffer_are_waited_for(engine: &Engine) {
    let get = || Get::new("bench", KEY).into_fixed(buffer(engine));
    let mut found = cancel_during_copy(engine, get, |found| found.len() == 2);
    let mut back = found.pop().unwrap().into_buffer().unwrap();
    let news = &found[0];
    assert_eq!(
        (news.flags(), news.reason()),
        (Flags::MORE, Reason::Cancelled)
    );
    fill(&mut back);
    thread::sleep(COPY * 2);
    assert!(is_untouched(&contents(&back)));
}

#[test]
fn a_cancel_during_a_copy_leaves_its_memory_to_nobody_until_that_has_ended() {
    Standin::default().delay(COPY).run(|| {
        let rig = rig([]);
        cancelled_copies_reach_nobody(&rig.engine);
        cancelled_copies_into_a_fixed_buffer_are_waited_for(&rig.engine);
        rig.assert_drains();
    });
}

#[test]
fn a_cancel_during_a_copy_leaves_a_clients_memory_to_nobody_until_that_has_ended() {
    Standin::default().delay(COPY).run(|| {
        let host = ServiceRig::with(rig([]), |_| {});
        let client = host.client();
        cancelled_copies_reach_nobody(&client);
        cancelled_copies_into_a_fixed_buffer_are_waited_for(&client);
        drop(client);
        host.assert_drains();
    });
}
