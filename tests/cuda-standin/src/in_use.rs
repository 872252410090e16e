//! How much memory of each GPU is in use, by this process or by all that share a folder.
//!
//! Each process has a file there, named by its number, and locks it as long as it lives; the kernel lets go of the lock
//! when the process is gone, however it went. A line says what one piece of memory is: its inode, GPU and size.
//! Memory that two processes hold is one inode, and counts once. What is only in a descriptor on its way from one
//! process to another does not count.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::Mutex;

use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::process::{Flock, FlockType, fcntl_getlk};

use crate::codes::{Answer, OPERATING_SYSTEM, OUT_OF_MEMORY};
use crate::driver::lock;

pub struct InUse {
    held: Mutex<BTreeMap<u64, Held>>,
    folder: Option<Folder>,
}

#[derive(Clone, Copy)]
struct Held {
    gpu: usize,
    size: u64,
    /// How often this process has it.
    times: u32,
}

struct Folder {
    path: PathBuf,
    /// This process's own file, open and locked. Never opened again: closing it would give up the lock.
    own: File,
}

impl InUse {
    pub fn new(folder: Option<&Path>) -> Result<Self, String> {
        let open = |path: &Path| {
            Folder::open(path).map_err(|why| format!("the state in {}: {why}", path.display()))
        };
        Ok(Self {
            held: Mutex::default(),
            folder: folder.map(open).transpose()?,
        })
    }

    /// Counts one piece of memory; new memory only within `limit`.
    pub fn add(&self, inode: u64, gpu: usize, size: u64, limit: Option<u64>) -> Answer {
        let mut held = lock(&self.held);
        let _alone = self.alone()?;
        if let Some(limit) = limit {
            let used = self.sum(&held, gpu)?;
            if used.checked_add(size).is_none_or(|after| after > limit) {
                return Err(OUT_OF_MEMORY);
            }
        }
        held.entry(inode)
            .or_insert(Held {
                gpu,
                size,
                times: 0,
            })
            .times += 1;
        self.publish(&held)
    }

    pub fn remove(&self, inode: u64) {
        let mut held = lock(&self.held);
        if let Some(one) = held.get_mut(&inode) {
            one.times -= 1;
            if one.times == 0 {
                held.remove(&inode);
            }
        }
        // Without the folder there is nobody left to tell.
        if let Ok(_alone) = self.alone() {
            let _ = self.publish(&held);
        }
    }

    pub fn total(&self, gpu: usize) -> Answer<u64> {
        let held = lock(&self.held);
        let _alone = self.alone()?;
        self.sum(&held, gpu)
    }

    /// Nobody else reads or writes the files meanwhile.
    fn alone(&self) -> Answer<Option<File>> {
        let locked = self.folder.as_ref().map(|folder| folder.lock()).transpose();
        locked.map_err(|_| OPERATING_SYSTEM)
    }

    fn sum(&self, held: &BTreeMap<u64, Held>, gpu: usize) -> Answer<u64> {
        let mut sizes = HashMap::new();
        if let Some(folder) = &self.folder {
            folder
                .others(gpu, &mut sizes)
                .map_err(|_| OPERATING_SYSTEM)?;
        }
        let own = held.iter().filter(|(_, held)| held.gpu == gpu);
        sizes.extend(own.map(|(inode, held)| (*inode, held.size)));
        Ok(sizes.values().sum())
    }

    fn publish(&self, held: &BTreeMap<u64, Held>) -> Answer {
        let Some(folder) = &self.folder else {
            return Ok(());
        };
        let line = |(inode, held): (&u64, &Held)| format!("{inode} {} {}\n", held.gpu, held.size);
        let lines: String = held.iter().map(line).collect();
        folder.write(&lines).map_err(|_| OPERATING_SYSTEM)
    }
}

impl Folder {
    fn open(path: &Path) -> io::Result<Self> {
        fs::create_dir_all(path)?;
        let mut options = OpenOptions::new();
        options.create(true).truncate(true).write(true).read(true);
        let own = options.open(path.join(process::id().to_string()))?;
        fcntl_lock(&own, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Self {
            path: path.to_owned(),
            own,
        })
    }

    fn lock(&self) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).write(true);
        let file = options.open(self.path.join("lock"))?;
        file.lock()?;
        Ok(file)
    }

    fn write(&self, lines: &str) -> io::Result<()> {
        let mut own = &self.own;
        own.set_len(0)?;
        own.rewind()?;
        own.write_all(lines.as_bytes())
    }

    /// What other processes that live have of a GPU. The files of dead ones are removed.
    fn others(&self, gpu: usize, sizes: &mut HashMap<u64, u64>) -> io::Result<()> {
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            let number = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok());
            if number.is_none_or(|number: u32| number == process::id()) {
                continue;
            }
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .open(entry.path())?;
            if fcntl_getlk(&file, &Flock::from(FlockType::WriteLock))?.is_none() {
                fs::remove_file(entry.path())?;
                continue;
            }
            for line in io::read_to_string(file)?.lines() {
                let mut words = line.split(' ').map(str::parse);
                if let (Some(Ok(inode)), Some(Ok(of)), Some(Ok(size))) =
                    (words.next(), words.next(), words.next())
                    && of == gpu as u64
                {
                    sizes.insert(inode, size);
                }
            }
        }
        Ok(())
    }
}
