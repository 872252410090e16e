//! Calls into a vendor's library, which may take long, or never return: one at a time, on a thread of their own.
//!
//! Whoever asks waits for a bounded time. While a call has not returned the thread is taken, and others are refused
//! as soon as that has taken longer than the bound; when it returns after all, all is as before. What a call that
//! nobody waits for any more has brought about is undone.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use tokio::sync::oneshot::{self, error::RecvError};

/// A thread that makes calls.
#[derive(Debug)]
pub(crate) struct Calls {
    jobs: Sender<Job>,
    current: Arc<Mutex<Option<Current>>>,
    bound: Duration,
}

type Job = (&'static str, Box<dyn FnOnce() + Send>);

/// The call that the thread is in.
#[derive(Clone, Copy, Debug)]
struct Current {
    what: &'static str,
    since: Instant,
}

/// A call has not returned in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoAnswer {
    /// This one, or one before it.
    #[error("{what} has not returned within {} s; it is not called again until it does", .after.as_secs_f64())]
    Hangs { what: &'static str, after: Duration },
    /// The thread has ended: a call has panicked.
    #[error("{what} was not called: an earlier call has ended its thread")]
    Ended { what: &'static str },
}

impl Calls {
    /// Starts the thread. Nobody waits longer than `bound` for an answer.
    pub(crate) fn start(name: &str, bound: Duration) -> io::Result<Self> {
        let (jobs, queue) = mpsc::channel::<Job>();
        let current: Arc<Mutex<Option<Current>>> = Arc::default();
        let calling = Arc::clone(&current);
        // Ends with the last sender; nobody waits for it, for it may hang.
        thread::Builder::new().name(name.into()).spawn(move || {
            for (what, job) in queue {
                let since = Instant::now();
                *lock(&calling) = Some(Current { what, since });
                job();
                *lock(&calling) = None;
            }
        })?;
        Ok(Self {
            jobs,
            current,
            bound,
        })
    }

    /// Makes a call. `undo` gets what it returns when nobody waits for it any more.
    pub(crate) async fn call<T: Send + 'static>(
        &self,
        what: &'static str,
        call: impl FnOnce() -> T + Send + 'static,
        undo: impl FnOnce(T) + Send + 'static,
    ) -> Result<T, NoAnswer> {
        let mut answer = self.submit(what, call, undo)?;
        let answered = tokio::time::timeout(self.bound, &mut answer).await;
        self.answer(what, answer, answered.ok())
    }

    /// The same, blocking the calling thread, and no longer than `within`.
    pub(crate) fn call_blocking<T: Send + 'static>(
        &self,
        what: &'static str,
        within: Duration,
        call: impl FnOnce() -> T + Send + 'static,
        undo: impl FnOnce(T) + Send + 'static,
    ) -> Result<T, NoAnswer> {
        let mut answer = self.submit(what, call, undo)?;
        let answered = wait(&mut answer, within.min(self.bound));
        self.answer(what, answer, answered)
    }

    /// Makes a call that nobody waits for, unless the thread hangs.
    pub(crate) fn post(&self, what: &'static str, call: impl FnOnce() + Send + 'static) {
        if self.hanging().is_none() {
            // Without its thread there is nobody to tell.
            let _ = self.jobs.send((what, Box::new(call)));
        }
    }

    /// The longest wait for an answer.
    pub(crate) fn bound(&self) -> Duration {
        self.bound
    }

    fn submit<T: Send + 'static>(
        &self,
        what: &'static str,
        call: impl FnOnce() -> T + Send + 'static,
        undo: impl FnOnce(T) + Send + 'static,
    ) -> Result<oneshot::Receiver<T>, NoAnswer> {
        if let Some(what) = self.hanging() {
            let after = self.bound;
            return Err(NoAnswer::Hangs { what, after });
        }
        let (sender, answer) = oneshot::channel();
        let job = move || {
            if sender.is_closed() {
                return;
            }
            if let Err(unwanted) = sender.send(call()) {
                undo(unwanted);
            }
        };
        let sent = self.jobs.send((what, Box::new(job)));
        sent.map_err(|_| NoAnswer::Ended { what })?;
        Ok(answer)
    }

    /// What was answered, or comes just now; what comes later is undone.
    fn answer<T>(
        &self,
        what: &'static str,
        mut answer: oneshot::Receiver<T>,
        answered: Option<Result<T, RecvError>>,
    ) -> Result<T, NoAnswer> {
        match answered {
            Some(answered) => answered.map_err(|_| NoAnswer::Ended { what }),
            None => {
                answer.close();
                answer.try_recv().map_err(|_| self.hangs())
            }
        }
    }

    /// The call that has not returned for longer than the bound.
    fn hanging(&self) -> Option<&'static str> {
        let current = (*lock(&self.current))?;
        (current.since.elapsed() >= self.bound).then_some(current.what)
    }

    fn hangs(&self) -> NoAnswer {
        let current = lock(&self.current).map(|current| current.what);
        NoAnswer::Hangs {
            what: current.unwrap_or("a call before this one"),
            after: self.bound,
        }
    }
}

