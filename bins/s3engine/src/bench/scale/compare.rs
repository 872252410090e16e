//! `s3engine bench compare A B`: the same rows of two reports, side by side.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use serde_json::Value;

use crate::bench::json_file::{JsonFile, write_to_stdout};
use crate::bench::outputs::distinct;
use crate::bench::scale::figures::{percent, ratio, time};
use crate::bench::scale::run::{Device, Host, Mode, Report, Run, SCHEMA};
use crate::exit::Failure;
use crate::gpus::counted;
use crate::interrupt::Interrupt;
use crate::object_url::on_one_line;
use crate::size::Size;

/// Compare two files of `bench scale`
#[derive(Args, Debug)]
pub(crate) struct CompareArgs {
    /// The earlier file, or the one to hold against
    #[arg(value_name = "A")]
    pub(crate) before: PathBuf,

    /// The later file
    #[arg(value_name = "B")]
    pub(crate) after: PathBuf,

    /// Write the comparison to a file as JSON; - is stdout
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(args: &CompareArgs) -> Result<(), Failure> {
    let json = args.json.as_deref();
    distinct(&[("--json", json)], &[&args.before, &args.after])?;
    let (before, after) = (Report::read(&args.before)?, Report::read(&args.after)?);
    let open = |path| JsonFile::open(path, &Interrupt::default());
    let json = json.map(open).transpose()?;
    let comparison = Comparison::of(&before, &after);
    let text = comparison.text();
    let written = match json {
        Some(JsonFile::Stdout) => io::stderr().write_all(text.as_bytes()),
        _ => write_to_stdout(&text),
    };
    written.map_err(|source| Failure::Output {
        doing: "write to",
        output: "the terminal".into(),
        source,
    })?;
    match json {
        Some(json) => {
            let text = serde_json::to_string_pretty(&comparison)
                .map_err(|error| Failure::Other(error.to_string()))?;
            json.write(&(text + "\n"))
        }
        None => Ok(()),
    }
}

/// Two reports, compared.
#[derive(Debug, Serialize)]
pub(crate) struct Comparison {
    schema: u32,
    kind: &'static str,
    /// What may explain that figures differ.
    changed: Vec<Change>,
    rows: Vec<Pair>,
    only_before: Vec<Case>,
    only_after: Vec<Case>,
}

/// A setting, or something of the host or the program.
#[derive(Debug, PartialEq, Serialize)]
struct Change {
    what: String,
    before: Value,
    after: Value,
}

/// What makes two rows the same.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Case {
    /// In reports of several hosts.
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<String>,
    mode: Mode,
    processes: usize,
    threads: usize,
    object_size: u64,
    policy: String,
}

#[derive(Debug, Serialize)]
struct Pair {
    #[serde(flatten)]
    case: Case,
    gb_per_s: Figure,
    p99_us: Figure,
    cpu_s_per_gib: Figure,
    rdma_share: Figure,
}

/// One figure of both.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Figure {
    before: Option<f64>,
    after: Option<f64>,
    /// After to before.
    ratio: Option<f64>,
}

impl Figure {
    fn of(pair: [&Run; 2], get: impl Fn(&Run) -> Option<f64>) -> Self {
        let [before, after] = pair.map(get);
        let ratio = before.zip(after).and_then(|(b, a)| ratio(a, b));
        Self {
            before,
            after,
            ratio,
        }
    }

    fn text(self, show: impl Fn(f64) -> String) -> String {
        let one = |value: Option<f64>| value.map_or("-".into(), &show);
        let ratio = self
            .ratio
            .map_or("-".into(), |ratio| format!("x{ratio:.2}"));
        format!("{} -> {} ({ratio})", one(self.before), one(self.after))
    }
}

impl Comparison {
    pub(crate) fn of(before: &Report, after: &Report) -> Self {
        let mut rest = cases(after);
        let (mut rows, mut only_before) = (Vec::new(), Vec::new());
        for (case, run) in cases(before) {
            // Each row once, where a case was measured several times.
            match rest.iter().position(|(other, _)| *other == case) {
                Some(at) => rows.push(Pair::of(case, [run, rest.remove(at).1])),
                None => only_before.push(case),
            }
        }
        Self {
            schema: SCHEMA,
            kind: "scale-comparison",
            changed: changed(before, after),
            rows,
            only_before,
            only_after: rest.into_iter().map(|(case, _)| case).collect(),
        }
    }

    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        match self.changed.as_slice() {
            [] => text += "same host, version and settings\n",
            changed => {
                for change in changed {
                    let (before, after) = (shown(&change.before), shown(&change.after));
                    let what = on_one_line(&change.what);
                    text += &format!("changed  {what}: {before} -> {after}\n");
                }
            }
        }
        if !self.rows.is_empty() {
            text += &table(&self.rows);
        }
        for (only, which) in [(&self.only_before, "first"), (&self.only_after, "second")] {
            for case in only {
                text += &format!("only in the {which}: {}\n", case.text());
            }
        }
        text
    }
}

