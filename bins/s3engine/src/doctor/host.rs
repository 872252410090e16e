//! What this host has: kernel, devices, limits. Read from files, and judged.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use s3engine::topology::{NicPort, PortState, Topology};

use super::finding::Finding;

/// No file that is read here is as long.
const MOST: u64 = 1 << 20;
/// A slab, which is registered as a whole.
const SLAB: u64 = 256 << 20;

/// Where files are looked for: `/`, but for tests.
pub(crate) struct Root(pub(crate) PathBuf);

impl Root {
    fn path(&self, path: &str) -> PathBuf {
        self.0.join(path)
    }

    fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    fn text(&self, path: &str) -> Option<String> {
        let path = self.path(path);
        let small = fs::metadata(&path).ok()?.len() <= MOST;
        let text = small.then(|| fs::read_to_string(path).ok())??;
        Some(text.trim().to_owned())
    }

    fn names(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(path)).into_iter().flatten();
        let names = entries.flatten().take(4096);
        let mut names: Vec<_> = names
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort();
        names
    }

    pub(crate) fn topology(&self) -> Topology {
        Topology::under(&self.path("sys"))
    }

    /// Whether a module of the kernel is there; built in ones are as well.
    fn has_module(&self, name: &str) -> bool {
        let listed = self.text("proc/modules").unwrap_or_default();
        let is_listed = listed
            .lines()
            .any(|line| line.split(' ').next() == Some(name));
        is_listed || self.exists(&format!("sys/module/{name}"))
    }
}

/// The kernel's part, and its files.
pub(crate) fn kernel(root: &Root) -> Finding {
    const NAME: &str = "kernel";
    let loaded: Vec<_> = ["ib_uverbs", "mlx5_ib", "rdma_ucm"]
        .into_iter()
        .filter(|name| root.has_module(name))
        .collect();
    let files: Vec<_> = root
        .names("dev/infiniband")
        .into_iter()
        .filter(|name| name.starts_with("uverbs"))
        .collect();
    if !loaded.contains(&"ib_uverbs") {
        return Finding::fail(NAME, "ib_uverbs is not loaded")
            .means("programs cannot reach RDMA devices")
            .help("modprobe ib_uverbs mlx5_ib; in a container this is the host's to do");
    }
    if files.is_empty() {
        return Finding::fail(
            NAME,
            "ib_uverbs is loaded, and /dev/infiniband has no uverbs file",
        )
        .means("no device is bound to it, or the container was not given the files")
        .help(
            "give the container the devices (--device /dev/infiniband, or the RDMA device plugin)",
        );
    }
    let closed: Vec<_> = files
        .iter()
        .filter(|file| {
            let path = root.path(&format!("dev/infiniband/{file}"));
            let opened = fs::OpenOptions::new().read(true).write(true).open(path);
            opened.is_err()
        })
        .map(String::as_str)
        .collect();
    if !closed.is_empty() {
        let what = format!("/dev/infiniband: {} cannot be opened", closed.join(", "));
        return Finding::fail(NAME, what)
            .help("let this user read and write them (group rdma, or a udev rule)");
    }
    let what = format!(
        "{} loaded; /dev/infiniband: {}",
        loaded.join(", "),
        files.join(", ")
    );
    Finding::ok(NAME, what)
}

/// The devices, their ports, and whether their addresses are of the endpoint's kind.
pub(crate) fn devices(topology: &Topology, endpoint: &[IpAddr]) -> Vec<Finding> {
    const NAME: &str = "device";
    if topology.nics.is_empty() {
        return vec![
            Finding::fail(NAME, "no RDMA device (/sys/class/infiniband has none)")
                .means("this host, or this container, has no card that can do RDMA")
                .help("an mlx5 device (ConnectX-4 or newer) is needed for these fabrics"),
        ];
    }
    let ports = topology.nics.iter().flat_map(|nic| {
        let of_port = |port: &NicPort| {
            let state = topology.port_state(nic, port.number);
            self::port(&nic.name, port, &state, endpoint)
        };
        nic.ports.iter().map(of_port).collect::<Vec<_>>()
    });
    ports.collect()
}

