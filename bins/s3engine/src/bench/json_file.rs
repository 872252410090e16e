//! The file that figures go to: replaced whole, or not at all. Whether it can be is known before anything is measured,
//! so that nothing is measured in vain.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use crate::destination::{Destination, shown};
use crate::exit::Failure;
use crate::interrupt::Interrupt;
use crate::new_file::NewFile;

/// Where `--json` goes.
pub(crate) enum JsonFile {
    Stdout,
    /// A pipe or a device.
    Stream {
        file: File,
        name: String,
    },
    /// A regular file, there or not.
    File {
        path: PathBuf,
        interrupt: Interrupt,
    },
}

impl JsonFile {
    /// Opens what an argument names. What is in the file stays there until the figures come, and a new one is not there
    /// before.
    pub(crate) fn open(name: &Path, interrupt: &Interrupt) -> Result<Self, Failure> {
        let path = match Destination::chosen(name)? {
            Destination::Stdout => return Ok(Self::Stdout),
            Destination::File(path) => path,
        };
        if !ends_in_a_name(&path) {
            return Err(Failure::Usage(format!("\"{}\" names no file", shown(name))));
        }
        let failed = |source| not_written(shown(name), source);
        let open = || OpenOptions::new().write(true).open(&path).map_err(failed);
        match fs::symlink_metadata(&path) {
            Ok(found) if found.is_file() => {
                // What may not be written is not replaced either.
                open()?;
            }
            Ok(_) => {
                let (file, name) = (open()?, shown(name));
                return Ok(Self::Stream { file, name });
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
        let interrupt = interrupt.clone();
        // Gone at once: it shows that the folder takes files.
        NewFile::create(path.clone(), None, &interrupt)?;
        Ok(Self::File { path, interrupt })
    }

    /// Writes all of it.
    pub(crate) fn write(self, text: &str) -> Result<(), Failure> {
        let (written, output) = match self {
            Self::Stdout => (write_to_stdout(text), "stdout".to_owned()),
            Self::Stream { mut file, name } => (file.write_all(text.as_bytes()), name),
            Self::File { path, interrupt } => {
                let replaced = fs::symlink_metadata(&path).ok();
                let new = NewFile::create(path, replaced.as_ref(), &interrupt)?;
                return match new.write_all_at(text.as_bytes(), 0) {
                    Ok(()) => new.finish(),
                    Err(source) => Err(not_written(new.name(), source)),
                };
            }
        };
        written.map_err(|source| not_written(output, source))
    }
}

/// Whether there is a last component, and no `/` or `/.` after it.
fn ends_in_a_name(path: &Path) -> bool {
    let all = path.as_os_str().as_encoded_bytes();
    path.file_name()
        .is_some_and(|name| all.ends_with(name.as_encoded_bytes()))
}

fn not_written(output: String, source: io::Error) -> Failure {
    Failure::Output {
        doing: "write to",
        output,
        source,
    }
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
    use std::process::Command;

    fn open(path: impl AsRef<Path>) -> Result<JsonFile, Failure> {
        JsonFile::open(path.as_ref(), &Interrupt::default())
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.collect()
    }

    #[test]
    fn what_was_in_the_file_stays_until_the_figures_come() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("b.json");
        fs::write(&path, "the longer figures of an earlier run").unwrap();
        drop(open(&path).unwrap());
        assert!(fs::read_to_string(&path).unwrap().starts_with("the longer"));
        open(&path).unwrap().write("{}").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "{}");
        assert_eq!(names(folder.path()), ["b.json"]);
    }

    #[test]
    fn a_new_file_is_there_with_its_figures_and_not_before() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("b.json");
        let opened = open(&path).unwrap();
        assert!(names(folder.path()).is_empty());
        opened.write("{}").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "{}");
        assert_eq!(names(folder.path()), ["b.json"]);
    }

    #[test]
    fn what_cannot_be_a_file_is_refused_when_it_is_opened() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["", "b/", "b/.", "b/.."] {
            let path = folder.path().join(name);
            assert!(open(&path).is_err(), "{name}");
        }
        assert!(open("").is_err());
        assert!(open(folder.path().join("none/b")).is_err());
        assert!(names(folder.path()).is_empty());
    }

    /// Files of the child process end at 1 KiB, as those on a full disk end somewhere.
    #[test]
    fn a_full_disk_leaves_the_old_file_and_no_sibling() {
        const FOLDER: &str = "S3ENGINE_TEST_FULL_DISK";
        if let Some(folder) = std::env::var_os(FOLDER) {
            let opened = open(Path::new(&folder).join("b.json")).unwrap();
            let failure = opened.write(&"x".repeat(1 << 20)).unwrap_err();
            assert!(failure.to_string().contains("b.json"), "{failure}");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("b.json");
        fs::write(&path, "old").unwrap();
        let own = std::env::current_exe().unwrap();
        let limited = "trap '' XFSZ; ulimit -f 2; exec \"$0\" --exact \"$1\"";
        let test = "bench::json_file::tests::a_full_disk_leaves_the_old_file_and_no_sibling";
        let ran = Command::new("sh")
            .args(["-c", limited])
            .arg(own)
            .arg(test)
            .env(FOLDER, folder.path())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&ran.stdout);
        assert!(ran.status.success() && said.contains("1 passed"), "{ran:?}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(names(folder.path()), ["b.json"]);
    }

    #[test]
    fn stdout_is_known_by_its_other_names_and_devices_are_written() {
        for name in ["-", "/dev/stdout"] {
            assert!(matches!(open(name).unwrap(), JsonFile::Stdout), "{name}");
        }
        let device = open("/dev/null").unwrap();
        device.write("{}").unwrap();
    }
}
