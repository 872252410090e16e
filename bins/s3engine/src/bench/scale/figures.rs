//! Figures in words, and the few sums that several parts make of them.

use crate::bench::scale::run::Run;
use crate::bench::scale::sum::ALL;
use crate::size::Size;

/// `a / b`, where that is a number.
pub(crate) fn ratio(a: f64, b: f64) -> Option<f64> {
    let ratio = a / b;
    (b > 0.0 && ratio.is_finite()).then_some(ratio)
}

/// Microseconds: `250 us`, `2.5 ms`, `9.90 s`.
pub(crate) fn time(us: f64) -> String {
    match us {
        ..1e3 => format!("{us:.0} us"),
        ..1e6 => format!("{:.1} ms", us / 1e3),
        _ => format!("{:.2} s", us / 1e6),
    }
}

/// A share: `33 %`; `0.4 %` where it is small, since nothing and little differ.
pub(crate) fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent != 0.0 && percent.abs() < 10.0 {
        format!("{percent:.1} %")
    } else {
        format!("{percent:.0} %")
    }
}

/// GB/s to three digits.
pub(crate) fn rate(gb_per_s: f64) -> String {
    match gb_per_s {
        ..1.0 => format!("{gb_per_s:.3} GB/s"),
        ..10.0 => format!("{gb_per_s:.2} GB/s"),
        _ => format!("{gb_per_s:.1} GB/s"),
    }
}

/// `1 client`, `8 clients`.
pub(crate) fn count(number: u64, what: &str) -> String {
    match number {
        1 => format!("1 {what}"),
        _ => format!("{number} {what}s"),
    }
}

/// Which row a text speaks of: `8 x 4, 64MiB, require-rdma`.
pub(crate) fn row(run: &Run) -> String {
    let whose = if run.host == ALL { "all hosts, " } else { "" };
    let size = Size(run.object_size);
    format!(
        "{whose}{} x {}, {size}, {}",
        run.processes, run.threads, run.policy
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_a_number_or_nothing() {
        assert_eq!(ratio(1.0, 2.0), Some(0.5));
        for (a, b) in [
            (1.0, 0.0),
            (f64::NAN, 1.0),
            (1.0, f64::NAN),
            (f64::MAX, 1e-9),
        ] {
            assert_eq!(ratio(a, b), None, "{a} / {b}");
        }
    }

    #[test]
    fn figures_have_the_unit_and_the_digits_that_fit() {
        assert_eq!(
            [250.0, 2_500.0, 9_900_000.0].map(time),
            ["250 us", "2.5 ms", "9.90 s"]
        );
        assert_eq!(
            [0.0, 0.004, 0.33, 1.0].map(percent),
            ["0 %", "0.4 %", "33 %", "100 %"]
        );
        assert_eq!(
            [0.5, 2.8, 42.62].map(rate),
            ["0.500 GB/s", "2.80 GB/s", "42.6 GB/s"]
        );
    }
}