fn port(nic: &str, port: &NicPort, state: &PortState, endpoint: &[IpAddr]) -> Finding {
    const NAME: &str = "device";
    let up = state.state.as_deref().unwrap_or("of unknown state");
    let layer = state.link_layer.as_deref().unwrap_or("unknown link");
    let rate = port
        .gbit_per_s
        .map_or("unknown rate".to_owned(), |rate| format!("{rate} Gb/s"));
    let what = format!("{nic} port {} {up} {rate}, {layer}", port.number);
    if !port.up {
        return Finding::warn(NAME, what)
            .means("nothing goes by this port")
            .help("cable, switch port, or `ip link set up` of its interface");
    }
    if !nic.starts_with("mlx5") {
        return Finding::warn(NAME, what)
            .means("dynamically connected transport, which these fabrics need, is of mlx5 devices; named ones are not known to have it");
    }
    let usable = state.gids.iter().filter(|gid| match gid.ip() {
        IpAddr::V4(_) => true,
        IpAddr::V6(v6) => !v6.is_unicast_link_local(),
    });
    let addresses: Vec<_> = usable.map(|gid| (gid.index, gid.ip())).collect();
    if layer == "InfiniBand" {
        return Finding::ok(NAME, what);
    }
    let shown: Vec<_> = addresses
        .iter()
        .map(|(index, address)| format!("GID {index} {address}"))
        .collect();
    let what = format!(
        "{what}, {}",
        match shown.is_empty() {
            true => "no GID but link-local ones".to_owned(),
            false => shown.join(", "),
        }
    );
    let same = |ip: &IpAddr| {
        addresses
            .iter()
            .any(|(_, own)| own.is_ipv4() == ip.is_ipv4())
    };
    if !endpoint.is_empty() && !endpoint.iter().any(same) {
        return Finding::warn(NAME, what)
            .means("no address of the endpoint is of the kind that this port has: its requests do not begin at the port")
            .help("give the port's interface an address of that kind, or name the endpoint by one of the port's");
    }
    Finding::ok(NAME, what)
}

/// How much memory may be registered.
pub(crate) fn memlock(limit: Option<u64>) -> Finding {
    const NAME: &str = "memlock";
    match limit {
        None => Finding::ok(NAME, "no limit"),
        Some(bytes) if bytes >= 64 * SLAB => Finding::ok(NAME, format!("{} MiB", bytes >> 20)),
        Some(bytes) => Finding::warn(NAME, format!("{} KiB soft limit", bytes >> 10))
            .means("host memory is registered in slabs of 256 MiB; drivers refuse what is over this limit (errno 12)")
            .help("ulimit -l unlimited, LimitMEMLOCK=infinity in the unit, or CAP_IPC_LOCK"),
    }
}

/// Pages that registrations are cheap with.
pub(crate) fn huge_pages(root: &Root) -> Finding {
    const NAME: &str = "huge pages";
    let number = |file: &str| {
        let path = format!("sys/kernel/mm/hugepages/hugepages-2048kB/{file}");
        root.text(&path)?.parse::<u64>().ok()
    };
    let transparent = root.text("sys/kernel/mm/transparent_hugepage/shmem_enabled");
    let chosen = transparent.as_deref().and_then(|text| {
        let (_, rest) = text.split_once('[')?;
        rest.split_once(']').map(|(chosen, _)| chosen.to_owned())
    });
    let of_shared = chosen.map_or(String::new(), |chosen| {
        format!("; transparent ones for shared memory: {chosen}")
    });
    match (number("nr_hugepages"), number("free_hugepages")) {
        (Some(all @ 1..), Some(free)) => Finding::ok(
            NAME,
            format!("{free} of {all} of 2 MiB are free{of_shared}"),
        ),
        (Some(_), _) => Finding::ok(NAME, format!("none set aside{of_shared}"))
            .means("registration of many small pages takes longer; nothing fails"),
        (None, _) => Finding::skip(NAME, format!("not known here{of_shared}")),
    }
}

/// Whether the kernel's queues for requests are open.
pub(crate) fn io_uring(root: &Root) -> Finding {
    const NAME: &str = "io_uring";
    match root.text("proc/sys/kernel/io_uring_disabled").as_deref() {
        Some("0") => Finding::ok(NAME, "allowed by the kernel"),
        Some(_) => Finding::ok(NAME, "switched off (kernel.io_uring_disabled)")
            .means("this version moves bytes without it"),
        None => Finding::skip(NAME, "not known here; this version moves bytes without it"),
    }
}

/// Where loaders look for libraries.
const PLACES: [&str; 8] = [
    "usr/lib/x86_64-linux-gnu",
    "lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "lib64",
    "usr/lib",
    "usr/local/lib",
    "usr/local/cuda/lib64",
];

