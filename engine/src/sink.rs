//! Where completions go: a queue's ring, or a single waiter. Each GET ends in exactly one, whatever happens.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use event_listener::Event;
use tokio::sync::oneshot;

use crate::completion::{Completion, Flags};

/// Completions of one queue that nobody has taken yet.
#[derive(Default)]
pub(crate) struct Completed {
    ready: Mutex<VecDeque<Completion>>,
    pub(crate) arrived: Event,
}

impl Completed {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Completion>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    pub(crate) fn pop(&self) -> Option<Completion> {
        self.lock().pop_front()
    }

    pub(crate) fn push(&self, completion: Completion) {
        self.lock().push_back(completion);
        self.arrived.notify(1);
    }
}

/// Where the completions of one GET go.
pub(crate) enum Sink {
    Queue(Arc<Completed>),
    Waiter(oneshot::Sender<Completion>),
}

impl Sink {
    /// Delivers news of a GET that goes on. A single waiter hears only of the end.
    pub(crate) fn news(&self, completion: Completion) {
        debug_assert!(completion.flags.contains(Flags::MORE));
        if let Sink::Queue(completed) = self {
            completed.push(completion);
        }
    }

    /// Delivers the end.
    pub(crate) fn end(self, completion: Completion) {
        match self {
            Sink::Queue(completed) => completed.push(completion),
            // Nobody waits any more: the buffer returns to the pool.
            Sink::Waiter(waiter) => drop(waiter.send(completion)),
        }
    }
}
