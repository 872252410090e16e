//! Who gets the next chunk: at most so many there are, each has one holder, and who asked first is served first. Pure.

use std::collections::VecDeque;
use std::task::Waker;

use super::error::CudaError;

/// Chunks that are shared. They are made when somebody waits for one, and kept.
pub(super) struct Ring<T> {
    /// Never more than this.
    most: usize,
    made: usize,
    /// One is being made.
    making: bool,
    /// Empty as long as anybody waits for what is here.
    free: Vec<T>,
    /// In the order in which they came; names ascend.
    waiters: VecDeque<Waiter<T>>,
    next: u64,
}

/// One who waits, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket(u64);

struct Waiter<T> {
    ticket: Ticket,
    waker: Waker,
    /// Its own from now on, also if it leaves without it.
    given: Option<Result<T, CudaError>>,
}

impl<T> Ring<T> {
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            made: 0,
            making: false,
            free: Vec::new(),
            waiters: VecDeque::new(),
            next: 0,
        }
    }

    /// A chunk now, or a place in the queue.
    pub(super) fn ask(&mut self, waker: &Waker) -> Result<T, Ticket> {
        if let Some(chunk) = self.free.pop() {
            return Ok(chunk);
        }
        let ticket = Ticket(self.next);
        self.next += 1;
        self.waiters.push_back(Waiter {
            ticket,
            waker: waker.clone(),
            given: None,
        });
        Err(ticket)
    }

    /// What the waiter was given, who then waits no more.
    pub(super) fn look(&mut self, ticket: Ticket, waker: &Waker) -> Option<Result<T, CudaError>> {
        let at = self.find(ticket)?;
        let waiter = &mut self.waiters[at];
        if waiter.given.is_none() {
            waiter.waker.clone_from(waker);
            return None;
        }
        self.waiters.remove(at)?.given
    }

    /// A waiter waits no more. What it was given is the next one's.
    pub(super) fn leave(&mut self, ticket: Ticket) -> Option<Waker> {
        let at = self.find(ticket)?;
        match self.waiters.remove(at)?.given {
            Some(Ok(chunk)) => self.give(chunk),
            _ => None,
        }
    }

    /// A chunk comes back: it is the first waiter's, whom the caller wakes.
    pub(super) fn give(&mut self, chunk: T) -> Option<Waker> {
        let Some(first) = self
            .waiters
            .iter_mut()
            .find(|waiter| waiter.given.is_none())
        else {
            self.free.push(chunk);
            return None;
        };
        first.given = Some(Ok(chunk));
        Some(first.waker.clone())
    }

    /// Whether somebody has not got a chunk yet.
    pub(super) fn is_wanted(&self) -> bool {
        self.waiters.iter().any(|waiter| waiter.given.is_none())
    }

    /// Whether the caller should make one more, which it then does, or says that it cannot.
    pub(super) fn make_one(&mut self) -> bool {
        let make = !self.making && self.made < self.most && self.is_wanted();
        self.making |= make;
        make
    }

    /// Whether any were made.
    pub(super) fn has_some(&self) -> bool {
        self.made > 0
    }

    /// One more was made.
    pub(super) fn made(&mut self, chunk: T) -> Option<Waker> {
        self.making = false;
        self.made += 1;
        self.give(chunk)
    }

    /// No more can be made now: those that there are must do. Without any, all who wait are told why; who comes later
    /// may have more luck.
    pub(super) fn cannot_make(&mut self, why: &CudaError) -> Vec<Waker> {
        self.making = false;
        if self.has_some() {
            return Vec::new();
        }
        self.refuse(why)
    }

    /// All who wait get no chunk, but the reason.
    pub(super) fn refuse(&mut self, why: &CudaError) -> Vec<Waker> {
        let waiting = self.waiters.iter_mut();
        let waiting = waiting.filter(|waiter| waiter.given.is_none());
        waiting
            .map(|waiter| {
                waiter.given = Some(Err(why.clone()));
                waiter.waker.clone()
            })
            .collect()
    }

    fn find(&self, ticket: Ticket) -> Option<usize> {
        let found = self
            .waiters
            .binary_search_by_key(&ticket, |waiter| waiter.ticket);
        found.ok()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet, VecDeque};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use proptest::prelude::*;

    use super::*;

    #[derive(Default)]
    struct Bell(AtomicUsize);

    impl Wake for Bell {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Ask,
        Look(usize),
        Leave(usize),
        Give(usize),
        Make,
        CannotMake,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => Just(Step::Ask),
            3 => any::<usize>().prop_map(Step::Look),
            2 => any::<usize>().prop_map(Step::Leave),
            4 => any::<usize>().prop_map(Step::Give),
            3 => Just(Step::Make),
            1 => Just(Step::CannotMake),
        ]
    }

    /// What should be so, as plainly as it can be said.
    #[derive(Default)]
    struct Model {
        /// Whose turn it is, first to last.
        queue: VecDeque<Ticket>,
        /// Given, and not fetched yet.
        given: BTreeMap<Ticket, Result<u32, ()>>,
        free: BTreeSet<u32>,
        held: Vec<u32>,
        made: u32,
        most: u32,
    }

    impl Model {
        fn give(&mut self, chunk: u32) -> Option<Ticket> {
            let first = self.queue.pop_front();
            match first {
                Some(ticket) => drop(self.given.insert(ticket, Ok(chunk))),
                None => drop(self.free.insert(chunk)),
            }
            first
        }

        fn nth_waiter(&self, nth: usize) -> Option<Ticket> {
            let all: Vec<_> = self.queue.iter().chain(self.given.keys()).collect();
            (!all.is_empty()).then(|| *all[nth % all.len()])
        }
    }

    struct Run {
        ring: Ring<u32>,
        model: Model,
        bells: BTreeMap<Ticket, Arc<Bell>>,
    }

    impl Run {
        fn rung(&self, ticket: Ticket) -> usize {
            self.bells[&ticket].0.load(Ordering::Relaxed)
        }

        /// Rings, and checks that it was the right one's bell.
        fn check_woken(&self, woken: Option<Waker>, expected: Option<Ticket>) {
            assert_eq!(woken.is_some(), expected.is_some());
            if let (Some(waker), Some(ticket)) = (woken, expected) {
                let before = self.rung(ticket);
                waker.wake();
                assert_eq!(
                    self.rung(ticket),
                    before + 1,
                    "the first who waits is woken"
                );
            }
        }

        fn take(&mut self, step: &Step) {
            let (ring, model) = (&mut self.ring, &mut self.model);
            match *step {
                Step::Ask => {
                    let bell = Arc::new(Bell::default());
                    match ring.ask(&Waker::from(Arc::clone(&bell))) {
                        Ok(chunk) => {
                            assert!(model.queue.is_empty(), "nobody is overtaken");
                            assert!(model.free.remove(&chunk));
                            model.held.push(chunk);
                        }
                        Err(ticket) => {
                            assert!(model.free.is_empty(), "nobody waits for what is there");
                            model.queue.push_back(ticket);
                            self.bells.insert(ticket, bell);
                        }
                    }
                }
                Step::Look(nth) => {
                    let Some(ticket) = model.nth_waiter(nth) else {
                        return;
                    };
                    let waker = Waker::from(Arc::clone(&self.bells[&ticket]));
                    let found = ring.look(ticket, &waker).map(|given| given.map_err(drop));
                    assert_eq!(found, model.given.remove(&ticket));
                    model.held.extend(found.and_then(Result::ok));
                }
                Step::Leave(nth) => {
                    let Some(ticket) = model.nth_waiter(nth) else {
                        return;
                    };
                    model.queue.retain(|other| *other != ticket);
                    let had = model.given.remove(&ticket).and_then(Result::ok);
                    let next = had.and_then(|chunk| model.give(chunk));
                    let woken = ring.leave(ticket);
                    self.check_woken(woken, next);
                }
                Step::Give(nth) if !model.held.is_empty() => {
                    let chunk = model.held.swap_remove(nth % model.held.len());
                    let (woken, next) = (ring.give(chunk), model.give(chunk));
                    self.check_woken(woken, next);
                }
                Step::Make => {
                    let wanted = !model.queue.is_empty() && model.made < model.most;
                    assert_eq!(ring.make_one(), wanted);
                    if wanted {
                        assert!(!ring.make_one(), "one at a time");
                        let chunk = model.made;
                        model.made += 1;
                        let (woken, next) = (ring.made(chunk), model.give(chunk));
                        self.check_woken(woken, next);
                    }
                }
                Step::CannotMake if ring.make_one() => {
                    let woken = ring.cannot_make(&CudaError::Forked);
                    if model.made > 0 {
                        assert!(woken.is_empty());
                        return;
                    }
                    assert_eq!(woken.len(), model.queue.len());
                    for ticket in std::mem::take(&mut model.queue) {
                        model.given.insert(ticket, Err(()));
                    }
                }
                _ => {}
            }
        }
    }

    proptest! {
        #[test]
        fn each_chunk_has_one_holder_and_who_came_first_is_served_first(
            most in 1..6_u32,
            steps in prop::collection::vec(step(), 1..200),
        ) {
            let mut run = Run {
                ring: Ring::new(most as usize),
                model: Model { most, ..Model::default() },
                bells: BTreeMap::new(),
            };
            for step in &steps {
                run.take(step);
                let (ring, model) = (&run.ring, &run.model);
                prop_assert_eq!(ring.made, model.made as usize);
                prop_assert!(ring.made <= most as usize);
                prop_assert_eq!(ring.is_wanted(), !model.queue.is_empty());
                let mut all: Vec<u32> = model.free.iter().copied().collect();
                all.extend(&model.held);
                all.extend(model.given.values().filter_map(|given| given.ok()));
                all.sort_unstable();
                prop_assert_eq!(all, (0..model.made).collect::<Vec<_>>());
            }
            // Whoever leaves, and when: every chunk can be had again.
            while run.model.nth_waiter(0).is_some() {
                run.take(&Step::Leave(0));
            }
            while !run.model.held.is_empty() {
                run.take(&Step::Give(0));
            }
            let mut back: Vec<u32> = std::iter::from_fn(|| run.ring.ask(Waker::noop()).ok()).collect();
            back.sort_unstable();
            prop_assert_eq!(back, (0..run.model.made).collect::<Vec<_>>());
        }
    }
}
