//! Who may start a request, and when: deficit round robin over shares. No I/O, no clock, no lock.
//!
//! ```text
//!  share ── waiting: oldest first ──┐                   ┌─> open lane ──┐
//!  share ── waiting ────────────────┼─ ring: one's turn ┤               ├─> under way
//!  share ── waiting ────────────────┘                   └─> reserve ────┘
//!                                    small ones of shares within their part
//! ```
//! 1. Whoever has its turn gets [`QUANTUM`] times its weight in bytes of credit, and spends it on its oldest requests
//!    until it does not suffice for the next. A request costs what it asks for, at least [`LEAST_COST`].
//! 2. Turns go to shares that hold less than their part of the requests (by weight, among shares that have any) while
//!    such a share waits, else to all that wait.
//! 3. Nobody passes the one whose turn it is: if its request does not fit, room is kept until it does. A request
//!    larger than the lane fits when the lane is empty.
//! 4. While there are two shares or more, a slice of the room is a reserve for requests of at most [`SMALL`] bytes, of
//!    shares within their part; the share that holds least of it goes first, whoever has its turn. That is on credit:
//!    up to the bytes that the reserve has, times the share's weight.
//! 5. A share alone may use everything, up to its own caps and those that it has with others ([`Groups`]).
//! 6. Each share works with one endpoint, whose window bounds all of them together ([`Windows`]). One whose window is
//!    full is passed, as if it did not wait: others do not wait for its endpoint.
//! 7. A request that comes back after a backoff stands where it stood: before those of its share that came later.
//!
//! What follows. A share within its part waits for the end of one request, with others that are within theirs, and
//! not for the queues of those that are beyond. A small request of such a share starts at once, unless the reserve is
//! full of small ones: then it waits for one of these to end and not for a large one, until the share has moved more
//! bytes than is its due. Where requests are what is short, each share gets requests by its weight; where bytes are, it
//! gets bytes by its weight, to within a turn, a request and the reserve.

use std::collections::VecDeque;
use std::num::NonZeroU32;

use super::Limits;
use super::groups::{Group, GroupId, Groups};
use super::windows::{WindowId, Windows};

/// Bytes that a turn is worth, times the share's weight.
pub(super) const QUANTUM: u64 = 1 << 20;

/// What a request costs at least: it takes a connection, however little it asks for.
pub(super) const LEAST_COST: u64 = 64 << 10;

/// Requests up to this size may use the reserve, so that its room is never long in coming back.
pub(super) const SMALL: u64 = QUANTUM;

/// Index of a share.
pub(crate) type ShareId = usize;

/// Number of a waiter; later ones have larger numbers.
pub(super) type Ticket = u64;

/// What is under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) requests: usize,
    pub(super) bytes: u64,
}

impl Load {
    fn has_room(self, bytes: u64, within: Limits) -> bool {
        self.requests < within.requests && self.bytes.saturating_add(bytes) <= within.bytes
    }

    pub(super) fn add(&mut self, bytes: u64) {
        self.requests += 1;
        self.bytes += bytes;
    }

