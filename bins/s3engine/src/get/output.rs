//! Where the bytes of an object go: a file that appears when it is complete, or a stream.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use crate::destination::{Destination, shown};
use crate::exit::Failure;
use crate::interrupt::Interrupt;
use crate::new_file::NewFile;
use crate::object_url::ObjectUrl;

/// Where bytes go.
pub(crate) enum Output {
    /// A file, written in any order, that gets its name at the end.
    File(NewFile),
    /// Standard output, a pipe or a device, written in order.
    Stream(Stream),
}

/// An open stream.
pub(crate) struct Stream {
    file: File,
    name: String,
}

impl Output {
    /// Opens where the bytes are to go.
    pub(crate) fn open(destination: &Destination, interrupt: &Interrupt) -> Result<Self, Failure> {
        let path = match destination {
            Destination::Stdout => return stdout(),
            Destination::File(path) => path,
        };
        match fs::symlink_metadata(path) {
            Ok(found) if in_order(&found) => match OpenOptions::new().write(true).open(path) {
                Ok(file) => Ok(Output::Stream(Stream {
                    file,
                    name: shown(path),
                })),
                Err(source) => Err(failure("write to", shown(path), source)),
            },
            Ok(found) => NewFile::create(path.clone(), Some(&found), interrupt).map(Output::File),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                NewFile::create(path.clone(), None, interrupt).map(Output::File)
            }
            // A name too long for the file system, among others: better known before the transfer.
            Err(source) => Err(failure("create", shown(path), source)),
        }
    }

    /// Whether bytes must come in order.
    pub(crate) fn in_order(&self) -> bool {
        matches!(self, Output::Stream(_))
    }

    /// Writes `data` at `at`; in a stream, `at` is where the last write ended.
    pub(crate) fn write(&mut self, at: u64, data: &[u8]) -> Result<(), Failure> {
        let written = match self {
            Output::File(new) => new.write_all_at(data, at),
            Output::Stream(stream) => stream.file.write_all(data),
        };
        written.map_err(|source| failure("write to", self.name(), source))
    }

    /// Everything is written: the file gets its name.
    pub(crate) fn finish(self) -> Result<(), Failure> {
        match self {
            Output::File(new) => new.finish(),
            Output::Stream(_) => Ok(()),
        }
    }

    /// The output's name, for people.
    pub(crate) fn name(&self) -> String {
        match self {
            Output::File(new) => new.name(),
            Output::Stream(stream) => stream.name.clone(),
        }
    }
}

fn stdout() -> Result<Output, Failure> {
    let name = "stdout".to_owned();
    match io::stdout().as_fd().try_clone_to_owned() {
        Ok(fd) => Ok(Output::Stream(Stream {
            file: File::from(fd),
            name,
        })),
        Err(source) => Err(failure("open", name, source)),
    }
}

/// What `-o` means: stdout, a file, a folder to put the file in, a pipe or a device; by default a file named as the
/// key's last component.
pub(crate) fn destination(chosen: Option<&OsStr>, url: &ObjectUrl) -> Result<Destination, Failure> {
    let from_key = || {
        let no_name = || Failure::Usage(format!("{url} gives no file name: name the file with -o"));
        url.file_name().map(Path::new).ok_or_else(no_name)
    };
    let Some(chosen) = chosen.map(Path::new) else {
        return Destination::of(from_key()?);
    };
    match Destination::chosen(chosen)? {
        Destination::File(path) if path.is_dir() => {
            return Destination::of(&chosen.join(from_key()?));
        }
        found if found == Destination::Stdout => return Ok(found),
        _ => {}
    }
    if chosen.as_os_str().is_empty() || chosen.file_name().is_none() {
        let text = format!("-o \"{}\" names no file", shown(chosen));
        return Err(Failure::Usage(text));
    }
    if chosen.as_os_str().as_encoded_bytes().ends_with(b"/") {
        let missing = io::Error::from(io::ErrorKind::NotFound);
        return Err(failure("write into the folder", shown(chosen), missing));
    }
    Destination::chosen(chosen)
}

