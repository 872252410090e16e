//! Ctrl-C, a hang-up and termination: told to the main thread, which tidies up; enforced where it cannot. And the
//! signal that asks what is outstanding.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::process::{Signal, pidfd_send_signal};
use s3engine::Engine;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use crate::outstanding::{Watch, Watched};

/// How long the main thread has for tidying up. It may be stuck in a write to a pipe that nobody reads.
const GRACE: Duration = Duration::from_secs(2);

/// Whether this process was asked to end, and what must not outlive it.
#[derive(Clone, Default)]
pub(crate) struct Interrupt(Arc<Shared>);

#[derive(Default)]
struct Shared {
    /// The signal, or 0.
    signal: AtomicI32,
    left: Mutex<Left>,
    watched: Watched,
}

/// What must not be left if the process ends now.
#[derive(Default)]
struct Left {
    /// A file to remove.
    partial: Option<PathBuf>,
    /// A child process to kill.
    child: Option<OwnedFd>,
}

impl Interrupt {
    /// Handles the signals of this process from now on.
    pub(crate) fn install() -> io::Result<Self> {
        let interrupt = Self::default();
        let mut handled = vec![SIGINT, SIGTERM, SIGUSR1];
        // Under nohup it is ignored from the start, and stays so.
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        if !ignores(&status, SIGHUP) {
            handled.push(SIGHUP);
        }
        let mut signals = Signals::new(handled)?;
        let told = interrupt.clone();
        thread::Builder::new()
            .name("signals".into())
            .spawn(move || {
                for signal in signals.forever() {
                    match signal {
                        SIGUSR1 => told.0.watched.tell(),
                        _ => told.raise(signal),
                    }
                }
            })?;
        Ok(interrupt)
    }

    /// The first signal asks; the second one, or time, enforces.
    fn raise(&self, signal: i32) {
        if self.0.signal.swap(signal, Ordering::AcqRel) != 0 {
            self.enforce(signal);
        }
        let late = self.clone();
        thread::spawn(move || {
            thread::sleep(GRACE);
            late.enforce(signal);
        });
    }

    fn enforce(&self, signal: i32) -> ! {
        // Kept locked: no partial file can come up any more.
        let left = self.lock();
        if let Some(path) = &left.partial {
            let _ = fs::remove_file(path);
        }
        if let Some(child) = &left.child {
            let _ = pidfd_send_signal(child, Signal::KILL);
        }
        process::exit(128 + signal)
    }

    /// The signal, where one came.
    pub(crate) fn signal(&self) -> Option<i32> {
        match self.0.signal.load(Ordering::Acquire) {
            0 => None,
            signal => Some(signal),
        }
    }

    /// From now on SIGUSR1 tells what the requests of this engine wait for, until what this returns is dropped.
    pub(crate) fn watch(&self, engine: &Engine) -> Watch {
        self.0.watched.watch(engine)
    }

    /// A child process that must not outlive this one.
    pub(crate) fn kills(&self, child: OwnedFd) {
        self.lock().child = Some(child);
    }

    /// A file that exists from `create` on until it is kept, and is removed otherwise.
    pub(crate) fn partial_file<T>(
        &self,
        path: PathBuf,
        create: impl FnOnce(&Path) -> io::Result<T>,
    ) -> io::Result<(PartialFile, T)> {
        let mut left = self.lock();
        let created = create(&path)?;
        left.partial = Some(path.clone());
        let file = PartialFile {
            interrupt: self.clone(),
            path,
        };
        Ok((file, created))
    }

    fn lock(&self) -> MutexGuard<'_, Left> {
        self.0.left.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a process of this `/proc/PID/status` ignores a signal.
fn ignores(status: &str, signal: i32) -> bool {
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// The name of a file that is not complete. Dropping it removes the file.
pub(crate) struct PartialFile {
    interrupt: Interrupt,
    path: PathBuf,
}

impl PartialFile {
    /// Gives the file its final name, in place of whatever has it.
    pub(crate) fn keep_as(self, name: &Path) -> io::Result<()> {
        let mut left = self.interrupt.lock();
        fs::rename(&self.path, name)?;
        left.partial = None;
        Ok(())
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        if let Some(path) = self.interrupt.lock().partial.take() {
            let _ = fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn a_partial_file_goes_unless_it_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.part");
        let interrupt = Interrupt::default();
        let (partial, _) = interrupt
            .partial_file(path.clone(), |path| File::create_new(path))
            .unwrap();
        assert!(path.exists());
        drop(partial);
        assert!(!path.exists());

        let (partial, _) = interrupt
            .partial_file(path.clone(), |path| File::create_new(path))
            .unwrap();
        let name = folder.path().join("x");
        partial.keep_as(&name).unwrap();
        assert!(name.exists() && !path.exists());
        assert!(interrupt.lock().partial.is_none());
    }

    #[test]
    fn a_file_that_could_not_be_made_is_not_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("other");
        fs::write(&path, "kept").unwrap();
        let interrupt = Interrupt::default();
        let made = interrupt.partial_file(path.clone(), |path| File::create_new(path));
        assert!(made.is_err());
        assert!(path.exists() && interrupt.lock().partial.is_none());
    }

    #[test]
    fn a_hang_up_is_ignored_where_the_mask_says_so() {
        let status = |mask: &str| format!("Name:\tx\nSigBlk:\t0000000000000001\nSigIgn:\t{mask}\n");
        assert!(ignores(&status("0000000000000001"), SIGHUP));
        assert!(ignores(&status("0000000000001003"), SIGHUP));
        assert!(!ignores(&status("0000000000001002"), SIGHUP));
        assert!(ignores(&status("0000000000001002"), SIGINT));
        assert!(!ignores("", SIGHUP) && !ignores("SigIgn:\tx", SIGHUP));
    }
}
