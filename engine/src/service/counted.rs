//! What all clients, and those of one user, have of something that is counted: pure but for a lock.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What is taken of something, by user.
pub(super) struct Counted {
    of_all: u64,
    of_user: u64,
    taken: Mutex<Amounts>,
}

#[derive(Default)]
struct Amounts {
    all: u64,
    users: BTreeMap<u32, u64>,
}

/// Why no more can be taken: what is taken already, and what may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Full {
    /// By all together.
    Of { taken: u64, most: u64 },
    /// By one user.
    OfUser { taken: u64, most: u64 },
}

/// What was taken. It goes back on drop.
pub(super) struct Taken {
    of: Arc<Counted>,
    user: u32,
    amount: u64,
}

impl Counted {
    /// At most so much, of all users together and of each of them.
    pub(super) fn new(of_all: u64, of_user: u64) -> Arc<Self> {
        Arc::new(Self {
            of_all,
            of_user,
            taken: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Amounts> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn take(self: &Arc<Self>, user: u32, amount: u64) -> Result<Taken, Full> {
        let mut taken = self.lock();
        let of_user = taken.users.get(&user).copied().unwrap_or(0);
        if of_user.saturating_add(amount) > self.of_user {
            let (taken, most) = (of_user, self.of_user);
            return Err(Full::OfUser { taken, most });
        }
        if taken.all.saturating_add(amount) > self.of_all {
            let (taken, most) = (taken.all, self.of_all);
            return Err(Full::Of { taken, most });
        }
        taken.all += amount;
        taken.users.insert(user, of_user + amount);
        let of = Arc::clone(self);
        Ok(Taken { of, user, amount })
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let mut taken = self.of.lock();
        taken.all -= self.amount;
        if let Some(of_user) = taken.users.get_mut(&self.user) {
            *of_user -= self.amount;
            if *of_user == 0 {
                taken.users.remove(&self.user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_cannot_take_what_is_left_for_others() {
        let counted = Counted::new(10, 6);
        let five = counted.take(1, 5).unwrap();
        let refused = counted.take(1, 2).map(drop);
        assert_eq!(refused, Err(Full::OfUser { taken: 5, most: 6 }));
        let _other = counted.take(2, 5).unwrap();
        let refused = counted.take(3, 1).map(drop);
        let all = Full::Of {
            taken: 10,
            most: 10,
        };
        assert_eq!(refused, Err(all));
        drop(five);
        assert!(counted.take(1, 5).is_ok());
        assert_eq!(
            counted.lock().users.len(),
            1,
            "who has nothing is forgotten"
        );
    }
}
