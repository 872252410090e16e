//! Streams: a thread each, which does what was queued in its order, later.

use std::ffi::c_void;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::abi::Out;
use crate::codes::{
    Answer, INVALID_HANDLE, INVALID_VALUE, NOT_READY, NOT_SUPPORTED, OUT_OF_MEMORY,
};
use crate::context::{Context, current};
use crate::copy::{Copy, Fill};
use crate::driver::{Driver, lock};
use crate::gate::{call, host_function, in_context};

pub struct Stream {
    pub context: Arc<Context>,
    kind: Kind,
    jobs: Mutex<Sender<Job>>,
    /// The last that was queued.
    last: Mutex<Arc<Mark>>,
}

/// How a stream stands to the default one of its context.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Default,
    /// Begins after what the default stream was given before, and that after this.
    Blocking,
    Free,
}

/// A point in a stream. Reached when all before it is done.
#[derive(Default)]
pub struct Mark {
    at: Mutex<Option<Instant>>,
    reached: Condvar,
}

impl Mark {
    pub fn when(&self) -> Option<Instant> {
        *lock(&self.at)
    }

    pub fn wait(&self) {
        let mut at = lock(&self.at);
        while at.is_none() {
            at = self.reached.wait(at).expect("nobody panics with it");
        }
    }

    fn reach(&self) {
        *lock(&self.at) = Some(Instant::now());
        self.reached.notify_all();
    }
}

struct Job {
    /// Marks of other streams that it waits for.
    after: Vec<Arc<Mark>>,
    delay: Duration,
    work: Work,
    done: Arc<Mark>,
}

pub enum Work {
    Nothing,
    /// Nothing, after another stream's mark.
    After(Arc<Mark>),
    Copy(Copy),
    Fill(Fill),
    Call(HostFunction),
}

pub type HostFn = unsafe extern "C" fn(*mut c_void);

pub struct HostFunction(HostFn, *mut c_void);

// SAFETY: callers of `cuLaunchHostFunc` promise that it may be called on another thread.
unsafe impl Send for HostFunction {}

impl Stream {
    fn start(driver: &'static Driver, context: &Arc<Context>, kind: Kind) -> Answer<Arc<Self>> {
        let (jobs, queue) = channel();
        let device = context.device;
        let thread = thread::Builder::new().name("standin-stream".to_owned());
        let serve = move || serve(driver, device, &queue);
        thread.spawn(serve).map_err(|_| OUT_OF_MEMORY)?;
        let last = Arc::new(Mark::default());
        last.reach();
        Ok(Arc::new(Self {
            context: context.clone(),
            kind,
            jobs: Mutex::new(jobs),
            last: Mutex::new(last),
        }))
    }

    /// The last that was queued so far.
    pub fn last(&self) -> Arc<Mark> {
        lock(&self.last).clone()
    }
}

fn serve(driver: &'static Driver, device: usize, queue: &Receiver<Job>) {
    while let Ok(job) = queue.recv() {
        job.after.iter().for_each(|mark| mark.wait());
        if let Work::After(mark) = &job.work {
            mark.wait();
        }
        if !job.delay.is_zero() {
            thread::sleep(job.delay);
        }
        // A device that failed does nothing any more.
        if driver.sound(device).is_ok()
            && let Err(code) = run(driver, device, job.work)
        {
            driver.fail(device, code);
        }
        job.done.reach();
    }
}

fn run(driver: &Driver, device: usize, work: Work) -> Answer {
    match work {
        Work::Nothing | Work::After(_) => Ok(()),
        Work::Copy(copy) => copy.run(driver, device),
        Work::Fill(fill) => fill.run(driver, device),
        Work::Call(HostFunction(function, data)) => {
            // SAFETY: the caller of `cuLaunchHostFunc` promises that it can be called with this.
            host_function(|| unsafe { function(data) });
            Ok(())
        }
    }
}

/// Queues work behind all that it must wait for.
pub fn submit(
    driver: &'static Driver,
    context: &Arc<Context>,
    handle: u64,
    delay: Duration,
    work: impl FnOnce(&Stream) -> Answer<Work>,
) -> Answer<Arc<Mark>> {
    let stream = find(driver, context, handle)?;
    let work = work(&stream)?;
    let streams = lock(&driver.streams);
    let of_context = |other: &&Arc<Stream>| other.context.handle == stream.context.handle;
    let waits = |other: &&Arc<Stream>| match stream.kind {
        Kind::Default => other.kind == Kind::Blocking,
        Kind::Blocking => other.kind == Kind::Default,
        Kind::Free => false,
    };
    let others = streams.values().filter(of_context).filter(waits);
    let after = others.map(|other| other.last()).collect();
    let done = Arc::new(Mark::default());
    let job = Job {
        after,
        delay,
        work,
        done: done.clone(),
    };
    lock(&stream.jobs).send(job).map_err(|_| INVALID_HANDLE)?;
    *lock(&stream.last) = done.clone();
    Ok(done)
}

