//! `s3engine bench merge FILES`: reports of several hosts that ran together, as one.
//!
//! The rows of each host stay, and the same case of all hosts is summed in a row of the host `all`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde_json::Value;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::bench::json_file::JsonFile;
use crate::bench::outputs::distinct;
use crate::bench::scale::page;
use crate::bench::scale::run::{Report, Run};
use crate::bench::scale::sum::{self, ALL};
use crate::bench::scale::verdict;
use crate::exit::Failure;
use crate::interrupt::Interrupt;
use crate::object_url::on_one_line;

/// Merge files of `bench scale` that several hosts wrote at the same time
#[derive(Args, Debug)]
pub(crate) struct MergeArgs {
    /// A file of each host
    #[arg(value_name = "FILES", required = true, num_args = 2..)]
    pub(crate) files: Vec<PathBuf>,

    /// Where the merged figures go, as JSON; - is stdout
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,

    /// Write them as a page, too
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,

    /// Merge also what did not run at the same time, or not by the same version
    #[arg(long)]
    pub(crate) anyhow: bool,
}

/// Runs the command.
pub(crate) fn run(args: &MergeArgs) -> Result<(), Failure> {
    let (output, html) = (args.output.as_path(), args.html.as_deref());
    let inputs: Vec<&Path> = args.files.iter().map(PathBuf::as_path).collect();
    distinct(&[("-o", Some(output)), ("--html", html)], &inputs)?;
    let reports = inputs.into_iter().map(Report::read);
    let reports = reports.collect::<Result<Vec<_>, _>>()?;
    let refused = |why: String| Failure::Usage(on_one_line(&why));
    let merged = merge(&reports, args.anyhow).map_err(refused)?;
    let fail = |error: serde_json::Error| Failure::Other(error.to_string());
    let json = serde_json::to_string_pretty(&merged).map_err(fail)?;
    let open = |path| JsonFile::open(path, &Interrupt::default());
    let (output, html) = (open(output)?, html.map(open).transpose()?);
    output.write(&(json + "\n"))?;
    match html {
        Some(file) => file.write(&page::html(&merged).map_err(fail)?),
        None => Ok(()),
    }
}

/// One report of several.
pub(crate) fn merge(reports: &[Report], anyhow: bool) -> Result<Report, String> {
    let [first, others @ ..] = reports else {
        return Err("there is nothing to merge".into());
    };
    for (nth, report) in reports.iter().enumerate() {
        if report.hosts.is_empty() {
            let nth = nth + 1;
            return Err(format!(
                "file {nth} of those given names no host: `hosts` is empty"
            ));
        }
        if report.hosts.len() > 1 || report.runs.iter().any(|run| run.host == ALL) {
            return Err("a file is merged already: give those of the single hosts".into());
        }
    }
    let mut names = BTreeSet::new();
    for host in reports.iter().flat_map(|report| &report.hosts) {
        if !names.insert(&host.name) {
            return Err(format!("two files are of the same host, {}", host.name));
        }
    }
    if !anyhow {
        at_the_same_time(reports)?;
        same_version(reports)?;
    }
    let all = || reports.iter().flat_map(|report| &report.runs);
    let mut runs: Vec<Run> = all().cloned().collect();
    let sums = sums(reports);
    let verdicts = verdict::judge(if sums.is_empty() { &runs } else { &sums });
    runs.extend(sums);
    let equal = |get: fn(&Report) -> &Option<String>| {
        let same = others.iter().all(|other| get(other) == get(first));
        same.then(|| get(first).clone()).flatten()
    };
    Ok(Report {
        started: earliest(reports).unwrap_or(first).started.clone(),
        start_at: equal(|report| &report.start_at),
        interrupted: reports.iter().any(|report| report.interrupted),
        hosts: reports
            .iter()
            .flat_map(|report| report.hosts.clone())
            .collect(),
        settings: settings(reports),
        verdicts,
        runs,
        ..first.clone()
    })
}

