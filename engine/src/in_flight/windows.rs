//! What the endpoints bear: a bound for all shares that work with one. Pure.

use super::Limits;
use super::turns::Load;

/// Index of a window.
pub(super) type WindowId = usize;

#[derive(Debug)]
struct Window {
    bounds: Limits,
    held: Load,
    /// Places that nobody has and nobody gets for a while.
    resting: usize,
    /// The weights of its shares that are active.
    active_weight: u64,
}

/// One for each endpoint.
#[derive(Debug, Default)]
pub(super) struct Windows(Vec<Window>);

impl Windows {
    /// Adds one that bounds nothing yet.
    pub(super) fn open(&mut self) -> WindowId {
        self.0.push(Window {
            bounds: Limits::NONE,
            held: Load::default(),
            resting: 0,
            active_weight: 0,
        });
        self.0.len() - 1
    }

    pub(super) fn bound(&mut self, id: WindowId, bounds: Limits) {
        self.0[id].bounds = bounds;
    }

    /// A place of a request that has ended is not given to another one, until [`Windows::wake`].
    pub(super) fn rest(&mut self, id: WindowId) {
        self.0[id].resting += 1;
    }

    pub(super) fn wake(&mut self, id: WindowId) {
        self.0[id].resting -= 1;
    }

    /// Requests under way, those whose places rest among them, and their bytes.
    pub(super) fn taken(&self, id: WindowId) -> Load {
        let Window { held, resting, .. } = &self.0[id];
        Load {
            requests: held.requests + resting,
            ..*held
        }
    }

    /// Whether one more request may start. The last one may go beyond the bytes, so that one for many is not passed
    /// by others for ever.
    pub(super) fn may_start(&self, id: WindowId) -> bool {
        let (taken, bounds) = (self.taken(id), self.0[id].bounds);
        taken.requests < bounds.requests.max(1) && taken.bytes < bounds.bytes.max(1)
    }

    /// How many requests there may be, and the weights of the shares that have a part of them.
    pub(super) fn requests(&self, id: WindowId) -> (usize, u64) {
        (self.0[id].bounds.requests, self.0[id].active_weight)
    }

    pub(super) fn held(&mut self, id: WindowId) -> &mut Load {
        &mut self.0[id].held
    }

    pub(super) fn active_weight(&mut self, id: WindowId) -> &mut u64 {
        &mut self.0[id].active_weight
    }
}

#[cfg(test)]
#[path = "windows_tests.rs"]
mod tests;
