//! The checksums that objects were stored with, as servers tell them: of the whole object also with a range.

use std::collections::HashMap;
use std::io;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use crc_fast::CrcAlgorithm;
use sha1::Sha1;
use sha2::{Digest, Sha256};
use tokio::task;

use crate::answer::Answer;
use crate::connection::load_object;
use crate::store::Object;

/// What objects are taken to have been uploaded in, where their checksum is composite.
const PART: u64 = 8 << 20;
/// How much is read at once.
const PIECE: u64 = 1 << 20;
/// Larger objects have no checksum: nobody would wait for it.
const LARGEST: u64 = 4 << 30;
/// How many checksums are kept.
const KEPT: usize = 10_000;

/// What objects' checksums are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checksum {
    /// By which algorithm.
    pub algorithm: Algorithm,
    /// Of the checksums of parts instead of the bytes.
    pub composite: bool,
}

/// An algorithm of S3's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// CRC-32 of ISO-HDLC.
    Crc32,
    /// CRC-32 of iSCSI.
    Crc32c,
    /// CRC-64 of NVMe.
    Crc64Nvme,
    /// SHA-1.
    Sha1,
    /// SHA-256.
    Sha256,
}

impl FromStr for Checksum {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Checksum, &'static str> {
        let (name, composite) = match text.strip_suffix(":composite") {
            Some(name) => (name, true),
            None => (text, false),
        };
        let algorithm = match name {
            "crc32" => Algorithm::Crc32,
            "crc32c" => Algorithm::Crc32c,
            "crc64nvme" if composite => return Err("crc64nvme is never composite"),
            "crc64nvme" => Algorithm::Crc64Nvme,
            "sha1" => Algorithm::Sha1,
            "sha256" => Algorithm::Sha256,
            _ => return Err("crc32, crc32c, crc64nvme, sha1 or sha256, and :composite or nothing"),
        };
        Ok(Checksum {
            algorithm,
            composite,
        })
    }
}

/// The checksums of a server's objects, each made when it is first asked for.
pub(crate) struct Checksums {
    of: Checksum,
    known: Mutex<HashMap<String, String>>,
}

impl Checksums {
    pub fn new(of: Checksum) -> Checksums {
        Checksums {
            of,
            known: Mutex::default(),
        }
    }

    /// Adds an object's checksum to an answer about it. `wrong`: of other bytes.
    pub async fn tell(
        &self,
        answer: Answer,
        name: (&str, &str),
        object: &Object,
        wrong: bool,
    ) -> io::Result<Answer> {
        if object.size > LARGEST {
            return Ok(answer);
        }
        let mut value = self.value(name, object).await?;
        if wrong {
            // Another letter of base64.
            let other = if value.starts_with('A') { "B" } else { "A" };
            value.replace_range(..1, other);
        }
        let (header, kind) = match (self.of.composite, answer.status) {
            // Of a composite one AWS leaves the number of parts away where a range was asked for.
            (true, 206) => (value, "COMPOSITE"),
            (true, _) => {
                let parts = object.size.div_ceil(PART).max(1);
                (format!("{value}-{parts}"), "COMPOSITE")
            }
            (false, _) => (value, "FULL_OBJECT"),
        };
        Ok(answer
            .with(self.of.algorithm.header(), header)
            .with("x-amz-checksum-type", kind))
    }

    async fn value(&self, (bucket, key): (&str, &str), object: &Object) -> io::Result<String> {
        let name = format!("{bucket}/{key} {}", object.etag);
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = known().get(&name) {
            return Ok(value.clone());
        }
        let value = BASE64.encode(self.sum(object).await?);
        let mut known = known();
        if known.len() >= KEPT {
            known.clear();
        }
        known.insert(name, value.clone());
        Ok(value)
    }

    async fn sum(&self, object: &Object) -> io::Result<Vec<u8>> {
        let algorithm = self.of.algorithm;
        if !self.of.composite {
            return sum_of(algorithm, object, 0, object.size).await;
        }
        let mut all = Sum::new(algorithm);
        let mut first = 0;
        loop {
            let len = PART.min(object.size - first);
            all.update(&sum_of(algorithm, object, first, len).await?);
            first += len;
            if first == object.size {
                return Ok(all.finish());
            }
        }
    }
}

async fn sum_of(
    algorithm: Algorithm,
    object: &Object,
    first: u64,
    len: u64,
) -> io::Result<Vec<u8>> {
    let mut sum = Sum::new(algorithm);
    let mut at = 0;
    while at < len {
        let piece = PIECE.min(len - at);
        sum.update(&load_object(&object.source, first + at, piece).await?);
        at += piece;
        task::yield_now().await;
    }
    Ok(sum.finish())
}

enum Sum {
    Crc(CrcAlgorithm, crc_fast::Digest),
    Sha1(Sha1),
    Sha256(Sha256),
}

impl Sum {
    fn new(algorithm: Algorithm) -> Sum {
        let crc = |of| Sum::Crc(of, crc_fast::Digest::new(of));
        match algorithm {
            Algorithm::Crc32 => crc(CrcAlgorithm::Crc32IsoHdlc),
            Algorithm::Crc32c => crc(CrcAlgorithm::Crc32Iscsi),
            Algorithm::Crc64Nvme => crc(CrcAlgorithm::Crc64Nvme),
            Algorithm::Sha1 => Sum::Sha1(Sha1::new()),
            Algorithm::Sha256 => Sum::Sha256(Sha256::new()),
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Sum::Crc(_, sum) => sum.update(bytes),
            Sum::Sha1(sum) => sum.update(bytes),
            Sum::Sha256(sum) => sum.update(bytes),
        }
    }

    /// Its bytes, the highest first.
    fn finish(self) -> Vec<u8> {
        match self {
            Sum::Crc(CrcAlgorithm::Crc64Nvme, sum) => sum.finalize().to_be_bytes().to_vec(),
            Sum::Crc(_, sum) => (sum.finalize() as u32).to_be_bytes().to_vec(),
            Sum::Sha1(sum) => sum.finalize().to_vec(),
            Sum::Sha256(sum) => sum.finalize().to_vec(),
        }
    }
}

impl Algorithm {
    fn header(self) -> &'static str {
        match self {
            Algorithm::Crc32 => "x-amz-checksum-crc32",
            Algorithm::Crc32c => "x-amz-checksum-crc32c",
            Algorithm::Crc64Nvme => "x-amz-checksum-crc64nvme",
            Algorithm::Sha1 => "x-amz-checksum-sha1",
            Algorithm::Sha256 => "x-amz-checksum-sha256",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_that_everybody_knows() {
        let of = |algorithm| {
            let mut sum = Sum::new(algorithm);
            sum.update(b"1234");
            sum.update(b"56789");
            hex::encode(sum.finish())
        };
        assert_eq!(of(Algorithm::Crc32), "cbf43926");
        assert_eq!(of(Algorithm::Crc32c), "e3069283");
        assert_eq!(of(Algorithm::Crc64Nvme), "ae8b14860a799888");
        assert_eq!(
            of(Algorithm::Sha1),
            "f7c3bc1d808e04732adf679965ccc34ca7ae3441"
        );
        assert!(of(Algorithm::Sha256).starts_with("15e2b0d3c33891eb"));
    }

    #[test]
    fn names_are_read_and_others_refused() {
        let composite = "sha256:composite".parse::<Checksum>().unwrap();
        assert!(composite.composite && composite.algorithm == Algorithm::Sha256);
        for text in ["", "md5", "crc64nvme:composite", "crc32:whole"] {
            assert!(text.parse::<Checksum>().is_err(), "{text}");
        }
    }
}
