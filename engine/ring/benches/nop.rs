//! NOPs per second from submit to complete, in one thread, beside other queues that carry as many bytes.
//!
//! Interleaved rounds, the median of each. The peers move entries only: no checks, no credit, no wake-up. `ring`
//! is this module's two bare rings (what compares with them), `queue` the client and service on top.

use std::hint::black_box;
use std::time::Instant;

use crossbeam_queue::ArrayQueue;
use s3engine_ring::{Layout, Outcome, Regions, Taken, bench::Bare};

const ENTRIES: usize = 1024;
const ROUNDS: usize = 15;
const PER_ROUND: usize = 400_000;

type Sqe = [u64; 8];
type Cqe = [u64; 4];
/// A name, and what takes a batch size and gives nanoseconds per NOP.
type Contender = (&'static str, fn(usize) -> f64);

fn sqe(n: u64) -> Sqe {
    [0, n, n, 0, 0, 0, 0, 0]
}

fn cqe(from: Sqe) -> Cqe {
    [from[1], 0, from[2], 0]
}

/// Nanoseconds per NOP.
fn timed(batch: usize, mut run: impl FnMut(usize)) -> f64 {
    let began = Instant::now();
    for _ in 0..PER_ROUND / batch {
        run(batch);
    }
    began.elapsed().as_nanos() as f64 / (PER_ROUND / batch * batch) as f64
}

fn queue(batch: usize) -> f64 {
    let layout = Layout::new(ENTRIES as u32).unwrap();
    let (mut client, mut service) = Regions::heap(layout).ends(layout, 0).unwrap();
    timed(batch, |batch| {
        for n in 0..batch {
            client.push_nop(n as u64).unwrap();
        }
        black_box(client.submit(0));
        while let Some(Taken::Nop(ticket)) = service.take().unwrap() {
            service.complete(ticket, &Outcome::default(), None).unwrap();
        }
        black_box(service.publish());
        while let Some(reaped) = client.reap().unwrap() {
            black_box(reaped.cqe);
        }
    })
}

fn bare(batch: usize) -> f64 {
    let mut submissions = Bare::<8>::new(ENTRIES as u32);
    let mut completions = Bare::<4>::new(2 * ENTRIES as u32);
    timed(batch, |batch| {
        for n in 0..batch {
            submissions.push(&sqe(n as u64));
        }
        black_box(submissions.publish());
        while let Some(entry) = submissions.pop() {
            completions.push(&cqe(entry));
        }
        submissions.release();
        black_box(completions.publish());
        while let Some(entry) = completions.pop() {
            black_box(entry);
        }
        completions.release();
    })
}

fn rtrb_single(batch: usize) -> f64 {
    let (mut sq_in, mut sq_out) = rtrb::RingBuffer::<Sqe>::new(ENTRIES);
    let (mut cq_in, mut cq_out) = rtrb::RingBuffer::<Cqe>::new(2 * ENTRIES);
    timed(batch, |batch| {
        for n in 0..batch {
            sq_in.push(sqe(n as u64)).unwrap();
        }
        while let Ok(entry) = sq_out.pop() {
            cq_in.push(cqe(entry)).unwrap();
        }
        while let Ok(entry) = cq_out.pop() {
            black_box(entry);
        }
    })
}

fn rtrb_chunks(batch: usize) -> f64 {
    let (mut sq_in, mut sq_out) = rtrb::RingBuffer::<Sqe>::new(ENTRIES);
    let (mut cq_in, mut cq_out) = rtrb::RingBuffer::<Cqe>::new(2 * ENTRIES);
    timed(batch, |batch| {
        let chunk = sq_in.write_chunk_uninit(batch).unwrap();
        chunk.fill_from_iter((0..batch).map(|n| sqe(n as u64)));
        let taken = sq_out.read_chunk(batch).unwrap();
        let chunk = cq_in.write_chunk_uninit(batch).unwrap();
        chunk.fill_from_iter(taken.into_iter().map(cqe));
        for entry in cq_out.read_chunk(batch).unwrap() {
            black_box(entry);
        }
    })
}

fn crossbeam(batch: usize) -> f64 {
    let submissions = ArrayQueue::<Sqe>::new(ENTRIES);
    let completions = ArrayQueue::<Cqe>::new(2 * ENTRIES);
    timed(batch, |batch| {
        for n in 0..batch {
            submissions.push(sqe(n as u64)).unwrap();
        }
        while let Some(entry) = submissions.pop() {
            completions.push(cqe(entry)).unwrap();
        }
        while let Some(entry) = completions.pop() {
            black_box(entry);
        }
    })
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() {
    let contenders: [Contender; 5] = [
        ("rtrb", rtrb_single),
        ("rtrb chunks", rtrb_chunks),
        ("ring", bare),
        ("queue", queue),
        ("crossbeam", crossbeam),
    ];
    println!(
        "{:>6} {:>11} {:>12} {:>10} {:>14}",
        "batch", "what", "M NOP/s", "ns/NOP", "time vs rtrb"
    );
    for batch in [1, 16, 256] {
        let mut times: Vec<Vec<f64>> = vec![Vec::new(); contenders.len()];
        for _ in 0..ROUNDS {
            for (times, (_, run)) in times.iter_mut().zip(&contenders) {
                times.push(run(batch));
            }
        }
        // Ratios of the same round, so that a noisy neighbour hits both.
        let peer = times[0].clone();
        for (times, (name, _)) in times.into_iter().zip(&contenders) {
            let ratio = median(
                times
                    .iter()
                    .zip(&peer)
                    .map(|(own, peer)| own / peer)
                    .collect(),
            );
            let time = median(times);
            println!(
                "{batch:>6} {name:>11} {:>12.1} {time:>10.2} {ratio:>14.2}",
                1e3 / time
            );
        }
    }
}
