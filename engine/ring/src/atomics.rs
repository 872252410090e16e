//! The atomics of the rings: the machine's, or those of a model checker that runs every interleaving.
//!
//! The switch is `--cfg ring_loom`, not the usual `--cfg loom`: that one also changes dependencies.

#[cfg(ring_loom)]
pub(super) use loom::sync::atomic::{Ordering, fence};
#[cfg(not(ring_loom))]
pub(super) use std::sync::atomic::{Ordering, fence};

/// Whether single mutation `number` is built in (`RING_MUTANT=number`), to show that a test kills it.
/// `mutants.sh` has the table. Always false in a normal build, and gone from its code.
pub(super) const fn mutant(number: u8) -> bool {
    let Some(text) = option_env!("RING_MUTANT") else {
        return false;
    };
    match text.as_bytes() {
        [ones] => number == *ones - b'0',
        [tens, ones] => number == (*tens - b'0') * 10 + *ones - b'0',
        _ => panic!("RING_MUTANT is a number below 100"),
    }
}
