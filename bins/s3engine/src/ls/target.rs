//! `s3://bucket` or `s3://bucket/prefix` on the command line. The prefix is taken as it stands: nothing is decoded.

use std::str::FromStr;

/// What is listed: all names of a bucket that begin with a prefix, which may be empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) bucket: String,
    pub(crate) prefix: String,
}

/// A text that names no bucket.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadTarget {
    #[error("{text:?} does not begin with s3://; write s3://bucket or s3://bucket/prefix")]
    Scheme { text: String },
    #[error("{text:?} names no bucket; write s3://bucket or s3://bucket/prefix")]
    NoBucket { text: String },
}

impl FromStr for Target {
    type Err = BadTarget;

    fn from_str(text: &str) -> Result<Self, BadTarget> {
        let own = || text.to_owned();
        let rest = text
            .strip_prefix("s3://")
            .ok_or_else(|| BadTarget::Scheme { text: own() })?;
        match rest.split_once('/').unwrap_or((rest, "")) {
            ("", _) => Err(BadTarget::NoBucket { text: own() }),
            (bucket, prefix) => Ok(Self {
                bucket: bucket.to_owned(),
                prefix: prefix.to_owned(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_bucket_needs_no_prefix_and_an_odd_prefix_is_kept() {
        for (text, prefix) in [
            ("s3://train", ""),
            ("s3://train/", ""),
            ("s3://train//a", "/a"),
            ("s3://train/a+b%20 ü/", "a+b%20 ü/"),
            ("s3://train/?x#y", "?x#y"),
        ] {
            let target: Target = text.parse().unwrap();
            assert_eq!(
                (target.bucket.as_str(), target.prefix.as_str()),
                ("train", prefix)
            );
        }
    }

    #[test]
    fn what_names_no_bucket_is_refused() {
        for text in ["", "train", "s3://", "s3:///a", "S3://train"] {
            let error = text.parse::<Target>().unwrap_err().to_string();
            assert!(error.contains("write s3://bucket"), "{text}");
        }
    }

    proptest! {
        #[test]
        fn bucket_and_prefix_are_read_back(bucket in "[^/]{1,20}", prefix in ".{0,40}") {
            let target: Target = format!("s3://{bucket}/{prefix}").parse().unwrap();
            prop_assert_eq!((target.bucket, target.prefix), (bucket, prefix));
        }
    }
}
