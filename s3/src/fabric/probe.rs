//! Trying a vendor's library in a process of its own: it may hang, loop or crash there, and nothing else does.
//!
//! ```text
//! here ── spawn ──> prober probe-library cufile [FILE]
//!      <── one line of JSON ──┘   or nothing within the bound: killed
//! ```

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Signal, set_parent_process_death_signal};
use s3engine_pool::{Memory, Pool, PoolOptions, UnregisteredWhy};
use serde::{Deserialize, Serialize};

use super::s3rdma::{S3rdma, S3rdmaOptions};
use super::text::shown;
use super::{Fabric, OpenError, cufile};

/// The argument that a prober answers to.
pub const COMMAND: &str = "probe-library";
/// Its answer is one line, and not longer.
const MOST: u64 = 64 << 10;
/// What is registered to see whether that works.
const LEN: u64 = 2 << 20;
/// A prober that nobody has killed until then ends by itself.
const LONGEST: Duration = Duration::from_secs(3600);

/// Whose library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vendor {
    /// MinIO's.
    S3rdma,
    /// NVIDIA's.
    Cufile,
}

impl Vendor {
    /// The fabric's name.
    pub fn name(self) -> &'static str {
        match self {
            Vendor::S3rdma => "s3rdma",
            Vendor::Cufile => "cufile",
        }
    }

    fn of(name: &str) -> Option<Vendor> {
        let all = [Vendor::S3rdma, Vendor::Cufile];
        all.into_iter().find(|vendor| vendor.name() == name)
    }
}

impl fmt::Display for Vendor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What trying a library has shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Its version.
    pub version: Option<String>,
    /// The file that was loaded, where it is known.
    pub loaded_from: Option<PathBuf>,
    /// It is not on this host.
    pub absent: bool,
    /// Why it does not start.
    pub error: Option<String>,
    /// Why host memory could not be registered. `None`: it could, or the library did not start.
    pub registration: Option<String>,
    /// The same of each CUDA device, by name.
    pub cuda: Vec<(String, Option<String>)>,
}

/// Tries a library, in this process: what a prober does. The answer is a line for standard output.
pub fn answer(arguments: &[OsString]) -> Result<String, String> {
    let (vendor, library) = match arguments {
        [vendor] => (vendor, None),
        [vendor, library] => (vendor, Some(Path::new(library))),
        _ => return Err("wanted: the library's fabric, and its file if not found by name".into()),
    };
    let vendor = vendor.to_str().and_then(Vendor::of);
    let vendor = vendor.ok_or("the fabrics with a library are s3rdma and cufile")?;
    end_with_who_asked()?;
    let report = examine(vendor, library);
    serde_json::to_string(&report).map_err(|error| error.to_string())
}

/// A prober in a library that loops is not to outlive who would have killed it.
fn end_with_who_asked() -> Result<(), String> {
    let killed = set_parent_process_death_signal(Some(Signal::KILL));
    killed.map_err(|error| format!("cannot end with the process that asked: {error}"))?;
    let late = thread::Builder::new().spawn(|| {
        thread::sleep(LONGEST);
        process::abort();
    });
    late.map(drop).map_err(|error| error.to_string())
}

fn examine(vendor: Vendor, library: Option<&Path>) -> Report {
    let mut report = Report::default();
    let fabric: Result<Arc<dyn Fabric>, OpenError> = match vendor {
        Vendor::S3rdma => {
            let version = super::s3rdma::version(library);
            report.version = version.ok();
            let opened = S3rdma::open(S3rdmaOptions {
                library: library.map(Path::to_owned),
                call_timeout: LONGEST,
                ..S3rdmaOptions::default()
            });
            opened.map(|fabric| Arc::new(fabric) as Arc<dyn Fabric>)
        }
        Vendor::Cufile => cufile::unprobed(library, LONGEST).map(|fabric| {
            report.version = Some(fabric.version());
            report.loaded_from = fabric.loaded_from();
            fabric as Arc<dyn Fabric>
        }),
    };
    match fabric {
        Ok(fabric) => {
            report.registration = try_registration(&fabric, Memory::Host).err();
            let gpus = s3engine_pool::cuda::Gpu::all().unwrap_or_default();
            report.cuda = gpus
                .iter()
                .map(|gpu| {
                    let tried = try_registration(&fabric, Memory::Cuda(gpu.uuid()));
                    (format!("{} {}", gpu.uuid(), gpu.name()), tried.err())
                })
                .collect();
        }
        Err(error) => {
            report.absent = matches!(error, OpenError::NotFound { .. });
            report.error = Some(error.to_string());
        }
    }
    report
}

