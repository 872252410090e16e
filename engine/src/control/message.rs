//! The messages.

use s3engine_pool::cuda::{CudaCause, IPC_HANDLE, Uuid};
use s3engine_pool::{Memory, MemoryBound, MemoryError, PoolError, SlabId, SlotId};
use s3engine_ring::{Cqe, Detail, Outcome};
use s3engine_s3::error::{Error, ErrorKind};
use s3engine_s3::list::{ListPage, ListQuery};
use s3engine_s3::object::ObjectInfo;
use s3engine_s3::options::RequestOptions;
use serde::{Deserialize, Serialize};

use crate::completion::Completion;
use crate::get::Ticket;
use crate::under_way::Outstanding;
use crate::wire::{self, Asked};

/// Versions of messages and rings that this code speaks.
pub(crate) const VERSIONS: (u32, u32) = (s3engine_ring::OLDEST_VERSION, s3engine_ring::VERSION);

/// The first that a client says.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Hello {
    /// The oldest and the newest version that it speaks.
    pub(crate) versions: (u32, u32),
    /// Which of the service's endpoints it wants; its default one if absent.
    pub(crate) endpoint: Option<String>,
    /// What people call it: job and rank.
    pub(crate) label: String,
}

/// The answer to that.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Greeting {
    Welcome(Welcome),
    /// The service wants nothing of it, and says why.
    Refused(String),
}

/// What a client may know of the service.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Welcome {
    /// The version that both speak from here on.
    pub(crate) version: u32,
    /// The session's number, for logs.
    pub(crate) session: u64,
    /// The endpoint, for people.
    pub(crate) endpoint: String,
    /// The fabric's name, or why there is none.
    pub(crate) fabric: Result<String, String>,
    /// The most bytes that the client can lease.
    pub(crate) max_bytes: u64,
    /// The most entries of a queue.
    pub(crate) max_entries: u32,
}

/// Something asked, with a number that its answer repeats.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Request {
    pub(crate) id: u64,
    pub(crate) ask: Ask,
}

/// What a client can ask for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Ask {
    /// A queue of so many entries. Four descriptors: the client's region, the service's, and both bells.
    Queue { entries: u32 },
    /// A slot.
    Lease {
        #[serde(default)]
        memory: Kind,
        len: u64,
        align: u64,
    },
    /// Slots are not needed any more. Not answered.
    Free { slots: Vec<Slot> },
    /// The memory of a slab of which a completion has named a slot.
    Slab { slab: u32 },
    /// A slot in a device's memory that the client itself has allocated: `len` bytes at `at` of `whole`. One
    /// descriptor of the memory comes along, but with a handle.
    Adopt {
        device: [u8; 16],
        whole: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        handle: Option<IpcHandle>,
        at: u64,
        len: u64,
    },
    /// Another slot in such memory, of which the service has made that slab.
    AdoptAgain { slab: u32, at: u64, len: u64 },
    /// Such memory is to be forgotten, with its registrations.
    Disown { slab: u32 },
    /// The client has pinned that slab: its memory is not free while it is mapped there. Not answered.
    Pinned { slab: u32 },
    /// What the server says of an object.
    Head {
        bucket: String,
        key: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        options: Option<Box<RequestOptions>>,
    },
    /// The same, and an id for many GETs of it.
    Open {
        bucket: String,
        key: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        options: Option<Box<RequestOptions>>,
    },
    /// The id is not needed any more. Not answered.
    Close { object: u64 },
    /// A page of a list.
    List {
        bucket: String,
        query: ListQuery,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        options: Option<Box<RequestOptions>>,
    },
    /// What of the session's requests has not ended.
    Outstanding,
    /// Nobody waits for the answer of that request any more. Not answered.
    Forget { request: u64 },
    /// Whether the service lives. Answered at once, by the number 0, unless such an answer is on its way already.
    Ping,
}

