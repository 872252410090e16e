//! Where processors, memory, GPUs and network devices sit on this host, as sysfs says.
//!
//! ```text
//! node 0                                                     node 1
//! processors ── pci0000:15 ── port ── switch ─┬─ port ── GPU     ── pci0000:97 ── ...
//!                                             └─ port ── NIC
//! ```
//!
//! What a container or a virtual machine hides is not known, and never an error.

mod gids;
mod placement;
mod sysfs;

pub use gids::{Gid, PortState};

use std::cmp::Reverse;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// A host's NUMA nodes, and its network devices that can do RDMA.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Topology {
    /// Where sysfs is.
    sys: PathBuf,
    /// In the order of their numbers.
    pub nodes: Vec<NumaNode>,
    /// In the order of their names.
    pub nics: Vec<Nic>,
}

/// Memory, and the processors that are near it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NumaNode {
    /// Its number.
    pub id: u32,
    /// Its processors by number. None where it has only memory.
    pub cpus: Vec<u32>,
    /// Bytes of memory.
    pub memory: Option<u64>,
}

/// A network device that can do RDMA.
#[derive(Clone, Debug, PartialEq)]
pub struct Nic {
    /// Its name, such as `mlx5_0`.
    pub name: String,
    /// As a PCI device; software devices are none.
    pub pci: Option<PciDevice>,
    /// In the order of their numbers.
    pub ports: Vec<NicPort>,
}

impl Nic {
    /// Whether a port of it is up.
    pub fn is_up(&self) -> bool {
        self.ports.iter().any(|port| port.up)
    }

    /// What the ports that are up carry together.
    pub fn gbit_per_s(&self) -> f64 {
        let up = self.ports.iter().filter(|port| port.up);
        up.filter_map(|port| port.gbit_per_s).sum()
    }
}

/// A port of one.
#[derive(Clone, Debug, PartialEq)]
pub struct NicPort {
    /// Its number, from 1.
    pub number: u32,
    /// What it carries, if that is known.
    pub gbit_per_s: Option<f64>,
    /// Whether its state is `ACTIVE`.
    pub up: bool,
}

/// A PCI address, such as `0000:1b:00.0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

/// A text that is no PCI address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no PCI address such as 0000:1b:00.0")]
pub struct NotPciAddress {
    text: String,
}

impl FromStr for PciAddress {
    type Err = NotPciAddress;

    fn from_str(text: &str) -> Result<Self, NotPciAddress> {
        let parsed = || {
            let (domain, rest) = text.split_once(':')?;
            let (bus, rest) = rest.split_once(':')?;
            let (device, function) = rest.split_once('.')?;
            Some(Self {
                domain: hex(domain, 4..=8)?,
                bus: hex(bus, 2..=2)? as u8,
                device: hex(device, 2..=2).filter(|number| *number < 32)? as u8,
                function: hex(function, 1..=1).filter(|number| *number < 8)? as u8,
            })
        };
        parsed().ok_or_else(|| NotPciAddress {
            text: text.chars().take(64).collect(),
        })
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (domain, bus) = (self.domain, self.bus);
        let (device, function) = (self.device, self.function);
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

/// So many digits, and nothing else.
fn hex(text: &str, digits: std::ops::RangeInclusive<usize>) -> Option<u32> {
    let fine = digits.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    fine.then(|| u32::from_str_radix(text, 16).ok()).flatten()
}

/// A PCI device, and what is known about its place.
#[derive(Clone, Debug, PartialEq)]
pub struct PciDevice {
    /// Its address.
    pub address: PciAddress,
    /// The node that it is near to.
    pub numa_node: Option<u32>,
    /// What leads to it.
    pub path: Option<PciPath>,
    /// Its link.
    pub link: PciLink,
}

/// The way from a host bridge to a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PciPath {
    /// The host bridge, such as `pci0000:15`, with the folder that it is in.
    root: PathBuf,
    /// The bridges on the way, the nearest to the root first. A switch is two of them.
    pub bridges: Vec<PciAddress>,
}

/// A PCI Express link. A device that rests may have a slower one than its most.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PciLink {
    /// 10^9 transfers a second of a lane now.
    pub gt_per_s: Option<f64>,
    /// Lanes now.
    pub width: Option<u32>,
    /// 10^9 transfers a second of a lane at most.
    pub max_gt_per_s: Option<f64>,
    /// Lanes at most.
    pub max_width: Option<u32>,
}

