//! What a client with small GETs notices of one that asks for a lot.

use std::time::Duration;

use crate::place::{Place, median};
use crate::process::Process;

/// Latencies of a round, in milliseconds: the middle one, and the one that 99 of 100 do not pass.
#[derive(Clone, Copy)]
struct Shown {
    p50: f64,
    p99: f64,
}

/// One round of the client with small GETs, one at a time.
fn round(small: &mut Process, time: Duration) -> Shown {
    small.say(&time.as_millis().to_string());
    let [p50, p99] = small.numbers()[..] else {
        panic!("two latencies")
    };
    Shown { p50, p99 }
}

/// What the other client asks for: as fast as these processors bring it, or as a storage system of a limited rate does.
const GREEDY: [&str; 2] = ["64MiB-fast", "64MiB-paced"];

/// Alone, and beside 256 GETs of 64 MiB of each kind, in turn.
pub(super) fn run((rounds, time): (usize, Duration)) {
    println!(
        "\nGETs of 64 KiB, one at a time; ratios to the same without another client (medians of {rounds} rounds)\n\
         {:<12} {:<12} {:>8} {:>8} {:>8} {:>8}",
        "policy", "beside", "p50 ms", "p99 ms", "p50", "p99"
    );
    for policy in ["http", "require-rdma"] {
        let place = Place::new(8);
        let start = |role| {
            let mut args = vec![policy];
            args.extend(place.args());
            let mut client = Process::new(role, &args);
            assert_eq!(client.line(), "ready");
            client
        };
        let (mut small, mut greedy) = (start("small"), start("greedy"));
        let mut shown: [Vec<Shown>; 3] = Default::default();
        for _ in 0..rounds {
            shown[0].push(round(&mut small, time));
            for (nth, key) in GREEDY.into_iter().enumerate() {
                greedy.say(key);
                assert_eq!(greedy.line(), "under way");
                shown[nth + 1].push(round(&mut small, time));
                greedy.say("stop");
                assert_eq!(greedy.line(), "stopped");
            }
        }
        for (nth, name) in ["nobody"].into_iter().chain(GREEDY).enumerate() {
            let of = |pick: fn(&Shown) -> f64| median(shown[nth].iter().map(pick).collect());
            let ratio = |pick: fn(&Shown) -> f64| {
                let pairs = shown[nth].iter().zip(&shown[0]);
                median(
                    pairs
                        .map(|(beside, alone)| pick(beside) / pick(alone))
                        .collect(),
                )
            };
            println!(
                "{policy:<12} {name:<12} {:>8.3} {:>8.3} {:>8.2} {:>8.2}",
                of(|shown| shown.p50),
                of(|shown| shown.p99),
                ratio(|shown| shown.p50),
                ratio(|shown| shown.p99),
            );
        }
    }
}
