//! The thread that has a device copy chunks from pinned memory: issues them on a few streams, an event after each
//! batch, and waits for the oldest event while newer batches run. It sleeps in the driver or on its queue, never spins.
//!
//! It starts with the first chunk that is asked for, and ends when the pool's last slab of the device is gone; a process
//! that exits does not wait for it. A failed copy is an error of its GET. When the device, or the context on it, is
//! lost, so are all copies from then on.

use std::collections::VecDeque;
use std::thread;

use cudarc::driver::sys;

use super::copies::Job;
use super::device::Gpu;
use super::driver::check;
use super::error::CudaError;
use super::staging::{Next, Work};
use crate::topology::{NumaNode, Topology};

/// One is enough to keep a copy engine busy as long as the next copy is issued before the last ends; a second one
/// closes the gaps between small copies.
const STREAMS: usize = 2;

pub(super) fn run(work: &Work) {
    let _told = OnPanic(work);
    stay_near(work.gpu);
    if let Err(error) = copy(work) {
        work.lose(&error);
    }
}

/// Keeps the calling thread near the device, and with it the pinned memory that it asks for.
fn stay_near(gpu: &Gpu) {
    if let Some(node) = gpu.numa_node() {
        let nodes = Topology::read().nodes;
        // On a node without processors for it, it stays where it is.
        let mut near = nodes.iter().filter(|other| other.id == node);
        near.any(NumaNode::place_this_thread);
    }
}

/// Nobody waits for ever for a thread that has died.
struct OnPanic<'a>(&'a Work);

impl Drop for OnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.lose(&CudaError::Unusable {
                what: "cannot copy to the device",
                why: "its copier has ended".to_owned(),
            });
        }
    }
}

fn copy(work: &Work) -> Result<(), CudaError> {
    let _bound = work.gpu.bind()?;
    let mut copier = Copier::new(work)?;
    loop {
        match work.next(copier.running.is_empty()) {
            Next::Copy(jobs) => copier.issue(jobs),
            Next::Make => work.make(),
            Next::Await => copier.end_oldest()?,
            Next::End => return Ok(()),
        }
    }
}

/// All of it is used with the device's context bound.
struct Copier<'a> {
    work: &'a Work,
    /// Dropped before the jobs, which must not end before their copies.
    streams: Vec<Stream<'a>>,
    /// Which stream comes next.
    turn: usize,
    /// Oldest first.
    running: VecDeque<Batch<'a>>,
    /// Events to be used again.
    idle: Vec<Event<'a>>,
}

/// Copies with one event after them.
struct Batch<'a> {
    /// With those that the driver refused, which end with the others.
    jobs: Vec<(Job, Result<(), CudaError>)>,
    stream: usize,
    event: Result<Event<'a>, CudaError>,
}

impl<'a> Copier<'a> {
    fn new(work: &'a Work) -> Result<Self, CudaError> {
        let streams = (0..STREAMS).map(|_| Stream::new(work.gpu));
        Ok(Self {
            work,
            streams: streams.collect::<Result<_, _>>()?,
            turn: 0,
            running: VecDeque::new(),
            idle: Vec::new(),
        })
    }

    fn issue(&mut self, jobs: Vec<Job>) {
        let gpu = self.work.gpu;
        self.turn = (self.turn + 1) % self.streams.len();
        let stream = &self.streams[self.turn];
        let jobs = jobs.into_iter().map(|job| {
            let issued = job.issue(gpu, stream.raw);
            (job, issued)
        });
        let jobs = jobs.collect();
        let event = self.idle.pop().map_or_else(|| Event::new(gpu), Ok);
        let event = event.and_then(|event| event.record(stream).map(|()| event));
        self.running.push_back(Batch {
            jobs,
            stream: self.turn,
            event,
        });
    }

