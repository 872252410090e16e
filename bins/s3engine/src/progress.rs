//! The bar on stderr, while that is a terminal.

use std::io::{self, IsTerminal};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::object_url::on_one_line;

const TEMPLATE: &str = "{msg}  {binary_total_bytes}  [{bar:24}]  {percent:>3}%  {binary_bytes_per_sec}  {prefix}  eta {eta}";

/// A progress bar, or nothing. Dropping it clears the line.
pub(crate) struct Progress(Option<ProgressBar>);

impl Progress {
    /// A bar for `total` bytes, if `wanted` and somebody can see it.
    pub(crate) fn new(name: &str, total: u64, wanted: bool) -> Self {
        if !wanted || total == 0 || !io::stderr().is_terminal() {
            return Self(None);
        }
        let style = ProgressStyle::with_template(TEMPLATE)
            .unwrap_or_else(|_| ProgressStyle::default_bar())
            .progress_chars("#> ");
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
        bar.set_style(style);
        bar.set_message(on_one_line(name));
        bar.enable_steady_tick(Duration::from_millis(200));
        Self(Some(bar))
    }

    /// More bytes are there, by this path.
    pub(crate) fn add(&self, bytes: u64, path: &'static str) {
        if let Some(bar) = &self.0 {
            bar.set_prefix(path);
            bar.inc(bytes);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = self.0.take() {
            bar.finish_and_clear();
        }
    }
}
