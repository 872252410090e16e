//! What ends a measurement early: a signal, or the end of the simulator that it is of.

use std::thread;
use std::time::{Duration, Instant};

use crate::bench::simulator::Simulator;
use crate::exit::Failure;
use crate::interrupt::Interrupt;

/// A process that is killed closes its connections a moment before it can be seen to have ended.
const MOMENT: Duration = Duration::from_millis(500);

/// Asked again and again while something is measured.
#[derive(Clone, Copy)]
pub(crate) struct Watch<'a> {
    /// None: signals are seen to already.
    interrupt: Option<&'a Interrupt>,
    simulator: Option<&'a Simulator>,
}

impl<'a> Watch<'a> {
    /// Watches for signals, and the simulator where there is one.
    pub(crate) fn new(interrupt: &'a Interrupt, simulator: Option<&'a Simulator>) -> Self {
        Self {
            interrupt: Some(interrupt),
            simulator,
        }
    }

    /// Lets a signal pass that is being seen to.
    pub(crate) fn without_signals(self) -> Self {
        Self {
            interrupt: None,
            ..self
        }
    }

    /// The error that ends it now, if any.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        if let Some(signal) = self.interrupt.and_then(Interrupt::signal) {
            return Err(Failure::Interrupted(signal));
        }
        match self.simulator.and_then(Simulator::end) {
            Some(how) => Err(Failure::Other(format!(
                "the simulator ended during the measurement: {how}"
            ))),
            None => Ok(()),
        }
    }

    /// The same after requests failed, which may be because the simulator is just ending.
    pub(crate) fn check_after_failures(&self) -> Result<(), Failure> {
        let until = Instant::now() + MOMENT;
        loop {
            self.check()?;
            if self.simulator.is_none() || Instant::now() >= until {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}