    pub(super) fn remove(&mut self, bytes: u64) {
        self.requests -= 1;
        self.bytes -= bytes;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    Open,
    Reserve,
}

/// The room that one request has been given. Goes back by [`Turns::finish`].
#[derive(Debug)]
pub(super) struct Grant {
    pub(super) share: ShareId,
    pub(super) bytes: u64,
    pub(super) lane: Lane,
    /// Where it stood among those that wait; where it stands if it comes back.
    pub(super) ticket: Ticket,
    /// The stay in the ring that it was charged to; `None` where nobody waited.
    stay: Option<u64>,
}

#[derive(Debug)]
struct Waiter<T> {
    ticket: Ticket,
    bytes: u64,
    payload: T,
}

/// What is known of one share.
#[derive(Debug)]
struct Share<T> {
    weight: u32,
    caps: Limits,
    /// Of the endpoint that it works with.
    window: WindowId,
    /// With which others it has further caps.
    group: Option<GroupId>,
    /// In both lanes.
    held: Load,
    in_reserve: usize,
    /// Not empty: the share is in the ring.
    waiting: VecDeque<Waiter<T>>,
    /// Credit in bytes of this stay in the ring. Below zero after the reserve took requests before their turn.
    credit: i64,
    /// Counts stays in the ring.
    stay: u64,
    /// Whether it has requests waiting or under way.
    active: bool,
}

impl<T> Share<T> {
    /// Whether its own caps let it start a request.
    fn may_start(&self, bytes: u64) -> bool {
        let fits = self.held.bytes == 0 || self.held.bytes.saturating_add(bytes) <= self.caps.bytes;
        fits && self.held.requests < self.caps.requests
    }
}

/// All shares, and what they may have under way together.
#[derive(Debug)]
pub(super) struct Turns<T> {
    limits: Limits,
    /// What is kept for small requests while there are two shares or more.
    kept: Limits,
    open: Load,
    reserve: Load,
    shares: Vec<Share<T>>,
    /// Shares that nobody has.
    free: Vec<ShareId>,
    groups: Groups,
    windows: Windows,
    /// The weights of active shares.
    active_weight: u64,
    /// Shares that wait. The one whose turn it is stands in front.
    ring: VecDeque<ShareId>,
    /// Whether the first of the ring has got its credit.
    turn_begun: bool,
    next_ticket: Ticket,
}

fn cost(bytes: u64) -> i64 {
    bytes.max(LEAST_COST) as i64
}

/// An eighth of the requests, and bytes for as many small ones, but no more than an eighth of all: enough to start
/// a handful of small requests at once, little enough not to be missed by whoever fills the rest. With fewer than
/// four requests there is nothing to keep.
fn kept_of(limits: Limits) -> Limits {
    let requests = match limits.requests {
        0..4 => 0,
        requests => (requests / 8).max(1),
    };
    let bytes = (requests as u64 * SMALL).min(limits.bytes / 8);
    Limits { requests, bytes }
}

impl<T> Turns<T> {
    /// More bytes than any machine has under way, and few enough to add up.
    const MOST_BYTES: u64 = 1 << 56;

    pub(super) fn new(limits: Limits) -> Self {
        let limits = Limits {
            requests: limits.requests.max(1),
            bytes: limits.bytes.clamp(1, Self::MOST_BYTES),
        };
        Self {
            limits,
            kept: kept_of(limits),
            open: Load::default(),
            reserve: Load::default(),
            shares: Vec::new(),
            free: Vec::new(),
            groups: Groups::default(),
            windows: Windows::default(),
            active_weight: 0,
            ring: VecDeque::new(),
            turn_begun: false,
            next_ticket: 0,
        }
    }

    pub(super) fn limits(&self) -> Limits {
        self.limits
    }

    /// The windows of endpoints. After one has got wider, to be followed by [`Turns::next`].
    pub(super) fn windows(&mut self) -> &mut Windows {
        &mut self.windows
    }

    /// Adds a share that works with the endpoint of a window.
    pub(super) fn join(&mut self, window: WindowId, weight: NonZeroU32, caps: Limits) -> ShareId {
        let share = Share {
            window,
            weight: weight.get(),
            caps: Limits {
                requests: caps.requests.max(1),
                ..caps
            },
            group: None,
            held: Load::default(),
            in_reserve: 0,
            waiting: VecDeque::new(),
            credit: 0,
            stay: 0,
            active: false,
        };
        match self.free.pop() {
            Some(id) => {
                self.shares[id] = share;
                id
            }
            None => {
                self.shares.push(share);
                self.shares.len() - 1
            }
        }
    }

    /// Bounds a share that has nothing waiting or under way together with others.
    pub(super) fn group(&mut self, id: ShareId, group: Group) {
        self.shares[id].group = Some(self.groups.join(group));
    }

    /// Removes a share that has nothing waiting or under way.
    pub(super) fn leave(&mut self, id: ShareId) {
        debug_assert!(!self.shares[id].active);
        if let Some(group) = self.shares[id].group.take() {
            self.groups.leave(group);
        }
        self.free.push(id);
    }

