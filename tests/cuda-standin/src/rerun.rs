//! Runs a test once more, in a process of its own that loads the stand-in for the driver.
//!
//! With `S3ENGINE_GPU_TESTS=1` that process takes the driver itself, on a host with a GPU. A test that asks for a driver
//! of another kind than the usual one, or for more GPUs than there are, says that it is skipped.

use std::any::type_name;
use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::real;

/// Names the test in the process that runs it.
const TEST: &str = "S3ENGINE_STANDIN_TEST";
/// Names the library, where it is not beside the test.
const LIBRARY: &str = "S3ENGINE_STANDIN_LIBRARY";
/// What it is where all tests run.
const ALL: &str = "all of them";
/// Tells one process of a test from another.
const ROLE: &str = "S3ENGINE_STANDIN_ROLE";
/// Where that process shows that it came to its end.
const RAN: &str = "S3ENGINE_STANDIN_RAN";
/// How many GPUs there are: the one setting that hosts with a GPU may have too.
const GPUS: &str = "S3ENGINE_STANDIN_GPUS";

/// The longest that a test may take. Nothing comes near it unless it hangs.
const PATIENCE: Duration = Duration::from_secs(120);

/// What the driver and its GPUs are like, for one test.
#[derive(Default)]
pub struct Standin {
    settings: BTreeMap<&'static str, String>,
}

/// Runs a test with a driver that is as it usually is: two GPUs with 1 GiB each.
pub fn with_standin<F: FnOnce()>(work: F) {
    Standin::default().run(work);
}

impl Standin {
    /// So many GPUs; on a host that has some, at least so many.
    pub fn gpus(self, count: usize) -> Self {
        self.set(GPUS, count)
    }

    /// Each with so many bytes of memory.
    pub fn memory(self, bytes: u64) -> Self {
        self.set("S3ENGINE_STANDIN_MEMORY", bytes)
    }

    /// The driver's own version: 12020 is 12.2.
    pub fn version(self, version: u32) -> Self {
        self.set("S3ENGINE_STANDIN_VERSION", version)
    }

    /// How late each asynchronous copy begins.
    pub fn delay(self, delay: Duration) -> Self {
        self.set("S3ENGINE_STANDIN_DELAY_US", delay.as_micros())
    }

    /// Calls that fail: `cuMemCreate=2@3` from the third on, `cuEventQuery=700@2-4` the second to the fourth.
    pub fn faults(self, faults: &str) -> Self {
        self.set("S3ENGINE_STANDIN_FAULTS", faults)
    }

    /// The GPUs that the test sees: `CUDA_VISIBLE_DEVICES`.
    pub fn visible(self, list: &str) -> Self {
        self.set("CUDA_VISIBLE_DEVICES", list)
    }

    fn set(mut self, name: &'static str, value: impl ToString) -> Self {
        self.settings.insert(name, value.to_string());
        self
    }

    /// Runs `work`: the closure that a `#[test]` function consists of, and written in it. That function is started
    /// again in a new process, and there the closure runs; here nothing does but waiting.
    pub fn run<F: FnOnce()>(self, work: F) {
        let test = test_of(type_name::<F>());
        if env::var(TEST).is_ok_and(|running| running == test) {
            work();
            let ran = env::var_os(RAN).expect("whoever started this says where");
            return fs::write(ran, "").expect("the folder of the test is there");
        }
        if let Some(why) = self.impossible() {
            return println!("skipped: {why}");
        }
        let folder = tempfile::tempdir().expect("a temporary folder");
        let ran = folder.path().join("ran");
        let mut command = same_test(test);
        command.env(TEST, test).env(RAN, &ran);
        let said = self.finish(command, folder.path());
        assert!(ran.exists(), "{test} did not run:\n{said}");
        let skipped = said.lines().filter(|line| line.starts_with("skipped: "));
        skipped.for_each(|line| println!("{line}"));
    }

    /// Runs all tests of this program once more, each of which takes what driver it finds; called in one of them.
    /// Returns what they said; in that process itself, and with the driver itself, nothing is left to do.
    pub fn run_all(self) -> Option<String> {
        if real::is_wanted() || env::var(TEST).is_ok_and(|running| running == ALL) {
            return None;
        }
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut command = this_program();
        command.arg("--nocapture").env(TEST, ALL);
        Some(self.finish(command, folder.path()))
    }

