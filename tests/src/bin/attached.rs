//! A client of a host service in a process of its own, for tests that kill, stop and fork it.
//!
//! `attached SOCKET read KEY COUNT`: COUNT GETs of the whole object, each checked; prints `done`.
//! `attached SOCKET busy KEY`: the same without end; prints `busy` after the first.
//! `attached SOCKET hoard KEY COUNT`: submits COUNT GETs, prints `hoards`, and takes no completion.
//! `attached SOCKET fork KEY`: forks a child that lives on, prints its number, and reads without end.

use std::io::Write;
use std::time::Duration;

use s3engine::{ConnectOptions, Engine, Get, Memory, QueueOptions};
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
    match &*what {
        "read" => {
            read(&engine, &key, count, |_| {});
            say("done");
        }
        "busy" => read(&engine, &key, usize::MAX, |nth| {
            if nth == 0 {
                say("busy");
            }
        }),
        "hoard" => {
            let capacity = count;
            let mut queue = engine.queue(QueueOptions { capacity });
            for _ in 0..count {
                queue.push(Get::new("bench", &*key)).expect("room");
            }
            queue.submit();
            say("hoards");
            std::thread::sleep(PATIENCE);
        }
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
            read(&engine, &key, usize::MAX, |_| {});
        }
        other => panic!("nothing called {other}"),
    }
}

fn say(text: &str) {
    println!("{text}");
    std::io::stdout().flush().expect("somebody listens");
}

/// GETs into one buffer after the other, four at a time.
fn read(engine: &Engine, key: &str, count: usize, mut done: impl FnMut(usize)) {
    let size = content::size_of_key(key).expect("the key says its size");
    let mut queue = engine.queue(QueueOptions { capacity: 4 });
    let (mut pushed, mut ended) = (0, 0);
    while ended < count {
        while pushed < count && queue.outstanding() < 4 {
            let buffer = engine.pool().alloc(size, Memory::Host, PATIENCE);
            let get = Get::new("bench", key).into(buffer.expect("memory"));
            queue.push(get).expect("room");
            queue.submit();
            pushed += 1;
        }
        let completion = queue.next(PATIENCE).expect("an end").expect("one of four");
        let data = completion.data().expect("bytes");
        assert_eq!(data.len() as u64, size);
        content::verify(key, 0, 0, data).expect("the object's bytes");
        done(ended);
        ended += 1;
    }
}