    /// Starts a request at once, if nobody waits and there is room.
    pub(super) fn start(&mut self, id: ShareId, bytes: u64) -> Option<Grant> {
        let bytes = self.charged(bytes);
        let fits = self.ring.is_empty() && self.fits(Lane::Open, bytes);
        (fits && self.may_start(id, bytes)).then(|| {
            let ticket = self.ticket();
            self.give(id, bytes, Lane::Open, ticket, None)
        })
    }

    /// Has a request wait. To be followed by [`Turns::next`], since the request may be one that need not.
    pub(super) fn wait(&mut self, id: ShareId, bytes: u64, payload: T) -> Ticket {
        let ticket = self.ticket();
        self.wait_at(id, ticket, bytes, payload);
        ticket
    }

    /// The same for one that had this ticket before and gave its room back: it goes before those that came later.
    pub(super) fn wait_at(&mut self, id: ShareId, ticket: Ticket, bytes: u64, payload: T) {
        let waiter = Waiter {
            ticket,
            bytes,
            payload,
        };
        let share = &mut self.shares[id];
        if share.waiting.is_empty() {
            self.ring.push_back(id);
        }
        let at = share.waiting.partition_point(|w| w.ticket < ticket);
        share.waiting.insert(at, waiter);
        self.note_activity(id);
    }

    fn ticket(&mut self) -> Ticket {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        ticket
    }

    /// Forgets a waiter, if it still waits. To be followed by [`Turns::next`], since others may fit in its stead.
    pub(super) fn give_up(&mut self, id: ShareId, ticket: Ticket) -> Option<T> {
        let share = &mut self.shares[id];
        let at = share.waiting.binary_search_by_key(&ticket, |w| w.ticket);
        let waiter = share.waiting.remove(at.ok()?)?;
        self.after_waiting(id);
        self.note_activity(id);
        Some(waiter.payload)
    }

    /// Lowers what a request was charged with to what it really moves. To be followed by [`Turns::next`].
    pub(super) fn refund(&mut self, grant: &mut Grant, real: u64) {
        let back = grant.bytes.saturating_sub(real);
        let share = &mut self.shares[grant.share];
        if grant.stay == Some(share.stay) {
            share.credit += cost(grant.bytes) - cost(grant.bytes - back);
        }
        share.held.bytes -= back;
        self.windows.held(share.window).bytes -= back;
        if let Some(group) = share.group {
            self.groups.held(group).bytes -= back;
        }
        match grant.lane {
            Lane::Open => self.open.bytes -= back,
            Lane::Reserve => self.reserve.bytes -= back,
        }
        grant.bytes -= back;
    }

    /// Takes back what a request held. To be followed by [`Turns::next`].
    pub(super) fn finish(&mut self, grant: Grant) {
        let share = &mut self.shares[grant.share];
        share.held.remove(grant.bytes);
        self.windows.held(share.window).remove(grant.bytes);
        if let Some(group) = share.group {
            self.groups.held(group).remove(grant.bytes);
        }
        match grant.lane {
            Lane::Open => self.open.remove(grant.bytes),
            Lane::Reserve => {
                share.in_reserve -= 1;
                self.reserve.remove(grant.bytes);
            }
        }
        self.note_activity(grant.share);
    }

    /// The next waiter that may start, until there is none.
    pub(super) fn next(&mut self) -> Option<(T, Grant)> {
        if self.ring.is_empty() {
            return None;
        }
        // Turns are told when a request has ended, not before: who is within its part may be another then.
        let turn = match self.fits(Lane::Open, 0) {
            true => self
                .turn()
                .filter(|&id| self.fits(Lane::Open, self.charged(self.head(id)))),
            false => None,
        };
        let (id, lane) = match turn {
            Some(id) => (id, Lane::Open),
            None => (self.next_of_reserve()?, Lane::Reserve),
        };
        let bytes = self.charged(self.head(id));
        let kept = self.kept.bytes as i64;
        let share = &mut self.shares[id];
        let waiter = share.waiting.pop_front()?;
        let most_debt = kept
            .saturating_mul(share.weight.into())
            .saturating_add(SMALL as i64);
        share.credit = (share.credit - cost(bytes)).max(-most_debt);
        let stay = share.stay;
        let grant = self.give(id, bytes, lane, waiter.ticket, Some(stay));
        self.after_waiting(id);
        Some((waiter.payload, grant))
    }

