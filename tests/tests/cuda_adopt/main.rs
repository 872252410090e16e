//! A client's own CUDA memory as a destination, through the host service. On a stand-in for the driver.

mod callers;
mod hostile;

use std::env;
use std::path::Path as FilePath;
use std::thread;

use callers::{Callers, How, MIB};
use cuda_standin::{Standin, again, is_standin, role, with_standin};
use s3engine::cuda::Gpu;
use s3engine::{
    Buffer, Completion, ConnectOptions, Engine, Flags, Get, Path, Policy, PoolError, Reason,
};
use s3engine_tests::{PATIENCE, Program, Rig, ServiceRig, assert_invariants, block_on, wait_until};
use s3sim::{Action, Rule, content};

const KEY: &str = "300KiB-adopt";
const SIZE: u64 = 300 << 10;

/// Where a client of another process finds the service.
const SOCKET: &str = "S3ENGINE_TEST_SOCKET";

fn free() -> u64 {
    Gpu::nth(0).unwrap().free_memory().unwrap()
}

/// Whether so much is free, given what a driver keeps for itself.
fn is_free(bytes: u64) -> bool {
    let kept = if is_standin() { 0 } else { 64 * MIB };
    free() + kept >= bytes
}

fn wait_free(bytes: u64) {
    wait_until("the device's memory is free again", || is_free(bytes));
}

fn adopt(engine: &Engine, memory: &Callers, at: u64, len: u64) -> Result<Buffer, PoolError> {
    // SAFETY: the tests free nothing of which there is a buffer, and touch nothing that is filled.
    unsafe { engine.pool().adopt_cuda(memory.address + at, len) }
}

fn why(result: Result<Buffer, PoolError>) -> String {
    result.expect_err("it is refused").to_string()
}

/// One GET of `KEY` to `at`, checked, and whether it left the rest alone. Returns how it came.
fn get(engine: &Engine, memory: &Callers, at: u64, policy: Policy) -> Completion {
    memory.fill(7);
    let buffer = adopt(engine, memory, at, SIZE).unwrap();
    assert!(buffer.is_adopted());
    let address = (buffer.address(), buffer.len());
    assert_eq!(address, (memory.address + at, SIZE));
    let slot = buffer.slot();
    let get = Get::new("bench", KEY).policy(policy).into(buffer);
    let completion = block_on(engine.get(get));
    assert!(completion.is_ok(), "{completion:?}");
    assert_invariants(&completion, policy);
    assert_eq!(completion.bytes(), SIZE);
    let all = memory.read(0, memory.len as usize);
    let (before, rest) = all.split_at(at as usize);
    let (found, after) = rest.split_at(SIZE as usize);
    content::verify(KEY, 0, 0, found).unwrap();
    assert!(before.iter().chain(after).all(|byte| *byte == 7));
    let mut again = vec![0; SIZE as usize];
    let buffer = completion.buffer().expect("it comes back");
    assert_eq!((buffer.slot(), buffer.address()), (slot, address.0));
    buffer.read_to_host(0, &mut again).unwrap();
    assert_eq!(again, found);
    completion
}

fn how(completion: &Completion) -> (Path, Reason, Flags) {
    let flags = completion.flags();
    (completion.path(), completion.reason(), flags)
}

/// Slabs of devices' memory that the service has, made since it began, and registrations.
fn slabs(host: &ServiceRig) -> (usize, u64, u64) {
    let stats = host.rig.engine.pool().stats();
    assert_eq!(stats.cuda, [], "no bound counts what is adopted");
    let of_devices = stats.slabs.iter().filter(|slab| slab.cuda.is_some());
    (
        of_devices.count(),
        stats.slabs_made,
        stats.ledger.registered,
    )
}

#[test]
fn memory_with_a_descriptor_is_filled_by_the_fabric_and_over_http_and_shared_once() {
    with_standin(|| {
        let host = ServiceRig::new();
        let client = host.client();
        let memory = Callers::new(4 * MIB, How::Shareable);
        let before = free();
        let rdma = (Path::Rdma, Reason::Ok, Flags::NOT_VERIFIED);
        for at in [100, 3 * MIB] {
            let done = get(&client, &memory, at, Policy::RequireRdma);
            assert_eq!(how(&done), rdma);
            assert_eq!(slabs(&host), (1, 1, 1));
        }
        let done = get(&client, &memory, 1, Policy::Http);
        let http = Flags::HTTP_INTENDED | Flags::STAGED;
        assert_eq!(how(&done), (Path::Http, Reason::Policy, http));
        assert_eq!(slabs(&host), (1, 1, 1));
        drop(done);
        assert_eq!(
            client.pool().stats().cuda,
            [],
            "nor is it the client's slab"
        );
        assert!(client.pool().forget(memory.address, 1).unwrap());
        assert_eq!(slabs(&host).0, 0);
        drop(client);
        host.assert_drains();
        assert!(is_free(before), "it was never had twice");
    });
}

