//! Whether the servers have sent by RDMA what is counted as such here.
//!
//! Both counts are of what has gone by since the first look. This one is read first: what a server has answered for it has
//! counted before, so that it must be ahead. Other hosts may read from it as well: that it counts more says nothing.

use std::io;
use std::thread;
use std::time::Duration;

use crate::serve::figures::Figures;
use crate::server_metrics::{Servers, sum_of};

/// What may be missing: bytes of parts that failed when they were written already count there, not here, and the other way
/// round nothing.
const TOLERATED: f64 = 0.01;

/// Compares now and then, until the process ends.
pub(super) fn check(servers: Servers, every: Duration, figures: Figures) -> io::Result<()> {
    let work = move || {
        let mut share = Share::default();
        loop {
            let ours = sum_of(&figures.render(), "s3engine_bytes_total", "path=\"rdma\"");
            match servers.read() {
                Ok(theirs) => share.tell(ours, theirs.bytes),
                Err(why) => share.unheard(&why),
            }
            thread::sleep(every);
        }
    };
    thread::Builder::new()
        .name("share".into())
        .spawn(work)
        .map(drop)
}

/// What was seen.
#[derive(Default)]
struct Share {
    /// Both counts at the first look, or when a server began anew.
    first: Option<(u64, u64)>,
    /// The server's count at the last look.
    last: u64,
    /// Whether it was told that bytes are missing, or that a server does not tell.
    warned: bool,
    unheard: bool,
}

impl Share {
    /// Bytes that are counted here, and that no server has sent.
    fn missing(&mut self, ours: u64, theirs: u64) -> u64 {
        let began_anew = theirs < self.last;
        self.last = theirs;
        let (our_first, their_first) = match self.first {
            Some(first) if !began_anew => first,
            _ => *self.first.insert((ours, theirs)),
        };
        let ours = ours.saturating_sub(our_first);
        let missing = ours.saturating_sub(theirs - their_first);
        match missing as f64 > ours as f64 * TOLERATED {
            true => missing,
            false => 0,
        }
    }

    fn tell(&mut self, ours: u64, theirs: u64) {
        let missing = self.missing(ours, theirs);
        metrics::gauge!("s3engine_rdma_share_missing_bytes").set(missing as f64);
        if missing > 0 && !self.warned {
            tracing::warn!(
                missing,
                ours,
                theirs,
                "bytes that are counted as RDMA here were not sent by RDMA, as the servers count"
            );
        }
        if self.unheard {
            tracing::info!("the servers tell again what they have sent by RDMA");
        }
        (self.warned, self.unheard) = (missing > 0, false);
    }

    fn unheard(&mut self, why: &str) {
        metrics::counter!("s3engine_rdma_share_unheard_total").increment(1);
        if !self.unheard {
            tracing::warn!(why, "what the servers have sent by RDMA is not known");
        }
        self.unheard = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_server_has_not_sent_is_missing_and_what_others_read_is_not() {
        let mut share = Share::default();
        assert_eq!(
            share.missing(500, 9000),
            0,
            "the first look is where it begins"
        );
        assert_eq!(share.missing(1500, 10_000), 0);
        assert_eq!(share.missing(1500, 99_000), 0, "others read as well");
        assert_eq!(share.missing(100_500, 99_000), 10_000);
    }

    #[test]
    fn a_hundredth_is_tolerated_and_a_server_that_began_anew_is_compared_from_there() {
        let mut share = Share::default();
        share.missing(0, 0);
        assert_eq!(share.missing(100_000, 99_100), 0);
        assert_eq!(
            share.missing(100_000, 98_000),
            0,
            "fewer than before: it began anew"
        );
        assert_eq!(share.missing(200_000, 98_000), 100_000);
    }
}