impl Ask {
    /// What it says of its object besides the name.
    pub(crate) fn options(&self) -> Option<&RequestOptions> {
        match self {
            Ask::Head { options, .. } | Ask::Open { options, .. } | Ask::List { options, .. } => {
                options.as_deref()
            }
            _ => None,
        }
    }
}

/// A kind of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    #[default]
    Host,
    /// Of the device of this UUID: numbers of devices differ from process to process.
    Cuda([u8; 16]),
}

impl From<Kind> for Memory {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Host => Memory::Host,
            Kind::Cuda(uuid) => Memory::Cuda(Uuid(uuid)),
        }
    }
}

impl Kind {
    /// The kind of that memory, where clients can have such.
    pub(crate) fn of(memory: Memory) -> Option<Self> {
        match memory {
            Memory::Host => Some(Kind::Host),
            Memory::Cuda(Uuid(uuid)) => Some(Kind::Cuda(uuid)),
            _ => None,
        }
    }
}

/// A slot, as the ABI names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Slot {
    pub(crate) slab: u32,
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl From<SlotId> for Slot {
    fn from(id: SlotId) -> Self {
        Self {
            slab: id.slab.0,
            index: id.index,
            generation: id.generation,
        }
    }
}

impl From<Slot> for SlotId {
    fn from(slot: Slot) -> Self {
        Self {
            slab: SlabId(slot.slab),
            index: slot.index,
            generation: slot.generation,
        }
    }
}

/// An answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Answer {
    pub(crate) id: u64,
    pub(crate) said: Result<Said, Failure>,
}

/// What the service says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Said {
    Queue,
    Leased(Leased),
    Slab(Slab),
    /// Whether the memory is forgotten: not where slots of it are leased.
    Disowned(bool),
    Info(ObjectInfo),
    Opened {
        object: u64,
        info: ObjectInfo,
    },
    Page(ListPage),
    Outstanding(Vec<Outstanding>),
    /// Memory may have come back, for one who was told that there was none. Nobody asked: its number is 0.
    Changed,
    /// Slabs of devices' memory, and pinned ones, that the service has destroyed: their memory is free once it is
    /// mapped nowhere. And memory of the client's own that the service has forgotten. Nobody asked: its number is 0.
    Gone {
        slabs: Vec<u32>,
    },
    /// The service lives.
    Alive,
}

/// A slot that was leased.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Leased {
    pub(crate) slot: Slot,
    /// Where it begins in its slab.
    pub(crate) offset: u64,
    /// Its slab, where the client has not been given that yet.
    pub(crate) slab: Option<Slab>,
}

/// A slab's memory. A descriptor comes along, but with a handle.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Slab {
    pub(crate) slab: u32,
    pub(crate) len: u64,
    /// Of host memory. That of a device is for writing always.
    pub(crate) read_only: bool,
    #[serde(default)]
    pub(crate) memory: Kind,
    /// Of a device's memory that CUDA IPC shares.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) handle: Option<IpcHandle>,
}

/// What CUDA IPC opens memory by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<u8>", into = "Vec<u8>")]
pub(crate) struct IpcHandle(pub(crate) [u8; IPC_HANDLE]);

impl From<IpcHandle> for Vec<u8> {
    fn from(handle: IpcHandle) -> Self {
        handle.0.to_vec()
    }
}

impl TryFrom<Vec<u8>> for IpcHandle {
    type Error = String;

    fn try_from(bytes: Vec<u8>) -> Result<Self, String> {
        let bytes = bytes.try_into();
        let bytes = bytes.map_err(|bytes: Vec<u8>| format!("a handle of {} bytes", bytes.len()));
        bytes.map(IpcHandle)
    }
}

/// [`MemoryBound`], as messages have it.
#[derive(Serialize, Deserialize)]
#[serde(remote = "MemoryBound")]
enum Bounds {
    Pool,
    Client,
    Group,
}

