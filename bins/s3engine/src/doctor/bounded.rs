//! Work that may hang, with a bound: on a thread that is left behind if it does.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// What the work gives, or that it has not ended in time.
pub(crate) fn within<T: Send + 'static>(
    bound: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    let (sender, receiver) = mpsc::channel();
    let spawned = thread::Builder::new().spawn(move || {
        // Nobody listens any more where it took too long.
        let _ = sender.send(work());
    });
    spawned.map_err(|error| format!("cannot start a thread: {error}"))?;
    let ended = receiver.recv_timeout(bound);
    ended.map_err(|_| format!("it has not ended within {} s", bound.as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hangs_is_left_behind_and_said_to() {
        let (_keep, never) = mpsc::channel::<()>();
        let hung = within(Duration::from_millis(20), move || never.recv().is_ok());
        assert_eq!(hung, Err("it has not ended within 0.02 s".to_owned()));
        assert_eq!(within(Duration::from_secs(60), || 7), Ok(7));
    }
}
