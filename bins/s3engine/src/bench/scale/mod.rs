//! `s3engine bench scale`: the same work by more and more processes, with a host service and without.
//!
//! ```text
//! args ── cases ── for each: measure (site, crew <─message─> worker, load) ── assemble ──> run
//! all runs ── verdict ──> table, page, JSON
//! ```

mod args;
mod assemble;
mod busy;
mod cases;
mod compare;
mod crew;
mod figures;
mod host;
mod load;
mod measure;
mod merge;
mod message;
mod page;
mod progress;
mod read;
mod rules;
mod run;
#[cfg(test)]
mod sample;
mod site;
mod steady;
mod sum;
mod table;
mod verdict;
mod worker;

use std::collections::BTreeMap;
use std::path::Path;

use s3engine::Memory;
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

pub(crate) use self::args::ScaleArgs;
pub(crate) use self::compare::{CompareArgs, run as compare};
use self::measure::{Bench, Measured};
pub(crate) use self::merge::{MergeArgs, run as merge};
use self::message::Means;
use self::progress::Progress;
use self::run::{Build, Host, Report, Run, SCHEMA, Stopped};
use self::site::Server;
pub(crate) use self::worker::run as worker;
use crate::bench::json_file::JsonFile;
use crate::bench::memory::MemoryKind;
use crate::bench::out::Out;
use crate::bench::outputs::distinct;
use crate::bench::watch::Watch;
use crate::config::Settings;
use crate::exit::Failure;
use crate::gpus;
use crate::interrupt::Interrupt;

/// Runs the command.
pub(crate) fn run(
    args: &ScaleArgs,
    settings: &Settings,
    interrupt: &Interrupt,
) -> Result<(), Failure> {
    args.check(settings)?;
    // Opened before anything is measured, so that nothing is measured in vain.
    let (json, html) = (args.json.as_deref(), args.html.as_deref());
    distinct(&[("--json", json), ("--html", html)], &[])?;
    let open = |path| JsonFile::open(path, interrupt);
    let (json, html) = (json.map(open).transpose()?, html.map(open).transpose()?);
    if matches!(html, Some(JsonFile::Stdout)) {
        return Err(Failure::Usage("--html: a page is written to a file".into()));
    }
    let memories = args.memory().in_turn()?;
    let server = Server::of(args, settings, interrupt)?;
    let host = Host::this();
    let out = Out {
        quiet: args.common.quiet,
        to_stderr: matches!(json, Some(JsonFile::Stdout)),
    };
    let watch = Watch::new(interrupt, server.simulator.as_ref());
    let mut report = begin(args, settings, host);
    out.say(&introduction(args, &server, &report.hosts[0]))?;
    if let Some(why) = &server.untold {
        out.note(&format!("the server's counters are not known: {why}"))?;
    }
    let ended = rows(args, &server, &memories, watch, &out, &mut report);
    report.interrupted = matches!(ended, Err(Failure::Interrupted(_)))
        || report
            .runs
            .iter()
            .any(|run| run.stopped == Stopped::Interrupted);
    report.verdicts = verdict::judge(&report.runs);
    out.say(&conclusion(&report))?;
    if let Some(json) = json {
        let text = serde_json::to_string_pretty(&report)
            .map_err(|error| Failure::Other(error.to_string()))?;
        json.write(&(text + "\n"))?;
    }
    if let Some(html) = html {
        let page = page::html(&report).map_err(|error| Failure::Other(error.to_string()))?;
        html.write(&page)?;
    }
    match (ended, interrupt.signal()) {
        (Ok(()), Some(signal)) => Err(Failure::Interrupted(signal)),
        (ended, _) => ended.and_then(|()| failures(&report.runs)),
    }
}

fn begin(args: &ScaleArgs, settings: &Settings, host: Host) -> Report {
    let now = measure::unix_now();
    Report {
        schema: SCHEMA,
        kind: "scale".into(),
        started: rfc3339(now),
        start_at: args.start_at.map(rfc3339),
        interrupted: false,
        hosts: vec![host],
        engine: Build {
            version: env!("CARGO_PKG_VERSION").into(),
            fabric: None,
            no_fabric: None,
            driver: None,
        },
        settings: shown(args, settings),
        runs: Vec::new(),
        verdicts: Vec::new(),
    }
}

/// Measures all rows, those that were measured before an end included.
fn rows(
    args: &ScaleArgs,
    server: &Server,
    memories: &[Memory],
    watch: Watch<'_>,
    out: &Out,
    report: &mut Report,
) -> Result<(), Failure> {
    let cases = cases::cases(args, server.policy());
    let progress = Progress::new(cases.len(), !out.quiet);
    let bench = Bench {
        args,
        server,
        memories,
        watch,
        progress: &progress,
    };
    for (nth, case) in cases.iter().enumerate() {
        let measured = match bench.measure(case, nth) {
            // The rows before it stand, and those after it may be measured.
            Err(Failure::WorkerLost(why)) => {
                progress.row_ended(|| {
                    out.note(&format!(
                        "{} x {} {}: {why}",
                        case.processes, args.threads, case.mode
                    ))
                })?;
                report
                    .runs
                    .push(lost(case, args, server, &report.hosts[0], why));
                continue;
            }
            measured => measured?,
        };
        let means = &measured.means;
        (report.engine.fabric, report.engine.no_fabric) = match &means.fabric {
            Ok(fabric) => (Some(fabric.clone()), None),
            Err(why) => (None, Some(why.clone())),
        };
        report.engine.driver = means.driver.clone();
        let run = assemble::run(case, args, server, &report.hosts[0], &measured);
        let cut = run.stopped == Stopped::Interrupted;
        report.runs.push(run);
        sum::scale(&mut report.runs);
        let first = report.runs.len() == 1;
        progress.row_ended(|| {
            if let Some(Err(why)) = &measured.server {
                out.note(&format!("the server's counters are not known: {why}"))?;
            }
            let headings = if first {
                table::headings()
            } else {
                String::new()
            };
            let row = report.runs.last().map(table::row).unwrap_or_default();
            out.say(&(headings + &row))
        })?;
        if cut {
            break;
        }
    }
    Ok(())
}

