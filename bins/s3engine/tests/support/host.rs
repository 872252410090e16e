//! A host service as a child process.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use rustix::process::{Pid, Signal, kill_process};

use super::{PATIENCE, World, bare, eventually};

/// A running service. Dropping it kills it.
pub struct Host {
    child: Child,
    told: Arc<Mutex<String>>,
    /// Reads what it tells, until its end.
    reader: Option<JoinHandle<()>>,
    pub socket: PathBuf,
}

impl World {
    /// Where a service of this world listens unless it is told otherwise.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("s3engine/s3engine.sock")
    }

    /// The service, with the simulator's endpoint and keys in its environment.
    pub fn serve(&self, args: &[&str]) -> Command {
        let mut command = self.command(&["serve"]);
        command
            .args(args)
            .env("XDG_RUNTIME_DIR", self.folder.path());
        command
    }

    /// Starts it, and waits until it serves.
    pub fn host(&self, args: &[&str]) -> Host {
        Host::start(self.serve(args), self.socket())
    }

    /// A command that knows no endpoint and no keys.
    pub fn client(&self, args: &[&str]) -> Command {
        let mut command = bare(args);
        command
            .env("XDG_RUNTIME_DIR", self.folder.path())
            .current_dir(self.out());
        command
    }
}

impl Host {
    pub fn start(mut command: Command, socket: PathBuf) -> Host {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let told: Arc<Mutex<String>> = Arc::default();
        let heard = Arc::clone(&told);
        let reader = thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                let mut heard = heard.lock().unwrap();
                heard.push_str(&line);
                heard.push('\n');
            }
        });
        let host = Host {
            child,
            told,
            reader: Some(reader),
            socket,
        };
        // The last line of its screen, or its one line of log.
        eventually("the service's screen", || {
            let told = host.told();
            told.contains("\n  metrics ") || told.contains("serving")
        });
        host
    }

    /// What it has told so far.
    pub fn told(&self) -> String {
        self.told.lock().unwrap().clone()
    }

    /// Waits until it tells that.
    pub fn says(&self, text: &str) {
        eventually(text, || self.told().contains(text));
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id() as i32).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Waits for its end, and for all that it has told.
    pub fn ended(&mut self) -> ExitStatus {
        let mut status = None;
        eventually("the service's end", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
        status.unwrap()
    }

    /// Where it serves metrics, as it has told.
    pub fn metrics_address(&self) -> String {
        let told = self.told();
        let (_, address) = told.split_once("metrics   http://").unwrap();
        address.split_once('/').unwrap().0.to_owned()
    }

    /// The status and body that it answers a GET with.
    pub fn http(&self, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.metrics_address()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, body.to_owned())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
