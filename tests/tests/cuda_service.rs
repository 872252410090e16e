//! Clients of a host service with memory of CUDA devices.

use cuda_standin::{Standin, is_standin, with_standin};
use s3engine::cuda::{CudaCause, Gpu};
use s3engine::{
    Buffer, ConnectOptions, Engine, Flags, Get, Memory, Path, Policy, PoolError, PoolOptions,
    Reason,
};
use s3engine_tests::{
    FailingFabric, Failure, Owner, Program, Rig, ServiceRig, assert_invariants, block_on, helper,
    own, wait_until,
};
use s3sim::content;

const KEY: &str = "300KiB-cuda";
const SIZE: u64 = 300 << 10;

/// Of each slab, as [`ServiceRig`] and [`Owner`] have them.
const SLAB: u64 = 4 << 20;

fn free(device: u32) -> u64 {
    Gpu::nth(device).unwrap().free_memory().unwrap()
}

/// Bytes are counted only where nothing else takes any: a driver keeps some for contexts and streams.
fn wait_free(device: u32, bytes: u64) {
    let what = format!("{bytes} bytes of device {device} are free");
    wait_until(&what, || free(device) == bytes || !is_standin());
}

/// A client in a process of its own that sees device 1 first, and reads into that.
fn attached(host: &ServiceRig, what: &str) -> Program {
    let mut command = helper(env!("CARGO_BIN_EXE_attached"));
    command.env("CUDA_VISIBLE_DEVICES", "1,0");
    Program::run(command.arg(host.socket()).args([what, KEY, "0"]))
}

fn assert_on_second_device(host: &ServiceRig, client: &mut Program) {
    let device = Gpu::nth(1).unwrap().uuid();
    assert_eq!(client.line(), Memory::Cuda(device).to_string());
    let stats = host.rig.engine.pool().stats();
    let devices: Vec<_> = stats.cuda.iter().map(|cuda| cuda.device).collect();
    assert_eq!(devices, [device]);
}

/// One GET of `KEY` by RDMA into a buffer of the client's, checked.
fn get(client: &Engine, buffer: Buffer) -> Buffer {
    let get = Get::new("bench", KEY).policy(Policy::RequireRdma);
    let completion = block_on(client.get(get.into(buffer)));
    assert_invariants(&completion, Policy::RequireRdma);
    let how = (completion.path(), completion.flags());
    assert_eq!(how, (Path::Rdma, Flags::NOT_VERIFIED), "{completion:?}");
    let mut found = vec![0; SIZE as usize];
    let buffer = completion.into_buffer().unwrap();
    buffer.read_to_host(0, &mut found).unwrap();
    content::verify(KEY, 0, 0, &found).unwrap();
    buffer
}

fn no_cuda(error: PoolError, device: Memory) -> CudaCause {
    let PoolError::NoCuda {
        device: uuid,
        cause,
        ..
    } = error
    else {
        panic!("{error}");
    };
    assert_eq!(Memory::Cuda(uuid), device);
    assert!(error.to_string().contains(&uuid.to_string()), "{error}");
    cause
}

#[test]
fn a_killed_client_that_numbers_devices_otherwise_had_the_same_one_and_leaves_nothing() {
    Standin::default().gpus(2).run(|| {
        let host = ServiceRig::new();
        let before = [free(0), free(1)];
        for _ in 0..3 {
            let mut client = attached(&host, "cuda-rdma");
            assert_on_second_device(&host, &mut client);
            assert!(free(1) < before[1]);
            client.kill();
            host.assert_drains();
            wait_free(1, before[1]);
            wait_free(0, before[0]);
        }
    });
}

#[test]
fn memory_that_cuda_ipc_shares_is_filled_like_any_other() {
    Standin::default().gpus(2).run(|| {
        let rig = Rig::with([], |builder, folder| {
            builder.rdma(FailingFabric::of(folder, Failure::LegacyCuda))
        });
        let host = ServiceRig::with(rig, |_| {});
        let before = free(1);
        let mut client = attached(&host, "cuda-http");
        assert_on_second_device(&host, &mut client);
        client.kill();
        host.assert_drains();
        wait_free(1, before);
    });
}

#[test]
fn a_killed_service_leaves_nothing_once_its_clients_let_go() {
    with_standin(|| {
        let rig = Rig::new([]);
        let before = free(0);
        let mut owner = Owner::new(env!("CARGO_BIN_EXE_owner"), &rig);
        let client = Engine::connect(&owner.socket(), ConnectOptions::default()).unwrap();
        let memory = Memory::cuda(0).unwrap();
        let buffer = get(&client, client.pool().try_alloc(SIZE, memory).unwrap());
        wait_free(0, before - SLAB);
        owner.renew(&rig);
        wait_until("the buffer is dead", || buffer.is_lost());
        let dead = buffer.read_to_host(0, &mut [0]);
        assert!(dead.is_err(), "{dead:?}");
        // Dead, and yet there.
        wait_free(0, before - SLAB);
        drop(buffer);
        block_on(client.head("bench", KEY)).unwrap();
        let buffer = get(&client, client.pool().try_alloc(SIZE, memory).unwrap());
        wait_free(0, before - SLAB);
        drop((buffer, client));
        wait_free(0, before);
    });
}

