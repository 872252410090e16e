//! What wakes the other side.

use std::io;
use std::time::Duration;

/// Wakes one sleeper on the other side of a queue. Rung at most once a batch, and only for a side that asked.
pub trait Bell {
    /// Wakes the sleeper, or the next one to come. Never blocks, whatever the other side does.
    fn ring(&self) -> io::Result<()>;

    /// Sleeps until the bell was rung since the last wait, at most `timeout`. May return early.
    fn wait(&self, timeout: Duration) -> io::Result<()>;
}
