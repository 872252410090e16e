//! Users and groups, by number or by name.

use std::fmt;
use std::fs;
use std::str::FromStr;

use serde::de::{self, Deserialize, Deserializer, Visitor};

/// A user or group as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Account {
    Number(u32),
    Name(String),
}

/// A text that can be neither a number nor a name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is neither the number nor the name of a user or group")]
pub(crate) struct BadAccount {
    text: String,
}

impl FromStr for Account {
    type Err = BadAccount;

    fn from_str(text: &str) -> Result<Self, BadAccount> {
        let bad = || BadAccount {
            text: text.to_owned(),
        };
        if let Ok(number) = text.parse() {
            return Self::numbered(number).ok_or_else(bad);
        }
        let numeric = text.starts_with(|c: char| c.is_ascii_digit() || "+-".contains(c));
        let plain = !numeric && !text.is_empty() && !text.contains([':', ' ', '\n']);
        plain.then(|| Self::Name(text.to_owned())).ok_or_else(bad)
    }
}

impl Account {
    /// All ones stands for none.
    fn numbered(number: u32) -> Option<Self> {
        (number != u32::MAX).then_some(Self::Number(number))
    }

    /// The user's number.
    pub(crate) fn uid(&self) -> Result<u32, String> {
        self.found_in("/etc/passwd", "user")
    }

    /// The group's number.
    pub(crate) fn gid(&self) -> Result<u32, String> {
        self.found_in("/etc/group", "group")
    }

    fn found_in(&self, path: &str, kind: &str) -> Result<u32, String> {
        let name = match self {
            Self::Number(number) => return Ok(*number),
            Self::Name(name) => name,
        };
        let text = fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
        number_of(&text, name).ok_or_else(|| {
            format!(
                "there is no {kind} {name:?} in {path}: one of a directory is given by its number"
            )
        })
    }
}

/// The number of a name in a file of the form of `/etc/passwd` and `/etc/group`.
fn number_of(text: &str, name: &str) -> Option<u32> {
    let fields = text.lines().map(|line| line.split(':'));
    let mut found = fields.filter_map(|mut fields| {
        let named = fields.next() == Some(name);
        named.then(|| fields.nth(1)?.parse().ok()).flatten()
    });
    found.next()
}

impl<'de> Deserialize<'de> for Account {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NumberOrName)
    }
}

struct NumberOrName;

impl Visitor<'_> for NumberOrName {
    type Value = Account;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the number or the name of a user or group")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Account, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Account, E> {
        let number = u32::try_from(number).ok();
        number
            .and_then(Account::numbered)
            .ok_or_else(|| E::custom("a user or group has a number from 0 to 4294967294"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_itself_and_a_name_is_looked_up() {
        assert_eq!("1000".parse::<Account>().unwrap().uid(), Ok(1000));
        assert_eq!("root".parse::<Account>().unwrap().uid(), Ok(0));
        assert_eq!("root".parse::<Account>().unwrap().gid(), Ok(0));
        let error = "no-such-user".parse::<Account>().unwrap().uid();
        let error = error.unwrap_err();
        assert!(error.contains("no-such-user") && error.contains("/etc/passwd"));
    }

    #[test]
    fn what_is_neither_is_refused() {
        for text in ["", "-1", "4294967295", "99999999999", "a:b", "1x", "a b"] {
            assert!(text.parse::<Account>().is_err(), "{text}");
        }
    }

    #[test]
    fn names_are_whole_fields() {
        let text =
            "root:x:0:0:root:/root:/bin/sh\nal:x:7:7::/:\nalice:x:1001:100::/:/bin/sh\nbad\n";
        assert_eq!(number_of(text, "alice"), Some(1001));
        assert_eq!(number_of(text, "al"), Some(7));
        assert_eq!(number_of(text, "bad"), None);
        assert_eq!(number_of(text, "x"), None);
    }
}
