//! A file that has its name only when it is complete, and that nothing is left of otherwise.
//!
//! Until then it has no name at all where the file system can do that: even a killed process leaves nothing. Where
//! it cannot, the file has a temporary name, which is removed in every end but that by SIGKILL.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat};
use rustix::io::Errno;

use crate::destination::shown;
use crate::exit::Failure;
use crate::interrupt::{Interrupt, PartialFile};

/// The longest part of a file's own name that its temporary name carries: names end at 255 bytes, on encrypted file
/// systems at 143.
const NAME_IN_PARTIAL: usize = 100;

/// A file without its name.
pub(crate) struct NewFile {
    file: File,
    /// The temporary name, where the file needs one.
    partial: Option<PartialFile>,
    name: PathBuf,
    interrupt: Interrupt,
}

impl NewFile {
    /// Creates what will be the file `name`, in its folder. `replaced` is what has the name now.
    pub(crate) fn create(
        name: PathBuf,
        replaced: Option<&fs::Metadata>,
        interrupt: &Interrupt,
    ) -> Result<Self, Failure> {
        let new = match unnamed(folder(&name)) {
            Ok(Some(file)) => Self {
                file,
                partial: None,
                name,
                interrupt: interrupt.clone(),
            },
            Ok(None) => Self::create_named(name, interrupt)?,
            Err(source) => return Err(not_created(&name, source)),
        };
        if let Some(replaced) = replaced {
            // Not worth a failure: some file systems have no permissions.
            let _ = new.file.set_permissions(replaced.permissions());
        }
        Ok(new)
    }

    fn create_named(name: PathBuf, interrupt: &Interrupt) -> Result<Self, Failure> {
        let create = |path: &Path| OpenOptions::new().write(true).create_new(true).open(path);
        match temporary_name(&name, interrupt, create) {
            Ok((partial, file)) => Ok(Self {
                file,
                partial: Some(partial),
                name,
                interrupt: interrupt.clone(),
            }),
            Err(source) => Err(not_created(&name, source)),
        }
    }

    /// Writes `data` at `at`.
    pub(crate) fn write_all_at(&self, data: &[u8], at: u64) -> io::Result<()> {
        self.file.write_all_at(data, at)
    }

    /// The name that it will have, for people.
    pub(crate) fn name(&self) -> String {
        shown(&self.name)
    }

    /// Everything is written: the file gets its name, in place of whatever has it.
    pub(crate) fn finish(self) -> Result<(), Failure> {
        let Self {
            file,
            partial,
            name,
            interrupt,
        } = self;
        let failed = |doing| {
            let output = shown(&name);
            move |source| Failure::Output {
                doing,
                output,
                source,
            }
        };
        settle(&file).map_err(failed("write to"))?;
        let partial = match partial {
            Some(partial) => partial,
            // A link does not replace a name, and renaming does.
            None => {
                let linked = temporary_name(&name, &interrupt, |path| link(&file, path));
                linked.map_err(failed("name the finished file"))?.0
            }
        };
        drop(file);
        partial
            .keep_as(&name)
            .map_err(failed("rename the finished file to"))
    }
}