/// [`CudaCause`], as messages have it.
#[derive(Serialize, Deserialize)]
#[serde(remote = "CudaCause")]
enum Causes {
    NoDriver,
    NoSuchDevice,
    OutOfMemory,
    DeviceLost,
    Other,
}

/// Why not.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Failure {
    /// No room now; some will come back.
    WouldBlock {
        leased: u64,
        max_bytes: u64,
        #[serde(default, with = "Bounds")]
        bound: MemoryBound,
    },
    /// More than there could ever be.
    TooLarge { max_bytes: u64 },
    /// The client has no such slab, or not any more.
    UnknownSlab { slab: u32 },
    /// CUDA gives no memory.
    Cuda {
        #[serde(with = "Causes")]
        cause: CudaCause,
        why: String,
    },
    /// A request to the server failed.
    Request(Box<ErrorRecord>),
    /// The service does not do that, for this client or at all.
    Refused(String),
}

impl From<PoolError> for Failure {
    fn from(error: PoolError) -> Self {
        match error {
            PoolError::WouldBlock {
                leased,
                max_bytes,
                bound,
                ..
            } => Failure::WouldBlock {
                leased,
                max_bytes,
                bound,
            },
            PoolError::TooLarge { max_bytes, .. } => Failure::TooLarge { max_bytes },
            PoolError::UnknownSlab { slab } => Failure::UnknownSlab { slab: slab.0 },
            PoolError::Memory(MemoryError::Cuda(error)) => Failure::Cuda {
                cause: error.cause(),
                why: error.to_string(),
            },
            other => Failure::Refused(other.to_string()),
        }
    }
}

/// An error, as a completion would carry it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ErrorRecord {
    operation: String,
    bucket: String,
    key: String,
    endpoint: String,
    /// A completion entry and a detail record.
    bytes: Vec<u8>,
}

impl ErrorRecord {
    pub(crate) fn of(error: &Error) -> Self {
        let (operation, bucket, key) = (error.operation(), error.bucket(), error.key());
        let completion = Completion::failed(Ticket(0), 0, error.clone(), None);
        let (outcome, detail) = wire::told(&completion);
        Self {
            operation: operation.to_owned(),
            bucket: bucket.to_owned(),
            key: key.to_owned(),
            endpoint: error.endpoint().to_owned(),
            bytes: bytes_of(&outcome, &detail),
        }
    }

    /// The error again; one that says so if the record is nonsense.
    pub(crate) fn error(&self) -> Error {
        let asked = Asked {
            ticket: Ticket(0),
            bucket: &self.bucket,
            key: &self.key,
            endpoint: &self.endpoint,
        };
        let read = s3engine_ring::record_from_bytes(&self.bytes);
        let heard = read.and_then(|(cqe, detail)| wire::heard(&cqe, &detail, &asked).error);
        let error = heard.unwrap_or_else(|| {
            let kind = ErrorKind::Service("an error that cannot be read".to_owned());
            Error::new("", &*self.bucket, &*self.key, kind)
        });
        error.with_operation(self.operation.clone())
    }
}

