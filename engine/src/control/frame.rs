//! Messages as bytes of a stream, and descriptors beside them.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The longest frame that a client sends.
pub(crate) const LARGEST_ASKED: usize = 64 << 10;

/// The longest frame that the service sends: a page of long names.
pub(crate) const LARGEST_SAID: usize = 16 << 20;

/// The most descriptors beside one frame.
const MOST_FDS: usize = 4;

/// Bytes before a frame's text: its length, and how many descriptors come along.
const HEAD: usize = 5;

/// Why what was received is no message.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("a frame of {len} bytes, at most {most} are allowed")]
    TooLong { len: usize, most: usize },
    #[error("a message that cannot be read: {0}")]
    Json(#[from] serde_json::Error),
    #[error("{announced} descriptors announced, {have} received")]
    Descriptors { announced: usize, have: usize },
    #[error("{have} descriptors received that no message has announced")]
    Unannounced { have: usize },
}

/// A message as a frame.
pub(crate) fn encode(message: &impl Serialize, fds: usize) -> Vec<u8> {
    let mut frame = vec![0; HEAD];
    serde_json::to_writer(&mut frame, message).expect("messages are plain data");
    let len = u32::try_from(frame.len() - HEAD).expect("messages are shorter than 4 GiB");
    frame[..4].copy_from_slice(&len.to_le_bytes());
    frame[4] = fds as u8;
    frame
}

/// Sends as much of a frame as there is room for, with descriptors beside its first byte. Returns the bytes sent.
pub(crate) fn send_with_fds(
    socket: impl AsFd,
    frame: &[u8],
    fds: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::other("too many descriptors for one message"));
    }
    let flags = flags | SendFlags::NOSIGNAL;
    Ok(sendmsg(
        socket,
        &[IoSlice::new(frame)],
        &mut ancillary,
        flags,
    )?)
}

/// Frames as they come together from what is received.
pub(crate) struct Frames {
    bytes: Vec<u8>,
    fds: VecDeque<OwnedFd>,
    most: usize,
}

impl Frames {
    /// Of frames of at most so many bytes.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            bytes: Vec::new(),
            fds: VecDeque::new(),
            most,
        }
    }

    /// Adds what was received.
    pub(crate) fn extend(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Receives more, descriptors too. Returns whether there was anything: if not, the other side has left.
    pub(crate) fn receive(&mut self, socket: impl AsFd) -> io::Result<bool> {
        let mut buffer = [0; 64 << 10];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut into = [IoSliceMut::new(&mut buffer)];
        let received =
            retry_on_intr(|| recvmsg(&socket, &mut into, &mut ancillary, RecvFlags::CMSG_CLOEXEC))?;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                self.fds.extend(fds);
            }
        }
        self.extend(&buffer[..received.bytes]);
        Ok(received.bytes > 0)
    }

    /// The next message that is there as a whole, with its descriptors.
    pub(crate) fn next<T: DeserializeOwned>(
        &mut self,
    ) -> Result<Option<(T, Vec<OwnedFd>)>, FrameError> {
        let have = self.fds.len();
        // Those of a message that is not whole, and of the next one.
        let may = if self.bytes.is_empty() {
            0
        } else {
            2 * MOST_FDS
        };
        if have > may {
            return Err(FrameError::Unannounced { have });
        }
        let Some((head, rest)) = self.bytes.split_first_chunk::<HEAD>() else {
            return Ok(None);
        };
        let [a, b, c, d, announced] = *head;
        let (len, most) = (u32::from_le_bytes([a, b, c, d]) as usize, self.most);
        if len > most {
            return Err(FrameError::TooLong { len, most });
        }
        let Some(text) = rest.get(..len) else {
            return Ok(None);
        };
        let message = serde_json::from_slice(text)?;
        let announced = announced.into();
        if announced > have {
            return Err(FrameError::Descriptors { announced, have });
        }
        let fds = self.fds.drain(..announced).collect();
        self.bytes.drain(..HEAD + len);
        Ok(Some((message, fds)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_frame_brings_its_descriptors_and_no_others() {
        let (near, far) = UnixStream::pair().unwrap();
        let file = std::fs::File::open("/proc/self/status").unwrap();
        for (text, fds) in [("one", vec![file.as_fd(), file.as_fd()]), ("two", vec![])] {
            let frame = encode(&text, fds.len());
            let sent = send_with_fds(&near, &frame, &fds, SendFlags::empty()).unwrap();
            assert_eq!(sent, frame.len());
        }
        drop(near);
        let mut frames = Frames::new(100);
        while frames.receive(&far).unwrap() {}
        let (text, fds) = frames.next::<String>().unwrap().unwrap();
        assert_eq!((&*text, fds.len()), ("one", 2));
        let (text, fds) = frames.next::<String>().unwrap().unwrap();
        assert_eq!((&*text, fds.len()), ("two", 0));
        assert!(frames.next::<String>().unwrap().is_none());
    }

    #[test]
    fn what_is_too_long_or_no_message_or_lacks_descriptors_is_an_error() {
        let next = |bytes: &[u8]| {
            let mut frames = Frames::new(10);
            frames.extend(bytes);
            frames.next::<String>()
        };
        assert!(matches!(
            next(&[11, 0, 0, 0, 0]),
            Err(FrameError::TooLong { len: 11, most: 10 })
        ));
        assert!(matches!(
            next(&[2, 0, 0, 0, 0, b'{', b'}']),
            Err(FrameError::Json(_))
        ));
        let lacking = encode(&"x", 1);
        assert!(matches!(
            next(&lacking),
            Err(FrameError::Descriptors {
                announced: 1,
                have: 0
            })
        ));
    }

    #[test]
    fn descriptors_of_no_message_are_an_error() {
        let (near, far) = UnixStream::pair().unwrap();
        let file = std::fs::File::open("/proc/self/status").unwrap();
        let (frame, two) = (encode(&"x", 1), [file.as_fd(), file.as_fd()]);
        send_with_fds(&near, &frame, &two, SendFlags::empty()).unwrap();
        let mut frames = Frames::new(100);
        assert!(frames.receive(&far).unwrap());
        assert_eq!(frames.next::<String>().unwrap().unwrap().1.len(), 1);
        let more = frames.next::<String>().map(drop);
        assert!(matches!(more, Err(FrameError::Unannounced { have: 1 })));

        // However slowly a message comes.
        let mut frames = Frames::new(100);
        let frame = encode(&"0123456789", 1);
        let mut refused = false;
        for byte in &frame[..frame.len() - 1] {
            send_with_fds(&near, &[*byte], &two, SendFlags::empty()).unwrap();
            assert!(frames.receive(&far).unwrap());
            refused |= frames.next::<String>().is_err();
            assert!(refused || frames.fds.len() <= 2 * MOST_FDS);
        }
        assert!(refused);
    }

    proptest! {
        #[test]
        fn messages_arrive_however_the_stream_is_cut(
            texts in proptest::collection::vec(".{0,40}", 0..8),
            cut in 1..50usize,
        ) {
            let stream: Vec<u8> = texts.iter().flat_map(|text| encode(text, 0)).collect();
            let mut frames = Frames::new(1000);
            let mut heard = Vec::new();
            for piece in stream.chunks(cut) {
                frames.extend(piece);
                while let Some((text, _)) = frames.next::<String>().unwrap() {
                    heard.push(text);
                }
            }
            prop_assert_eq!(heard, texts);
        }

        #[test]
        fn any_bytes_are_messages_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut frames = Frames::new(100);
            frames.extend(&bytes);
            while let Ok(Some(_)) = frames.next::<super::super::Request>() {}
        }
    }
}
