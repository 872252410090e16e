//! Texts of vendors' libraries.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;

use super::OpenError;

/// Longer ones are cut.
const MOST: usize = 512;

/// What a library has written, fit to be shown: in one line, without control characters, not without end.
pub(crate) fn shown(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let plain = text.trim().chars().take(MOST);
    plain
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

impl OpenError {
    /// Whether what a path names can be loaded: of a pipe or a device the loader would wait for ever. A name without a
    /// folder is looked for by the loader itself.
    pub(crate) fn unless_a_file(name: &OsStr) -> Result<(), Self> {
        let is_path = name.as_bytes().contains(&b'/');
        match fs::metadata(name) {
            Ok(found) if is_path && !found.is_file() => Err(OpenError::Failed {
                text: format!("cannot load {}: not a regular file", name.display()),
            }),
            // What is not there is told by the loader.
            _ => Ok(()),
        }
    }

    /// The loader did not load it: it is not there, where it was only looked for; or it was asked for, or lacks
    /// something itself.
    pub(crate) fn not_loaded(name: &OsStr, was_asked_for: bool, error: &libloading::Error) -> Self {
        let name = name.display().to_string();
        let why = std::error::Error::source(error).map_or(error.to_string(), |e| e.to_string());
        let why = shown(why.as_bytes());
        let is_absent =
            why.starts_with(&format!("{name}: cannot open")) && why.contains("No such file");
        let text = match why.contains(&name) {
            true => format!("cannot load {why}"),
            false => format!("cannot load {name}: {why}"),
        };
        match is_absent && !was_asked_for {
            true => OpenError::NotFound {
                text: format!("{name} is not on this host"),
            },
            false => OpenError::Failed { text },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_loader_would_wait_for_is_not_loaded() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe.so");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, 0o600.into()).unwrap();
        for path in [pipe.as_path(), folder.path(), "/dev/zero".as_ref()] {
            let error = OpenError::unless_a_file(path.as_os_str()).unwrap_err();
            let text = error.to_string();
            assert!(text.contains(&path.display().to_string()), "{text}");
            assert!(text.contains("not a regular file"), "{text}");
        }
        for left_to_the_loader in ["/nowhere/lib.so", "libc.so.6", "src", "/proc/self/exe"] {
            assert_eq!(
                OpenError::unless_a_file(left_to_the_loader.as_ref()),
                Ok(())
            );
        }
    }

    #[test]
    fn texts_are_shown_in_one_line_and_not_without_end() {
        assert_eq!(shown(b" a\nb\x1b[2J\xff "), "a b [2J\u{fffd}");
        assert_eq!(shown(&[b'x'; 5000]).len(), MOST);
    }
}
