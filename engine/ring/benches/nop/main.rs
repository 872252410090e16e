//! NOPs per second from submit to complete, beside other queues that carry as many bytes.
//!
//! Rounds of all contenders are interleaved, so that a noisy neighbour hits all. Printed are the median and the best
//! round of each, and the median of its ratios to the first one in the same round.

mod one_thread;
mod two_threads;

use std::time::Duration;

/// Room for this many submissions; for twice as many completions.
const ENTRIES: usize = 1024;

type Sqe = [u64; 8];
type Cqe = [u64; 4];

fn sqe(n: u64) -> Sqe {
    [0, n, n, 0, 0, 0, 0, 0]
}

fn cqe(from: Sqe) -> Cqe {
    [from[1], 0, from[2], 0]
}

/// A name, and what says how long so many batches of so many NOPs take.
type Contender = (&'static str, Box<dyn FnMut(usize, usize) -> Duration>);

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn compare(contenders: &mut [Contender], rounds: usize, batch: usize, batches: usize) {
    let mut times = vec![Vec::new(); contenders.len()];
    for round in 0..rounds + 1 {
        for (times, (_, run)) in times.iter_mut().zip(contenders.iter_mut()) {
            let nanos = run(batch, batches).as_nanos() as f64;
            // The first round touches the memory.
            if round > 0 {
                times.push(nanos / (batches * batch) as f64);
            }
        }
    }
    println!(
        "{:>6} {:>20} {:>8} {:>9} {:>9} {:>8}",
        "batch", "what", "M NOP/s", "ns/NOP", "best", "ratio"
    );
    for (own, (name, _)) in times.iter().zip(contenders) {
        let ratios = own.iter().zip(&times[0]).map(|(own, first)| own / first);
        let (ratio, time) = (median(ratios.collect()), median(own.clone()));
        let best = own.iter().copied().fold(f64::INFINITY, f64::min);
        let rate = 1e3 / time;
        println!("{batch:>6} {name:>20} {rate:>8.1} {time:>9.1} {best:>9.1} {ratio:>8.2}");
    }
}

fn main() {
    println!("both ends in one thread");
    for batch in [1, 16, 256] {
        compare(&mut one_thread::contenders(), 401, batch, 16_384 / batch);
    }
    println!("\nthe same, and a GET with its object's name and a detail record");
    compare(&mut one_thread::nop_and_get(), 401, 256, 2);
    println!("\nclient and service in a thread each");
    for (batch, batches) in [(1, 300), (16, 100), (256, 30)] {
        compare(&mut two_threads::contenders(), 21, batch, batches);
    }
}
