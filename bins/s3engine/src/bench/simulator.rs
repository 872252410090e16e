//! The simulator that `bench` starts where no endpoint is given: this program again, as a child process, so that
//! the server's processor time is not the client's and the loopback fabric crosses processes.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use s3engine::{Credentials, CredentialsError};

use crate::exit::Failure;
use crate::interrupt::Interrupt;

/// How long it may take to start.
const START: Duration = Duration::from_secs(20);

/// A running simulator. Dropping it ends it.
pub(crate) struct Simulator {
    child: Mutex<Child>,
    url: String,
}

/// How it is started.
#[derive(Clone, Copy)]
pub(crate) struct Options<'a> {
    pub(crate) threads: usize,
    /// Where its synthetic objects are.
    pub(crate) bucket: &'a str,
    pub(crate) loopback_dir: Option<&'a Path>,
    pub(crate) model: Option<&'a str>,
    pub(crate) faults: Option<&'a Path>,
}

impl Simulator {
    /// Starts one.
    pub(crate) fn start(options: &Options<'_>, interrupt: &Interrupt) -> Result<Self, Failure> {
        let cannot = |error| Failure::Other(format!("cannot start the simulator: {error}"));
        let program = std::env::current_exe().map_err(cannot)?;
        let mut command = Command::new(program);
        command.args([
            "sim",
            "--exit-with-stdin",
            "--anonymous",
            "--listen",
            "127.0.0.1:0",
        ]);
        command.args(["--threads", &options.threads.to_string()]);
        command.args(["--bucket", options.bucket]);
        if let Some(folder) = options.loopback_dir {
            command.arg("--loopback-dir").arg(folder);
        }
        if let Some(model) = options.model {
            command.args(["--model", model]);
        }
        if let Some(faults) = options.faults {
            command.arg("--faults").arg(faults);
        }
        // Ctrl-C is for the bench, which ends it.
        command.process_group(0);
        // What it refuses, the client reports too.
        command.env("RUST_LOG", "error");
        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(cannot)?;
        // From here on dropping it ends the child, and so does an end without drops. Where there are no pidfds, the
        // end of its stdin does that.
        let pid = Pid::from_child(&child);
        if let Ok(child) = pidfd_open(pid, PidfdFlags::empty()) {
            interrupt.kills(child);
        }
        let mut simulator = Self {
            child: Mutex::new(child),
            url: String::new(),
        };
        simulator.url = simulator.listening()?;
        Ok(simulator)
    }

    /// Waits for the line that says where it listens.
    fn listening(&mut self) -> Result<String, Failure> {
        let not_started = |why: &str| Failure::Other(format!("the simulator did not start: {why}"));
        let child = self.child.get_mut().unwrap_or_else(PoisonError::into_inner);
        let stdout = child
            .stdout
            .take()
            .ok_or_else(|| not_started("it has no stdout"))?;
        let (sender, receiver) = mpsc::channel();
        // Ends with the child, whose end of the pipe then closes.
        thread::spawn(move || {
            let mut line = String::new();
            let read = BufReader::new(stdout).read_line(&mut line);
            let _ = sender.send(read.map(|_| line));
        });
        match receiver.recv_timeout(START) {
            Ok(Ok(line)) => match line.trim_end().strip_prefix("listening on ") {
                Some(url) => Ok(url.to_owned()),
                None => Err(not_started("see its error above")),
            },
            Ok(Err(error)) => Err(not_started(&error.to_string())),
            Err(_) => Err(not_started(&format!("no sign of it within {START:?}"))),
        }
    }

    /// How it ended, if it has.
    pub(crate) fn end(&self) -> Option<String> {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        match child.try_wait() {
            Ok(status) => status.map(|status| status.to_string()),
            Err(error) => Some(error.to_string()),
        }
    }

    /// Its process number.
    pub(crate) fn process(&self) -> u32 {
        let child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        child.id()
    }

    /// Its URL.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Whom it takes signatures from.
    pub(crate) fn credentials() -> Result<Credentials, CredentialsError> {
        let known = s3sim::SimOptions::default();
        Credentials::new(known.access_key, known.secret_key, None)
    }
}

impl Drop for Simulator {
    fn drop(&mut self) {
        // The end of its stdin would end it too; it has nothing to save.
        let child = self.child.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _ = child.kill();
        let _ = child.wait();
    }
}
