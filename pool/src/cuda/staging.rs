//! Bytes on their way from a socket to a device: gathered in pinned memory, copied from there by the device itself.
//!
//! ```text
//! GET ── Filling ── chunk() ─────┐            ring: at most so many chunks, first come first served
//!          │  receive, .., full   │                 ▲                    ▲ one more, while somebody waits
//!          └─ send ─▶ jobs ─▶ copier's thread ── cuMemcpyHtoDAsync ── event ── back to the ring, GET told
//! ```
//! One for each device of a pool, shared by all of its GETs. Nobody waits for a chunk while holding one: a full one is
//! sent, and comes back by itself. So whoever holds one is either filling it or waits for its server, which is bounded
//! by the body's timeout; and before it waits for that while others wait for chunks, it sends what there is.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::sys;
use metrics::SharedString;

use super::copier;
use super::copies::{Copies, Job};
use super::device::Gpu;
use super::driver::check;
use super::error::CudaError;
use super::ring::{Ring, Ticket};
use crate::landing::Core;
use crate::process::Process;

/// Bytes of pinned memory that HTTP bodies gather in before a device copies them. Larger copies are faster, and each
/// costs the same few switches of threads; more chunks let more requests gather at once.
pub const CHUNK: usize = 4 << 20;

/// How long the driver is not asked again for pinned memory that it did not give.
const REST: Duration = Duration::from_secs(1);

/// Fewer would make copying and gathering wait for each other.
const FEWEST: usize = 2;

/// The pinned memory for one device, and its copier.
pub(crate) struct Staging {
    work: Arc<Work>,
}

/// What GETs and the copier share.
pub(super) struct Work {
    process: Process,
    pub(super) gpu: &'static Gpu,
    /// For the labels of figures.
    pub(super) device: SharedString,
    state: Mutex<State>,
    /// Wakes the copier.
    changed: Condvar,
    /// Somebody waits for a chunk.
    crowded: AtomicBool,
}

struct State {
    ring: Ring<Pinned>,
    /// Sent, and not yet taken by the copier.
    jobs: VecDeque<Job>,
    started: bool,
    /// When more chunks may be made, after the driver gave none.
    not_before: Option<Instant>,
    ending: bool,
    /// Nothing is copied any more.
    lost: Option<CudaError>,
}

/// What the copier does next.
pub(super) enum Next {
    Copy(Vec<Job>),
    Make,
    /// Nothing but to wait for what is under way.
    Await,
    End,
}

impl Staging {
    /// At most `bytes`, in whole chunks. Nothing is made before somebody needs it.
    pub(crate) fn new(gpu: &'static Gpu, bytes: u64) -> Self {
        let most = usize::try_from(bytes).unwrap_or(usize::MAX) / CHUNK;
        let state = State {
            ring: Ring::new(most.max(FEWEST)),
            jobs: VecDeque::new(),
            started: false,
            not_before: None,
            ending: false,
            lost: None,
        };
        let work = Work {
            process: Process::current(),
            gpu,
            device: gpu.uuid().to_string().into(),
            state: Mutex::new(state),
            changed: Condvar::new(),
            crowded: AtomicBool::new(false),
        };
        Self {
            work: Arc::new(work),
        }
    }

    /// An empty chunk. Who asked first gets one first; the future can be dropped at any time.
    pub(crate) async fn chunk(&self) -> Result<Chunk, CudaError> {
        // In a forked child the lock may be held by nobody who could release it, and there is no copier.
        if !self.work.process.is_this() {
            return Err(CudaError::Forked);
        }
        let pinned = Asking {
            work: &self.work,
            place: None,
        };
        Ok(Chunk {
            pinned: Some(pinned.await?),
            filled: 0,
            work: Arc::clone(&self.work),
        })
    }

    /// Whether somebody waits for a chunk.
    pub(crate) fn is_crowded(&self) -> bool {
        // A hint: nothing else hangs on it.
        self.work.crowded.load(Ordering::Relaxed)
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if self.work.process.is_this() {
            self.work.lock().ending = true;
            self.work.changed.notify_one();
        }
    }
}