/// A row that was not measured to its end.
fn lost(case: &cases::Case, args: &ScaleArgs, server: &Server, host: &Host, why: String) -> Run {
    let nothing = Measured {
        stopped: Stopped::WorkerLost,
        start_seconds: 0.0,
        counts: Vec::new(),
        probed: Vec::new(),
        blocks: Vec::new(),
        service: None,
        means: Means {
            fabric: Err("not known".into()),
            driver: None,
        },
        host_busy: 0.0,
        cpu_wait: 0.0,
        server: None,
    };
    Run {
        first_error: Some(why),
        ..assemble::run(case, args, server, host, &nothing)
    }
}

fn introduction(args: &ScaleArgs, server: &Server, host: &Host) -> String {
    let mut text = format!("host {}, {} cores", host.name, host.cores);
    if !host.gpus.is_empty() {
        text += &format!(", {}", gpus::counted(&host.gpus));
    }
    for device in &host.devices {
        text += &format!(", {} {:.0} Gb/s", device.name, device.gbit_per_s);
    }
    text += &format!(
        "   s3engine {}   windows of at most {:?} after {:?}\n",
        env!("CARGO_PKG_VERSION"),
        args.duration.0,
        args.warmup.0
    );
    text += &match (&server.simulator, &server.model) {
        (Some(_), Some(model)) => format!(
            "simulated: s3sim on this host's own cores, model {model}, at {}\n",
            server.url
        ),
        (Some(_), None) => format!(
            "simulated: s3sim on this host's own cores, at {}\n",
            server.url
        ),
        (None, _) => format!("endpoint {}\n", server.url),
    };
    if args.memory() != MemoryKind::Host {
        text += &format!("bytes land in the memory of {}\n", args.memory());
    }
    if let Some(rate) = server.line_rate {
        text += &format!("line rate {rate:.2} GB/s\n");
    }
    text
}

fn conclusion(report: &Report) -> String {
    if report.runs.is_empty() {
        return String::new();
    }
    let mut text = table::LEGEND.to_owned();
    if let Some(driver) = &report.engine.driver {
        text += &format!("driver {driver}\n");
    }
    if let Some(why) = &report.engine.no_fabric {
        text += &format!("no RDMA: {why}\n");
    }
    if report.interrupted {
        text += "interrupted: this is what was measured until then\n";
    }
    text + &table::verdicts(&report.verdicts)
}

/// What it ran with: secrets are no settings.
fn shown(args: &ScaleArgs, settings: &Settings) -> BTreeMap<String, Value> {
    let mut shown = BTreeMap::new();
    if let Ok(Value::Object(set)) = serde_json::to_value(settings) {
        shown.extend(set.into_iter().filter(|(_, value)| !value.is_null()));
    }
    let path = |path: &Option<std::path::PathBuf>| {
        path.as_deref().map(Path::to_string_lossy).map(String::from)
    };
    let flags = json!({
        "threads": args.threads,
        "in-flight": args.in_flight,
        "clients-per-process": args.clients_per_process,
        "control-timeout": args.control_timeout,
        "duration": args.duration,
        "warmup": args.warmup,
        "server-metrics": args.server_metrics,
        "model": args.model,
        "faults": path(&args.faults),
        "memory": args.memory().to_string(),
        "bucket": args.bucket,
        "key-template": args.key_template.to_string(),
        "objects": args.objects,
    });
    if let Value::Object(flags) = flags {
        shown.extend(flags.into_iter().filter(|(_, value)| !value.is_null()));
    }
    shown
}

fn rfc3339(unix: f64) -> String {
    let time = OffsetDateTime::from_unix_timestamp(unix as i64);
    let text = time.ok().and_then(|time| time.format(&Rfc3339).ok());
    text.unwrap_or_else(|| format!("{unix} s since 1970"))
}

/// The first error of the first run that had any, and how many there were in all.
fn failures(runs: &[Run]) -> Result<(), Failure> {
    let lost = || runs.iter().filter(|run| run.stopped == Stopped::WorkerLost);
    if let Some(first) = lost().next() {
        return Err(Failure::WorkerLost(format!(
            "{} of {} rows lost a worker, the first one ({} {}) so: {}",
            lost().count(),
            runs.len(),
            first.mode,
            figures::row(first),
            first.first_error.as_deref().unwrap_or("not known")
        )));
    }
    let failed: u64 = runs.iter().map(|run| run.failed).sum();
    match runs.iter().find_map(|run| run.first_error.as_ref()) {
        None => Ok(()),
        Some(error) => Err(Failure::Other(format!(
            "{failed} GETs failed, the first one so: {error}"
        ))),
    }
}
