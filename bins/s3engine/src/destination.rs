//! What a name given for output stands for: this process's stdout, or a file.
//!
//! To open `/dev/stdout` anew would write a redirected file from its start, over what others wrote to it, and to
//! replace it would replace the wrong file. So it is what `-` is: the stdout that is open.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::exit::Failure;
use crate::object_url::on_one_line;

/// As many links lead from one name to another before it is an error, as for the system.
const MOST_LINKS: usize = 40;

/// Where output goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    /// The open stdout.
    Stdout,
    /// A file, there or not. Its last component is no link.
    File(PathBuf),
}

impl Destination {
    /// What an argument means, in which `-` is stdout.
    pub(crate) fn chosen(name: &Path) -> Result<Self, Failure> {
        match name == "-" {
            true => Ok(Self::Stdout),
            false => Self::of(name),
        }
    }

    /// Follows `name` through links, also to where nothing is yet.
    pub(crate) fn of(name: &Path) -> Result<Self, Failure> {
        let mut path = name.to_owned();
        for _ in 0..MOST_LINKS {
            match descriptor(&path) {
                None => {}
                Some(Descriptor::Stdout) => return Ok(Self::Stdout),
                Some(Descriptor::Other) => {
                    let text = format!(
                        "{} is an open file of a process: give the file's own name, or - for stdout",
                        shown(name)
                    );
                    return Err(Failure::Usage(text));
                }
            }
            let Ok(link) = fs::read_link(&path) else {
                return Ok(Self::File(path));
            };
            path = path.with_file_name(link);
        }
        Err(Failure::Output {
            doing: "follow the link",
            output: shown(name),
            source: io::Error::from(rustix::io::Errno::LOOP),
        })
    }
}

/// A path, for people.
pub(crate) fn shown(path: &Path) -> String {
    on_one_line(&path.to_string_lossy())
}

/// A file that is already open.
enum Descriptor {
    Stdout,
    Other,
}

/// The open file that a path names: an entry of a folder `fd` in `/proc`, by whatever way.
fn descriptor(path: &Path) -> Option<Descriptor> {
    if path == "/dev/stdout" {
        return Some(Descriptor::Stdout);
    }
    let name = path.file_name()?;
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty())?;
    let folder = fs::canonicalize(parent).ok()?;
    if !folder.starts_with("/proc") || folder.file_name()? != "fd" {
        return None;
    }
    let own = ["/proc/self/fd", "/proc/thread-self/fd"];
    let own = own
        .iter()
        .any(|own| fs::canonicalize(own).is_ok_and(|own| own == folder));
    Some(if own && name == "1" {
        Descriptor::Stdout
    } else {
        Descriptor::Other
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn of(name: impl AsRef<Path>) -> Result<Destination, Failure> {
        Destination::of(name.as_ref())
    }

    #[test]
    fn stdout_is_known_by_all_its_names() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("l");
        symlink("/dev/stdout", &link).unwrap();
        let own = format!("/proc/{}/fd/1", std::process::id());
        for name in [
            "/dev/stdout",
            "/dev/fd/1",
            "/proc/self/fd/1",
            "//dev/../dev/fd//1",
            "/proc/thread-self/fd/1",
            &own,
            link.to_str().unwrap(),
        ] {
            assert_eq!(of(name).unwrap(), Destination::Stdout, "{name}");
        }
    }

    #[test]
    fn other_open_files_are_to_be_named_by_their_own_names() {
        for name in [
            "/dev/stderr",
            "/dev/fd/0",
            "/dev/fd/7",
            "/proc/self/fd/2",
            "/proc/1/fd/1",
            "/dev/fd/01",
        ] {
            let failure = of(name).unwrap_err();
            assert_eq!(failure.code(), 2, "{name}");
            let text = failure.to_string();
            assert!(text.contains(name) && text.contains("own name"), "{text}");
        }
    }

    #[test]
    fn links_are_followed_to_what_is_not_there_yet() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        symlink("b", at("a")).unwrap();
        symlink(at("c"), at("b")).unwrap();
        assert_eq!(of(at("a")).unwrap(), Destination::File(at("c")));
        assert_eq!(of(at("c")).unwrap(), Destination::File(at("c")));
        assert_eq!(of("x").unwrap(), Destination::File("x".into()));
        // Only an argument is stdout by this name, and no key.
        assert_eq!(of("-").unwrap(), Destination::File("-".into()));
        let chosen = Destination::chosen(Path::new("-")).unwrap();
        assert_eq!(chosen, Destination::Stdout);
    }

    #[test]
    fn links_in_a_circle_are_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        symlink("b", at("a")).unwrap();
        symlink("a", at("b")).unwrap();
        let failure = of(at("a")).unwrap_err();
        assert_eq!(failure.code(), 1);
        assert!(failure.to_string().contains("/a: "), "{failure}");
    }
}
