//! The GPUs that this process sees, and where they sit.

use std::fmt;

use s3engine::cuda::{self, CudaError};
use s3engine::topology::{PciDevice, PciLink, Relation, Topology};
use serde::{Deserialize, Serialize};

/// A GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Gpu {
    /// Its number in this process.
    pub(crate) index: u32,
    pub(crate) name: String,
    /// Its name in every process.
    pub(crate) uuid: String,
    /// The driver's version, and that of the CUDA that it is for.
    pub(crate) driver: Option<String>,
    pub(crate) cuda: String,
    pub(crate) pci: String,
    pub(crate) numa_node: Option<u32>,
    pub(crate) link: Link,
    pub(crate) memory_bytes: u64,
    pub(crate) nearest_nic: Option<NearNic>,
}

/// Its PCI Express link. At rest it may be slower than its most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Link {
    pub(crate) gt_per_s: Option<f64>,
    pub(crate) width: Option<u32>,
    pub(crate) max_gt_per_s: Option<f64>,
    pub(crate) max_width: Option<u32>,
}

impl From<PciLink> for Link {
    fn from(link: PciLink) -> Self {
        Self {
            gt_per_s: link.gt_per_s,
            width: link.width,
            max_gt_per_s: link.max_gt_per_s,
            max_width: link.max_width,
        }
    }
}

/// A network device that can do RDMA.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct NearNic {
    pub(crate) name: String,
    /// What is between the two, as `nvidia-smi topo -m` has it.
    pub(crate) relation: String,
}

/// All of them.
pub(crate) fn seen(topology: &Topology) -> Result<Vec<Gpu>, CudaError> {
    let version = cuda::Gpu::driver_version()?;
    let cuda = format!("{}.{}", version / 1000, version % 1000 / 10);
    let driver = topology.nvidia_driver();
    let gpu = |gpu: &cuda::Gpu| {
        let known = Gpu {
            index: gpu.ordinal(),
            name: gpu.name().to_owned(),
            uuid: gpu.uuid().to_string(),
            driver: driver.clone(),
            cuda: cuda.clone(),
            pci: gpu.pci().to_owned(),
            memory_bytes: gpu.memory(),
            ..Gpu::default()
        };
        known.placed(topology)
    };
    Ok(cuda::Gpu::all()?.iter().map(gpu).collect())
}

impl Gpu {
    /// With what the topology says of its PCI device.
    fn placed(self, topology: &Topology) -> Self {
        let Ok(address) = self.pci.parse() else {
            return self;
        };
        let device = topology.device(address);
        Self {
            numa_node: device.numa_node,
            link: device.link.into(),
            nearest_nic: nearest(topology, &device),
            ..self
        }
    }
}

fn nearest(topology: &Topology, device: &PciDevice) -> Option<NearNic> {
    let nics = topology.nearest_nics(device).into_iter();
    let mut known = nics.filter(|(nic, relation)| nic.is_up() && *relation != Relation::Unknown);
    let (nic, relation) = known.next()?;
    Some(NearNic {
        name: nic.name.clone(),
        relation: relation.to_string(),
    })
}

impl fmt::Display for Gpu {
    /// What one is, and where. What is not known is left out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} at {}", self.name, self.uuid, self.pci)?;
        if let Some(node) = self.numa_node {
            write!(f, ", NUMA node {node}")?;
        }
        let link = PciLink {
            gt_per_s: self.link.gt_per_s,
            width: self.link.width,
            max_gt_per_s: self.link.max_gt_per_s,
            max_width: self.link.max_width,
        };
        if link != PciLink::default() {
            write!(f, ", PCIe {link}")?;
        }
        if let Some(NearNic { name, relation }) = &self.nearest_nic {
            write!(f, ", nearest NIC {name} ({relation})")?;
        }
        Ok(())
    }
}

/// How many of which there are: `8x NVIDIA H200`.
pub(crate) fn counted(gpus: &[Gpu]) -> String {
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for gpu in gpus {
        match counts.iter_mut().find(|(name, _)| *name == gpu.name) {
            Some((_, count)) => *count += 1,
            None => counts.push((&gpu.name, 1)),
        }
    }
    let counts = counts
        .iter()
        .map(|(name, count)| format!("{count}x {name}"));
    counts.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    pub(crate) fn gpu() -> Gpu {
        Gpu {
            name: "NVIDIA H200".into(),
            uuid: "GPU-00112233-4455-6677-8899-aabbccddeeff".into(),
            cuda: "13.0".into(),
            pci: "0000:18:00.0".into(),
            memory_bytes: 141 << 30,
            ..Gpu::default()
        }
    }

    #[test]
    fn a_gpu_is_told_with_what_is_known_of_its_place() {
        let known = "NVIDIA H200 GPU-00112233-4455-6677-8899-aabbccddeeff at 0000:18:00.0";
        let folder = tempfile::tempdir().unwrap();
        let sys = folder.path();
        let placed = || gpu().placed(&Topology::under(sys));
        assert_eq!(placed().to_string(), known);
        let switch = "devices/pci0000:15/0000:15:01.0/0000:16:00.0";
        let (of_gpu, of_nic) = (
            sys.join(switch).join("0000:17:00.0/0000:18:00.0"),
            sys.join(switch).join("0000:17:01.0/0000:19:00.0"),
        );
        let nic = sys.join("class/infiniband/mlx5_0");
        for (file, content) in [
            (of_gpu.join("numa_node"), "1"),
            (of_gpu.join("current_link_speed"), "32.0 GT/s PCIe"),
            (of_gpu.join("current_link_width"), "16"),
            (of_nic.join("numa_node"), "1"),
            (nic.join("ports/1/state"), "4: ACTIVE"),
            (nic.join("ports/1/rate"), "400 Gb/sec (4X NDR)"),
        ] {
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, content).unwrap();
        }
        let by_address = sys.join("bus/pci/devices");
        fs::create_dir_all(&by_address).unwrap();
        symlink(&of_gpu, by_address.join("0000:18:00.0")).unwrap();
        symlink(&of_nic, by_address.join("0000:19:00.0")).unwrap();
        symlink(&of_nic, nic.join("device")).unwrap();
        let place = "NUMA node 1, PCIe 32 GT/s x16, nearest NIC mlx5_0 (PIX)";
        assert_eq!(placed().to_string(), format!("{known}, {place}"));
        fs::write(nic.join("ports/1/state"), "1: DOWN").unwrap();
        assert_eq!(placed().nearest_nic, None);
    }

    #[test]
    fn gpus_are_counted_by_name() {
        let other = Gpu {
            name: "NVIDIA L4".into(),
            ..gpu()
        };
        assert_eq!(counted(&[]), "");
        let gpus = [gpu(), other, gpu()];
        assert_eq!(counted(&gpus), "2x NVIDIA H200, 1x NVIDIA L4");
    }
}
