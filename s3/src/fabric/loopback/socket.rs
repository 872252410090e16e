//! Sending and receiving messages and descriptors; no call blocks but [`wait`], and that has a bound.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

use super::wire::{self, Message, WireError};

/// What is at the front of a socket's queue.
#[derive(Debug)]
pub(super) enum Received {
    Message(Message, Option<OwnedFd>),
    Malformed(WireError),
    /// Nothing now.
    Empty,
    /// The other side ended the connection.
    End,
}

/// A new socket of the kind that keeps messages apart and in order.
pub(super) fn new() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Sends a message, and a copy of `fd` with it; `Errno::AGAIN` if the other side does not read.
pub(super) fn send(
    socket: impl AsFd,
    message: &Message,
    fd: Option<BorrowedFd<'_>>,
) -> Result<(), Errno> {
    let fds: &[BorrowedFd<'_>] = fd.as_slice();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let packet = message.encode();
    retry(|| rustix::net::sendmsg(&socket, &[IoSlice::new(&packet)], &mut control, flags))
        .map(|_| ())
}

/// Sends a message, waiting for the other side to read until `deadline`.
pub(super) fn send_until(
    socket: impl AsFd,
    message: &Message,
    deadline: Instant,
) -> Result<(), Errno> {
    loop {
        match send(&socket, message, None) {
            Err(Errno::AGAIN) if wait(&socket, PollFlags::OUT, Some(deadline))? => {}
            result => return result,
        }
    }
}

/// Takes one message from the queue.
pub(super) fn receive(socket: impl AsFd) -> Result<Received, Errno> {
    // Longer than a message, so that a message too long is seen to be.
    let mut packet = [0; wire::LEN + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let result = retry(|| {
        rustix::net::recvmsg(
            &socket,
            &mut [IoSliceMut::new(&mut packet)],
            &mut control,
            flags,
        )
    });
    let received = match result {
        Ok(received) => received,
        Err(Errno::AGAIN) => return Ok(Received::Empty),
        // The other side closed without reading all; what it sent before is still in the queue.
        Err(Errno::CONNRESET) => return Ok(Received::Empty),
        Err(errno) => return Err(errno),
    };
    let fd = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    if received.bytes == 0 {
        return Ok(Received::End);
    }
    if received.flags.contains(ReturnFlags::CTRUNC) {
        // More descriptors than fit, or no room in this process's table.
        return Err(Errno::MFILE);
    }
    Ok(match Message::decode(&packet[..received.bytes]) {
        Ok(message) => Received::Message(message, fd),
        Err(error) => Received::Malformed(error),
    })
}

/// Waits until `fd` is ready, at most until `deadline`; false if it is not by then.
pub(super) fn wait(
    fd: impl AsFd,
    events: PollFlags,
    deadline: Option<Instant>,
) -> Result<bool, Errno> {
    poll(&mut [PollFd::new(&fd, events)], deadline)
}

/// Waits until one of several is ready; false if none is by then.
pub(super) fn poll(fds: &mut [PollFd<'_>], deadline: Option<Instant>) -> Result<bool, Errno> {
    retry(|| {
        let left =
            deadline.map(|deadline| timespec(deadline.saturating_duration_since(Instant::now())));
        rustix::event::poll(fds, left.as_ref())
    })
    .map(|ready| ready > 0)
}

/// `timeout` from now; far away, not a panic, where that cannot be said.
pub(super) fn deadline(timeout: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(timeout)
        .unwrap_or_else(|| now + Duration::from_secs(86_400))
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: duration.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}

/// Repeats what a signal interrupted.
fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}
