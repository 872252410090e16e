//! The other end of a queue, as the caller's thread reaches it: in this process, or in the host service.

use std::sync::Arc;
use std::time::Duration;

use s3engine_pool::{Buffer, Process, SlotId};
use s3engine_ring::{Client, Detail, Layout, SocketBell};
use s3engine_s3::error::ErrorKind;

/// The other end of one queue.
pub(crate) trait Far: Send {
    /// Hands over a buffer whose slot a submission names.
    fn put(&mut self, buffer: Buffer);

    /// Whether the other end can have this buffer.
    fn accepts(&self, buffer: &Buffer) -> bool;

    /// Takes the buffer that a completion hands back, for one that was handed over as `given`.
    fn take(&mut self, given: Option<SlotId>, detail: &Detail)
    -> Result<Option<Buffer>, ErrorKind>;

    /// Wakes the other end. An end that is gone shows as lost.
    fn ring(&self);

    /// Sleeps until the other end rings, at most `timeout`. May return early.
    fn wait(&self, timeout: Duration);

    /// Whether the other end is gone: nothing that it has not told yet will complete.
    fn is_lost(&self) -> bool;

    /// The bell that `wait` waits for, where it is one that others can wait for too.
    fn waits_on(&self) -> Option<Arc<SocketBell>>;

    /// The version that it speaks.
    fn version(&self) -> u32;

    /// Ends the queue: the other end cancels what is outstanding.
    fn close(&mut self);

    /// In a forked child: lets go of what is the parent's without touching it.
    fn leave(self: Box<Self>);
}

/// What a queue needs of the engine that it was made by.
pub(crate) trait Home: Send + Sync {
    /// Makes the rings of a queue, and its other end.
    fn attach(self: Arc<Self>, layout: Layout) -> Result<(Client, Box<dyn Far>), ErrorKind>;

    /// The process that the engine is of.
    fn process(&self) -> Process;

    /// The endpoint, for people.
    fn endpoint(&self) -> String;

    /// Why nothing on the rings will complete any more.
    fn why_lost(&self) -> ErrorKind;

    /// Where ids of open objects mean something.
    fn objects(&self) -> Option<u64>;
}
