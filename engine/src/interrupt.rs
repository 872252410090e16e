//! What ends a GET from outside: the caller, the deadline, the engine's own end.

use std::time::Instant;

use s3engine_s3::error::ErrorKind;
use tokio_util::sync::CancellationToken;

#[derive(Clone)]
pub(crate) struct Interrupt {
    cancel: CancellationToken,
    stop: CancellationToken,
    until: Instant,
}

impl Interrupt {
    pub(crate) fn new(cancel: CancellationToken, stop: CancellationToken, until: Instant) -> Self {
        Self {
            cancel,
            stop,
            until,
        }
    }

    /// The same for a part of the work, which can be ended alone.
    pub(crate) fn child(&self) -> Self {
        Self {
            cancel: self.cancel.child_token(),
            ..self.clone()
        }
    }

    /// Ends the work that has this interrupt, and its children.
    pub(crate) fn cancel(&self) {
        self.cancel.cancel();
    }

    /// Completes when the work should end, and says why.
    pub(crate) async fn raised(&self) -> ErrorKind {
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => ErrorKind::Cancelled,
            () = self.stop.cancelled() => ErrorKind::Cancelled,
            () = tokio::time::sleep_until(self.until.into()) => ErrorKind::Deadline,
        }
    }

    /// Completes when the engine stops.
    pub(crate) async fn stopped(&self) {
        self.stop.cancelled().await;
    }

    /// Runs `work` unless it should end first. Dropping transfers is safe (see `Transport`). It is pinned by the caller,
    /// since a future that is handed over takes its room twice.
    pub(crate) async fn or<T>(
        &self,
        work: impl Future<Output = T> + Unpin,
    ) -> Result<T, ErrorKind> {
        tokio::select! {
            biased;
            why = self.raised() => Err(why),
            done = work => Ok(done),
        }
    }
}
