//! `s3engine doctor`: would GETs go by RDMA, and if not, why not.
//!
//! Each check gives a finding; none waits without end. Vendors' libraries are tried in processes of their own. What
//! there is on this host is read from files and judged by pure functions.

mod bounded;
mod by_rdma;
mod endpoint;
mod fabrics;
mod finding;
mod host;

use std::env;
use std::io::{self, ErrorKind, Write};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use rustix::process::{Resource, getrlimit};
use s3engine::cuda;

use s3engine::probe::Vendor;
use s3engine::service::default_socket;
use s3engine::topology::{PciAddress, Topology};
use s3engine::{Endpoint, EndpointError, Engine, Proxies, Rdma, check_bucket};

use self::bounded::within;
use self::endpoint::Outcome;
use self::finding::{Answer, Finding, Report, Verdict};
use self::host::Root;
use crate::cli::Common;
use crate::config::{FabricChoice, Settings};
use crate::connect;
use crate::exit::Failure;
use crate::gpus;
use crate::interrupt::Interrupt;
use crate::span::Span;

/// Requests that one check may make, each within the bound.
const ASKING: u32 = 3;

pub(crate) const HELP: &str = "\
Examples:
  s3engine doctor
  s3engine doctor --endpoint http://aistor:9000 --bucket bench
  s3engine doctor --endpoint http://aistor:9000 --bucket bench --fabric s3rdma --json

Exit codes: 0 GETs go by RDMA (without --endpoint and --bucket: they could), 5 they go by HTTP, 1 neither works,
2 usage, 3 configuration, 4 no such bucket or object. docs/doctor.md has each check, what it means and what to do.";

/// Tell whether GETs would go by RDMA, and if not, why
#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// Ask for this bucket, and get one of its objects by RDMA and by HTTP
    #[arg(long, value_name = "BUCKET", value_parser = bucket)]
    bucket: Option<String>,

    /// The object to get; by default the largest of the first that the bucket lists
    #[arg(long, value_name = "KEY", requires = "bucket", overrides_with = "key", value_parser = NonEmptyStringValueParser::new())]
    key: Option<String>,

    /// Only get so many bytes of the object by RDMA, and tell whoever has started this process
    #[arg(long, hide = true, requires = "key")]
    only_rdma: Option<u64>,

    /// How long each check may take
    #[arg(long, value_name = "TIME", default_value = "10s")]
    timeout: Span,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    pub(crate) common: Common,
}

fn bucket(name: &str) -> Result<String, EndpointError> {
    check_bucket(name)?;
    Ok(name.to_owned())
}

/// Runs the command.
pub(crate) fn run(
    args: &DoctorArgs,
    settings: &Settings,
    interrupt: &Interrupt,
) -> Result<(), Failure> {
    if args.bucket.is_some() && settings.endpoint.is_none() && settings.region.is_none() {
        let text = "--bucket: which endpoint? --endpoint or AWS_ENDPOINT_URL names it";
        return Err(Failure::Usage(text.into()));
    }
    if let (Some(bucket), Some(key), Some(len)) = (&args.bucket, &args.key, args.only_rdma) {
        let bound = args.timeout.0;
        let engine = || engine(settings, settings.endpoint()?, bound, true);
        return by_rdma::answer(engine, (bucket, key, len), until(bound), interrupt);
    }
    let report = examine(args, settings, interrupt)?;
    let text = match args.json {
        true => format!("{}\n", report.json()),
        false => report.text(),
    };
    match io::stdout().write_all(text.as_bytes()) {
        // Whoever reads has seen enough.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            return Err(Failure::unwritten(error));
        }
        _ => {}
    }
    match report.exit_code {
        0 => Ok(()),
        code => Err(Failure::Told(code)),
    }
}