/// Libraries that the vendors' need, and the class above cuFile; none of them is loaded.
pub(crate) fn libraries(root: &Root, more: &[PathBuf]) -> Finding {
    const NAME: &str = "libraries";
    let places: Vec<_> = more
        .iter()
        .cloned()
        .chain(PLACES.iter().map(|place| root.path(place)))
        .collect();
    let find = |name: &str| {
        let found = places
            .iter()
            .map(|place| place.join(name))
            .find(|path| path.exists())?;
        // The name behind the link has the version.
        let behind = fs::canonicalize(&found).unwrap_or(found);
        behind.file_name()?.to_str().map(str::to_owned)
    };
    let (mut found, mut absent) = (Vec::new(), Vec::new());
    for name in [
        "libibverbs.so.1",
        "libmlx5.so.1",
        "librdmacm.so.1",
        "libcuobjclient.so.1",
        "libcuda.so.1",
    ] {
        match find(name) {
            Some(file) => found.push(file),
            None => absent.push(name),
        }
    }
    let what = match (found.is_empty(), absent.is_empty()) {
        (_, true) => found.join(", "),
        (true, _) => format!("none of {}", absent.join(", ")),
        (false, false) => format!("{}; not found: {}", found.join(", "), absent.join(", ")),
    };
    let lacks_verbs = absent
        .iter()
        .any(|name| name.starts_with("libibverbs") || name.starts_with("libmlx5"));
    match lacks_verbs {
        true => Finding::fail(NAME, what)
            .means("without rdma-core no vendor's library reaches a device")
            .help("install rdma-core (libibverbs1, ibverbs-providers, librdmacm1)"),
        false => Finding::ok(NAME, what),
    }
}

/// What lets a card reach the memory of GPUs.
pub(crate) fn gpu_access(root: &Root, gpus: usize, have_dma_buf: bool) -> Finding {
    const NAME: &str = "gpu access";
    if gpus == 0 {
        return Finding::skip(NAME, "no GPU is seen");
    }
    let version = root.text("proc/driver/nvidia/version").unwrap_or_default();
    let driver = match version.contains("Open Kernel Module") {
        true => "open kernel module",
        false if version.is_empty() => "driver of unknown kind",
        false => "proprietary kernel module",
    };
    let peermem = root.has_module("nvidia_peermem");
    let has = |what: bool| if what { "yes" } else { "no" };
    let what = format!(
        "nvidia_peermem {}, dma_buf {}, {driver}",
        has(peermem),
        has(have_dma_buf)
    );
    match (peermem, have_dma_buf) {
        (true, _) => Finding::ok(NAME, what),
        (false, true) => Finding::warn(NAME, what)
            .means("libs3rdma reaches GPU memory only by nvidia_peermem; cuFile by dma_buf as well")
            .help("modprobe nvidia_peermem; or --fabric cufile with rdma_peer_type dmabuf"),
        (false, false) => Finding::fail(NAME, what)
            .means("no card can reach GPU memory: GETs into it go by HTTP, or through host memory")
            .help("modprobe nvidia_peermem, or NVIDIA's open kernel modules, which have dma_buf"),
    }
}

