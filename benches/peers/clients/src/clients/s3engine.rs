//! s3engine: queues that are kept full by a thread each, into buffers that are leased once.

use std::collections::VecDeque;
use std::thread;
use std::time::Duration;

use s3engine::{
    Buffer, Credentials, Driver, Endpoint, Engine, Get, Memory, Network, PoolOptions, Queue,
    QueueOptions, Rdma, TlsOptions,
};

use crate::window::{Measured, Turns};
use crate::work::{BUCKET, Result, Work};

pub fn run(work: &Work, driver: Option<Driver>) -> Result<Measured> {
    let shape = &work.shape;
    let bytes = (shape.each() * shape.places()) as u64;
    let engine = engine(work, bytes, driver)?;
    let queues = shape.threads.min(shape.in_flight);
    // Before the clock starts.
    let loads = (0..queues).map(|nth| Load::new(&engine, work, (nth, queues)));
    let loads = loads.collect::<Result<Vec<_>>>()?;
    let turns = Turns::default();
    thread::scope(|scope| {
        let threads: Vec<_> = loads
            .into_iter()
            .map(|load| scope.spawn(|| load.keep_full(work, &turns)))
            .collect();
        let measured = turns.lead(shape.window(), thread::sleep);
        for thread in threads {
            thread.join().map_err(|_| "a thread panicked")??;
        }
        Ok(measured)
    })
}

fn engine(work: &Work, bytes: u64, driver: Option<Driver>) -> Result<Engine> {
    let endpoint = Endpoint::parse(&work.url())?;
    let slab = bytes.clamp(2 << 20, 1 << 30).next_power_of_two();
    let mut builder = Engine::builder(endpoint)
        .credentials(Credentials::new("id", "secret", None)?)
        .rdma(Rdma::Off)
        .threads(work.shape.threads)
        .pool(PoolOptions {
            slab_bytes: slab,
            max_bytes: Some(2 * slab),
            ..PoolOptions::default()
        });
    if let Some(driver) = driver {
        builder = builder.driver(driver);
    }
    if let Some(ca) = &work.ca {
        let tls = TlsOptions {
            ca_bundle: Some(ca.clone()),
            ..TlsOptions::default()
        };
        builder = builder.network(Network {
            tls,
            ..Network::default()
        });
    }
    Ok(builder.build()?)
}

/// One thread's queue, and its share of the places to write to.
struct Load {
    queue: Queue,
    buffers: VecDeque<Buffer>,
    in_flight: usize,
}

impl Load {
    fn new(engine: &Engine, work: &Work, (nth, of): (usize, usize)) -> Result<Load> {
        let share = |all: usize| all / of + usize::from(nth < all % of);
        let in_flight = share(work.shape.in_flight);
        let each = work.shape.each() as u64;
        let buffers = engine
            .pool()
            .alloc_many(share(work.shape.places()), each, Memory::Host)?;
        Ok(Load {
            queue: engine.queue(QueueOptions {
                capacity: in_flight,
            }),
            buffers: buffers.into(),
            in_flight,
        })
    }

    fn keep_full(mut self, work: &Work, turns: &Turns) -> Result<()> {
        let (shape, key) = (&work.shape, work.key());
        let mut under_way = 0;
        loop {
            while under_way < self.in_flight
                && let Some(number) = turns.next()
            {
                let mut get = Get::new(BUCKET, key.as_str());
                if let Some((start, end)) = shape.range(number % shape.places()) {
                    get = get.range(start as u64, (end - start) as u64);
                }
                // The one that has rested longest.
                let buffer = self.buffers.pop_front();
                self.queue
                    .push(get.into(buffer.ok_or("fewer buffers than requests")?))?;
                under_way += 1;
            }
            self.queue.submit();
            if under_way == 0 {
                return Ok(());
            }
            // A thread that is woken for each one costs more than the GET.
            let some = (self.in_flight / 4).clamp(1, under_way);
            self.queue.wait(some, Duration::from_secs(30))?;
            for completion in self.queue.completions() {
                if let Some(error) = completion.error() {
                    return Err(format!("{error:#}").into());
                }
                if completion.bytes() != shape.each() as u64 {
                    return Err(format!("{} bytes came", completion.bytes()).into());
                }
                let buffer = completion.into_buffer().ok_or("no buffer came back")?;
                self.buffers.push_back(buffer);
                turns.did();
                under_way -= 1;
            }
        }
    }
}
