//! What was asked of the host service and is not answered: who waits for it, and what becomes of an answer that
//! nobody hears any more.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::control::{Ask, Failure, Said};

pub(super) type Answered = Result<(Said, Vec<OwnedFd>), Failure>;

/// Who waits for an answer.
pub(super) enum Waiter {
    /// A thread, which knows by itself when it has waited too long.
    Thread(mpsc::SyncSender<Answered>),
    Task {
        since: Instant,
        sender: oneshot::Sender<Answered>,
    },
}

impl Waiter {
    /// Tells it. Returns what is to be said where nobody hears: what came with the answer goes back.
    pub(super) fn tell(self, answered: Answered) -> Option<Ask> {
        let unheard = match self {
            Waiter::Thread(sender) => match sender.try_send(answered) {
                Ok(()) => return None,
                Err(mpsc::TrySendError::Full(answered)) => answered,
                Err(mpsc::TrySendError::Disconnected(answered)) => answered,
            },
            Waiter::Task { sender, .. } => match sender.send(answered) {
                Ok(()) => return None,
                Err(answered) => answered,
            },
        };
        give_back(unheard)
    }

    /// Whether it is a task that has waited for so long.
    fn is_late(&self, patience: Duration) -> bool {
        matches!(self, Waiter::Task { since, .. } if since.elapsed() >= patience)
    }
}

/// What is said to give back that which came with an answer.
pub(super) fn give_back(answered: Answered) -> Option<Ask> {
    match answered {
        Ok((Said::Leased(leased), _)) => {
            let slots = vec![leased.slot];
            Some(Ask::Free { slots })
        }
        Ok((Said::Opened { object, .. }, _)) => Some(Ask::Close { object }),
        // A queue ends with this end of its bell, which is dropped here.
        _ => None,
    }
}

/// Everybody who waits, by the number of what was asked.
#[derive(Default)]
pub(super) struct Asks {
    waiting: Mutex<HashMap<u64, Waiter>>,
    last: AtomicU64,
}

impl Asks {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Waiter>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody waits from now on. Returns the number.
    pub(super) fn enter(&self, waiter: Waiter) -> u64 {
        let id = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        self.lock().insert(id, waiter);
        id
    }

    /// Who waits for that does not any more.
    pub(super) fn leave(&self, id: u64) -> Option<Waiter> {
        self.lock().remove(&id)
    }

    /// Nobody does.
    pub(super) fn leave_all(&self) -> Vec<Waiter> {
        self.lock().drain().map(|(_, waiter)| waiter).collect()
    }

    /// Nor do the tasks that have waited for so long.
    pub(super) fn leave_late(&self, patience: Duration) -> Vec<(u64, Waiter)> {
        let mut waiting = self.lock();
        waiting
            .extract_if(|_, waiter| waiter.is_late(patience))
            .collect()
    }

    pub(super) fn has_tasks(&self) -> bool {
        let is_task = |waiter: &Waiter| matches!(waiter, Waiter::Task { .. });
        self.lock().values().any(is_task)
    }
}
