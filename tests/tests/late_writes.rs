//! Servers that answer late, never, or write when nobody waits any more: a slot is used again only when no
//! remote can write to it, and everything comes back in the end.

use std::thread;
use std::time::{Duration, Instant};

use s3engine::{
    Completion, Engine, EngineBuilder, ErrorKind, Flags, Get, Memory, Path, Policy, PoolOptions,
    Rdma, Reason, Timeouts,
};
use s3engine_tests::{
    FailingFabric, Failure, FreeMemory, PATIENCE, Rig, assert_invariants, block_on, canned_server,
    drain, echoing_server, loopback, quick_builder, wait_until,
};
use s3sim::{Action, Kind, Rule, Sim, content};
use tempfile::TempDir;

const KEY: &str = "300KiB-late";
const SIZE: u64 = 300 << 10;
const LATE: Duration = Duration::from_millis(2500);

/// The time after which an RDMA request without an answer is given up.
const GIVEN_UP: Duration = Duration::from_millis(500);

fn late(action: impl FnOnce(u64) -> Action) -> Rule {
    Rule::new(action(LATE.as_millis() as u64))
        .only(Kind::Rdma)
        .key(KEY)
}

fn write_late(ms: u64) -> Action {
    Action::WriteLate { ms }
}

fn answer_late(ms: u64) -> Action {
    Action::AnswerLate { ms }
}

fn impatient(builder: EngineBuilder) -> EngineBuilder {
    builder.timeouts(Timeouts {
        rdma_base: GIVEN_UP,
        rdma_min_rate: 1 << 30,
        ..Timeouts::default()
    })
}

fn small_pool(bytes: u64) -> PoolOptions {
    PoolOptions {
        slab_bytes: bytes,
        max_bytes: Some(bytes),
        ..PoolOptions::default()
    }
}

fn rig(rules: impl IntoIterator<Item = Rule>) -> Rig {
    Rig::with(rules, |builder, _| impatient(builder))
}

/// An engine over a server of the test's own, with a loopback fabric that nobody else uses.
fn engine_over(url: &str) -> (Engine, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let fabric = loopback(&folder.path().join("loopback"));
    let builder = impatient(quick_builder(url)).rdma(Rdma::Loopback(fabric));
    (builder.build().unwrap(), folder)
}

/// Fetches something, so that the server has the memory mapped and knows a token as soon as it comes.
fn warm_up(rig: &Rig) {
    let completion = rig.get_whole(Policy::RequireRdma, "100KiB-before");
    assert_eq!(completion.path(), Path::Rdma, "{completion:?}");
}

