//! The addresses of RDMA ports.

use std::net::{IpAddr, Ipv6Addr};
use std::path::PathBuf;

use super::{Nic, Topology, sysfs};

/// Entries of a port's table that are looked at.
const MOST: u32 = 256;

/// What sysfs says of a port beside its rate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortState {
    /// Such as `ACTIVE` or `DOWN`.
    pub state: Option<String>,
    /// `InfiniBand` or `Ethernet`.
    pub link_layer: Option<String>,
    /// Its addresses, without those that are not set.
    pub gids: Vec<Gid>,
}

/// An address of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gid {
    /// Its place in the table.
    pub index: u32,
    /// The address.
    pub address: Ipv6Addr,
    /// Such as `RoCE v2` or `IB/RoCE v1`.
    pub kind: Option<String>,
    /// The network interface that it belongs to.
    pub interface: Option<String>,
}

impl Gid {
    /// As a socket's address: IPv4 where it holds one.
    pub fn ip(&self) -> IpAddr {
        self.address.to_canonical()
    }
}

impl Topology {
    /// What is known of a port.
    pub fn port_state(&self, nic: &Nic, port: u32) -> PortState {
        let folder = self.sys.join("class/infiniband").join(&nic.name);
        let folder = folder.join("ports").join(port.to_string());
        let text = |file: &str| sysfs::text(&folder.join(file));
        let gid = |index: u32| {
            let address: Ipv6Addr = text(&format!("gids/{index}"))?.parse().ok()?;
            (!address.is_unspecified()).then(|| Gid {
                index,
                address,
                kind: text(&format!("gid_attrs/types/{index}")),
                interface: text(&format!("gid_attrs/ndevs/{index}")),
            })
        };
        let state = text("state").map(|state| match state.split_once(": ") {
            Some((_, name)) => name.to_owned(),
            None => state,
        });
        PortState {
            state,
            link_layer: text("link_layer"),
            gids: (0..MOST).filter_map(gid).collect(),
        }
    }

    /// Bytes of a device's second window, by which others reach its memory.
    pub fn bar1_bytes(&self, address: super::PciAddress) -> Option<u64> {
        let folder = self.sys.join("bus/pci/devices").join(address.to_string());
        let resource: PathBuf = folder.join("resource");
        let lines = sysfs::text(&resource)?;
        // A line a region: first and last address, flags. A region of 64 bits takes two lines.
        let region = |line: &str| {
            let mut numbers = line.split_whitespace().map(|word| {
                let digits = word.strip_prefix("0x")?;
                u64::from_str_radix(digits, 16).ok()
            });
            let (first, last) = (numbers.next()??, numbers.next()??);
            (last > first).then(|| last - first + 1)
        };
        let regions: Vec<_> = lines.lines().take(6).filter_map(region).collect();
        regions.get(1).copied()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_ports_addresses_are_those_that_are_set() {
        let sys = tempfile::tempdir().unwrap();
        let port = sys.path().join("class/infiniband/mlx5_0/ports/1");
        for (file, text) in [
            ("state", "4: ACTIVE\n"),
            ("rate", "400 Gb/sec (4X NDR)\n"),
            ("link_layer", "Ethernet\n"),
            ("gids/0", "fe80:0000:0000:0000:0000:0000:0000:0001\n"),
            ("gids/1", "0000:0000:0000:0000:0000:0000:0000:0000\n"),
            ("gids/3", "0000:0000:0000:0000:0000:ffff:0f0f:0fea\n"),
            ("gid_attrs/types/3", "RoCE v2\n"),
            ("gid_attrs/ndevs/3", "eth2\n"),
        ] {
            let file = port.join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        let topology = Topology::under(sys.path());
        let state = topology.port_state(&topology.nics[0], 1);
        assert_eq!(state.state.as_deref(), Some("ACTIVE"));
        assert_eq!(state.link_layer.as_deref(), Some("Ethernet"));
        let gids: Vec<_> = state.gids.iter().map(|gid| (gid.index, gid.ip())).collect();
        let wanted = [
            (0, "fe80::1".parse().unwrap()),
            (3, "15.15.15.234".parse().unwrap()),
        ];
        assert_eq!(gids, wanted);
        assert_eq!(state.gids[1].kind.as_deref(), Some("RoCE v2"));
        assert_eq!(
            topology.port_state(&topology.nics[0], 9),
            PortState::default()
        );
    }

    #[test]
    fn the_window_to_a_gpus_memory_is_the_second_region() {
        let sys = tempfile::tempdir().unwrap();
        let folder = sys.path().join("bus/pci/devices/0000:1b:00.0");
        fs::create_dir_all(&folder).unwrap();
        let regions = "0x00000000a0000000 0x00000000a0ffffff 0x0000000000040200\n0x0000380000000000 0x0000383fffffffff 0x000000000014220c\n0x0000000000000000 0x0000000000000000 0x0000000000000000\n";
        fs::write(folder.join("resource"), regions).unwrap();
        let topology = Topology::under(sys.path());
        let bar1 = topology.bar1_bytes("0000:1b:00.0".parse().unwrap());
        assert_eq!(bar1, Some(256 << 30));
        assert_eq!(topology.bar1_bytes("0000:1c:00.0".parse().unwrap()), None);
    }
}
