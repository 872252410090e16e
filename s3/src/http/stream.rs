//! The bytes of a connection, enciphered or not: both are read without waiting, and waited for.

use std::io::{self, Read, Write};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use bytes::BytesMut;
use rustix::net::{RecvFlags, recv};
use rustls::ClientConnection;
use s3engine_pool::uring::{self, Socket};
use tokio::io::{AsyncRead, AsyncWriteExt, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio_util::io::poll_read_buf;

/// Bytes that are read at once from a socket that enciphers: four records of the largest size.
const WIRE: usize = 64 << 10;

/// Pieces of TLS records that may come one after the other without data: tickets and keys are a few.
const MOST_EMPTY: usize = 4096;

/// A socket, or TLS over one.
pub(super) enum Stream {
    Plain(TcpStream),
    /// A socket that only the kernel receives from, for a while. None: it was lost while it changed hands.
    Lent(Option<Socket>),
    Tls(Box<Secure>),
}

/// A request that did not go out whole.
pub(super) struct Unsent {
    pub(super) error: io::Error,
    /// Bytes that are on their way.
    pub(super) sent: usize,
}

impl Stream {
    /// TLS over a socket, once its handshake is over.
    pub(super) fn tls(socket: TcpStream, mut session: ClientConnection) -> Stream {
        // Requests are short; what bounds them is that they are.
        session.set_buffer_limit(None);
        Stream::Tls(Box::new(Secure {
            socket,
            session,
            wire: Wire::default(),
            drained: false,
        }))
    }

    /// Sends all bytes.
    pub(super) async fn send(&mut self, bytes: &[u8]) -> Result<(), Unsent> {
        let mut sent = 0;
        let result = match self {
            Stream::Plain(socket) => loop {
                match socket.write(&bytes[sent..]).await {
                    Ok(n) if sent + n == bytes.len() => break Ok(()),
                    Ok(n) => sent += n,
                    Err(error) => break Err(error),
                }
            },
            Stream::Lent(_) => Err(lent()),
            Stream::Tls(secure) => secure.send(bytes, &mut sent).await,
        };
        result.map_err(|error| Unsent { error, sent })
    }

    /// Reads what is there now. Nothing at all: the server has closed.
    pub(super) fn try_read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(socket) => {
                let mut room = ReadBuf::new(room);
                let read = now(|cx| Pin::new(socket).poll_read(cx, &mut room));
                read.map(|()| room.filled().len())
            }
            Stream::Lent(_) => Err(lent()),
            Stream::Tls(secure) => secure.try_read(room),
        }
    }

    /// Adds what is there now, up to `most` bytes.
    pub(super) fn try_read_more(&mut self, input: &mut BytesMut, most: usize) -> io::Result<usize> {
        match self {
            Stream::Plain(socket) => {
                input.reserve(most);
                now(|cx| poll_read_buf(Pin::new(socket), cx, input))
            }
            Stream::Lent(_) => Err(lent()),
            Stream::Tls(secure) => {
                let have = input.len();
                input.resize(have + most, 0);
                let read = secure.try_read(&mut input[have..]);
                input.truncate(have + *read.as_ref().unwrap_or(&0));
                read
            }
        }
    }

    /// Ready once more may have come.
    pub(super) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Stream::Plain(socket) => socket.poll_read_ready(cx),
            Stream::Lent(_) => Poll::Ready(Err(lent())),
            // What is deciphered already wakes nobody.
            Stream::Tls(secure) if !secure.drained => Poll::Ready(Ok(())),
            Stream::Tls(secure) => secure.socket.poll_read_ready(cx),
        }
    }

    /// Whether the server has neither closed nor said anything that nobody asked for: as far as the runtime has heard,
    /// which has looked at the socket not long ago, or for `sure`.
    pub(super) fn is_quiet(&mut self, sure: bool) -> bool {
        match self {
            Stream::Plain(socket) => {
                let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
                let look = || Ok(recv(&*socket, &mut [0; 1], flags)?.0);
                let seen = match sure {
                    true => look(),
                    // What this finds spares the next read one in vain.
                    false => socket.try_io(Interest::READABLE, look),
                };
                seen.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
            }
            Stream::Lent(_) => false,
            Stream::Tls(secure) => secure.is_quiet(),
        }
    }

    /// Has nobody but the kernel receive from it, where it is plain and this thread can ask for that.
    pub(super) fn lend(&mut self) -> io::Result<()> {
        if !uring::is_here() {
            return Ok(());
        }
        let socket = match std::mem::replace(self, Stream::Lent(None)) {
            Stream::Plain(socket) => socket,
            other => {
                *self = other;
                return Ok(());
            }
        };
        // The runtime would be woken by every packet.
        let socket = socket.into_std()?;
        socket.set_nonblocking(false)?;
        *self = Stream::Lent(Some(Socket::new(socket.into())));
        Ok(())
    }

    /// The socket that the kernel receives from.
    pub(super) fn lent(&self) -> Option<&Socket> {
        match self {
            Stream::Lent(socket) => socket.as_ref(),
            Stream::Plain(_) | Stream::Tls(_) => None,
        }
    }

    /// The kernel has received all that it was to.
    pub(super) fn take_back(&mut self) -> io::Result<()> {
        if let Stream::Lent(socket) = self {
            let fd = socket.take().and_then(Socket::into_fd).ok_or_else(lent)?;
            let socket = std::net::TcpStream::from(fd);
            socket.set_nonblocking(true)?;
            *self = Stream::Plain(TcpStream::from_std(socket)?);
        }
        Ok(())
    }
}