/// Registers a little memory with a fabric, and gives it back.
pub fn try_registration(fabric: &Arc<dyn Fabric>, memory: Memory) -> Result<(), String> {
    let options = PoolOptions {
        slab_bytes: LEN,
        max_bytes: Some(2 * LEN),
        max_cuda_bytes: Some(32 << 20),
        ..PoolOptions::default()
    };
    let pool = Pool::with_fabrics(options, vec![Arc::clone(fabric) as _]);
    let pool = pool.map_err(|error| error.to_string())?;
    let buffer = pool
        .try_alloc(LEN, memory)
        .map_err(|error| error.to_string())?;
    let id = pool.fabric(0).ok_or("the pool has no fabric")?;
    let mut landing = buffer.into_landing();
    let mut window = landing.window(0, LEN).map_err(|error| error.to_string())?;
    let armed = window.arm(id).map(drop).map_err(|why| match why {
        UnregisteredWhy::Failed(error) => error.to_string(),
        other => other.to_string(),
    });
    // No token was made of it.
    window.disarm();
    armed
}

/// Tries a library in a process of its own, within a bound.
pub fn in_child(
    prober: Option<&Path>,
    vendor: Vendor,
    library: Option<&Path>,
    bound: Duration,
) -> Result<Report, OpenError> {
    let failed = |text: String| OpenError::Failed { text };
    let prober = match prober {
        Some(prober) => prober.to_owned(),
        None => find_prober().ok_or_else(|| {
            failed(format!(
                "the library of {vendor} is not loaded untried, and no program `s3engine` that tries it was found beside this one or on PATH"
            ))
        })?,
    };
    let shown_prober = prober.display();
    let mut command = Command::new(&prober);
    command.arg(COMMAND).arg(vendor.name()).args(library);
    // It writes a log into the current folder else.
    command.env("CUFILE_LOGFILE_PATH", "/dev/null");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let child = command.spawn();
    let child = child.map_err(|error| failed(format!("cannot start {shown_prober}: {error}")))?;
    let said = output(child, bound).map_err(|why| {
        failed(format!(
            "trying the library of {vendor} in a process of its own: {why}"
        ))
    })?;
    let report: Report = serde_json::from_slice(&said).map_err(|_| {
        failed(format!(
            "{shown_prober} does not know `{COMMAND}`: it said {:?}",
            shown(&said)
        ))
    })?;
    match (&report.error, report.absent) {
        (Some(text), true) => Err(OpenError::NotFound { text: text.clone() }),
        (Some(text), false) => Err(failed(text.clone())),
        (None, _) => Ok(report),
    }
}

/// What a child says until its end, which comes within the bound or by a signal.
fn output(mut child: Child, bound: Duration) -> Result<Vec<u8>, String> {
    let began = Instant::now();
    let stdout = child.stdout.take();
    // Ends with the child, or with the last one that holds its output: then nobody waits for it.
    let reader = thread::spawn(move || {
        let mut said = Vec::new();
        let read = stdout.map(|stdout| stdout.take(MOST).read_to_end(&mut said));
        read.transpose().map(|_| said)
    });
    let ended = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Ok(status),
            Ok(None) if began.elapsed() < bound => thread::sleep(Duration::from_millis(2)),
            Ok(None) => {
                break Err(format!(
                    "it has not ended within {} s, and was killed",
                    bound.as_secs_f64()
                ));
            }
            Err(error) => break Err(error.to_string()),
        }
    };
    if ended.is_err() {
        let killed: io::Result<_> = child.kill().and_then(|()| child.wait());
        killed.map_err(|error| error.to_string())?;
    }
    let status = ended?;
    if !status.success() {
        return Err(format!("it ended with {status}"));
    }
    while !reader.is_finished() && began.elapsed() < bound {
        thread::sleep(Duration::from_millis(1));
    }
    if !reader.is_finished() {
        return Err("its output has no end".into());
    }
    let said = reader
        .join()
        .map_err(|_| "reading what it said".to_owned())?;
    said.map_err(|error| error.to_string())
}