#[test]
fn memory_of_cuda_malloc_is_filled_through_staging_and_the_completion_says_why() {
    with_standin(|| {
        if role().is_some() {
            return malloc_client();
        }
        let host = ServiceRig::new();
        let before = free();
        let status = again("client").env(SOCKET, host.socket()).status().unwrap();
        assert!(status.success());
        host.assert_drains();
        wait_free(before);
        assert_eq!(slabs(&host), (0, 2, 0), "one of each allocation");
    });
}

fn connect() -> Engine {
    let socket = env::var_os(SOCKET).unwrap();
    Engine::connect(FilePath::new(&socket), ConnectOptions::default()).unwrap()
}

fn malloc_client() {
    let client = connect();
    // The second is a part of what the driver gives as a whole.
    for len in [4 * MIB, MIB] {
        let memory = Callers::new(len, How::Malloc);
        let fell_back = Flags::FELL_BACK | Flags::REG_FAILED | Flags::STAGED;
        for at in [0, 4097, len - SIZE] {
            let done = get(&client, &memory, at, Policy::PreferRdma);
            let fallen = (Path::Http, Reason::RegistrationFailed, fell_back);
            assert_eq!(how(&done), fallen);
        }
        let done = get(&client, &memory, 9, Policy::Http);
        let http = Flags::HTTP_INTENDED | Flags::STAGED;
        assert_eq!(how(&done), (Path::Http, Reason::Policy, http));
        let buffer = done.into_buffer().unwrap();
        let required = Get::new("bench", KEY).policy(Policy::RequireRdma);
        let done = block_on(client.get(required.into(buffer)));
        let none = (Path::None, Reason::RegistrationFailed, Flags::REG_FAILED);
        assert_eq!(how(&done), none);
        assert!(done.buffer().is_some_and(Buffer::is_adopted));
        drop(done);
        assert!(client.pool().forget(memory.address, len).unwrap());
    }
}

#[test]
fn what_comes_to_the_place_of_memory_that_was_freed_is_memory_of_its_own() {
    with_standin(|| {
        let host = ServiceRig::new();
        let client = host.client();
        let memory = Callers::new(4 * MIB, How::Shareable);
        let before = free();
        for nth in 1..4 {
            let done = get(&client, &memory, 5, Policy::RequireRdma);
            assert_eq!(done.path(), Path::Rdma);
            assert_eq!(slabs(&host), (1, nth, nth), "the old one is gone");
            drop(done);
            memory.renew();
        }
        assert_eq!(
            free(),
            before - 4 * MIB,
            "the service has the last one still"
        );
        assert!(client.pool().forget(memory.address, 1).unwrap());
        wait_free(before);
    });
}

#[test]
fn what_the_service_has_forgotten_is_shared_anew() {
    with_standin(|| {
        let host = ServiceRig::new();
        let client = host.client();
        let all: Vec<_> = (0..260)
            .map(|_| Callers::new(2 * MIB, How::Shareable))
            .collect();
        let held = adopt(&client, &all[0], 0, 1).unwrap();
        for memory in &all[1..] {
            drop(adopt(&client, memory, 0, 1).unwrap());
        }
        let (there, made, _) = slabs(&host);
        assert_eq!((there, made), (256, 260));
        get(&client, &all[1], 0, Policy::RequireRdma);
        assert_eq!(slabs(&host), (256, 261, 1), "it was forgotten");
        get(&client, &all[259], 0, Policy::RequireRdma);
        assert_eq!(slabs(&host), (256, 261, 2), "it was not");
        drop(held);
        get(&client, &all[0], 0, Policy::RequireRdma);
        assert_eq!(slabs(&host), (256, 261, 3), "nor is what is in use");
    });
}

#[test]
fn threads_that_adopt_the_same_memory_at_once_have_one_slab_of_it() {
    with_standin(|| {
        let host = ServiceRig::new();
        let client = host.client();
        let memory = Callers::new(2 * MIB, How::Shareable);
        thread::scope(|scope| {
            for nth in 0..8 {
                let (client, memory) = (&client, &memory);
                scope.spawn(move || adopt(client, memory, nth * 1000, 1000).map(drop).unwrap());
            }
        });
        assert_eq!(slabs(&host), (1, 1, 0));
    });
}

