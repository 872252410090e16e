//! How many open files clients may take, so that enough are left for connections to the storage.

use std::fs;
use std::sync::Arc;

use rustix::process::{Resource, getrlimit};

use super::counted::{Counted, Full};

/// Of a client: its socket, its process, its first queue, its first slab.
pub(super) const OF_CLIENT: u64 = 2 + OF_QUEUE + OF_SLAB;

/// Two bells; and, on their way to the client, the other ends of both and two regions.
pub(super) const OF_QUEUE: u64 = 6;

/// Its memory; and the same on its way to the client.
pub(super) const OF_SLAB: u64 = 2;

/// Kept for clients that are being refused, for probes, and for files that are read now and then.
const RESERVE: u64 = 192;

/// What clients may take beside connections to the storage for so many requests at once; as many again rest between
/// two requests. An error is the limit and what it would have to be.
pub(super) fn for_clients(requests: usize) -> Result<Arc<Counted>, (u64, u64)> {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let open = fs::read_dir("/proc/self/fd").map_or(0, Iterator::count) as u64;
    let storage = (requests as u64).saturating_mul(2).min(limit / 2);
    match limit.saturating_sub(open + storage + RESERVE) {
        left if left < OF_CLIENT => Err((limit, enough(open, requests as u64))),
        left => Ok(Counted::new(left, left)),
    }
}

/// A limit that one client fits in, with so many files open now. A few more may be by then.
fn enough(open: u64, requests: u64) -> u64 {
    const MORE: u64 = 16;
    let all_but_storage = open + MORE + RESERVE + OF_CLIENT;
    let storage = requests.saturating_mul(2).min(all_but_storage);
    all_but_storage.saturating_add(storage)
}

/// Why a client gets no more.
pub(super) fn refused(full: Full) -> String {
    let (Full::Of { taken, most } | Full::OfUser { taken, most }) = full;
    format!(
        "the service has no open files left for it: clients have {taken} of {most} (its limit, LimitNOFILE or ulimit -n, bounds them)"
    )
}
