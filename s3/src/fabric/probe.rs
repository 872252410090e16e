//! Trying a vendor's library in a process of its own: it may hang, loop or crash there, and nothing else does.
//!
//! ```text
//! here ── spawn ──> prober probe-library cufile host [FILE]
//!      <── one line of JSON ──┘   or nothing within the bound: killed
//! ```

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group, set_parent_process_death_signal};
use rustix::stdio::dup2_stdout;
use s3engine_pool::{Memory, Pool, PoolOptions, RegistrationHandle, UnregisteredWhy};
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
/// The longest that a token is waited for.
const TOKEN: Duration = Duration::from_secs(1);
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

/// What a library is tried with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Its start, and host memory.
    Host,
    /// The memory of each GPU too.
    All,
}

impl Depth {
    fn name(self) -> &'static str {
        match self {
            Depth::Host => "host",
            Depth::All => "all",
        }
    }
}

/// What trying a library has shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
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
    /// Why no token could be made of it.
    pub token: Option<String>,
    /// Why memory of each CUDA device could not be registered, by its name.
    pub cuda: Vec<(String, Option<String>)>,
}

/// Tries a library, in this process, and tells on standard output: what a prober does.
pub fn answer(arguments: &[OsString]) -> Result<(), String> {
    let (vendor, depth, library) = match arguments {
        [vendor, depth] => (vendor, depth, None),
        [vendor, depth, library] => (vendor, depth, Some(Path::new(library))),
        _ => {
            return Err(
                "wanted: the library's fabric, `host` or `all`, and its file if not found by name"
                    .into(),
            );
        }
    };
    let vendor = vendor.to_str().and_then(Vendor::of);
    let vendor = vendor.ok_or("the fabrics with a library are s3rdma and cufile")?;
    let depth = [Depth::Host, Depth::All]
        .into_iter()
        .find(|known| depth == known.name())
        .ok_or("it is tried with host memory (host), or with that of GPUs too (all)")?;
    let mut asker = Asker::meet()?;
    asker.tell(&examine(vendor, depth, library))
}

/// Whoever has started this process to try something in it.
pub struct Asker(File);

impl Asker {
    /// From now on this process ends with it, and what libraries write to standard output is lost.
    pub fn meet() -> Result<Self, String> {
        let met = || -> io::Result<File> {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            // Nobody may have been there to kill it any more.
            thread::Builder::new().spawn(|| {
                thread::sleep(LONGEST);
                process::abort();
            })?;
            let said_to = io::stdout().as_fd().try_clone_to_owned()?;
            dup2_stdout(File::options().write(true).open("/dev/null")?)?;
            Ok(said_to.into())
        };
        met().map(Self).map_err(|error| error.to_string())
    }

    /// Tells it something, in one line.
    pub fn tell(&mut self, what: &impl Serialize) -> Result<(), String> {
        let line = serde_json::to_string(what).map_err(|error| error.to_string())?;
        writeln!(self.0, "{line}").map_err(|error| error.to_string())
    }
}

