//! What tells of a client without a message: its bells, and its end.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use s3engine_ring::SocketBell;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::link::Link;

/// Passes a client's rings on, until it has closed its end.
pub(super) async fn hear_bell(bell: Arc<SocketBell>, link: Arc<Link>) {
    let Ok(bell) = watched(bell) else { return };
    while let Ok(mut ready) = bell.readable().await {
        // Before the drain: a ring that comes after it is an event of its own.
        ready.clear_ready();
        if bell.get_ref().drain().is_err() {
            return;
        }
        link.to_engine.notify_one();
    }
}

/// Completes when the client's process has ended.
pub(super) async fn died(pidfd: Option<OwnedFd>) -> String {
    let watched = pidfd.and_then(|fd| watched(fd).ok());
    match watched {
        Some(pidfd) => {
            let _ = pidfd.readable().await;
            "its process has ended".to_owned()
        }
        None => std::future::pending().await,
    }
}

/// Watches a descriptor until it can be read.
#[allow(
    deprecated,
    reason = "the descriptor is the value's own, the same for as long as that lives"
)]
fn watched<T: AsRawFd>(of: T) -> io::Result<AsyncFd<T>> {
    AsyncFd::with_interest(of, Interest::READABLE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use s3engine_ring::Bell;
    use std::time::Duration;

    #[tokio::test]
    async fn an_end_that_comes_together_with_rings_is_heard() {
        let (near, far) = SocketBell::pair().unwrap();
        let near = Arc::new(near);
        let bell = Arc::clone(&near) as Arc<dyn Bell + Send + Sync>;
        let link = Link::new(Arc::default(), bell);
        // One event for both: the drain takes the rings, and the end has no event of its own.
        far.ring().unwrap();
        drop(far);
        let heard = tokio::time::timeout(Duration::from_secs(60), hear_bell(near, link)).await;
        assert!(heard.is_ok(), "the end was not heard");
    }
}
