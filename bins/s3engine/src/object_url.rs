//! `s3://bucket/key` on the command line. The key is taken as it stands: nothing is decoded.

use std::fmt;
use std::str::FromStr;

/// An object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObjectUrl {
    pub(crate) bucket: String,
    pub(crate) key: String,
}

/// A text that names no object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadObjectUrl {
    #[error("{text:?} does not begin with s3://; write s3://bucket/key")]
    Scheme { text: String },
    #[error("{text:?} names no bucket; write s3://bucket/key")]
    NoBucket { text: String },
    #[error("{text:?} names no key; write s3://bucket/key")]
    NoKey { text: String },
}

impl FromStr for ObjectUrl {
    type Err = BadObjectUrl;

    fn from_str(text: &str) -> Result<Self, BadObjectUrl> {
        let own = || text.to_owned();
        let rest = text
            .strip_prefix("s3://")
            .ok_or_else(|| BadObjectUrl::Scheme { text: own() })?;
        match rest.split_once('/') {
            Some(("", _)) => Err(BadObjectUrl::NoBucket { text: own() }),
            Some((bucket, key)) if !key.is_empty() => Ok(Self {
                bucket: bucket.to_owned(),
                key: key.to_owned(),
            }),
            None if rest.is_empty() => Err(BadObjectUrl::NoBucket { text: own() }),
            _ => Err(BadObjectUrl::NoKey { text: own() }),
        }
    }
}

impl ObjectUrl {
    /// The name of a file for it: what stands after the key's last slash, if that can be one.
    pub(crate) fn file_name(&self) -> Option<&str> {
        let name = self.key.rsplit('/').next()?;
        (!matches!(name, "" | "." | "..")).then_some(name)
    }
}

impl fmt::Display for ObjectUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "s3://{}/{}",
            on_one_line(&self.bucket),
            on_one_line(&self.key)
        )
    }
}

/// Text from outside on one line: control characters are shown, not obeyed.
pub(crate) fn on_one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() {
            line.extend(c.escape_default());
        } else {
            line.push(c);
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn odd_keys_are_kept_as_they_stand() {
        for key in [
            "a b",
            "a+b",
            "a%20b",
            "ключ/文",
            "a//b",
            "/a",
            "dir/",
            "?x#y",
        ] {
            let url: ObjectUrl = format!("s3://train/{key}").parse().unwrap();
            assert_eq!((url.bucket.as_str(), url.key.as_str()), ("train", key));
        }
    }

    #[test]
    fn what_names_no_object_is_refused() {
        for text in [
            "", "train/k", "S3://b/k", "s3://", "s3:///k", "s3://b", "s3://b/",
        ] {
            assert!(text.parse::<ObjectUrl>().is_err(), "{text}");
        }
    }

    #[test]
    fn only_a_plain_last_component_names_a_file() {
        let name = |key: &str| {
            let url: ObjectUrl = format!("s3://b/{key}").parse().unwrap();
            url.file_name().map(str::to_owned)
        };
        assert_eq!(name("a/b.tar").as_deref(), Some("b.tar"));
        assert_eq!(name("a b").as_deref(), Some("a b"));
        for key in ["dir/", "a/..", ".", "a//"] {
            assert_eq!(name(key), None, "{key}");
        }
    }

    #[test]
    fn control_characters_are_shown() {
        let url: ObjectUrl = "s3://b/a\u{1b}[31m\n".parse().unwrap();
        assert_eq!(url.to_string(), "s3://b/a\\u{1b}[31m\\n");
    }

    proptest! {
        #[test]
        fn bucket_and_key_are_read_back(bucket in "[^/]{1,20}", key in ".{1,40}") {
            let url: ObjectUrl = format!("s3://{bucket}/{key}").parse().unwrap();
            prop_assert_eq!((url.bucket, url.key), (bucket, key));
        }
    }
}