impl Work {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Acts on the ring, and wakes whom that concerns.
    fn turn<R, W: IntoIterator<Item = Waker>>(
        &self,
        act: impl FnOnce(&mut Ring<Pinned>) -> (R, W),
    ) -> R {
        let mut state = self.lock();
        let (result, woken) = act(&mut state.ring);
        self.crowded
            .store(state.ring.is_wanted(), Ordering::Relaxed);
        drop(state);
        woken.into_iter().for_each(Waker::wake);
        result
    }

    /// Starts the copier with the first chunk that is asked for.
    fn start(self: &Arc<Self>) -> Result<(), CudaError> {
        let mut state = self.lock();
        if let Some(error) = &state.lost {
            return Err(error.clone());
        }
        if state.started {
            return Ok(());
        }
        let work = Arc::clone(self);
        let spawned = thread::Builder::new()
            .name("s3engine-copier".into())
            .spawn(move || copier::run(&work));
        spawned.map_err(|error| CudaError::System {
            step: "starting the copier thread",
            device: self.gpu.to_string(),
            errno: error.raw_os_error().unwrap_or_default(),
        })?;
        state.started = true;
        Ok(())
    }

    fn send(&self, job: Job) {
        let mut state = self.lock();
        if let Some(error) = &state.lost {
            let error = error.clone();
            drop(state);
            return job.end(Err(error));
        }
        state.jobs.push_back(job);
        drop(state);
        self.changed.notify_one();
    }

    /// Waits for something to do; not where copies are under way, which are to be waited for then.
    pub(super) fn next(&self, idle: bool) -> Next {
        let mut state = self.lock();
        loop {
            // First: as long as there are too few, those who wait make others send small pieces, which make more
            // copies than there is time for.
            let may_make = state.not_before.is_none_or(|then| Instant::now() >= then);
            if may_make && state.ring.make_one() {
                return Next::Make;
            }
            if !state.jobs.is_empty() {
                return Next::Copy(state.batch());
            }
            if !idle {
                return Next::Await;
            }
            if state.ending {
                return Next::End;
            }
            let changed = self.changed.wait(state);
            state = changed.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// One more chunk for the ring.
    pub(super) fn make(&self) {
        match Pinned::new(self.gpu, &self.device) {
            Ok(pinned) => self.turn(|ring| ((), ring.made(pinned))),
            Err(error) => {
                tracing::warn!(%error, "no more pinned memory for staging");
                let some = self.turn(|ring| (ring.has_some(), ring.cannot_make(&error)));
                // Who waits gets one that comes back. Without any, the next who asks has it tried again at once.
                let then = Instant::now().checked_add(REST);
                self.lock().not_before = then.filter(|_| some);
            }
        }
    }

    /// The device or the copier is of no use any more: all who wait are told, and all who come.
    pub(super) fn lose(&self, error: &CudaError) {
        tracing::error!(device = %self.gpu, %error, "nothing is copied to the device any more");
        let mut state = self.lock();
        state.lost = Some(error.clone());
        let jobs = std::mem::take(&mut state.jobs);
        drop(state);
        self.turn(|ring| ((), ring.refuse(error)));
        for job in jobs {
            job.end(Err(error.clone()));
        }
    }
}

impl State {
    /// What is worth one event: a full chunk, or so many small ones.
    fn batch(&mut self) -> Vec<Job> {
        let mut bytes = 0;
        let mut batch = Vec::new();
        while bytes < CHUNK
            && let Some(job) = self.jobs.pop_front()
        {
            bytes += job.bytes();
            batch.push(job);
        }
        batch
    }
}

/// Waits for a chunk.
struct Asking<'a> {
    work: &'a Arc<Work>,
    /// Its place among those who wait, and since when.
    place: Option<(Ticket, Instant)>,
}

impl Future for Asking<'_> {
    type Output = Result<Pinned, CudaError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let work = self.work;
        let waker = context.waker();
        let Some((ticket, since)) = self.place else {
            work.start()?;
            let ticket = match work.turn(|ring| (ring.ask(waker), None)) {
                Ok(pinned) => return Poll::Ready(Ok(pinned)),
                Err(ticket) => ticket,
            };
            self.place = Some((ticket, Instant::now()));
            // One more may have to be made; and who was lost in between has refused only those who waited.
            work.changed.notify_one();
            return match work.lock().lost.clone() {
                Some(error) => Poll::Ready(Err(error)),
                None => Poll::Pending,
            };
        };
        let Some(given) = work.turn(|ring| (ring.look(ticket, waker), None)) else {
            return Poll::Pending;
        };
        self.place = None;
        let waited = since.elapsed().as_secs_f64();
        let device = work.device.clone();
        metrics::histogram!("s3engine_cuda_staging_wait_seconds", "device" => device)
            .record(waited);
        Poll::Ready(given)
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if let Some((ticket, _)) = self.place
            && self.work.process.is_this()
        {
            self.work.turn(|ring| ((), ring.leave(ticket)));
        }
    }
}

