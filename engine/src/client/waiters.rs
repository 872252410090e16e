//! GETs that are awaited one by one: they share a queue, and a thread that waits for its completions while there
//! are any.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use s3engine_ring::Bell;
use tokio::sync::oneshot;

use super::Connected;
use crate::completion::Completion;
use crate::far::Home;
use crate::get::{Get, Ticket};
use crate::queue::{Queue, QueueOptions};

/// GETs on the queue at once; others wait for their turn.
const AT_ONCE: usize = 1024;

/// The longest wait for a bell, after which it is looked anyway.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Names one awaited GET.
pub(crate) type Number = u64;

#[derive(Default)]
pub(crate) struct Waiters(Mutex<State>);

#[derive(Default)]
struct State {
    queue: Option<Queue>,
    /// Those for whom the queue has no room yet.
    behind: VecDeque<(Number, Get)>,
    waiting: HashMap<Number, (Option<Ticket>, oneshot::Sender<Completion>)>,
    by_ticket: HashMap<Ticket, Number>,
    next: Number,
    /// Whether the thread runs.
    runs: bool,
}

impl Waiters {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Submits a GET of one waiter.
    pub(crate) fn get(
        connected: &Arc<Connected>,
        get: Get,
    ) -> (Number, oneshot::Receiver<Completion>) {
        let (sender, receiver) = oneshot::channel();
        let mut state = connected.waiters.lock();
        let number = state.next;
        state.next += 1;
        state.waiting.insert(number, (None, sender));
        state.behind.push_back((number, get));
        state.queue.get_or_insert_with(|| {
            let home = Arc::clone(connected) as Arc<dyn Home>;
            Queue::new(home, QueueOptions { capacity: AT_ONCE })
        });
        state.push();
        if !state.runs {
            let weak = Arc::downgrade(connected);
            let thread = thread::Builder::new().name("s3engine-await".to_owned());
            // Without a thread nobody is told, and the sender's end says so.
            match thread.spawn(move || tell(&weak)) {
                Ok(_) => state.runs = true,
                Err(_) => drop(state.waiting.remove(&number)),
            }
        }
        (number, receiver)
    }

    /// Nobody waits for that one any more.
    pub(crate) fn cancel(&self, number: Number) {
        let mut state = self.lock();
        if let Some((Some(ticket), _)) = state.waiting.remove(&number)
            && let Some(queue) = &mut state.queue
        {
            queue.cancel(ticket);
        }
        state.behind.retain(|(behind, _)| *behind != number);
    }
}

impl State {
    /// Puts as many GETs on the queue as there is room for.
    fn push(&mut self) {
        let Some(queue) = &mut self.queue else { return };
        while let Some((number, get)) = self.behind.pop_front() {
            match queue.push(get) {
                Ok(ticket) => {
                    self.by_ticket.insert(ticket, number);
                    if let Some((of, _)) = self.waiting.get_mut(&number) {
                        *of = Some(ticket);
                    }
                }
                Err(full) => {
                    self.behind.push_front((number, full.get));
                    break;
                }
            }
        }
        queue.submit();
    }

    /// Hands completions to those who wait for them. Returns whether there were any.
    fn tell(&mut self) -> bool {
        let Some(queue) = &mut self.queue else {
            return false;
        };
        let mut any = false;
        for completion in queue.completions() {
            any = true;
            if completion.flags.contains(crate::Flags::MORE) {
                continue;
            }
            let number = self.by_ticket.remove(&completion.ticket());
            let waiter = number.and_then(|number| self.waiting.remove(&number));
            if let Some((_, waiter)) = waiter {
                let _ = waiter.send(completion);
            }
        }
        any
    }
}

/// Tells waiters until there are none.
fn tell(connected: &Weak<Connected>) {
    loop {
        let Some(connected) = connected.upgrade() else {
            return;
        };
        let mut state = connected.waiters.lock();
        if state.tell() {
            state.push();
            continue;
        }
        let outstanding = state.queue.as_ref().map_or(0, Queue::outstanding);
        if outstanding == 0 && state.behind.is_empty() {
            // The next one starts another thread. The queue goes, and with it the hold on the engine.
            state.runs = false;
            let queue = state.queue.take();
            drop(state);
            drop(queue);
            return;
        }
        let bell = state.queue.as_mut().and_then(Queue::sleep_on);
        drop(state);
        drop(connected);
        match bell {
            // An end that is gone is seen above.
            Some(bell) => drop(bell.wait(LOOK_AGAIN)),
            None => thread::yield_now(),
        }
    }
}
