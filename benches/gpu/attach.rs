//! What it costs a process to attach: time, and memory of the device.

use std::time::{Duration, Instant};

use s3engine::cuda::Gpu;
use s3engine::{Get, Memory, Policy, QueueOptions};

use crate::place::Place;
use crate::process::Process;
use crate::roles::{self, PATIENCE, hear, say};

const SIZE: u64 = 8 << 20;

/// Clients attach one after the other, and stay.
pub(crate) fn run(gpu: &'static Gpu) {
    let mib_free = || gpu.free_memory().expect("a device") >> 20;
    // This process's own context is not counted.
    let at_first = mib_free();
    let mut place = Place::new(4);
    let served = mib_free();
    println!(
        "attach: the service, before it is asked for memory: {} MiB of the device",
        at_first - served
    );
    println!(
        "{:<8} {:>10} {:>10} {:>10} {:>10} {:>10} {:>12} {:>12}",
        "client",
        "context",
        "lease",
        "import 2nd",
        "1st GET",
        "2nd GET",
        "device MiB",
        "registered"
    );
    let mut clients = Vec::new();
    for (nth, context) in ["whole", "whole", "small", "small"].into_iter().enumerate() {
        let before = mib_free();
        let mut client = Process::new("attach", &[&place.socket, context]);
        let took = client.numbers();
        let taken = before.saturating_sub(mib_free());
        print!("{nth} {context:<6}");
        took.iter().for_each(|ms| print!(" {ms:>7.2} ms"));
        println!(" {taken:>12} {:>12}", place.stats());
        clients.push(client);
    }
    drop(clients);
    let began = Instant::now();
    while mib_free() + 600 < served && began.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(50));
    }
    println!(
        "clients gone: {} MiB more than before them\n",
        served.saturating_sub(mib_free())
    );
}

/// A client that tells how long each step took, in milliseconds.
pub(crate) fn client() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [socket, context] = &args[..] else {
        panic!("SOCKET whole|small")
    };
    if context == "small" {
        s3engine::cuda::run_no_kernels();
    }
    let timed = |began: Instant| began.elapsed().as_secs_f64() * 1e3;
    let began = Instant::now();
    let gpu = Gpu::nth(0).expect("a device");
    drop(gpu.bind().expect("a context"));
    let context = timed(began);
    let engine = roles::connect(socket);
    let memory = Memory::Cuda(gpu.uuid());
    let lease = |size| {
        let began = Instant::now();
        let buffer = engine.pool().alloc(size, memory, PATIENCE).expect("memory");
        (buffer, timed(began))
    };
    // The first makes a slab and maps it; the second needs one of its own.
    let (first, took_first) = lease(SIZE);
    let (_large, took_second) = lease(256 << 20);
    let mut queue = engine.queue(QueueOptions { capacity: 1 });
    let mut buffer = Some(first);
    let mut get = || {
        let began = Instant::now();
        let get = Get::new("bench", "8MiB-attach").policy(Policy::RequireRdma);
        let get = get.into(buffer.take().expect("its buffer"));
        queue.push(get).expect("room");
        queue.submit();
        let done = queue.next(PATIENCE).expect("an end").expect("a completion");
        assert!(done.is_ok(), "{done:?}");
        buffer = done.into_buffer();
        timed(began)
    };
    let (first, second) = (get(), get());
    say(&format!(
        "{context} {took_first} {took_second} {first} {second}"
    ));
    let _ = hear();
}
