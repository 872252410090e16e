//! How much memory this process may use: the machine's, or less where a cgroup says so.

use std::fmt;
use std::fs;
use std::path::Path;

/// A bound on memory, and where it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// Bytes.
    pub bytes: u64,
    /// The file that says so.
    pub source: String,
}

impl fmt::Display for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} MiB ({})", self.bytes >> 20, self.source)
    }
}

/// The lowest of the machine's memory and the limits of this process's cgroup and its parents.
pub fn memory_limit() -> Option<MemoryLimit> {
    limit_under(Path::new("/"))
}

fn limit_under(root: &Path) -> Option<MemoryLimit> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let files = groups
        .lines()
        .filter_map(limit_file)
        .flat_map(|(mount, group, name)| {
            // A limit of any parent binds too. In a container the group's path may not be visible; its
            // own limit is then at the mount.
            Path::new(&group)
                .ancestors()
                .map(|group| {
                    root.join(mount)
                        .join(group.strip_prefix("/").unwrap_or(group))
                        .join(name)
                })
                .collect::<Vec<_>>()
        });
    let limits = files.filter_map(|file| {
        let bytes = fs::read_to_string(&file).ok()?.trim().parse().ok()?;
        Some(MemoryLimit {
            bytes,
            source: file.display().to_string(),
        })
    });
    limits
        .chain(machine_memory(root))
        .min_by_key(|limit| limit.bytes)
}

/// Mount, group and limit file of one line of `/proc/self/cgroup`.
fn limit_file(line: &str) -> Option<(&'static str, String, &'static str)> {
    let mut fields = line.splitn(3, ':');
    let (_, controllers, group) = (fields.next()?, fields.next()?, fields.next()?);
    if controllers.is_empty() {
        Some(("sys/fs/cgroup", group.to_owned(), "memory.max"))
    } else if controllers.split(',').any(|c| c == "memory") {
        Some((
            "sys/fs/cgroup/memory",
            group.to_owned(),
            "memory.limit_in_bytes",
        ))
    } else {
        None
    }
}

fn machine_memory(root: &Path) -> Option<MemoryLimit> {
    let text = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(MemoryLimit {
        bytes: kib.saturating_mul(1024),
        source: "/proc/meminfo MemTotal".into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Root(std::path::PathBuf);

    impl Root {
        fn new(name: &str) -> Self {
            let path =
                std::env::temp_dir().join(format!("s3engine-limit-{}-{name}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            let root = Self(path);
            root.file(
                "proc/meminfo",
                "MemTotal:       1048576 kB\nMemFree: 1 kB\n",
            );
            root
        }

        fn file(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn limit(&self) -> u64 {
            limit_under(&self.0).unwrap().bytes
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn without_a_cgroup_limit_the_machine_decides() {
        let root = Root::new("none");
        root.file("proc/self/cgroup", "0::/user\n");
        root.file("sys/fs/cgroup/user/memory.max", "max\n");
        assert_eq!(root.limit(), 1 << 30);
    }

    #[test]
    fn the_lowest_limit_of_the_group_and_its_parents_holds() {
        let root = Root::new("v2");
        root.file("proc/self/cgroup", "0::/a/b\n");
        root.file("sys/fs/cgroup/a/b/memory.max", "800000000\n");
        root.file("sys/fs/cgroup/a/memory.max", "700000000\n");
        assert_eq!(root.limit(), 700_000_000);
    }

    #[test]
    fn the_first_version_of_cgroups_is_read_too() {
        let root = Root::new("v1");
        root.file("proc/self/cgroup", "5:cpu:/x\n4:memory:/pod/c\n");
        root.file(
            "sys/fs/cgroup/memory/pod/c/memory.limit_in_bytes",
            "500000000\n",
        );
        root.file(
            "sys/fs/cgroup/memory/memory.limit_in_bytes",
            "9223372036854771712\n",
        );
        assert_eq!(root.limit(), 500_000_000);
    }

    #[test]
    fn a_group_path_that_a_container_hides_falls_back_to_the_mount() {
        let root = Root::new("container");
        root.file("proc/self/cgroup", "0::/../../kubepods/pod1\n");
        root.file("sys/fs/cgroup/memory.max", "400000000\n");
        assert_eq!(root.limit(), 400_000_000);
    }
}