fn examine(vendor: Vendor, depth: Depth, library: Option<&Path>) -> Report {
    let mut report = Report::default();
    let fabric: Result<Arc<dyn Fabric>, OpenError> = match vendor {
        Vendor::S3rdma => {
            let version = super::s3rdma::version(library);
            report.version = version.ok();
            let opened = S3rdma::open_untried(&S3rdmaOptions {
                file: library.map(Path::to_owned),
                call_timeout: LONGEST,
                ..S3rdmaOptions::default()
            });
            opened.map(|fabric| Arc::new(fabric) as Arc<dyn Fabric>)
        }
        Vendor::Cufile => cufile::untried(library, LONGEST).map(|fabric| {
            report.version = Some(fabric.version());
            report.loaded_from = fabric.loaded_from();
            fabric as Arc<dyn Fabric>
        }),
    };
    match fabric {
        Ok(fabric) => {
            match try_memory(&fabric, Memory::Host) {
                Err(Refused::Registration(why)) => report.registration = Some(why),
                Err(Refused::Token(why)) => report.token = Some(why),
                Ok(()) => {}
            }
            let gpus = match depth {
                Depth::Host => &[],
                Depth::All => s3engine_pool::cuda::Gpu::all().unwrap_or_default(),
            };
            report.cuda = gpus
                .iter()
                .map(|gpu| {
                    let refused = match try_memory(&fabric, Memory::Cuda(gpu.uuid())) {
                        Err(Refused::Registration(why)) => Some(why),
                        // The same as of host memory.
                        Ok(()) | Err(Refused::Token(_)) => None,
                    };
                    (format!("{} {}", gpu.uuid(), gpu.name()), refused)
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

/// Why one of two steps failed.
enum Refused {
    Registration(String),
    Token(String),
}

/// Registers a little memory with a fabric, makes a token of it, and gives it back.
fn try_memory(fabric: &Arc<dyn Fabric>, memory: Memory) -> Result<(), Refused> {
    fn registration(error: impl fmt::Display) -> Refused {
        Refused::Registration(error.to_string())
    }
    let options = PoolOptions {
        slab_bytes: LEN,
        max_bytes: Some(2 * LEN),
        max_cuda_bytes: Some(32 << 20),
        ..PoolOptions::default()
    };
    let pool = Pool::with_fabrics(options, vec![Arc::clone(fabric) as _]);
    let pool = pool.map_err(registration)?;
    let buffer = pool.try_alloc(LEN, memory).map_err(registration)?;
    let no_fabric = || registration("the pool has no fabric");
    let id = pool.fabric(0).ok_or_else(no_fabric)?;
    let mut landing = buffer.into_landing();
    let mut window = landing.window(0, LEN).map_err(registration)?;
    let made = match window.arm(id) {
        Ok(handle) => make_token(fabric, handle, window.address()).map_err(Refused::Token),
        Err(UnregisteredWhy::Failed(error)) => Err(registration(error)),
        Err(why) => Err(registration(why)),
    };
    // Nobody has seen the token.
    window.disarm();
    made
}

/// One that is not made in time is refused: whoever loads the library has a bound for that.
fn make_token(
    fabric: &Arc<dyn Fabric>,
    handle: RegistrationHandle,
    address: u64,
) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let token = async { tokio::time::timeout(TOKEN, fabric.token(handle, address, LEN)).await };
    match runtime.block_on(token) {
        Ok(named) => named.map(drop).map_err(|error| error.to_string()),
        Err(_) => Err(format!("it has not come within {} s", TOKEN.as_secs())),
    }
}

/// Tries a library in a process of its own, within a bound. An error is how that has ended; a library that only
/// does not start says so in the report.
pub(super) fn tried(
    prober: &Path,
    (vendor, depth): (Vendor, Depth),
    library: Option<&Path>,
    bound: Duration,
) -> Result<Report, OpenError> {
    let failed = |text: String| OpenError::Failed { text };
    let shown_prober = prober.display();
    let mut command = Command::new(prober);
    command.arg(COMMAND).arg(vendor.name()).arg(depth.name());
    command.args(library);
    // It writes a log into the current folder else.
    command.env("CUFILE_LOGFILE_PATH", "/dev/null");
    let said = said_by(command, bound).map_err(|why| {
        failed(format!(
            "trying the library of {vendor} in a process of its own: {why}"
        ))
    })?;
    serde_json::from_slice(&said).map_err(|_| {
        let said = shown(&said);
        failed(match said.is_empty() {
            true => format!("the library of {vendor} has ended the process that tried it"),
            false => format!("{shown_prober} does not know `{COMMAND}`: it said {said:?}"),
        })
    })
}

/// Tries a library in a process of its own, within a bound, by a program that does so: that which is named, or which is
/// found.
pub fn in_child(
    prober: Option<&Path>,
    what: (Vendor, Depth),
    library: Option<&Path>,
    bound: Duration,
) -> Result<Report, OpenError> {
    let vendor = what.0;
    let prober = prober.map(Path::to_owned).or_else(find_prober);
    let prober = prober.ok_or_else(|| OpenError::Failed {
        text: format!(
            "the library of {vendor} is not loaded untried, and no program `s3engine` that tries it was found beside this one or on PATH"
        ),
    })?;
    let report = tried(&prober, what, library, bound)?;
    match (&report.error, report.absent) {
        (Some(text), true) => Err(OpenError::NotFound { text: text.clone() }),
        (Some(text), false) => Err(OpenError::Failed { text: text.clone() }),
        (None, _) => Ok(report),
    }
}

/// What a command says until its end, which comes within the bound, or by a signal to it and to all that it has started.
pub fn said_by(mut command: Command, bound: Duration) -> Result<Vec<u8>, String> {
    let program = command.get_program().display().to_string();
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        // Signals of a terminal are for whoever asks.
        .process_group(0);
    let child = command.spawn();
    let mut child = child.map_err(|error| format!("cannot start {program}: {error}"))?;
    let group = Pid::from_child(&child);
    let said = output(&mut child, bound);
    // What it has started may live on, and a library that hangs does.
    let _ = kill_process_group(group, Signal::KILL);
    let waited = child.wait().map_err(|error| error.to_string());
    let said = said?;
    match waited? {
        status if status.success() => Ok(said),
        status => Err(format!("it ended with {status}")),
    }
}

/// What a child says until its end, if that comes within the bound.
fn output(child: &mut Child, bound: Duration) -> Result<Vec<u8>, String> {
    let began = Instant::now();
    let stdout = child.stdout.take();
    // Ends with the child, or with the last one that holds its output: then nobody waits for it.
    let reader = thread::spawn(move || {
        let mut said = Vec::new();
        let read = stdout.map(|stdout| stdout.take(MOST).read_to_end(&mut said));
        read.transpose().map(|_| said)
    });
    let in_time = |step: u64| {
        thread::sleep(Duration::from_millis(step));
        began.elapsed() < bound
    };
    while child
        .try_wait()
        .map_err(|error| error.to_string())?
        .is_none()
    {
        if !in_time(2) {
            let bound = bound.as_secs_f64();
            return Err(format!("it has not ended within {bound} s, and was killed"));
        }
    }
    while !reader.is_finished() {
        if !in_time(1) {
            return Err("its output has no end".into());
        }
    }
    let said = reader
        .join()
        .map_err(|_| "reading what it said".to_owned())?;
    said.map_err(|error| error.to_string())
}

/// This program if it tries libraries, else one beside it or on the path.
pub(super) fn find_prober() -> Option<PathBuf> {
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
            let tried = in_child(Some(&prober), (Vendor::Cufile, Depth::Host), None, bound);
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
    fn what_a_prober_has_started_ends_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let left = folder.path().join("left");
        let script = format!("sleep 600 & echo $! > {}; wait", left.display());
        tried(&script, Duration::from_millis(300)).unwrap_err();
        let left = fs::read_to_string(left).unwrap();
        let stat = format!("/proc/{}/stat", left.trim());
        let lives = || fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z "));
        let began = Instant::now();
        while lives() {
            assert!(began.elapsed() < LONG);
            thread::sleep(Duration::from_millis(2));
        }
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
            ("", "has ended the process that tried it"),
        ] {
            let error = tried(script, LONG).unwrap_err();
            assert!(error.to_string().contains(words), "{script}: {error}");
            assert!(error.to_string().len() < 2000);
        }
        let none = in_child(
            Some(Path::new("/nowhere/s3engine")),
            (Vendor::Cufile, Depth::Host),
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
            answered(&["verbs", "host"])
                .unwrap_err()
                .contains("s3rdma and cufile")
        );
        assert!(
            answered(&["cufile", "some"])
                .unwrap_err()
                .contains("host memory (host)")
        );
    }

    #[test]
    fn a_library_that_was_asked_for_by_its_path_is_not_absent() {
        let absent = examine(
            Vendor::S3rdma,
            Depth::Host,
            Some(Path::new("/nowhere/lib.so")),
        );
        assert!(
            absent
                .error
                .unwrap()
                .contains("cannot load /nowhere/lib.so")
        );
        assert!(!absent.absent);
    }
}