#[test]
fn what_the_service_cannot_give_is_an_error_that_names_device_and_cause() {
    Standin::default().memory(16 << 20).run(|| {
        let rig = Rig::with([], |builder, _| {
            builder.pool(PoolOptions {
                slab_bytes: SLAB,
                max_cuda_bytes: Some(1 << 30),
                ..PoolOptions::default()
            })
        });
        let host = ServiceRig::with(rig, |_| {});
        let client = host.client();
        let memory = Memory::cuda(1).unwrap();
        let before = free(1);
        let error = client.pool().try_alloc(32 << 20, memory).unwrap_err();
        assert_eq!(no_cuda(error, memory), CudaCause::OutOfMemory);
        assert_eq!(free(1), before);
        let buffer = get(&client, client.pool().try_alloc(SIZE, memory).unwrap());
        drop(buffer);
        // A service that sees one device only, and one without a driver.
        let folder = tempfile::tempdir().unwrap();
        for (variable, value, causes) in [
            ("CUDA_VISIBLE_DEVICES", "0", &[CudaCause::NoSuchDevice][..]),
            (
                // Unless the host has a driver, which knows no such device.
                "LD_LIBRARY_PATH",
                "",
                &[CudaCause::NoDriver, CudaCause::NoSuchDevice],
            ),
        ] {
            let mut command = helper(env!("CARGO_BIN_EXE_owner"));
            command.env(variable, value);
            let socket = folder.path().join(variable);
            let _owner = own(command, &host.rig, &socket);
            let client = Engine::connect(&socket, ConnectOptions::default()).unwrap();
            let error = client.pool().try_alloc(SIZE, memory).unwrap_err();
            assert!(causes.contains(&no_cuda(error, memory)));
            let host_memory = client.pool().try_alloc(SIZE, Memory::Host);
            assert!(host_memory.is_ok(), "host memory goes on");
        }
    });
}

#[test]
fn a_slab_that_is_given_up_for_another_client_is_free_on_the_device() {
    with_standin(|| {
        let rig = Rig::with([], |builder, _| {
            builder.pool(PoolOptions {
                slab_bytes: SLAB,
                max_bytes: Some(32 << 20),
                max_cuda_bytes: Some(SLAB),
                ..PoolOptions::default()
            })
        });
        let host = ServiceRig::with(rig, |_| {});
        let (one, other) = (host.client(), host.client());
        let memory = Memory::cuda(0).unwrap();
        let before = free(0);
        let held = one.pool().try_alloc(3 << 20, memory).unwrap();
        let full = other.pool().try_alloc(3 << 20, memory).unwrap_err();
        assert!(matches!(full, PoolError::WouldBlock { .. }), "{full}");
        drop(held);
        let mut theirs = None;
        wait_until("the other has room", || {
            theirs = other.pool().try_alloc(3 << 20, memory).ok();
            theirs.is_some()
        });
        wait_free(0, before - SLAB);
        wait_until("it is gone for the one too", || {
            one.pool().stats().cuda.is_empty()
        });
        drop(theirs);
        wait_until("it goes back", || {
            one.pool().try_alloc(3 << 20, memory).is_ok()
        });
        wait_free(0, before - SLAB);
    });
}

#[test]
fn host_and_device_memory_of_one_client_are_kept_apart() {
    Standin::default().gpus(2).run(|| {
        let host = ServiceRig::new();
        let client = host.client();
        let kinds = [
            Memory::Host,
            Memory::cuda(0).unwrap(),
            Memory::cuda(1).unwrap(),
        ];
        // Slots of one size and alignment, given back and leased again: each of its own kind.
        for _ in 0..3 {
            let buffers = kinds.map(|kind| client.pool().try_alloc(SIZE, kind).unwrap());
            for (buffer, kind) in buffers.into_iter().zip(kinds) {
                assert_eq!(buffer.memory(), kind);
                let buffer = get(&client, buffer);
                assert_eq!(buffer.memory(), kind);
            }
        }
        let stats = client.pool().stats();
        assert_eq!((stats.mapped, stats.cuda.len()), (SLAB, 2));
        assert!(stats.cuda.iter().all(|cuda| cuda.mapped == SLAB));
        let forbidden = Get::new("bench", KEY).policy(Policy::Http);
        let buffer = client.pool().try_alloc(SIZE, kinds[1]).unwrap();
        let completion = block_on(client.get(forbidden.into(buffer)));
        assert_invariants(&completion, Policy::Http);
        let how = (completion.path(), completion.reason());
        assert_eq!(how, (Path::Http, Reason::Policy), "{completion:?}");
        assert!(completion.flags().contains(Flags::STAGED));
        drop((completion, client));
        host.assert_drains();
    });
}
