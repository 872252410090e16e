//! The machine that measures.

use std::fs;

use s3engine::topology::{Nic, NicPort, Topology};

use crate::bench::report::Place;
use crate::gpus;

use super::run::{Device, Host};

impl Host {
    /// This one.
    pub(crate) fn this() -> Self {
        let (system, topology) = (rustix::system::uname(), Topology::read());
        let of_text = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
        Self {
            name: of_text(system.nodename()),
            cores: Place::cores(),
            memory_bytes: memory_bytes().unwrap_or(0),
            kernel: of_text(system.release()),
            devices: devices(&topology),
            // Where there is no CUDA there are none.
            gpus: gpus::seen(&topology).unwrap_or_default(),
        }
    }

    /// What all its devices together can carry, in 10^9 bytes a second.
    pub(crate) fn line_rate(&self) -> Option<f64> {
        let sum: f64 = self.devices.iter().map(|device| device.gbit_per_s).sum();
        (sum > 0.0).then_some(sum / 8.0)
    }
}

fn memory_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib << 10)
}

/// The ports that are up and whose rate is known, by name.
fn devices(topology: &Topology) -> Vec<Device> {
    let of_nic = |nic: &Nic| {
        let up = nic.ports.iter().filter(|port| port.up);
        let device = |port: &NicPort| {
            Some(Device {
                name: nic.name.clone(),
                port: port.number,
                gbit_per_s: port.gbit_per_s?,
            })
        };
        up.filter_map(device).collect::<Vec<_>>()
    };
    topology.nics.iter().flat_map(of_nic).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_that_are_up_count_with_their_rates() {
        let folder = tempfile::tempdir().unwrap();
        for (name, port, state, rate) in [
            ("mlx5_1", "1", "4: ACTIVE\n", "400 Gb/sec (4X NDR)\n"),
            ("mlx5_0", "1", "4: ACTIVE\n", "2.5 Gb/sec (1X SDR)\n"),
            ("mlx5_2", "1", "1: DOWN\n", "400 Gb/sec (4X NDR)\n"),
            ("mlx5_3", "1", "4: ACTIVE\n", "nonsense\n"),
            ("mlx5_4", "1", "4: ACTIVE\n", "inf Gb/sec\n"),
        ] {
            let nic = folder.path().join("class/infiniband").join(name);
            let port = nic.join("ports").join(port);
            fs::create_dir_all(&port).unwrap();
            fs::write(port.join("state"), state).unwrap();
            fs::write(port.join("rate"), rate).unwrap();
        }
        let devices = devices(&Topology::under(folder.path()));
        let host = Host {
            devices,
            ..Host::default()
        };
        let shown: Vec<_> = host
            .devices
            .iter()
            .map(|d| (&*d.name, d.port, d.gbit_per_s))
            .collect();
        assert_eq!(shown, [("mlx5_0", 1, 2.5), ("mlx5_1", 1, 400.0)]);
        assert_eq!(host.line_rate(), Some(402.5 / 8.0));
        assert_eq!(Host::default().line_rate(), None);
    }
}
