//! Writes to clients' memory on CUDA devices.
//!
//! A device copies by itself, at the rate of the bus where the source is pinned, and whoever writes waits for it: on
//! a thread that may block, so that the writes of several connections overlap.

use std::sync::OnceLock;

use s3engine_pool::cuda::{Gpu, Pinned};
use s3engine_s3::fabric::loopback::{PeerError, RemoteWindow};
use tokio::task;

use crate::content::long_tile;

/// Has devices read synthetic objects by themselves, from the first window on a device on. Where the driver will not,
/// copies are slower.
pub(crate) fn prepare(gpu: &'static Gpu) {
    static PINNED: OnceLock<Option<Pinned>> = OnceLock::new();
    PINNED.get_or_init(|| {
        let pinned = Pinned::bytes(gpu, long_tile());
        let told = pinned.inspect_err(|error| tracing::warn!(%error, "copies to devices are slow"));
        told.ok()
    });
}

/// Copies bytes to `offset`, and waits until the device has them. Not ended by dropping the future.
pub(crate) async fn write(
    window: &RemoteWindow,
    offset: u64,
    bytes: impl AsRef<[u8]> + Send + 'static,
) -> Result<(), PeerError> {
    let window = window.clone();
    let written = task::spawn_blocking(move || window.write(offset, bytes.as_ref()));
    // Never so: it does not panic, and the runtime that would drop it waits for this future no more.
    written.await.unwrap_or(Err(PeerError::System {
        what: "write on a thread",
        errno: rustix::io::Errno::CANCELED.raw_os_error(),
    }))
}
