//! How bytes that are in this process's hands, or on their way there, get into a window, whatever its memory.

use std::io;
use std::sync::Arc;

use crate::cuda::{Chunk, Copies, CudaError, Landed, Staging};
use crate::landing::{Window, WriteError};
use crate::uring::{Receiving, Socket};

/// The most that the kernel is asked for in one operation, whose length has 32 bits.
const LONGEST: u64 = 1 << 30;

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

    /// Waits until nothing is copied or received to the window any more. At once, where that was all waited for.
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
    pub async fn write(&mut self, mut at: u64, mut data: &[u8]) -> Result<(), WriteError> {
        self.window.check_range(at, data.len() as u64)?;
        while !data.is_empty() {
            let copy = |room: &mut [u8]| {
                room.copy_from_slice(&data[..room.len()]);
                Ok(room.len())
            };
            let received = self.receive(at, data.len() as u64, copy).await?;
            let written = received.unwrap_or_default();
            at += written as u64;
            data = &data[written..];
        }
        Ok(())
    }

    /// Has `read` put bytes at `at`: it is given room for one or more of them, and at most for `most`, and says how
    /// many it has put there, from the room's beginning. Bytes thus get from a socket into memory without a stop in
    /// between. Waits as [`write`](Self::write) does, before it calls `read`.
    ///
    /// Returns what `read` does. Of nothing, no room is made: the answer is 0 then.
    pub async fn receive(
        &mut self,
        at: u64,
        most: u64,
        read: impl FnOnce(&mut [u8]) -> io::Result<usize>,
    ) -> Result<io::Result<usize>, WriteError> {
        let range = self.window.check_range(at, most)?;
        if most == 0 {
            return Ok(Ok(0));
        }
        if self.is_direct() {
            self.window.settled().await;
        }
        if let Some(room) = self.window.room(at, most)? {
            let len = room.len();
            return Ok(read(room).map(|received| received.min(len)));
        }
        let staging = Arc::clone(self.window.core.slab.staging().ok_or(range)?);
        self.stage(at, most, &staging, read).await
    }

    /// Whether bytes get into the window without staging.
    pub fn is_direct(&self) -> bool {
        self.window.core.slab.mapping().is_some()
    }

    /// Has the kernel receive the next `most` bytes of a socket at `at`, or a gibibyte of them. Only where they need no
    /// staging ([`is_direct`](Self::is_direct)), and on a thread that runs a [`Runtime`](crate::uring::Runtime).
    pub async fn receive_by(
        &mut self,
        socket: &Socket,
        at: u64,
        most: u64,
    ) -> Result<Receiving<'_>, WriteError> {
        let range = self.window.check_range(at, most)?;
        self.window.settled().await;
        let room = self.window.place(at, most.min(LONGEST))?.ok_or(range)?;
        let (address, len) = (room.as_mut_ptr(), room.len() as u32);
        let core = Arc::clone(&self.window.core);
        let landed = self.window.copies.get_or_insert_default().begin(core);
        Ok(socket.receive(Claim {
            address,
            len,
            landed,
        }))
    }

    /// The bytes at `at`, which have come: at most `most` of them, and as many as are looked at in one go. `None`: they
    /// were staged.
    pub fn received(&self, at: u64, most: u64) -> Option<&[u8]> {
        self.window.written(at, most)
    }

    async fn stage(
        &mut self,
        at: u64,
        most: u64,
        staging: &Staging,
        read: impl FnOnce(&mut [u8]) -> io::Result<usize>,
    ) -> Result<io::Result<usize>, WriteError> {
        if self.staged == 0 {
            // Of an earlier try: they would write over what comes now.
            self.window.settled().await;
        }
        let copies = Arc::clone(self.window.copies.get_or_insert_default());
        // What is already known to fail is not received to the end.
        copies.check()?;
        let mut gathered = self.gather(at, staging, &copies).await?;
        let received = gathered.chunk.receive(most, read);
        self.staged += *received.as_ref().unwrap_or(&0) as u64;
        if gathered.chunk.is_full() {
            self.send(gathered, &copies);
        } else if gathered.chunk.len() > 0 {
            self.gathered = Some(gathered);
        }
        Ok(received)
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

/// A place in a window that the kernel writes to. As long as it is there, the slot is nobody else's.
pub(crate) struct Claim {
    pub(crate) address: *mut u8,
    pub(crate) len: u32,
    landed: Landed,
}

impl Drop for Claim {
    fn drop(&mut self) {
        // However it ended: whoever waits for that knows.
        self.landed.end(Ok(()));
    }
}
