//! The threads of a worker: what they read, and what they make of completions.

use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use s3engine::cuda::NotAUuid;
use s3engine::{Buffer, Completion, Engine, Flags, Get, Memory, Policy, Queue, QueueOptions};

use super::message::{Count, Task, Times};
use super::run::Register;

/// Bytes of a small GET: enough to go by RDMA where that is wanted, too few to take time by themselves.
pub(crate) const PROBE: u64 = 64 << 10;

/// Rounds of small GETs of each thread, as many at once as it has in flight: at most so many, and after the first none
/// that begins later than that. Where each waits for a timeout, few say as much.
const PROBES: usize = 16;
const PROBING: Duration = Duration::from_secs(2);

/// How long GETs may go on after the window.
const DRAIN: Duration = Duration::from_secs(120);

/// A thread that saw as many failures one after another ends its work.
const HOPELESS: u32 = 16;

/// An hour in microseconds: longer times count as that.
const LONGEST: u64 = 3_600_000_000;

/// Where in its work a worker is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub(crate) enum Phase {
    Prepare,
    Probe,
    WarmUp,
    Window,
    Stop,
    /// As `Stop`, and what is under way is given up.
    Cut,
}

/// What the threads of a worker share.
#[derive(Default)]
pub(crate) struct Shared {
    phase: AtomicU8,
    changed: (Mutex<()>, Condvar),
    /// The next object.
    next: AtomicUsize,
    /// What the window brought since it was last told.
    pub(crate) bytes: AtomicU64,
    pub(crate) ops: AtomicU64,
    probed: Mutex<Vec<Times>>,
}

impl Shared {
    fn phase(&self) -> Phase {
        const ALL: [Phase; 6] = [
            Phase::Prepare,
            Phase::Probe,
            Phase::WarmUp,
            Phase::Window,
            Phase::Stop,
            Phase::Cut,
        ];
        ALL[usize::from(self.phase.load(Ordering::Acquire)).min(5)]
    }

    pub(crate) fn begin(&self, phase: Phase) {
        let _held = held(&self.changed.0);
        self.phase.store(phase as u8, Ordering::Release);
        self.changed.1.notify_all();
    }

    /// Waits for a phase, or for a later one.
    fn until(&self, phase: Phase) {
        let waits = held(&self.changed.0);
        let _held = self
            .changed
            .1
            .wait_while(waits, |()| self.phase() < phase)
            .unwrap_or_else(PoisonError::into_inner);
    }

    /// How long the small GETs of all threads took.
    pub(crate) fn probed(&self) -> Times {
        let mut all = times();
        for one in held(&self.probed).iter() {
            one.add_to(&mut all);
        }
        Times::from(&all)
    }
}

fn held<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends the work of all threads when it is dropped.
pub(crate) struct EndOnDrop<'a>(pub(crate) &'a Shared);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.begin(Phase::Stop);
    }
}

/// One thread's work.
pub(crate) struct Load<'a> {
    engine: &'a Engine,
    task: &'a Task,
    shared: &'a Shared,
    policy: Policy,
    memory: Memory,
    queue: Queue,
    buffers: Vec<Buffer>,
    seen: Seen,
    /// How long small GETs take from the registration of their memory on, while they are made.
    probed: Option<Histogram<u64>>,
    /// Failures since the last success.
    failures: u32,
}

impl<'a> Load<'a> {
    pub(crate) fn new(
        engine: &'a Engine,
        task: &'a Task,
        nth: usize,
        shared: &'a Shared,
    ) -> Result<Self, String> {
        let policy = task
            .policy
            .parse()
            .map_err(|_| format!("no policy {}", task.policy))?;
        let memory = match &task.gpu {
            Some(uuid) => Memory::Cuda(uuid.parse().map_err(|error: NotAUuid| error.to_string())?),
            None => Memory::Host,
        };
        let buffers = engine.pool().alloc_many(task.in_flight, task.size, memory);
        let of_thread = |error| format!("memory of thread {nth}: {error}");
        Ok(Self {
            engine,
            task,
            shared,
            policy,
            memory,
            queue: engine.queue(QueueOptions {
                capacity: task.in_flight.max(1),
            }),
            buffers: buffers.map_err(of_thread)?,
            seen: Seen::new(),
            probed: None,
            failures: 0,
        })
    }

