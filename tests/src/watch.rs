//! All memory of a pool that nobody uses, watched for writes that nobody asked for.

use std::borrow::Cow;

use s3engine::{Buffer, Memory, Pool, PoolError};

const PATTERN: u8 = 0xa5;

/// Fills a buffer with what [`is_untouched`] looks for.
pub fn fill(buffer: &mut Buffer) {
    if let Some(bytes) = buffer.as_mut_slice() {
        return bytes.fill(PATTERN);
    }
    let bytes = vec![PATTERN; buffer.len() as usize];
    let written = buffer.write_from_host(0, &bytes);
    written.expect("the memory of a device");
}

/// What a buffer holds, also where only a device can read it.
pub fn contents(buffer: &Buffer) -> Cow<'_, [u8]> {
    if let Some(bytes) = buffer.as_slice() {
        return bytes.into();
    }
    let mut bytes = vec![0; buffer.len() as usize];
    let read = buffer.read_to_host(0, &mut bytes);
    read.expect("the memory of a device");
    bytes.into()
}

/// Whether nobody has written to bytes that were filled.
pub fn is_untouched(bytes: &[u8]) -> bool {
    const PAGE: [u8; 4096] = [PATTERN; 4096];
    let mut pieces = bytes.chunks(PAGE.len());
    pieces.all(|piece| piece == &PAGE[..piece.len()])
}

/// Leases of all free memory of a pool, filled with a pattern.
pub struct FreeMemory(Vec<Buffer>);

impl FreeMemory {
    /// Leases and fills all there is of the host's memory.
    pub fn lease(pool: &Pool) -> Self {
        Self::lease_of(pool, Memory::Host)
    }

    /// Leases and fills all there is of one kind.
    pub fn lease_of(pool: &Pool, memory: Memory) -> Self {
        let mut buffers = Vec::new();
        for len in [1 << 20, 64 << 10, 4 << 10] {
            loop {
                match pool.try_alloc(len, memory) {
                    Ok(buffer) => buffers.push(buffer),
                    Err(PoolError::WouldBlock { .. }) => break,
                    Err(error) => panic!("{error}"),
                }
            }
        }
        let mut all = Self(buffers);
        all.fill();
        all
    }

    fn fill(&mut self) {
        self.0.iter_mut().for_each(fill);
    }

    /// Bytes leased.
    pub fn len(&self) -> u64 {
        self.0.iter().map(Buffer::len).sum()
    }

    /// Whether there was nothing to lease.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the memory at an address is among it.
    pub fn contains(&self, address: u64) -> bool {
        let holds = |b: &Buffer| (b.address()..b.address() + b.len()).contains(&address);
        self.0.iter().any(holds)
    }

    /// Whether nobody has written.
    pub fn is_untouched(&self) -> bool {
        let mut all = self.0.iter();
        all.all(|buffer| is_untouched(&contents(buffer)))
    }
}
