//! What is left on the device after processes are killed, and what is said when it has no memory.

use std::time::{Duration, Instant};

use s3engine::cuda::{CudaError, Gpu};
use s3engine::{Memory, MemoryError, PoolError};

use crate::place::Place;
use crate::process::Process;
use crate::roles::{self, PATIENCE};

/// The driver gives memory back a little after a process has ended, and keeps some for itself.
const SLACK: u64 = 64 << 20;

pub(crate) fn run(gpu: &'static Gpu) {
    let free = || gpu.free_memory().expect("a device");
    let settled = |at_least: u64| {
        let began = Instant::now();
        while free() + SLACK < at_least && began.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(20));
        }
        free() + SLACK >= at_least
    };
    let at_first = free();
    let place = Place::new(4);
    let killed_client = || {
        let before = free();
        let mut client = Process::new("attach", &[&place.socket, "whole"]);
        let _ = client.numbers();
        assert!(free() + SLACK < before, "a client takes memory");
        drop(client);
        before
    };
    // The first one's end leaves the service's own context behind.
    killed_client();
    std::thread::sleep(Duration::from_secs(1));
    let before = killed_client();
    assert!(
        settled(before),
        "a killed client leaves nothing on the device"
    );

    let engine = roles::connect(&place.socket);
    let held = engine
        .pool()
        .alloc(SIZE, Memory::Cuda(gpu.uuid()), PATIENCE);
    let held = held.expect("memory");
    drop(place);
    let mut junk = vec![0; SIZE as usize];
    let began = Instant::now();
    while !held.is_lost() && began.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(5));
    }
    let read = held.read_to_host(0, &mut junk);
    assert!(
        read.is_err(),
        "a killed service's memory is not read any more"
    );
    drop((held, engine));
    assert!(
        settled(at_first),
        "a killed service leaves nothing on the device"
    );

    out_of_memory(gpu);
    assert!(
        settled(at_first),
        "what was not to be had leaves nothing behind"
    );
    println!(
        "faults: client and service killed, device full: typed errors, nothing left on the device\n"
    );
}

const SIZE: u64 = 8 << 20;

/// More than the device has, through a pool whose bound allows it.
fn out_of_memory(gpu: &'static Gpu) {
    let pool = s3engine::Pool::new(s3engine::PoolOptions {
        max_cuda_bytes: Some(1 << 40),
        ..s3engine::PoolOptions::default()
    });
    let pool = pool.expect("a pool");
    let memory = Memory::Cuda(gpu.uuid());
    let error = pool
        .try_alloc(gpu.memory(), memory)
        .expect_err("it is not there");
    let PoolError::Memory(MemoryError::Cuda(error)) = error else {
        panic!("not said to be the device's: {error}");
    };
    assert!(error.is_out_of_memory(), "{error}");
    println!("device full: {error}");
    let other = s3engine::cuda::Uuid([7; 16]);
    let error = pool
        .try_alloc(SIZE, Memory::Cuda(other))
        .expect_err("no such device");
    let PoolError::Memory(MemoryError::Cuda(error @ CudaError::NoSuchDevice { .. })) = error else {
        panic!("not said to be missing: {error}");
    };
    println!("no such device: {error}");
}