    /// Reads until the work is over. Each step before the window is told when it has ended.
    pub(crate) fn run(mut self, steps: &Sender<Result<(), String>>) -> Count {
        // Nobody listens any more: the phase is `Stop` then.
        let _ = steps.send(self.fill());
        self.shared.until(Phase::Probe);
        if self.shared.phase() == Phase::Probe {
            let _ = steps.send(self.probe());
        }
        self.shared.until(Phase::WarmUp);
        // Nothing is under way: the server's counters were read.
        (self.seen.count.all_bytes, self.seen.count.all_rdma_bytes) = (0, 0);
        let mut stopped = None;
        loop {
            match self.shared.phase() {
                Phase::Cut => return self.seen.count(),
                Phase::Stop => drop(stopped.get_or_insert_with(Instant::now)),
                _ if self.failures < HOPELESS => self.refill(None),
                _ => {}
            }
            if self.queue.outstanding() == 0 {
                if stopped.is_some() {
                    return self.seen.count();
                }
                // Hopeless: what is counted is told at the end of the window.
                self.shared.until(Phase::Stop);
                continue;
            }
            let _ = self.queue.wait(1, Duration::from_millis(100));
            self.take();
            if stopped.is_some_and(|at| at.elapsed() > DRAIN) {
                self.seen
                    .fail(format!("GETs go on {DRAIN:?} after the window"));
                return self.seen.count();
            }
        }
    }

    /// Fills each buffer once: connections are made, and memory that is registered once is registered now.
    fn fill(&mut self) -> Result<(), String> {
        self.refill(None);
        self.drain()
    }

    fn probe(&mut self) -> Result<(), String> {
        self.probed = Some(times());
        let began = Instant::now();
        for round in 0..PROBES {
            if round > 0 && began.elapsed() > PROBING {
                break;
            }
            self.refill(Some(PROBE.min(self.task.size)));
            self.drain()?;
        }
        let took = self.probed.take().unwrap_or_else(times);
        held(&self.shared.probed).push(Times::from(&took));
        Ok(())
    }

    /// Waits until nothing is under way. The first failure is the error.
    fn drain(&mut self) -> Result<(), String> {
        while self.queue.outstanding() > 0 {
            let _ = self.queue.wait(1, Duration::from_millis(100));
            self.take();
            if self.shared.phase() == Phase::Stop {
                return Err("the work is over".into());
            }
        }
        match &self.seen.first_error {
            // Whoever measures faults wants to see them, not to end by them.
            Some(error) if self.failures >= HOPELESS || self.buffers.is_empty() => {
                Err(error.clone())
            }
            Some(error) if self.seen.ops_ever == 0 => Err(error.clone()),
            _ => Ok(()),
        }
    }

    /// A GET into every free buffer: of the whole object, or of its first bytes.
    fn refill(&mut self, len: Option<u64>) {
        while let Some(buffer) = self.buffers.pop() {
            let nth = self.shared.next.fetch_add(1, Ordering::Relaxed) % self.task.keys.len();
            let get = Get::new(&*self.task.bucket, &*self.task.keys[nth]).policy(self.policy);
            let get = match len {
                Some(len) => get.range(0, len),
                None => get,
            };
            if self.queue.push(get.into(buffer)).is_err() {
                // Not more buffers than the queue holds, so this does not happen.
                break;
            }
        }
        self.queue.submit();
    }

    fn take(&mut self) {
        let done: Vec<Completion> = self.queue.completions().collect();
        for completion in done {
            if completion.flags().contains(Flags::MORE) {
                continue;
            }
            let in_window = self.shared.phase() == Phase::Window;
            let wanted = match self.probed {
                Some(_) => PROBE.min(self.task.size),
                None => self.task.size,
            };
            let fine = self.seen.add(&completion, wanted, in_window);
            if fine {
                self.failures = 0;
            } else {
                self.failures += 1;
            }
            if let (Some(probed), true) = (&mut self.probed, fine) {
                let stages = completion.stages();
                let before = stages.registered.or(stages.queued).unwrap_or_default();
                record(probed, stages.done.saturating_sub(before));
            }
            if in_window && fine {
                self.shared
                    .bytes
                    .fetch_add(completion.bytes(), Ordering::Relaxed);
                self.shared.ops.fetch_add(1, Ordering::Relaxed);
            }
            // A failure in doubt about late writes keeps the buffer; the next one is leased.
            let lease = || {
                self.engine
                    .pool()
                    .try_alloc(self.task.size, self.memory)
                    .ok()
            };
            let buffer = completion.into_buffer().or_else(lease);
            if let (Register::PerOp, Some(buffer)) = (self.task.register, &buffer) {
                let unregistered = self.engine.pool().unregister(buffer.slot().slab);
                if let Err(error) = unregistered {
                    self.seen.fail(error.to_string());
                }
            }
            self.buffers.extend(buffer);
        }
    }
}