/// The stream of a handle: 0 and `CU_STREAM_LEGACY` are the default one of the current context.
pub fn find(driver: &'static Driver, context: &Arc<Context>, handle: u64) -> Answer<Arc<Stream>> {
    let mut streams = lock(&driver.streams);
    match handle {
        0 | 1 => {
            if let Some(stream) = streams.get(&context.handle) {
                return Ok(stream.clone());
            }
            let stream = Stream::start(driver, context, Kind::Default)?;
            streams.insert(context.handle, stream.clone());
            Ok(stream)
        }
        // `CU_STREAM_PER_THREAD`
        2 => Err(NOT_SUPPORTED),
        _ => {
            let stream = streams
                .get(&handle)
                .filter(|stream| stream.kind != Kind::Default);
            stream.cloned().ok_or(INVALID_HANDLE)
        }
    }
}

/// Waits for all that a context was given.
pub fn finish(driver: &Driver, context: &Context) {
    let streams = lock(&driver.streams);
    let own = streams
        .values()
        .filter(|stream| stream.context.handle == context.handle);
    let marks: Vec<_> = own.map(|stream| stream.last()).collect();
    drop(streams);
    marks.iter().for_each(|mark| mark.wait());
}

fn create(driver: &'static Driver, context: &Arc<Context>, to: &Out<u64>, flags: u32) -> Answer {
    to.check()?;
    let kind = match flags {
        0 => Kind::Blocking,
        1 => Kind::Free,
        _ => return Err(INVALID_VALUE),
    };
    let stream = Stream::start(driver, context, kind)?;
    let handle = driver.unique();
    lock(&driver.streams).insert(handle, stream);
    to.set(handle)
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamCreate(stream: Out<u64>, flags: u32) -> u32 {
    in_context("cuStreamCreate", |driver, context| {
        create(driver, context, &stream, flags)
    })
}

/// Any priority will do: the driver clamps it.
#[unsafe(no_mangle)]
extern "C" fn cuStreamCreateWithPriority(stream: Out<u64>, flags: u32, _priority: i32) -> u32 {
    in_context("cuStreamCreateWithPriority", |driver, context| {
        create(driver, context, &stream, flags)
    })
}

/// What is queued is still done.
#[unsafe(no_mangle)]
extern "C" fn cuStreamDestroy_v2(stream: u64) -> u32 {
    in_context("cuStreamDestroy_v2", |driver, context| {
        if stream <= 2 {
            return Err(INVALID_HANDLE);
        }
        find(driver, context, stream)?;
        lock(&driver.streams).remove(&stream);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamSynchronize(stream: u64) -> u32 {
    in_context("cuStreamSynchronize", |driver, context| {
        let stream = find(driver, context, stream)?;
        stream.last().wait();
        driver.sound(stream.context.device)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamQuery(stream: u64) -> u32 {
    in_context("cuStreamQuery", |driver, context| {
        let stream = find(driver, context, stream)?;
        driver.sound(stream.context.device)?;
        stream.last().when().map(drop).ok_or(NOT_READY)
    })
}

/// Of the default stream it is the context that is current.
#[unsafe(no_mangle)]
extern "C" fn cuStreamGetCtx(stream: u64, context: Out<u64>) -> u32 {
    call("cuStreamGetCtx", |driver| {
        let of = match lock(&driver.streams).get(&stream) {
            Some(stream) => stream.context.handle,
            None if stream <= 2 => current()?.handle,
            None => return Err(INVALID_HANDLE),
        };
        context.set(of)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamWaitEvent(stream: u64, event: u64, flags: u32) -> u32 {
    in_context("cuStreamWaitEvent", |driver, context| {
        let event = lock(&driver.events)
            .get(&event)
            .cloned()
            .ok_or(INVALID_HANDLE)?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        // One that was never recorded holds up nothing.
        let Some(mark) = event.mark() else {
            return find(driver, context, stream).map(drop);
        };
        submit(driver, context, stream, Duration::ZERO, |_| {
            Ok(Work::After(mark))
        })
        .map(drop)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuLaunchHostFunc(stream: u64, function: Option<HostFn>, data: *mut c_void) -> u32 {
    in_context("cuLaunchHostFunc", |driver, context| {
        let function = HostFunction(function.ok_or(INVALID_VALUE)?, data);
        submit(driver, context, stream, Duration::ZERO, |_| {
            Ok(Work::Call(function))
        })
        .map(drop)
    })
}
