//! What is measured: the rows of the table, the keys they read, and the memory they need. Pure.

use s3engine::Policy;

use crate::size::Size;

/// Bytes of one request by HTTP, as the engine splits.
pub(crate) const HTTP_PART: u64 = 8 << 20;
/// The same by RDMA.
pub(crate) const RDMA_PART: u64 = 256 << 20;

/// One measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) policy: Policy,
    pub(crate) size: Size,
    /// Threads that submit, each with a queue of its own.
    pub(crate) threads: usize,
    /// GETs in flight in each queue.
    pub(crate) in_flight: usize,
}

impl Row {
    /// GETs in flight, all queues together.
    pub(crate) fn gets(&self) -> usize {
        self.threads.saturating_mul(self.in_flight)
    }

    /// Requests in flight by HTTP, of at most `limit`.
    pub(crate) fn http_requests(&self, limit: usize) -> usize {
        let parts = usize::try_from(self.size.0.div_ceil(HTTP_PART)).unwrap_or(usize::MAX);
        self.gets().saturating_mul(parts).min(limit).max(1)
    }
}

/// Every combination, in the order of the table.
pub(crate) fn rows(
    policies: &[Policy],
    sizes: &[Size],
    threads: &[usize],
    in_flight: usize,
) -> Vec<Row> {
    let mut rows = Vec::new();
    for &policy in policies {
        for &size in sizes {
            rows.extend(threads.iter().map(|&threads| Row {
                policy,
                size,
                threads,
                in_flight,
            }));
        }
    }
    rows
}

/// Names of objects by size and number: `bench/{size}-{index}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyTemplate(String);

/// A text that is no template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is no key template: it may hold {{size}} and {{index}}, and nothing else in braces"
)]
pub(crate) struct BadTemplate {
    text: String,
}

impl std::str::FromStr for KeyTemplate {
    type Err = BadTemplate;

    fn from_str(text: &str) -> Result<Self, BadTemplate> {
        let rest = text.replace("{size}", "").replace("{index}", "");
        if text.is_empty() || rest.contains(['{', '}']) {
            return Err(BadTemplate {
                text: text.to_owned(),
            });
        }
        Ok(Self(text.to_owned()))
    }
}

impl std::fmt::Display for KeyTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl KeyTemplate {
    /// The key of one object.
    pub(crate) fn key(&self, size: Size, index: usize) -> String {
        self.0
            .replace("{size}", &size.to_string())
            .replace("{index}", &index.to_string())
    }
}

/// Memory for the buffers of any one row, in slabs of `slab` bytes, with two slabs to spare.
pub(crate) fn pool_bytes(rows: &[Row], slab: u64) -> u64 {
    const GRAIN: u64 = 2 << 20;
    let of_row = |row: &Row| {
        let buffers = row.gets() as u64;
        let size = row.size.0.max(1).checked_next_multiple_of(4096)?;
        if size > slab {
            return size.checked_next_multiple_of(GRAIN)?.checked_mul(buffers);
        }
        buffers.div_ceil(slab / size).checked_mul(slab)
    };
    let most = rows.iter().map(|row| of_row(row).unwrap_or(u64::MAX)).max();
    most.unwrap_or(0).saturating_add(slab.saturating_mul(2))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(size: u64, threads: usize, in_flight: usize) -> Row {
        Row {
            policy: Policy::Http,
            size: Size(size),
            threads,
            in_flight,
        }
    }

    #[test]
    fn every_combination_is_a_row() {
        let policies = [Policy::Http, Policy::RequireRdma];
        let rows = rows(&policies, &[Size(1), Size(2)], &[1, 2, 4], 8);
        assert_eq!(rows.len(), 12);
        assert_eq!(
            (rows[0].policy, rows[0].size, rows[0].threads),
            (Policy::Http, Size(1), 1)
        );
        assert_eq!(rows[11].policy, Policy::RequireRdma);
    }

    #[test]
    fn keys_carry_size_and_index() {
        let template: KeyTemplate = "bench/{size}-{index}".parse().unwrap();
        assert_eq!(template.key(Size(64 << 10), 7), "bench/64KiB-7");
        assert!("".parse::<KeyTemplate>().is_err());
        assert!("a{thread}".parse::<KeyTemplate>().is_err());
        assert!("a}".parse::<KeyTemplate>().is_err());
    }

    #[test]
    fn large_objects_are_several_requests_and_the_limit_binds() {
        assert_eq!(row(1 << 20, 2, 8).http_requests(64), 16);
        assert_eq!(row(16 << 20, 1, 8).http_requests(64), 16);
        assert_eq!(row(1 << 30, 4, 8).http_requests(64), 64);
    }

    #[test]
    fn the_pool_holds_the_buffers_of_the_largest_row() {
        let slab = 64 << 20;
        assert_eq!(pool_bytes(&[row(1 << 10, 1, 1)], slab), slab * 3);
        assert_eq!(pool_bytes(&[row(8 << 20, 2, 8)], slab), slab * 4);
        assert_eq!(pool_bytes(&[row(40 << 20, 1, 3)], slab), slab * 5);
        assert_eq!(
            pool_bytes(&[row(100 << 20, 1, 2)], slab),
            (200 << 20) + slab * 2
        );
        assert_eq!(pool_bytes(&[row(u64::MAX, 9, 9)], slab), u64::MAX);
    }
}
