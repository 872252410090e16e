//! A body on its way: how its bytes get from the socket to where they belong, and what can go wrong with that.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use s3engine_pool::{Filling, WriteError};
use tokio::task::yield_now;
use tokio::time::{Instant, Sleep, sleep_until};

use super::connection::{Connection, closed};
use super::dial::Place;
use super::framing::{Framing, Next};
use super::head::Head;
use super::moving::Moving;
use crate::checksum::Sum;
use crate::error::{ErrorKind, Phase};
use crate::timeouts::Timeouts;

/// Bytes that are read without a look at the thread's other tasks.
const TURN: usize = 1 << 20;

/// Bytes that the kernel is asked to receive at once: all of a part as engines have them, since to be woken for each of
/// its pieces takes longer.
const AT_ONCE: u64 = 8 << 20;

/// The same where they are summed up: they are still in the processor's caches then.
const SUMMED: u64 = 1 << 20;

/// The fewest bytes that the kernel is asked to receive by itself: for less it is not worth a turn of its ring.
const WORTH: u64 = 128 << 10;

/// How often it is asked how far the kernel has come with a receive that takes long.
const LOOK: Duration = Duration::from_millis(500);

/// The most that grows a body in memory at once.
const PIECE: u64 = 16 << 10;

/// The body of an answer. Dropping it closes its connection.
pub(super) struct Incoming {
    connection: Connection,
    framing: Framing,
    /// Whether the connection serves another request after it.
    leaves_open: bool,
    stall: Stall,
    /// Bytes read since others had their turn.
    turn: usize,
    /// It goes where the kernel can put it by itself.
    direct: bool,
    /// For how long it had stalled when it was given up: what the kernel had received until then is still told of.
    stalled: Option<Duration>,
}

/// Why the next bytes of a body did not come.
pub(super) enum Failure {
    Stalled(Duration),
    Broken(io::Error),
    Malformed(&'static str),
}

impl Incoming {
    /// The body behind a head.
    pub(super) fn new(
        connection: Connection,
        head: &Head,
        framing: Framing,
        timeouts: &Timeouts,
    ) -> Incoming {
        Incoming {
            connection,
            framing,
            leaves_open: framing.leaves_open(head),
            stall: Stall::new(timeouts),
            turn: 0,
            direct: false,
            stalled: None,
        }
    }

    pub(super) fn place(&self) -> &Place {
        &self.connection.place
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.connection.address
    }

    /// Says where the bytes of the object go from now on.
    pub(super) fn goes_to(&mut self, filling: &Filling<'_>) {
        self.direct = filling.is_direct();
    }

    /// Whether the kernel is to receive the next bytes by itself: it is from then on, where it can be and so many bytes
    /// are to come that it is worth it.
    fn is_lent(&mut self) -> Result<bool, Failure> {
        let is_worth_it = self.direct && matches!(self.framing, Framing::Length(WORTH..));
        if is_worth_it && self.connection.lent().is_none() {
            self.connection.lend().map_err(Failure::Broken)?;
        }
        Ok(self.connection.lent().is_some())
    }

    /// How many bytes of the object come next, at least, once some of them may be there; `None` at the body's end.
    /// Calls `pause` before it waits for the server.
    pub(super) async fn next(&mut self, mut pause: impl FnMut()) -> Result<Option<u64>, Failure> {
        if self.turn >= TURN {
            self.turn = 0;
            yield_now().await;
        }
        loop {
            let next = self.framing.next(self.connection.input());
            let next = next.map_err(Failure::Malformed)?;
            if next == Next::End {
                return Ok(None);
            }
            if let Some(after) = self.stalled {
                return Err(Failure::Stalled(after));
            }
            if let Next::Data(len) = next
                && self.is_lent()?
            {
                return Ok(Some(len));
            }
            if self.connection.input().is_empty() || next == Next::More {
                self.more(&mut pause).await?;
            }
            if let Next::Data(len) = next {
                return Ok(Some(len));
            }
            match self.connection.fetch() {
                Ok(0) if self.framing == Framing::UntilClose => return Ok(None),
                Ok(0) => return Err(Failure::Broken(closed())),
                Ok(read) => self.stall.took(read as u64),
                Err(error) if is_early(&error) => {}
                Err(error) => return Err(Failure::Broken(error)),
            }
        }
    }

