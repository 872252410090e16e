//! The real binary, run against a simulator in this process.
#![allow(dead_code, missing_docs)]

pub mod host;
pub mod processes;
pub mod seccomp;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use s3sim::{Sim, SimOptions, content};
use tempfile::TempDir;

/// The longest wait for anything.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A simulator, and a folder of its own for the loopback fabric and for output.
pub struct World {
    pub sim: Sim,
    pub folder: TempDir,
}

/// What a run of the binary gave.
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl World {
    pub fn new() -> World {
        World::with(SimOptions::default())
    }

    pub fn with(options: SimOptions) -> World {
        let folder = tempfile::tempdir().unwrap();
        let options = SimOptions {
            threads: 2,
            loopback_folder: Some(loopback_folder(folder.path())),
            ..options
        };
        let sim = Sim::start(options).unwrap();
        fs::create_dir(folder.path().join("out")).unwrap();
        World { sim, folder }
    }

    /// Where output goes: empty at first.
    pub fn out(&self) -> PathBuf {
        self.folder.path().join("out")
    }

    pub fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.out()).unwrap();
        entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    }

    /// The binary with the simulator's endpoint and credentials, and nothing else in its environment.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = bare(args);
        command
            .env("AWS_ENDPOINT_URL", self.sim.url())
            .env("AWS_ACCESS_KEY_ID", self.sim.access_key())
            .env("AWS_SECRET_ACCESS_KEY", self.sim.secret_key())
            .env("S3ENGINE_LOOPBACK_DIR", loopback_folder(self.folder.path()))
            .current_dir(self.out());
        command
    }

    pub fn run(&self, args: &[&str]) -> Ran {
        run(&mut self.command(args))
    }
}

fn loopback_folder(folder: &Path) -> PathBuf {
    folder.join("fabric")
}

/// The binary with an environment that says no more than not to look for keys outside this host.
pub fn bare(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_s3engine"));
    command.args(args).env_clear().stdin(Stdio::null());
    command.env("AWS_EC2_METADATA_DISABLED", "true");
    command
}

pub fn run(command: &mut Command) -> Ran {
    Ran::from(command.output().unwrap())
}

impl From<Output> for Ran {
    fn from(output: Output) -> Ran {
        Ran {
            code: output.status.code(),
            stdout: output.stdout,
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Ran {
    /// Asserts success, and gives stdout.
    pub fn ok(self) -> Vec<u8> {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        self.stdout
    }

    pub fn json(self) -> serde_json::Value {
        serde_json::from_slice(&self.stdout).unwrap()
    }

    /// Asserts the exit code and one line of error that holds all these words.
    pub fn fails(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, Some(code), "{}", self.stderr);
        assert_eq!(self.stderr.lines().count(), 1, "{}", self.stderr);
        assert!(self.stderr.starts_with("error: "), "{}", self.stderr);
        for word in words {
            assert!(self.stderr.contains(word), "{word} in {}", self.stderr);
        }
    }
}

pub fn spawn(mut command: Command) -> Child {
    command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Waits until a condition holds.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < until, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The bytes of a synthetic object.
pub fn object(key: &str, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    content::fill(key, 0, offset, &mut bytes);
    bytes
}
