//! A cost of each registration, as a driver that registers for one process at a time has it.
//!
//! A simulated server says so by a file in the folder, which owners read when they start. It is locked for
//! as long as that server lives, so that what a killed one left behind counts for nothing. Owners pay one
//! after the other, each under the lock of a second file.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use s3engine_pool::{Process, RegisterError};

use super::error::LoopbackError;
use super::folder::Folder;
use super::socket::deadline;

/// Says what a registration costs, in microseconds.
const COST: &str = "registration-cost";
/// Locked by who registers.
const TURN: &str = "registration-turn";
/// More than any driver needs.
const MAX: Duration = Duration::from_secs(60);
/// The longest wait for others that register.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// How long a new cost waits for readers of one that counts no more.
const READERS: Duration = Duration::from_millis(200);

/// Makes each registration of owners that start from now on in this folder take so long, one at a time.
/// Dropping it ends that.
#[derive(Debug)]
pub struct RegistrationCost {
    process: Process,
    folder: Folder,
    /// Locked.
    _file: OwnedFd,
}

impl RegistrationCost {
    /// Sets the cost; of one folder only one process at a time can. The folder is the owners': by default
    /// the same for every process of a user.
    pub fn publish(folder: Option<&Path>, each: Duration) -> Result<Self, LoopbackError> {
        let folder = Folder::create(folder)?;
        let hidden = format!(".{COST}-{:016x}", rand::random::<u64>());
        let placed = place(&folder, &hidden, each.min(MAX));
        let _ = folder.remove(&hidden);
        Ok(Self {
            _file: placed?,
            process: Process::current(),
            folder,
        })
    }
}

impl Drop for RegistrationCost {
    fn drop(&mut self) {
        if self.process.is_this() {
            let _ = self.folder.remove(COST);
            let _ = self.folder.remove(TURN);
        }
    }
}

/// Writes and locks the file under a name that nobody reads, and gives it its own then: whoever sees that
/// name finds it whole and locked.
fn place(folder: &Folder, hidden: &str, each: Duration) -> Result<OwnedFd, LoopbackError> {
    let system = LoopbackError::system;
    let create = |name| rustix::fs::openat(folder, name, CREATE, Mode::RUSR | Mode::WUSR);
    let file = create(hidden).map_err(system("create a file for the cost of registrations"))?;
    rustix::io::write(&file, format!("{}\n", each.as_micros()).as_bytes())
        .map_err(system("write the cost of registrations"))?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)
        .map_err(system("lock the cost of registrations"))?;
    create(TURN).map_err(system("create a file for turns at registering"))?;
    let until = deadline(READERS);
    loop {
        match rustix::fs::linkat(folder, hidden, folder, COST, AtFlags::empty()) {
            Ok(()) => return Ok(file),
            Err(Errno::EXIST) if remove_stale(folder).map_err(system("examine a lock"))? => {}
            Err(Errno::EXIST) if Instant::now() < until => sleep(Duration::from_millis(5)),
            Err(Errno::EXIST) => {
                return Err(LoopbackError::CostTaken {
                    folder: folder.path().to_owned(),
                });
            }
            Err(errno) => return Err(system("name the cost of registrations")(errno)),
        }
    }
}

const CREATE: OFlags = OFlags::CREATE
    .union(OFlags::RDWR)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);
const OPEN: OFlags = OFlags::RDONLY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