    /// Ends all waiting, and hands back who waited.
    pub(super) fn end_waiting(&mut self) -> Vec<T> {
        let mut ended = Vec::new();
        while let Some(&id) = self.ring.front() {
            ended.extend(self.shares[id].waiting.drain(..).map(|w| w.payload));
            self.after_waiting(id);
            self.note_activity(id);
        }
        ended
    }

    /// Whose turn it is: the one whose turn goes on, or else the first that enough rounds bring credit for its oldest
    /// request. Rounds in which nobody could start anything are counted, not walked. Asked twice, it answers the same.
    fn turn(&mut self) -> Option<ShareId> {
        if self.turn_begun {
            let first = *self.ring.front()?;
            if self.goes_on(first) {
                return Some(first);
            }
            // One that may not go on saves credit for one request and no more.
            let next = cost(self.charged(self.head(first)));
            let credit = &mut self.shares[first].credit;
            *credit = next.min(*credit);
            self.ring.rotate_left(1);
            self.turn_begun = false;
        }
        let candidates = self.ring.iter().enumerate();
        let (beyond, rounds, at) = candidates
            .filter(|&(_, &id)| self.may(id))
            .map(|(at, &id)| (!self.is_within(id), self.rounds_to(id), at))
            .min()?;
        for nth in 0..self.ring.len() {
            let id = self.ring[nth];
            // Those behind it have not had their turn of the last round.
            let rounds = rounds - i64::from(nth > at);
            if rounds > 0 && self.may(id) && (beyond || self.is_within(id)) {
                self.shares[id].credit += rounds * self.credit_of_turn(id);
            }
        }
        self.ring.rotate_left(at);
        self.turn_begun = true;
        self.ring.front().copied()
    }

    fn goes_on(&self, id: ShareId) -> bool {
        let some_within = || {
            self.ring
                .iter()
                .any(|&id| self.may(id) && self.is_within(id))
        };
        self.may(id) && self.short_of(id) <= 0 && (self.is_within(id) || !some_within())
    }

    /// The share that holds least of the reserve, of those that it may serve now.
    fn next_of_reserve(&self) -> Option<ShareId> {
        if !self.fits(Lane::Reserve, 0) {
            return None;
        }
        let ring = self.ring.iter().copied();
        let within = ring.filter(|&id| self.may(id) && self.is_within(id));
        // Where all are in debt, debts count from the least.
        let least_debt = within.clone().map(|id| self.standing(id)).max()?.min(0);
        let fits = |&id: &ShareId| {
            let bytes = self.head(id);
            let owes = least_debt - self.standing(id);
            bytes <= SMALL && self.fits(Lane::Reserve, bytes) && owes < self.kept.bytes as i64
        };
        within
            .filter(fits)
            .min_by_key(|&id| self.shares[id].in_reserve)
    }

    /// Whether its caps let a share in the ring start its oldest request.
    fn may(&self, id: ShareId) -> bool {
        self.may_start(id, self.charged(self.head(id)))
    }

    /// Whether a share's own caps, and those that it has with others, let it start a request.
    fn may_start(&self, id: ShareId, bytes: u64) -> bool {
        let share = &self.shares[id];
        let group = share.group;
        share.may_start(bytes)
            && self.windows.may_start(share.window)
            && group.is_none_or(|group| self.groups.may_start(group))
    }

    /// Whether a share holds less than its part of the requests, which is one at least: of all that there may be, and
    /// of those that its endpoint bears.
    fn is_within(&self, id: ShareId) -> bool {
        let share = &self.shares[id];
        let one_more = share.held.requests as u64 + 1;
        let is_part = |of: usize, weight: u64| {
            let of_all = (of as u64).saturating_mul(share.weight.into());
            one_more.saturating_mul(weight) <= of_all
        };
        let (requests, weight) = self.windows.requests(share.window);
        share.held.requests == 0
            || is_part(self.limits.requests, self.active_weight) && is_part(requests, weight)
    }

