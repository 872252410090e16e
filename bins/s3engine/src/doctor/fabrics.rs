//! Which fabric there would be, and whether it registers memory: tried in a process of its own.

use std::env;
use std::time::Duration;

use s3engine::probe::{Depth, Report, Vendor, in_child};
use s3engine::{CufileOptions, OpenError, check_modules};

use super::finding::Finding;
use crate::config::{FabricChoice, Settings};

/// What was found of a vendor's fabric.
pub(crate) struct Tried {
    pub(crate) findings: Vec<Finding>,
    /// Whether it starts and registers host memory.
    pub(crate) works: bool,
    /// Why not, in a few words.
    pub(crate) why: String,
}

/// The vendors' fabrics that the settings allow.
pub(crate) fn of(settings: &Settings) -> &'static [Vendor] {
    match settings.fabric {
        None | Some(FabricChoice::Auto) => &[Vendor::S3rdma, Vendor::Cufile],
        Some(FabricChoice::S3rdma) => &[Vendor::S3rdma],
        Some(FabricChoice::Cufile) => &[Vendor::Cufile],
        Some(FabricChoice::Off | FabricChoice::Loopback) => &[],
    }
}

/// Tries one.
pub(crate) fn try_one(vendor: Vendor, settings: &Settings, bound: Duration) -> Tried {
    let library = match vendor {
        Vendor::S3rdma => settings.s3rdma_library.as_deref(),
        Vendor::Cufile => settings.cufile_library.as_deref(),
    };
    let modules = match vendor {
        Vendor::S3rdma => Ok(()),
        Vendor::Cufile => check_modules(&CufileOptions::default().modules),
    };
    let here = env::current_exe().ok();
    let tried = in_child(here.as_deref(), (vendor, Depth::All), library, bound);
    // That it is not here at all says more than that it would loop.
    judge(
        vendor,
        match (modules, tried) {
            (Err(loops), Err(OpenError::Failed { .. })) => Err(loops),
            (_, tried) => tried,
        },
    )
}

fn judge(vendor: Vendor, tried: Result<Report, OpenError>) -> Tried {
    let name = vendor.name();
    let report = match tried {
        Ok(report) => report,
        Err(OpenError::NotFound { text }) => {
            let help = match vendor {
                Vendor::S3rdma => "it comes with MinIO's client SDKs; name it by --s3rdma-library",
                Vendor::Cufile => {
                    "it comes with the CUDA toolkit (gds), or pip install nvidia-cufile; name it by --cufile-library"
                }
            };
            return Tried {
                findings: vec![Finding::warn(name, text.clone()).help(help)],
                works: false,
                why: text,
            };
        }
        Err(OpenError::Failed { text }) => {
            let means = "the library is here, and does not start";
            return Tried {
                findings: vec![Finding::fail(name, text).means(means)],
                works: false,
                why: format!("{name} does not start"),
            };
        }
    };
    let version = report.version.as_deref().unwrap_or("of unknown version");
    let from = report
        .loaded_from
        .as_ref()
        .map_or(String::new(), |path| format!(" from {}", path.display()));
    let mut findings = vec![Finding::ok(name, format!("version {version}{from} starts"))];
    let of_memory = |what: &str, refused: &Option<String>| match refused {
        None => Finding::ok(name, format!("registers {what}")),
        Some(why) => Finding::fail(
            name,
            format!("registration of 2 MiB of {what} failed: {why}"),
        )
        .means("GETs into such memory go by HTTP, with reason registration-failed"),
    };
    findings.push(of_memory("host memory", &report.registration));
    let token = report.token.as_ref();
    findings.extend(token.map(|why| {
        Finding::fail(name, format!("makes no token: {why}"))
            .means("GETs go by HTTP, with reason token-failed")
    }));
    let of_gpu = |(gpu, refused): &(String, Option<String>)| of_memory(gpu, refused);
    findings.extend(report.cuda.iter().map(of_gpu));
    Tried {
        findings,
        works: report.registration.is_none() && token.is_none(),
        why: match token {
            Some(_) => format!("{name} makes no token"),
            None => format!("{name} registers no host memory"),
        },
    }
}

/// The settings of cuFile.
pub(crate) fn cufile_json() -> Finding {
    const NAME: &str = "cufile.json";
    let found = s3engine::cufile_config::read();
    let values = &found.values;
    let what = format!(
        "{}: rdma_dev_addr_list [{}], rdma_peer_type {}, allow_compat_mode {}, max_device_pinned_mem_size_kb {}",
        found.file.display(),
        values.rdma_dev_addr_list.join(", "),
        values.rdma_peer_type,
        values.allow_compat_mode,
        values.max_device_pinned_mem_size_kb
    );
    match found.problems.is_empty() {
        true => Finding::ok(NAME, what),
        false => Finding::warn(NAME, what).means(found.problems.join("; ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Verdict;

    #[test]
    fn each_end_of_a_trial_has_its_verdict() {
        let text = String::from("libs3rdma.so.0 is not on this host");
        let absent = judge(Vendor::S3rdma, Err(OpenError::NotFound { text }));
        assert_eq!(
            (absent.works, absent.findings[0].verdict),
            (false, Verdict::Warn)
        );
        let text = String::from("it was killed");
        let failed = judge(Vendor::Cufile, Err(OpenError::Failed { text }));
        assert_eq!(
            (failed.works, failed.findings[0].verdict),
            (false, Verdict::Fail)
        );
        let report = Report {
            version: Some("1.18".into()),
            registration: Some("cuFile 5045".into()),
            cuda: vec![("GPU-1".into(), None)],
            ..Report::default()
        };
        let refused = judge(Vendor::Cufile, Ok(report.clone()));
        let verdicts: Vec<_> = refused.findings.iter().map(|f| f.verdict).collect();
        assert_eq!(verdicts, [Verdict::Ok, Verdict::Fail, Verdict::Ok]);
        assert!(refused.findings[1].what.contains("cuFile 5045"));
        let no_token = Report {
            registration: None,
            token: Some("no port".into()),
            ..report.clone()
        };
        let no_token = judge(Vendor::S3rdma, Ok(no_token));
        assert!(!no_token.works && no_token.why.contains("no token"));
        let works = judge(
            Vendor::Cufile,
            Ok(Report {
                registration: None,
                ..report
            }),
        );
        assert!(works.works);
    }
}