fn find_prober() -> Option<PathBuf> {
    let here = env::current_exe().ok()?;
    if here.file_name().is_some_and(|name| name == "s3engine") {
        return Some(here);
    }
    let beside = here.parent().map(|folder| folder.join("s3engine"));
    let path = env::var_os("PATH").unwrap_or_default();
    let on_path = env::split_paths(&path).map(|folder| folder.join("s3engine"));
    beside
        .into_iter()
        .chain(on_path)
        .find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// What trying a library shows, where this script does it.
    fn tried(script: &str, bound: Duration) -> Result<Report, OpenError> {
        let folder = tempfile::tempdir().unwrap();
        let prober = folder.path().join("prober");
        fs::write(&prober, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&prober, fs::Permissions::from_mode(0o755)).unwrap();
        loop {
            let tried = in_child(Some(&prober), Vendor::Cufile, None, bound);
            // Another test that forks meanwhile may hold the script open for writing.
            let busy = |error: &OpenError| error.to_string().contains("Text file busy");
            if !tried.as_ref().is_err_and(busy) {
                return tried;
            }
        }
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn what_a_prober_says_is_taken() {
        let report = tried(
            r#"echo '{"version":"1.18","loaded_from":"/lib/x.so","absent":false,"error":null,"registration":"cuFile 5045","cuda":[["GPU-1","no"]]}'"#,
            LONG,
        )
        .unwrap();
        assert_eq!(report.version.as_deref(), Some("1.18"));
        assert_eq!(report.registration.as_deref(), Some("cuFile 5045"));
        assert_eq!(report.cuda, [("GPU-1".to_owned(), Some("no".to_owned()))]);
    }

    #[test]
    fn a_prober_that_hangs_is_killed_and_said_to() {
        let error = tried("sleep 600", Duration::from_millis(100)).unwrap_err();
        assert!(
            error.to_string().contains("within 0.1 s, and was killed"),
            "{error}"
        );
    }

    #[test]
    fn a_prober_that_fails_or_says_nonsense_is_an_error() {
        for (script, words) in [
            ("kill -SEGV $$", "signal: 11"),
            ("exit 3", "exit status: 3"),
            (
                "echo hello",
                "does not know `probe-library`: it said \"hello\"",
            ),
            ("head -c 1000000 /dev/zero", "it ended with"),
            ("", "does not know"),
        ] {
            let error = tried(script, LONG).unwrap_err();
            assert!(error.to_string().contains(words), "{script}: {error}");
            assert!(error.to_string().len() < 2000);
        }
        let none = in_child(
            Some(Path::new("/nowhere/s3engine")),
            Vendor::Cufile,
            None,
            LONG,
        );
        assert!(
            none.unwrap_err()
                .to_string()
                .contains("cannot start /nowhere/s3engine")
        );
    }

    #[test]
    fn a_library_that_is_absent_is_told_from_one_that_does_not_start() {
        let absent = r#"echo '{"version":null,"loaded_from":null,"absent":true,"error":"not here","registration":null,"cuda":[]}'"#;
        assert!(matches!(
            tried(absent, LONG),
            Err(OpenError::NotFound { .. })
        ));
        let broken = absent.replace("true", "false");
        assert!(matches!(
            tried(&broken, LONG),
            Err(OpenError::Failed { .. })
        ));
    }

    #[test]
    fn wrong_arguments_of_a_prober_are_told() {
        let answered = |arguments: &[&str]| {
            let arguments: Vec<OsString> = arguments.iter().map(Into::into).collect();
            answer(&arguments)
        };
        assert!(answered(&[]).unwrap_err().contains("wanted"));
        assert!(
            answered(&["verbs"])
                .unwrap_err()
                .contains("s3rdma and cufile")
        );
    }

    #[test]
    fn a_library_that_was_asked_for_by_its_path_is_not_absent() {
        let absent = examine(Vendor::S3rdma, Some(Path::new("/nowhere/lib.so")));
        assert!(
            absent
                .error
                .unwrap()
                .contains("cannot load /nowhere/lib.so")
        );
        assert!(!absent.absent);
    }
}