/// Waits on this thread.
fn wait<F: Future + Unpin>(future: F, bound: Duration) -> Option<F::Output> {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    let began = Instant::now();
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return Some(output);
        }
        thread::park_timeout(bound.checked_sub(began.elapsed())?);
    }
}

fn lock(current: &Mutex<Option<Current>>) -> MutexGuard<'_, Option<Current>> {
    current.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEVER: Duration = Duration::from_secs(60);

    fn calls(bound: Duration) -> Calls {
        Calls::start("test", bound).unwrap()
    }

    fn block_on<F: Future>(future: F) -> F::Output {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build();
        runtime.unwrap().block_on(future)
    }

    #[test]
    fn calls_are_made_in_turn_on_one_thread() {
        let calls = calls(NEVER);
        let first = calls.call_blocking("first", NEVER, || thread::current().id(), drop);
        let second = block_on(calls.call("second", || thread::current().id(), drop));
        assert_eq!(first, second);
        assert_ne!(first.unwrap(), thread::current().id());
    }

    #[test]
    fn a_call_that_hangs_is_named_refuses_others_and_is_undone_when_it_returns() {
        let calls = calls(Duration::from_millis(20));
        let (release, held) = mpsc::channel::<()>();
        let (undone, seen) = mpsc::channel();
        let hung = calls.call_blocking(
            "the hanging one",
            NEVER,
            move || held.recv().map_or(0, |()| 7),
            move |value| undone.send(value).unwrap(),
        );
        let after = Duration::from_millis(20);
        let what = "the hanging one";
        assert_eq!(hung, Err(NoAnswer::Hangs { what, after }));
        let refused = block_on(calls.call("another", || (), drop));
        assert_eq!(refused, Err(NoAnswer::Hangs { what, after }));
        release.send(()).unwrap();
        assert_eq!(seen.recv_timeout(NEVER), Ok(7));
        // It is free again, when it has taken note.
        while calls.call_blocking("a third", NEVER, || (), drop).is_err() {
            thread::yield_now();
        }
    }

    #[test]
    fn a_call_that_nobody_waits_for_any_more_is_not_made() {
        let calls = calls(Duration::from_millis(20));
        let (release, held) = mpsc::channel::<()>();
        let (made, seen) = mpsc::channel();
        let first = calls.submit("first", move || held.recv().is_ok(), drop);
        let second = calls.submit("second", move || made.send(()).unwrap(), drop);
        drop(second);
        release.send(()).unwrap();
        drop(first);
        assert!(seen.recv_timeout(NEVER).is_err(), "it was made");
    }

    #[test]
    fn a_call_that_panics_ends_the_thread_and_others_are_told() {
        let calls = calls(NEVER);
        let first = calls.call_blocking("first", NEVER, || panic!("as planned"), drop);
        assert_eq!(first, Err(NoAnswer::Ended { what: "first" }));
        let mut second = Ok(());
        while second.is_ok() {
            second = calls.call_blocking("second", NEVER, || (), drop);
        }
        assert_eq!(second, Err(NoAnswer::Ended { what: "second" }));
    }
}
