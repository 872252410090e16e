//! A host service in a process of its own, over the simulator of a rig.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::{Footprint, PATIENCE, Program, Rig, helper};

/// How many clients and how many services a run kills: `S3ENGINE_KILLS=CLIENTS,SERVICES`, else as many as show each
/// kind of kill a few times.
pub fn kills() -> (usize, usize) {
    let Ok(text) = std::env::var("S3ENGINE_KILLS") else {
        return (28, 9);
    };
    let read = |text: &str| text.trim().parse().ok();
    let both = text.split_once(',');
    let both = both.and_then(|(clients, services)| Some((read(clients)?, read(services)?)));
    both.unwrap_or_else(|| panic!("S3ENGINE_KILLS={text}: CLIENTS,SERVICES wanted"))
}

const SOCKET: &str = "s.sock";

/// Starts a service over a rig's simulator, by the program `owner`, which is built with the tests.
pub fn own(mut owner: Command, rig: &Rig, socket: &Path) -> Program {
    let sim = &rig.sim;
    owner.arg(socket).arg(sim.url());
    owner.args([sim.access_key(), sim.secret_key()]);
    let mut program = Program::run(owner.arg(rig.fabric_folder()));
    assert_eq!(program.line(), "serves");
    program
}

/// A service that can be killed, and the next one at the same socket.
pub struct Owner {
    program: Program,
    of: String,
    folder: TempDir,
}

impl Owner {
    /// Starts the first, by the program at that path.
    pub fn new(of: &str, rig: &Rig) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let program = own(helper(of), rig, &folder.path().join(SOCKET));
        let of = of.to_owned();
        Self {
            program,
            of,
            folder,
        }
    }

    /// Where it is found.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join(SOCKET)
    }

    /// The service's process.
    pub fn process(&self) -> &Program {
        &self.program
    }

    /// Starts the next one. The last is dead then.
    pub fn renew(&mut self, rig: &Rig) {
        self.program.kill();
        self.program = own(helper(&self.of), rig, &self.socket());
    }

    /// Every gauge of its metrics.
    pub fn gauges(&mut self) -> BTreeMap<String, f64> {
        self.program.tell("metrics");
        let mut gauges = BTreeMap::new();
        let mut of_gauge = false;
        loop {
            let line = self.program.line();
            if line == "# EOF" {
                return gauges;
            }
            if let Some(kind) = line.strip_prefix("# TYPE ") {
                of_gauge = kind.ends_with(" gauge");
            } else if of_gauge && let Some((name, value)) = line.rsplit_once(' ') {
                gauges.insert(name.to_owned(), value.parse().expect("a number"));
            }
        }
    }

    /// Waits until each gauge is zero, as where there is no client, then looks at the process.
    pub fn settle(&mut self) -> Footprint {
        let until = Instant::now() + PATIENCE;
        loop {
            let mut gauges = self.gauges();
            // What may be under way, not what is.
            gauges.retain(|name, _| !name.starts_with("s3engine_window_requests"));
            if gauges.values().all(|value| *value == 0.0) {
                return Footprint::settled(self.program.pid());
            }
            assert!(Instant::now() < until, "never zero: {gauges:#?}");
            thread::sleep(Duration::from_millis(5));
        }
    }
}
