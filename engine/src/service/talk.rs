//! Frames to and from a client's socket.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::SendFlags;
use serde::de::DeserializeOwned;
use tokio::io::Interest;
use tokio::net::UnixStream;

use crate::control::{Frames, send_with_fds};

/// The next message of a client, with what came along; why not is the end of its session.
pub(super) async fn receive<T: DeserializeOwned>(
    socket: &UnixStream,
    frames: &mut Frames,
) -> Result<(T, Vec<OwnedFd>), String> {
    loop {
        match frames.next() {
            Ok(Some(message)) => return Ok(message),
            Ok(None) => {}
            Err(error) => return Err(error.to_string()),
        }
        socket.readable().await.map_err(|error| error.to_string())?;
        match socket.try_io(Interest::READABLE, || frames.receive(socket)) {
            Ok(true) => {}
            Ok(false) => return Err("it has closed its socket".to_owned()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// Sends a whole frame, descriptors beside its first byte.
pub(super) async fn send(socket: &UnixStream, frame: &[u8], fds: &[OwnedFd]) -> io::Result<()> {
    let mut sent = 0;
    while sent < frame.len() {
        socket.writable().await?;
        let fds: Vec<BorrowedFd<'_>> = match sent {
            0 => fds.iter().map(AsFd::as_fd).collect(),
            _ => Vec::new(),
        };
        let part = || send_with_fds(socket, &frame[sent..], &fds, SendFlags::DONTWAIT);
        match socket.try_io(Interest::WRITABLE, part) {
            Ok(n) => sent += n,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
