//! The private folder where owners have their sockets.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::SocketAddrUnix;
use rustix::process::geteuid;

/// Why the folder cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FolderError {
    /// Somebody else could put a socket there.
    #[error("{} is not private: {why}", path.display())]
    NotPrivate {
        /// The folder.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The system refused.
    #[error("cannot {what} {}: {}", path.display(), io::Error::from_raw_os_error(*errno))]
    System {
        /// What was tried.
        what: &'static str,
        /// With which path.
        path: PathBuf,
        /// The system's error number.
        errno: i32,
    },
}

/// A folder that was found to be a real one, of this user, and closed to all others.
#[derive(Debug)]
pub(super) struct Folder {
    fd: OwnedFd,
    path: PathBuf,
}

impl Folder {
    /// Makes the folder where it is missing, and checks it.
    pub(super) fn create(path: Option<&Path>) -> Result<Self, FolderError> {
        let place = Place::new(path);
        for path in place.checked() {
            let made = fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(path);
            // A symlink or a file in its place is told by the check.
            if let Err(error) = made
                && error.kind() != io::ErrorKind::AlreadyExists
            {
                return Err(system(
                    "create",
                    path,
                    error.raw_os_error().unwrap_or_default(),
                ));
            }
            Self::check(path)?;
        }
        Self::check(&place.path)
    }

    /// Checks the folder; `NotFound` in the error where there is none.
    pub(super) fn open(path: Option<&Path>) -> Result<Self, FolderError> {
        let place = Place::new(path);
        for path in place.checked() {
            Self::check(path)?;
        }
        Self::check(&place.path)
    }

