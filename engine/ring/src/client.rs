//! The client's end of a queue: submits requests, takes completions.

use std::io;
use std::time::{Duration, Instant};

use super::abi::*;
use super::arena::{ArenaWriter, Number, Object};
use super::atomics::mutant;
use super::bell::Bell;
use super::check::{Destination, Limits, Meaning, Rejected, check};
use super::codes::{self, Policy};
use super::detail::{DETAIL_WORDS, Detail};
use super::layout::*;
use super::options::Options;
use super::spsc::{Consumer, CursorJump, NoRoom, Producer};
use super::words::{Region, Words};

/// An object to read, as a client says it.
#[derive(Clone, Copy, Debug)]
pub struct GetRequest<'a> {
    /// Which object.
    pub object: Object<&'a str>,
    /// What else is said of it. Only to a service of [`OPTIONS_VERSION`] or later.
    pub options: Option<&'a Options>,
    /// Offset and length; `None` is the whole object.
    pub range: Option<(u64, u64)>,
    /// Where the bytes go.
    pub destination: Destination,
    /// Other than the engine's default policy.
    pub policy: Option<Policy>,
    /// Milliseconds until it is given up; 0 is the engine's default.
    pub deadline_ms: u32,
}

/// Names a request of a queue until its last completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry(u32);

impl Entry {
    /// Its number, below the queue's entries.
    pub fn number(self) -> u32 {
        self.0
    }
}

