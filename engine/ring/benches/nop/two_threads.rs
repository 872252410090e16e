//! A client that submits a batch and takes its completions before the next, and a service in another thread.
//!
//! Spinning both look again and again; sleeping each waits for the bell, which costs a system call on either side.
//! The peer that sleeps is a pair of the standard library's bounded channels.

use std::hint::{black_box, spin_loop};
use std::io;
use std::sync::mpsc::sync_channel;
use std::sync::{Barrier, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_queue::ArrayQueue;
use s3engine_ring::{Bell, Client, Layout, Outcome, Regions, Service, Taken};

use super::{Contender, Cqe, ENTRIES, Sqe, cqe, sqe};

/// No wait is longer, whatever goes wrong.
const BOUND: Duration = Duration::from_secs(20);

pub fn contenders() -> Vec<Contender> {
    vec![
        ("rtrb, spinning", Box::new(rtrb)),
        ("crossbeam, spinning", Box::new(crossbeam)),
        ("queue, spinning", Box::new(queue_spinning)),
        ("queue, sleeping", Box::new(queue_sleeping)),
        ("channels, sleeping", Box::new(channels)),
    ]
}

/// Runs both sides from one start, and says how long the client took.
fn timed(client: impl FnOnce(), service: impl FnOnce() + Send) -> Duration {
    let start = Barrier::new(2);
    thread::scope(|scope| {
        scope.spawn(|| {
            start.wait();
            service();
        });
        start.wait();
        let began = Instant::now();
        client();
        began.elapsed()
    })
}

/// Looks until there is something; gives way now and then, should there be one processor only.
fn spin<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        for _ in 0..200 {
            if let Some(found) = look() {
                return found;
            }
            spin_loop();
        }
        thread::yield_now();
        assert!(began.elapsed() < BOUND, "the other side is gone");
    }
}

#[derive(Default)]
struct CondBell(Mutex<bool>, Condvar);

impl Bell for CondBell {
    fn ring(&self) -> io::Result<()> {
        *self.0.lock().unwrap() = true;
        self.1.notify_one();
        Ok(())
    }

    fn wait(&self, timeout: Duration) -> io::Result<()> {
        let rung = self.0.lock().unwrap();
        let (mut rung, _) = self
            .1
            .wait_timeout_while(rung, timeout, |rung| !*rung)
            .unwrap();
        *rung = false;
        Ok(())
    }
}

fn ends() -> (Client, Service) {
    let layout = Layout::new(ENTRIES as u32).unwrap();
    Regions::heap(layout).ends(layout, 0).unwrap()
}

/// Completes what there is. Returns how many that were.
fn serve(service: &mut Service) -> usize {
    let mut served = 0;
    while let Some(taken) = service.take().unwrap() {
        let Taken::Nop(ticket) = taken else {
            panic!("not pushed: {taken:?}");
        };
        service.complete(ticket, &Outcome::default(), None).unwrap();
        served += 1;
    }
    served
}

fn reap(client: &mut Client) -> usize {
    let mut reaped = 0;
    while let Some(completion) = client.reap().unwrap() {
        black_box(completion.cqe);
        reaped += 1;
    }
    reaped
}

fn queue_spinning(batch: usize, batches: usize) -> Duration {
    let (mut client, mut service) = ends();
    let ask = move || {
        for _ in 0..batches {
            for n in 0..batch {
                client.push_nop(n as u64).unwrap();
            }
            let _ = client.submit(0);
            let mut reaped = 0;
            while reaped < batch {
                reaped += spin(|| Some(reap(&mut client)).filter(|count| *count > 0));
            }
        }
    };
    let answer = move || {
        let mut served = 0;
        while served < batch * batches {
            served += spin(|| Some(serve(&mut service)).filter(|count| *count > 0));
            let _ = service.publish();
        }
    };
    timed(ask, answer)
}

fn queue_sleeping(batch: usize, batches: usize) -> Duration {
    let (mut client, mut service) = ends();
    let (to_client, to_service) = (CondBell::default(), CondBell::default());
    let ask = || {
        for _ in 0..batches {
            for n in 0..batch {
                client.push_nop(n as u64).unwrap();
            }
            if client.submit(0) {
                to_service.ring().unwrap();
            }
            let ready = client.wait(batch as u32, BOUND, &to_client).unwrap();
            assert_eq!(ready as usize, batch, "a wake was lost");
            reap(&mut client);
        }
    };
    let answer = || {
        let mut served = 0;
        while served < batch * batches {
            if service.park(1).unwrap() {
                to_service.wait(BOUND).unwrap();
            }
            served += serve(&mut service);
            if service.publish() {
                to_client.ring().unwrap();
            }
        }
    };
    timed(ask, answer)
}

fn rtrb(batch: usize, batches: usize) -> Duration {
    let (mut sq_in, mut sq_out) = rtrb::RingBuffer::<Sqe>::new(ENTRIES);
    let (mut cq_in, mut cq_out) = rtrb::RingBuffer::<Cqe>::new(2 * ENTRIES);
    let ask = move || {
        for _ in 0..batches {
            for n in 0..batch {
                sq_in.push(sqe(n as u64)).unwrap();
            }
            for _ in 0..batch {
                black_box(spin(|| cq_out.pop().ok()));
            }
        }
    };
    let answer = move || {
        for _ in 0..batch * batches {
            cq_in.push(cqe(spin(|| sq_out.pop().ok()))).unwrap();
        }
    };
    timed(ask, answer)
}

fn crossbeam(batch: usize, batches: usize) -> Duration {
    let submissions = ArrayQueue::<Sqe>::new(ENTRIES);
    let completions = ArrayQueue::<Cqe>::new(2 * ENTRIES);
    let ask = || {
        for _ in 0..batches {
            for n in 0..batch {
                submissions.push(sqe(n as u64)).unwrap();
            }
            for _ in 0..batch {
                black_box(spin(|| completions.pop()));
            }
        }
    };
    let answer = || {
        for _ in 0..batch * batches {
            completions.push(cqe(spin(|| submissions.pop()))).unwrap();
        }
    };
    timed(ask, answer)
}

fn channels(batch: usize, batches: usize) -> Duration {
    let (sq_in, sq_out) = sync_channel::<Sqe>(ENTRIES);
    let (cq_in, cq_out) = sync_channel::<Cqe>(2 * ENTRIES);
    let ask = move || {
        for _ in 0..batches {
            for n in 0..batch {
                sq_in.send(sqe(n as u64)).unwrap();
            }
            for _ in 0..batch {
                black_box(cq_out.recv_timeout(BOUND).unwrap());
            }
        }
    };
    let answer = move || {
        for _ in 0..batch * batches {
            cq_in
                .send(cqe(sq_out.recv_timeout(BOUND).unwrap()))
                .unwrap();
        }
    };
    timed(ask, answer)
}
