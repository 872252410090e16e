//! The slots of one slab: which ranges are leased, and under which generation. Pure, no memory in it.

use std::collections::BTreeMap;

use crate::SlabId;

/// Names one lease of a range. A later lease of the same range has another generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlotId {
    /// The slab.
    pub slab: SlabId,
    /// The slot's number in the slab.
    pub index: u32,
    /// How often the slot had been leased by then.
    pub generation: u32,
}

/// A slot id whose lease has ended, or that never was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("slot {}.{} of generation {} is not leased", .0.slab.0, .0.index, .0.generation)]
pub struct StaleSlot(pub SlotId);

#[derive(Clone, Copy, Debug)]
struct Slot {
    generation: u32,
    /// Offset and length while leased.
    range: Option<(u64, u64)>,
}

/// Free ranges and slots of a slab. Lengths and offsets are multiples of [`Slots::GRAIN`].
#[derive(Debug)]
pub(crate) struct Slots {
    slab: SlabId,
    /// Start -> length. Neighbours are merged, so no two touch.
    free: BTreeMap<u64, u64>,
    slots: Vec<Slot>,
    /// Numbers of slots that are not leased, for use again.
    idle: Vec<u32>,
    leased: u64,
}

impl Slots {
    /// Smallest alignment and unit of allocation: a page.
    pub(crate) const GRAIN: u64 = 4096;

    pub(crate) fn new(slab: SlabId, len: u64) -> Self {
        Self {
            slab,
            free: BTreeMap::from([(0, len)]),
            slots: Vec::new(),
            idle: Vec::new(),
            leased: 0,
        }
    }

    /// Leases `len` bytes at a multiple of `align`, from the lowest place that fits.
    pub(crate) fn lease(&mut self, len: u64, align: u64) -> Option<(SlotId, u64)> {
        debug_assert!(align.is_power_of_two() && align >= Self::GRAIN);
        let len = len.max(1).checked_next_multiple_of(Self::GRAIN)?;
        let (start, have, at) = self.free.iter().find_map(|(&start, &have)| {
            let at = start.checked_next_multiple_of(align)?;
            (at.checked_add(len)? <= start + have).then_some((start, have, at))
        })?;
        Some((self.take((start, have), at, len)?, at))
    }

    /// Leases just these bytes, if nobody has any of them. For memory of which somebody else decides where what lies.
    pub(crate) fn lease_at(&mut self, at: u64, len: u64) -> Option<SlotId> {
        let (&start, &have) = self.free.range(..=at).next_back()?;
        let fits = at.checked_add(len)? <= start + have && len > 0;
        fits.then(|| self.take((start, have), at, len)).flatten()
    }

    /// How many ranges are leased.
    pub(crate) fn leased(&self) -> usize {
        self.slots.len() - self.idle.len()
    }

    /// Takes a range out of a free one.
    fn take(&mut self, (start, have): (u64, u64), at: u64, len: u64) -> Option<SlotId> {
        let index = match self.idle.pop() {
            Some(index) => index,
            None => {
                let index = u32::try_from(self.slots.len()).ok()?;
                self.slots.push(Slot {
                    generation: 0,
                    range: None,
                });
                index
            }
        };
        self.free.remove(&start);
        if at > start {
            self.free.insert(start, at - start);
        }
        if at + len < start + have {
            self.free.insert(at + len, start + have - at - len);
        }
        self.leased += len;
        let slot = &mut self.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        slot.range = Some((at, len));
        Some(SlotId {
            slab: self.slab,
            index,
            generation: slot.generation,
        })
    }

    /// Offset and length of a leased slot.
    pub(crate) fn resolve(&self, id: SlotId) -> Result<(u64, u64), StaleSlot> {
        self.slots
            .get(id.index as usize)
            .filter(|slot| id.slab == self.slab && slot.generation == id.generation)
            .and_then(|slot| slot.range)
            .ok_or(StaleSlot(id))
    }

