//! Rounds: each client once, one after the other, as many times as are wanted.

use std::env;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};

use crate::report::Report;
use crate::server::{self, Server};
use crate::window::Measured;
use crate::work::{Result, Shape};
use crate::{python, wrk};

/// How long a client may take beside its time: to start, to warm up, to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// Shapes by name.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Preset {
    /// 1 GiB in ranges of 8 MiB, 8 in flight
    Large,
    /// Whole objects of 64 KiB, 16 in flight
    Small,
    /// Whole objects of 4 KiB, 64 in flight
    Tiny,
}

impl Preset {
    /// Bytes of the object and of a range, and how many at once.
    fn shape(self) -> (usize, usize, usize) {
        match self {
            Preset::Large => (1 << 30, 8 << 20, 8),
            Preset::Small => (64 << 10, 0, 16),
            Preset::Tiny => (4 << 10, 0, 64),
        }
    }
}

/// A comparison.
#[derive(Args, Debug)]
pub struct Compare {
    /// What is read
    #[arg(value_enum, default_value = "large")]
    preset: Preset,
    /// Bytes of the object, instead
    #[arg(long)]
    size: Option<usize>,
    /// Bytes of a range, instead; 0: whole objects
    #[arg(long)]
    part: Option<usize>,
    /// Requests at once, instead
    #[arg(long)]
    in_flight: Option<usize>,
    /// Threads of each client, where it has such a setting; by default one a processor
    #[arg(long)]
    threads: Option<usize>,
    /// Seconds that are measured, after a quarter of them
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// The clients, by comma; by default all that work so
    #[arg(long, value_delimiter = ',')]
    clients: Vec<String>,
    /// Rounds; each has every client once
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Speak TLS
    #[arg(long)]
    tls: bool,
    /// The Python whose packages are measured too, such as that of a virtual environment
    #[arg(long, value_name = "PYTHON")]
    python: Option<PathBuf>,
    /// Write all rounds into this file as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl Compare {
    pub fn run(self) -> Result<()> {
        let shape = self.shape()?;
        let clients = self.clients(&shape)?;
        let folder = env::temp_dir().join(format!("peers-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let server = Server::start(self.tls.then_some(folder.as_path()))?;
        let mut report = Report::new(&shape, self.tls, &clients);
        for round in 1..=self.rounds {
            for client in &clients {
                eprint!("\r\x1b[Kround {round} of {}: {client}", self.rounds);
                report.add(client, self.measure(client, &shape, &server)?);
            }
        }
        eprint!("\r\x1b[K");
        drop(server);
        std::fs::remove_dir_all(&folder)?;
        print!("{}", report.text());
        if let Some(file) = &self.json {
            std::fs::write(file, report.json())?;
        }
        Ok(())
    }

    fn shape(&self) -> Result<Shape> {
        let (size, part, in_flight) = self.preset.shape();
        let threads = std::thread::available_parallelism().map_or(2, usize::from);
        let shape = Shape {
            size: self.size.unwrap_or(size),
            part: self.part.unwrap_or(part),
            in_flight: self.in_flight.unwrap_or(in_flight),
            threads: self.threads.unwrap_or(threads),
            seconds: self.seconds,
        };
        let sizes = 1..=server::LONGEST as usize;
        let whole = shape.part == 0 || shape.size.is_multiple_of(shape.part);
        match sizes.contains(&shape.size) && whole && shape.in_flight > 0 && shape.threads > 0 {
            true => Ok(shape),
            false => Err("wanted: an object of 1 byte to 1 GiB, in ranges that fill it, and at least one request and thread".into()),
        }
    }

    fn clients(&self, shape: &Shape) -> Result<Vec<String>> {
        if !self.clients.is_empty() {
            return Ok(self.clients.clone());
        }
        let mut clients = match self.tls {
            true => vec!["s3engine", "object_store"],
            false => vec![
                "floor",
                "s3engine",
                "s3engine_epoll",
                "hyper",
                "object_store",
                "object_store_range",
                "aws_sdk",
            ],
        };
        if !self.tls && shape.part > 0 {
            clients.push("transfer_manager");
        }
        if !self.tls && shape.part == 0 && wrk::is_installed() {
            clients.push(wrk::NAME);
        }
        let mut clients: Vec<_> = clients.into_iter().map(str::to_owned).collect();
        if let (Some(python), false) = (&self.python, self.tls) {
            clients.extend(python::installed(python)?);
        }
        Ok(clients)
    }

    fn measure(&self, client: &str, shape: &Shape, server: &Server) -> Result<Measured> {
        if client == wrk::NAME {
            return wrk::run(shape, server);
        }
        let mut command = match (python::package_of(client), &self.python) {
            (None, _) => {
                let mut command = Command::new(env::current_exe()?);
                command.arg("worker");
                command
            }
            (Some(_), Some(python)) => python::command(python)?,
            (Some(_), None) => {
                return Err(format!("{client}: --python names a Python that has it").into());
            }
        };
        command.args(["--client", client, "--server", &server.address.to_string()]);
        if let Some(ca) = &server.ca {
            command.arg("--ca").arg(ca);
        }
        let mut child = command
            .args(shape.arguments())
            .stdout(Stdio::piped())
            .spawn()?;
        let until = Instant::now() + shape.window() + PATIENCE;
        while child.try_wait()?.is_none() {
            if Instant::now() > until {
                child.kill()?;
                child.wait()?;
                let bound = PATIENCE.as_secs();
                return Err(format!("{client} has not ended {bound} s after its time").into());
            }
            thread::sleep(Duration::from_millis(5));
        }
        // It says one line, for which the pipe has room.
        let output = child.wait_with_output()?;
        if !output.status.success() {
            return Err(format!("{client} ended with {}", output.status).into());
        }
        let said = String::from_utf8_lossy(&output.stdout);
        let line = said.lines().last().unwrap_or_default();
        serde_json::from_str(line).map_err(|_| format!("{client} said {line:?}").into())
    }
}
