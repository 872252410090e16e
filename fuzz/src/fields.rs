//! Inputs of targets that take several values: a line for each, `name: value`.

use std::str::FromStr;

/// The lines of an input.
pub(crate) struct Fields<'a> {
    lines: Vec<(&'a str, &'a str)>,
}

impl<'a> Fields<'a> {
    /// Lines without a colon are left out.
    pub fn of(data: &'a [u8]) -> Option<Self> {
        let lines = std::str::from_utf8(data).ok()?.lines();
        Some(Self {
            lines: lines.filter_map(|line| line.split_once(": ")).collect(),
        })
    }

    /// All lines, in their order.
    pub fn all(&self) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.lines.iter().copied()
    }

    /// The value of the first line of that name.
    pub fn text(&self, name: &str) -> Option<&'a str> {
        self.all()
            .find(|(found, _)| *found == name)
            .map(|(_, value)| value)
    }

    /// The same, where it can be read as one of these.
    pub fn value<T: FromStr>(&self, name: &str) -> Option<T> {
        self.text(name)?.parse().ok()
    }
}