    fn check(path: &Path) -> Result<Self, FolderError> {
        let not_private = |why: String| FolderError::NotPrivate {
            path: path.to_owned(),
            why,
        };
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| match errno {
            Errno::LOOP | Errno::NOTDIR => not_private("it is a link, or no folder".into()),
            _ => system("open", path, errno.raw_os_error()),
        })?;
        let stat = rustix::fs::fstat(&fd)
            .map_err(|errno| system("examine", path, errno.raw_os_error()))?;
        if stat.st_uid != geteuid().as_raw() {
            return Err(not_private(format!("it belongs to user {}", stat.st_uid)));
        }
        if stat.st_mode & 0o077 != 0 {
            return Err(not_private(format!(
                "its mode is {:o}, wanted 700",
                stat.st_mode & 0o7777
            )));
        }
        Ok(Self {
            fd,
            path: path.to_owned(),
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The address of a socket file in the very folder that was checked, however long its path is.
    pub(super) fn address(&self, name: &str) -> Result<SocketAddrUnix, Errno> {
        SocketAddrUnix::new(format!("/proc/self/fd/{}/{name}", self.fd.as_raw_fd()))
    }

    pub(super) fn rename(&self, from: &str, to: &str) -> Result<(), Errno> {
        rustix::fs::renameat(&self.fd, from, &self.fd, to)
    }

    pub(super) fn remove(&self, name: &str) -> Result<(), Errno> {
        rustix::fs::unlinkat(&self.fd, name, AtFlags::empty())
    }

    /// The names of all socket files.
    pub(super) fn sockets(&self) -> Result<Vec<String>, Errno> {
        let mut names = Vec::new();
        for entry in Dir::read_from(self.as_fd())? {
            let entry = entry?;
            if let Ok(name) = entry.file_name().to_str()
                && is_socket_name(name)
            {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }
}

impl AsFd for Folder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The name of an owner's socket file.
pub(super) fn socket_name(instance: &str) -> String {
    format!("{instance}.sock")
}

fn is_socket_name(name: &str) -> bool {
    name.strip_suffix(".sock").is_some_and(|id| {
        id.len() == 10 && id.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    })
}

fn system(what: &'static str, path: &Path, errno: i32) -> FolderError {
    FolderError::System {
        what,
        path: path.to_owned(),
        errno,
    }
}

/// Where the folder is: given, or the same default for every process of a user.
struct Place {
    path: PathBuf,
    /// The default's own parent lies where others may write.
    parent: Option<PathBuf>,
}

impl Place {
    fn new(given: Option<&Path>) -> Self {
        match given {
            Some(path) => Self {
                path: path.to_owned(),
                parent: None,
            },
            None => {
                let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
                Self::default_in(runtime, geteuid().as_raw())
            }
        }
    }

    fn default_in(runtime: Option<PathBuf>, uid: u32) -> Self {
        let parent = match runtime {
            Some(folder) if folder.is_absolute() => folder.join("s3engine"),
            _ => PathBuf::from(format!("/tmp/s3engine-{uid}")),
        };
        Self {
            path: parent.join("loopback"),
            parent: Some(parent),
        }
    }

    /// What is checked, from the outside in.
    fn checked(&self) -> impl Iterator<Item = &Path> {
        self.parent.iter().chain([&self.path]).map(PathBuf::as_path)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn the_default_is_in_the_runtime_folder_or_else_in_tmp_under_the_user() {
        let path = |runtime: Option<&str>| Place::default_in(runtime.map(PathBuf::from), 7).path;
        assert_eq!(
            path(Some("/run/user/7")),
            Path::new("/run/user/7/s3engine/loopback")
        );
        for none in [None, Some(""), Some("relative")] {
            assert_eq!(path(none), Path::new("/tmp/s3engine-7/loopback"));
        }
    }

    #[test]
    fn a_missing_folder_is_made_private_with_its_parents() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("a/b");
        assert!(matches!(
            Folder::open(Some(&path)),
            Err(FolderError::System { errno: 2, .. })
        ));
        let folder = Folder::create(Some(&path)).unwrap();
        assert_eq!(folder.path(), path);
        for path in [path.clone(), temp.path().join("a")] {
            assert_eq!(
                fs::metadata(path).unwrap().permissions().mode() & 0o7777,
                0o700
            );
        }
        Folder::create(Some(&path)).unwrap();
        Folder::open(Some(&path)).unwrap();
    }

    #[test]
    fn a_folder_that_others_may_enter_is_refused() {
        let temp = tempfile::tempdir().unwrap();
        for mode in [0o701, 0o710, 0o770, 0o777, 0o1777] {
            fs::set_permissions(temp.path(), fs::Permissions::from_mode(mode)).unwrap();
            for found in [
                Folder::create(Some(temp.path())),
                Folder::open(Some(temp.path())),
            ] {
                assert!(
                    matches!(found, Err(FolderError::NotPrivate { .. })),
                    "{mode:o}"
                );
            }
        }
    }

    #[test]
    fn a_link_or_a_file_is_refused() {
        let temp = tempfile::tempdir().unwrap();
        let (real, link, file) = (
            temp.path().join("real"),
            temp.path().join("link"),
            temp.path().join("file"),
        );
        Folder::create(Some(&real)).unwrap();
        symlink(&real, &link).unwrap();
        fs::write(&file, b"").unwrap();
        for path in [link, file] {
            for found in [Folder::create(Some(&path)), Folder::open(Some(&path))] {
                assert!(
                    matches!(found, Err(FolderError::NotPrivate { .. })),
                    "{found:?}"
                );
            }
        }
    }

    #[test]
    fn another_users_folder_is_refused() {
        // Needs a folder of somebody else: as root, make one; else take root's own.
        let temp = tempfile::tempdir().unwrap();
        let path = if geteuid().is_root() {
            std::os::unix::fs::chown(temp.path(), Some(65534), None).unwrap();
            temp.path()
        } else {
            Path::new("/")
        };
        let why = Folder::open(Some(path)).unwrap_err().to_string();
        assert!(why.contains("belongs to user"), "{why}");
    }

    #[test]
    fn only_socket_files_of_owners_are_listed() {
        let temp = tempfile::tempdir().unwrap();
        let folder = Folder::create(Some(&temp.path().join("f"))).unwrap();
        for name in [
            "0123456789.sock",
            "0123456789",
            "012345678.sock",
            "012345678G.sock",
            ".x.new",
        ] {
            fs::write(folder.path().join(name), b"").unwrap();
        }
        assert_eq!(folder.sockets().unwrap(), ["0123456789.sock"]);
    }
}
