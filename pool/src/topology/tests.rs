//! Topologies of made-up hosts.

use std::fs;
use std::os::unix::fs::symlink;

use proptest::prelude::*;
use tempfile::TempDir;

use super::sysfs::cpu_list;
use super::*;

/// A folder that looks like sysfs.
struct Sys(TempDir);

impl Sys {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn file(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn link(&self, path: &str, to: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(self.0.path().join(to), path).unwrap();
    }

    /// The way to it is `devices/.../ADDRESS`.
    fn pci(&self, way: &str, numa_node: &str) {
        let (_, address) = way.rsplit_once('/').unwrap();
        for (file, content) in [
            ("numa_node", numa_node),
            ("current_link_speed", "2.5 GT/s PCIe"),
            ("max_link_speed", "32.0 GT/s PCIe"),
            ("current_link_width", "16"),
            ("max_link_width", "16"),
        ] {
            self.file(&format!("{way}/{file}"), format!("{content}\n"));
        }
        self.link(&format!("bus/pci/devices/{address}"), way);
    }

    fn nic(&self, name: &str, way: &str, rate: &str, state: &str) {
        let folder = format!("{way}/infiniband/{name}");
        self.file(&format!("{folder}/ports/1/rate"), rate);
        self.file(&format!("{folder}/ports/1/state"), state);
        self.link(&format!("{folder}/device"), way);
        self.link(&format!("class/infiniband/{name}"), &folder);
    }

    fn node(&self, id: u32, cpus: &str) {
        let folder = format!("devices/system/node/node{id}");
        self.file(&format!("{folder}/cpulist"), format!("{cpus}\n"));
        let memory = format!("Node {id} MemTotal:       1056270520 kB\nNode {id} MemFree: 9 kB\n");
        self.file(&format!("{folder}/meminfo"), memory);
    }

    fn read(&self) -> Topology {
        Topology::under(self.0.path())
    }
}

const UP: (&str, &str) = ("400 Gb/sec (4X NDR)\n", "4: ACTIVE\n");

/// Four switches a node, each with a GPU and a NIC; and on each node one more NIC under a bridge of its own.
fn eight_gpus() -> Sys {
    let sys = Sys::new();
    sys.node(0, "0-55,112-167");
    sys.node(1, "56-111,168-223");
    for nth in 0..8_u32 {
        let (bus, node) = (0x10 + nth * 0x10, (nth / 4).to_string());
        let switch = format!(
            "devices/pci0000:{bus:02x}/0000:{bus:02x}:01.0/0000:{:02x}:00.0",
            bus + 1
        );
        let under = |port: u32, bus: u32| {
            format!(
                "{switch}/0000:{:02x}:{port:02x}.0/0000:{bus:02x}:00.0",
                bus - 1
            )
        };
        sys.pci(&under(0, bus + 3), &node);
        let nic = under(1, bus + 5);
        sys.pci(&nic, &node);
        sys.nic(&format!("mlx5_{nth}"), &nic, UP.0, UP.1);
    }
    for (nth, bus) in [(8, 0xa0), (9, 0xb0)] {
        let way = format!(
            "devices/pci0000:{bus:02x}/0000:{bus:02x}:01.0/0000:{:02x}:00.0",
            bus + 1
        );
        sys.pci(&way, &(nth - 8).to_string());
        sys.nic(&format!("mlx5_{nth}"), &way, UP.0, UP.1);
    }
    sys
}

fn gpu(topology: &Topology, nth: u32) -> PciDevice {
    let address = format!("0000:{:02x}:00.0", 0x13 + nth * 0x10);
    topology.device(address.parse().unwrap())
}

#[test]
fn of_eight_gpus_each_has_a_nic_of_its_own_switch() {
    let sys = eight_gpus();
    let topology = sys.read();
    assert_eq!(topology.nodes.len(), 2);
    assert_eq!(topology.nodes[1].cpus.len(), 112);
    assert_eq!(topology.nodes[1].memory, Some(1_056_270_520 << 10));
    for nth in 0..8 {
        let gpu = gpu(&topology, nth);
        assert_eq!(gpu.numa_node, Some(nth / 4));
        let nics = topology.nearest_nics(&gpu);
        let relations: Vec<_> = nics.iter().map(|(_, relation)| *relation).collect();
        assert_eq!(nics[0].0.name, format!("mlx5_{nth}"));
        let expected = [
            vec![Relation::OneSwitch],
            vec![Relation::Node; 4],
            vec![Relation::System; 5],
        ];
        assert_eq!(relations, expected.concat());
    }
}

#[test]
fn the_driver_has_a_version_where_it_is_loaded() {
    let sys = Sys::new();
    assert_eq!(sys.read().nvidia_driver(), None);
    sys.file("module/nvidia/version", "570.133.20\n");
    assert_eq!(sys.read().nvidia_driver().unwrap(), "570.133.20");
    sys.file("module/nvidia/version", "570\n\u{1b}[31m");
    assert_eq!(sys.read().nvidia_driver(), None);
}

#[test]
fn a_link_at_rest_is_shown_beside_its_most() {
    let topology = eight_gpus().read();
    assert_eq!(
        gpu(&topology, 0).link.to_string(),
        "unknown",
        "the folder is gone"
    );
    let sys = eight_gpus();
    let link = gpu(&sys.read(), 0).link;
    assert_eq!(link.to_string(), "2.5 GT/s x16 of 32 GT/s x16");
    let link = PciLink {
        gt_per_s: Some(32.0),
        ..link
    };
    assert_eq!(link.to_string(), "32 GT/s x16");
}

#[test]
fn bridges_and_host_bridges_between_two_devices_are_told_apart() {
    let sys = Sys::new();
    sys.node(0, "0-3");
    sys.node(1, "4-7");
    let root = "devices/pci0000:15/0000:15:01.0/0000:16:00.0";
    for (way, node) in [
        (format!("{root}/0000:17:00.0/0000:18:00.0"), "0"),
        // Two functions of one card.
        (format!("{root}/0000:17:01.0/0000:19:00.0"), "0"),
        (format!("{root}/0000:17:01.0/0000:19:00.1"), "0"),
        // A second switch under the first.
        (
            format!("{root}/0000:17:02.0/0000:1a:00.0/0000:1b:00.0/0000:1c:00.0"),
            "0",
        ),
        (
            "devices/pci0000:15/0000:15:02.0/0000:20:00.0".to_owned(),
            "0",
        ),
        ("devices/pci0000:30/0000:31:00.0".to_owned(), "0"),
        // Hosts that have several domains give the same bus numbers again.
        (
            "devices/pci0001:15/0001:15:01.0/0001:16:00.0".to_owned(),
            "1",
        ),
        ("devices/pci0000:50/0000:51:00.0".to_owned(), "-1"),
    ] {
        sys.pci(&way, node);
    }
    let topology = sys.read();
    let at = |address: &str| topology.device(address.parse().unwrap());
    for (one, other, relation) in [
        ("0000:18:00.0", "0000:19:00.0", Relation::OneSwitch),
        ("0000:19:00.0", "0000:19:00.1", Relation::OneSwitch),
        ("0000:18:00.0", "0000:1c:00.0", Relation::Switches),
        ("0000:18:00.0", "0000:20:00.0", Relation::HostBridge),
        ("0000:18:00.0", "0000:31:00.0", Relation::Node),
        ("0000:18:00.0", "0001:16:00.0", Relation::System),
        ("0000:18:00.0", "0000:51:00.0", Relation::Unknown),
        ("0000:18:00.0", "0000:99:00.0", Relation::Unknown),
    ] {
        let (one, other) = (at(one), at(other));
        assert_eq!(
            topology.relation(&one, &other),
            relation,
            "{one:?} {other:?}"
        );
        assert_eq!(
            topology.relation(&other, &one),
            relation,
            "{other:?} {one:?}"
        );
    }
}

#[test]
fn a_machine_that_shows_one_gpu_and_nothing_else_is_no_error() {
    let sys = Sys::new();
    let way = "devices/pci0000:00/0000:00:05.0";
    sys.file(&format!("{way}/numa_node"), "-1\n");
    sys.file(&format!("{way}/current_link_speed"), "Unknown\n");
    sys.file(&format!("{way}/current_link_width"), "0\n");
    sys.link("bus/pci/devices/0000:00:05.0", way);
    let topology = sys.read();
    assert_eq!((topology.nodes.len(), topology.nics.len()), (0, 0));
    let gpu = topology.device("0000:00:05.0".parse().unwrap());
    assert_eq!((gpu.numa_node, gpu.link), (None, PciLink::default()));
    assert_eq!(gpu.path.as_ref().unwrap().bridges, []);
    assert_eq!(topology.nearest_nics(&gpu), []);
    let nothing = Topology::under(Path::new("/nonexistent"));
    let unknown = nothing.device(gpu.address);
    assert_eq!((unknown.path, unknown.numa_node), (None, None));
}

#[test]
fn nics_that_are_up_come_first_and_of_two_as_near_the_faster_one() {
    let sys = Sys::new();
    sys.node(0, "0-7");
    let pci = |bus: u32| format!("devices/pci0000:{bus:02x}/0000:{bus:02x}:00.0");
    for (name, bus, rate, state) in [
        ("down", 0x10, UP.0, "1: DOWN\n"),
        ("slow", 0x11, "2.5 Gb/sec (1X SDR)\n", UP.1),
        ("fast", 0x12, UP.0, UP.1),
        ("strange", 0x13, "inf Gb/sec\n", UP.1),
    ] {
        sys.pci(&pci(bus), "0");
        sys.nic(name, &pci(bus), rate, state);
    }
    // A software device: it has no PCI device behind it.
    sys.file("class/infiniband/rxe0/ports/1/rate", UP.0);
    sys.file("class/infiniband/rxe0/ports/1/state", UP.1);
    sys.pci(&pci(0x20), "0");
    let topology = sys.read();
    let gpu = topology.device("0000:20:00.0".parse().unwrap());
    let nics = topology.nearest_nics(&gpu);
    let names: Vec<_> = nics.iter().map(|(nic, _)| &*nic.name).collect();
    assert_eq!(names, ["fast", "slow", "strange", "rxe0", "down"]);
    let strange = topology.nics.iter().find(|nic| nic.name == "strange");
    assert_eq!(strange.unwrap().ports[0].gbit_per_s, None);
}

#[test]
fn what_is_no_sysfs_is_not_known() {
    let sys = Sys::new();
    sys.link(
        "bus/pci/devices/0000:01:00.0",
        "bus/pci/devices/0000:02:00.0",
    );
    sys.link(
        "bus/pci/devices/0000:02:00.0",
        "bus/pci/devices/0000:01:00.0",
    );
    sys.link(
        "class/infiniband/mlx5_0/device",
        "class/infiniband/mlx5_0/device",
    );
    let folder = sys.0.path().join("devices/system/node/node0");
    fs::create_dir_all(&folder).unwrap();
    // Nobody writes to the one, and the other does not end for long.
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mkfifoat(rustix::fs::CWD, folder.join("cpulist"), mode).unwrap();
    fs::File::create(folder.join("meminfo"))
        .unwrap()
        .set_len(1 << 40)
        .unwrap();
    sys.file("devices/system/node/node1/cpulist", "0-4294967295");
    sys.file("devices/system/node/node99999999999/cpulist", "0");
    let topology = sys.read();
    let node = |id| NumaNode {
        id,
        ..NumaNode::default()
    };
    assert_eq!(topology.nodes, [node(0), node(1)]);
    assert_eq!(topology.nics[0].pci, None);
    assert_eq!(topology.device("0000:01:00.0".parse().unwrap()).path, None);
}

#[test]
fn lists_of_processors() {
    assert_eq!(cpu_list("0-2,8,10-11").unwrap(), [0, 1, 2, 8, 10, 11]);
    assert_eq!(cpu_list("3,1-3").unwrap(), [1, 2, 3]);
    for wrong in ["", "1-", "-1", "2-1", "a", "1,,2", "0-8192", "+1", "0-1-2"] {
        assert_eq!(cpu_list(wrong), None, "{wrong:?}");
    }
    let many = vec!["0-8191"; 5000].join(",");
    assert_eq!(cpu_list(&many), None);
}

#[test]
fn addresses() {
    for (text, shown) in [
        ("0000:1b:00.0", "0000:1b:00.0"),
        ("00000000:1B:1F.7", "0000:1b:1f.7"),
        ("10000:00:01.0", "10000:00:01.0"),
    ] {
        let address: PciAddress = text.parse().unwrap();
        assert_eq!(address.to_string(), shown);
    }
    for wrong in [
        "",
        "1b:00.0",
        "0000:1b:20.0",
        "0000:1b:00.8",
        "0000:+b:00.0",
        "../:1b:00.0",
    ] {
        assert!(wrong.parse::<PciAddress>().is_err(), "{wrong:?}");
    }
}

#[test]
fn no_content_of_files_breaks_it() {
    let sys = eight_gpus();
    let gpu = "devices/pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:00.0/0000:13:00.0";
    let files = [
        "devices/system/node/node0/cpulist",
        "devices/system/node/node0/meminfo",
        &format!("{gpu}/numa_node"),
        &format!("{gpu}/current_link_speed"),
        &format!("{gpu}/max_link_speed"),
        &format!("{gpu}/current_link_width"),
        &format!("{gpu}/max_link_width"),
        "class/infiniband/mlx5_0/ports/1/rate",
        "class/infiniband/mlx5_0/ports/1/state",
    ];
    proptest!(|(contents in prop::collection::vec(content(), files.len()))| {
        for (file, content) in files.iter().zip(contents) {
            sys.file(file, content);
        }
        let topology = sys.read();
        let gpu = self::gpu(&topology, 0);
        prop_assert_eq!(topology.nearest_nics(&gpu).len(), 10);
        prop_assert!(topology.nodes.iter().all(|node| node.cpus.len() <= 8192));
        let _ = gpu.link.to_string();
    });
}

proptest! {
    #[test]
    fn no_text_breaks_an_address(
        text in "\\PC{0,20}|[0-9a-f]{4,9}:[0-9a-f]{2}:[01][0-9a-f].[0-9]"
    ) {
        if let Ok(address) = text.parse::<PciAddress>() {
            prop_assert_eq!(address.to_string().parse(), Ok(address));
        }
    }
}

fn content() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..100),
        "[-0-9, ]{0,40}".prop_map(String::into_bytes),
        "-?[0-9]{1,40}(\\.[0-9]{1,40})?(e[0-9]{1,4})? (GT/s|kB|Gb/sec)"
            .prop_map(String::into_bytes),
        Just(vec![b'9'; 100_000]),
    ]
}
