//! Where completions go: to the engine's end of a queue, or to a single waiter. Each GET ends in exactly one,
//! whatever happens.

use tokio::sync::{mpsc, oneshot};

use crate::completion::{Completion, Flags};

/// Where the completions of one GET go.
pub(crate) enum Sink {
    Queue(mpsc::UnboundedSender<Completion>),
    Waiter(oneshot::Sender<Completion>),
}

impl Sink {
    /// Delivers news of a GET that goes on. A single waiter hears only of the end.
    pub(crate) fn news(&self, completion: Completion) {
        debug_assert!(completion.flags.contains(Flags::MORE));
        if let Sink::Queue(served) = self {
            let _ = served.send(completion);
        }
    }

    /// Delivers the end. Where nobody waits any more, the buffer returns to the pool.
    pub(crate) fn end(self, completion: Completion) {
        match self {
            Sink::Queue(served) => drop(served.send(completion)),
            Sink::Waiter(waiter) => drop(waiter.send(completion)),
        }
    }
}
