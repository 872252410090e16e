//! The load of one row: threads that keep their queues full, and count what comes back.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use s3engine::{Buffer, Engine, Error, ErrorKind, Flags, Get, Memory, Queue, QueueOptions};

use crate::bench::rows::Row;
use crate::bench::tally::Tally;
use crate::bench::watch::Watch;
use crate::bench::window::{Clock, Phase, Times, Window, lead};
use crate::exit::Failure;

/// How long GETs may go on after the end of the window.
const DRAIN: Duration = Duration::from_secs(30);
/// A thread that saw as many failures one after another gives up.
const HOPELESS: u32 = 16;

/// Runs a row's load; its threads have their buffers of each kind of memory in turn. The buffers are leased once, before the clock starts.
pub(crate) fn run(
    engine: &Engine,
    (bucket, keys): (&str, &[Arc<str>]),
    row: Row,
    memories: &[Memory],
    times: Times,
    watch: Watch<'_>,
) -> Result<(Window, Tally), Failure> {
    let mut tally = new_tally()?;
    let mut loads = Vec::with_capacity(row.threads);
    let (clock, next) = (Clock::default(), AtomicUsize::new(0));
    for &memory in memories.iter().cycle().take(row.threads) {
        let buffers = engine.pool().alloc_many(row.in_flight, row.size.0, memory);
        loads.push(Load {
            engine,
            bucket: bucket.into(),
            keys,
            row,
            memory,
            clock: &clock,
            next: &next,
            queue: engine.queue(QueueOptions {
                capacity: row.in_flight,
            }),
            buffers: buffers.map_err(|error| Failure::Build(error.into()))?,
            tally: new_tally()?,
            failures: 0,
        });
    }
    let window = thread::scope(|scope| {
        let threads: Vec<_> = loads
            .into_iter()
            .map(|load| scope.spawn(move || load.run()))
            .collect();
        let window = lead(&clock, times, watch)?;
        for thread in threads {
            let counted = thread.join();
            let lost = |_| Failure::Other("a thread of the load panicked".into());
            tally.merge(counted.map_err(lost)?);
        }
        Ok::<_, Failure>(window)
    })?;
    Ok((window, tally))
}

fn new_tally() -> Result<Tally, Failure> {
    Tally::new().map_err(|error| Failure::Other(error.to_string()))
}

struct Load<'a> {
    engine: &'a Engine,
    bucket: Arc<str>,
    keys: &'a [Arc<str>],
    row: Row,
    memory: Memory,
    clock: &'a Clock,
    /// The next object, for all threads together.
    next: &'a AtomicUsize,
    queue: Queue,
    buffers: Vec<Buffer>,
    tally: Tally,
    /// Failures since the last success.
    failures: u32,
}

impl Load<'_> {
    fn run(mut self) -> Tally {
        let mut stopped = None;
        loop {
            let phase = self.clock.phase();
            if phase == Phase::Stop {
                stopped.get_or_insert_with(Instant::now);
            } else if self.failures < HOPELESS {
                self.refill();
            }
            if self.queue.outstanding() == 0 {
                return self.tally;
            }
            // Without a completion in time: look at the clock, and wait on.
            let _ = self.queue.wait(1, Duration::from_millis(100));
            self.take();
            if stopped.is_some_and(|at| at.elapsed() > DRAIN) {
                let error = Error::new("GET", &*self.bucket, "", ErrorKind::Deadline);
                self.tally.fail(error);
                return self.tally;
            }
        }
    }

    /// A GET into every free buffer.
    fn refill(&mut self) {
        while let Some(buffer) = self.buffers.pop() {
            let nth = self.next.fetch_add(1, Ordering::Relaxed) % self.keys.len();
            let get = Get::new(Arc::clone(&self.bucket), Arc::clone(&self.keys[nth]));
            if let Err(full) = self.queue.push(get.into(buffer).policy(self.row.policy)) {
                // Not more buffers than the queue holds, so this does not happen; the buffer goes with the GET.
                drop(full);
                break;
            }
        }
        self.queue.submit();
    }

    fn take(&mut self) {
        for completion in self.queue.completions() {
            if completion.flags().contains(Flags::MORE) {
                continue;
            }
            let in_window = self.clock.phase() == Phase::Window;
            let fine = self.tally.add(&completion, self.row.size.0, in_window);
            self.failures = if fine { 0 } else { self.failures + 1 };
            // A failure in doubt about late writes keeps the buffer; the next one is leased.
            let buffer = completion.into_buffer();
            let lease = || {
                self.engine
                    .pool()
                    .try_alloc(self.row.size.0, self.memory)
                    .ok()
            };
            self.buffers.extend(buffer.or_else(lease));
        }
    }
}
