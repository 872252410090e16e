//! The machine that measures.

use std::fs;
use std::path::Path;

use crate::bench::report::Place;

use super::run::{Device, Host};

/// Where the kernel lists devices that can do RDMA.
const DEVICES: &str = "/sys/class/infiniband";

impl Host {
    /// This one.
    pub(crate) fn this() -> Self {
        let system = rustix::system::uname();
        let of_text = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
        Self {
            name: of_text(system.nodename()),
            cores: Place::cores(),
            memory_bytes: memory_bytes().unwrap_or(0),
            kernel: of_text(system.release()),
            devices: devices(Path::new(DEVICES)),
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

/// The ports that are up, by name.
fn devices(folder: &Path) -> Vec<Device> {
    let names = |folder: &Path| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    };
    let mut devices = Vec::new();
    for name in names(folder) {
        let ports = folder.join(&name).join("ports");
        for port in names(&ports) {
            let read =
                |file: &str| fs::read_to_string(ports.join(&port).join(file)).unwrap_or_default();
            // `4: ACTIVE`, and `400 Gb/sec (4X NDR)`.
            let (state, rate) = (read("state"), read("rate"));
            let rate = rate
                .split_whitespace()
                .next()
                .and_then(|rate| rate.parse().ok())
                .filter(|rate: &f64| rate.is_finite() && *rate > 0.0);
            if let (true, Some(gbit_per_s), Ok(port)) =
                (state.contains("ACTIVE"), rate, port.parse())
            {
                devices.push(Device {
                    name: name.clone(),
                    port,
                    gbit_per_s,
                });
            }
        }
    }
    devices
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
            let port = folder.path().join(name).join("ports").join(port);
            fs::create_dir_all(&port).unwrap();
            fs::write(port.join("state"), state).unwrap();
            fs::write(port.join("rate"), rate).unwrap();
        }
        let devices = devices(folder.path());
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
