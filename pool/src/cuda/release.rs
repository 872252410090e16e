//! Buffers that come back when a stream has done with them.
//!
//! A kernel, or a copy, that reads a buffer runs later than the call that starts it. A buffer dropped right after
//! that call would be filled anew under the kernel. Instead an event is recorded behind the kernel, and the buffer is
//! dropped when the event has happened.

use std::ffi::c_void;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use cudarc::driver::sys;

use super::device::Gpu;
use super::driver::{check, driver};
use super::error::CudaError;
use crate::buffer::Buffer;
use crate::memory::Memory;

/// How often events are looked at: soon after the last one happened, and less often the longer none does.
const SOON: Duration = Duration::from_micros(100);
const SELDOM: Duration = Duration::from_millis(2);

/// A stream of this process: a `CUstream`, or, what is the same, a `cudaStream_t`.
#[derive(Clone, Copy, Debug)]
pub struct Stream(sys::CUstream);

impl Stream {
    /// The stream of a handle, such as `torch.cuda.current_stream().cuda_stream` gives. Null is the default stream.
    ///
    /// # Safety
    /// It is a stream of this process, and is not destroyed while this value is used.
    pub unsafe fn from_raw(handle: *mut c_void) -> Self {
        Self(handle.cast())
    }

    /// The default streams have no context of their own, but that of the thread that names them.
    fn is_default(self) -> bool {
        self.0.addr() <= 2
    }
}

/// Why a buffer is not released behind a stream's work, and the buffer.
#[derive(Debug, thiserror::Error)]
#[error("cannot release a buffer behind a stream: {error}")]
pub struct NotReleased {
    /// It is still the caller's.
    pub buffer: Buffer,
    /// What CUDA said.
    #[source]
    pub error: CudaError,
}

/// An event behind the work that a stream had, and the context that both are of.
struct Recorded {
    event: sys::CUevent,
    context: sys::CUcontext,
}

// SAFETY: events and contexts may be used by any thread; the driver has locks of its own.
unsafe impl Send for Recorded {}

impl Recorded {
    /// Records an event behind what `stream` has to do.
    fn behind(stream: Stream, gpu: Option<&Gpu>) -> Result<Self, CudaError> {
        let shown: &dyn std::fmt::Display = match &gpu {
            Some(gpu) => gpu,
            None => &"the stream's device",
        };
        let mut context = std::ptr::null_mut();
        // SAFETY: writes one pointer.
        check("asking for the context", shown, unsafe {
            sys::cuCtxGetCurrent(&raw mut context)
        })?;
        let _bound = match gpu {
            Some(gpu) if stream.is_default() && context.is_null() => Some(gpu.bind()?),
            _ => None,
        };
        // SAFETY: writes one pointer; the stream is one by the contract of `from_raw`.
        check("asking for a stream's context", shown, unsafe {
            sys::cuStreamGetCtx(stream.0, &raw mut context)
        })?;
        let mut recorded = Self {
            event: std::ptr::null_mut(),
            context,
        };
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        recorded.within(|event| {
            // SAFETY: writes one pointer.
            check("making an event", shown, unsafe {
                sys::cuEventCreate(event, flags)
            })?;
            // SAFETY: the event was just made in the stream's context.
            check("recording an event", shown, unsafe {
                sys::cuEventRecord(*event, stream.0)
            })
        })?;
        Ok(recorded)
    }

    /// Whether it has happened, or never will, because its context is broken: then nothing runs there any more.
    fn has_happened(&mut self) -> bool {
        let asked = self.within(|event| {
            // SAFETY: an event that this value made.
            let said = unsafe { sys::cuEventQuery(*event) };
            match said {
                sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
                said => check("asking for an event", &"the stream's device", said).map(|()| true),
            }
        });
        asked.unwrap_or_else(|error| {
            tracing::warn!(%error, "a buffer is released though its stream cannot be asked");
            true
        })
    }

