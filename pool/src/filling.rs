//! How bytes that are in this process's hands get into a window, whatever its memory.

use std::sync::Arc;

use crate::cuda::{Chunk, Copies, CudaError, Staging};
use crate::landing::{Window, WriteError};

/// Writes to a window. In host memory they are there at once; on the way to a device they gather in staging, and are
/// there when [`finish`](Self::finish) says so.
///
/// Dropped without an end, copies may still be under way: they keep the slot from being anybody else's, and who
/// fills the window again waits for them.
pub struct Filling<'a> {
    window: &'a mut Window,
    gathered: Option<Gathered>,
    staged: u64,
}

/// Consecutive bytes that are not sent yet.
struct Gathered {
    chunk: Chunk,
    /// Where in the window they begin.
    at: u64,
}

impl Gathered {
    fn end(&self) -> u64 {
        self.at + self.chunk.len() as u64
    }
}

impl Window {
    /// Begins to write bytes to it.
    pub fn filling(&mut self) -> Filling<'_> {
        Filling {
            window: self,
            gathered: None,
            staged: 0,
        }
    }

    /// Waits until nothing is copied to the window any more. At once, where nothing was staged for it.
    pub async fn settled(&mut self) {
        if let Some(copies) = &self.copies {
            // Its own GET was told of an error.
            let _ = copies.ended().await;
            self.copies = None;
        }
    }
}

impl Filling<'_> {
    /// Writes `data` to `at`. Waits only on the way to a device, and only for staging memory.
    pub async fn write(&mut self, at: u64, data: &[u8]) -> Result<(), WriteError> {
        if self.window.core.slab.mapping().is_some() {
            return self.window.write(at, data);
        }
        self.stage(at, data).await
    }

    async fn stage(&mut self, mut at: u64, mut data: &[u8]) -> Result<(), WriteError> {
        let range = self.window.check_range(at, data)?;
        let staging = Arc::clone(self.window.core.slab.staging().ok_or(range)?);
        if self.staged == 0 {
            // Of an earlier try: they would write over what comes now.
            self.window.settled().await;
        }
        let copies = Arc::clone(self.window.copies.get_or_insert_default());
        // What is already known to fail is not received to the end.
        copies.check()?;
        self.staged += data.len() as u64;
        while !data.is_empty() {
            let mut gathered = self.gather(at, &staging, &copies).await?;
            let later = gathered.chunk.fill(data);
            at += (data.len() - later.len()) as u64;
            data = later;
            if gathered.chunk.is_full() {
                self.send(gathered, &copies);
            } else {
                self.gathered = Some(gathered);
            }
        }
        Ok(())
    }

    /// A chunk with room for bytes at `at`.
    async fn gather(
        &mut self,
        at: u64,
        staging: &Staging,
        copies: &Arc<Copies>,
    ) -> Result<Gathered, CudaError> {
        match self.gathered.take() {
            Some(gathered) if gathered.end() == at => return Ok(gathered),
            Some(elsewhere) => self.send(elsewhere, copies),
            None => {}
        }
        // Nothing is held while this waits.
        let chunk = staging.chunk().await?;
        Ok(Gathered { chunk, at })
    }

    fn send(&self, gathered: Gathered, copies: &Arc<Copies>) {
        let Gathered { chunk, at } = gathered;
        let core = Arc::clone(&self.window.core);
        chunk.send(core, self.window.start + at, copies);
    }

    /// More bytes will take a while. Where others wait for staging, what has gathered is sent.
    pub fn pause(&mut self) {
        let staging = self.window.core.slab.staging();
        if let Some(copies) = self.window.copies.clone()
            && staging.is_some_and(|staging| staging.is_crowded())
            && let Some(gathered) = self.gathered.take()
        {
            self.send(gathered, &copies);
        }
    }

    /// All bytes are there when this returns. Returns how many of them went through staging.
    pub async fn finish(mut self) -> Result<u64, WriteError> {
        if let Some(copies) = self.window.copies.clone() {
            if let Some(last) = self.gathered.take() {
                self.send(last, &copies);
            }
            let ended = copies.ended().await;
            self.window.copies = None;
            ended?;
        }
        Ok(self.staged)
    }

    /// Gives up: what is not under way is not copied, and what is is waited for.
    pub async fn stop(mut self) {
        self.gathered = None;
        self.window.settled().await;
    }
}
