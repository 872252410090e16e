//! Waiting for the engine, and for signals and the clock at the same time.

use std::future::Future;
use std::pin::pin;
use std::time::{Duration, Instant};

use crate::exit::Failure;
use crate::interrupt::Interrupt;

/// Waits for a future of the engine's, as long as there is time and nobody asks to end.
pub(crate) fn wait_for<F: Future>(
    future: F,
    until: Option<Instant>,
    late: impl FnOnce() -> Failure,
    interrupt: &Interrupt,
) -> Result<F::Output, Failure> {
    const POLL: Duration = Duration::from_millis(100);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .map_err(|error| Failure::Other(format!("cannot start a runtime: {error}")))?;
    runtime.block_on(async {
        let mut future = pin!(future);
        loop {
            if let Ok(output) = tokio::time::timeout(POLL, &mut future).await {
                return Ok(output);
            }
            if let Some(signal) = interrupt.signal() {
                return Err(Failure::Interrupted(signal));
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                return Err(late());
            }
        }
    })
}