    /// Has bytes of the object put into a window at `at`, at most as many as [`next`](Self::next) has said, and summed
    /// up. None: they are not there yet. `told` hears how many have come where that takes long.
    pub(super) async fn land(
        &mut self,
        (filling, at): (&mut Filling<'_>, u64),
        len: u64,
        sum: Option<&mut Sum>,
        told: impl Fn(u64),
    ) -> Result<Result<usize, Failure>, WriteError> {
        if self.connection.lent().is_none() {
            let read = |room: &mut [u8]| {
                let read = self.read(room)?;
                // While it is still in the processor's caches.
                sum.into_iter().for_each(|sum| sum.update(&room[..read]));
                Ok(read)
            };
            let read = filling.receive(at, len, read).await?;
            return Ok(read.map_err(Failure::Broken));
        }
        let most = sum.as_ref().map_or(AT_ONCE, |_| SUMMED);
        let landed = self.receive(filling, at, len.min(most), told).await?;
        if let (Ok(landed), Some(sum)) = (&landed, sum) {
            let bytes = filling.received(at, *landed as u64);
            sum.update(bytes.unwrap_or_default());
        }
        Ok(landed)
    }

    /// Has the kernel receive bytes of the object into a window by itself.
    async fn receive(
        &mut self,
        filling: &mut Filling<'_>,
        at: u64,
        len: u64,
        told: impl Fn(u64),
    ) -> Result<Result<usize, Failure>, WriteError> {
        let Some(socket) = self.connection.lent() else {
            return Ok(Ok(0));
        };
        let mut receiving = filling.receive_by(socket, at, len).await?;
        let seen = Cell::new(0);
        let received = poll_fn(|cx| {
            if let Poll::Ready(received) = Pin::new(&mut receiving).poll(cx) {
                return Poll::Ready(Ok(received));
            }
            let look = || {
                let come = self.connection.come().unwrap_or_default();
                told(come);
                come.saturating_sub(seen.replace(come))
            };
            let stalled = self.stall.poll(cx, Some(look));
            stalled.map(Err)
        });
        let received = match received.await {
            Ok(received) => received,
            Err(after) => {
                self.stalled = Some(after);
                receiving.stop().await
            }
        };
        Ok(match (received, self.stalled) {
            (Ok(received @ 1..), _) => {
                let news = (received as u64).saturating_sub(seen.get());
                self.connection.has_received(received);
                self.framing.took(received);
                self.stall.took(news);
                Ok(received)
            }
            (_, Some(after)) => Err(Failure::Stalled(after)),
            (Ok(0), None) => Err(Failure::Broken(closed())),
            (Err(error), None) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            (Err(error), None) => Err(Failure::Broken(error)),
        })
    }

    /// Reads bytes of the object that are there now, at most as many as [`next`](Self::next) has said. None: they are
    /// not there yet.
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let read = match self.connection.read(room) {
            Ok(0) => return Err(closed()),
            Ok(read) => read,
            Err(error) if is_early(&error) => return Ok(0),
            Err(error) => return Err(error),
        };
        self.framing.took(read);
        self.stall.took(read as u64);
        self.turn += read;
        Ok(read)
    }

    /// Passes over the next `len` bytes of the object.
    pub(super) async fn skip(&mut self, mut len: u64) -> Result<(), Failure> {
        // Rare, and room that every request would have otherwise.
        let mut room = vec![0; len.min(8 << 10) as usize];
        while len > 0 {
            let Some(next) = self.next(|| ()).await? else {
                return Err(Failure::Broken(closed()));
            };
            let most = next.min(len).min(room.len() as u64) as usize;
            let read = self.read(&mut room[..most]).map_err(Failure::Broken)?;
            len -= read as u64;
        }
        Ok(())
    }

