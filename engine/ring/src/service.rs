//! The service's end of a queue: takes requests of a client that it does not trust, and completes them.

use super::abi::*;
use super::arena::{ArenaReader, Record};
use super::atomics::mutant;
use super::check::{CheckedGet, CheckedOp, Limits, Malformed, Meaning, Rejected, check, nop};
use super::codes;
use super::detail::{DETAIL_WORDS, Detail, TextKind};
use super::layout::*;
use super::spsc::{Consumer, CursorJump, NoRoom, Producer};
use super::words::{OwnWords, Region};

/// Why a client's session ends. Every later call on the queue says the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Ended {
    /// A submission that no correct client makes.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// A cursor that the client cannot have reached.
    #[error("the client has written what no client can have reached: {0}")]
    Cursor(#[from] CursorJump),
    /// The client submitted more than it had room for completions.
    #[error("the completion ring is full: the client used credit that it did not have")]
    Overdrawn,
}

/// The right, and the duty, to complete one request. It cannot be copied, so nothing is completed twice.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the client waits for the completion"]
pub struct Ticket {
    /// Whole words: what is stored narrow and moved wide stalls the processor.
    entry: usize,
    user_data: u64,
}

impl Ticket {
    /// The client's number of the request, below the queue's entries: no other in flight has it.
    pub fn entry(&self) -> u32 {
        self.entry as u32
    }

    /// The number given with the request.
    pub fn user_data(&self) -> u64 {
        self.user_data
    }
}

/// A request that was taken.
///
/// Small, and its tag a whole word: it passes through several hands, and as a value of 170 bytes its moves cost more
/// than the box does.
#[derive(Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Taken {
    /// Does nothing.
    Nop(Ticket),
    /// Reads an object: how, and which.
    Get(Ticket, Box<(CheckedGet, Record)>),
    /// Asks for the end of the request with this number, which is in flight.
    Cancel(u32),
    /// Was wrong in meaning and answered so: nothing to do but count it.
    Refused(Meaning),
}

/// How a request ended, without what names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Bytes that are verified to have arrived.
    pub bytes: u64,
    /// `CQE_...`; whether more follows is not the outcome's to say.
    pub flags: u16,
    /// The code of the error's kind; 0 is success.
    pub error: u16,
    /// The HTTP status of the last answer; 0 if there was none.
    pub status: u16,
    /// The code of the path.
    pub path: u8,
    /// The code of the reason.
    pub reason: u8,
}

/// A request whose end was announced already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnnounceError {
    /// The client has room for one announcement and the end.
    #[error("the end of the request was announced already")]
    Again,
    /// The session is over.
    #[error(transparent)]
    Ended(#[from] Ended),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    InFlight,
    Announced,
}

/// The service's end of a queue.
pub struct Service {
    submissions: Consumer<SQE_WORDS>,
    completions: Producer<CQE_WORDS>,
    arena: ArenaReader,
    details: OwnWords,
    limits: Limits,
    records: u32,
    /// By request number.
    states: Vec<State>,
    ended: Option<Ended>,
}

impl Service {
    /// The service's end over the two regions, whose cursors stand at `start`: 0, but in tests.
    pub fn new(
        client: &Region,
        service: &Region,
        layout: Layout,
        start: u32,
    ) -> Result<Service, RegionTooSmall> {
        layout.fits(client.len(), service.len())?;
        let entries = layout.entries();
        Ok(Service {
            submissions: Consumer::new(
                client.entries(SQES, layout.submissions()),
                client.cursor(SQ_TAIL),
                service.own_cursor(SQ_HEAD),
                service.own_cursor(SQ_EVENT),
                start,
            ),
            completions: Producer::new(
                service.own_entries(CQES, layout.completions()),
                service.own_cursor(CQ_TAIL),
                client.cursor(CQ_HEAD),
                client.cursor(CQ_EVENT),
                start,
            ),
            arena: ArenaReader::new(client, layout),
            details: service.own_words(layout.details(), layout.detail_bytes()),
            limits: Limits {
                entries,
                arena: layout.arena_bytes() as u32,
            },
            records: layout.completions(),
            states: vec![State::Free; entries as usize],
            ended: None,
        })
    }

    /// Takes the next request, if there is one.
    #[inline]
    pub fn take(&mut self) -> Result<Option<Taken>, Ended> {
        self.going()?;
        let sequence = self.submissions.head();
        let Some(words) = self.pop()? else {
            return Ok(None);
        };
        if let Some((entry, user_data)) = nop(&words, sequence)
            && let Some(state) = self.states.get_mut(entry)
            && (*state == State::Free || mutant(27))
        {
            *state = State::InFlight;
            return Ok(Some(Taken::Nop(Ticket { entry, user_data })));
        }
        match self.take_other(words) {
            Some(taken) => Ok(Some(taken)),
            None => self.going().map(|()| None),
        }
    }

    /// Goes on with a copied submission that is not a plain NOP, or not a correct one; `None` if there is nothing
    /// to take, or the session ended. Apart, so that its large values are no burden where there are none.
    #[inline(never)]
    fn take_other(&mut self, mut words: [u64; SQE_WORDS]) -> Option<Taken> {
        loop {
            if let Some(taken) = self.judge(&words).ok()? {
                return Some(taken);
            }
            words = self.pop().ok()??;
        }
    }

    /// Copies the next submission out.
    #[inline]
    fn pop(&mut self) -> Result<Option<[u64; SQE_WORDS]>, Ended> {
        match self.submissions.pop() {
            Ok(words) => Ok(words),
            Err(jump) => Err(self.end(jump.into())),
        }
    }

