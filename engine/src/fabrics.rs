//! Which fabric an engine uses: chosen, looked for and started.

use std::sync::Arc;

use s3engine_pool::topology::Topology;
use s3engine_s3::fabric::cufile::{Cufile, CufileOptions};
use s3engine_s3::fabric::loopback::{Loopback, LoopbackOptions};
use s3engine_s3::fabric::s3rdma::{S3rdma, S3rdmaOptions};
use s3engine_s3::fabric::{Fabric, OpenError};

use crate::route::FabricState;

/// Which fabric an engine uses.
#[derive(Default)]
#[non_exhaustive]
pub enum Rdma {
    /// The first that starts of those that hosts with RDMA have, with their default options; none is looked for where
    /// there is no RDMA device. None found is a fallback, not an intent.
    #[default]
    Auto,
    /// The same with options: the first of these that starts.
    FirstOf(Vec<Rdma>),
    /// None, by intent.
    Off,
    /// One-sided writes between processes of this host: for servers that run here, such as s3sim.
    Loopback(LoopbackOptions),
    /// MinIO's library.
    S3rdma(S3rdmaOptions),
    /// NVIDIA's library.
    Cufile(CufileOptions),
    /// A fabric of the caller's.
    Custom(Arc<dyn Fabric>),
}

/// What was found.
pub(crate) struct Found {
    pub(crate) fabric: Option<Arc<dyn Fabric>>,
    pub(crate) state: FabricState,
    /// Why there is none, for people.
    pub(crate) detail: String,
}

impl Found {
    fn none(state: FabricState, detail: impl Into<String>) -> Self {
        Self {
            fabric: None,
            state,
            detail: detail.into(),
        }
    }

    fn ready(fabric: Arc<dyn Fabric>) -> Self {
        Self {
            fabric: Some(fabric),
            state: FabricState::Ready,
            detail: String::new(),
        }
    }

    fn opened(name: &str, opened: Result<Arc<dyn Fabric>, OpenError>) -> Self {
        match opened {
            Ok(fabric) => Self::ready(fabric),
            Err(OpenError::NotFound { text }) => Self::none(FabricState::Missing, text),
            Err(OpenError::Failed { text }) => {
                Self::none(FabricState::InitFailed, format!("fabric {name}: {text}"))
            }
        }
    }
}

/// Looks for the fabric, and starts it.
pub(crate) fn find(rdma: Rdma) -> Found {
    match rdma {
        Rdma::Off => Found::none(FabricState::Off, "RDMA is switched off by configuration"),
        Rdma::Auto => first_of(
            [
                Rdma::S3rdma(S3rdmaOptions::default()),
                Rdma::Cufile(CufileOptions::default()),
            ],
            &Topology::read(),
        ),
        Rdma::FirstOf(all) => first_of(all, &Topology::read()),
        Rdma::Loopback(options) => match Loopback::open(options) {
            Ok(fabric) => Found::ready(Arc::new(fabric)),
            Err(error) => Found::none(FabricState::InitFailed, format!("fabric loopback: {error}")),
        },
        Rdma::S3rdma(options) => {
            let opened = S3rdma::open(&options);
            Found::opened(
                "s3rdma",
                opened.map(|fabric| Arc::new(fabric) as Arc<dyn Fabric>),
            )
        }
        Rdma::Cufile(options) => {
            let opened = Cufile::open(options);
            Found::opened(
                "cufile",
                opened.map(|fabric| Arc::new(fabric) as Arc<dyn Fabric>),
            )
        }
        Rdma::Custom(fabric) => Found::ready(fabric),
    }
}

/// The first that starts. One that is here and does not start matters more than those that are not here.
fn first_of(all: impl IntoIterator<Item = Rdma>, topology: &Topology) -> Found {
    if topology.nics.is_empty() {
        let detail = "no RDMA device on this host (/sys/class/infiniband has none), so that no library was looked for; `s3engine doctor` tells more";
        return Found::none(FabricState::Missing, detail);
    }
    let (mut absent, mut failed) = (Vec::new(), Vec::new());
    for rdma in all {
        let found = find(rdma);
        match found.state {
            FabricState::Ready => return found,
            FabricState::InitFailed => failed.push(found.detail),
            FabricState::Missing | FabricState::Off => absent.push(found.detail),
        }
    }
    match failed.is_empty() {
        true => Found::none(FabricState::Missing, absent.join("; ")),
        false => Found::none(FabricState::InitFailed, failed.join("; ")),
    }
}

#[cfg(test)]
mod tests {
    use s3engine_pool::topology::Nic;

    use super::*;

    fn with_a_device() -> Topology {
        let nic = Nic {
            name: "mlx5_0".into(),
            pci: None,
            ports: Vec::new(),
        };
        let mut topology = Topology::default();
        topology.nics.push(nic);
        topology
    }

    fn broken(library: &str) -> Rdma {
        Rdma::S3rdma(S3rdmaOptions {
            file: Some(library.into()),
            ..S3rdmaOptions::default()
        })
    }

    #[test]
    fn without_a_device_no_library_is_loaded() {
        let found = first_of([broken("/nowhere/lib.so")], &Topology::default());
        assert_eq!(found.state, FabricState::Missing);
        assert!(found.detail.contains("no RDMA device"), "{}", found.detail);
    }

    #[test]
    fn a_library_that_does_not_start_is_told_rather_than_one_that_is_not_here() {
        let all = [Rdma::Off, broken("/nowhere/lib.so")];
        let found = first_of(all, &with_a_device());
        assert_eq!(found.state, FabricState::InitFailed);
        let named = found
            .detail
            .contains("fabric s3rdma: cannot load /nowhere/lib.so");
        assert!(named, "{}", found.detail);
    }

    #[test]
    fn the_first_that_starts_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let loopback = Rdma::Loopback(LoopbackOptions {
            folder: Some(folder.path().join("loopback")),
            ..LoopbackOptions::default()
        });
        let all = [broken("/nowhere/lib.so"), loopback, Rdma::Off];
        let found = first_of(all, &with_a_device());
        assert_eq!(found.fabric.map(|fabric| fabric.name()), Some("loopback"));
    }
}
