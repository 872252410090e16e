//! Caps that several shares have together, as the clients of one user do: pure.

use super::Limits;
use super::turns::Load;

/// Which shares have caps together, and what these are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    /// All shares of the same number. The caps of the first count as long as there is any.
    pub(crate) number: u32,
    pub(crate) caps: Limits,
}

/// Index of a group.
pub(super) type GroupId = usize;

#[derive(Debug)]
struct Together {
    group: Group,
    shares: usize,
    held: Load,
}

/// The groups that there are. Few shares come and go; many requests do.
#[derive(Debug, Default)]
pub(super) struct Groups(Vec<Together>);

impl Groups {
    pub(super) fn join(&mut self, group: Group) -> GroupId {
        let is = |other: &Together| other.shares > 0 && other.group.number == group.number;
        if let Some(id) = self.0.iter().position(is) {
            self.0[id].shares += 1;
            return id;
        }
        let together = Together {
            group,
            shares: 1,
            held: Load::default(),
        };
        match self.0.iter().position(|other| other.shares == 0) {
            Some(id) => {
                self.0[id] = together;
                id
            }
            None => {
                self.0.push(together);
                self.0.len() - 1
            }
        }
    }

    /// A share leaves that has nothing under way.
    pub(super) fn leave(&mut self, id: GroupId) {
        self.0[id].shares -= 1;
    }

    /// Whether a share may start a request. The last one may go beyond the bytes: if it waited until it fitted, smaller
    /// ones of the others would pass it for ever.
    pub(super) fn may_start(&self, id: GroupId) -> bool {
        let Together { group, held, .. } = &self.0[id];
        held.requests < group.caps.requests.max(1) && held.bytes < group.caps.bytes.max(1)
    }

    pub(super) fn held(&mut self, id: GroupId) -> &mut Load {
        &mut self.0[id].held
    }
}

#[cfg(test)]
#[path = "groups_tests.rs"]
mod tests;