fn examine(
    args: &DoctorArgs,
    settings: &Settings,
    interrupt: &Interrupt,
) -> Result<Report, Failure> {
    let bound = args.timeout.0;
    let endpoint = match (&settings.endpoint, &settings.region) {
        (None, None) => None,
        _ => Some(settings.endpoint()?),
    };
    let reached = endpoint
        .as_ref()
        .map(|endpoint| endpoint::reach(endpoint, bound));
    let addresses = reached
        .as_ref()
        .map_or(&[][..], |reached| &reached.addresses);
    let vendors = fabrics::of(settings);
    let mut findings = match vendors.is_empty() {
        true => vec![Finding::skip(
            "host",
            "nothing of it is needed by the fabric that is chosen",
        )],
        false => this_host(addresses, bound),
    };
    let mut tried = Vec::new();
    for &vendor in vendors {
        interrupted(interrupt)?;
        let mut one = fabrics::try_one(vendor, settings, bound);
        findings.append(&mut one.findings);
        if vendor == Vendor::Cufile {
            findings.push(fabrics::cufile_json());
        }
        tried.push(one);
    }
    let mut found = Found {
        fabric: fabric(settings, &tried, &findings),
        reachable: reached
            .as_ref()
            .is_none_or(|reached| !reached.addresses.is_empty()),
        asked: None,
    };
    if let (Some(endpoint), Some(reached)) = (&endpoint, reached) {
        findings.extend(reached.findings);
        findings.extend(proxies(settings)?);
        findings.push(endpoint::credentials(settings));
        if let Some(bucket) = &args.bucket {
            let engine = engine(settings, endpoint.clone(), bound, false)?;
            let key = args.key.as_deref();
            let mut asked = endpoint::ask(&engine, bucket, key, until(bound), interrupt)?;
            findings.append(&mut asked.findings);
            found.asked = Some(match (asked.outcome, &found.fabric) {
                (Err(outcome), _) => outcome,
                // No library is loaded that has been seen to fail.
                (Ok(_), Err(why)) => Outcome::ByHttp(why.clone()),
                (Ok((key, len)), Ok(())) => {
                    interrupted(interrupt)?;
                    let (finding, outcome) = by_rdma::try_one(&key, len, ASKING * bound);
                    findings.push(finding);
                    outcome
                }
            });
        }
    }
    findings.push(service());
    Ok(found.conclude(endpoint.map(|endpoint| endpoint.to_string()), findings))
}

fn interrupted(interrupt: &Interrupt) -> Result<(), Failure> {
    interrupt
        .signal()
        .map_or(Ok(()), |signal| Err(Failure::Interrupted(signal)))
}

/// Everything of this host that a card needs.
fn this_host(endpoint: &[IpAddr], bound: Duration) -> Vec<Finding> {
    let root = Root("/".into());
    let topology = root.topology();
    let mut findings = vec![host::kernel(&root)];
    findings.extend(host::devices(&topology, endpoint));
    findings.push(host::memlock(getrlimit(Resource::Memlock).current));
    findings.push(host::huge_pages(&root));
    findings.push(host::io_uring(&root));
    let path = env::var("LD_LIBRARY_PATH").ok();
    findings.push(host::libraries(&root, &host::library_path(path.as_deref())));
    findings.extend(gpus_of(&root, &topology, bound));
    findings
}

/// The GPUs, how a card reaches their memory, and how near the two are.
fn gpus_of(root: &Root, topology: &Topology, bound: Duration) -> Vec<Finding> {
    const NAME: &str = "gpu";
    let of_host = topology.clone();
    let seen = within(bound, move || {
        let seen = gpus::seen(&of_host);
        let dma_buf = cuda::Gpu::all().is_ok_and(|gpus| gpus.iter().all(cuda::Gpu::has_dma_buf));
        seen.map(|seen| (seen, dma_buf))
            .map_err(|error| error.to_string())
    });
    let (seen, dma_buf) = match seen.flatten() {
        Ok(seen) => seen,
        Err(why) => return vec![Finding::skip(NAME, why)],
    };
    let mut findings = Vec::new();
    for gpu in &seen {
        let driver = gpu.driver.as_deref().unwrap_or("unknown");
        let address: Option<PciAddress> = gpu.pci.parse().ok();
        let bar1 = address.and_then(|address| topology.bar1_bytes(address));
        let window = bar1.map_or("unknown".to_owned(), |bytes| format!("{} MiB", bytes >> 20));
        let what = format!("{} {gpu}, driver {driver}, BAR1 {window}", gpu.index);
        let small = bar1.is_some_and(|bytes| bytes < gpu.memory_bytes);
        findings.push(match small {
            true => Finding::warn(NAME, what)
                .means("less than its memory can be registered at once, by all processes together"),
            false => Finding::ok(NAME, what),
        });
        let device = address.map(|address| topology.device(address));
        let near = device.map_or_else(Vec::new, |device| {
            topology
                .nearest_nics(&device)
                .into_iter()
                .map(|(nic, relation)| format!("{} {relation}", nic.name))
                .collect()
        });
        if !near.is_empty() {
            findings.push(Finding::ok(
                "topology",
                format!("gpu {}: {}", gpu.index, near.join(", ")),
            ));
        }
    }
    findings.push(host::gpu_access(root, seen.len(), dma_buf));
    findings
}

fn proxies(settings: &Settings) -> Result<Option<Finding>, Failure> {
    let direct = settings.network()?.proxies == Proxies::default();
    let finding = Finding::warn(
        "proxy",
        "there is one for requests, but for hosts in NO_PROXY",
    )
    .means("what carries a token may go through it, and be answered by it")
    .help("--proxy off, or NO_PROXY with the endpoint's name");
    Ok((!direct).then_some(finding))
}

/// Whether a host service is there, by whose fabric the GETs of its clients go.
fn service() -> Finding {
    let socket = default_socket();
    match socket.exists() {
        true => Finding::ok("service", format!("one listens at {}", socket.display()))
            .means("GETs through it go by its fabric, and not by what was tried here"),
        false => Finding::skip("service", format!("none at {}", socket.display())),
    }
}

