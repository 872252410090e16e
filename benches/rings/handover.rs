//! Descriptors and words between the two processes.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::{IoSlice, IoSliceMut};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recv, recvmsg, send, sendmsg,
};

/// What a queue and a raw pair of eventfds consist of: the client's region, the service's, the bell that the client
/// hears, the one that it rings, the eventfd to the service, the one to the client.
pub const HANDED_OVER: usize = 6;

/// Sends descriptors.
pub fn give(to: impl AsFd, fds: [BorrowedFd<'_>; HANDED_OVER]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(HANDED_OVER))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    let text = [IoSlice::new(b"fds")];
    sendmsg(to, &text, &mut control, SendFlags::NOSIGNAL).expect("it listens");
}

/// Receives what [`give`] sends.
pub fn take(from: impl AsFd) -> [OwnedFd; HANDED_OVER] {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(HANDED_OVER))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut text = [0; 8];
    let mut into = [IoSliceMut::new(&mut text)];
    recvmsg(from, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC).expect("it sends");
    let fds: Vec<OwnedFd> = control
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        })
        .flatten()
        .collect();
    fds.try_into().expect("all descriptors")
}

/// Sends one message.
pub fn say(to: impl AsFd, text: &str) {
    send(to, text.as_bytes(), SendFlags::NOSIGNAL).expect("it listens");
}

/// The next message; `None` when the other side has gone.
pub fn hear(from: impl AsFd) -> Option<String> {
    let mut text = [0; 64];
    let (_, len) = recv(from, &mut text, RecvFlags::empty()).ok()?;
    (len > 0).then(|| String::from_utf8_lossy(&text[..len]).into_owned())
}
