//! What became of a GET.

use std::time::Duration;

use bitflags::bitflags;
use s3engine_pool::Buffer;
use s3engine_s3::checksum::{Checksum, Unverified, Verified};
use s3engine_s3::error::Error;
use s3engine_s3::object::ObjectInfo;
use s3engine_s3::{Path, Reason};

use crate::get::Ticket;

bitflags! {
    /// Facts of a completion, for fast tests.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Flags: u32 {
        /// RDMA was wanted, and some bytes went by HTTP. Never in a failure.
        const FELL_BACK = 1 << 0;
        /// HTTP was wanted: by policy, by configuration, or for the size.
        const HTTP_INTENDED = 1 << 1;
        /// Memory could not be registered.
        const REG_FAILED = 1 << 2;
        /// No processor saw the bytes and no checksum was checked.
        const NOT_VERIFIED = 1 << 3;
        /// Fewer bytes than asked for, because the object ends there.
        const PARTIAL = 1 << 4;
        /// Another completion of the same GET follows; this one carries no buffer.
        const MORE = 1 << 5;
        /// The buffer is not the one that was submitted.
        const MOVED = 1 << 6;
        /// Bytes went through staging in host memory on their way to a device.
        const STAGED = 1 << 7;
    }
}

/// Bytes by the path they took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BytesByPath {
    /// By a fabric.
    pub rdma: u64,
    /// In HTTP bodies.
    pub http: u64,
    /// From memory that held them.
    pub cache: u64,
}

impl BytesByPath {
    /// All of them.
    pub fn total(&self) -> u64 {
        // The numbers may come from another process.
        self.rdma
            .saturating_add(self.http)
            .saturating_add(self.cache)
    }

    pub(crate) fn add(&mut self, path: Path, bytes: u64) {
        match path {
            Path::Rdma => self.rdma += bytes,
            Path::Http => self.http += bytes,
            Path::Cache => self.cache += bytes,
            Path::None => {}
        }
    }
}

/// When a GET reached each stage, since its submission. A stage it never reached is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stages {
    /// It was admitted: its first request could start.
    pub queued: Option<Duration>,
    /// Its memory's registration was known.
    pub registered: Option<Duration>,
    /// The head of its first answer arrived.
    pub first_byte: Option<Duration>,
    /// It was complete.
    pub done: Duration,
}

/// Why bytes went by HTTP although RDMA was wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fallback {
    /// The reason.
    pub reason: Reason,
    /// What the fabric or the server said.
    pub detail: String,
}

/// The end of a GET (or, with [`Flags::MORE`], news of it).
#[derive(Debug)]
pub struct Completion {
    pub(crate) ticket: Ticket,
    pub(crate) user_data: u64,
    pub(crate) path: Path,
    pub(crate) reason: Reason,
    pub(crate) flags: Flags,
    pub(crate) by_path: BytesByPath,
    pub(crate) verified: Verified,
    pub(crate) sum: Option<Checksum>,
    pub(crate) status: Option<u16>,
    pub(crate) info: ObjectInfo,
    pub(crate) request_id: Option<String>,
    pub(crate) stages: Stages,
    pub(crate) fallback: Option<Fallback>,
    pub(crate) error: Option<Error>,
    pub(crate) buffer: Option<Buffer>,
}

impl Completion {
    /// Of a GET that brought nothing.
    pub(crate) fn failed(
        ticket: Ticket,
        user_data: u64,
        error: Error,
        buffer: Option<Buffer>,
    ) -> Self {
        Self {
            ticket,
            user_data,
            path: Path::None,
            reason: error.reason(),
            flags: Flags::empty(),
            by_path: BytesByPath::default(),
            verified: Verified::NotVerified(Unverified::Nothing),
            sum: None,
            status: error.status(),
            info: ObjectInfo::default(),
            request_id: error.request_id().map(str::to_owned),
            stages: Stages::default(),
            fallback: None,
            error: Some(error),
            buffer,
        }
    }

    /// Which GET it is of.
    pub fn ticket(&self) -> Ticket {
        self.ticket
    }

    /// The number given with the GET.
    pub fn user_data(&self) -> u64 {
        self.user_data
    }

    /// What carried the bytes: `rdma` only if all of them went that way; `none` in a failure, and where
    /// there were no bytes to ask for.
    pub fn path(&self) -> Path {
        self.path
    }

    /// Why that path, or why the failure.
    pub fn reason(&self) -> Reason {
        self.reason
    }

    /// Facts for fast tests.
    pub fn flags(&self) -> Flags {
        self.flags
    }

    /// Bytes that are verified to have arrived, from the start of the buffer on. 0 in a failure.
    pub fn bytes(&self) -> u64 {
        self.by_path.total()
    }

    /// The same by path.
    pub fn bytes_by_path(&self) -> BytesByPath {
        self.by_path
    }

    /// Whether the object's checksum has shown that the bytes are right. Those that it has shown to be wrong are an
    /// error.
    pub fn verified(&self) -> Verified {
        self.verified
    }

    /// What the bytes sum up to, by the algorithm of the object's checksum, where it has one that can be joined. Who
    /// reads an object in ranges joins those of all ([`Checksum::join`]) and compares with the object's.
    pub fn checksum(&self) -> Option<Checksum> {
        self.sum
    }

    /// The HTTP status of the (last) answer.
    pub fn status(&self) -> Option<u16> {
        self.status
    }

    /// The object: ETag, version, whole size.
    pub fn info(&self) -> &ObjectInfo {
        &self.info
    }

    /// The server's id of the (last) request.
    pub fn request_id(&self) -> Option<&str> {
        self.request_id.as_deref()
    }

    /// How long each stage took.
    pub fn stages(&self) -> Stages {
        self.stages
    }

    /// Why RDMA did not carry all bytes, where it was wanted. Kept in a failure that came after.
    pub fn fallback(&self) -> Option<&Fallback> {
        self.fallback.as_ref()
    }

    /// What went wrong; `None` in a success.
    pub fn error(&self) -> Option<&Error> {
        self.error.as_ref()
    }

    /// Whether the GET succeeded (or, with [`Flags::MORE`], has not failed yet).
    pub fn is_ok(&self) -> bool {
        self.error.is_none()
    }

    /// The bytes that arrived, where this host's processors can read them.
    pub fn data(&self) -> Option<&[u8]> {
        let slice = self.buffer.as_ref()?.as_slice()?;
        slice.get(..usize::try_from(self.bytes()).ok()?)
    }

    /// The buffer, filled in a success. A failure that left doubts about late writes has none.
    pub fn into_buffer(self) -> Option<Buffer> {
        self.buffer
    }

    /// The same, without taking it.
    pub fn buffer(&self) -> Option<&Buffer> {
        self.buffer.as_ref()
    }

    /// The filled buffer, or the error. A failed GET's buffer returns to the pool. News of a GET that goes on
    /// ([`Flags::MORE`]) has no buffer, which is an error here.
    pub fn result(self) -> Result<Buffer, Error> {
        match (self.error, self.buffer) {
            (Some(error), _) => Err(error),
            (None, Some(buffer)) => Ok(buffer),
            (None, None) => Err(Error::new(
                "GET",
                "",
                "",
                s3engine_s3::error::ErrorKind::Config(
                    "this completion announces another one and has no buffer".into(),
                ),
            )),
        }
    }
}