/// When asking for a bucket and an object has taken too long.
fn until(bound: Duration) -> Instant {
    Instant::now() + bound.saturating_mul(ASKING)
}

/// An engine as the settings say, with little memory; with the fabric, whose library may do anything, or without.
fn engine(
    settings: &Settings,
    endpoint: Endpoint,
    bound: Duration,
    by_rdma: bool,
) -> Result<Engine, Failure> {
    let mut builder = connect::describe(settings, endpoint, settings.credentials()?)?;
    if !by_rdma {
        builder = builder.rdma(Rdma::Off);
    }
    let pool = connect::pool(settings, 4 << 20, Some(32 << 20))?;
    connect::start(builder.pool(pool).deadline(bound), settings)
}

/// Whether there is a fabric, or why not.
fn fabric(
    settings: &Settings,
    tried: &[fabrics::Tried],
    findings: &[Finding],
) -> Result<(), String> {
    let no_device = |one: &&Finding| one.name == "device" && one.verdict == Verdict::Fail;
    match settings.fabric {
        Some(FabricChoice::Off) => Err("RDMA is switched off by configuration".into()),
        Some(FabricChoice::Loopback) => Ok(()),
        _ if tried.iter().any(|one| one.works) => Ok(()),
        _ => Err(findings.iter().find(no_device).map_or_else(
            || {
                tried
                    .iter()
                    .map(|one| &*one.why)
                    .collect::<Vec<_>>()
                    .join("; ")
            },
            |one| one.what.clone(),
        )),
    }
}

/// What the answer depends on.
struct Found {
    fabric: Result<(), String>,
    /// Whether the endpoint, if there is one, was connected to.
    reachable: bool,
    /// What asking for a bucket has shown, where one was named.
    asked: Option<Outcome>,
}

impl Found {
    fn conclude(self, endpoint: Option<String>, findings: Vec<Finding>) -> Report {
        use Outcome::{ByHttp, ByRdma, Fails, Missing, Untried};
        let (answer, because, exit_code) = match (self.asked, self.fabric) {
            (Some(ByRdma), _) => (Answer::Yes, "a GET has gone by it".into(), 0),
            (Some(ByHttp(why)), _) => (Answer::No, why, 5),
            (Some(Fails), _) => (Answer::No, "not even HTTP works".into(), 1),
            (None, _) if !self.reachable => (Answer::No, "the endpoint is not reached".into(), 1),
            (Some(Missing), Err(why)) => (Answer::No, why, 4),
            (Some(Missing), Ok(())) => {
                let because = "there is no such bucket or object to try with".into();
                (Answer::Unknown, because, 4)
            }
            (None | Some(Untried), Err(why)) => (Answer::No, why, 5),
            (None | Some(Untried), Ok(())) => {
                let because = "a fabric is ready; --endpoint and --bucket try a GET".into();
                (Answer::Unknown, because, 0)
            }
        };
        let now = match (answer, exit_code) {
            (_, 1) => "Nothing works with this endpoint.",
            (Answer::Yes, _) => "GETs go by RDMA.",
            (Answer::No, _) => {
                "GETs go by HTTP, and say so; with --rdma require they fail with the reason."
            }
            (Answer::Unknown, _) => "Nothing here speaks against RDMA.",
        };
        Report {
            answer,
            because,
            endpoint,
            findings,
            now: now.to_owned(),
            exit_code,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_and_the_exit_code_follow_from_what_was_found() {
        use Answer::{No, Unknown, Yes};
        use Outcome::{ByHttp, ByRdma, Fails, Missing, Untried};
        let found = |fabric: Result<(), &str>, reachable, asked| {
            let found = Found {
                fabric: fabric.map_err(str::to_owned),
                reachable,
                asked,
            };
            let report = found.conclude(None, Vec::new());
            (report.answer, report.exit_code)
        };
        assert_eq!(found(Ok(()), true, Some(ByRdma)), (Yes, 0));
        assert_eq!(found(Ok(()), true, Some(ByHttp("501".into()))), (No, 5));
        assert_eq!(found(Err("none"), true, None), (No, 5));
        assert_eq!(found(Ok(()), true, None), (Unknown, 0));
        assert_eq!(found(Ok(()), true, Some(Untried)), (Unknown, 0));
        assert_eq!(found(Err("none"), true, Some(Untried)), (No, 5));
        assert_eq!(found(Ok(()), true, Some(Missing)), (Unknown, 4));
        assert_eq!(found(Err("none"), true, Some(Missing)), (No, 4));
        assert_eq!(found(Ok(()), true, Some(Fails)), (No, 1));
        assert_eq!(found(Ok(()), false, None), (No, 1));
        // Through a proxy.
        assert_eq!(found(Ok(()), false, Some(ByRdma)), (Yes, 0));
        assert_eq!(found(Err("none"), false, Some(Untried)), (No, 5));
    }
}