    /// Judges the submission that was copied last; `None` is a cancel of what has ended already.
    fn judge(&mut self, words: &[u64; SQE_WORDS]) -> Result<Option<Taken>, Ended> {
        let sequence = self.submissions.head().wrapping_sub(1);
        let copy = Sqe::from_words(*words);
        let checked = match check(&copy, sequence, &self.limits) {
            Ok(checked) => checked,
            Err(Rejected::Malformed(why)) => return Err(self.end(why.into())),
            Err(Rejected::Meaning {
                entry,
                user_data,
                why,
            }) => {
                let ticket = self.open(sequence, entry, user_data)?;
                return self.refuse(ticket, why).map(Some);
            }
        };
        let entry = checked.entry();
        if let CheckedOp::Cancel = checked.op() {
            let in_flight = self.states[entry as usize] != State::Free || mutant(22);
            return Ok(in_flight.then_some(Taken::Cancel(entry)));
        }
        let ticket = self.open(sequence, entry, checked.user_data())?;
        let CheckedOp::Get(get) = checked.op() else {
            return Ok(Some(Taken::Nop(ticket)));
        };
        match self.arena.read(&get.record) {
            Ok(record) => Ok(Some(Taken::Get(ticket, Box::new((*get, record))))),
            Err(why) => self.refuse(ticket, why).map(Some),
        }
    }

    fn open(&mut self, sequence: u32, entry: u32, user_data: u64) -> Result<Ticket, Ended> {
        let state = &mut self.states[entry as usize];
        if *state != State::Free && !mutant(21) {
            let entries = self.limits.entries;
            let why = Malformed::Entry {
                sequence,
                entry,
                entries,
            };
            return Err(self.end(why.into()));
        }
        *state = State::InFlight;
        Ok(Ticket {
            entry: entry as usize,
            user_data,
        })
    }

    fn refuse(&mut self, ticket: Ticket, why: Meaning) -> Result<Taken, Ended> {
        let mut detail = Detail::default();
        detail.add(TextKind::First, &why.to_string());
        let outcome = Outcome {
            error: codes::INVALID_REQUEST,
            ..Outcome::default()
        };
        self.complete(ticket, &outcome, Some(&detail))?;
        Ok(Taken::Refused(why))
    }

    /// Says how a request ended. The client sees it after [`publish`](Self::publish).
    #[inline]
    pub fn complete(
        &mut self,
        ticket: Ticket,
        outcome: &Outcome,
        detail: Option<&Detail>,
    ) -> Result<(), Ended> {
        self.going()?;
        self.states[ticket.entry] = State::Free;
        self.push(&ticket, outcome, outcome.flags & !CQE_MORE, detail)
    }

    /// Says that a request will end later, and how it stands. Once a request.
    pub fn announce(
        &mut self,
        ticket: &Ticket,
        outcome: &Outcome,
        detail: Option<&Detail>,
    ) -> Result<(), AnnounceError> {
        self.going()?;
        let state = std::mem::replace(&mut self.states[ticket.entry], State::Announced);
        if state == State::Announced {
            return Err(AnnounceError::Again);
        }
        self.push(ticket, outcome, outcome.flags | CQE_MORE, detail)?;
        Ok(())
    }

    #[inline]
    fn push(
        &mut self,
        ticket: &Ticket,
        outcome: &Outcome,
        flags: u16,
        detail: Option<&Detail>,
    ) -> Result<(), Ended> {
        // Record `i` belongs to completion entry `i`: it is free again exactly when that is.
        let record = self.completions.tail() & (self.records - 1);
        let cqe = Cqe {
            user_data: ticket.user_data,
            bytes: outcome.bytes,
            entry: ticket.entry as u32,
            detail: detail.map_or(NO_DETAIL, |_| record),
            flags,
            error: outcome.error,
            status: outcome.status,
            path: outcome.path,
            reason: outcome.reason,
        };
        match self.completions.push(&cqe.to_words()) {
            Ok(()) => {}
            Err(NoRoom::Full) => return Err(self.end(Ended::Overdrawn)),
            Err(NoRoom::Jump(jump)) => return Err(self.end(jump.into())),
        }
        // After the push, which knows that the entry and so the record is free; before it is published.
        if let Some(detail) = detail {
            detail.store(&self.details, record as usize * DETAIL_WORDS);
        }
        Ok(())
    }

    /// Shows the client all completions, with one store. Returns whether it wants the bell.
    #[must_use = "the client sleeps until the bell rings"]
    pub fn publish(&mut self) -> bool {
        if mutant(16) {
            let wakes = self.completions.publish();
            self.submissions.release();
            return wakes;
        }
        // First the requests taken: a client that sees a completion then also sees room for a request.
        self.submissions.release();
        self.completions.publish()
    }

    /// Requests that can be taken.
    pub fn ready(&mut self) -> Result<u32, Ended> {
        self.going()?;
        self.submissions
            .ready()
            .map_err(|jump| self.end(jump.into()))
    }

    /// Asks for the bell as soon as `min` (at least 1) requests can be taken. Returns whether to sleep.
    #[must_use = "sleeping on false may last for ever"]
    pub fn park(&mut self, min: u32) -> Result<bool, Ended> {
        self.going()?;
        self.submissions
            .park(min)
            .map_err(|jump| self.end(jump.into()))
    }

    /// Requests taken and not completed. Counted when asked for: a counter would cost every request.
    pub fn outstanding(&self) -> u32 {
        let open = self.states.iter().filter(|state| **state != State::Free);
        open.count() as u32
    }

    #[inline]
    fn going(&self) -> Result<(), Ended> {
        // By reference: copying the error before looking at it was a tenth of a request's cost.
        match &self.ended {
            None => Ok(()),
            Some(ended) => Err(*ended),
        }
    }

    #[cold]
    fn end(&mut self, why: Ended) -> Ended {
        *self.ended.insert(why)
    }
}
