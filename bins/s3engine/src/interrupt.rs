//! Ctrl-C and termination: told to the main thread, which tidies up; enforced where it cannot.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// How long the main thread has for tidying up. It may be stuck in a write to a pipe that nobody reads.
const GRACE: Duration = Duration::from_secs(2);

/// Whether this process was asked to end, and what must not outlive it.
#[derive(Clone, Default)]
pub(crate) struct Interrupt(Arc<Shared>);

#[derive(Default)]
struct Shared {
    /// The signal, or 0.
    signal: AtomicI32,
    /// The file to remove if the process ends now.
    partial: Mutex<Option<PathBuf>>,
}

impl Interrupt {
    /// Handles the signals of this process from now on.
    pub(crate) fn install() -> io::Result<Self> {
        let interrupt = Self::default();
        let mut signals = Signals::new([SIGINT, SIGTERM])?;
        let told = interrupt.clone();
        thread::Builder::new()
            .name("signals".into())
            .spawn(move || {
                for signal in signals.forever() {
                    told.raise(signal);
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
        let partial = self.lock();
        if let Some(path) = &*partial {
            let _ = fs::remove_file(path);
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

    /// A file that exists from `create` on until it is kept, and is removed otherwise.
    pub(crate) fn partial_file<T>(
        &self,
        path: PathBuf,
        create: impl FnOnce(&Path) -> io::Result<T>,
    ) -> io::Result<(PartialFile, T)> {
        let mut partial = self.lock();
        let created = create(&path)?;
        *partial = Some(path.clone());
        let file = PartialFile {
            interrupt: self.clone(),
            path,
        };
        Ok((file, created))
    }

    fn lock(&self) -> MutexGuard<'_, Option<PathBuf>> {
        self.0
            .partial
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// The name of a file that is not complete. Dropping it removes the file.
pub(crate) struct PartialFile {
    interrupt: Interrupt,
    path: PathBuf,
}

impl PartialFile {
    /// Gives the file its final name, in place of whatever has it.
    pub(crate) fn keep_as(self, name: &Path) -> io::Result<()> {
        let mut partial = self.interrupt.lock();
        fs::rename(&self.path, name)?;
        *partial = None;
        Ok(())
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        if let Some(path) = self.interrupt.lock().take() {
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
        assert!(interrupt.lock().is_none());
    }

    #[test]
    fn a_file_that_could_not_be_made_is_not_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("other");
        fs::write(&path, "kept").unwrap();
        let interrupt = Interrupt::default();
        let made = interrupt.partial_file(path.clone(), |path| File::create_new(path));
        assert!(made.is_err());
        assert!(path.exists() && interrupt.lock().is_none());
    }
}