fn in_order(found: &fs::Metadata) -> bool {
    let kind = found.file_type();
    kind.is_char_device() || kind.is_block_device() || kind.is_fifo() || kind.is_socket()
}

fn failure(doing: &'static str, output: String, source: io::Error) -> Failure {
    Failure::Output {
        doing,
        output,
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(key: &str) -> ObjectUrl {
        ObjectUrl {
            bucket: "b".into(),
            key: key.into(),
        }
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.collect()
    }

    fn open(chosen: &Path, key: &str) -> Result<Output, Failure> {
        let destination = destination(Some(chosen.as_os_str()), &url(key))?;
        Output::open(&destination, &Interrupt::default())
    }

    #[test]
    fn a_file_appears_when_it_is_finished_and_not_before() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        fs::write(&path, "old").unwrap();
        let mut output = open(&path, "k").unwrap();
        output.write(3, b"def").unwrap();
        output.write(0, b"abc").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"old");
        output.finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"abcdef");
        assert_eq!(names(folder.path()), ["x"]);
    }

    #[test]
    fn an_output_that_is_dropped_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let mut output = open(folder.path(), "a/name").unwrap();
        output.write(0, b"abc").unwrap();
        drop(output);
        assert!(names(folder.path()).is_empty());
    }

    #[test]
    fn a_folder_takes_the_file_under_the_keys_name() {
        let folder = tempfile::tempdir().unwrap();
        open(folder.path(), "a/b c").unwrap().finish().unwrap();
        assert_eq!(names(folder.path()), ["b c"]);
        assert!(matches!(open(folder.path(), "a/"), Err(Failure::Usage(_))));
    }

    #[test]
    fn a_link_is_written_through_and_the_mode_is_kept() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("f"), folder.path().join("l"));
        fs::write(&file, "old").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let mut output = open(&link, "k").unwrap();
        output.write(0, b"new").unwrap();
        output.finish().unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&file).unwrap(), b"new");
        assert_eq!(
            fs::metadata(&file).unwrap().permissions().mode() & 0o777,
            0o600
        );
    }

    #[test]
    fn a_device_is_written_in_order_and_keeps_its_place() {
        let mut output = open(Path::new("/dev/null"), "k").unwrap();
        assert!(output.in_order());
        output.write(0, b"abc").unwrap();
        output.finish().unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }

    #[test]
    fn a_full_device_is_an_error() {
        let mut output = open(Path::new("/dev/full"), "k").unwrap();
        let error = output.write(0, b"abc").unwrap_err().to_string();
        assert!(
            error.contains("/dev/full") && error.contains("No space left"),
            "{error}"
        );
    }

    #[test]
    fn a_folder_that_is_not_there_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        assert!(open(&folder.path().join("no/x"), "k").is_err());
        assert!(open(&folder.path().join("no/"), "k").is_err());
    }

    #[test]
    fn a_link_to_nothing_is_written_through() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("f"), folder.path().join("l"));
        std::os::unix::fs::symlink("f", &link).unwrap();
        let mut output = open(&link, "k").unwrap();
        output.write(0, b"new").unwrap();
        output.finish().unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&file).unwrap(), b"new");
    }

    #[test]
    fn a_name_too_long_is_an_error_before_anything_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let long = "x".repeat(256);
        let failure = open(&folder.path().join(&long), "k").err().unwrap();
        let text = failure.to_string();
        assert!(text.contains(&long) && text.contains("too long"), "{text}");
        let failure = open(folder.path(), &long).err().unwrap();
        assert_eq!(failure.code(), 1);
        assert!(names(folder.path()).is_empty());
    }

    #[test]
    fn an_empty_name_is_shown_as_such() {
        let failure = open(Path::new(""), "k").err().unwrap();
        assert_eq!(failure.to_string(), "-o \"\" names no file");
        assert_eq!(failure.code(), 2);
    }
}
