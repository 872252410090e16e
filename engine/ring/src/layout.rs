//! Where things lie in the two regions of a queue of a given size. `lib.rs` draws it.

use super::abi::{CQE_SIZE, SQE_SIZE};
use super::arena::STRIPE;
use super::atomics::mutant;
use super::detail::DETAIL_SIZE;

/// The most entries a queue may have.
pub const MAX_ENTRIES: u32 = 1 << 15;

/// Distance of published cursors: two cache lines, since processors prefetch lines in pairs.
pub(super) const LINE: usize = 128;

/// Bytes of cursors at the start of each region.
pub(super) const HEADER: usize = 4 * LINE;

// In the region that the client writes.
pub(super) const SQ_TAIL: usize = 0;
pub(super) const CQ_HEAD: usize = LINE;
pub(super) const CQ_EVENT: usize = 2 * LINE;

// In the region that the service writes.
pub(super) const SQ_HEAD: usize = 0;
pub(super) const SQ_EVENT: usize = LINE;
pub(super) const CQ_TAIL: usize = 2 * LINE;

pub(super) const SQES: usize = HEADER;
pub(super) const CQES: usize = HEADER;

/// A number of entries that a queue cannot have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a queue of {entries} entries: a power of two up to {MAX_ENTRIES} is needed")]
pub struct BadEntries {
    /// The number asked for.
    pub entries: u32,
}

/// A region that is too small for its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the {which} region has {have} bytes, {needed} are needed")]
pub struct RegionTooSmall {
    /// `client` or `service`.
    pub which: &'static str,
    /// Bytes needed.
    pub needed: usize,
    /// Bytes there are.
    pub have: usize,
}

/// The layout of a queue's regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    entries: u32,
}

impl Layout {
    /// For up to `entries` requests in flight, a power of two.
    pub fn new(entries: u32) -> Result<Layout, BadEntries> {
        if entries.is_power_of_two() && entries <= MAX_ENTRIES {
            Ok(Layout { entries })
        } else {
            Err(BadEntries { entries })
        }
    }

    /// The most requests in flight.
    pub fn entries(self) -> u32 {
        self.entries
    }

    /// Entries of the submission ring: each request number has room for its request, for the cancel of that, and
    /// for the cancel of the request before, which may have ended before its cancel was taken.
    pub fn submissions(self) -> u32 {
        if mutant(23) {
            return self.entries * 2;
        }
        self.entries * 4
    }

    /// Entries of the completion ring: two for each request in flight, so that it cannot overflow.
    pub fn completions(self) -> u32 {
        if mutant(11) {
            return self.entries;
        }
        self.entries * 2
    }

    /// Bytes of all submission entries.
    pub(super) fn sqe_bytes(self) -> usize {
        self.submissions() as usize * SQE_SIZE
    }

    /// Bytes of all completion entries.
    pub(super) fn cqe_bytes(self) -> usize {
        self.completions() as usize * CQE_SIZE
    }

    /// Where the key arena begins in the client's region.
    pub(super) fn arena(self) -> usize {
        SQES + self.sqe_bytes()
    }

    /// Bytes of the key arena.
    pub(super) fn arena_bytes(self) -> usize {
        self.entries as usize * STRIPE
    }

    /// Where the detail records begin in the service's region.
    pub(super) fn details(self) -> usize {
        CQES + self.cqe_bytes()
    }

    /// Bytes of all detail records.
    pub(super) fn detail_bytes(self) -> usize {
        self.completions() as usize * DETAIL_SIZE
    }

    /// Bytes of the region that the client writes.
    pub fn client_bytes(self) -> usize {
        self.arena() + self.arena_bytes()
    }

    /// Bytes of the region that the service writes.
    pub fn service_bytes(self) -> usize {
        self.details() + self.detail_bytes()
    }

    /// Whether regions of these sizes hold such a queue.
    pub(super) fn fits(self, client: usize, service: usize) -> Result<(), RegionTooSmall> {
        let of = |which, needed, have| {
            if have < needed {
                Err(RegionTooSmall {
                    which,
                    needed,
                    have,
                })
            } else {
                Ok(())
            }
        };
        of("client", self.client_bytes(), client)?;
        of("service", self.service_bytes(), service)
    }
}

#[cfg(all(test, not(ring_loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_region_follow_each_other_aligned_and_within_it() {
        for shift in 0..=15 {
            let layout = Layout::new(1 << shift).unwrap();
            assert_eq!(layout.arena(), HEADER + 64 * 4 * layout.entries() as usize);
            assert_eq!(
                layout.details(),
                HEADER + 32 * 2 * layout.entries() as usize
            );
            for at in [layout.arena(), layout.details(), layout.client_bytes()] {
                assert_eq!(at % 64, 0);
            }
            assert!(u32::try_from(layout.arena_bytes()).is_ok());
        }
    }

    #[test]
    fn sizes_other_than_small_powers_of_two_are_refused() {
        for entries in [0, 3, 100, MAX_ENTRIES + 1, MAX_ENTRIES * 2, u32::MAX] {
            assert_eq!(Layout::new(entries), Err(BadEntries { entries }));
        }
    }

    #[test]
    fn a_region_one_byte_short_is_refused() {
        let layout = Layout::new(8).unwrap();
        let (client, service) = (layout.client_bytes(), layout.service_bytes());
        assert_eq!(layout.fits(client, service), Ok(()));
        assert_eq!(
            layout.fits(client - 1, service).unwrap_err().which,
            "client"
        );
        assert_eq!(
            layout.fits(client, service - 1).unwrap_err().which,
            "service"
        );
    }
}
