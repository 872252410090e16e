//! What there is to read: synthetic objects, or the files of a folder; and the version of each.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use crate::content::{self, Phase};
use crate::folder::Folder;
use crate::s3_error::S3Error;

/// The synthetic names that listings show. GET serves every key that follows the grammar.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    /// How many names there are, in every bucket.
    pub count: u32,
    /// The size of each object.
    pub size: u64,
    /// What every name begins with; `train/` for example.
    pub prefix: String,
}

/// One name of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub key: String,
    pub size: u64,
    pub etag: String,
    pub modified: SystemTime,
}

/// One version of one object.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    pub size: u64,
    pub etag: String,
    pub modified: SystemTime,
    pub version: u64,
    pub source: Source,
}

/// Where an object's bytes are.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    Synthetic(Phase),
    File(Arc<File>),
}

/// All objects.
pub(crate) struct Store {
    backing: Backing,
    /// Versions over 0, by `bucket/key`.
    versions: RwLock<HashMap<String, u64>>,
    started: SystemTime,
}

enum Backing {
    Synthetic {
        buckets: Vec<String>,
        listed: Vec<Entry>,
    },
    Folder(Folder),
}

impl Store {
    pub fn synthetic<'a>(
        buckets: Vec<String>,
        listed: &Listed,
        names: impl Iterator<Item = &'a String>,
    ) -> Store {
        // A whole second, as HTTP dates have no fractions.
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let started = SystemTime::UNIX_EPOCH + Duration::from_secs(now.as_secs());
        let entry = |(key, size): (String, u64)| Entry {
            etag: synthetic_etag(&key, 0),
            size,
            modified: started,
            key,
        };
        let numbered = (0..listed.count).map(|i| {
            let key = format!("{}{}-{i:010}", listed.prefix, listed.size);
            (key, listed.size)
        });
        let named = names.filter_map(|key| Some((key.clone(), content::size_of_key(key)?)));
        let mut listed: Vec<_> = numbered.chain(named).map(entry).collect();
        listed.sort_by(|a, b| a.key.cmp(&b.key));
        let backing = Backing::Synthetic { buckets, listed };
        Store {
            backing,
            versions: RwLock::default(),
            started,
        }
    }

    pub fn folder(root: PathBuf) -> io::Result<Store> {
        let backing = Backing::Folder(Folder::open(root)?);
        Ok(Store {
            backing,
            versions: RwLock::default(),
            started: SystemTime::UNIX_EPOCH,
        })
    }

    /// The buckets' names where they are known beforehand, for virtual-host style.
    pub fn buckets(&self) -> &[String] {
        match &self.backing {
            Backing::Synthetic { buckets, .. } => buckets,
            Backing::Folder(folder) => folder.buckets(),
        }
    }

    pub fn check_bucket(&self, bucket: &str) -> Result<(), S3Error> {
        if self.buckets().iter().any(|known| known == bucket) {
            return Ok(());
        }
        Err(S3Error::new(
            404,
            "NoSuchBucket",
            "The specified bucket does not exist",
        ))
    }

    /// An object; of the version that `version` names, where it names one.
    pub fn object(&self, bucket: &str, key: &str, version: Option<u64>) -> Result<Object, S3Error> {
        self.check_bucket(bucket)?;
        let no_such_key = || S3Error::new(404, "NoSuchKey", "The specified key does not exist.");
        let current = self.version(bucket, key);
        let version = version.unwrap_or(current);
        if version > current {
            let text = "The specified version does not exist.";
            return Err(S3Error::new(404, "NoSuchVersion", text));
        }
        match &self.backing {
            Backing::Synthetic { .. } => Ok(Object {
                size: content::size_of_key(key).ok_or_else(no_such_key)?,
                etag: synthetic_etag(key, version),
                modified: self.started,
                version,
                source: Source::Synthetic(content::phase(key, version)),
            }),
            Backing::Folder(folder) => {
                let (file, entry) = folder.find(bucket, key, version).ok_or_else(no_such_key)?;
                let Entry {
                    size,
                    etag,
                    modified,
                    ..
                } = entry;
                let source = Source::File(Arc::new(file));
                Ok(Object {
                    size,
                    etag,
                    modified,
                    version,
                    source,
                })
            }
        }
    }

    /// Gives an object a new version.
    pub fn swap(&self, bucket: &str, key: &str) {
        let mut versions = self
            .versions
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        *versions.entry(format!("{bucket}/{key}")).or_default() += 1;
    }

    /// All names of a bucket, sorted.
    pub fn list(&self, bucket: &str) -> Result<Cow<'_, [Entry]>, S3Error> {
        self.check_bucket(bucket)?;
        match &self.backing {
            Backing::Folder(folder) => {
                let version = |key: &str| self.version(bucket, key);
                let entries = folder.list(bucket, version).map_err(|error| {
                    S3Error::new(
                        500,
                        "InternalError",
                        format!("cannot list the folder: {error}"),
                    )
                })?;
                Ok(Cow::Owned(entries))
            }
            Backing::Synthetic { listed, .. } if self.is_unchanged() => Ok(Cow::Borrowed(listed)),
            Backing::Synthetic { listed, .. } => {
                let mut listed = listed.clone();
                for entry in &mut listed {
                    entry.etag = synthetic_etag(&entry.key, self.version(bucket, &entry.key));
                }
                Ok(Cow::Owned(listed))
            }
        }
    }

    fn is_unchanged(&self) -> bool {
        self.versions
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .is_empty()
    }

    fn version(&self, bucket: &str, key: &str) -> u64 {
        let versions = self.versions.read().unwrap_or_else(PoisonError::into_inner);
        if versions.is_empty() {
            return 0;
        }
        versions
            .get(&format!("{bucket}/{key}"))
            .copied()
            .unwrap_or(0)
    }
}

