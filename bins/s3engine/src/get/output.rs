//! Where the bytes of an object go: a file that appears when it is complete, or a stream.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};

use crate::exit::Failure;
use crate::interrupt::{Interrupt, PartialFile};
use crate::object_url::{ObjectUrl, on_one_line};

/// The longest part of a file's own name that its partial file carries: names end at 255 bytes.
const NAME_IN_PARTIAL: usize = 200;

/// Where bytes go.
pub(crate) enum Output {
    /// A file, written in any order, that gets its name at the end.
    File(NewFile),
    /// Standard output, a pipe or a device, written in order.
    Stream(Stream),
}

/// A file under its temporary name.
pub(crate) struct NewFile {
    file: File,
    partial: PartialFile,
    name: PathBuf,
}

/// An open stream.
pub(crate) struct Stream {
    file: File,
    name: String,
}

impl Output {
    /// Opens what `-o` names: `-`, a file, a folder to put the file in, a pipe or a device; by default a
    /// file named as the key's last component.
    pub(crate) fn open(
        chosen: Option<&OsStr>,
        url: &ObjectUrl,
        interrupt: &Interrupt,
    ) -> Result<Self, Failure> {
        if chosen.is_some_and(|chosen| chosen == "-") {
            let name = "stdout".to_owned();
            return match io::stdout().as_fd().try_clone_to_owned() {
                Ok(fd) => Ok(Output::Stream(Stream {
                    file: File::from(fd),
                    name,
                })),
                Err(source) => Err(failure("open", name, source)),
            };
        }
        let name = target(chosen.map(Path::new), url)?;
        match fs::metadata(&name) {
            Ok(found) if in_order(&found) => match OpenOptions::new().write(true).open(&name) {
                Ok(file) => Ok(Output::Stream(Stream {
                    file,
                    name: shown(&name),
                })),
                Err(source) => Err(failure("write to", shown(&name), source)),
            },
            found => NewFile::create(name, found.ok(), interrupt).map(Output::File),
        }
    }

    /// Whether bytes must come in order.
    pub(crate) fn in_order(&self) -> bool {
        matches!(self, Output::Stream(_))
    }

    /// Writes `data` at `at`; in a stream, `at` is where the last write ended.
    pub(crate) fn write(&mut self, at: u64, data: &[u8]) -> Result<(), Failure> {
        let (written, name) = match self {
            Output::File(new) => (new.file.write_all_at(data, at), shown(&new.name)),
            Output::Stream(stream) => (stream.file.write_all(data), stream.name.clone()),
        };
        written.map_err(|source| failure("write to", name, source))
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
            Output::File(new) => shown(&new.name),
            Output::Stream(stream) => stream.name.clone(),
        }
    }
}

impl NewFile {
    fn create(
        name: PathBuf,
        replaced: Option<fs::Metadata>,
        interrupt: &Interrupt,
    ) -> Result<Self, Failure> {
        // A link is written through, as by any other program.
        let name = match replaced {
            Some(_) => fs::canonicalize(&name).unwrap_or(name),
            None => name,
        };
        let create = |path: &Path| OpenOptions::new().write(true).create_new(true).open(path);
        let mut nth = 0;
        let (partial, file) = loop {
            match interrupt.partial_file(partial_name(&name, nth), create) {
                // Left by another process of the same number: in another container, or killed.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && nth < 100 => nth += 1,
                result => break result.map_err(|e| failure("create", shown(&name), e))?,
            }
        };
        if let Some(replaced) = replaced {
            // Not worth a failure: some file systems have no permissions.
            let _ = file.set_permissions(replaced.permissions());
        }
        Ok(Self {
            file,
            partial,
            name,
        })
    }

    fn finish(self) -> Result<(), Failure> {
        let Self {
            file,
            partial,
            name,
        } = self;
        settle(&file).map_err(|e| failure("write to", shown(&name), e))?;
        drop(file);
        partial
            .keep_as(&name)
            .map_err(|e| failure("rename the finished file to", shown(&name), e))
    }
}

/// On NFS a full disk may come to light only when data is synced; elsewhere the writes have told it.
fn settle(file: &File) -> io::Result<()> {
    let nfs = rustix::fs::fstatfs(file).is_ok_and(|fs| fs.f_type == rustix::fs::NFS_SUPER_MAGIC);
    if nfs { file.sync_data() } else { Ok(()) }
}

/// The file that is meant.
fn target(chosen: Option<&Path>, url: &ObjectUrl) -> Result<PathBuf, Failure> {
    let from_key = || {
        let no_name = || Failure::Usage(format!("{url} gives no file name: name the file with -o"));
        url.file_name().map(Path::new).ok_or_else(no_name)
    };
    let Some(chosen) = chosen else {
        return Ok(from_key()?.to_owned());
    };
    if chosen.is_dir() {
        return Ok(chosen.join(from_key()?));
    }
    if chosen.as_os_str().is_empty() || chosen.file_name().is_none() {
        return Err(Failure::Usage(format!("{} is no file name", shown(chosen))));
    }
    if chosen.as_os_str().as_encoded_bytes().ends_with(b"/") {
        let missing = io::Error::from(io::ErrorKind::NotFound);
        return Err(failure("write into the folder", shown(chosen), missing));
    }
    Ok(chosen.to_owned())
}

fn in_order(found: &fs::Metadata) -> bool {
    let kind = found.file_type();
    kind.is_char_device() || kind.is_block_device() || kind.is_fifo() || kind.is_socket()
}

/// `.NAME.s3engine-PID.part`, beside the file.
fn partial_name(name: &Path, nth: u32) -> PathBuf {
    let own = name.file_name().unwrap_or_default().as_bytes();
    let own = &own[..own.len().min(NAME_IN_PARTIAL)];
    let again = if nth == 0 {
        String::new()
    } else {
        format!("-{nth}")
    };
    let rest = format!(".s3engine-{}{again}.part", std::process::id());
    name.with_file_name(OsString::from_vec([b".", own, rest.as_bytes()].concat()))
}

fn failure(doing: &'static str, output: String, source: io::Error) -> Failure {
    Failure::Output {
        doing,
        output,
        source,
    }
}

fn shown(path: &Path) -> String {
    on_one_line(&path.to_string_lossy())
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
        Output::open(Some(chosen.as_os_str()), &url(key), &Interrupt::default())
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
        assert_eq!(names(folder.path()).len(), 1);
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
    fn the_partial_name_fits_whatever_the_name() {
        let long = format!("/d/{}", "é".repeat(127));
        let partial = partial_name(Path::new(&long), 99);
        assert!(partial.file_name().unwrap().len() <= 255);
        assert_eq!(partial.parent(), Some(Path::new("/d")));
    }
}
