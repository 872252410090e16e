//! A library of a test's own.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// A copy of a stand-in: to the loader it is another library, with settings of its own.
#[derive(Debug)]
pub struct Copied {
    path: PathBuf,
    settings: BTreeMap<&'static str, String>,
}

impl Copied {
    /// Of the library that cargo built beside this test, into a folder of the test's.
    pub fn of(name: &str, folder: &Path) -> Self {
        let test = env::current_exe().expect("the test's own path");
        let beside = test.parent().expect("a folder");
        let file = format!("lib{name}.so");
        let built = [beside, beside.parent().unwrap_or(beside)].map(|folder| folder.join(&file));
        let built = built.iter().find(|path| path.exists());
        let built = built.unwrap_or_else(|| panic!("{file} is not beside {}", test.display()));
        let path = folder.join(&file);
        fs::copy(built, &path).expect("a copy of the library");
        let copied = Self {
            path,
            settings: BTreeMap::new(),
        };
        copied.write();
        copied
    }

    /// Over the loopback fabric of this folder.
    pub fn loopback(self, folder: &Path) -> Self {
        self.set("S3ENGINE_LOOPBACK_DIR", folder.display())
    }

    /// With these devices.
    pub fn devices(self, devices: &str) -> Self {
        self.set("S3ENGINE_STANDIN_DEVICES", devices)
    }

    /// With these faults.
    pub fn faults(self, faults: &str) -> Self {
        self.set("S3ENGINE_STANDIN_FABRIC_FAULTS", faults)
    }

    /// Where device memory can be registered.
    pub fn peermem(self) -> Self {
        self.set("S3ENGINE_STANDIN_PEERMEM", 1)
    }

    /// Which notes its calls.
    pub fn noting_calls(self) -> Self {
        let file = self.calls_file();
        self.set("S3ENGINE_STANDIN_CALLS", file.display())
    }

    fn set(mut self, name: &'static str, value: impl ToString) -> Self {
        self.settings.insert(name, value.to_string());
        self.write();
        self
    }

    fn write(&self) {
        let lines = self
            .settings
            .iter()
            .map(|(name, value)| format!("{name}={value}\n"));
        fs::write(self.settings_file(), lines.collect::<String>()).expect("its settings");
    }

    /// Lets what hangs return.
    pub fn release(&self) {
        fs::remove_file(self.settings_file()).expect("its settings");
    }

    /// The library's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The calls that were made: thread, function and device of each.
    pub fn calls(&self) -> Vec<(String, String, String)> {
        let text = fs::read_to_string(self.calls_file()).unwrap_or_default();
        let line = |line: &str| {
            let mut words = line.split(' ').map(str::to_owned);
            let mut next = || words.next().unwrap_or_default();
            (next(), next(), next())
        };
        text.lines().map(line).collect()
    }

    /// How often a function was called.
    pub fn count(&self, function: &str) -> usize {
        let calls = self.calls();
        calls
            .iter()
            .filter(|(_, called, _)| called == function)
            .count()
    }

    fn settings_file(&self) -> PathBuf {
        self.path.with_added_extension("settings")
    }

    fn calls_file(&self) -> PathBuf {
        self.path.with_added_extension("calls")
    }
}