    /// Waits for the oldest batch and tells its GETs. An error is one that no later copy survives.
    fn end_oldest(&mut self) -> Result<(), CudaError> {
        let Some(batch) = self.running.pop_front() else {
            return Ok(());
        };
        let waited = match batch.event {
            Ok(event) => event.wait().map(|()| self.idle.push(event)),
            Err(error) => Err(error),
        };
        let stream = &self.streams[batch.stream];
        // Without the event's word the copies may still run; how they end is not known then.
        let over = waited.as_ref().map_or_else(|_| stream.wait(), |()| Ok(()));
        let lost = match (&waited, over) {
            (Err(error), _) if error.is_device_lost() => Some(error.clone()),
            (_, Err(error)) => Some(error),
            _ => None,
        };
        if let Some(error) = lost {
            self.end_all(&error);
            // What the copy itself was refused with says more than its event.
            for (job, issued) in batch.jobs {
                self.tell(job, issued.and(Err(error.clone())));
            }
            return Err(error);
        }
        for (job, issued) in batch.jobs {
            self.tell(job, issued.and(waited.clone()));
        }
        Ok(())
    }

    fn tell(&self, job: Job, result: Result<(), CudaError>) {
        let device = &self.work.device;
        match &result {
            Ok(()) => {
                metrics::counter!("s3engine_cuda_copies_total", "device" => device.clone())
                    .increment(1);
                metrics::counter!("s3engine_cuda_staged_bytes_total", "device" => device.clone())
                    .increment(job.bytes() as u64);
            }
            Err(error) => {
                tracing::warn!(%error, "a copy to the device failed");
                metrics::counter!("s3engine_cuda_copy_errors_total", "device" => device.clone())
                    .increment(1);
            }
        }
        job.end(result);
    }

    /// Ends all that is under way, in an error.
    fn end_all(&mut self, error: &CudaError) {
        // Where the context is dead this returns at once, and nothing is copied any more.
        for stream in &self.streams {
            let _ = stream.wait();
        }
        for batch in std::mem::take(&mut self.running) {
            for (job, _) in batch.jobs {
                self.tell(job, Err(error.clone()));
            }
        }
    }
}

struct Stream<'a> {
    gpu: &'a Gpu,
    raw: sys::CUstream,
}

impl<'a> Stream<'a> {
    fn new(gpu: &'a Gpu) -> Result<Self, CudaError> {
        // What the caller does on its default stream is not waited for.
        let beside = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        let mut raw = std::ptr::null_mut();
        // SAFETY: writes one handle.
        check("making a stream", gpu, unsafe {
            sys::cuStreamCreate(&raw mut raw, beside)
        })?;
        Ok(Self { gpu, raw })
    }

    /// Until all that was issued is over.
    fn wait(&self) -> Result<(), CudaError> {
        // SAFETY: a stream that this value has.
        check("waiting for copies", self.gpu, unsafe {
            sys::cuStreamSynchronize(self.raw)
        })
    }
}

impl Drop for Stream<'_> {
    fn drop(&mut self) {
        let _ = self.wait();
        // SAFETY: a stream that this value has, destroyed once.
        let _ = unsafe { sys::cuStreamDestroy_v2(self.raw) };
    }
}

struct Event<'a> {
    gpu: &'a Gpu,
    raw: sys::CUevent,
}

impl<'a> Event<'a> {
    fn new(gpu: &'a Gpu) -> Result<Self, CudaError> {
        use sys::CUevent_flags::{CU_EVENT_BLOCKING_SYNC, CU_EVENT_DISABLE_TIMING};
        let flags = CU_EVENT_BLOCKING_SYNC as u32 | CU_EVENT_DISABLE_TIMING as u32;
        let mut raw = std::ptr::null_mut();
        // SAFETY: writes one handle.
        check("making an event", gpu, unsafe {
            sys::cuEventCreate(&raw mut raw, flags)
        })?;
        Ok(Self { gpu, raw })
    }

    fn record(&self, stream: &Stream<'_>) -> Result<(), CudaError> {
        // SAFETY: both are of this device's context, and live.
        check("recording an event", self.gpu, unsafe {
            sys::cuEventRecord(self.raw, stream.raw)
        })
    }

    /// Sleeps until what was recorded has happened.
    fn wait(&self) -> Result<(), CudaError> {
        // SAFETY: an event that this value has.
        check("copying from staging", self.gpu, unsafe {
            sys::cuEventSynchronize(self.raw)
        })
    }
}

impl Drop for Event<'_> {
    fn drop(&mut self) {
        // SAFETY: an event that this value has, destroyed once.
        let _ = unsafe { sys::cuEventDestroy_v2(self.raw) };
    }
}