    /// Waits until more may have come.
    async fn more(&mut self, mut pause: impl FnMut()) -> Result<(), Failure> {
        poll_fn(|cx| match self.connection.poll_readable(cx) {
            Poll::Ready(readable) => Poll::Ready(readable.map_err(Failure::Broken)),
            Poll::Pending => {
                pause();
                let stalled = self.stall.poll(cx, None::<fn() -> u64>);
                stalled.map(|after| Err(Failure::Stalled(after)))
            }
        })
        .await
    }

    /// Adds the next bytes of the object. Whether it goes on: otherwise it is complete.
    pub(super) async fn append(&mut self, object: &mut Vec<u8>) -> Result<bool, Failure> {
        let Some(len) = self.next(|| ()).await? else {
            return Ok(false);
        };
        let have = object.len();
        object.resize(have + len.min(PIECE) as usize, 0);
        let read = self.read(&mut object[have..]).map_err(Failure::Broken)?;
        object.truncate(have + read);
        Ok(true)
    }

    /// The connection, where the body has ended and another answer may follow it.
    pub(super) fn into_connection(mut self) -> Option<Connection> {
        let nothing_else = self.framing.is_over() && self.connection.input().is_empty();
        let is_whole = self.leaves_open && nothing_else && self.stalled.is_none();
        (is_whole && self.connection.take_back()).then_some(self.connection)
    }
}

/// Whether a read has failed only because nothing has come.
fn is_early(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

impl Failure {
    /// What that is for an answer of which so many bytes had come.
    pub(super) fn into_kind(
        self,
        received: u64,
        expected: Option<u64>,
    ) -> (ErrorKind, Option<io::Error>) {
        match self {
            Failure::Stalled(after) => {
                let phase = Phase::Body;
                (ErrorKind::Timeout { phase, after }, None)
            }
            Failure::Malformed(text) => (ErrorKind::Protocol(text.to_owned()), None),
            Failure::Broken(error) => {
                let kind = match (error.kind(), expected) {
                    (io::ErrorKind::UnexpectedEof, Some(expected)) => {
                        ErrorKind::Truncated { received, expected }
                    }
                    _ => ErrorKind::Reset(format!("{error} after {received} bytes")),
                };
                (kind, Some(error))
            }
        }
    }
}

/// Ends the wait for a body that moves too little. One timer, set only when it runs out.
struct Stall {
    moving: Moving,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Stall {
    fn new(timeouts: &Timeouts) -> Stall {
        Stall {
            moving: Moving::new(timeouts.stall, timeouts.stall_bytes),
            timer: None,
        }
    }

    fn took(&mut self, bytes: u64) {
        self.moving.took(bytes, Instant::now);
    }

    /// Ready once too little has come for too long. `look` tells of bytes that have come and were not
    /// [`took`](Self::took) yet, each of them once: where there is such a way, it is asked now and then.
    fn poll<L: FnMut() -> u64>(
        &mut self,
        cx: &mut Context<'_>,
        mut look: Option<L>,
    ) -> Poll<Duration> {
        loop {
            let now = Instant::now();
            let due = self.moving.due(now);
            let wake = look.as_ref().map_or(due, |_| due.min(now + LOOK));
            let timer = self
                .timer
                .get_or_insert_with(|| Box::pin(sleep_until(wake)));
            // It may still stand for an earlier pause: before that one's end it wakes for nothing.
            if timer.deadline() > wake {
                timer.as_mut().reset(wake);
            }
            ready!(timer.as_mut().poll(cx));
            timer.as_mut().reset(wake);
            let come = look.as_mut().map_or(0, |look| look());
            if come > 0 {
                self.moving.took(come, Instant::now);
            }
            let now = Instant::now();
            if now >= self.moving.due(now) {
                return Poll::Ready(self.moving.limit);
            }
        }
    }
}
