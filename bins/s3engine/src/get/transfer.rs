//! One extent of one object, chunk by chunk: fetched, on demand read a second time and compared, written.
//!
//! ```text
//! free buffers ──GET──> fetched ──────────────────────────────> written ──> free buffers
//!                          └──GET by HTTP, another buffer── compared ─┘
//! ```
//! A stream is written in order: chunks that are early wait in `early`, and no chunk is asked for without a buffer,
//! so memory is bounded whatever the size of the object.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use s3engine::{
    Buffer, ChecksumMode, ChecksumTally, Completion, Engine, Error, ErrorKind, Flags, Get, Memory,
    ObjectInfo, Policy, PoolError, Queue, QueueOptions, RequestOptions, Unverified, Verified,
};

use crate::exit::Failure;
use crate::get::output::Output;
use crate::get::range::{Chunk, Extent};
use crate::get::summary::Tally;
use crate::interrupt::Interrupt;
use crate::object_url::ObjectUrl;
use crate::progress::Progress;

/// How often it is looked whether a signal came.
const POLL: Duration = Duration::from_millis(100);
/// Chunks under way at once.
const DEPTH: usize = 8;

/// What to transfer, and how.
pub(crate) struct Plan<'a> {
    pub(crate) url: &'a ObjectUrl,
    /// The object; every chunk must be of this version.
    pub(crate) info: &'a ObjectInfo,
    pub(crate) extent: Extent,
    /// Bytes of one chunk.
    pub(crate) chunk: u64,
    pub(crate) policy: Policy,
    pub(crate) checksum: ChecksumMode,
    pub(crate) options: &'a Arc<RequestOptions>,
    pub(crate) verify: bool,
    /// When all must be done.
    pub(crate) until: Option<Instant>,
}

impl Plan<'_> {
    /// Buffers that one chunk needs.
    fn buffers_each(&self) -> usize {
        if self.verify { 2 } else { 1 }
    }

    /// What is left of the time, or the error that none is.
    fn time_left(&self) -> Result<Option<Duration>, Failure> {
        let Some(until) = self.until else {
            return Ok(None);
        };
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let (bucket, key) = (&*self.url.bucket, &*self.url.key);
            return Err(Error::new("GET", bucket, key, ErrorKind::Deadline).into());
        }
        Ok(Some(left))
    }
}

/// Moves the extent into the output. Counts in `tally` what came how. Returns what the object's checksum has shown.
pub(crate) fn run(
    engine: &Engine,
    plan: &Plan<'_>,
    output: &mut Output,
    tally: &mut Tally,
    progress: &Progress,
    interrupt: &Interrupt,
) -> Result<Verified, Failure> {
    let mut transfer = Transfer {
        engine,
        plan,
        output,
        tally,
        progress,
        queue: engine.queue(QueueOptions { capacity: DEPTH }),
        next: 0,
        under_way: 0,
        free: Vec::new(),
        spare: HashMap::new(),
        fetched: HashMap::new(),
        early: BTreeMap::new(),
        written: 0,
        sums: ChecksumTally::default(),
    };
    transfer.sums.offer(plan.info.checksum);
    loop {
        transfer.start_chunks()?;
        if transfer.under_way == 0 {
            return transfer.verified();
        }
        // Without enough completions in time: look at the clock and for signals, and wait on.
        let _ = transfer.queue.wait(1, POLL);
        if let Some(signal) = interrupt.signal() {
            return Err(Failure::Interrupted(signal));
        }
        plan.time_left()?;
        let ready: Vec<Completion> = transfer.queue.completions().collect();
        for completion in ready {
            transfer.completed(completion)?;
        }
    }
}

struct Transfer<'a> {
    engine: &'a Engine,
    plan: &'a Plan<'a>,
    output: &'a mut Output,
    tally: &'a mut Tally,
    progress: &'a Progress,
    queue: Queue,
    /// The next chunk to ask for.
    next: u64,
    /// Chunks asked for and not written.
    under_way: usize,
    free: Vec<Buffer>,
    /// For chunks that are fetched: where their second read will land.
    spare: HashMap<u64, Buffer>,
    /// Chunks that are fetched and read a second time now.
    fetched: HashMap<u64, Buffer>,
    /// Chunks that wait for those before them.
    early: BTreeMap<u64, Buffer>,
    /// Chunks written to a stream.
    written: u64,
    /// What the chunks sum up to.
    sums: ChecksumTally,
}