impl fmt::Display for PciLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let one = |speed: Option<f64>, width: Option<u32>| match (speed, width) {
            (None, None) => None,
            (speed, width) => Some(format!(
                "{} GT/s x{}",
                speed.map_or("?".to_owned(), |speed| speed.to_string()),
                width.map_or("?".to_owned(), |width| width.to_string())
            )),
        };
        let now = one(self.gt_per_s, self.width);
        match (now, one(self.max_gt_per_s, self.max_width)) {
            (Some(now), Some(most)) if now != most => write!(f, "{now} of {most}"),
            (Some(link), _) | (None, Some(link)) => f.write_str(&link),
            (None, None) => f.write_str("unknown"),
        }
    }
}

/// How near two devices are, the nearest first. Shown as `nvidia-smi topo -m` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Relation {
    /// `PIX`: one bridge or switch between them.
    OneSwitch,
    /// `PXB`: several, and no host bridge.
    Switches,
    /// `PHB`: a host bridge.
    HostBridge,
    /// `NODE`: host bridges of one NUMA node.
    Node,
    /// `SYS`: NUMA nodes.
    System,
    /// Not known.
    Unknown,
}

impl fmt::Display for Relation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Relation::OneSwitch => "PIX",
            Relation::Switches => "PXB",
            Relation::HostBridge => "PHB",
            Relation::Node => "NODE",
            Relation::System => "SYS",
            Relation::Unknown => "unknown",
        })
    }
}

/// Where this host's sysfs is.
const SYS: &str = "/sys";

/// The node that a device of this host is near to.
pub(crate) fn numa_node(address: PciAddress) -> Option<u32> {
    sysfs::device(Path::new(SYS), address).numa_node
}

impl Topology {
    /// This host's.
    pub fn read() -> Self {
        Self::under(Path::new(SYS))
    }

    /// What a sysfs says.
    pub fn under(sys: &Path) -> Self {
        Self {
            sys: sys.to_owned(),
            nodes: sysfs::nodes(sys),
            nics: sysfs::nics(sys),
        }
    }

    /// The version of NVIDIA's driver, where it is loaded.
    pub fn nvidia_driver(&self) -> Option<String> {
        sysfs::nvidia_driver(&self.sys)
    }

    /// The device at an address.
    pub fn device(&self, address: PciAddress) -> PciDevice {
        sysfs::device(&self.sys, address)
    }

    /// How near two devices are.
    pub fn relation(&self, one: &PciDevice, other: &PciDevice) -> Relation {
        if let (Some(one), Some(other)) = (&one.path, &other.path)
            && one.root == other.root
        {
            return one.to(other);
        }
        match (one.numa_node, other.numa_node) {
            (Some(one), Some(other)) if one != other => Relation::System,
            (Some(_), Some(_)) => Relation::Node,
            _ if self.nodes.len() == 1 => Relation::Node,
            _ => Relation::Unknown,
        }
    }

    /// All RDMA devices: those that are up, and of them the nearest to a device, and of those the fastest first.
    pub fn nearest_nics(&self, device: &PciDevice) -> Vec<(&Nic, Relation)> {
        let relation = |nic: &Nic| {
            let of = |pci| self.relation(device, pci);
            nic.pci.as_ref().map_or(Relation::Unknown, of)
        };
        let mut nics: Vec<_> = self.nics.iter().map(|nic| (nic, relation(nic))).collect();
        nics.sort_by_cached_key(|(nic, relation)| {
            let mbit_per_s = (nic.gbit_per_s() * 1000.0) as u64;
            let address = nic.pci.as_ref().map(|pci| pci.address);
            (!nic.is_up(), *relation, Reverse(mbit_per_s), address)
        });
        nics
    }
}

impl PciPath {
    /// Of two devices under one host bridge.
    fn to(&self, other: &Self) -> Relation {
        let both = self.bridges.iter().zip(&other.bridges);
        let shared = both.take_while(|(one, other)| one == other).count();
        // Each has a port of the switch that they share.
        let own = |path: &Self| path.bridges.len() - shared;
        match shared {
            0 => Relation::HostBridge,
            _ if own(self) <= 1 && own(other) <= 1 => Relation::OneSwitch,
            _ => Relation::Switches,
        }
    }
}

#[cfg(test)]
mod tests;
