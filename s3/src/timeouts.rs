//! How long each phase of a request may take.

use std::time::Duration;

/// The bounds of one request. Every wait has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Finding the address and opening a connection, all addresses together.
    pub connect: Duration,
    /// From sending a request to the head of its answer.
    pub first_byte: Duration,
    /// How long the server may be waited for while less than `stall_bytes` of a body come. A slow body that moves is
    /// not a failed one, however long it takes; one that drips is.
    pub stall: Duration,
    /// The bytes of a body that count as moving. Whatever the wait, at least one of them is needed.
    pub stall_bytes: u64,
    /// What an RDMA request may take however small it is.
    pub rdma_base: Duration,
    /// The slowest rate, in bytes a second, at which queued RDMA transfers count as moving.
    pub rdma_min_rate: u64,
}

impl Default for Timeouts {
    fn default() -> Self {
        Timeouts {
            connect: Duration::from_secs(5),
            first_byte: Duration::from_secs(30),
            stall: Duration::from_secs(15),
            stall_bytes: 4 << 10,
            rdma_base: Duration::from_secs(10),
            rdma_min_rate: 64 << 20,
        }
    }
}

impl Timeouts {
    /// How long an RDMA request may take with `queued_bytes` in flight, its own among them.
    ///
    /// The answer to an RDMA request comes after its bytes moved, behind all that is queued before
    /// it, so a fixed bound would call a busy server failed.
    pub fn rdma(&self, queued_bytes: u64) -> Duration {
        let rate = self.rdma_min_rate.max(1);
        let whole = Duration::from_secs(queued_bytes / rate);
        let rest = u128::from(queued_bytes % rate) * 1_000_000_000 / u128::from(rate);
        // The rest is below one second, so it fits.
        let moving = whole.saturating_add(Duration::from_nanos(rest as u64));
        self.rdma_base.saturating_add(moving)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_default_rdma_part_gets_base_and_four_seconds() {
        assert_eq!(Timeouts::default().rdma(256 << 20), Duration::from_secs(14));
    }

    proptest! {
        #[test]
        fn more_queued_bytes_never_mean_less_time(a: u64, b: u64, rate: u64, base: u64) {
            let timeouts = Timeouts {
                rdma_min_rate: rate,
                rdma_base: Duration::from_secs(base),
                ..Timeouts::default()
            };
            prop_assert!(timeouts.rdma(a.min(b)) <= timeouts.rdma(a.max(b)));
            prop_assert!(timeouts.rdma(a) >= timeouts.rdma_base);
        }

        #[test]
        fn queued_bytes_get_the_time_they_need_at_the_slowest_rate(bytes in 0..1_u64 << 50, rate in 1..1_u64 << 40) {
            let timeouts = Timeouts { rdma_min_rate: rate, rdma_base: Duration::ZERO, ..Timeouts::default() };
            let needed = bytes as f64 / rate as f64;
            let given = timeouts.rdma(bytes).as_secs_f64();
            prop_assert!((given - needed).abs() <= 1e-6 + needed * 1e-9);
        }
    }
}