impl Transfer<'_> {
    /// Asks for as many chunks as there are buffers.
    fn start_chunks(&mut self) -> Result<(), Failure> {
        while self.under_way < DEPTH {
            let Some(chunk) = self.chunk(self.next) else {
                break;
            };
            if !self.lease()? {
                break;
            }
            let buffers = (self.free.pop(), self.plan.verify.then(|| self.free.pop()));
            let (Some(buffer), spare) = buffers else {
                break;
            };
            if let Some(Some(spare)) = spare {
                self.spare.insert(self.next, spare);
            }
            self.ask(self.next, Read::First, chunk, buffer, self.plan.policy)?;
            self.next += 1;
            self.under_way += 1;
        }
        self.queue.submit();
        Ok(())
    }

    /// Makes sure that one chunk's buffers are free; `false` where others must come back first.
    fn lease(&mut self) -> Result<bool, Failure> {
        let len = self.plan.chunk.min(self.plan.extent.len);
        while self.free.len() < self.plan.buffers_each() {
            match self.engine.pool().try_alloc(len, Memory::Host) {
                Ok(buffer) => self.free.push(buffer),
                Err(PoolError::WouldBlock { .. }) if self.under_way > 0 => return Ok(false),
                Err(error) => return Err(Failure::Build(error.into())),
            }
        }
        Ok(true)
    }

    fn ask(
        &mut self,
        nth: u64,
        read: Read,
        chunk: Chunk,
        buffer: Buffer,
        policy: Policy,
    ) -> Result<(), Failure> {
        let url = self.plan.url;
        let mut get = Get::new(&*url.bucket, &*url.key)
            .range(chunk.offset, chunk.len)
            .version(self.plan.info)
            .into(buffer)
            .policy(policy)
            .checksum(match self.plan.checksum {
                ChecksumMode::Off => ChecksumMode::Off,
                // A chunk has no checksum of its own: that of all of them is judged at the end.
                ChecksumMode::WhenOffered | ChecksumMode::Required => ChecksumMode::WhenOffered,
            })
            .options(Arc::clone(self.plan.options))
            .user_data(read.tag(nth));
        if let Some(left) = self.plan.time_left()? {
            get = get.deadline(left);
        }
        let pushed = self.queue.push(get);
        pushed.map_err(|full| Failure::Other(full.to_string()))?;
        Ok(())
    }

    fn completed(&mut self, completion: Completion) -> Result<(), Failure> {
        if completion.flags().contains(Flags::MORE) {
            return Ok(());
        }
        let (nth, read) = Read::of(completion.user_data());
        let Some(chunk) = self.chunk(nth) else {
            return Ok(());
        };
        if let Some(error) = completion.error() {
            return Err(error.clone().into());
        }
        self.check(&completion, chunk)?;
        match read {
            Read::First => self.first_read(nth, chunk, completion),
            Read::Second => self.second_read(nth, chunk, completion),
        }
    }

    /// All bytes: a range of a known version that comes short is an error here.
    fn check(&self, completion: &Completion, chunk: Chunk) -> Result<(), Failure> {
        if completion.bytes() == chunk.len {
            return Ok(());
        }
        let kind = ErrorKind::Truncated {
            received: completion.bytes(),
            expected: chunk.len,
        };
        let url = self.plan.url;
        let error = Error::new("GET", &*url.bucket, &*url.key, kind);
        Err(error
            .with_endpoint(self.engine.endpoint().to_string())
            .into())
    }

    fn first_read(
        &mut self,
        nth: u64,
        chunk: Chunk,
        completion: Completion,
    ) -> Result<(), Failure> {
        self.tally.add(&completion);
        self.sums.offer(completion.info().checksum);
        let sum = completion.checksum().map(|sum| (chunk.offset, sum));
        let seen = completion.bytes_by_path().rdma == 0;
        self.sums.add(chunk.len, sum, seen);
        self.progress.add(chunk.len, completion.path().as_str());
        let buffer = kept(completion)?;
        let Some(spare) = self.spare.remove(&nth) else {
            return self.deliver(nth, buffer);
        };
        self.fetched.insert(nth, buffer);
        self.ask(nth, Read::Second, chunk, spare, Policy::Http)
    }

    fn second_read(
        &mut self,
        nth: u64,
        chunk: Chunk,
        completion: Completion,
    ) -> Result<(), Failure> {
        let again = kept(completion)?;
        let Some(buffer) = self.fetched.remove(&nth) else {
            return Ok(());
        };
        let (delivered, read) = (bytes(&buffer, chunk.len)?, bytes(&again, chunk.len)?);
        if let Some((at, delivered, read)) = first_difference(delivered, read) {
            return Err(Failure::Differs {
                object: self.plan.url.to_string(),
                offset: chunk.offset + at,
                delivered,
                read,
            });
        }
        self.tally.verified(chunk.len);
        self.free.push(again);
        self.deliver(nth, buffer)
    }

    fn deliver(&mut self, nth: u64, buffer: Buffer) -> Result<(), Failure> {
        if !self.output.in_order() {
            return self.write(nth, buffer);
        }
        self.early.insert(nth, buffer);
        while let Some(buffer) = self.early.remove(&self.written) {
            self.write(self.written, buffer)?;
            self.written += 1;
        }
        Ok(())
    }

    fn write(&mut self, nth: u64, buffer: Buffer) -> Result<(), Failure> {
        if let Some(chunk) = self.chunk(nth) {
            self.output.write(chunk.at, bytes(&buffer, chunk.len)?)?;
        }
        self.free.push(buffer);
        self.under_way -= 1;
        Ok(())
    }

    /// What the object's checksum shows of all that came.
    fn verified(&self) -> Result<Verified, Failure> {
        let (mode, extent) = (self.plan.checksum, self.plan.extent);
        let whole = extent.offset == 0 && Some(extent.len) == self.plan.info.size;
        let judged = self.sums.judge(mode, (extent.offset, extent.len), whole);
        let kind = match judged {
            Ok(Verified::NotVerified(why))
                if mode == ChecksumMode::Required && why != Unverified::Nothing =>
            {
                ErrorKind::NotVerified(why)
            }
            Ok(verified) => return Ok(verified),
            Err(mismatch) => ErrorKind::Checksum(mismatch),
        };
        let url = self.plan.url;
        let error = Error::new("GET", &*url.bucket, &*url.key, kind);
        Err(error
            .with_endpoint(self.engine.endpoint().to_string())
            .into())
    }

    fn chunk(&self, nth: u64) -> Option<Chunk> {
        self.plan.extent.chunk(nth, self.plan.chunk)
    }
}