    /// Credit that a share in the ring lacks for its oldest request.
    fn short_of(&self, id: ShareId) -> i64 {
        cost(self.charged(self.head(id))) - self.shares[id].credit
    }

    /// The turn of a share in the ring that brings credit for its oldest request, counted from one.
    fn rounds_to(&self, id: ShareId) -> i64 {
        let turn = self.credit_of_turn(id);
        ((self.short_of(id) + turn - 1) / turn).max(1)
    }

    /// Credit of a share, rounded down, by its weight.
    fn standing(&self, id: ShareId) -> i64 {
        let share = &self.shares[id];
        share.credit.div_euclid(share.weight.into())
    }

    fn credit_of_turn(&self, id: ShareId) -> i64 {
        QUANTUM as i64 * i64::from(self.shares[id].weight)
    }

    /// Bytes of the oldest request of a share in the ring.
    fn head(&self, id: ShareId) -> u64 {
        self.shares[id].waiting.front().map_or(0, |w| w.bytes)
    }

    /// What a request is charged with: one that is larger than the open lane takes all of it.
    fn charged(&self, bytes: u64) -> u64 {
        bytes.min(self.size_of(Lane::Open).bytes)
    }

    fn size_of(&self, lane: Lane) -> Limits {
        let kept = match self.shares.len() - self.free.len() {
            0 | 1 => Limits {
                requests: 0,
                bytes: 0,
            },
            _ => self.kept,
        };
        match lane {
            Lane::Open => Limits {
                requests: self.limits.requests - kept.requests,
                bytes: self.limits.bytes - kept.bytes,
            },
            Lane::Reserve => kept,
        }
    }

    /// Whether a lane has room, and all together have: lanes change in size as shares come and go.
    fn fits(&self, lane: Lane, bytes: u64) -> bool {
        let used = match lane {
            Lane::Open => self.open,
            Lane::Reserve => self.reserve,
        };
        used.has_room(bytes, self.size_of(lane)) && self.load().has_room(bytes, self.limits)
    }

    /// What is under way in both lanes.
    pub(super) fn load(&self) -> Load {
        Load {
            requests: self.open.requests + self.reserve.requests,
            bytes: self.open.bytes + self.reserve.bytes,
        }
    }

    fn give(
        &mut self,
        id: ShareId,
        bytes: u64,
        lane: Lane,
        ticket: Ticket,
        stay: Option<u64>,
    ) -> Grant {
        let share = &mut self.shares[id];
        share.held.add(bytes);
        self.windows.held(share.window).add(bytes);
        if let Some(group) = share.group {
            self.groups.held(group).add(bytes);
        }
        match lane {
            Lane::Open => self.open.add(bytes),
            Lane::Reserve => {
                share.in_reserve += 1;
                self.reserve.add(bytes);
            }
        }
        self.note_activity(id);
        Grant {
            share: id,
            bytes,
            lane,
            ticket,
            stay,
        }
    }

    /// Takes a share that waits no more out of the ring. Its credit ends with its stay.
    fn after_waiting(&mut self, id: ShareId) {
        let share = &mut self.shares[id];
        if !share.waiting.is_empty() {
            return;
        }
        share.credit = 0;
        share.stay += 1;
        if self.ring.front() == Some(&id) {
            self.ring.pop_front();
            self.turn_begun = false;
        } else {
            self.ring.retain(|&other| other != id);
        }
    }

    fn note_activity(&mut self, id: ShareId) {
        let share = &mut self.shares[id];
        let active = share.held.requests > 0 || !share.waiting.is_empty();
        let weight = u64::from(share.weight);
        let of_window = self.windows.active_weight(share.window);
        match (share.active, active) {
            (false, true) => {
                self.active_weight += weight;
                *of_window += weight;
            }
            (true, false) => {
                self.active_weight -= weight;
                *of_window -= weight;
            }
            _ => {}
        }
        share.active = active;
    }
}

#[cfg(test)]
#[path = "turns_tests.rs"]
mod tests;