/// When its first window was to begin, else when it began at all.
fn begin(report: &Report) -> Result<OffsetDateTime, String> {
    let text = report.start_at.as_ref().unwrap_or(&report.started);
    OffsetDateTime::parse(text, &Rfc3339)
        .map_err(|error| format!("{}: {text:?} is no RFC 3339 time: {error}", name(report)))
}

fn name(report: &Report) -> &str {
    report.hosts.first().map_or("a host", |host| &host.name)
}

/// Rates add up only if they were there at the same time.
fn at_the_same_time(reports: &[Report]) -> Result<(), String> {
    let windows = reports.iter().flat_map(|report| &report.runs);
    let windows = windows
        .map(|run| run.seconds)
        .filter(|seconds| *seconds > 0.0);
    let shortest = windows.fold(f64::INFINITY, f64::min);
    let mut begins = Vec::with_capacity(reports.len());
    for report in reports {
        begins.push((begin(report)?, name(report)));
    }
    let (first, last) = (begins.iter().min(), begins.iter().max());
    let Some(((first, early), (last, late))) = first.zip(last) else {
        return Ok(());
    };
    let apart = Duration::try_from(*last - *first).unwrap_or_default();
    if apart.as_secs_f64() <= shortest {
        return Ok(());
    }
    Err(format!(
        "{late} began {apart:.1?} after {early}, longer than the shortest window of {shortest:.1} s: their rates were not there together; give all of them one --start-at, or merge with --anyhow"
    ))
}

fn same_version(reports: &[Report]) -> Result<(), String> {
    let versions = reports.iter().map(|report| &report.engine.version);
    let versions: BTreeSet<_> = versions.map(String::as_str).collect();
    if versions.len() <= 1 {
        return Ok(());
    }
    let versions = versions.into_iter().collect::<Vec<_>>().join(" and ");
    Err(format!(
        "the files are of versions {versions}; --anyhow merges them"
    ))
}

fn earliest(reports: &[Report]) -> Option<&Report> {
    let at = |report: &&Report| OffsetDateTime::parse(&report.started, &Rfc3339).ok();
    // A time that cannot be read comes last.
    let by = |report: &&Report| (at(report).is_none(), at(report));
    reports.iter().min_by_key(by)
}

/// The same for all stays; others are told by host.
fn settings(reports: &[Report]) -> BTreeMap<String, Value> {
    let names: BTreeSet<_> = reports
        .iter()
        .flat_map(|report| report.settings.keys())
        .collect();
    let of = |setting: &String| {
        let value = |report: &Report| report.settings.get(setting).cloned().unwrap_or_default();
        let values: Vec<_> = reports.iter().map(value).collect();
        if values.windows(2).all(|pair| pair[0] == pair[1]) {
            return values[0].clone();
        }
        let by_host = reports
            .iter()
            .map(|report| name(report).to_owned())
            .zip(values);
        Value::Object(by_host.collect())
    };
    names
        .into_iter()
        .map(|setting| (setting.clone(), of(setting)))
        .collect()
}

/// The cases that every host has, in the order of the first.
fn sums(reports: &[Report]) -> Vec<Run> {
    let [first, others @ ..] = reports else {
        return Vec::new();
    };
    let mut left: Vec<Vec<&Run>> = others
        .iter()
        .map(|other| other.runs.iter().collect())
        .collect();
    let mut sums = Vec::new();
    for run in &first.runs {
        let places: Option<Vec<_>> = left
            .iter()
            .map(|runs| runs.iter().position(|other| sum::alike(run, other)))
            .collect();
        let Some(places) = places else { continue };
        let mut parts = vec![run];
        parts.extend(
            left.iter_mut()
                .zip(places)
                .map(|(runs, at)| runs.remove(at)),
        );
        sums.push(sum::sum(&parts));
    }
    sum::scale(&mut sums);
    sums
}

#[cfg(test)]
#[path = "merge_tests.rs"]
mod tests;
