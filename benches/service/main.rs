//! The host service beside an engine of the same process, many client processes beside one, and a small client
//! beside a greedy one.
//!
//! `cargo bench -p s3engine-benches --bench service [-- [rates|fair] ROUNDS SECONDS]`
//!
//! A simulator, a service and workers are processes of their own (this program again). Rounds are interleaved and
//! compared pair by pair. Processor time is that of the workers and, where it is used, the service; not the
//! simulator's.

mod compare;
mod fair;
mod place;
mod process;
mod roles;

use std::time::Duration;

use compare::{Crew, compare};
use place::Place;

fn main() {
    if let Ok(role) = std::env::var("S3ENGINE_BENCH_ROLE") {
        return roles::run(&role);
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    let has = |name: &str| args.iter().any(|arg| arg == name);
    let mut numbers = args.iter().filter_map(|arg| arg.parse::<u64>().ok());
    let (rounds, time) = match has("--test") {
        true => (1, Duration::from_millis(50)),
        false => {
            let rounds = numbers.next().unwrap_or(9) as usize;
            (rounds, Duration::from_secs(numbers.next().unwrap_or(1)))
        }
    };
    if !has("fair") {
        rates((rounds, time));
    }
    if !has("rates") {
        fair::run((rounds, time));
    }
}

fn rates(times: (usize, Duration)) {
    let crew = |name, count, kind| Crew {
        name,
        count,
        kind,
        memory: "host",
    };
    println!(
        "{:<12} {:<12} {:>7} {:>12}",
        "policy", "what", "GB/s", "CPU-s/GiB"
    );
    for policy in ["http", "require-rdma"] {
        let mut place = Place::new(2);
        let pair = [crew("embedded", 1, "embedded"), crew("served", 1, "served")];
        compare(&mut place, [policy; 2], pair, times);
        let pair = [
            crew("1 process", 1, "served"),
            crew("8 processes", 8, "served"),
        ];
        compare(&mut place, [policy; 2], pair, times);
        println!("service: {}", place.stats());
    }
}
