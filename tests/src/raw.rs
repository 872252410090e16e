//! A client of the host service that keeps to no rules.

use std::io::{IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde_json::{Value, json};

use crate::{PATIENCE, ServiceRig};

/// A client that speaks frames by hand.
pub struct Raw(pub UnixStream);

impl Raw {
    /// One that has not said who it is.
    pub fn silent(host: &ServiceRig) -> Self {
        let socket = UnixStream::connect(host.socket()).expect("the service is there");
        socket.set_read_timeout(Some(PATIENCE)).expect("a time");
        socket.set_write_timeout(Some(PATIENCE)).expect("a time");
        Self(socket)
    }

    /// One that has a session.
    pub fn greeted(host: &ServiceRig) -> Self {
        let mut raw = Self::silent(host);
        raw.say(&json!({"versions": [1, 1], "endpoint": null, "label": "raw"}));
        let (greeting, _) = raw.hear().expect("the service answers");
        assert!(greeting["Welcome"].is_object(), "{greeting}");
        raw
    }

    /// Says a message.
    pub fn say(&mut self, message: &Value) {
        self.say_with(message, &[]);
    }

    /// The same with descriptors.
    pub fn say_with(&mut self, message: &Value, fds: &[BorrowedFd<'_>]) {
        let text = message.to_string();
        let mut frame = (text.len() as u32).to_le_bytes().to_vec();
        frame.push(fds.len() as u8);
        frame.extend(text.as_bytes());
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(fds)));
        }
        // The service may have ended the session already.
        let frame = [IoSlice::new(&frame)];
        let _ = sendmsg(&self.0, &frame, &mut ancillary, SendFlags::NOSIGNAL);
    }

    /// The next message and its descriptors; `None` when the service has closed.
    pub fn hear(&mut self) -> Option<(Value, Vec<OwnedFd>)> {
        // Descriptors come with the first byte.
        let mut head = [0; 5];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut into = [IoSliceMut::new(&mut head)];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL;
        let got = recvmsg(&self.0, &mut into, &mut ancillary, flags).ok()?;
        if got.bytes < 5 {
            return None;
        }
        let mut fds = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                fds.extend(received);
            }
        }
        let [a, b, c, d, _] = head;
        let mut text = vec![0; u32::from_le_bytes([a, b, c, d]) as usize];
        self.0.read_exact(&mut text).ok()?;
        Some((serde_json::from_slice(&text).expect("JSON"), fds))
    }

    /// A queue's two regions, the bell that the client hears, and the one that it rings.
    pub fn queue(&mut self, entries: u32) -> [OwnedFd; 4] {
        self.say(&json!({"id": 1, "ask": {"Queue": {"entries": entries}}}));
        let (answer, fds) = self.hear().expect("the service answers");
        assert_eq!(answer["said"]["Ok"], json!("Queue"), "{answer}");
        fds.try_into().expect("four of them")
    }

    /// Asserts that the service has closed the socket.
    pub fn assert_ended(mut self) {
        let mut rest = Vec::new();
        // A reset is an end too.
        let _ = self.0.read_to_end(&mut rest);
        drop(rest);
    }
}
