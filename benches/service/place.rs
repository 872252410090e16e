//! A simulator and a service, each a process of its own.

use std::path::Path;

use crate::process::Process;

/// A simulator, and a service in front of it.
pub(crate) struct Place {
    /// URL, access key, secret key, and the folder of the loopback fabric.
    pub(crate) sim_args: [String; 4],
    pub(crate) socket: String,
    pub(crate) service: Process,
    _sim: Process,
    _folder: tempfile::TempDir,
}

impl Place {
    /// A simulator of so many threads.
    pub(crate) fn new(threads: usize) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let in_folder = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
        let fabric = in_folder("loopback");
        let mut sim = Process::new("sim", &[&fabric, &threads.to_string()]);
        let sim_args = [sim.line(), sim.line(), sim.line(), fabric];
        let socket = in_folder("service.sock");
        let mut args = vec![&*socket];
        args.extend(sim_args.iter().map(String::as_str));
        let mut service = Process::new("service", &args);
        assert_eq!(service.line(), "ready");
        assert!(Path::new(&socket).exists());
        Self {
            sim_args,
            socket,
            service,
            _sim: sim,
            _folder: folder,
        }
    }

    /// What the service's pool has, in words.
    pub(crate) fn stats(&mut self) -> String {
        self.service.say("stats");
        self.service.line()
    }

    /// How workers are told of it.
    pub(crate) fn args(&self) -> impl Iterator<Item = &str> {
        let sim = self.sim_args.iter().map(String::as_str);
        std::iter::once(&*self.socket).chain(sim)
    }
}

pub(crate) fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}