fn table(rows: &[Pair]) -> String {
    let mut lines = vec![["", "GB/s", "p99", "CPU-s/GiB", "RDMA share"].map(str::to_owned)];
    lines.extend(rows.iter().map(|pair| {
        [
            pair.case.text(),
            pair.gb_per_s.text(|gb| format!("{gb:.2}")),
            pair.p99_us.text(time),
            pair.cpu_s_per_gib.text(|seconds| format!("{seconds:.3}")),
            pair.rdma_share.text(percent),
        ]
    }));
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max();
    let widths: Vec<_> = (0..5).map(|column| width(column).unwrap_or(0)).collect();
    let line = |cells: &[String; 5]| {
        let padded = cells.iter().zip(&widths);
        let padded = padded.map(|(cell, width)| format!("{cell:<width$}"));
        let line = padded.collect::<Vec<_>>().join("  ");
        line.trim_end().to_owned() + "\n"
    };
    lines.iter().map(line).collect()
}

impl Case {
    fn text(&self) -> String {
        let host = self.host.as_ref().map(|host| format!("{host} "));
        on_one_line(&format!(
            "{}{} {} x {} {} {}",
            host.unwrap_or_default(),
            self.mode,
            self.processes,
            self.threads,
            Size(self.object_size),
            self.policy
        ))
    }
}

impl Pair {
    fn of(case: Case, pair: [&Run; 2]) -> Self {
        let measured = |run: &Run, value| (run.ops > 0).then_some(value);
        Self {
            case,
            gb_per_s: Figure::of(pair, |run| Some(run.gb_per_s)),
            p99_us: Figure::of(pair, |run| measured(run, run.latency_us.p99 as f64)),
            cpu_s_per_gib: Figure::of(pair, |run| run.cpu_s_per_gib),
            rdma_share: Figure::of(pair, |run| run.rdma_share),
        }
    }
}

/// Rows by what they are. A host's name counts only where there are several: another host may be what is compared.
fn cases(report: &Report) -> Vec<(Case, &Run)> {
    let several = report.hosts.len() > 1;
    let case = |run: &Run| Case {
        host: several.then(|| run.host.clone()),
        mode: run.mode,
        processes: run.processes,
        threads: run.threads,
        object_size: run.object_size,
        policy: run.policy.clone(),
    };
    report.runs.iter().map(|run| (case(run), run)).collect()
}

type Fact = fn(&Report) -> Value;

/// What is told if it differs, besides settings.
const FACTS: [(&str, Fact); 10] = [
    ("s3engine", |report| report.engine.version.clone().into()),
    ("fabric", |report| report.engine.fabric.clone().into()),
    ("driver", |report| report.engine.driver.clone().into()),
    ("host", |report| {
        each(report, |host| host.name.clone().into())
    }),
    ("cores", |report| each(report, |host| host.cores.into())),
    ("host memory", |report| {
        each(report, |host| host.memory_bytes.into())
    }),
    ("kernel", |report| {
        each(report, |host| host.kernel.clone().into())
    }),
    ("ports", |report| {
        each(report, |host| host.devices.iter().map(port).collect())
    }),
    ("GPUs", |report| {
        each(report, |host| counted(&host.gpus).into())
    }),
    ("simulated with model", models),
];

fn changed(before: &Report, after: &Report) -> Vec<Change> {
    let change = |what: &str, before: Value, after: Value| {
        (before != after).then(|| Change {
            what: what.to_owned(),
            before,
            after,
        })
    };
    let facts = FACTS.iter();
    let facts = facts.filter_map(|(what, of)| change(what, of(before), of(after)));
    let names = before.settings.keys().chain(after.settings.keys());
    let names: BTreeSet<_> = names.collect();
    let settings = names.into_iter().filter_map(|name| {
        let of = |report: &Report| report.settings.get(name).cloned().unwrap_or_default();
        change(name, of(before), of(after))
    });
    facts.chain(settings).collect()
}