    /// Ends a lease. The id is stale from here on.
    pub(crate) fn release(&mut self, id: SlotId) -> Result<u64, StaleSlot> {
        let (mut at, len) = self.resolve(id)?;
        self.slots[id.index as usize].range = None;
        self.idle.push(id.index);
        self.leased -= len;
        let mut merged = len;
        if let Some(after) = self.free.remove(&(at + len)) {
            merged += after;
        }
        if let Some((&before, &have)) = self.free.range(..at).next_back()
            && before + have == at
        {
            at = before;
            merged += have;
        }
        self.free.insert(at, merged);
        Ok(len)
    }

    pub(crate) fn leased_bytes(&self) -> u64 {
        self.leased
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SLAB: SlabId = SlabId(7);

    #[test]
    fn a_generation_that_has_passed_is_stale() {
        let mut slots = Slots::new(SLAB, 1 << 20);
        let (first, _) = slots.lease(4096, 4096).unwrap();
        slots.release(first).unwrap();
        let (second, _) = slots.lease(4096, 4096).unwrap();
        assert_eq!(first.index, second.index);
        assert_eq!(slots.resolve(first), Err(StaleSlot(first)));
        assert_eq!(slots.release(first), Err(StaleSlot(first)));
        assert!(slots.resolve(second).is_ok());
        let elsewhere = SlotId {
            slab: SlabId(8),
            ..second
        };
        assert!(slots.resolve(elsewhere).is_err());
    }

    #[derive(Clone, Debug)]
    enum Step {
        Lease { len: u64, align: u32 },
        LeaseAt { at: u64, len: u64 },
        Release { nth: usize },
        ReleaseAgain { nth: usize },
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0u64..300_000, 12u32..22).prop_map(|(len, align)| Step::Lease { len, align }),
            (0u64..3_000_000, 0u64..300_000).prop_map(|(at, len)| Step::LeaseAt { at, len }),
            any::<usize>().prop_map(|nth| Step::Release { nth }),
            any::<usize>().prop_map(|nth| Step::ReleaseAgain { nth }),
        ]
    }

    proptest! {
        /// Against a model that is a plain list of leases.
        #[test]
        fn leases_are_aligned_disjoint_and_all_come_back(steps in prop::collection::vec(step(), 1..200)) {
            let len = 2 << 20;
            let mut slots = Slots::new(SLAB, len);
            let mut live: Vec<(SlotId, u64, u64)> = Vec::new();
            let mut dead: Vec<SlotId> = Vec::new();
            for step in steps {
                match step {
                    Step::Lease { len: want, align } => {
                        let Some((id, at)) = slots.lease(want, 1 << align) else { continue };
                        let size = want.max(1).next_multiple_of(4096);
                        prop_assert!(at.is_multiple_of(1 << align) && at + size <= len);
                        for &(other, start, have) in &live {
                            prop_assert!(other != id && (at + size <= start || start + have <= at));
                        }
                        prop_assert!(!dead.contains(&id), "an id is never given out twice");
                        live.push((id, at, size));
                    }
                    Step::LeaseAt { at, len: want } => {
                        let disjoint = |&(_, start, have): &(SlotId, u64, u64)| {
                            at + want <= start || start + have <= at
                        };
                        let free = want > 0 && at + want <= len && live.iter().all(disjoint);
                        let leased = slots.lease_at(at, want);
                        prop_assert_eq!(leased.is_some(), free);
                        let Some(id) = leased else { continue };
                        prop_assert!(!dead.contains(&id), "an id is never given out twice");
                        live.push((id, at, want));
                    }
                    Step::Release { nth } if !live.is_empty() => {
                        let (id, _, size) = live.swap_remove(nth % live.len());
                        prop_assert_eq!(slots.release(id), Ok(size));
                        dead.push(id);
                    }
                    Step::ReleaseAgain { nth } if !dead.is_empty() => {
                        let id = dead[nth % dead.len()];
                        prop_assert_eq!(slots.release(id), Err(StaleSlot(id)));
                    }
                    _ => {}
                }
                prop_assert_eq!(slots.leased_bytes(), live.iter().map(|l| l.2).sum::<u64>());
                for &(id, at, size) in &live {
                    prop_assert_eq!(slots.resolve(id), Ok((at, size)));
                }
            }
            for (id, _, _) in live {
                slots.release(id).unwrap();
            }
            prop_assert!(slots.lease(len, 4096).is_some(), "free ranges merged back into one");
        }
    }
}