/// Never so: nobody asks for the bytes of a body in two ways.
fn lent() -> io::Error {
    io::Error::other("the kernel receives from this connection")
}

/// What a read gives now. One by `poll_read` that has left room has taken all there was: the next one waits for the
/// kernel to tell of more, instead of asking it in vain.
fn now<T>(read: impl FnOnce(&mut Context<'_>) -> Poll<io::Result<T>>) -> io::Result<T> {
    // Whoever waits afterwards leaves a waker of its own.
    match read(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(read) => read,
        Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
    }
}

/// TLS over a socket.
pub(super) struct Secure {
    socket: TcpStream,
    session: ClientConnection,
    wire: Wire,
    /// All that had come was read when somebody last looked.
    drained: bool,
}

impl Secure {
    async fn send(&mut self, bytes: &[u8], sent: &mut usize) -> io::Result<()> {
        self.session.writer().write_all(bytes)?;
        while self.session.wants_write() {
            match self.session.write_tls(&mut Now(&self.socket)) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => *sent += n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.socket.writable().await?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn try_read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.drained = false;
        for _ in 0..MOST_EMPTY {
            match self.session.reader().read(room) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(cut()),
                read => return read,
            }
            if self.wire.is_empty()
                && let Err(error) = self.wire.fill(|bytes| self.socket.try_read(bytes))
            {
                self.drained = error.kind() == io::ErrorKind::WouldBlock;
                return Err(error);
            }
            self.decipher()?;
        }
        let text = "TLS records without end and without data";
        Err(io::Error::new(io::ErrorKind::InvalidData, text))
    }

    /// Hands a piece of what has come to the session.
    fn decipher(&mut self) -> io::Result<()> {
        self.session.read_tls(&mut self.wire)?;
        let processed = self.session.process_new_packets();
        // An answer to the server's housekeeping, or why it is refused; what does not go now goes with the next request.
        while self.session.wants_write() && self.session.write_tls(&mut Now(&self.socket)).is_ok() {
        }
        match processed {
            Ok(_) => Ok(()),
            Err(error) => Err(io::Error::new(io::ErrorKind::InvalidData, error)),
        }
    }

    /// What comes while nobody asks is housekeeping, such as tickets for later sessions, or the end.
    fn is_quiet(&mut self) -> bool {
        for _ in 0..MOST_EMPTY {
            match self.session.reader().read(&mut [0; 1]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                _ => return false,
            }
            if self.wire.is_empty() {
                // The runtime may not have looked at the socket since.
                let socket = &self.socket;
                let now = |bytes: &mut [u8]| Ok(recv(socket, bytes, RecvFlags::DONTWAIT)?.0);
                match self.wire.fill(now) {
                    Ok(0) => return false,
                    Ok(_) => {}
                    Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
                }
            }
            if self.decipher().is_err() {
                return false;
            }
        }
        false
    }
}

/// Enciphered bytes that have come.
#[derive(Default)]
struct Wire {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Wire {
    fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Reads into the empty buffer.
    fn fill(&mut self, read: impl FnOnce(&mut [u8]) -> io::Result<usize>) -> io::Result<usize> {
        self.bytes.resize(WIRE, 0);
        let read = read(&mut self.bytes)?;
        (self.start, self.end) = (0, read);
        Ok(read)
    }
}

impl Read for Wire {
    /// Nothing: the server has closed.
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let len = room.len().min(self.end - self.start);
        room[..len].copy_from_slice(&self.bytes[self.start..self.start + len]);
        self.start += len;
        Ok(len)
    }
}

/// A socket that takes what it can now.
struct Now<'a>(&'a TcpStream);

impl Write for Now<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// An end that nobody has signed: anybody on the way could have cut the answer there.
fn cut() -> io::Error {
    let text = "the connection ended without the end of its TLS session (close_notify)";
    io::Error::new(io::ErrorKind::UnexpectedEof, text)
}