/// Why a request was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// As many requests are in flight as the queue has entries. Take completions first.
    #[error("the queue is full: {entries} requests are in flight")]
    Full {
        /// The queue's entries.
        entries: u32,
    },
    /// The request cannot be made.
    #[error(transparent)]
    Request(#[from] Meaning),
    /// The service broke the rules.
    #[error(transparent)]
    Broken(#[from] Broken),
}

/// The service broke the rules: nothing of this queue can be believed any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// A cursor that it cannot have reached.
    #[error("the service's {0}")]
    Cursor(#[from] CursorJump),
    /// A completion of a request that is not in flight.
    #[error("the service completed request number {entry}, which is not in flight")]
    NotInFlight {
        /// The request's number.
        entry: u32,
    },
    /// A second completion that announces another one.
    #[error("the service announced the end of request number {entry} twice")]
    AnnouncedTwice {
        /// The request's number.
        entry: u32,
    },
    /// A detail record that does not exist.
    #[error("a completion names detail record {detail}, there are {records}")]
    Detail {
        /// The record's index.
        detail: u32,
        /// How many there are.
        records: u32,
    },
}

/// Why waiting failed.
#[derive(Debug, thiserror::Error)]
pub enum WaitError {
    /// The service broke the rules.
    #[error(transparent)]
    Broken(#[from] Broken),
    /// The bell failed.
    #[error("cannot wait for the bell: {0}")]
    Bell(#[from] io::Error),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    InFlight,
    Announced,
    Cancelled { announced: bool },
}

/// The client's end of a queue.
pub struct Client {
    submissions: Producer<SQE_WORDS>,
    completions: Consumer<CQE_WORDS>,
    arena: ArenaWriter,
    details: Words,
    limits: Limits,
    records: u32,
    /// Numbers of requests that are not in flight: the credit. Each stands for one submission, its stripe
    /// of the arena, and two completions.
    free: Vec<u32>,
    states: Vec<State>,
    /// Of what is staged: the cancels, and the GETs, which have no time of submission yet.
    staged_cancels: u32,
    unstamped: Vec<u32>,
    broken: Option<Broken>,
}

/// A completion that was taken. Its detail record is the service's again at the next submit, hence the borrow.
pub struct Reaped<'a> {
    /// The completion.
    pub cqe: Cqe,
    details: &'a Words,
}

impl Reaped<'_> {
    /// What more there is to say of it.
    #[inline]
    pub fn detail(&self) -> Option<Detail> {
        let at = self.cqe.detail as usize * DETAIL_WORDS;
        (self.cqe.detail != NO_DETAIL).then(|| Detail::load(self.details, at))
    }
}

impl Client {
    /// The client's end over the two regions, whose cursors stand at `start`: 0, but in tests.
    pub fn new(
        client: &Region,
        service: &Region,
        layout: Layout,
        start: u32,
    ) -> Result<Client, RegionTooSmall> {
        layout.fits(client.len(), service.len())?;
        let entries = layout.entries();
        Ok(Client {
            submissions: Producer::new(
                client.own_entries(SQES, layout.submissions()),
                client.own_cursor(SQ_TAIL),
                service.cursor(SQ_HEAD),
                service.cursor(SQ_EVENT),
                start,
            ),
            completions: Consumer::new(
                service.entries(CQES, layout.completions()),
                service.cursor(CQ_TAIL),
                client.own_cursor(CQ_HEAD),
                client.own_cursor(CQ_EVENT),
                start,
            ),
            arena: ArenaWriter::new(client, layout),
            details: service.words(layout.details(), layout.detail_bytes()),
            limits: Limits {
                entries,
                arena: layout.arena_bytes() as u32,
            },
            records: layout.completions(),
            free: (0..entries).rev().collect(),
            states: vec![State::Free; entries as usize],
            staged_cancels: 0,
            unstamped: Vec::new(),
            broken: None,
        })
    }

    /// Stages a request that does nothing and completes.
    #[inline]
    pub fn push_nop(&mut self, user_data: u64) -> Result<Entry, PushError> {
        let entry = self.claim()?;
        self.stage(Sqe {
            op: OP_NOP,
            user_data,
            entry,
            ..Sqe::default()
        })
    }

    /// Stages a GET for the next [`submit`](Self::submit).
    pub fn push_get(&mut self, get: &GetRequest<'_>, user_data: u64) -> Result<Entry, PushError> {
        let entry = self.claim()?;
        let sqe = match self.describe(entry, get, user_data) {
            Ok(sqe) => sqe,
            Err(why) => {
                if !mutant(30) {
                    self.free.push(entry);
                }
                return Err(why.into());
            }
        };
        let staged = self.stage(sqe)?;
        self.unstamped.push(entry);
        Ok(staged)
    }

    /// Writes the record of a GET to the arena. Returns what refers to it.
    fn describe(
        &mut self,
        entry: u32,
        get: &GetRequest<'_>,
        user_data: u64,
    ) -> Result<Sqe, Meaning> {
        let record = self.arena.write(entry, &get.object, get.options)?;
        let mut sqe = Sqe {
            op: OP_GET,
            policy: get.policy.map_or(codes::DEFAULT_POLICY, codes::policy_code),
            flags: match record.number {
                Number::Unused => 0,
                Number::PinnedSize => SQE_PINNED,
                Number::OpenedId => SQE_OPENED,
            },
            user_data,
            entry,
            name_at: record.at,
            key_len: record.key_len,
            bucket_len: record.bucket_len,
            etag_len: record.etag_len,
            version_len: record.version_len,
            options_len: record.options_len,
            deadline_ms: get.deadline_ms,
            sequence: self.submissions.tail(),
            ..Sqe::default()
        };
        if record.options_len > 0 {
            sqe.flags |= SQE_OPTIONS;
        }
        match get.range {
            Some((offset, len)) => (sqe.offset, sqe.len) = (offset, len),
            None => sqe.flags |= SQE_WHOLE,
        }
        match get.destination {
            Destination::LeaseHost => sqe.flags |= SQE_LEASE,
            Destination::Slot {
                slab,
                slot,
                generation,
                fixed,
            } => {
                (sqe.slab, sqe.slot, sqe.generation) = (slab, slot, generation);
                sqe.flags |= if fixed { SQE_FIXED } else { 0 };
            }
        }
        // What the service would answer with an error is refused here, by the same rules.
        match check(&sqe, sqe.sequence, &self.limits) {
            Err(Rejected::Meaning { why, .. }) => Err(why),
            _ => Ok(sqe),
        }
    }

    /// Stages a cancel for the next [`submit`](Self::submit): the request ends soon, with a completion as
    /// always. Once a request; for one that is not in flight, or was cancelled, nothing is staged.
    pub fn push_cancel(&mut self, entry: Entry) -> Result<(), PushError> {
        self.intact()?;
        let announced = match self.states.get(entry.0 as usize) {
            None => return Ok(()),
            Some(State::Free) if !mutant(28) => return Ok(()),
            Some(State::Cancelled { .. }) if !mutant(24) => return Ok(()),
            Some(state) => *state == State::Announced,
        };
        self.place(Sqe {
            op: OP_CANCEL,
            entry: entry.0,
            ..Sqe::default()
        })?;
        self.staged_cancels += !mutant(29) as u32;
        self.states[entry.0 as usize] = State::Cancelled { announced };
        Ok(())
    }

    /// Takes a number that is not in flight. Without one the queue is full.
    #[inline]
    fn claim(&mut self) -> Result<u32, PushError> {
        self.intact()?;
        match self.free.pop() {
            Some(entry) => Ok(entry),
            None => Err(self.full()),
        }
    }

    /// Fills the next submission for a number that was claimed.
    #[inline]
    fn stage(&mut self, sqe: Sqe) -> Result<Entry, PushError> {
        if let Err(why) = self.place(sqe) {
            self.free.push(sqe.entry);
            return Err(why);
        }
        self.states[sqe.entry as usize] = State::InFlight;
        Ok(Entry(sqe.entry))
    }

    #[inline]
    fn place(&mut self, mut sqe: Sqe) -> Result<(), PushError> {
        sqe.sequence = self.submissions.tail();
        match self.submissions.push(&sqe.to_words()) {
            Ok(()) => Ok(()),
            // A service that shows completions before it shows that it took their submissions.
            Err(NoRoom::Full) => Err(self.full()),
            Err(NoRoom::Jump(jump)) => Err(self.broke(jump.into()).into()),
        }
    }

    /// Shows the service all that is staged, with one store; `now_ns` is the time of the monotonic clock.
    /// Returns whether the service wants the bell.
    #[must_use = "the service sleeps until the bell rings"]
    pub fn submit(&mut self, now_ns: u64) -> bool {
        self.staged_cancels = 0;
        for entry in &self.unstamped {
            self.arena.stamp(*entry, now_ns);
        }
        self.unstamped.clear();
        if mutant(15) {
            let wakes = self.submissions.publish();
            self.completions.release();
            return wakes;
        }
        // First the completions taken: a service that sees a request then also sees room for its completions.
        self.completions.release();
        self.submissions.publish()
    }

    /// Takes the next completion, if there is one.
    #[inline]
    pub fn reap(&mut self) -> Result<Option<Reaped<'_>>, Broken> {
        self.intact()?;
        let words = match self.completions.pop() {
            Ok(Some(words)) => words,
            Ok(None) => return Ok(None),
            Err(jump) => return Err(self.broke(jump.into())),
        };
        let cqe = Cqe::from_words(words);
        if let Err(broken) = self.account(&cqe) {
            return Err(self.broke(broken));
        }
        let details = &self.details;
        Ok(Some(Reaped { cqe, details }))
    }

    /// Judges a completion, and takes its request's credit back if it is the last one.
    #[inline]
    fn account(&mut self, cqe: &Cqe) -> Result<(), Broken> {
        let (entry, detail, records) = (cqe.entry, cqe.detail, self.records);
        // One more than the index: 0 is `NO_DETAIL`.
        if detail.wrapping_add(1) > records {
            return Err(Broken::Detail { detail, records });
        }
        let state = self.states.get_mut(entry as usize);
        let Some(state) = state.filter(|state| **state != State::Free) else {
            return Err(Broken::NotInFlight { entry });
        };
        if cqe.is_terminal() || mutant(20) {
            *state = State::Free;
            self.free.push(entry);
            return Ok(());
        }
        *state = match *state {
            State::InFlight => State::Announced,
            State::Cancelled { announced: false } => State::Cancelled { announced: true },
            _ => return Err(Broken::AnnouncedTwice { entry }),
        };
        Ok(())
    }

    /// Requests staged or in flight: those whose last completion was not taken.
    pub fn in_flight(&self) -> u32 {
        self.limits.entries - self.free.len() as u32
    }

    /// Requests staged.
    pub fn staged(&self) -> u32 {
        self.submissions.unpublished() - self.staged_cancels
    }

    /// Completions that can be taken.
    pub fn ready(&mut self) -> Result<u32, Broken> {
        self.intact()?;
        self.completions
            .ready()
            .map_err(|jump| self.broke(jump.into()))
    }

    /// Asks for the bell as soon as `min` completions can be taken, or one for each submitted request if
    /// those are fewer. Returns whether to sleep.
    #[must_use = "sleeping on false may last for ever"]
    pub fn park(&mut self, min: u32) -> Result<bool, Broken> {
        self.intact()?;
        let min = min.min(self.in_flight() - self.staged());
        if min == 0 {
            return Ok(false);
        }
        self.completions
            .park(min)
            .map_err(|jump| self.broke(jump.into()))
    }

    /// Sleeps until `min` completions can be taken (as [`park`](Self::park) counts), at most `timeout`.
    /// Returns how many can be.
    pub fn wait(
        &mut self,
        min: u32,
        timeout: Duration,
        bell: &impl Bell,
    ) -> Result<u32, WaitError> {
        let began = Instant::now();
        while self.park(min)? {
            let left = timeout.saturating_sub(began.elapsed());
            if left.is_zero() {
                break;
            }
            bell.wait(left)?;
        }
        Ok(self.ready()?)
    }

    #[inline]
    fn intact(&self) -> Result<(), Broken> {
        // By reference: copying the error before looking at it was a tenth of a request's cost.
        match &self.broken {
            None => Ok(()),
            Some(broken) => Err(*broken),
        }
    }

    #[cold]
    fn full(&self) -> PushError {
        let entries = self.limits.entries;
        PushError::Full { entries }
    }

    #[cold]
    fn broke(&mut self, broken: Broken) -> Broken {
        *self.broken.insert(broken)
    }
}
