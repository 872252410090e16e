//! Rates and processor time of two ways to do the same work.

use std::time::Duration;

use crate::place::{Place, median};
use crate::process::Process;

/// GETs in flight, over all workers.
const IN_FLIGHT: usize = 8;

/// How long workers run before each round.
const WARM: Duration = Duration::from_millis(200);

/// What one round showed.
#[derive(Clone, Copy)]
pub(super) struct Shown {
    pub(super) gb_per_s: f64,
    pub(super) cpu_s_per_gib: f64,
}

/// Some workers that share the work.
#[derive(Clone, Copy)]
pub(super) struct Crew {
    pub(super) name: &'static str,
    pub(super) count: usize,
    pub(super) kind: &'static str,
    /// Where the bytes go: `host`, `cuda:N`, or `cuda:spread` for the n-th worker's on the n-th device.
    pub(super) memory: &'static str,
}

impl Crew {
    /// One round by new processes, so that where their memory happens to lie differs from round to round.
    pub(super) fn round(self, place: &mut Place, policy: &str, time: Duration) -> Shown {
        let each = (IN_FLIGHT / self.count).to_string();
        let start = |nth: usize| {
            let memory = self.memory.replace("spread", &nth.to_string());
            let mut args = vec![self.kind, policy, &*memory, &*each];
            args.extend(place.args());
            let mut worker = Process::new("worker", &args);
            assert_eq!(worker.line(), "ready");
            worker
        };
        let mut workers: Vec<Process> = (0..self.count).map(start).collect();
        let mut work = |time: Duration| {
            for worker in &mut workers {
                worker.say(&time.as_millis().to_string());
            }
            let mut sums = [0.0; 3];
            for worker in &mut workers {
                let [bytes, seconds, cpu] = worker.numbers()[..] else {
                    panic!("bytes, seconds, processor time")
                };
                let of_one = [bytes / seconds, bytes, cpu];
                sums.iter_mut()
                    .zip(of_one)
                    .for_each(|(sum, one)| *sum += one);
            }
            sums
        };
        work(WARM.min(time));
        let before = place.service.cpu();
        let [rate, bytes, mut cpu] = work(time);
        if self.kind == "served" {
            cpu += place.service.cpu() - before;
        }
        Shown {
            gb_per_s: rate / 1e9,
            cpu_s_per_gib: cpu / (bytes / f64::from(1 << 30)),
        }
    }
}

/// Both in turn, each by its policy, and the medians of each pair's ratios.
pub(super) fn compare(
    place: &mut Place,
    policies: [&str; 2],
    crews: [Crew; 2],
    (rounds, time): (usize, Duration),
) {
    let mut shown: [Vec<Shown>; 2] = [Vec::new(), Vec::new()];
    for round in 0..rounds {
        // Whoever goes first changes from pair to pair.
        for nth in [round % 2, 1 - round % 2] {
            shown[nth].push(crews[nth].round(place, policies[nth], time));
        }
    }
    let of = |nth: usize, pick: fn(&Shown) -> f64| median(shown[nth].iter().map(pick).collect());
    let ratio = |pick: fn(&Shown) -> f64| {
        let pairs = shown[1].iter().zip(&shown[0]);
        median(pairs.map(|(one, base)| pick(one) / pick(base)).collect())
    };
    for (nth, crew) in crews.iter().enumerate() {
        let policy = policies[nth];
        println!(
            "{policy:<12} {:<12} {:>7.2} {:>12.4}",
            crew.name,
            of(nth, |shown| shown.gb_per_s),
            of(nth, |shown| shown.cpu_s_per_gib),
        );
    }
    println!(
        "{:<12} {:<12} {:>7.2} {:>12.2}   ({rounds} pairs, medians of their ratios)",
        "",
        "ratio",
        ratio(|shown| shown.gb_per_s),
        ratio(|shown| shown.cpu_s_per_gib),
    );
}
