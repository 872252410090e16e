//! Where bytes land: what `--memory` says.

use std::fmt;
use std::str::FromStr;

use s3engine::cuda::{CudaError, Gpu};
use s3engine::{Memory, PoolError};

use crate::exit::Failure;

/// A kind of memory as it is named on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryKind {
    /// This host's.
    Host,
    /// That of the GPU with this number in this process.
    Gpu(u32),
    /// That of all GPUs: threads and processes have them in turn.
    AllGpus,
}

/// A text that names none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is none of host, cuda, cuda:N, cuda:all")]
pub(crate) struct NoSuchMemory {
    text: String,
}

impl FromStr for MemoryKind {
    type Err = NoSuchMemory;

    fn from_str(text: &str) -> Result<Self, NoSuchMemory> {
        let unknown = || NoSuchMemory {
            text: text.to_owned(),
        };
        match text {
            "host" => Ok(MemoryKind::Host),
            "cuda" => Ok(MemoryKind::Gpu(0)),
            "cuda:all" => Ok(MemoryKind::AllGpus),
            _ => {
                let number = text.strip_prefix("cuda:").ok_or_else(unknown)?;
                let digits = number.bytes().all(|byte| byte.is_ascii_digit());
                let number = number.parse().ok().filter(|_| digits);
                number.map(MemoryKind::Gpu).ok_or_else(unknown)
            }
        }
    }
}

impl fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemoryKind::Host => f.write_str("host"),
            MemoryKind::Gpu(ordinal) => write!(f, "cuda:{ordinal}"),
            MemoryKind::AllGpus => f.write_str("cuda:all"),
        }
    }
}

impl MemoryKind {
    /// What threads or processes take in turn: at least one.
    pub(crate) fn in_turn(self) -> Result<Vec<Memory>, Failure> {
        let gpus = || -> Result<Vec<Memory>, CudaError> {
            match (self, Gpu::all()?) {
                (MemoryKind::AllGpus, gpus @ [_, ..]) => {
                    Ok(gpus.iter().map(|gpu| Memory::Cuda(gpu.uuid())).collect())
                }
                (MemoryKind::Gpu(ordinal), _) => Ok(vec![Memory::cuda(ordinal)?]),
                // Says that there is none.
                _ => Ok(vec![Memory::cuda(0)?]),
            }
        };
        match self {
            MemoryKind::Host => Ok(vec![Memory::Host]),
            _ => gpus().map_err(|error| Failure::Build(PoolError::from(error).into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_named_as_pytorch_names_devices() {
        for (text, kind) in [
            ("host", MemoryKind::Host),
            ("cuda:0", MemoryKind::Gpu(0)),
            ("cuda:12", MemoryKind::Gpu(12)),
            ("cuda:all", MemoryKind::AllGpus),
        ] {
            assert_eq!(text.parse(), Ok(kind));
            assert_eq!(kind.to_string(), text);
        }
        assert_eq!("cuda".parse(), Ok(MemoryKind::Gpu(0)));
        for text in [
            "",
            "disk",
            "cuda:",
            "cuda:+1",
            "cuda:-1",
            "cuda:4294967296",
            "cuda:0x1",
        ] {
            assert!(text.parse::<MemoryKind>().is_err(), "{text}");
        }
        assert_eq!(MemoryKind::Host.in_turn().unwrap(), [Memory::Host]);
    }

    #[test]
    fn a_gpu_that_there_is_not_is_a_wrong_setting() {
        let failure = MemoryKind::Gpu(u32::MAX).in_turn().unwrap_err();
        assert_eq!(failure.code(), 3);
        let text = failure.to_string();
        assert!(text.starts_with("no CUDA "), "{text}");
    }
}
