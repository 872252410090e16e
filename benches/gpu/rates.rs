//! Rates and processor time of GETs into a device.

use std::time::Duration;

use s3engine::cuda::{Gpu, measure_copy};

use crate::compare::{Crew, compare};
use crate::place::{Place, median};

/// Bytes of a GET, and how many are in flight: of the workers, and of the bare copies beside them.
const CHUNK: u64 = 8 << 20;
const DEPTH: usize = 8;

fn crew(name: &'static str, count: usize, kind: &'static str, memory: &'static str) -> Crew {
    Crew {
        name,
        count,
        kind,
        memory,
    }
}

/// The fabric beside bare copies, and HTTP into the device beside HTTP into the host.
pub(crate) fn run(gpu: &'static Gpu, times: (usize, Duration)) {
    println!(
        "{:<12} {:<12} {:>7} {:>12}",
        "policy", "what", "GB/s", "CPU-s/GiB"
    );
    let mut place = Place::new(8);
    for kind in ["embedded", "served"] {
        beside_copies(&mut place, gpu, kind, times);
    }
    for kind in ["embedded", "served"] {
        let pair = [
            crew("into host", 1, kind, "host"),
            crew("into cuda", 1, kind, "cuda:0"),
        ];
        compare(&mut place, ["http"; 2], pair, times);
    }
    println!();
}

/// GETs by the fabric against pinned copies of the same size and depth, in turn.
fn beside_copies(
    place: &mut Place,
    gpu: &'static Gpu,
    kind: &'static str,
    times: (usize, Duration),
) {
    let (rounds, time) = times;
    let worker = crew(kind, 1, kind, "cuda:0");
    let copy = || measure_copy(gpu, CHUNK, DEPTH, time).expect("copies") / 1e9;
    let get = |place: &mut Place| worker.round(place, "require-rdma", time);
    let pairs: Vec<_> = (0..rounds)
        .map(|round| {
            // Whoever goes first changes from pair to pair.
            if round % 2 == 0 {
                let floor = copy();
                (floor, get(place))
            } else {
                let shown = get(place);
                (copy(), shown)
            }
        })
        .collect();
    let of = |pick: &dyn Fn(&(f64, crate::compare::Shown)) -> f64| {
        median(pairs.iter().map(pick).collect())
    };
    println!(
        "{:<12} {:<12} {:>7.2}",
        "",
        "pinned copy",
        of(&|(floor, _)| *floor)
    );
    println!(
        "{:<12} {kind:<12} {:>7.2} {:>12.4}",
        "require-rdma",
        of(&|(_, shown)| shown.gb_per_s),
        of(&|(_, shown)| shown.cpu_s_per_gib)
    );
    println!(
        "{:<12} {:<12} {:>7.2} {:>12}   ({rounds} pairs, median of their ratios)",
        "",
        "ratio",
        of(&|(floor, shown)| shown.gb_per_s / floor),
        ""
    );
}

/// Many client processes against one, and, with several devices, a client on each.
pub(crate) fn scale(gpus: &'static [Gpu], policy: &str, times: (usize, Duration)) {
    println!(
        "{:<12} {:<12} {:>7} {:>12}",
        "policy", "what", "GB/s", "CPU-s/GiB"
    );
    let mut place = Place::new(8);
    for (name, count) in [("2 processes", 2), ("4 processes", 4), ("8 processes", 8)] {
        let pair = [
            crew("1 process", 1, "served", "cuda:0"),
            crew(name, count, "served", "cuda:0"),
        ];
        compare(&mut place, [policy; 2], pair, times);
    }
    println!("service: {}", place.stats());
    if gpus.len() > 1 {
        let pair = [
            crew("1 device", 1, "served", "cuda:0"),
            crew("all devices", gpus.len(), "served", "cuda:spread"),
        ];
        compare(&mut place, [policy; 2], pair, times);
    }
    println!();
}