/// The folder that a file is in.
fn folder(name: &Path) -> &Path {
    match name.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// A file without a name, or `None` where the system cannot make one, or not give it a name later.
fn unnamed(folder: &Path) -> io::Result<Option<File>> {
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = match rustix::fs::open(folder, flags, Mode::from_raw_mode(0o666)) {
        Ok(file) => File::from(file),
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    Ok(fs::metadata(handle(&file)).is_ok().then_some(file))
}

/// The name by which a file without one can be reached.
fn handle(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

fn link(file: &File, path: &Path) -> io::Result<()> {
    linkat(CWD, handle(file), CWD, path, AtFlags::SYMLINK_FOLLOW).map_err(io::Error::from)
}

/// Creates something under a temporary name that nothing has.
fn temporary_name<T>(
    name: &Path,
    interrupt: &Interrupt,
    create: impl Fn(&Path) -> io::Result<T>,
) -> io::Result<(PartialFile, T)> {
    let mut nth = 0;
    loop {
        match interrupt.partial_file(partial_name(name, nth), &create) {
            // Left by another process of the same number: in another container, or killed.
            Err(error) if error.kind() == ErrorKind::AlreadyExists && nth < 100 => nth += 1,
            result => return result,
        }
    }
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

/// Where files cannot be made in the folder, it is the folder that is to be named: the file itself may be writable.
fn not_created(name: &Path, source: io::Error) -> Failure {
    let (doing, output) = match source.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            ("create a file in the folder", shown(folder(name)))
        }
        _ => ("create", shown(name)),
    };
    Failure::Output {
        doing,
        output,
        source,
    }
}

/// On NFS a full disk may come to light only when data is synced; elsewhere the writes have told it.
fn settle(file: &File) -> io::Result<()> {
    let nfs = rustix::fs::fstatfs(file).is_ok_and(|fs| fs.f_type == rustix::fs::NFS_SUPER_MAGIC);
    if nfs { file.sync_data() } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.collect()
    }

    #[test]
    fn a_named_file_appears_under_its_name_when_it_is_finished_and_goes_if_it_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let name = folder.path().join("x");
        let create = || NewFile::create_named(name.clone(), &Interrupt::default()).unwrap();
        let new = create();
        new.write_all_at(b"abc", 0).unwrap();
        let partial = names(folder.path());
        assert!(partial[0].ends_with(".part"), "{partial:?}");
        drop(new);
        assert!(names(folder.path()).is_empty());
        fs::write(&name, "longer than the new one").unwrap();
        let new = create();
        new.write_all_at(b"abc", 0).unwrap();
        new.finish().unwrap();
        assert_eq!(names(folder.path()), ["x"]);
        assert_eq!(fs::read(&name).unwrap(), b"abc");
    }

    #[test]
    fn a_file_without_a_name_is_not_seen_until_it_is_finished() {
        let folder = tempfile::tempdir().unwrap();
        if unnamed(folder.path()).unwrap().is_none() {
            // This file system has no such files.
            return;
        }
        let name = folder.path().join("x");
        fs::write(&name, "old").unwrap();
        let new = NewFile::create(name.clone(), None, &Interrupt::default()).unwrap();
        new.write_all_at(b"abc", 0).unwrap();
        assert_eq!(names(folder.path()), ["x"]);
        assert_eq!(fs::read(&name).unwrap(), b"old");
        new.finish().unwrap();
        assert_eq!(names(folder.path()), ["x"]);
        assert_eq!(fs::read(&name).unwrap(), b"abc");
    }

    #[test]
    fn a_temporary_name_that_is_taken_is_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        let name = folder.path().join("x");
        let taken = partial_name(&name, 0);
        fs::write(&taken, "another's").unwrap();
        let new = NewFile::create(name.clone(), None, &Interrupt::default()).unwrap();
        new.finish().unwrap();
        assert!(name.exists());
        assert_eq!(fs::read(&taken).unwrap(), b"another's");
    }

    #[test]
    fn a_folder_that_takes_no_file_is_named_and_not_the_file() {
        let denied = || io::Error::from(ErrorKind::PermissionDenied);
        let text = not_created(Path::new("/d/x"), denied()).to_string();
        assert!(
            text.starts_with("cannot create a file in the folder /d: "),
            "{text}"
        );
        let text = not_created(Path::new("x"), denied()).to_string();
        assert!(text.contains("the folder .: "), "{text}");
        let missing = io::Error::from(ErrorKind::NotFound);
        let text = not_created(Path::new("/d/x"), missing).to_string();
        assert!(text.starts_with("cannot create /d/x: "), "{text}");
    }

    #[test]
    fn the_partial_name_fits_whatever_the_name() {
        let long = format!("/d/{}", "é".repeat(127));
        let partial = partial_name(Path::new(&long), 99);
        assert!(partial.file_name().unwrap().len() <= 143);
        assert_eq!(partial.parent(), Some(Path::new("/d")));
    }
}