/// What a thread makes of completions.
struct Seen {
    count: Count,
    latency: Histogram<u64>,
    first_byte: Histogram<u64>,
    queue: Histogram<u64>,
    registration: Histogram<u64>,
    transfer: Histogram<u64>,
    ops_ever: u64,
    first_error: Option<String>,
}

impl Seen {
    fn new() -> Self {
        Self {
            count: Count::default(),
            latency: times(),
            first_byte: times(),
            queue: times(),
            registration: times(),
            transfer: times(),
            ops_ever: 0,
            first_error: None,
        }
    }

    fn fail(&mut self, error: String) {
        self.count.failed += 1;
        self.first_error.get_or_insert(error);
    }

    /// Counts a completion, which must have brought as many bytes as were wanted. Returns whether it was a success.
    fn add(&mut self, completion: &Completion, wanted: u64, in_window: bool) -> bool {
        let bytes = completion.bytes_by_path();
        self.count.all_bytes += bytes.total();
        self.count.all_rdma_bytes += bytes.rdma;
        if let Some(error) = completion.error() {
            self.fail(error.to_string());
            return false;
        }
        if completion.bytes() < wanted {
            let brought = completion.bytes();
            self.fail(format!("a GET brought {brought} bytes of {wanted}"));
            return false;
        }
        self.ops_ever += 1;
        if in_window {
            self.count_in_window(completion);
        }
        true
    }

    fn count_in_window(&mut self, completion: &Completion) {
        let count = &mut self.count;
        count.ops += 1;
        let bytes = completion.bytes_by_path();
        for (path, bytes) in [
            ("rdma", bytes.rdma),
            ("http", bytes.http),
            ("cache", bytes.cache),
        ] {
            *count.bytes.entry(path.into()).or_default() += bytes;
        }
        one_more(&mut count.paths, completion.path().as_str());
        one_more(&mut count.reasons, completion.reason().as_str());
        if let Some(fallback) = completion.fallback() {
            one_more(&mut count.fell_back, fallback.reason.as_str());
        }
        let stages = completion.stages();
        let queued = stages.queued.unwrap_or_default();
        let registered = stages.registered.unwrap_or(queued).max(queued);
        let transfer = stages.done.saturating_sub(registered);
        record(&mut self.latency, stages.done);
        record(&mut self.queue, queued);
        record(&mut self.registration, registered - queued);
        record(&mut self.transfer, transfer);
        if let Some(first_byte) = stages.first_byte {
            record(&mut self.first_byte, first_byte);
        }
        if let Some(buffer) = completion.buffer() {
            let (ops, rates) = count.slabs.entry(buffer.slot().slab.0).or_default();
            *ops += 1;
            *rates += completion.bytes() as f64 / 1e9 / transfer.as_secs_f64().max(1e-9);
        }
    }

    fn count(self) -> Count {
        Count {
            latency: Times::from(&self.latency),
            first_byte: Times::from(&self.first_byte),
            queue: Times::from(&self.queue),
            registration: Times::from(&self.registration),
            transfer: Times::from(&self.transfer),
            first_error: self.first_error,
            ..self.count
        }
    }
}

fn one_more(counts: &mut std::collections::BTreeMap<String, u64>, name: &str) {
    match counts.get_mut(name) {
        Some(count) => *count += 1,
        None => drop(counts.insert(name.to_owned(), 1)),
    }
}

/// An empty histogram of microseconds.
pub(crate) fn times() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST, 3).expect("bounds that a histogram can have")
}

fn record(times: &mut Histogram<u64>, time: Duration) {
    times.saturating_record(u64::try_from(time.as_micros()).unwrap_or(LONGEST).max(1));
}

/// What all threads have seen.
pub(crate) fn joined(threads: Vec<ScopedJoinHandle<'_, Count>>) -> Result<Count, String> {
    let mut all = Count::default();
    for thread in threads {
        let one = thread.join().map_err(|_| "a thread panicked".to_owned())?;
        all.merge(one);
    }
    Ok(all)
}
