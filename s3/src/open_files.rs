//! Open files of this process: its limit, and how many of them connections may be.
//!
//! A connection takes a place among those that there may be. Where none is free, idle ones are closed first, those of
//! other threads too; then it waits. So does one that the system refuses for want of files: others of the process, or
//! of the host, have them at the moment.

use std::io;
use std::pin::pin;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::{Notify, Semaphore, SemaphorePermit};
use tokio::time::sleep;

/// More than any process needs, and few enough for programs that walk through all that there may be.
const ENOUGH: u64 = 1 << 20;

/// Kept for the rest of the process, beside what is open already.
const RESERVE: u64 = 64;

/// The fewest connections, however low the limit.
const LEAST: u64 = 4;

/// How long one who waits for a file waits before it asks again.
const AGAIN: Duration = Duration::from_millis(50);

/// The open files of a process.
pub(crate) struct OpenFiles {
    connections: usize,
    free: Semaphore,
    crowded: Notify,
    was_told: AtomicBool,
}

/// The place of one connection. Free again on drop.
pub(crate) struct FilePlace(
    #[expect(dead_code, reason = "held for its end")] SemaphorePermit<'static>,
);

/// Raises the limit of open files as far as the system lets this process. Returns it.
pub fn raise_limit() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let most = maximum.map_or(ENOUGH, |maximum| maximum.min(ENOUGH));
    let now = current.unwrap_or(u64::MAX);
    if now >= most {
        return now;
    }
    let raised = Rlimit {
        current: Some(most),
        maximum,
    };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => most,
        Err(error) => {
            tracing::warn!(%error, limit = now, "the number of open files cannot be raised");
            now
        }
    }
}

/// How many connections this process may have.
pub fn connections() -> usize {
    OpenFiles::of_process().connections
}

/// Completes when idle connections are wanted for others.
pub async fn are_wanted() {
    OpenFiles::of_process().crowded.notified().await;
}

/// Half of the limit at most: the other half is for what clients of this process take.
fn connections_of(limit: u64, open: u64) -> usize {
    let left = limit.saturating_sub(open + RESERVE).min(limit / 2);
    left.clamp(LEAST, ENOUGH) as usize
}

impl OpenFiles {
    /// Raises the limit when it is asked for first.
    pub(crate) fn of_process() -> &'static OpenFiles {
        static FILES: OnceLock<OpenFiles> = OnceLock::new();
        FILES.get_or_init(|| {
            let limit = raise_limit();
            let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
            OpenFiles::new(connections_of(limit, open as u64))
        })
    }

    fn new(connections: usize) -> OpenFiles {
        OpenFiles {
            connections,
            free: Semaphore::new(connections),
            crowded: Notify::new(),
            was_told: AtomicBool::new(false),
        }
    }

    /// Whether one more idle connection would be in somebody's way.
    pub(crate) fn are_all_taken(&self) -> bool {
        self.free.available_permits() == 0
    }

    /// A place for one more connection. The caller's idle ones are closed where none is free.
    pub(crate) async fn place(&'static self, close_idle: impl Fn()) -> FilePlace {
        if let Ok(place) = self.free.try_acquire() {
            return FilePlace(place);
        }
        close_idle();
        let mut free = pin!(self.free.acquire());
        loop {
            // Again and again: a thread may be about to have idle ones.
            self.crowded.notify_waiters();
            tokio::select! {
                biased;
                // Never closed.
                Ok(place) = &mut free => return FilePlace(place),
                () = sleep(AGAIN) => {}
            }
        }
    }

    /// Waits for a file, since the system had none.
    pub(crate) async fn wait(&self, error: &io::Error) {
        if !self.was_told.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                %error,
                "no file is free for a connection: requests wait; raise the limit (ulimit -n, LimitNOFILE, fs.file-max)"
            );
        }
        self.crowded.notify_waiters();
        sleep(AGAIN).await;
    }
}

/// Whether a failure is the want of files.
pub(crate) fn are_lacking(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::MFILE | Errno::NFILE)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_files_for_others() {
        assert_eq!(connections_of(1024, 20), 512);
        assert_eq!(connections_of(1024, 700), 260);
        assert_eq!(connections_of(100, 30), 6);
        assert_eq!(connections_of(100, 90), LEAST as usize);
        assert_eq!(connections_of(u64::MAX, 20), ENOUGH as usize);
    }

    #[test]
    fn the_want_of_files_is_known_from_other_failures() {
        let of = |errno: Errno| are_lacking(&io::Error::from_raw_os_error(errno.raw_os_error()));
        assert!(of(Errno::MFILE) && of(Errno::NFILE) && !of(Errno::CONNREFUSED));
    }

    #[tokio::test]
    async fn r33_where_no_place_is_free_idle_connections_are_closed_and_others_wait() {
        let files: &'static OpenFiles = Box::leak(Box::new(OpenFiles::new(2)));
        let closed = std::cell::Cell::new(0);
        let close_idle = || closed.set(closed.get() + 1);
        let first = files.place(close_idle).await;
        let _second = files.place(close_idle).await;
        assert!(files.are_all_taken() && closed.get() == 0);
        // Another thread hears of it, and has one.
        let other = async {
            files.crowded.notified().await;
            drop(first);
        };
        let (_third, ()) = tokio::join!(files.place(close_idle), other);
        assert_eq!(closed.get(), 1);
    }
}
