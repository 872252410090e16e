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
mod process;
mod roles;

use std::path::Path;
use std::time::Duration;

use compare::{Crew, compare};
use process::Process;

/// A simulator, and a service in front of it.
struct Place {
    /// URL, access key, secret key, and the folder of the loopback fabric.
    sim_args: [String; 4],
    socket: String,
    service: Process,
    _sim: Process,
    _folder: tempfile::TempDir,
}

impl Place {
    /// A simulator of so many threads.
    fn new(threads: usize) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let in_folder = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
        let fabric = in_folder("loopback");
        let mut sim = Process::new("sim", &[&fabric, &threads.to_string()]);
        let sim_args = [sim.line(), sim.line(), sim.line(), fabric];
        let socket = in_folder("service.sock");
        let mut args = vec![&*socket];
        args.extend(sim_args.iter().map(String::as_str));
        let mut service = Process::new("service", &args);
        assert_eq!(service.line(), "ready");
        assert!(Path::new(&socket).exists());
        Self {
            sim_args,
            socket,
            service,
            _sim: sim,
            _folder: folder,
        }
    }

    /// How workers are told of it.
    fn args(&self) -> impl Iterator<Item = &str> {
        let sim = self.sim_args.iter().map(String::as_str);
        std::iter::once(&*self.socket).chain(sim)
    }
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

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
    let crew = |name, count, kind| Crew { name, count, kind };
    println!(
        "{:<12} {:<12} {:>7} {:>12}",
        "policy", "what", "GB/s", "CPU-s/GiB"
    );
    for policy in ["http", "require-rdma"] {
        let mut place = Place::new(2);
        let pair = [crew("embedded", 1, "embedded"), crew("served", 1, "served")];
        compare(&mut place, policy, pair, times);
        let pair = [
            crew("1 process", 1, "served"),
            crew("8 processes", 8, "served"),
        ];
        compare(&mut place, policy, pair, times);
    }
}
