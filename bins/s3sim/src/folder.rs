//! The files of a folder as objects: each subfolder is a bucket.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::store::Entry;

/// A folder whose subfolders are buckets.
pub(crate) struct Folder {
    root: PathBuf,
    buckets: Vec<String>,
}

impl Folder {
    /// Takes the subfolders that are there now as the buckets.
    pub fn open(root: PathBuf) -> io::Result<Folder> {
        let root = root.canonicalize()?;
        let mut buckets = Vec::new();
        for entry in fs::read_dir(&root)? {
            let entry = entry?;
            if let (true, Ok(name)) = (entry.file_type()?.is_dir(), entry.file_name().into_string())
            {
                buckets.push(name);
            }
        }
        buckets.sort();
        Ok(Folder { root, buckets })
    }

    pub fn buckets(&self) -> &[String] {
        &self.buckets
    }

    /// Opens the file of a key. `None` where there is none, where the key is not the plain name of
    /// a file inside the bucket, or where links lead out of it.
    pub fn find(&self, bucket: &str, key: &str, version: u64) -> Option<(File, Entry)> {
        let plain = |part: &str| !part.is_empty() && part != "." && part != "..";
        if key.contains('\0') || !key.split('/').all(plain) {
            return None;
        }
        let bucket = self.root.join(bucket);
        let path = bucket.join(key).canonicalize().ok()?;
        if !path.starts_with(&bucket) {
            return None;
        }
        let file = File::open(path).ok()?;
        let metadata = file.metadata().ok().filter(Metadata::is_file)?;
        Some((file, entry(key.to_owned(), &metadata, version)))
    }

    /// All files of a bucket whose names are UTF-8, sorted by key. Linked folders are not entered.
    pub fn list(&self, bucket: &str, version: impl Fn(&str) -> u64) -> io::Result<Vec<Entry>> {
        let base = self.root.join(bucket);
        let mut entries = Vec::new();
        let mut folders = vec![base.clone()];
        while let Some(folder) = folders.pop() {
            for found in fs::read_dir(folder)? {
                let found = found?;
                let kind = found.file_type()?;
                let Some(key) = key_of(&base, &found.path()) else {
                    continue;
                };
                let version = version(&key);
                if kind.is_dir() {
                    folders.push(found.path());
                } else if kind.is_symlink() {
                    entries.extend(self.find(bucket, &key, version).map(|(_, entry)| entry));
                } else if kind.is_file() {
                    entries.push(entry(key, &found.metadata()?, version));
                }
            }
        }
        entries.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(entries)
    }
}

fn key_of(bucket: &Path, path: &Path) -> Option<String> {
    Some(path.strip_prefix(bucket).ok()?.to_str()?.to_owned())
}

fn entry(key: String, metadata: &Metadata, version: u64) -> Entry {
    let (seconds, nanos) = (metadata.mtime(), metadata.mtime_nsec());
    Entry {
        key,
        size: metadata.len(),
        etag: format!("\"{:x}-{seconds:x}{nanos:08x}-{version}\"", metadata.len()),
        modified: metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH),
    }
}

/// Reads from `offset` on until `into` is full; what lies beyond the end of the file is zeros.
pub(crate) fn read_at(file: &File, mut offset: u64, mut into: &mut [u8]) -> io::Result<()> {
    while !into.is_empty() {
        match file.read_at(into, offset) {
            Ok(0) => {
                into.fill(0);
                return Ok(());
            }
            Ok(n) => {
                into = &mut into[n..];
                offset += n as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> (tempfile::TempDir, Folder) {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("b/sub")).unwrap();
        fs::write(root.path().join("b/a b+%.txt"), "hello").unwrap();
        fs::write(root.path().join("b/sub/x"), "").unwrap();
        fs::write(root.path().join("outside"), "secret").unwrap();
        std::os::unix::fs::symlink("../outside", root.path().join("b/link")).unwrap();
        let folder = Folder::open(root.path().to_owned()).unwrap();
        (root, folder)
    }

    #[test]
    fn files_are_found_by_their_exact_names() {
        let (_root, folder) = folder();
        assert_eq!(folder.buckets(), ["b"]);
        let (file, entry) = folder.find("b", "a b+%.txt", 0).unwrap();
        let mut bytes = [1; 8];
        read_at(&file, 1, &mut bytes).unwrap();
        assert_eq!((&bytes, entry.size), (b"ello\0\0\0\0", 5));
        assert_eq!(folder.find("b", "sub/x", 0).unwrap().1.size, 0);
        for key in ["", "sub", "sub/", "sub//x", "/sub/x", "sub/./x", "nothing"] {
            assert!(folder.find("b", key, 0).is_none(), "{key}");
        }
    }

    #[test]
    fn nothing_outside_the_bucket_can_be_reached() {
        let (_root, folder) = folder();
        for key in [
            "../outside",
            "sub/../../outside",
            "link",
            "a\0",
            "/etc/passwd",
        ] {
            assert!(folder.find("b", key, 0).is_none(), "{key}");
        }
    }

    #[test]
    fn a_listing_has_every_file_that_can_be_read_in_order() {
        let (_root, folder) = folder();
        let entries = folder.list("b", |_| 0).unwrap();
        let keys: Vec<&str> = entries.iter().map(|e| e.key.as_str()).collect();
        assert_eq!(keys, ["a b+%.txt", "sub/x"]);
    }

    #[test]
    fn an_etag_changes_with_the_file_and_with_a_swap() {
        let (root, folder) = folder();
        let etag = |version| folder.find("b", "sub/x", version).unwrap().1.etag;
        let before = etag(0);
        assert_ne!(before, etag(1));
        fs::write(root.path().join("b/sub/x"), "longer").unwrap();
        assert_ne!(before, etag(0));
    }
}
