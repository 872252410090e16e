//! When a window has seen enough: its rate no longer changes. Pure.
//!
//! The rule is that of warp's `--autoterm`: the last [`BLOCKS`] blocks all lie within [`WITHIN`] of their mean.

use std::time::Duration;

/// Blocks that are compared.
const BLOCKS: usize = 10;

/// How far from the mean each of them may lie, as a share of it.
const WITHIN: f64 = 0.075;

/// No window is shorter.
const LEAST: Duration = Duration::from_secs(1);

/// A block has at least so many operations: fewer say more of chance than of the rate.
const OPS: u64 = 20;

/// What one interval brought, of all workers together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Block {
    pub(crate) seconds: f64,
    pub(crate) bytes: u64,
    pub(crate) ops: u64,
}

/// Whether the window can end after these blocks.
pub(crate) fn is_stable(blocks: &[Block]) -> bool {
    let elapsed: f64 = blocks.iter().map(|block| block.seconds).sum();
    if elapsed < LEAST.as_secs_f64() {
        return false;
    }
    let merged = merged(blocks);
    let Some(last) = merged.len().checked_sub(BLOCKS).map(|from| &merged[from..]) else {
        return false;
    };
    let rates = last.iter().map(|block| block.bytes as f64 / block.seconds);
    let mean = rates.clone().sum::<f64>() / BLOCKS as f64;
    mean > 0.0
        && rates
            .into_iter()
            .all(|rate| (rate - mean).abs() <= WITHIN * mean)
}

/// Neighbours put together until each has operations enough.
fn merged(blocks: &[Block]) -> Vec<Block> {
    let mut merged = Vec::new();
    let mut next = Block::default();
    for block in blocks {
        next.seconds += block.seconds;
        next.bytes += block.bytes;
        next.ops += block.ops;
        if next.ops >= OPS && next.seconds > 0.0 {
            merged.push(std::mem::take(&mut next));
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn block(bytes: u64, ops: u64) -> Block {
        Block {
            seconds: 0.1,
            bytes,
            ops,
        }
    }

    #[test]
    fn a_steady_rate_ends_a_window_after_a_second_and_not_before() {
        let steady = vec![block(1000, 50); 30];
        assert!(!is_stable(&steady[..9]));
        assert!(is_stable(&steady[..11]));
    }

    #[test]
    fn one_block_that_differs_among_the_last_ten_keeps_it_open() {
        let mut blocks = vec![block(1000, 50); 30];
        blocks[25].bytes = 1200;
        assert!(!is_stable(&blocks));
        blocks[25].bytes = 1000;
        blocks[3].bytes = 9000;
        assert!(is_stable(&blocks), "what was before does not matter");
    }

    #[test]
    fn few_operations_are_put_together_before_they_are_judged() {
        // Every other block is empty, since operations end in pairs of blocks.
        let pairs: Vec<Block> = (0..200)
            .map(|nth| block(2000 * (nth % 2), 4 * (nth % 2)))
            .collect();
        assert!(is_stable(&pairs));
        assert!(!is_stable(&pairs[..40]));
        assert!(!is_stable(&vec![block(0, 0); 100]), "nothing moved");
    }

    proptest! {
        #[test]
        fn any_blocks_are_judged(
            blocks in proptest::collection::vec((0.0..1.0_f64, any::<u32>(), 0..100_u64), 0..60)
        ) {
            let blocks: Vec<Block> = blocks
                .into_iter()
                .map(|(seconds, bytes, ops)| Block { seconds, bytes: bytes.into(), ops })
                .collect();
            let _ = is_stable(&blocks);
        }
    }
}