/// Waits for late writes to be refused: for one, and a moment for all of them. A token whose registration
/// ended before the server had looked at it is refused without being counted.
fn wait_for_refusals(sim: &Sim, all: u64) {
    wait_until("a late write was refused", || {
        sim.counters().late_writes_refused > 0
    });
    let began = Instant::now();
    while sim.counters().late_writes_refused < all && began.elapsed() < Duration::from_secs(1) {
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(sim.counters().late_writes_landed, 0);
}

/// RDMA was tried, and was given up for `reason`; the bytes came by HTTP and are right.
fn assert_fell_back(completion: &Completion, reason: Reason) {
    assert_eq!(
        (completion.path(), completion.reason()),
        (Path::Http, reason),
        "{completion:?}"
    );
    assert!(completion.flags().contains(Flags::FELL_BACK));
    assert_eq!(completion.bytes_by_path().http, SIZE);
    content::verify(KEY, 0, 0, completion.data().unwrap()).unwrap();
}

#[test]
fn no_byte_of_a_reused_slot_changes_when_the_write_comes_after_revocation() {
    let rig = rig([late(write_late).count(1)]);
    let buffer = rig.buffer(SIZE);
    let (slot, address) = (buffer.slot(), buffer.address());
    let completion = rig.get(Policy::PreferRdma, Get::new("bench", KEY).into(buffer));
    assert_fell_back(&completion, Reason::RdmaTimeout);
    assert!(completion.flags().contains(Flags::MOVED));
    let pool = rig.engine.pool();
    wait_until("the slot is out of quarantine", || {
        pool.stats().quarantined == 0
    });
    assert_eq!(pool.stats().ledger.revoked, 1);
    let free = FreeMemory::lease(pool);
    assert!(free.contains(address), "the slot is among what is watched");
    wait_until("the late write was refused", || {
        rig.sim.counters().late_writes_refused == 1
    });
    assert_eq!(rig.sim.counters().late_writes_landed, 0);
    assert!(free.is_untouched());
    content::verify(KEY, 0, 0, completion.data().unwrap()).unwrap();
    let buffer = completion.into_buffer().unwrap();
    assert_ne!(buffer.slot(), slot);
    assert!(pool.resolve(slot).is_err(), "the old name is stale");
    drop((buffer, free));
    rig.assert_drains();
}

#[test]
fn a_fabric_that_only_claims_to_revoke_is_caught_by_the_watch() {
    // The counter-proof of the test above: where revocation does nothing, the reused slot does change.
    let rig = Rig::with([late(write_late).count(1)], |builder, folder| {
        impatient(builder).rdma(FailingFabric::of(folder, Failure::ClaimRevoked))
    });
    let completion = rig.get_whole(Policy::PreferRdma, KEY);
    assert_fell_back(&completion, Reason::RdmaTimeout);
    let pool = rig.engine.pool();
    wait_until("the slot is out of quarantine", || {
        pool.stats().quarantined == 0
    });
    let free = FreeMemory::lease(pool);
    assert!(free.is_untouched());
    wait_until("the late write landed", || {
        rig.sim.counters().late_writes_landed == 1
    });
    assert!(!free.is_untouched());
}

#[test]
fn a_write_before_revocation_lands_in_quarantine_and_nowhere_else() {
    // A second, honest GET keeps a token of the same slab out, so that revocation has to wait for it.
    let slow = "8MiB-slow";
    let hold = Rule::new(Action::AnswerLate { ms: 5000 })
        .only(Kind::Rdma)
        .key(slow);
    let rig = Rig::with([late(write_late), hold], |builder, _| {
        let pool = PoolOptions {
            slab_bytes: 16 << 20,
            max_bytes: Some(32 << 20),
            quarantine_max: PATIENCE,
            ..PoolOptions::default()
        };
        // The longer the queue, the longer the wait: a second for each MiB.
        let timeouts = Timeouts {
            rdma_base: GIVEN_UP,
            rdma_min_rate: 1 << 20,
            ..Timeouts::default()
        };
        builder.pool(pool).timeouts(timeouts)
    });
    let mut first = rig.buffer(SIZE);
    let second = rig.buffer(8 << 20);
    first.as_mut_slice().unwrap().fill(0);
    let address = first.address();
    let mut queue = rig.queue();
    queue
        .push(Get::new("bench", KEY).into(first).user_data(1))
        .unwrap();
    queue.submit();
    wait_until("the first token is out", || rig.sim.counters().faults == 1);
    queue
        .push(Get::new("bench", slow).into(second).user_data(2))
        .unwrap();
    queue.submit();
    wait_until("the second token is out", || rig.sim.counters().faults == 2);

    let moved = queue.next(PATIENCE).unwrap().unwrap();
    assert_eq!(moved.user_data(), 1);
    assert_fell_back(&moved, Reason::RdmaTimeout);
    let pool = rig.engine.pool();
    assert!(pool.stats().quarantined >= SIZE);
    let free = FreeMemory::lease(pool);
    assert!(!free.is_empty() && !free.contains(address));
    wait_until("the late write landed", || {
        rig.sim.counters().late_writes_landed == 1
    });
    assert!(free.is_untouched());
    content::verify(KEY, 0, 0, moved.data().unwrap()).unwrap();
    assert!(pool.stats().quarantined >= SIZE, "it is still kept apart");

    let honest = queue.next(PATIENCE).unwrap().unwrap();
    assert_eq!(
        (honest.user_data(), honest.path()),
        (2, Path::Rdma),
        "{honest:?}"
    );
    content::verify(slow, 0, 0, honest.data().unwrap()).unwrap();
    wait_until("the slot is out of quarantine", || {
        pool.stats().quarantined == 0
    });
    drop(free);
    // It landed where the quarantine had it.
    let slot = rig.buffer(SIZE);
    assert_eq!(slot.address(), address, "the lowest free place");
    content::verify(KEY, 0, 0, slot.as_slice().unwrap()).unwrap();
    drop((slot, moved, honest));
    rig.assert_drains();
}

#[test]
fn silence_a_late_answer_and_a_lost_connection_are_all_ambiguous() {
    for (rule, reason) in [
        (
            Rule::new(Action::NeverAnswer).only(Kind::Rdma),
            Reason::RdmaTimeout,
        ),
        (late(answer_late), Reason::RdmaTimeout),
        (
            Rule::new(Action::Cut { after: None }).only(Kind::Rdma),
            Reason::RdmaError,
        ),
        (
            Rule::new(Action::Reset { after: None }).only(Kind::Rdma),
            Reason::RdmaError,
        ),
    ] {
        let rig = rig([rule.clone().count(1)]);
        let buffer = rig.buffer(SIZE);
        let slot = buffer.slot();
        let completion = rig.get(Policy::PreferRdma, Get::new("bench", KEY).into(buffer));
        assert_fell_back(&completion, reason);
        assert!(completion.flags().contains(Flags::MOVED), "{rule:?}");
        assert_eq!(
            rig.sim.counters().requests,
            2,
            "{rule:?}: tried again in doubt"
        );
        let buffer = completion.into_buffer().unwrap();
        assert_ne!(buffer.slot(), slot, "{rule:?}");
        drop(buffer);
        rig.assert_drains();
        assert_eq!(rig.engine.pool().stats().ledger.revoked, 1, "{rule:?}");
    }
}

#[test]
fn an_answer_of_something_between_client_and_server_is_no_answer_of_the_server() {
    let doubtful = [
        ("504 Gateway Timeout", Reason::RdmaTimeout),
        ("502 Bad Gateway", Reason::RdmaError),
        ("500 Internal Server Error", Reason::RdmaError),
        ("503 Service Unavailable", Reason::RdmaError),
        ("408 Request Timeout", Reason::RdmaTimeout),
    ];
    for (status, reason) in doubtful {
        let url = canned_server(format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n"));
        let (engine, _folder) = engine_over(&url);
        let buffer = engine.pool().try_alloc(SIZE, Memory::Host).unwrap();
        let get = Get::new("bench", KEY)
            .into(buffer)
            .policy(Policy::RequireRdma);
        let completion = block_on(engine.get(get));
        assert_invariants(&completion, Policy::RequireRdma);
        assert_eq!(completion.reason(), reason, "{completion:?}");
        assert!(completion.into_buffer().is_none(), "the slot is in doubt");
        let pool = engine.pool();
        wait_until("all memory is back", || pool.stats().leased == 0);
        assert!(pool.stats().ledger.revoked > 0, "{status}");
    }
}

#[test]
fn an_error_of_the_server_itself_leaves_no_doubt() {
    let body = "<Error><Code>InternalError</Code><Message>m</Message></Error>";
    let length = body.len();
    let answer = format!("HTTP/1.1 500 E\r\nContent-Length: {length}\r\n\r\n{body}");
    let (engine, _folder) = engine_over(&canned_server(answer));
    let buffer = engine.pool().try_alloc(SIZE, Memory::Host).unwrap();
    let get = Get::new("bench", KEY)
        .into(buffer)
        .policy(Policy::RequireRdma);
    let completion = block_on(engine.get(get));
    assert_eq!(completion.reason(), Reason::HttpError, "{completion:?}");
    assert!(completion.into_buffer().is_some());
    assert_eq!(engine.pool().stats().ledger.revoked, 0);
}

#[test]
fn a_token_that_a_server_repeats_is_shown_to_nobody() {
    let url = echoing_server();
    let (engine, _folder) = engine_over(&url);
    let buffer = engine.pool().try_alloc(SIZE, Memory::Host).unwrap();
    let get = Get::new("bench", KEY)
        .into(buffer)
        .policy(Policy::RequireRdma);
    let completion = block_on(engine.get(get));
    assert_eq!(completion.reason(), Reason::TokenRejected);
    let told = format!("{completion:?} {}", completion.error().unwrap());
    assert!(told.contains("bad <token>"), "{told}");
}

#[test]
fn required_rdma_is_tried_once_more_in_other_memory() {
    let rig = rig([late(write_late).count(1)]);
    let buffer = rig.buffer(SIZE);
    let slot = buffer.slot();
    let completion = rig.get(Policy::RequireRdma, Get::new("bench", KEY).into(buffer));
    assert_eq!(
        (completion.path(), completion.reason()),
        (Path::Rdma, Reason::Ok),
        "{completion:?}"
    );
    assert_eq!(completion.flags(), Flags::MOVED | Flags::NOT_VERIFIED);
    wait_until("the late write was refused", || {
        rig.sim.counters().late_writes_refused == 1
    });
    content::verify(KEY, 0, 0, completion.data().unwrap()).unwrap();
    assert_ne!(completion.into_buffer().unwrap().slot(), slot);
    rig.assert_drains();
}

#[test]
fn required_rdma_that_never_answers_fails_without_a_buffer() {
    let rig = rig([Rule::new(Action::NeverAnswer)]);
    let failed = rig.get_whole(Policy::RequireRdma, KEY);
    assert_eq!(
        (failed.path(), failed.reason()),
        (Path::None, Reason::RdmaTimeout)
    );
    assert!(
        matches!(failed.error().unwrap().kind(), ErrorKind::Rdma { detail, .. }
        if detail.contains("may still write"))
    );
    assert_eq!(rig.sim.counters().requests, 2);
    assert!(failed.into_buffer().is_none());
    rig.assert_drains();
}

#[test]
fn a_fixed_buffer_is_announced_to_wait_and_comes_back_after_revocation() {
    let rig = rig([late(write_late).count(1)]);
    let buffer = rig.buffer(SIZE);
    let slot = buffer.slot();
    let mut queue = rig.queue();
    let ticket = queue
        .push(Get::new("bench", KEY).into_fixed(buffer).user_data(77))
        .unwrap();
    queue.submit();
    let completions = drain(&mut queue);
    let [news, end] = &completions[..] else {
        panic!("{completions:?}");
    };
    for completion in &completions {
        assert_invariants(completion, Policy::PreferRdma);
        assert_eq!((completion.ticket(), completion.user_data()), (ticket, 77));
    }
    assert_eq!(
        (news.flags(), news.reason()),
        (Flags::MORE, Reason::RdmaTimeout)
    );
    assert_fell_back(end, Reason::RdmaTimeout);
    assert!(!end.flags().intersects(Flags::MOVED | Flags::MORE));
    assert_eq!(
        rig.engine.pool().stats().ledger.revoked,
        1,
        "revoked before the end"
    );
    wait_until("the late write was refused", || {
        rig.sim.counters().late_writes_refused == 1
    });
    content::verify(KEY, 0, 0, end.data().unwrap()).unwrap();
    let end = completions.into_iter().last().unwrap();
    assert_eq!(end.into_buffer().unwrap().slot(), slot);
    rig.assert_drains();
}

#[test]
fn a_fixed_buffer_is_announced_to_wait_once_however_often_it_does() {
    let rig = rig([late(|_| Action::NeverAnswer)]);
    let mut queue = rig.queue();
    let get = Get::new("bench", KEY).into_fixed(rig.buffer(SIZE));
    queue.push(get.policy(Policy::RequireRdma)).unwrap();
    queue.submit();
    let all = drain(&mut queue);
    let more = all
        .iter()
        .filter(|c| c.flags().contains(Flags::MORE))
        .count();
    assert_eq!(
        (all.len(), more),
        (2, 1),
        "two rounds, one announcement: {all:?}"
    );
    assert_eq!(all[1].reason(), Reason::RdmaTimeout);
}

#[test]
fn dropping_the_engine_does_not_wait_for_a_fixed_buffers_quarantine() {
    let rig = Rig::with([late(|_| Action::NeverAnswer)], |builder, _| {
        let pool = PoolOptions {
            quarantine_max: Duration::from_secs(3600),
            ..small_pool(4 << 20)
        };
        impatient(builder).pool(pool)
    });
    let other = Get::new("bench", KEY)
        .into(rig.buffer(SIZE))
        .policy(Policy::RequireRdma);
    let mut queue = rig.queue();
    let get = Get::new("bench", KEY).into_fixed(rig.buffer(SIZE));
    queue.push(get.policy(Policy::RequireRdma)).unwrap();
    queue.submit();
    let news = queue.next(PATIENCE).unwrap().unwrap();
    assert!(news.flags().contains(Flags::MORE));
    // A token that is out keeps the slab from being revoked for an hour.
    let future = rig.engine.get(other);
    let began = Instant::now();
    drop((future, queue, rig));
    assert!(began.elapsed() < PATIENCE);
}

#[test]
fn a_fixed_buffer_of_a_cancelled_get_comes_back_after_revocation_too() {
    let rig = rig([Rule::new(Action::NeverAnswer)]);
    let buffer = rig.buffer(SIZE);
    let slot = buffer.slot();
    let mut queue = rig.queue();
    let get = Get::new("bench", KEY).into_fixed(buffer);
    let ticket = queue.push(get.policy(Policy::RequireRdma)).unwrap();
    queue.submit();
    wait_until("the token is out", || rig.sim.counters().faults > 0);
    assert!(queue.cancel(ticket));
    let mut completions = drain(&mut queue);
    let end = completions.pop().unwrap();
    assert_eq!(end.reason(), Reason::Cancelled);
    assert_eq!(end.into_buffer().unwrap().slot(), slot);
    rig.assert_drains();
}

#[test]
fn a_revocation_that_nobody_confirms_costs_the_slab_and_not_the_get() {
    let rule = late(write_late).count(1);
    let shape = |builder: EngineBuilder, folder: &std::path::Path| {
        impatient(builder).rdma(FailingFabric::of(folder, Failure::Revoke))
    };
    let rig = Rig::with([rule.clone()], shape);
    let buffer = rig.buffer(SIZE);
    let slab = buffer.slot().slab;
    let completion = rig.get(Policy::PreferRdma, Get::new("bench", KEY).into(buffer));
    assert_fell_back(&completion, Reason::RdmaTimeout);
    let pool = rig.engine.pool();
    wait_until("the slab was given up", || {
        pool.stats().ledger.unconfirmed == 1
    });
    let gone = || pool.stats().slabs.iter().all(|stats| stats.id != slab);
    wait_until("the slab is gone", gone);
    drop(completion);
    rig.assert_drains();

    // Where no other memory is allowed, it is the end.
    let rig = Rig::with([rule], shape);
    let mut queue = rig.queue();
    let get = Get::new("bench", KEY).into_fixed(rig.buffer(SIZE));
    queue.push(get).unwrap();
    queue.submit();
    let completions = drain(&mut queue);
    let end = completions.last().unwrap();
    assert_invariants(end, Policy::PreferRdma);
    assert_eq!(
        (end.path(), end.reason()),
        (Path::None, Reason::RdmaTimeout)
    );
    drop(completions);
    rig.assert_drains();
}

#[test]
fn cancelling_a_transfer_loses_no_memory() {
    let rig = rig([Rule::new(Action::NeverAnswer)]);
    let mut queue = rig.queue();
    let get = Get::new("bench", KEY).into(rig.buffer(SIZE));
    let ticket = queue.push(get.policy(Policy::RequireRdma)).unwrap();
    queue.submit();
    wait_until("the token is out", || rig.sim.counters().faults > 0);
    assert!(queue.cancel(ticket));
    let end = queue.next(PATIENCE).unwrap().unwrap();
    assert_invariants(&end, Policy::RequireRdma);
    assert_eq!((end.path(), end.reason()), (Path::None, Reason::Cancelled));
    assert!(end.into_buffer().is_none());
    rig.assert_drains();
}

#[test]
fn a_deadline_within_a_transfer_loses_no_memory() {
    let rig = Rig::new([Rule::new(Action::NeverAnswer)]);
    for policy in [Policy::PreferRdma, Policy::RequireRdma, Policy::Http] {
        let get = Get::new("bench", KEY)
            .into(rig.buffer(SIZE))
            .deadline(Duration::from_millis(200));
        let end = rig.get(policy, get);
        assert_eq!((end.path(), end.reason()), (Path::None, Reason::Deadline));
        // By HTTP nobody else writes: nothing is in doubt.
        assert_eq!(end.into_buffer().is_some(), policy == Policy::Http);
        rig.assert_drains();
    }
}

#[test]
fn dropping_a_queue_loses_no_memory_and_no_write_reaches_a_reused_slot() {
    let rig = Rig::new([late(write_late)]);
    warm_up(&rig);
    let mut queue = rig.queue();
    for _ in 0..4 {
        let get = Get::new("bench", KEY).into(rig.buffer(SIZE));
        queue.push(get).unwrap();
    }
    queue.submit();
    wait_until("the tokens are out", || rig.sim.counters().faults == 4);
    drop(queue);
    rig.assert_drains();
    let free = FreeMemory::lease(rig.engine.pool());
    assert_eq!(free.len(), 32 << 20, "all of the pool");
    wait_for_refusals(&rig.sim, 4);
    assert!(free.is_untouched());
}

#[test]
fn dropping_a_future_loses_no_memory() {
    let rig = Rig::new([Rule::new(Action::NeverAnswer)]);
    let future = rig.engine.get(
        Get::new("bench", KEY)
            .range(0, SIZE)
            .policy(Policy::RequireRdma),
    );
    wait_until("the token is out", || rig.sim.counters().faults == 1);
    drop(future);
    rig.assert_drains();
}

#[test]
fn dropping_the_engine_ends_its_transfers_and_loses_no_memory() {
    let rig = Rig::new([late(write_late)]);
    warm_up(&rig);
    let mut queue = rig.queue();
    for _ in 0..4 {
        let get = Get::new("bench", KEY).into(rig.buffer(SIZE));
        queue.push(get).unwrap();
    }
    queue.submit();
    let future = rig.engine.get(Get::new("bench", KEY).range(0, SIZE));
    wait_until("the tokens are out", || rig.sim.counters().faults == 5);
    let Rig { engine, sim, .. } = rig;
    let pool = engine.pool().clone();
    // Queue and future keep the engine: it ends with the last of them.
    drop(engine);
    drop(queue);
    drop(future);
    wait_until("all memory is back", || {
        let stats = pool.stats();
        stats.leased == 0 && stats.quarantined == 0
    });
    let free = FreeMemory::lease(&pool);
    wait_for_refusals(&sim, 5);
    assert!(free.is_untouched());
}

#[test]
fn in_a_full_pool_the_slot_itself_comes_back_after_revocation() {
    let rig = Rig::with([late(write_late).count(1)], |builder, _| {
        impatient(builder).pool(small_pool(2 << 20))
    });
    let buffer = rig.buffer(SIZE);
    let slot = buffer.slot();
    let rest = FreeMemory::lease(rig.engine.pool());
    let completion = rig.get(Policy::PreferRdma, Get::new("bench", KEY).into(buffer));
    assert_fell_back(&completion, Reason::RdmaTimeout);
    wait_until("the late write was refused", || {
        rig.sim.counters().late_writes_refused == 1
    });
    assert!(rest.is_untouched());
    content::verify(KEY, 0, 0, completion.data().unwrap()).unwrap();
    let moved = completion.flags().contains(Flags::MOVED);
    let same = completion.into_buffer().unwrap().slot() == slot;
    assert_ne!(moved, same, "MOVED says whether it is another slot");
    drop(rest);
    rig.assert_drains();
}

#[test]
fn a_get_waits_for_memory_until_there_is_some_or_its_deadline_passes() {
    let rig = Rig::with([], |builder, _| builder.pool(small_pool(2 << 20)));
    let rest = FreeMemory::lease(rig.engine.pool());
    let get = || Get::new("bench", KEY).range(0, SIZE);
    let late = rig.get(
        Policy::PreferRdma,
        get().deadline(Duration::from_millis(100)),
    );
    assert_eq!((late.path(), late.reason()), (Path::None, Reason::Deadline));
    let future = rig.engine.get(get());
    drop(rest);
    let completion = block_on(future);
    assert_eq!(completion.path(), Path::Rdma, "{completion:?}");
    content::verify(KEY, 0, 0, completion.data().unwrap()).unwrap();
    drop(completion);
    rig.assert_drains();
}

#[test]
fn many_parts_of_which_one_is_in_doubt_all_come_again_in_other_memory() {
    let rig = Rig::with([late(write_late).skip(2).count(1)], |builder, _| {
        impatient(builder).part_sizes(64 << 10, 64 << 10)
    });
    let buffer = rig.buffer(SIZE);
    let slot = buffer.slot();
    let completion = rig.get(Policy::PreferRdma, Get::new("bench", KEY).into(buffer));
    // What the other parts had brought by RDMA was in the old slot, and counts no more.
    assert_fell_back(&completion, Reason::RdmaTimeout);
    assert_eq!(completion.bytes_by_path().rdma, 0);
    wait_until("the late write was refused", || {
        rig.sim.counters().late_writes_refused == 1
    });
    content::verify(KEY, 0, 0, completion.data().unwrap()).unwrap();
    assert_ne!(completion.into_buffer().unwrap().slot(), slot);
    rig.assert_drains();
}
