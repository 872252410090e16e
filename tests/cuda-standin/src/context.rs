//! Primary contexts, and which one is current on a thread.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::abi::Out;
use crate::codes::{
    Answer, CONTEXT_IS_DESTROYED, INVALID_CONTEXT, INVALID_DEVICE, INVALID_VALUE,
    PEER_ACCESS_ALREADY_ENABLED,
};
use crate::driver::{Driver, lock};
use crate::gate::{call, in_context};
use crate::stream;

pub struct Context {
    pub handle: u64,
    /// The ordinal of its device.
    pub device: usize,
    destroyed: AtomicBool,
}

/// The primary context of a device.
#[derive(Default)]
pub struct Primary {
    pub context: Option<Arc<Context>>,
    retained: u32,
    flags: u32,
}

thread_local! {
    static STACK: RefCell<Vec<Arc<Context>>> = const { RefCell::new(Vec::new()) };
}

fn with_stack<T>(what: impl FnOnce(&mut Vec<Arc<Context>>) -> T) -> Answer<T> {
    // Of a thread that ends there is none any more.
    let answer = STACK.try_with(|stack| what(&mut stack.borrow_mut()));
    answer.map_err(|_| INVALID_CONTEXT)
}

/// The context that is current on this thread.
pub fn current() -> Answer<Arc<Context>> {
    let top = with_stack(|stack| stack.last().cloned())?;
    let top = top.ok_or(INVALID_CONTEXT)?;
    match top.destroyed.load(Ordering::Acquire) {
        true => Err(CONTEXT_IS_DESTROYED),
        false => Ok(top),
    }
}

/// Ends a context: its work first, then all that it had.
fn destroy(driver: &Driver, context: &Context) {
    stream::finish(driver, context);
    context.destroyed.store(true, Ordering::Release);
    let owns = |owner: u64| owner == context.handle;
    lock(&driver.streams).retain(|_, stream| !owns(stream.context.handle));
    lock(&driver.events).retain(|_, event| !owns(event.context));
    lock(&driver.space)
        .mappings
        .retain(|_, mapping| !mapping.context().is_some_and(owns));
    lock(&driver.pinned).retain(|_, pinned| !owns(pinned.context));
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRetain(context: Out<u64>, device: i32) -> u32 {
    call("cuDevicePrimaryCtxRetain", |driver| {
        let ordinal = driver.ordinal(device)?;
        context.check()?;
        let mut primary = lock(&driver.devices[ordinal].primary);
        let made = primary.context.get_or_insert_with(|| {
            let handle = driver.unique();
            Arc::new(Context {
                handle,
                device: ordinal,
                destroyed: AtomicBool::new(false),
            })
        });
        context.set(made.handle)?;
        primary.retained += 1;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRelease_v2(device: i32) -> u32 {
    call("cuDevicePrimaryCtxRelease_v2", |driver| {
        let mut primary = lock(&driver.device(device)?.primary);
        primary.retained = primary.retained.checked_sub(1).ok_or(INVALID_CONTEXT)?;
        let last = match primary.retained {
            0 => primary.context.take(),
            _ => None,
        };
        drop(primary);
        if let Some(context) = last {
            destroy(driver, &context);
        }
        Ok(())
    })
}

/// `CU_CTX_FLAGS_MASK`
const FLAGS: u32 = 0x1f;

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxSetFlags_v2(device: i32, flags: u32) -> u32 {
    call("cuDevicePrimaryCtxSetFlags_v2", |driver| {
        let device = driver.device(device)?;
        if flags & !FLAGS != 0 {
            return Err(INVALID_VALUE);
        }
        lock(&device.primary).flags = flags;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxGetState(device: i32, flags: Out<u32>, active: Out<i32>) -> u32 {
    call("cuDevicePrimaryCtxGetState", |driver| {
        let primary = lock(&driver.device(device)?.primary);
        flags.set(primary.flags)?;
        active.set(i32::from(primary.context.is_some()))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCurrent(context: u64) -> u32 {
    call("cuCtxSetCurrent", |driver| {
        let context = known(driver, context)?;
        with_stack(|stack| {
            stack.pop();
            stack.extend(context);
        })
    })
}

/// The context of a handle; none for no handle.
fn known(driver: &Driver, handle: u64) -> Answer<Option<Arc<Context>>> {
    if handle == 0 {
        return Ok(None);
    }
    driver.context(handle).map(Some).ok_or(INVALID_CONTEXT)
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetCurrent(context: Out<u64>) -> u32 {
    call("cuCtxGetCurrent", |_| {
        let top = with_stack(|stack| stack.last().map(|context| context.handle))?;
        context.set(top.unwrap_or(0))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxPushCurrent_v2(context: u64) -> u32 {
    call("cuCtxPushCurrent_v2", |driver| {
        let context = known(driver, context)?.ok_or(INVALID_CONTEXT)?;
        with_stack(|stack| stack.push(context))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxPopCurrent_v2(context: Out<u64>) -> u32 {
    call("cuCtxPopCurrent_v2", |_| {
        let top = with_stack(Vec::pop)?.ok_or(INVALID_CONTEXT)?;
        // The caller need not want it.
        let _ = context.set(top.handle);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetDevice(device: Out<i32>) -> u32 {
    in_context("cuCtxGetDevice", |_, context| {
        device.set(context.device as i32)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSynchronize() -> u32 {
    in_context("cuCtxSynchronize", |driver, context| {
        stream::finish(driver, context);
        driver.sound(context.device)
    })
}

/// Limits are for kernels, of which there are none here.
#[unsafe(no_mangle)]
extern "C" fn cuCtxSetLimit(limit: u32, _value: usize) -> u32 {
    const LAST: u32 = 9;
    in_context("cuCtxSetLimit", |_, _| match limit {
        0..=LAST => Ok(()),
        _ => Err(INVALID_VALUE),
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxEnablePeerAccess(peer: u64, flags: u32) -> u32 {
    in_context("cuCtxEnablePeerAccess", |driver, context| {
        let peer = known(driver, peer)?.ok_or(INVALID_CONTEXT)?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        if peer.device == context.device {
            return Err(INVALID_DEVICE);
        }
        match lock(&driver.devices[context.device].peers).insert(peer.device) {
            true => Ok(()),
            false => Err(PEER_ACCESS_ALREADY_ENABLED),
        }
    })
}