    /// Why the driver itself cannot stand where the stand-in does.
    fn impossible(&self) -> Option<String> {
        if !real::is_wanted() {
            return None;
        }
        if self.settings.keys().any(|name| *name != GPUS) {
            return Some("only with the stand-in".to_owned());
        }
        let wanted = self.settings.get(GPUS).map_or(Ok(1), |count| count.parse());
        let wanted: usize = wanted.expect("a number");
        match real::devices() {
            0 => Some("no CUDA device".to_owned()),
            devices if devices < wanted => Some(format!(
                "{wanted} CUDA devices are needed, and this host has {devices}"
            )),
            _ => None,
        }
    }

    /// Runs a command with its driver to its good end. Returns what it said.
    fn finish(&self, mut command: Command, folder: &Path) -> String {
        let out = folder.join("out");
        let file = File::create(&out).expect("a file for what it says");
        command.stderr(file.try_clone().expect("two of it"));
        command.stdout(file).process_group(0);
        if !real::is_wanted() {
            command.env("LD_LIBRARY_PATH", libraries(folder));
            command.env("S3ENGINE_STANDIN_STATE", folder.join("state"));
            command.env("S3ENGINE_STANDIN_TELL", "1");
            command.env_remove("CUDA_VISIBLE_DEVICES");
            command.envs(&self.settings);
        }
        let ended = wait(command.spawn().expect("this program starts"));
        let said = fs::read(&out).unwrap_or_default();
        let said = String::from_utf8_lossy(&said).into_owned();
        let Some(status) = ended else {
            panic!("in a process of its own: killed after {PATIENCE:?}; it said:\n{said}");
        };
        assert!(
            status.success(),
            "in a process of its own: {status}; it said:\n{said}"
        );
        said
    }
}

/// The calls that were refused, by what a process said: also those whose answers nobody looked at.
pub fn refused(said: &str) -> Vec<&str> {
    let refused = said.lines().filter_map(|line| {
        let (before, _) = line.split_once(" was refused with ")?;
        Some(before.split_once("CUDA driver: ")?.1)
    });
    let names: BTreeSet<_> = refused.collect();
    names.into_iter().collect()
}

/// Whether the driver is the stand-in, which has as much memory as it says and takes none for itself: then it can be
/// counted.
pub fn is_standin() -> bool {
    !real::is_wanted()
}

/// The same test in one more process, of this name: for tests of several processes.
pub fn again(role: &str) -> Command {
    let test = env::var(TEST).expect("called in a test that runs in a process of its own");
    let mut command = same_test(&test);
    command.env(ROLE, role);
    command
}

/// The name that `again` gave this process.
pub fn role() -> Option<String> {
    env::var(ROLE).ok()
}

/// The name of a test, as the harness knows it, from that of a closure in it.
fn test_of(closure: &'static str) -> &'static str {
    let path = closure.split_once("::").map(|(_, path)| path);
    let test = path.and_then(|path| path.strip_suffix("::{{closure}}"));
    test.expect("a closure that is written in the test's own function")
}

fn this_program() -> Command {
    Command::new(env::current_exe().expect("this program is a file"))
}

fn same_test(test: &str) -> Command {
    let mut command = this_program();
    command.args([
        test,
        "--exact",
        "--nocapture",
        "--include-ignored",
        "--test-threads=1",
    ]);
    command
}

/// What to search for libraries: first a folder where the stand-in has the driver's names, then as before.
fn libraries(folder: &Path) -> String {
    let driver = folder.join("driver");
    fs::create_dir(&driver).expect("a folder of its own");
    for name in ["libcuda.so", "libcuda.so.1"] {
        symlink(built(), driver.join(name)).expect("a link in a folder of its own");
    }
    let before = env::var("LD_LIBRARY_PATH").unwrap_or_default();
    format!("{}:{before}", driver.display())
}

/// The library, which cargo puts beside the tests that depend on this crate. A sanitizer's is no library that another
/// program can load: then the environment names one that was built without.
fn built() -> PathBuf {
    if let Some(named) = env::var_os(LIBRARY) {
        return PathBuf::from(named);
    }
    let program = env::current_exe().expect("this program is a file");
    let beside = program.parent().expect("a file is in a folder");
    let places = [beside.to_owned(), beside.join("deps")];
    let mut files = places.iter().map(|place| place.join("libcuda_standin.so"));
    let found = files.find(|file| file.exists());
    found.unwrap_or_else(|| panic!("no libcuda_standin.so in {places:?}"))
}

/// Waits for the end, and ends it and what it started when that does not come.
fn wait(mut child: Child) -> Option<ExitStatus> {
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        if let Some(status) = child.try_wait().expect("a child of this process") {
            return Some(status);
        }
        thread::sleep(Duration::from_millis(5));
    }
    let group = Pid::from_raw(child.id() as i32).expect("a number");
    let _ = kill_process_group(group, Signal::KILL);
    let _ = child.wait();
    None
}
