//! A client of a host service in a process of its own, for tests that kill, stop and fork it.
//!
//! `attached SOCKET read KEY COUNT`: COUNT GETs of the whole object, each checked; prints `done`.
//! `attached SOCKET busy KEY`: the same without end; prints `busy` after the first.
//! `attached SOCKET http KEY`, `rdma KEY`: as `busy`, and only that path.
//! `attached SOCKET idle KEY`: prints `idle`, and does nothing.
//! `attached SOCKET hoard KEY COUNT`: submits COUNT GETs, prints `hoards`, and takes no completion.
//! `attached SOCKET reap KEY COUNT`: submits COUNT GETs, waits for all, prints `reaps`, takes them; again without end.
//! `attached SOCKET cuda-rdma KEY N`, `cuda-http KEY N`: as `busy`, only that path, and into memory of the CUDA device
//! that has the number N here; prints what it is called everywhere after the first.
//! `attached SOCKET fork KEY`: forks a child that lives on, prints its number, and reads without end.

use std::io::Write;
use std::time::Duration;

use s3engine::{Completion, ConnectOptions, Engine, Get, Memory, Policy, Queue, QueueOptions};
use s3sim::content;

const PATIENCE: Duration = Duration::from_secs(30);

fn main() {
    let mut args = std::env::args().skip(1);
    let mut next = || args.next().expect("SOCKET WHAT KEY [COUNT]");
    let (socket, what, key) = (next(), next(), next());
    let count = args
        .next()
        .map_or(usize::MAX, |count| count.parse().expect("a number"));
    let options = ConnectOptions {
        label: Some(what.clone()),
        ..ConnectOptions::default()
    };
    let engine = Engine::connect(socket.as_ref(), options).expect("a service");
    let without_end = |policy| {
        read(&engine, &key, Memory::Host, policy, usize::MAX, |nth| {
            if nth == 0 {
                say(&what);
            }
        });
    };
    match &*what {
        "read" => {
            read(
                &engine,
                &key,
                Memory::Host,
                Policy::PreferRdma,
                count,
                |_| {},
            );
            say("done");
        }
        "busy" => without_end(Policy::PreferRdma),
        "http" => without_end(Policy::Http),
        "rdma" => without_end(Policy::RequireRdma),
        "cuda-rdma" | "cuda-http" => {
            let policy = match &*what {
                "cuda-rdma" => Policy::RequireRdma,
                _ => Policy::Http,
            };
            let ordinal = u32::try_from(count).expect("the number of a device");
            let device = Memory::cuda(ordinal).expect("a device");
            read(&engine, &key, device, policy, usize::MAX, |nth| {
                if nth == 0 {
                    say(&device.to_string());
                }
            });
        }
        "idle" => {
            say("idle");
            std::thread::sleep(PATIENCE);
        }
        "hoard" => {
            let _queue = hoard(&engine, &key, count);
            say("hoards");
            std::thread::sleep(PATIENCE);
        }
        "reap" => loop {
            let mut queue = hoard(&engine, &key, count);
            queue.wait(count, PATIENCE).expect("all end");
            say("reaps");
            queue.completions().for_each(|end| check(&key, &end));
        },
        "fork" => {
            // SAFETY: the child only sleeps and leaves, without any code of this program's threads.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: as above.
                unsafe {
                    libc::sleep(PATIENCE.as_secs() as u32);
                    libc::_exit(0);
                }
            }
            say(&child.to_string());
            let policy = Policy::PreferRdma;
            read(&engine, &key, Memory::Host, policy, usize::MAX, |_| {});
        }
        other => panic!("nothing called {other}"),
    }
}

fn say(text: &str) {
    println!("{text}");
    std::io::stdout().flush().expect("somebody listens");
}

fn hoard(engine: &Engine, key: &str, count: usize) -> Queue {
    let capacity = count;
    let mut queue = engine.queue(QueueOptions { capacity });
    for _ in 0..count {
        queue.push(Get::new("bench", key)).expect("room");
    }
    queue.submit();
    queue
}

fn check(key: &str, end: &Completion) {
    let buffer = end.buffer().expect("a buffer");
    let mut data = vec![0; end.bytes() as usize];
    buffer.read_to_host(0, &mut data).expect("bytes");
    assert_eq!(content::size_of_key(key), Some(end.bytes()));
    content::verify(key, 0, 0, &data).expect("the object's bytes");
}

/// GETs into one buffer after the other, four at a time.
fn read(
    engine: &Engine,
    key: &str,
    memory: Memory,
    policy: Policy,
    count: usize,
    mut done: impl FnMut(usize),
) {
    let size = content::size_of_key(key).expect("the key says its size");
    let mut queue = engine.queue(QueueOptions { capacity: 4 });
    let (mut pushed, mut ended) = (0, 0);
    while ended < count {
        while pushed < count && queue.outstanding() < 4 {
            let buffer = engine.pool().alloc(size, memory, PATIENCE);
            let get = Get::new("bench", key).into(buffer.expect("memory"));
            queue.push(get.policy(policy)).expect("room");
            queue.submit();
            pushed += 1;
        }
        let completion = queue.next(PATIENCE).expect("an end").expect("one of four");
        check(key, &completion);
        done(ended);
        ended += 1;
    }
}
