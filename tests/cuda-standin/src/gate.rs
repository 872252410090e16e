//! What every call passes first: is the driver initialized, in this process; is a fault planted; is there a context.

use std::cell::Cell;
use std::env;
use std::io::{self, Write};
use std::process;
use std::sync::{Arc, Mutex, OnceLock};

use crate::codes::{
    Answer, Code, INVALID_VALUE, NO_DEVICE, NOT_INITIALIZED, NOT_PERMITTED, NOT_READY, UNKNOWN,
};
use crate::context::{self, Context};
use crate::driver::{Driver, lock};
use crate::settings::Settings;

static SETTINGS: OnceLock<Result<Settings, String>> = OnceLock::new();
static DRIVER: OnceLock<Driver> = OnceLock::new();
static STARTING: Mutex<()> = Mutex::new(());

thread_local! {
    /// Whether this thread runs a function that was queued on a stream.
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// A call that needs nothing.
pub fn always(name: &str, what: impl FnOnce() -> Answer) -> u32 {
    let planted = settings().map_or(Ok(()), |settings| settings.faults.count(name));
    number(planted.and_then(|()| what()))
}

/// A call that needs `cuInit`.
pub fn call(name: &str, what: impl FnOnce(&'static Driver) -> Answer) -> u32 {
    told(name, entered(name, None).map(what))
}

/// A call that needs a current context too, on a device that did not fail.
pub fn in_context(name: &str, what: impl FnOnce(&'static Driver, &Arc<Context>) -> Answer) -> u32 {
    let context = initialized().and_then(|_| context::current());
    let context = match context {
        Ok(context) => context,
        Err(code) => return told(name, Ok(Err(code))),
    };
    let entered = entered(name, Some(&context));
    told(name, entered.map(|driver| what(driver, &context)))
}

/// Tells of a call that was refused for what it is, not for what was planted: nobody may have looked at the answer.
fn told(name: &str, answer: Answer<Answer>) -> u32 {
    if let Ok(Err(code)) = answer
        && code != NOT_READY
        && settings().is_ok_and(|settings| settings.tell)
    {
        let line = format!(
            "stand-in of the CUDA driver: {name} was refused with {}\n",
            code.0
        );
        // In one piece, among what other threads say.
        let _ = io::stderr().write_all(line.as_bytes());
    }
    number(answer.and_then(|answer| answer))
}

/// Runs a function that was queued; it may not call the driver.
pub fn host_function(run: impl FnOnce()) {
    IN_HOST_FUNCTION.set(true);
    run();
    IN_HOST_FUNCTION.set(false);
}

#[unsafe(no_mangle)]
extern "C" fn cuInit(flags: u32) -> u32 {
    number(init(flags))
}

fn init(flags: u32) -> Answer {
    if DRIVER.get().is_some() {
        initialized()?;
    }
    let settings = settings().map_err(said)?;
    settings.faults.count("cuInit")?;
    if flags != 0 {
        return Err(INVALID_VALUE);
    }
    if settings.visible.is_empty() {
        return Err(NO_DEVICE);
    }
    let _alone = lock(&STARTING);
    if DRIVER.get().is_none() {
        let driver = Driver::new(settings).map_err(|why| said(&why))?;
        let _ = DRIVER.set(driver);
    }
    Ok(())
}

/// A mistake of the test, not of what it tests.
fn said(why: &str) -> Code {
    eprintln!("stand-in of the CUDA driver: {why}");
    UNKNOWN
}

pub fn settings() -> Result<&'static Settings, &'static str> {
    let read = SETTINGS.get_or_init(|| Settings::read(|name| env::var(name).ok()));
    read.as_ref().map_err(String::as_str)
}

/// The driver, in the process that initialized it. Takes no lock: one might be held for ever in a forked child.
fn initialized() -> Answer<&'static Driver> {
    let driver = DRIVER.get().ok_or(NOT_INITIALIZED)?;
    if driver.pid != process::id() {
        return Err(NOT_INITIALIZED);
    }
    if IN_HOST_FUNCTION.get() {
        return Err(NOT_PERMITTED);
    }
    Ok(driver)
}

fn entered(name: &str, context: Option<&Context>) -> Answer<&'static Driver> {
    let driver = initialized()?;
    if let Some(context) = context {
        driver.sound(context.device)?;
    }
    if let Err(code) = driver.settings.faults.count(name) {
        if let Some(context) = context {
            driver.fail(context.device, code);
        }
        return Err(code);
    }
    Ok(driver)
}

fn number(answer: Answer) -> u32 {
    answer.err().map_or(0, |code| code.0)
}
