//! What wakes the other side.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};

/// Wakes one sleeper on the other side of a queue. Rung at most once a batch, and only for a side that asked.
pub trait Bell {
    /// Wakes the sleeper, or the next one to come. Never blocks, whatever the other side does.
    fn ring(&self) -> io::Result<()>;

    /// Sleeps until the bell was rung since the last wait, at most `timeout`. May return early.
    fn wait(&self, timeout: Duration) -> io::Result<()>;
}

/// A bell to another process: one end of a socket pair. An error says that the other end is gone.
///
/// An eventfd would not do: who shares one can make it block, and fill it.
#[derive(Debug)]
pub struct SocketBell(OwnedFd);

/// Rings heard at once, after which the sleeper is woken anyway.
const MOST_RINGS: usize = 64;

impl SocketBell {
    /// Both ends.
    pub fn pair() -> io::Result<(SocketBell, SocketBell)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((SocketBell(a), SocketBell(b)))
    }

    /// An end that was received.
    pub fn from_fd(fd: OwnedFd) -> SocketBell {
        SocketBell(fd)
    }

    /// To be sent to the other process.
    pub fn into_fd(self) -> OwnedFd {
        self.0
    }

    /// Forgets the rings that have come. An error says that the other end is gone.
    pub fn drain(&self) -> io::Result<()> {
        for _ in 0..MOST_RINGS {
            if !self.hear_one()? {
                break;
            }
        }
        Ok(())
    }

    /// Forgets one ring, if one has come. Returns whether there may be more.
    fn hear_one(&self) -> io::Result<bool> {
        let mut ring = [0; 1];
        // Longer messages are cut, descriptors that come along are dropped by the kernel.
        match recv(&self.0, &mut ring, RecvFlags::DONTWAIT) {
            Ok((0, _)) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) | Err(Errno::INTR) => Ok(true),
            Err(Errno::AGAIN) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl AsFd for SocketBell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for SocketBell {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Bell for SocketBell {
    fn ring(&self) -> io::Result<()> {
        // Never waits, however the other side has set the socket. Full: it has rings enough to hear.
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match send(&self.0, &[1], flags) {
            Ok(_) | Err(Errno::AGAIN | Errno::NOBUFS | Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn wait(&self, timeout: Duration) -> io::Result<()> {
        let timeout = Timespec::try_from(timeout).ok();
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(0) | Err(Errno::INTR) => Ok(()),
            // There is hardly ever more than one; a second ends the next wait early.
            Ok(_) => self.hear_one().map(drop),
            Err(errno) => Err(errno.into()),
        }
    }
}

#[cfg(all(test, not(ring_loom)))]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn each_ring_before_the_wait_ends_one_wait() {
        let (near, far) = SocketBell::pair().unwrap();
        far.ring().unwrap();
        far.ring().unwrap();
        let long = Duration::from_secs(60);
        let began = Instant::now();
        near.wait(long).unwrap();
        near.wait(long).unwrap();
        assert!(began.elapsed() < long);
        let short = Duration::from_millis(20);
        let began = Instant::now();
        near.wait(short).unwrap();
        assert!(began.elapsed() >= short, "nothing is left to hear");
    }

    #[test]
    fn a_side_that_never_listens_blocks_nobody() {
        let (near, far) = SocketBell::pair().unwrap();
        // The peer may take the flag away: it is not what keeps the ring from waiting.
        rustix::io::ioctl_fionbio(&near, false).unwrap();
        for _ in 0..10_000 {
            near.ring().unwrap();
        }
        drop(far);
        assert!(near.ring().is_err(), "nobody is there");
    }

    #[test]
    fn a_side_that_is_gone_ends_the_wait() {
        let (near, far) = SocketBell::pair().unwrap();
        drop(far);
        assert!(near.wait(Duration::from_secs(60)).is_err());
    }
}