fn open(folder: &Folder, name: &str) -> Result<Option<OwnedFd>, Errno> {
    match rustix::fs::openat(folder, name, OPEN, Mode::empty()) {
        Ok(file) => Ok(Some(file)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Tries to lock; false where another has the lock.
fn try_lock(file: &OwnedFd, operation: FlockOperation) -> Result<bool, Errno> {
    match flock(file, operation) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK | Errno::INTR) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Removes a cost whose process is gone; false where it may be alive.
fn remove_stale(folder: &Folder) -> Result<bool, Errno> {
    let Some(file) = open(folder, COST)? else {
        return Ok(true);
    };
    if !try_lock(&file, FlockOperation::NonBlockingLockExclusive)? {
        return Ok(false);
    }
    // Who had the lock before may have put another file in its place.
    let (mine, named) = (
        rustix::fs::fstat(&file)?,
        rustix::fs::statat(folder, COST, AtFlags::SYMLINK_NOFOLLOW),
    );
    if named.is_ok_and(|named| (named.st_dev, named.st_ino) == (mine.st_dev, mine.st_ino)) {
        folder.remove(COST)?;
    }
    Ok(true)
}

/// What a registration costs in this folder.
pub(super) fn read(folder: &Folder) -> Result<Option<Duration>, LoopbackError> {
    let system = LoopbackError::system("read the cost of registrations");
    let read = || {
        let Some(file) = open(folder, COST)? else {
            return Ok(None);
        };
        if try_lock(&file, FlockOperation::NonBlockingLockShared)? {
            return Ok(None);
        }
        let mut text = [0; 32];
        let len = rustix::io::read(&file, &mut text)?;
        Ok(Some(text[..len].to_vec()))
    };
    let Some(text) = read().map_err(system)? else {
        return Ok(None);
    };
    let micros = str::from_utf8(&text)
        .ok()
        .and_then(|text| text.trim_end().parse().ok());
    let cost = micros.map(Duration::from_micros);
    match cost.filter(|cost| *cost <= MAX) {
        Some(cost) => Ok(Some(cost)),
        None => Err(LoopbackError::BadCost {
            path: cost_path(folder),
            text: String::from_utf8_lossy(&text).into_owned(),
        }),
    }
}

fn cost_path(folder: &Folder) -> PathBuf {
    folder.path().join(COST)
}

/// Pays for one registration: waits for its turn, at most for `patience`, and takes as long as it costs.
pub(super) fn pay(
    folder: &Folder,
    cost: Duration,
    patience: Duration,
) -> Result<(), RegisterError> {
    let failed = |errno: Errno| RegisterError {
        errno: Some(errno.raw_os_error()),
        text: format!("loopback: cannot take a turn at registering: {errno}"),
    };
    // A new description each time: threads that share one would share its lock.
    let Some(turn) = open(folder, TURN).map_err(failed)? else {
        // The server that set the cost has ended.
        return Ok(());
    };
    let until = deadline(patience);
    let pause = (cost / 16).clamp(Duration::from_millis(1), Duration::from_millis(10));
    while !try_lock(&turn, FlockOperation::NonBlockingLockExclusive).map_err(failed)? {
        if Instant::now() >= until {
            return Err(RegisterError {
                errno: Some(Errno::TIMEDOUT.raw_os_error()),
                text: format!("loopback: others were registering for {patience:?}"),
            });
        }
        sleep(pause);
    }
    sleep(cost);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_millis(1);

    fn folder() -> (tempfile::TempDir, Folder) {
        let temp = tempfile::tempdir().unwrap();
        let folder = Folder::create(Some(&temp.path().join("loopback"))).unwrap();
        (temp, folder)
    }

    fn names(folder: &Folder) -> Vec<String> {
        let entries = std::fs::read_dir(folder.path()).unwrap();
        let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name();
        let mut names: Vec<_> = entries
            .map(|entry| name(entry).into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_cost_counts_as_long_as_it_is_held() {
        let (_temp, folder) = folder();
        assert_eq!(read(&folder), Ok(None));
        let cost = RegistrationCost::publish(Some(folder.path()), 7 * TICK).unwrap();
        assert_eq!(names(&folder), [COST, TURN]);
        assert_eq!(read(&folder), Ok(Some(7 * TICK)));
        drop(cost);
        assert_eq!(read(&folder), Ok(None));
        assert!(names(&folder).is_empty());
        pay(&folder, MAX, TICK).unwrap();
    }

    #[test]
    fn what_a_killed_server_left_counts_for_nothing_and_is_replaced() {
        let (_temp, folder) = folder();
        std::fs::write(cost_path(&folder), "5000\n").unwrap();
        assert_eq!(read(&folder), Ok(None));
        let _cost = RegistrationCost::publish(Some(folder.path()), 2 * TICK).unwrap();
        assert_eq!(read(&folder), Ok(Some(2 * TICK)));
    }

    #[test]
    fn a_second_server_is_refused_and_changes_nothing() {
        let (_temp, folder) = folder();
        let first = RegistrationCost::publish(Some(folder.path()), TICK).unwrap();
        let error = RegistrationCost::publish(Some(folder.path()), 2 * TICK).unwrap_err();
        assert!(
            error.to_string().contains(folder.path().to_str().unwrap()),
            "{error}"
        );
        assert_eq!(read(&folder), Ok(Some(TICK)));
        assert_eq!(names(&folder), [COST, TURN]);
        drop(first);
        RegistrationCost::publish(Some(folder.path()), 2 * TICK).unwrap();
    }

    #[test]
    fn a_cost_that_is_none_is_refused() {
        let (_temp, folder) = folder();
        for text in [
            "",
            "x",
            "-1",
            "1.5",
            "60000001",
            "99999999999999999999999999999999999",
        ] {
            std::fs::write(cost_path(&folder), text).unwrap();
            let live = open(&folder, COST).unwrap().unwrap();
            assert!(try_lock(&live, FlockOperation::NonBlockingLockExclusive).unwrap());
            let error = read(&folder).unwrap_err().to_string();
            assert!(error.contains(COST), "{text:?}: {error}");
        }
    }

    #[test]
    fn who_gets_no_turn_is_told() {
        let (_temp, folder) = folder();
        let _cost = RegistrationCost::publish(Some(folder.path()), TICK).unwrap();
        let other = open(&folder, TURN).unwrap().unwrap();
        assert!(try_lock(&other, FlockOperation::NonBlockingLockExclusive).unwrap());
        let error = pay(&folder, TICK, 3 * TICK).unwrap_err();
        assert!(error.text.contains("3ms"), "{}", error.text);
        drop(other);
        pay(&folder, TICK, MAX).unwrap();
    }
}
