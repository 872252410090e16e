//! A bound that several clients have together.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::room::Tally;

/// Clients that are bounded together, such as those of one user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupOptions {
    /// Which clients: all that give the same number.
    pub number: u64,
    /// The most bytes of each kind of memory ever mapped for all of them. The first one's word counts as long as
    /// there is any.
    pub max_bytes: u64,
}

/// What a group has.
pub(crate) struct Group {
    pub(crate) max_bytes: u64,
    pub(crate) mapped: Tally,
}

/// The groups of a pool, by their number. One lives as long as a client of it, or memory of such a client.
#[derive(Default)]
pub(crate) struct Groups(Mutex<BTreeMap<u64, Weak<Group>>>);

impl Groups {
    pub(crate) fn join(&self, options: GroupOptions) -> Arc<Group> {
        let mut groups = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(group) = groups.get(&options.number).and_then(Weak::upgrade) {
            return group;
        }
        groups.retain(|_, group| group.strong_count() > 0);
        let group = Arc::new(Group {
            max_bytes: options.max_bytes,
            mapped: Tally::default(),
        });
        groups.insert(options.number, Arc::downgrade(&group));
        group
    }
}
