//! Whether the bytes on the device are the object's.

use s3engine::cuda::Gpu;
use s3engine::{Get, Memory, Policy, QueueOptions};
use s3sim::content;

use crate::place::Place;
use crate::roles::{self, PATIENCE};

/// Sizes around the ends of staging chunks and of parts.
const SIZES: [u64; 9] = [
    1,
    4095,
    65_536,
    (1 << 20) - 1,
    (1 << 20) + 1,
    (4 << 20) + 7,
    8 << 20,
    (64 << 20) + 3,
    300 << 20,
];

/// GETs of all sizes by both paths, from an engine of this process and through the service, into each device.
pub(crate) fn run(gpus: &[Gpu]) {
    let place = Place::new(4);
    let args: Vec<&str> = place.sim_args.iter().map(String::as_str).collect();
    let engines = [
        ("embedded", roles::engine(&args)),
        ("served", roles::connect(&place.socket)),
    ];
    let mut checked = 0;
    for (name, engine) in &engines {
        for gpu in gpus {
            for policy in [Policy::Http, Policy::RequireRdma] {
                let mut queue = engine.queue(QueueOptions { capacity: 16 });
                for (nth, size) in SIZES.into_iter().enumerate() {
                    let memory = Memory::Cuda(gpu.uuid());
                    let mut buffer = engine.pool().alloc(size, memory, PATIENCE).expect("memory");
                    poison(&mut buffer, size);
                    let key = key(size);
                    let get = Get::new("bench", &*key)
                        .policy(policy)
                        .user_data(nth as u64);
                    queue.push(get.into(buffer)).expect("room");
                }
                queue.submit();
                for _ in SIZES {
                    let done = queue.next(PATIENCE).expect("an end").expect("a completion");
                    assert!(done.is_ok(), "{name} {policy}: {done:?}");
                    let size = SIZES[done.user_data() as usize];
                    let flags = done.flags();
                    assert_eq!(
                        flags.contains(s3engine::Flags::STAGED),
                        policy == Policy::Http
                    );
                    let buffer = done.into_buffer().expect("its buffer");
                    let mut found = vec![0; size as usize];
                    buffer.read_to_host(0, &mut found).expect("a copy");
                    let mut expected = vec![0; size as usize];
                    content::fill(&key(size), 0, 0, &mut expected);
                    assert!(found == expected, "{name} {policy} {size}: wrong bytes");
                    checked += size;
                }
            }
        }
    }
    println!(
        "check: {} MiB on {} device(s), embedded and served, http and rdma: all bytes right\n",
        checked >> 20,
        gpus.len()
    );
}

fn key(size: u64) -> String {
    format!("{size}B-check")
}

/// So that bytes which nobody wrote are seen.
fn poison(buffer: &mut s3engine::Buffer, size: u64) {
    let junk = vec![0xa5; size as usize];
    buffer.write_from_host(0, &junk).expect("a copy");
}
