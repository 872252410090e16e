//! The table: a line for each row, as it is measured.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;

use crate::bench::report::Run;

/// Columns: heading, width, whether texts begin at the left.
const COLUMNS: [(&str, usize, bool); 12] = [
    ("policy", 12, true),
    ("threads", 7, false),
    ("size", 7, false),
    ("GB/s", 7, false),
    ("ops/s", 8, false),
    ("RDMA share", 10, false),
    ("reasons", 24, true),
    ("p50", 8, false),
    ("p99", 8, false),
    ("CPU-s/GiB", 9, false),
    ("vs floor", 8, false),
    ("CPU vs floor", 12, false),
];

/// The line of headings.
pub(crate) fn headings() -> String {
    line(&COLUMNS.map(|(heading, _, _)| heading.to_owned()))
}

/// The line of one run.
pub(crate) fn row(run: &Run) -> String {
    let (row, tally) = (&run.row, &run.tally);
    let seconds = run.seconds().max(1e-9);
    let or_dash = |value: Option<String>| value.unwrap_or_else(|| "-".into());
    line(&[
        row.policy.to_string(),
        row.threads.to_string(),
        row.size.to_string(),
        digits(run.gb_per_s()),
        format!("{:.0}", tally.gets as f64 / seconds),
        or_dash(
            tally
                .rdma_share()
                .map(|share| format!("{:.0} %", share * 100.0)),
        ),
        reasons(&tally.reasons),
        or_dash(quantile(&tally.latency, 0.5)),
        or_dash(quantile(&tally.latency, 0.99)),
        or_dash(run.cpu_s_per_gib().map(|cpu| format!("{cpu:.3}"))),
        or_dash(run.vs_floor().map(digits)),
        or_dash(run.cpu_vs_floor().map(digits)),
    ])
}

fn line(cells: &[String; COLUMNS.len()]) -> String {
    let padded = cells.iter().zip(COLUMNS).map(|(cell, (_, width, left))| {
        if left {
            format!("{cell:<width$}")
        } else {
            format!("{cell:>width$}")
        }
    });
    let line = padded.collect::<Vec<_>>().join("  ");
    line.trim_end().to_owned() + "\n"
}

fn digits(number: f64) -> String {
    format!("{number:.2}")
}

/// The most frequent reasons with their shares; a single one without.
fn reasons(counts: &BTreeMap<&'static str, u64>) -> String {
    let total: u64 = counts.values().sum();
    let mut most: Vec<_> = counts.iter().collect();
    most.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    match most.as_slice() {
        [] => "-".into(),
        [(reason, _)] => (*reason).to_string(),
        _ => {
            let share = |count: u64| count as f64 * 100.0 / total as f64;
            let texts = most.iter().take(3);
            let texts = texts.map(|(reason, count)| format!("{reason} {:.1} %", share(**count)));
            texts.collect::<Vec<_>>().join(", ")
        }
    }
}

fn quantile(times: &Histogram<u64>, quantile: f64) -> Option<String> {
    if times.is_empty() {
        return None;
    }
    let us = times.value_at_quantile(quantile) as f64;
    Some(match us {
        ..1e3 => format!("{us:.0} us"),
        ..1e6 => format!("{:.2} ms", us / 1e3),
        _ => format!("{:.2} s", us / 1e6),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::report::tests::run;

    #[test]
    fn a_line_stands_under_its_headings() {
        let (headings, row) = (headings(), row(&run()));
        for (heading, text) in [
            ("policy", "require-rdma"),
            ("  GB/s", "  2.00"),
            ("RDMA share", "     100 %"),
            ("reasons", "ok     "),
            ("     p50", "   20 us"),
            ("vs floor", "    0.50"),
        ] {
            let at = headings.find(heading).unwrap();
            assert_eq!(
                &row[at..at + text.len()],
                text,
                "{heading}\n{headings}{row}"
            );
        }
    }

    #[test]
    fn a_run_without_results_has_dashes_and_no_numbers_that_are_none() {
        let mut run = run();
        run.tally = crate::bench::tally::Tally::new().unwrap();
        run.rounds.clear();
        let row = row(&run);
        assert!(
            row.contains('-') && !row.contains("NaN") && !row.contains("inf"),
            "{row}"
        );
    }

    #[test]
    fn several_reasons_have_shares_the_most_frequent_first() {
        let counts = BTreeMap::from([("a", 1), ("b", 97), ("c", 1), ("d", 1)]);
        assert_eq!(reasons(&counts), "b 97.0 %, a 1.0 %, c 1.0 %");
    }

    #[test]
    fn times_have_the_unit_that_fits() {
        let mut times = crate::bench::tally::Tally::new().unwrap().latency;
        assert_eq!(quantile(&times, 0.5), None);
        for (us, text) in [(250, "250 us"), (2_500, "2.50 ms"), (2_500_000, "2.50 s")] {
            times.clear();
            times.record(us).unwrap();
            assert_eq!(quantile(&times, 0.5).as_deref(), Some(text));
        }
    }
}