#[test]
fn bytes_of_another_get_are_refused_and_forgetting_waits_for_it() {
    with_standin(|| {
        let host = ServiceRig::new();
        let client = host.client();
        let memory = Callers::new(2 * MIB, How::Shareable);
        let first = adopt(&client, &memory, 100, 1000).unwrap();
        for (at, len) in [(100, 1000), (1099, 1), (0, 101), (0, 2 * MIB)] {
            let why = why(adopt(&client, &memory, at, len));
            assert!(why.contains("another GET"), "{why}");
        }
        let beside = adopt(&client, &memory, 1100, 1).unwrap();
        let forget = || client.pool().forget(memory.address + MIB, 1).unwrap();
        assert!(!forget());
        drop(first);
        assert!(!forget());
        drop(beside);
        assert!(forget() && forget());
        assert_eq!(slabs(&host), (0, 1, 0));
        let again = adopt(&client, &memory, 100, 1000).unwrap();
        assert!(client.pool().forget(1, 1).unwrap(), "nothing of it");
        assert_eq!(again.address(), memory.address + 100);
        let kept = client.pool().try_alloc(1000, again.memory()).unwrap();
        assert!(!kept.is_adopted(), "nothing else is leased there");
    });
}

#[test]
fn memory_that_cannot_be_shared_is_refused_with_what_to_do() {
    with_standin(|| {
        let host = ServiceRig::new();
        let client = host.client();
        for (how, what) in [(How::Closed, "descriptor"), (How::InTwo, "several")] {
            let memory = Callers::new(4 * MIB, how);
            let why = why(adopt(&client, &memory, MIB, 2 * MIB));
            assert!(why.contains(what), "{why}");
            assert!(why.contains("embed the engine"), "{why}");
        }
        assert_eq!(slabs(&host), (0, 0, 0));
    });
}

#[test]
fn a_device_that_the_service_does_not_see_is_named() {
    Standin::default().visible("0").run(|| {
        if role().is_some() {
            let client = connect();
            let memory = Callers::new(2 * MIB, How::Shareable);
            let error = adopt(&client, &memory, 0, 1).unwrap_err();
            let device = Gpu::nth(0).unwrap().uuid();
            assert!(
                matches!(error, PoolError::NoCuda { device: uuid, .. } if uuid == device),
                "{error}"
            );
            return;
        }
        let host = ServiceRig::new();
        let mut client = again("client");
        client.env("CUDA_VISIBLE_DEVICES", "1");
        client.env(SOCKET, host.socket());
        assert_eq!(Gpu::all().unwrap().len(), 1);
        assert!(client.status().unwrap().success());
    });
}

#[test]
fn a_client_that_is_killed_while_its_memory_is_filled_leaves_nothing() {
    with_standin(|| {
        if role().is_some() {
            return victim();
        }
        let never = Rule::new(Action::NeverAnswer).key("*silent");
        let stalls = Rule::new(Action::Stall {
            after: Some(99_000),
            ms: 60_000,
        })
        .key("*stalls");
        let host = ServiceRig::with(Rig::new([never, stalls]), |_| {});
        let before = free();
        for _ in 0..3 {
            let mut victim = Program::run(again("victim").env(SOCKET, host.socket()));
            // The harness says something too.
            assert!((0..9).any(|_| victim.line().ends_with("filled")));
            assert_ne!(free(), before);
            assert_eq!(slabs(&host).0, 3);
            victim.kill();
            host.assert_drains();
            wait_until("its slabs are gone", || slabs(&host).0 == 0);
            wait_free(before);
        }
    });
}

/// Has memory of both kinds filled, without end.
fn victim() {
    let client = connect();
    let mut queue = client.queue(Default::default());
    let both = [How::Malloc, How::Shareable].map(|how| Callers::new(4 * MIB, how));
    for (nth, key) in ["300KiB-silent", "300KiB-stalls"].iter().enumerate() {
        for memory in &both {
            let buffer = adopt(&client, memory, nth as u64 * MIB, SIZE).unwrap();
            queue.push(Get::new("bench", *key).into(buffer)).unwrap();
        }
    }
    queue.submit();
    // Another goes through, so those are under way.
    let third = Callers::new(2 * MIB, How::Shareable);
    get(&client, &third, 0, Policy::Http);
    println!("filled");
    thread::sleep(PATIENCE);
}
