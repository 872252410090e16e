//! Clients of Python, where they are installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::work::Result;

/// The clients and the package that each needs.
const CLIENTS: [(&str, &str); 5] = [
    ("obstore", "obstore"),
    ("boto3", "boto3"),
    ("awscrt", "awscrt"),
    ("s3torchconnectorclient", "s3torchconnectorclient"),
    ("s3dlio", "s3dlio"),
];

/// The package of a client of Python.
pub fn package_of(client: &str) -> Option<&'static str> {
    let found = CLIENTS.iter().find(|(name, _)| *name == client);
    found.map(|(_, package)| *package)
}

/// The clients whose packages this Python has.
pub fn installed(python: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for (client, package) in CLIENTS {
        let status = Command::new(python)
            .args(["-c", &format!("import {package}")])
            .stderr(std::process::Stdio::null())
            .status()?;
        match status.success() {
            true => found.push(client.to_owned()),
            false => eprintln!(
                "{client} is left out: {} has no {package}",
                python.display()
            ),
        }
    }
    Ok(found)
}

/// Starts a client of Python.
pub fn command(python: &Path) -> Result<Command> {
    let script = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/clients.py"));
    fs::metadata(&script).map_err(|error| format!("{}: {error}", script.display()))?;
    let mut command = Command::new(python);
    command.arg(script);
    Ok(command)
}