/// One holder's part of the ring. Dropped, it goes back there.
pub(crate) struct Chunk {
    /// Always there until it is dropped.
    pinned: Option<Pinned>,
    filled: usize,
    work: Arc<Work>,
}

impl Chunk {
    /// Has `read` append bytes, at most `most` of them: it is given what room there is, and says how much of that it
    /// has filled.
    pub(crate) fn receive(
        &mut self,
        most: u64,
        read: impl FnOnce(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let left = CHUNK - self.filled;
        let len = usize::try_from(most).map_or(left, |most| most.min(left));
        let Some(pinned) = &self.pinned else {
            return Ok(0);
        };
        // SAFETY: `filled` is at most the chunk's length, and `len` fits what is left of it; nobody else has this
        // chunk, which is not being copied: sending consumes it. The memory is the driver's, and always was of bytes.
        let room =
            unsafe { std::slice::from_raw_parts_mut(pinned.base.as_ptr().add(self.filled), len) };
        let received = read(room)?.min(len);
        self.filled += received;
        Ok(received)
    }

    pub(crate) fn is_full(&self) -> bool {
        self.filled == CHUNK
    }

    /// The bytes in it.
    pub(crate) fn len(&self) -> usize {
        self.filled
    }

    /// Copies it to `at` in the slab of `core`, which is of this device. `copies` tells when that is done.
    pub(crate) fn send(self, core: Arc<Core>, at: u64, copies: &Arc<Copies>) {
        let work = Arc::clone(&self.work);
        let job = Job::new(self, core, at, copies);
        if !work.process.is_this() {
            return job.end(Err(CudaError::Forked));
        }
        work.send(job);
    }

    /// The first byte.
    pub(super) fn bytes(&self) -> *const u8 {
        let pinned = self.pinned.as_ref();
        pinned.map_or(std::ptr::null(), |pinned| pinned.base.as_ptr())
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        if let Some(pinned) = self.pinned.take()
            && self.work.process.is_this()
        {
            self.work.turn(|ring| ((), ring.give(pinned)));
        }
    }
}

/// Host memory of one chunk that the device copies from by itself.
struct Pinned {
    process: Process,
    gpu: &'static Gpu,
    device: SharedString,
    base: NonNull<u8>,
}

// SAFETY: the memory belongs to the process, and is reached only through the one chunk that holds this value.
unsafe impl Send for Pinned {}

impl Pinned {
    /// Of the memory that is nearest to the calling thread.
    fn new(gpu: &'static Gpu, device: &SharedString) -> Result<Self, CudaError> {
        let _bound = gpu.bind()?;
        let mut base = std::ptr::null_mut();
        // SAFETY: writes one address.
        check("allocating pinned memory", gpu, unsafe {
            sys::cuMemHostAlloc(&raw mut base, CHUNK, sys::CU_MEMHOSTALLOC_PORTABLE)
        })?;
        let base = NonNull::new(base.cast()).ok_or_else(|| CudaError::Unusable {
            what: "cannot use pinned memory",
            why: "the driver gave none".to_owned(),
        })?;
        let gauge = metrics::gauge!("s3engine_cuda_staging_bytes", "device" => device.clone());
        gauge.increment(CHUNK as f64);
        Ok(Self {
            process: Process::current(),
            gpu,
            device: device.clone(),
            base,
        })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if !self.process.is_this() {
            return;
        }
        let device = self.device.clone();
        metrics::gauge!("s3engine_cuda_staging_bytes", "device" => device).decrement(CHUNK as f64);
        let freed = self.gpu.bind().and_then(|_bound| {
            // SAFETY: what `new` was given, freed once: no chunk has it, so no copy reads it.
            check("freeing pinned memory", self.gpu, unsafe {
                sys::cuMemFreeHost(self.base.as_ptr().cast())
            })
        });
        if let Err(error) = freed {
            tracing::debug!(%error, "pinned memory was not given back");
        }
    }
}
