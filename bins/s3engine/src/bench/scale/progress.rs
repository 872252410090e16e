//! What is going on, on one line of stderr while that is a terminal.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget};

use crate::size::Size;

use super::cases::Case;
use super::steady::Block;

/// The line, or nothing. Dropping it clears the line.
pub(crate) struct Progress {
    line: Option<ProgressBar>,
    rows: usize,
}

impl Progress {
    /// For so many rows, if `wanted` and somebody can see it.
    pub(crate) fn new(rows: usize, wanted: bool) -> Self {
        let shown = wanted && std::io::stderr().is_terminal();
        let line = shown.then(|| {
            let line = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            line.enable_steady_tick(Duration::from_millis(200));
            line
        });
        Self { line, rows }
    }

    /// What a row is doing now.
    pub(crate) fn doing(&self, case: &Case, what: &str) {
        if let Some(line) = &self.line {
            line.set_message(format!(
                "row {} of {}: {}  {what}",
                line.position() + 1,
                self.rows,
                shown(case)
            ));
        }
    }

    /// How its window goes.
    pub(crate) fn window(&self, case: &Case, elapsed: Duration, blocks: &[Block]) {
        let Some(block) = blocks.last() else { return };
        let rate = block.bytes as f64 / 1e9 / block.seconds.max(1e-9);
        self.doing(
            case,
            &format!("window {:.1} s, now {rate:.2} GB/s", elapsed.as_secs_f64()),
        );
    }

    /// A row has ended: its line is written where it belongs, above this one.
    pub(crate) fn row_ended(
        &self,
        write: impl FnOnce() -> Result<(), crate::exit::Failure>,
    ) -> Result<(), crate::exit::Failure> {
        match &self.line {
            None => write(),
            Some(line) => {
                line.inc(1);
                line.suspend(write)
            }
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(line) = self.line.take() {
            line.finish_and_clear();
        }
    }
}

fn shown(case: &Case) -> String {
    format!(
        "{} x {} {} {}",
        case.processes,
        Size(case.size),
        case.mode,
        case.policy
    )
}
