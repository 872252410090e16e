//! What a process takes of its host.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::thread;
use std::time::Duration;

use crate::wait_until;

/// What one process has at a moment. What ends meanwhile may be left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// Its open descriptors, by what they are of: `memfd`, `socket`, ... but for those of TCP.
    pub fds: BTreeMap<String, usize>,
    /// Its TCP connections.
    pub connections: usize,
    /// Its mappings of memfds: slabs and rings.
    pub shared: usize,
    /// Its other mappings: stacks, heaps, files.
    pub private: usize,
    /// Its part of the memory that is mapped and present, in KiB.
    pub pss: u64,
}

impl Footprint {
    /// Of a process that this one may look at, when what has ended there is gone: threads and their sockets end by
    /// themselves.
    pub fn settled(pid: i32) -> Self {
        let mut last = Self::of(pid);
        wait_until("nothing changes any more", || {
            thread::sleep(Duration::from_millis(30));
            let before = std::mem::replace(&mut last, Self::of(pid));
            (&before.fds, before.shared) == (&last.fds, last.shared)
        });
        last
    }

    fn of(pid: i32) -> Self {
        let text = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}"));
        let tcp: HashSet<String> = ["net/tcp", "net/tcp6"]
            .into_iter()
            .filter_map(|name| text(name).ok())
            .flat_map(|table| table.lines().filter_map(socket_of).collect::<Vec<_>>())
            .collect();
        let (mut fds, mut connections) = (BTreeMap::new(), 0);
        let listed = fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs");
        for fd in listed.flatten() {
            let Ok(of) = fs::read_link(fd.path()) else {
                continue;
            };
            let of = of.to_string_lossy();
            match tcp.contains(&*of) {
                true => connections += 1,
                false => *fds.entry(kind(&of)).or_default() += 1,
            }
        }
        let maps = text("maps").expect("it runs");
        let shared = maps.lines().filter(|line| line.contains(" /memfd:"));
        let shared = shared.count();
        let rollup = text("smaps_rollup").expect("it runs");
        let pss = rollup.lines().find_map(|line| line.strip_prefix("Pss:"));
        let pss = pss.and_then(|pss| pss.trim().strip_suffix(" kB"));
        Self {
            fds,
            connections,
            shared,
            private: maps.lines().count() - shared,
            pss: pss.and_then(|pss| pss.trim().parse().ok()).expect("a size"),
        }
    }
}

/// The socket of a line of the kernel's table, as a descriptor names it.
fn socket_of(line: &str) -> Option<String> {
    let inode = line.split_whitespace().nth(9)?;
    Some(format!("socket:[{inode}]"))
}

/// What a descriptor is of, without its number or name.
fn kind(of: &str) -> String {
    match of.split_once(':') {
        Some(("/memfd", _)) => "memfd".to_owned(),
        Some(("anon_inode", what)) => what.to_owned(),
        Some((kind, _)) => kind.to_owned(),
        None => "file".to_owned(),
    }
}
