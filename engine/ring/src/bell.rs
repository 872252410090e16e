//! What wakes the other side.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{Errno, read, write};
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
/// For the way from a service to a client, which must not be able to hold the service up: who shares an eventfd can
/// make a write to it block, and fill it.
#[derive(Debug)]
pub struct SocketBell(OwnedFd);

/// Rings that one call takes: more than an honest side leaves, which rings once for each sleep.
const RINGS: usize = 64;

/// Calls in which rings are taken, after which the sleeper is woken anyway.
const MOST_CALLS: usize = 64;

impl SocketBell {
    /// Both ends.
    pub fn pair() -> io::Result<(SocketBell, SocketBell)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
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
        for _ in 0..MOST_CALLS {
            let mut rings = [0; RINGS];
            // Descriptors that come along are dropped by the kernel.
            match recv(&self.0, &mut rings, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                // There are no more: a second call, only to hear that, would cost each wake-up.
                Ok((1..RINGS, _)) | Err(Errno::AGAIN) => return Ok(()),
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
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
            Ok(_) => self.drain(),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// A bell to another process that costs less: an eventfd.
///
/// For the way from a client to a service. Whoever shares it can empty it, fill it and make it block, so the service only
/// watches it for events (each ring is one, edge-triggered) and neither reads nor writes it.
#[derive(Debug)]
pub struct EventBell(OwnedFd);

impl EventBell {
    /// One that nobody has rung.
    pub fn new() -> io::Result<EventBell> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(EventBell(eventfd(0, flags)?))
    }

    /// One that was received.
    pub fn from_fd(fd: OwnedFd) -> EventBell {
        EventBell(fd)
    }

    /// The same, to be sent to the other process.
    pub fn share(&self) -> io::Result<OwnedFd> {
        self.0.try_clone()
    }
}

impl AsFd for EventBell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for EventBell {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Bell for EventBell {
    fn ring(&self) -> io::Result<()> {
        match write(&self.0, &1_u64.to_ne_bytes()) {
            // Full: it has been rung, however often.
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// For a side that trusts all others that have it.
    fn wait(&self, timeout: Duration) -> io::Result<()> {
        let timeout = Timespec::try_from(timeout).ok();
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(0) | Err(Errno::INTR) => return Ok(()),
            Ok(_) => {}
            Err(errno) => return Err(errno.into()),
        }
        match read(&self.0, &mut [0_u8; 8]) {
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

#[cfg(all(test, not(ring_loom)))]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_ring_before_the_wait_is_heard_and_heard_once() {
        let (near, far) = SocketBell::pair().unwrap();
        far.ring().unwrap();
        far.ring().unwrap();
        let long = Duration::from_secs(60);
        let began = Instant::now();
        near.wait(long).unwrap();
        assert!(began.elapsed() < long);
        near.wait(Duration::ZERO).unwrap();
        near.drain().unwrap();
    }

    #[test]
    fn one_drain_forgets_however_many_rings_have_come() {
        let (near, far) = SocketBell::pair().unwrap();
        for rings in [1, RINGS - 1, RINGS, RINGS + 1, 3 * RINGS] {
            for _ in 0..rings {
                far.ring().unwrap();
            }
            near.drain().unwrap();
            let left = recv(&near, &mut [0; 1], RecvFlags::DONTWAIT);
            assert_eq!(left.err(), Some(Errno::AGAIN), "after {rings} rings");
        }
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
    fn a_counter_that_is_full_keeps_nobody_from_ringing_and_one_wait_hears_all() {
        let bell = EventBell::new().unwrap();
        let other = EventBell::from_fd(bell.share().unwrap());
        write(&other, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        other.ring().unwrap();
        let long = Duration::from_secs(60);
        let began = Instant::now();
        bell.wait(long).unwrap();
        assert!(began.elapsed() < long);
        let short = Duration::from_millis(20);
        let began = Instant::now();
        bell.wait(short).unwrap();
        assert!(began.elapsed() >= short, "nothing is left to hear");
    }

    #[test]
    fn a_side_that_is_gone_ends_the_wait() {
        let (near, far) = SocketBell::pair().unwrap();
        drop(far);
        assert!(near.wait(Duration::from_secs(60)).is_err());
    }
}