fn bytes_of(outcome: &Outcome, detail: &Detail) -> Vec<u8> {
    let cqe = Cqe {
        error: outcome.error,
        status: outcome.status,
        reason: outcome.reason,
        path: outcome.path,
        ..Cqe::default()
    };
    s3engine_ring::record_to_bytes(&cqe, detail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use s3engine_pool::cuda::CudaError;
    use s3engine_s3::error::Phase;
    use std::time::Duration;

    #[test]
    fn an_error_arrives_with_all_its_facts() {
        let kind = ErrorKind::Status {
            status: 503,
            code: Some("SlowDown".into()),
            message: Some("less, please".into()),
        };
        let error = Error::new("LIST", "train", "", kind)
            .with_endpoint("http://s3:9000")
            .with_ids(Some("4442587FB7D0A2F9".into()), Some("host".into()))
            .with_retry_after(Some(Duration::from_secs(7)))
            .with_phase(Phase::Body)
            .with_attempt(3, 4);
        let json = serde_json::to_vec(&ErrorRecord::of(&error)).unwrap();
        let heard = serde_json::from_slice::<ErrorRecord>(&json)
            .unwrap()
            .error();
        assert_eq!(heard.to_string(), error.to_string());
        assert_eq!(heard.message(), error.message());
        assert_eq!(heard.host_id(), error.host_id());
        assert_eq!(heard.retry_after(), error.retry_after());
        assert_eq!(
            (heard.phase(), heard.reason()),
            (error.phase(), error.reason())
        );
    }

    fn again<T: Serialize + serde::de::DeserializeOwned>(message: &T) -> T {
        serde_json::from_slice(&serde_json::to_vec(message).unwrap()).unwrap()
    }

    #[test]
    fn memory_of_a_device_is_named_by_its_uuid() {
        let memory = Memory::Cuda(Uuid(std::array::from_fn(|nth| nth as u8)));
        let ask = Ask::Lease {
            memory: Kind::of(memory).unwrap(),
            len: 5,
            align: 4096,
        };
        let Ask::Lease { memory: heard, .. } = again(&ask) else {
            panic!("another ask");
        };
        assert_eq!(Memory::from(heard), memory);
        let plain = r#"{"Lease":{"len":5,"align":4096}}"#;
        let Ask::Lease { memory, .. } = serde_json::from_str(plain).unwrap() else {
            panic!("another ask");
        };
        assert_eq!(memory, Kind::Host, "where none is named");
    }

    #[test]
    fn a_handle_has_its_length_and_no_other() {
        let slab = |handle| Slab {
            slab: 1,
            len: 2,
            read_only: false,
            memory: Kind::Cuda([3; 16]),
            handle,
        };
        let handle = IpcHandle(std::array::from_fn(|nth| nth as u8));
        let heard = again(&slab(Some(handle.clone())));
        assert_eq!(heard.handle, Some(handle));
        assert_eq!(again(&slab(None)).handle, None);
        for len in [0, 63, 65] {
            let bytes = serde_json::to_vec(&vec![7_u8; len]).unwrap();
            let error = serde_json::from_slice::<IpcHandle>(&bytes).unwrap_err();
            assert!(error.to_string().contains(&format!("{len} bytes")));
        }
    }

    #[test]
    fn what_cuda_said_arrives_with_its_kind() {
        let error = |code| CudaError::Driver {
            step: "cuMemCreate",
            device: "cuda:0 (GPU-1)".to_owned(),
            code,
            name: "NAME".to_owned(),
            text: "text".to_owned(),
        };
        let none = CudaError::NoDriver {
            why: "no library".to_owned(),
        };
        let hidden = CudaError::NoSuchDevice {
            wanted: "GPU-1".to_owned(),
            seen: "none".to_owned(),
        };
        for (error, kind) in [
            (error(2), CudaCause::OutOfMemory),
            (error(700), CudaCause::DeviceLost),
            (error(1), CudaCause::Other),
            (none, CudaCause::NoDriver),
            (hidden, CudaCause::NoSuchDevice),
        ] {
            let said = error.to_string();
            let Failure::Cuda { cause, why } = again(&Failure::from(PoolError::from(error))) else {
                panic!("another failure: {said}");
            };
            assert_eq!((cause, why), (kind, said));
        }
    }

    #[test]
    fn a_record_that_is_nonsense_is_an_error_all_the_same() {
        let error = Error::new("HEAD", "b", "k", ErrorKind::Deadline);
        let mut record = ErrorRecord::of(&error);
        record.bytes.truncate(40);
        assert!(matches!(record.error().kind(), ErrorKind::Service(_)));
        record.bytes = vec![0; 32 + 1024];
        assert!(matches!(record.error().kind(), ErrorKind::Service(_)));
    }
}
