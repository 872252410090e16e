//! Texts of vendors' libraries.

use std::ffi::OsStr;

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
    fn texts_are_shown_in_one_line_and_not_without_end() {
        assert_eq!(shown(b" a\nb\x1b[2J\xff "), "a b [2J\u{fffd}");
        assert_eq!(shown(&[b'x'; 5000]).len(), MOST);
    }
}