/// The folders of `LD_LIBRARY_PATH`.
pub(crate) fn library_path(text: Option<&str>) -> Vec<PathBuf> {
    let folders = text.unwrap_or_default().split(':');
    let folders = folders.filter(|folder| !folder.is_empty());
    folders.map(|folder| Path::new(folder).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;
    use crate::doctor::finding::Verdict;

    /// A host that has these files.
    fn host(files: &[(&str, &str)]) -> (TempDir, Root) {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let root = Root(folder.path().to_owned());
        (folder, root)
    }

    const PORT: &str = "sys/class/infiniband/mlx5_0/ports/1";

    fn with_port<'a>(name: &'a str, text: &'a str) -> Vec<(String, &'a str)> {
        let mut files = vec![
            ("state", "4: ACTIVE"),
            ("rate", "400 Gb/sec (4X NDR)"),
            ("link_layer", "Ethernet"),
            ("gids/0", "fe80::1"),
            ("gids/3", "::ffff:15.15.15.234"),
        ];
        files.retain(|(file, _)| *file != name);
        files.push((name, text));
        let full = |(file, text)| (format!("{PORT}/{file}"), text);
        files.into_iter().map(full).collect()
    }

    fn judged(name: &str, text: &str, endpoint: &str) -> Finding {
        let files = with_port(name, text);
        let files: Vec<_> = files
            .iter()
            .map(|(path, text)| (path.as_str(), *text))
            .collect();
        let (_folder, root) = host(&files);
        let endpoint: Vec<IpAddr> = endpoint.parse().into_iter().collect();
        devices(&root.topology(), &endpoint).remove(0)
    }

    #[test]
    fn a_host_without_the_kernels_part_or_its_files_is_told_what_lacks() {
        let (_folder, root) = host(&[]);
        assert!(kernel(&root).what.contains("ib_uverbs is not loaded"));
        let (_folder, root) = host(&[("proc/modules", "ib_uverbs 1 0 - Live 0x0\n")]);
        assert!(kernel(&root).what.contains("has no uverbs file"));
        let (_folder, root) = host(&[
            ("sys/module/ib_uverbs/x", ""),
            ("sys/module/mlx5_ib/x", ""),
            ("dev/infiniband/uverbs0", ""),
        ]);
        let found = kernel(&root);
        assert_eq!(found.verdict, Verdict::Ok, "{found:?}");
        assert!(
            found.what.contains("ib_uverbs, mlx5_ib loaded"),
            "{found:?}"
        );
    }

    #[test]
    fn ports_are_judged_by_state_kind_and_addresses() {
        let fine = judged("state", "4: ACTIVE", "15.15.15.1");
        assert_eq!(fine.verdict, Verdict::Ok, "{fine:?}");
        assert!(
            fine.what
                .contains("mlx5_0 port 1 ACTIVE 400 Gb/s, Ethernet, GID 3 15.15.15.234"),
            "{fine:?}"
        );
        let down = judged("state", "1: DOWN", "15.15.15.1");
        assert_eq!(down.verdict, Verdict::Warn, "{down:?}");
        let other = judged("state", "4: ACTIVE", "2001:db8::1");
        assert!(other.means.unwrap().contains("no address of the endpoint"));
        let none = judged("gids/3", "::", "15.15.15.1");
        assert!(none.what.contains("no GID but link-local ones"), "{none:?}");
        let (_folder, root) = host(&[]);
        assert_eq!(devices(&root.topology(), &[])[0].verdict, Verdict::Fail);
    }

    #[test]
    fn limits_and_pages_are_told_with_what_they_mean() {
        assert_eq!(memlock(None).verdict, Verdict::Ok);
        let small = memlock(Some(64 << 10));
        assert_eq!(
            (small.verdict, &*small.what),
            (Verdict::Warn, "64 KiB soft limit")
        );
        let pages = "sys/kernel/mm/hugepages/hugepages-2048kB";
        let (_folder, root) = host(&[
            (&format!("{pages}/nr_hugepages"), "8"),
            (&format!("{pages}/free_hugepages"), "3"),
            (
                "sys/kernel/mm/transparent_hugepage/shmem_enabled",
                "always [advise] never",
            ),
        ]);
        let what = huge_pages(&root).what;
        assert_eq!(
            what,
            "3 of 8 of 2 MiB are free; transparent ones for shared memory: advise"
        );
    }

    #[test]
    fn libraries_are_found_by_their_files_and_rdma_core_must_be_there() {
        let (_folder, root) = host(&[]);
        assert_eq!(libraries(&root, &[]).verdict, Verdict::Fail);
        let (_folder, root) = host(&[
            ("usr/lib64/libibverbs.so.1", ""),
            ("opt/x/libmlx5.so.1", ""),
        ]);
        let found = libraries(&root, &[root.path("opt/x")]);
        assert_eq!(found.verdict, Verdict::Ok, "{found:?}");
        assert!(
            found.what.contains("not found: librdmacm.so.1"),
            "{found:?}"
        );
    }

    #[test]
    fn gpu_memory_is_reached_by_a_module_or_by_dma_buf() {
        let (_folder, root) = host(&[(
            "proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.1",
        )]);
        assert_eq!(gpu_access(&root, 0, false).verdict, Verdict::Skip);
        assert_eq!(gpu_access(&root, 8, false).verdict, Verdict::Fail);
        let found = gpu_access(&root, 8, true);
        assert_eq!(found.verdict, Verdict::Warn);
        assert_eq!(
            found.what,
            "nvidia_peermem no, dma_buf yes, open kernel module"
        );
        let (_folder, root) = host(&[("sys/module/nvidia_peermem/x", "")]);
        assert_eq!(gpu_access(&root, 8, false).verdict, Verdict::Ok);
    }
}
