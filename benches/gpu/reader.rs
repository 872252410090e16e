//! One large object read again and again from a server that is given, as other readers are driven beside it.

use std::time::Instant;

use s3engine::{Credentials, Endpoint, Engine, Get, Limits, Memory, Policy, QueueOptions};

use crate::roles::{PATIENCE, cpu};

/// Objects read after the first.
const TIMES: u64 = 8;

/// `URL BUCKET KEY BYTES THREADS host|cuda:N`: an engine of so many threads, and twice as many parts of 8 MiB in flight.
pub(crate) fn run(args: &[String]) {
    let [url, bucket, key, size, threads, memory] = args else {
        panic!("reader URL BUCKET KEY BYTES THREADS host|cuda:N")
    };
    let size: u64 = size.parse().expect("a number of bytes");
    let threads: usize = threads.parse().expect("a number of threads");
    let memory = match memory.strip_prefix("cuda:") {
        Some(ordinal) => Memory::cuda(ordinal.parse().expect("a number")).expect("a device"),
        None => Memory::Host,
    };
    let engine = Engine::builder(Endpoint::parse(url).expect("a URL"))
        .credentials(Credentials::new("reader", "reader", None).expect("a key pair"))
        .threads(threads)
        .limits(Limits {
            requests: 2 * threads,
            ..Limits::default()
        })
        .build()
        .expect("the engine starts");
    let buffer = engine.pool().alloc(size, memory, PATIENCE);
    let mut buffer = Some(buffer.expect("memory"));
    let mut queue = engine.queue(QueueOptions { capacity: 1 });
    let mut read = || {
        let get = Get::new(&**bucket, &**key).policy(Policy::Http);
        let get = get.into(buffer.take().expect("its buffer"));
        queue.push(get).expect("room");
        queue.submit();
        let done = queue.next(PATIENCE).expect("an end").expect("a completion");
        assert!(done.is_ok() && done.bytes() == size, "{done:?}");
        buffer = done.into_buffer();
    };
    read();
    let (began, before) = (Instant::now(), cpu());
    (0..TIMES).for_each(|_| read());
    let gib = (TIMES * size) as f64 / f64::from(1 << 30);
    println!(
        "s3engine threads={threads} {memory}: {:.2} GiB/s  cpu-s/GiB {:.3}",
        gib / began.elapsed().as_secs_f64(),
        (cpu() - before) / gib
    );
}
