//! Events: marks in streams, with the times when they were reached.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::abi::Out;
use crate::codes::{Answer, INVALID_HANDLE, INVALID_VALUE, NOT_READY};
use crate::driver::{Driver, lock};
use crate::gate::{call, in_context};
use crate::stream::{Mark, Work, submit};

pub struct Event {
    /// The context that it is of.
    pub context: u64,
    device: usize,
    timed: bool,
    last: Mutex<Option<Arc<Mark>>>,
}

impl Event {
    /// Where it was recorded last.
    pub fn mark(&self) -> Option<Arc<Mark>> {
        lock(&self.last).clone()
    }
}

fn find(driver: &Driver, event: u64) -> Answer<Arc<Event>> {
    lock(&driver.events)
        .get(&event)
        .cloned()
        .ok_or(INVALID_HANDLE)
}

const DISABLE_TIMING: u32 = 2;
const INTERPROCESS: u32 = 4;

#[unsafe(no_mangle)]
extern "C" fn cuEventCreate(event: Out<u64>, flags: u32) -> u32 {
    in_context("cuEventCreate", |driver, context| {
        event.check()?;
        let timed = flags & DISABLE_TIMING == 0;
        // One for other processes cannot have times.
        if flags > 7 || (flags & INTERPROCESS != 0 && timed) {
            return Err(INVALID_VALUE);
        }
        let handle = driver.unique();
        let (device, last) = (context.device, Mutex::default());
        let made = Event {
            context: context.handle,
            device,
            timed,
            last,
        };
        lock(&driver.events).insert(handle, Arc::new(made));
        event.set(handle)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventDestroy_v2(event: u64) -> u32 {
    in_context("cuEventDestroy_v2", |driver, _| {
        lock(&driver.events)
            .remove(&event)
            .map(drop)
            .ok_or(INVALID_HANDLE)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventRecord(event: u64, stream: u64) -> u32 {
    in_context("cuEventRecord", |driver, context| {
        let event = find(driver, event)?;
        let mark = submit(driver, context, stream, Duration::ZERO, |stream| {
            let same = stream.context.handle == event.context;
            same.then_some(Work::Nothing).ok_or(INVALID_HANDLE)
        })?;
        *lock(&event.last) = Some(mark);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventQuery(event: u64) -> u32 {
    call("cuEventQuery", |driver| {
        let event = find(driver, event)?;
        driver.sound(event.device)?;
        let reached = event.mark().is_none_or(|mark| mark.when().is_some());
        // A failure that came with the last of the work.
        driver.sound(event.device)?;
        reached.then_some(()).ok_or(NOT_READY)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventSynchronize(event: u64) -> u32 {
    in_context("cuEventSynchronize", |driver, _| {
        let event = find(driver, event)?;
        if let Some(mark) = event.mark() {
            mark.wait();
        }
        driver.sound(event.device)
    })
}

fn elapsed(to: &Out<f32>, start: u64, end: u64) -> impl FnOnce(&'static Driver) -> Answer {
    move |driver| {
        let (start, end) = (find(driver, start)?, find(driver, end)?);
        if !start.timed || !end.timed || start.context != end.context {
            return Err(INVALID_HANDLE);
        }
        let reached = |event: &Event| event.mark().ok_or(INVALID_HANDLE);
        let (from, until) = (reached(&start)?, reached(&end)?);
        let (from, until) = from.when().zip(until.when()).ok_or(NOT_READY)?;
        to.set(until.saturating_duration_since(from).as_secs_f32() * 1000.0)
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuEventElapsedTime(milliseconds: Out<f32>, start: u64, end: u64) -> u32 {
    call("cuEventElapsedTime", elapsed(&milliseconds, start, end))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventElapsedTime_v2(milliseconds: Out<f32>, start: u64, end: u64) -> u32 {
    call("cuEventElapsedTime_v2", elapsed(&milliseconds, start, end))
}
