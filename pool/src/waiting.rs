//! Waiting for memory to come back, by threads and by tasks.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Instant;

use event_listener::EventListener;

/// Ready when memory may have come back since it was made.
pub(crate) enum Changed {
    /// A lease of the client ended, or room came within the pool's bound.
    Owner {
        client: EventListener,
        pool: EventListener,
    },
    /// As the owner in another process says.
    Remote(Pin<Box<dyn Future<Output = ()> + Send>>),
    /// At once: in a forked child nothing comes back.
    Now,
}

impl Future for Changed {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let ready = match &mut *self {
            // Both are polled, so that either wakes.
            Self::Owner { client, pool } => {
                let client = Pin::new(client).poll(context).is_ready();
                Pin::new(pool).poll(context).is_ready() || client
            }
            Self::Remote(changed) => changed.as_mut().poll(context).is_ready(),
            Self::Now => true,
        };
        if !ready {
            return Poll::Pending;
        }
        // An event is heard once; polled again, it is still ready.
        *self = Self::Now;
        Poll::Ready(())
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Blocks this thread until `changed` is ready, or the time has come. No time is for ever.
pub(crate) fn wait(changed: Changed, until: Option<Instant>) {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut changed = pin!(changed);
    while changed.as_mut().poll(&mut context).is_pending() {
        let Some(until) = until else {
            thread::park();
            continue;
        };
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        thread::park_timeout(left);
    }
}
