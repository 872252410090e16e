//! Settings by a file.

use std::fs::{File, FileType};
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use serde::de::DeserializeOwned;

use super::ConfigError;

/// The longest file of settings that is read: another file is meant then.
pub(super) const MOST_BYTES: u64 = 1 << 20;

/// What a TOML file says. An error names the file, the line and the key.
pub(crate) fn from_file<T: DeserializeOwned>(path: &Path) -> Result<T, ConfigError> {
    let text = read(path)?;
    toml::from_str(&text).map_err(|error| {
        let start = error.span().map_or(0, |span| span.start);
        let (line, key) = place(&text, start);
        let message = error.message().replace('\n', " ");
        let problem = match key {
            Some(key) if !message.contains(key) => format!("{key}: {message}"),
            _ => message,
        };
        ConfigError::File {
            path: path.to_owned(),
            line,
            problem,
        }
    })
}

fn read(path: &Path) -> Result<String, ConfigError> {
    let own = |source| ConfigError::Read {
        path: path.to_owned(),
        source,
    };
    let mut file = open(path).map_err(own)?;
    if let Some(what) = other_than_a_file(file.metadata().map_err(own)?.file_type()) {
        let path = path.to_owned();
        return Err(ConfigError::NotAFile { path, what });
    }
    let mut text = String::new();
    let read = Read::by_ref(&mut file)
        .take(MOST_BYTES + 1)
        .read_to_string(&mut text)
        .map_err(own)?;
    if read as u64 > MOST_BYTES {
        let path = path.to_owned();
        return Err(ConfigError::TooLong { path });
    }
    Ok(text)
}

/// Does not wait for anybody, as opening a pipe would for one who writes.
fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?.into())
}

/// What something is that is no regular file.
fn other_than_a_file(kind: FileType) -> Option<&'static str> {
    let what = match kind {
        kind if kind.is_file() => return None,
        kind if kind.is_dir() => "a folder",
        kind if kind.is_fifo() => "a pipe",
        kind if kind.is_char_device() || kind.is_block_device() => "a device",
        _ => "something else",
    };
    Some(what)
}

/// The line at a byte of a TOML text, counted from 1, and the key that it sets.
fn place(text: &str, at: usize) -> (usize, Option<&str>) {
    let before = &text.as_bytes()[..at.min(text.len())];
    let nth = before.iter().filter(|b| **b == b'\n').count();
    let line = text.split('\n').nth(nth).unwrap_or_default();
    (nth + 1, line.split_once('=').map(|(key, _)| key.trim()))
}
