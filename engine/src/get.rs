//! A request for an object or a range of it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use s3engine_pool::{Buffer, Memory};
use s3engine_s3::Policy;
use s3engine_s3::checksum::Mode;
use s3engine_s3::object::{ETag, ObjectInfo, Pin};
use s3engine_s3::options::RequestOptions;

use crate::open::Object;
use crate::tenant::Tenant;

/// Names one GET of a queue, from push to completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub(crate) u64);

/// A GET: an object or a range of it, a destination, and what is allowed.
#[must_use = "a Get does nothing until it is pushed or awaited"]
pub struct Get {
    pub(crate) bucket: Arc<str>,
    pub(crate) key: Arc<str>,
    /// The same, where it was opened.
    pub(crate) opened: Option<Object>,
    /// Offset and length in the object.
    pub(crate) range: Option<(u64, u64)>,
    pub(crate) if_match: Option<ETag>,
    pub(crate) version: Option<Pin>,
    pub(crate) buffer: Option<Buffer>,
    pub(crate) fixed: bool,
    pub(crate) memory: Memory,
    pub(crate) policy: Option<Policy>,
    pub(crate) checksum: Option<Mode>,
    /// What else it says.
    pub(crate) options: Option<Arc<RequestOptions>>,
    pub(crate) deadline: Option<Duration>,
    pub(crate) user_data: u64,
    /// For whom it runs; the engine's own program where absent.
    pub(crate) tenant: Option<Arc<Tenant>>,
}

impl Get {
    /// The NUMA node that its memory is near to, where that is known.
    pub(crate) fn numa_node(&self) -> Option<u32> {
        let memory = self.buffer.as_ref().map_or(self.memory, Buffer::memory);
        memory.numa_node()
    }

    /// The whole object, into memory that the engine leases.
    pub fn new(bucket: impl Into<Arc<str>>, key: impl Into<Arc<str>>) -> Self {
        Self {
            bucket: bucket.into(),
            key: key.into(),
            opened: None,
            range: None,
            if_match: None,
            version: None,
            buffer: None,
            fixed: false,
            memory: Memory::Host,
            policy: None,
            checksum: None,
            options: None,
            deadline: None,
            user_data: 0,
            tenant: None,
        }
    }

    /// The whole of an object that was opened, in the version that it had then.
    pub fn of(object: &Object) -> Self {
        let name = object.name();
        Self {
            opened: Some(object.clone()),
            version: name.version.clone(),
            options: object.options().cloned(),
            ..Self::new(Arc::clone(&name.bucket), Arc::clone(&name.key))
        }
    }

    /// Only `len` bytes from `offset` on. Past the object's end there are fewer, and the completion says
    /// [`Flags::PARTIAL`](crate::Flags::PARTIAL).
    pub fn range(mut self, offset: u64, len: u64) -> Self {
        self.range = Some((offset, len));
        self
    }

    /// Only if the object is this version.
    pub fn if_match(mut self, etag: ETag) -> Self {
        self.if_match = Some(etag);
        self.opened = None;
        self
    }

    /// Only if the object is still the one that HEAD or an earlier completion described. Its parts need not
    /// wait for the first one then. An `info` without a size binds nothing.
    pub fn version(mut self, info: &ObjectInfo) -> Self {
        self.version = Pin::of(info);
        self.opened = None;
        self
    }

    /// With these options: a version, a key, who pays, and more. Those of an object that was opened are not needed
    /// again.
    pub fn options(mut self, options: impl Into<Arc<RequestOptions>>) -> Self {
        let options = options.into();
        self.options = (!options.is_none()).then_some(options);
        self
    }

    /// Into this buffer. The completion hands a buffer back: this one, or another one where a remote may
    /// still write to this one.
    pub fn into(mut self, buffer: Buffer) -> Self {
        self.buffer = Some(buffer);
        self.fixed = false;
        self
    }

    /// Into this buffer and no other. Where a remote may still write to it, a first completion with
    /// [`Flags::MORE`](crate::Flags::MORE) says so, and the last one comes after that was ruled out.
    pub fn into_fixed(mut self, buffer: Buffer) -> Self {
        self.buffer = Some(buffer);
        self.fixed = true;
        self
    }

    /// Other than the engine's default policy.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = Some(policy);
        self
    }

    /// Other than what the engine asks of checksums by default.
    pub fn checksum(mut self, mode: Mode) -> Self {
        self.checksum = Some(mode);
        self
    }

    /// Fails when this much time has passed since submission. The engine's own default otherwise.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// A number that the completion repeats.
    pub fn user_data(mut self, user_data: u64) -> Self {
        self.user_data = user_data;
        self
    }
}

impl fmt::Debug for Get {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Get")
            .field("bucket", &self.bucket)
            .field("range", &self.range)
            .field("buffer", &self.buffer)
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}
