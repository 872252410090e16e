//! A program of a test, in a process of its own.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::wait_until;

/// A program that is built with the tests: where that was, else beside this one or one folder up, as where both were
/// carried to another host.
pub fn helper(built: &str) -> Command {
    let built = Path::new(built);
    let this = std::env::current_exe().expect("this program is a file");
    let name = built.file_name().expect("a program is a file");
    let carried = this.ancestors().skip(1).take(2).map(|at| at.join(name));
    let mut places = [built.to_owned()].into_iter().chain(carried);
    let found = places.find(|path| path.is_file());
    Command::new(found.unwrap_or_else(|| panic!("{name:?} is nowhere near {this:?}")))
}

/// A process that says what it does, line by line. Killed when dropped.
pub struct Program {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Program {
    /// Starts it.
    pub fn run(command: &mut Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let out = BufReader::new(child.stdout.take().expect("it is piped"));
        Self { child, out }
    }

    /// The next line that it says; empty when it has ended.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).expect("its words are text");
        line.trim_end().to_owned()
    }

    /// Tells it one line.
    pub fn tell(&mut self, line: &str) {
        let input = self.child.stdin.as_mut().expect("it is piped");
        writeln!(input, "{line}").expect("it listens");
    }

    /// Its number.
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.pid()).expect("a number");
        kill_process(pid, signal).expect("it is a child of this process");
    }

    /// Kills it, unless it is dead, and waits until it is.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits for its end. Returns whether that was a good one.
    pub fn ended(mut self) -> bool {
        let mut status = None;
        wait_until("it has ended", || {
            status = self.child.try_wait().expect("a child of this process");
            status.is_some()
        });
        status.is_some_and(|status| status.success())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
    }
}
