//! How much memory a transfer takes, and in what pieces. Pure.

use s3engine::PoolOptions;

use crate::config::Settings;

/// Memory of a transfer unless a setting says more: enough to keep a fast link busy, small beside an object.
const POOL: u64 = 256 << 20;
/// A chunk and a slab unless a setting says else. A small object populates one slab, which takes milliseconds.
const SLAB: u64 = 16 << 20;
/// No pool and no slab can be smaller.
const LEAST: u64 = 2 << 20;

/// The pool of a transfer in a process that may use `limit` bytes, where that is known. By default half of that is
/// the most: what is not pool is the process itself. What is set is taken as it is, and refused where it cannot be.
pub(crate) fn pool(settings: &Settings, limit: Option<u64>) -> PoolOptions {
    let most = limit.map_or(u64::MAX, |limit| limit / 2).min(POOL);
    let default = (most - most % LEAST).max(LEAST);
    // Two slabs at least, or nothing would overlap.
    let slabs = settings
        .slab_size
        .map_or(0, |slab| slab.0.saturating_mul(2));
    PoolOptions {
        slab_bytes: settings.slab_size.map_or(SLAB, |size| size.0),
        max_bytes: Some(settings.pool_size.map_or(default.max(slabs), |size| size.0)),
        ..PoolOptions::default()
    }
}

/// A slab, or less where the pool holds too few of them for two chunks to overlap.
pub(crate) fn chunk_size(pool: &PoolOptions, verify: bool) -> u64 {
    let max_bytes = pool.max_bytes.unwrap_or(POOL);
    let share = max_bytes / if verify { 4 } else { 2 };
    let chunk = pool.slab_bytes.min(share);
    (chunk - chunk % 4096).max(4096)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::size::Size;
    use proptest::prelude::*;

    fn options(pool: u64, slab: u64) -> PoolOptions {
        PoolOptions {
            slab_bytes: slab,
            max_bytes: Some(pool),
            ..PoolOptions::default()
        }
    }

    fn max_bytes(settings: &Settings, limit: u64) -> u64 {
        pool(settings, Some(limit)).max_bytes.unwrap()
    }

    #[test]
    fn a_chunk_is_a_slab_where_the_pool_holds_two() {
        assert_eq!(chunk_size(&pool(&Settings::default(), None), false), SLAB);
        assert_eq!(chunk_size(&pool(&Settings::default(), None), true), SLAB);
    }

    #[test]
    fn the_default_is_at_most_half_of_what_the_process_may_use() {
        let settings = Settings::default();
        for (limit, most) in [
            (1 << 30, POOL),
            (512 << 20, POOL),
            (200 << 20, 100 << 20),
            (100_000_000, 46 << 20),
            (8 << 20, 4 << 20),
            (1 << 20, LEAST),
            (0, LEAST),
        ] {
            assert_eq!(max_bytes(&settings, limit), most, "{limit}");
        }
    }

    #[test]
    fn what_is_set_is_taken_as_it_is() {
        let settings = |pool, slab| Settings {
            pool_size: pool,
            slab_size: slab,
            ..Settings::default()
        };
        let slabs = settings(None, Some(Size(1 << 30)));
        assert_eq!(max_bytes(&slabs, 1 << 40), 2 << 30);
        assert_eq!(max_bytes(&slabs, 64 << 20), 2 << 30);
        let both = settings(Some(Size(1 << 30)), Some(Size(u64::MAX)));
        assert_eq!(max_bytes(&both, 8 << 20), 1 << 30);
    }

    proptest! {
        #[test]
        fn the_buffers_of_two_chunks_fit_the_pool(max in 2u64 << 20..1 << 34, slab in 2u64 << 20..1 << 32, verify: bool) {
            let chunk = chunk_size(&options(max, slab), verify);
            prop_assert!(chunk > 0 && chunk.is_multiple_of(4096) && chunk <= slab);
            let buffers = if verify { 4 } else { 2 };
            prop_assert!(chunk * buffers <= max);
        }

        #[test]
        fn any_limit_gives_a_pool_that_can_be_made(limit: u64) {
            let max = max_bytes(&Settings::default(), limit);
            prop_assert!(max >= LEAST && max <= LEAST.max(limit / 2));
        }
    }
}
