//! Other processes of this program, and what they say of themselves.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Another process of this program. It is killed when this is dropped.
pub(super) struct Process {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Process {
    pub(super) fn new(role: &str, args: &[&str]) -> Self {
        let program = std::env::current_exe().expect("this program");
        let mut child = Command::new(program)
            .env("S3ENGINE_BENCH_ROLE", role)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("another process");
        let to = child.stdin.take().expect("piped");
        let from = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, to, from }
    }

    /// The next line that it says.
    pub(super) fn line(&mut self) -> String {
        let mut line = String::new();
        self.from.read_line(&mut line).expect("it says something");
        line.trim().to_owned()
    }

    /// The numbers of the next line.
    pub(super) fn numbers(&mut self) -> Vec<f64> {
        let line = self.line();
        let numbers: Result<Vec<f64>, _> = line.split(' ').map(str::parse).collect();
        numbers.unwrap_or_else(|_| panic!("numbers: {line:?}"))
    }

    pub(super) fn say(&mut self, text: &str) {
        writeln!(self.to, "{text}").expect("it listens");
        self.to.flush().expect("it listens");
    }

    /// The seconds of processor time that it has used so far.
    pub(super) fn cpu(&mut self) -> f64 {
        self.say("cpu");
        self.numbers()[0]
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