/// Which read of a chunk a GET is: the number that its completion repeats says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Read {
    First,
    Second,
}

impl Read {
    fn tag(self, nth: u64) -> u64 {
        nth << 1 | u64::from(self == Read::Second)
    }

    fn of(tag: u64) -> (u64, Self) {
        (
            tag >> 1,
            if tag & 1 == 0 {
                Read::First
            } else {
                Read::Second
            },
        )
    }
}

fn kept(completion: Completion) -> Result<Buffer, Failure> {
    completion.result().map_err(Failure::from)
}

fn bytes(buffer: &Buffer, len: u64) -> Result<&[u8], Failure> {
    let len = usize::try_from(len).ok();
    let found = len.and_then(|len| buffer.as_slice()?.get(..len));
    found.ok_or_else(|| {
        let why = match buffer.is_lost() {
            true => "host service: it has ended or was killed",
            false => "the buffer cannot be read by this host",
        };
        Failure::Other(why.to_owned())
    })
}

/// Where two texts of one length differ first, and with which bytes.
fn first_difference(a: &[u8], b: &[u8]) -> Option<(u64, u8, u8)> {
    if a == b {
        return None;
    }
    let at = a.iter().zip(b).position(|(a, b)| a != b)?;
    Some((at as u64, a[at], b[at]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_difference_is_found() {
        assert_eq!(first_difference(b"abc", b"abc"), None);
        assert_eq!(first_difference(b"abcd", b"abxy"), Some((2, b'c', b'x')));
    }

    #[test]
    fn a_tag_gives_back_chunk_and_read() {
        for nth in [0, 1, 77, u64::MAX >> 1] {
            for read in [Read::First, Read::Second] {
                assert_eq!(Read::of(read.tag(nth)), (nth, read));
            }
        }
    }
}
