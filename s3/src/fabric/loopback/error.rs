//! What can go wrong on either side.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use rustix::io::Errno;
use s3engine_pool::cuda::CudaError;

use super::folder::FolderError;
use super::wire::Refusal;

/// Why the owner's side could not start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoopbackError {
    /// The folder for the socket cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The system refused.
    #[error("cannot {what}: {}", io::Error::from_raw_os_error(*errno))]
    System {
        /// What was tried.
        what: &'static str,
        /// The system's error number.
        errno: i32,
    },
    /// A simulated server says what a registration costs, and not in a way that makes sense.
    #[error("{} does not say what a registration costs: {text:?}", path.display())]
    BadCost {
        /// The file.
        path: PathBuf,
        /// What it says.
        text: String,
    },
    /// What a registration costs can be set by one server at a time.
    #[error("another server sets what a registration costs in {}", folder.display())]
    CostTaken {
        /// The folder.
        folder: PathBuf,
    },
}

impl LoopbackError {
    pub(super) fn system(what: &'static str) -> impl FnOnce(Errno) -> Self {
        move |errno| Self::System {
            what,
            errno: errno.raw_os_error(),
        }
    }
}

/// Why a server could not write to a window.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// The token is not one of this fabric.
    #[error("not a token of the loopback fabric: {why}")]
    BadToken {
        /// What it lacks.
        why: &'static str,
    },
    /// The folder for sockets cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// No process listens under the token's instance number.
    #[error("no owner {instance} in {}", folder.display())]
    NoSuchOwner {
        /// The number, as in the socket file's name.
        instance: String,
        /// Where it was looked for.
        folder: PathBuf,
    },
    /// The owner turned this process away.
    #[error("owner {instance} refused: {}", refusal_text(*why))]
    Refused {
        /// The owner's number.
        instance: String,
        /// Why.
        why: Refusal,
    },
    /// The owner has no registration of that key: it never had, or revoked it.
    #[error("key {rkey:#010x} is not registered")]
    UnknownKey {
        /// The key.
        rkey: u32,
    },
    /// The registration ended.
    #[error("key {rkey:#010x} was revoked after {written} bytes of this write")]
    Revoked {
        /// The key.
        rkey: u32,
        /// Bytes that this write had stored before.
        written: u64,
    },
    /// The token's window is not inside the registration of its key.
    #[error("a window of {len} bytes at {address:#x} is not inside key {rkey:#010x}")]
    OutOfRegistration {
        /// The window's address.
        address: u64,
        /// Its length.
        len: u64,
        /// The key.
        rkey: u32,
    },
    /// A write would pass the window's end. Nothing was written.
    #[error("{len} bytes at {offset} do not fit a window of {window} bytes")]
    OutOfWindow {
        /// Where in the window the write starts.
        offset: u64,
        /// How long it is.
        len: u64,
        /// The window's length.
        window: u64,
    },
    /// The owner did not answer in time.
    #[error("owner {instance} did not answer within {after:?}")]
    TimedOut {
        /// The owner's number.
        instance: String,
        /// How long was waited.
        after: Duration,
    },
    /// The connection to the owner ended.
    #[error("the connection to owner {instance} ended")]
    OwnerGone {
        /// The owner's number.
        instance: String,
    },
    /// The owner's memory could not be mapped.
    #[error("cannot map the memory of key {rkey:#010x}: {why}")]
    Unmappable {
        /// The key.
        rkey: u32,
        /// The system's or the pool's words.
        why: String,
    },
    /// The owner's memory is a device's, and could not be written.
    #[error("cannot write to the memory of key {rkey:#010x}: {error}")]
    Cuda {
        /// The key.
        rkey: u32,
        /// What CUDA says.
        error: CudaError,
    },
    /// The system refused.
    #[error("cannot {what}: {}", io::Error::from_raw_os_error(*errno))]
    System {
        /// What was tried.
        what: &'static str,
        /// The system's error number.
        errno: i32,
    },
}

impl PeerError {
    pub(super) fn system(what: &'static str) -> impl FnOnce(Errno) -> Self {
        move |errno| Self::System {
            what,
            errno: errno.raw_os_error(),
        }
    }
}

fn refusal_text(why: Refusal) -> &'static str {
    match why {
        Refusal::User => "it belongs to another user",
        Refusal::Capability => "the token's capability is not its own",
        Refusal::Version => "it speaks another version of the protocol",
        Refusal::Busy => "it has as many peers as it takes",
    }
}