fn each(report: &Report, of: fn(&Host) -> Value) -> Value {
    report.hosts.iter().map(of).collect()
}

fn models(report: &Report) -> Value {
    let simulated = report.runs.iter().filter(|run| run.simulated);
    let models = simulated.map(|run| run.model.as_deref().unwrap_or("none"));
    models.collect::<BTreeSet<_>>().into_iter().collect()
}

fn port(port: &Device) -> Value {
    format!("{}/{} {} Gb/s", port.name, port.port, port.gbit_per_s).into()
}

fn shown(value: &Value) -> String {
    match value {
        Value::Null => "none".into(),
        Value::Array(values) if values.is_empty() => "none".into(),
        Value::String(text) => on_one_line(text),
        Value::Array(values) => values.iter().map(shown).collect::<Vec<_>>().join(", "),
        other => on_one_line(&other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::scale::sample::report;

    #[test]
    fn rows_are_matched_by_what_they_are_and_the_rest_is_named() {
        let before = report();
        let mut after = report();
        let case = after.runs.remove(2);
        after.runs[0].gb_per_s *= 2.0;
        after.runs.reverse();
        after.runs[0].policy = "http".into();
        let comparison = Comparison::of(&before, &after);
        assert_eq!(comparison.rows.len(), before.runs.len() - 2);
        assert_eq!(comparison.rows[0].gb_per_s.ratio, Some(2.0));
        assert_eq!(comparison.rows[1].gb_per_s.ratio, Some(1.0));
        assert_eq!(comparison.only_before[0].processes, case.processes);
        assert_eq!(comparison.only_after.len(), 1);
        let text = comparison.text();
        for line in [
            "same host, version and settings",
            "only in the first: per-process 4 x 2 8MiB prefer-rdma",
            "only in the second: shared 8 x 2 32MiB http",
        ] {
            assert!(text.lines().any(|one| one == line), "{line}\n{text}");
        }
        assert!(text.contains("(x2.00)"), "{text}");
    }

    #[test]
    fn what_changed_is_said_first() {
        let before = report();
        let mut after = report();
        after.engine.version = "0.2.0".into();
        after.hosts[0].name = "node8".into();
        after.hosts[0].cores = 8;
        after.settings.insert("duration".into(), "20s".into());
        after.settings.insert("rails".into(), 2.into());
        for run in &mut after.runs {
            (run.host, run.model) = ("node8".into(), None);
            run.simulated = false;
        }
        let comparison = Comparison::of(&before, &after);
        assert_eq!(comparison.rows.len(), before.runs.len());
        let text = comparison.text();
        let expected = [
            "changed  s3engine: 0.1.0 -> 0.2.0",
            "changed  host: node7 -> node8",
            "changed  cores: 256 -> 8",
            "changed  simulated with model: per-client-cost -> none",
            "changed  duration: 10s -> 20s",
            "changed  rails: none -> 2",
        ];
        assert_eq!(text.lines().take(6).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn text_of_files_is_shown_and_not_obeyed() {
        const ODD: &str = "\u{1b}[2J\n\u{9b}";
        let (before, mut after) = (report(), report());
        after.engine.version = ODD.into();
        after.hosts[0].name = ODD.into();
        after.hosts.push(after.hosts[0].clone());
        after
            .settings
            .insert(ODD.into(), serde_json::json!({ODD: [ODD]}));
        after.runs.truncate(1);
        (after.runs[0].host, after.runs[0].policy) = (ODD.into(), ODD.into());
        for text in [
            Comparison::of(&before, &after).text(),
            Comparison::of(&after, &after).text(),
        ] {
            let odd = |c: char| c.is_control() && c != '\n';
            assert!(!text.contains(odd), "{text:?}");
            assert!(text.contains(r"\u{1b}[2J\n\u{9b}"), "{text}");
        }
    }

    #[test]
    fn what_is_not_known_is_no_number() {
        let (before, mut after) = (report(), report());
        for run in &mut after.runs {
            (run.rdma_share, run.cpu_s_per_gib, run.gb_per_s, run.ops) = (None, None, 0.0, 0);
        }
        let (there, back) = (
            Comparison::of(&before, &after),
            Comparison::of(&after, &before),
        );
        for comparison in [there, back] {
            let text = comparison.text();
            assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
            let json = serde_json::to_value(&comparison).unwrap();
            assert_eq!(json["rows"][0]["rdma_share"]["ratio"], Value::Null);
            assert_eq!(json["rows"][0]["mode"], "per-process");
        }
    }
}
