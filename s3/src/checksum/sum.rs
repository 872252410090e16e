//! A checksum while its bytes pass.

use std::fmt;

use crc_fast::{CrcAlgorithm, Digest};
use sha1::Sha1;
use sha2::{Digest as _, Sha256};

use super::{Algorithm, Checksum};

/// The running sum of bytes that come one after the other.
#[derive(Clone)]
pub struct Sum {
    algorithm: Algorithm,
    state: State,
}

#[derive(Clone)]
enum State {
    Crc(Digest),
    Sha1(Sha1),
    Sha256(Sha256),
}

impl fmt::Debug for Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sum({})", self.algorithm)
    }
}

impl Sum {
    /// Of no bytes yet.
    pub fn new(algorithm: Algorithm) -> Sum {
        let state = match (crc(algorithm), algorithm) {
            (Some(crc), _) => State::Crc(Digest::new(crc)),
            (None, Algorithm::Sha1) => State::Sha1(Sha1::new()),
            (None, _) => State::Sha256(Sha256::new()),
        };
        Sum { algorithm, state }
    }

    /// More bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        match &mut self.state {
            State::Crc(digest) => digest.update(bytes),
            State::Sha1(hash) => hash.update(bytes),
            State::Sha256(hash) => hash.update(bytes),
        }
    }

    /// Of all of them.
    pub fn finish(self) -> Checksum {
        let mut value = [0; 32];
        match self.state {
            State::Crc(digest) => {
                return Checksum::from_number(self.algorithm, digest.finalize());
            }
            State::Sha1(hash) => value[..20].copy_from_slice(&hash.finalize()),
            State::Sha256(hash) => value.copy_from_slice(&hash.finalize()),
        }
        Checksum {
            algorithm: self.algorithm,
            value,
        }
    }
}

/// The CRC that an algorithm is, if it is one.
pub(super) fn crc(algorithm: Algorithm) -> Option<CrcAlgorithm> {
    match algorithm {
        Algorithm::Crc64Nvme => Some(CrcAlgorithm::Crc64Nvme),
        Algorithm::Crc32c => Some(CrcAlgorithm::Crc32Iscsi),
        Algorithm::Crc32 => Some(CrcAlgorithm::Crc32IsoHdlc),
        Algorithm::Sha256 | Algorithm::Sha1 => None,
    }
}