    /// Calls `then` while the context is current.
    fn within<T>(
        &mut self,
        then: impl FnOnce(&mut sys::CUevent) -> Result<T, CudaError>,
    ) -> Result<T, CudaError> {
        let device = &"the stream's device";
        // SAFETY: the context of a stream that exists; primary contexts are not destroyed before the process ends.
        check("binding the context", device, unsafe {
            sys::cuCtxPushCurrent_v2(self.context)
        })?;
        let done = then(&mut self.event);
        let mut context = std::ptr::null_mut();
        // SAFETY: takes back what was pushed above.
        let _ = unsafe { sys::cuCtxPopCurrent_v2(&raw mut context) };
        done
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        if !self.event.is_null() {
            let _ = self.within(|event| {
                // SAFETY: an event that this value made, destroyed once.
                check("destroying an event", &"the stream's device", unsafe {
                    sys::cuEventDestroy_v2(*event)
                })
            });
        }
    }
}

/// Buffers that wait for their streams.
#[derive(Default)]
struct Releases {
    waiting: Mutex<Vec<(Recorded, Buffer)>>,
    more: Condvar,
}

impl Releases {
    /// Those of this process. The thread that looks after them starts with the first.
    fn of_process() -> Result<&'static Self, CudaError> {
        static RELEASES: OnceLock<Releases> = OnceLock::new();
        static THREAD: OnceLock<Result<(), i32>> = OnceLock::new();
        let releases = RELEASES.get_or_init(Releases::default);
        let started = THREAD.get_or_init(|| {
            let thread = thread::Builder::new().name("s3engine-release".into());
            let spawned = thread.spawn(|| releases.run());
            spawned
                .map(drop)
                .map_err(|error| error.raw_os_error().unwrap_or_default())
        });
        let system = |&errno: &i32| CudaError::System {
            step: "starting the release thread",
            device: "all devices".to_owned(),
            errno,
        };
        started.as_ref().map_err(system)?;
        Ok(releases)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(Recorded, Buffer)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut pause = SOON;
        loop {
            let mut waiting = self.lock();
            while waiting.is_empty() {
                waiting = self
                    .more
                    .wait(waiting)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            let done: Vec<_> = waiting
                .extract_if(.., |(event, _)| event.has_happened())
                .collect();
            drop(waiting);
            pause = match done.is_empty() {
                true => (pause * 2).min(SELDOM),
                false => SOON,
            };
            // After the lock is released: a buffer that ends may take other locks.
            drop(done);
            thread::sleep(pause);
        }
    }
}

impl Buffer {
    /// Gives the buffer back when all that `stream` was given until now has been done: a kernel, or a copy, that reads
    /// the buffer may still run until then. Where that cannot be arranged the buffer comes back with the error.
    ///
    /// ```no_run
    /// # use s3engine_pool::{Buffer, cuda::Stream};
    /// # fn launch_kernel_that_reads(address: u64, stream: *mut std::ffi::c_void) {}
    /// # fn on(buffer: Buffer, stream: *mut std::ffi::c_void) {
    /// launch_kernel_that_reads(buffer.address(), stream);
    /// // SAFETY: the kernel was launched on it.
    /// let stream = unsafe { Stream::from_raw(stream) };
    /// if let Err(not_released) = buffer.release_after(stream) {
    ///     eprintln!("waiting for the kernel instead: {not_released}");
    ///     // ... synchronize the stream, then
    ///     drop(not_released.buffer);
    /// }
    /// # }
    /// ```
    pub fn release_after(self, stream: Stream) -> Result<(), Box<NotReleased>> {
        let recorded = driver().and_then(|_| {
            let gpu = match self.memory() {
                Memory::Cuda(uuid) => Some(Gpu::find(uuid)?),
                Memory::Host => None,
            };
            Ok((Recorded::behind(stream, gpu)?, Releases::of_process()?))
        });
        match recorded {
            Ok((event, releases)) => {
                releases.lock().push((event, self));
                releases.more.notify_one();
                Ok(())
            }
            Err(error) => Err(Box::new(NotReleased {
                buffer: self,
                error,
            })),
        }
    }
}
