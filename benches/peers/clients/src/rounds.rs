//! Rounds: each client once, one after the other, as many times as are wanted.

use std::env;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use clap::{Args, ValueEnum};

use crate::report::Report;
use crate::server::Server;
use crate::window::Measured;
use crate::work::{Result, Shape};
use crate::{python, wrk};

/// What to do: a name for the shapes that are measured most.
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
    /// A shape by name, instead of its sizes
    #[arg(value_enum, conflicts_with_all = ["size", "part"])]
    preset: Option<Preset>,
    #[command(flatten)]
    shape: Shape,
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
    pub fn run(mut self) -> Result<()> {
        if let Some(preset) = self.preset {
            let in_flight = self.shape.in_flight;
            (self.shape.size, self.shape.part, self.shape.in_flight) = preset.shape();
            // What was said counts.
            if in_flight != 8 {
                self.shape.in_flight = in_flight;
            }
        }
        let clients = self.clients()?;
        let folder = env::temp_dir().join(format!("peers-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let server = Server::start(self.tls.then_some(folder.as_path()))?;
        let mut report = Report::new(&self.shape, self.tls, &clients);
        for round in 1..=self.rounds {
            for client in &clients {
                eprint!("\r\x1b[Kround {round} of {}: {client}", self.rounds);
                report.add(client, self.measure(client, &server)?);
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

    fn clients(&self) -> Result<Vec<String>> {
        if !self.clients.is_empty() {
            return Ok(self.clients.clone());
        }
        let mut clients = match self.tls {
            true => vec!["s3engine", "object_store"],
            false => vec![
                "floor",
                "s3engine",
                "hyper",
                "object_store",
                "object_store_range",
                "aws_sdk",
            ],
        };
        if !self.tls && self.shape.part > 0 {
            clients.push("transfer_manager");
        }
        if !self.tls && self.shape.part == 0 && wrk::is_installed() {
            clients.push(wrk::NAME);
        }
        let mut clients: Vec<_> = clients.into_iter().map(str::to_owned).collect();
        if let (Some(python), false) = (&self.python, self.tls) {
            clients.extend(python::installed(python)?);
        }
        Ok(clients)
    }

    fn measure(&self, client: &str, server: &Server) -> Result<Measured> {
        if client == wrk::NAME {
            return wrk::run(&self.shape, server);
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
        let output = command
            .args(self.shape.arguments())
            .stderr(Stdio::inherit())
            .output()?;
        if !output.status.success() {
            return Err(format!("{client} ended with {}", output.status).into());
        }
        let said = String::from_utf8_lossy(&output.stdout);
        let line = said.lines().last().unwrap_or_default();
        serde_json::from_str(line).map_err(|_| format!("{client} said {line:?}").into())
    }
}
