//! What tells of a client without a message: its bell, and its end.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use s3engine_ring::{EventBell, SocketBell};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::link::Link;

/// Passes a client's rings on, until it has closed its end of the other bell.
pub(super) async fn hear_bell(bell: EventBell, back: Arc<SocketBell>, link: Arc<Link>) {
    let (Ok(bell), Ok(back)) = (watched(bell), watched(back)) else {
        return;
    };
    loop {
        tokio::select! {
            // Each ring is an event of its own. Nothing is read: that could be made to wait.
            ready = bell.readable() => match ready {
                Ok(mut ready) => ready.clear_ready(),
                Err(_) => return,
            },
            ready = back.readable() => {
                // Before the drain: an end that comes after it is an event of its own.
                match ready {
                    Ok(mut ready) => ready.clear_ready(),
                    Err(_) => return,
                }
                // Nobody rings here; who does is not heard, but its end is.
                if back.get_ref().drain().is_err() {
                    return;
                }
                continue;
            }
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
        let hears = hear_bell(EventBell::new().unwrap(), near, link);
        let heard = tokio::time::timeout(Duration::from_secs(60), hears).await;
        assert!(heard.is_ok(), "the end was not heard");
    }

    #[tokio::test]
    async fn each_ring_is_heard_though_the_counter_is_never_read() {
        let (near, far) = SocketBell::pair().unwrap();
        let near = Arc::new(near);
        let bell = Arc::clone(&near) as Arc<dyn Bell + Send + Sync>;
        let link = Link::new(Arc::default(), bell);
        let own = EventBell::new().unwrap();
        let rung = EventBell::from_fd(own.share().unwrap());
        let rings = async {
            for nth in 0..100 {
                rung.ring().unwrap();
                let heard = link.to_engine.notified();
                let heard = tokio::time::timeout(Duration::from_secs(60), heard).await;
                assert!(heard.is_ok(), "ring {nth} was not heard");
            }
        };
        tokio::select! {
            () = hear_bell(own, near, Arc::clone(&link)) => panic!("the client is there"),
            () = rings => {}
        }
        drop(far);
    }
}