/// Opaque; with the suffix of multipart objects, so that nobody takes it for an MD5.
fn synthetic_etag(key: &str, version: u64) -> String {
    let (high, low) = (
        content::hash(key, version, 1),
        content::hash(key, version, 2),
    );
    format!("\"{high:016x}{low:016x}-1\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store() -> Store {
        let listed = Listed {
            count: 3,
            size: 64,
            prefix: "t/".into(),
        };
        Store::synthetic(vec!["bench".into()], &listed, ["z/5-é".to_owned()].iter())
    }

    #[test]
    fn a_missing_bucket_and_a_missing_key_stay_apart() {
        assert_eq!(
            store().object("x", "64", None).unwrap_err().code,
            "NoSuchBucket"
        );
        assert_eq!(
            store().object("bench", "x", None).unwrap_err().code,
            "NoSuchKey"
        );
        assert_eq!(
            store().object("bench", "64KiB-1", None).unwrap().size,
            65536
        );
    }

    #[test]
    fn a_swap_changes_the_etag_and_older_versions_stay_readable() {
        let store = store();
        let before = store.object("bench", "64", None).unwrap();
        store.swap("bench", "64");
        let after = store.object("bench", "64", None).unwrap();
        assert_ne!(before.etag, after.etag);
        assert_eq!((before.version, after.version), (0, 1));
        assert_eq!(
            store.object("bench", "64", Some(0)).unwrap().etag,
            before.etag
        );
        let error = store.object("bench", "64", Some(7)).unwrap_err();
        assert_eq!((error.status, &*error.code), (404, "NoSuchVersion"));
    }

    #[test]
    fn listed_names_are_sorted_readable_and_follow_swaps() {
        let store = store();
        let first = store.list("bench").unwrap().to_vec();
        assert!(first.is_sorted_by(|a, b| a.key < b.key));
        for entry in &first {
            let object = store.object("bench", &entry.key, None).unwrap();
            assert_eq!((object.size, &object.etag), (entry.size, &entry.etag));
        }
        store.swap("bench", &first[1].key);
        let second = store.list("bench").unwrap();
        assert_ne!(first[1].etag, second[1].etag);
        assert_eq!(first[2].etag, second[2].etag);
    }
}
