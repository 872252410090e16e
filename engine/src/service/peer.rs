//! Who is on the other end of a socket, as the kernel says.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::net::UnixStream;

/// A client's process.
pub(crate) struct Peer {
    /// 0 where it is of a pid namespace that this process cannot see.
    pub(crate) pid: i32,
    pub(crate) uid: u32,
    /// All groups.
    pub(crate) groups: Vec<u32>,
    /// Readable when the process has ended. A socket that a forked child keeps open does not tell that.
    pub(crate) pidfd: Option<OwnedFd>,
}

impl Peer {
    pub(crate) fn of(socket: &UnixStream) -> io::Result<Peer> {
        let credentials = socket.peer_cred()?;
        let pid = credentials.pid().unwrap_or(0);
        // Held from here on, so that the number cannot come to name another process.
        let pidfd = Pid::from_raw(pid).and_then(|pid| pidfd_open(pid, PidfdFlags::NONBLOCK).ok());
        let mut groups = vec![credentials.gid()];
        if pidfd.is_some() {
            groups.extend(supplementary_groups(pid, credentials.uid()));
        }
        Ok(Peer {
            pid,
            uid: credentials.uid(),
            groups,
            pidfd,
        })
    }
}

/// The further groups of a process that is still of that user.
fn supplementary_groups(pid: i32, uid: u32) -> Vec<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let numbers = line.unwrap_or_default().split_whitespace();
        numbers
            .filter_map(|text| text.parse().ok())
            .collect::<Vec<u32>>()
    };
    // Real, effective, saved and of the file system: one that differs could lend its groups to somebody else.
    match field("Uid:").iter().all(|of| *of == uid) {
        true => field("Groups:"),
        false => Vec::new(),
    }
}

/// The uid that stands for all that have none here. It tells nobody apart.
pub(crate) fn overflow_uid() -> u32 {
    let text = fs::read_to_string("/proc/sys/kernel/overflowuid").unwrap_or_default();
    text.trim().parse().unwrap_or(65534)
}
