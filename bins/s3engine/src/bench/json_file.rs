//! The file that figures go to. It is opened before anything is measured, so that nothing is measured in vain.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use crate::destination::{Destination, shown};
use crate::exit::Failure;

/// Where `--json` goes.
pub(crate) enum JsonFile {
    Stdout,
    File { file: File, name: String },
}

impl JsonFile {
    /// Opens what an argument names. What is in the file stays there until the figures come.
    pub(crate) fn open(name: &Path) -> Result<Self, Failure> {
        let path = match Destination::chosen(name)? {
            Destination::Stdout => return Ok(Self::Stdout),
            Destination::File(path) => path,
        };
        let name = shown(name);
        let mut options = OpenOptions::new();
        match options.write(true).create(true).truncate(false).open(path) {
            Ok(file) => Ok(Self::File { file, name }),
            Err(source) => Err(Failure::Output {
                doing: "write to",
                output: name,
                source,
            }),
        }
    }

    /// Writes all of it.
    pub(crate) fn write(self, text: &str) -> Result<(), Failure> {
        let (written, output) = match self {
            Self::Stdout => (write_to_stdout(text), "stdout".to_owned()),
            Self::File { file, name } => (replace(file, text), name),
        };
        written.map_err(|source| Failure::Output {
            doing: "write to",
            output,
            source,
        })
    }
}

fn replace(mut file: File, text: &str) -> io::Result<()> {
    // Pipes and devices have no length.
    if file.metadata()?.is_file() {
        file.set_len(0)?;
    }
    file.write_all(text.as_bytes())
}

/// Writes to stdout at once.
pub(crate) fn write_to_stdout(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn what_was_in_the_file_stays_until_the_figures_come() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("b.json");
        fs::write(&path, "the longer figures of an earlier run").unwrap();
        drop(JsonFile::open(&path).unwrap());
        assert!(fs::read_to_string(&path).unwrap().starts_with("the longer"));
        JsonFile::open(&path).unwrap().write("{}").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "{}");
    }

    #[test]
    fn stdout_is_known_by_its_other_names_and_devices_are_written() {
        for name in ["-", "/dev/stdout"] {
            let opened = JsonFile::open(Path::new(name)).unwrap();
            assert!(matches!(opened, JsonFile::Stdout), "{name}");
        }
        let device = JsonFile::open(Path::new("/dev/null")).unwrap();
        device.write("{}").unwrap();
    }
}
