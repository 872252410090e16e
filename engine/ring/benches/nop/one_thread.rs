//! Both ends in one thread: what the instructions cost.
//!
//! The peers move entries only: no checks, no credit, no wake-up. `ring` is this crate's two bare rings (what
//! compares with them), `queue` the client and service on top. `rtrb + credit` does on rtrb what a queue must beyond
//! moving entries, but for the bells: request numbers that bound what is in flight, and each side's checks of the
//! other.

use std::hint::black_box;
use std::time::Instant;

use crossbeam_queue::ArrayQueue;
use s3engine_ring::{
    Client, Destination, Detail, Ended, GetRequest, Layout, Object, Outcome, Regions, Service,
    Taken, bench::Bare,
};

use super::{Contender, Cqe, ENTRIES, Sqe, cqe, sqe};

pub fn contenders() -> Vec<Contender> {
    vec![
        batches("rtrb", rtrb_single()),
        batches("rtrb chunks", rtrb_chunks()),
        batches("rtrb + credit", rtrb_credit()),
        batches("crossbeam", crossbeam()),
        batches("ring", bare()),
        batches("queue", queue(push_nop)),
    ]
}

pub fn nop_and_get() -> Vec<Contender> {
    vec![
        batches("queue, NOP", queue(push_nop)),
        batches("queue, GET", queue(push_get)),
    ]
}

fn batches(name: &'static str, mut one: impl FnMut(usize) + 'static) -> Contender {
    let many = move |batch, batches| {
        let began = Instant::now();
        for _ in 0..batches {
            one(batch);
        }
        began.elapsed()
    };
    (name, Box::new(many))
}

fn queue(push: impl Fn(&mut Client, u64)) -> impl FnMut(usize) {
    let layout = Layout::new(ENTRIES as u32).unwrap();
    let (mut client, mut service) = Regions::heap(layout).ends(layout, 0).unwrap();
    move |batch| {
        for n in 0..batch {
            push(&mut client, n as u64);
        }
        black_box(client.submit(0));
        serve(&mut service).unwrap();
        black_box(service.publish());
        while let Some(reaped) = client.reap().unwrap() {
            black_box(reaped.cqe);
            if let Some(detail) = reaped.detail() {
                black_box(detail);
            }
        }
    }
}

fn push_nop(client: &mut Client, n: u64) {
    client.push_nop(n).unwrap();
}

fn push_get(client: &mut Client, n: u64) {
    let get = GetRequest {
        object: Object::Named {
            bucket: "training-data",
            key: "shards/part-00042/sample-0001234567.npy",
            etag: None,
            version: None,
        },
        options: None,
        range: None,
        destination: Destination::LeaseHost,
        policy: None,
        deadline_ms: 0,
    };
    client.push_get(&get, n).unwrap();
}

fn serve(service: &mut Service) -> Result<(), Ended> {
    loop {
        match service.take()? {
            Some(Taken::Nop(ticket)) => service.complete(ticket, &Outcome::default(), None)?,
            Some(Taken::Get(ticket, get)) => {
                black_box(get);
                let detail = Detail::default();
                service.complete(ticket, &Outcome::default(), Some(&detail))?;
            }
            Some(Taken::Cancel(_) | Taken::Refused(_)) => panic!("not pushed"),
            None => return Ok(()),
        }
    }
}

fn bare() -> impl FnMut(usize) {
    let mut submissions = Bare::<8>::new(ENTRIES as u32);
    let mut completions = Bare::<4>::new(2 * ENTRIES as u32);
    move |batch| {
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
    }
}

fn rtrb_single() -> impl FnMut(usize) {
    let (mut sq_in, mut sq_out) = rtrb::RingBuffer::<Sqe>::new(ENTRIES);
    let (mut cq_in, mut cq_out) = rtrb::RingBuffer::<Cqe>::new(2 * ENTRIES);
    move |batch| {
        for n in 0..batch {
            sq_in.push(sqe(n as u64)).unwrap();
        }
        while let Ok(entry) = sq_out.pop() {
            cq_in.push(cqe(entry)).unwrap();
        }
        while let Ok(entry) = cq_out.pop() {
            black_box(entry);
        }
    }
}

fn rtrb_chunks() -> impl FnMut(usize) {
    let (mut sq_in, mut sq_out) = rtrb::RingBuffer::<Sqe>::new(ENTRIES);
    let (mut cq_in, mut cq_out) = rtrb::RingBuffer::<Cqe>::new(2 * ENTRIES);
    move |batch| {
        let chunk = sq_in.write_chunk_uninit(batch).unwrap();
        chunk.fill_from_iter((0..batch).map(|n| sqe(n as u64)));
        let taken = sq_out.read_chunk(batch).unwrap();
        let chunk = cq_in.write_chunk_uninit(batch).unwrap();
        chunk.fill_from_iter(taken.into_iter().map(cqe));
        for entry in cq_out.read_chunk(batch).unwrap() {
            black_box(entry);
        }
    }
}

fn rtrb_credit() -> impl FnMut(usize) {
    let (mut sq_in, mut sq_out) = rtrb::RingBuffer::<Sqe>::new(ENTRIES);
    let (mut cq_in, mut cq_out) = rtrb::RingBuffer::<Cqe>::new(2 * ENTRIES);
    let mut free: Vec<usize> = (0..ENTRIES).rev().collect();
    let mut at_client = vec![false; ENTRIES];
    let mut at_service = vec![false; ENTRIES];
    let (mut pushed, mut taken) = (0u32, 0u32);
    move |batch| {
        for n in 0..batch {
            let entry = free.pop().expect("credit");
            let first = u64::from(pushed) << 32;
            let sqe = [first, n as u64, entry as u64, 0, 0, 0, 0, 0];
            sq_in.push(sqe).unwrap();
            at_client[entry] = true;
            pushed = pushed.wrapping_add(1);
        }
        while let Ok(sqe) = sq_out.pop() {
            let [first, _, entry, rest @ ..] = sqe;
            assert!(first == u64::from(taken) << 32, "form and sequence");
            assert!(rest.iter().all(|word| *word == 0), "unused fields");
            let state = &mut at_service[entry as usize];
            assert!(!std::mem::replace(state, true), "in flight already");
            taken = taken.wrapping_add(1);
            at_service[entry as usize] = false;
            cq_in.push(cqe(sqe)).unwrap();
        }
        while let Ok(cqe) = cq_out.pop() {
            let entry = cqe[2] as usize;
            let state = &mut at_client[entry];
            assert!(std::mem::replace(state, false), "not in flight");
            free.push(entry);
            black_box(cqe);
        }
    }
}

fn crossbeam() -> impl FnMut(usize) {
    let submissions = ArrayQueue::<Sqe>::new(ENTRIES);
    let completions = ArrayQueue::<Cqe>::new(2 * ENTRIES);
    move |batch| {
        for n in 0..batch {
            submissions.push(sqe(n as u64)).unwrap();
        }
        while let Some(entry) = submissions.pop() {
            completions.push(cqe(entry)).unwrap();
        }
        while let Some(entry) = completions.pop() {
            black_box(entry);
        }
    }
}
