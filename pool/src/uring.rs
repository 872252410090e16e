//! Receiving by io_uring: the kernel puts bytes from a socket into a slot by itself, and tells when so many are there.
//!
//! That is done on threads that run a [`Runtime`] of this module.

use std::cell::Cell;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::task::{Context, Poll, ready};
use std::thread;
use std::time::Duration;

use io_uring::{cqueue, opcode, types};
use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketType, shutdown};
use tokio_uring::{InFlightOneshot, OneshotOutputTransform, UnsubmittedOneshot};

use crate::filling::Claim;

/// Operations that a thread hands to the kernel in one call; more make several calls. Rings are locked memory, of which
/// users have little.
const ENTRIES: u32 = 64;

/// How long a ring may take for an operation that does nothing.
const PATIENCE: Duration = Duration::from_secs(2);

thread_local! {
    /// This thread runs a [`Runtime`].
    static HERE: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread runs a [`Runtime`].
pub fn is_here() -> bool {
    HERE.get()
}

/// A tokio runtime of one thread, with local tasks, that has io_uring too.
pub struct Runtime(tokio_uring::Runtime);

impl Runtime {
    /// Fails where io_uring is closed (seccomp, `kernel.io_uring_disabled`) or too old.
    pub fn new() -> io::Result<Runtime> {
        let mut ring = tokio_uring::uring_builder();
        // What completes waits for the thread's next call of the kernel, which is soon, instead of interrupting it.
        ring.setup_coop_taskrun();
        let mut builder = tokio_uring::builder();
        let builder = builder.entries(ENTRIES).uring_builder(&ring);
        let runtime = tokio_uring::Runtime::new(builder);
        Ok(Runtime(runtime.map_err(|error| explained(&error))?))
    }

    /// Runs a future, and the local tasks that it spawns, on this thread.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        HERE.set(true);
        let result = self.0.block_on(future);
        HERE.set(false);
        result
    }
}

/// Whether threads of this process can run a [`Runtime`], and sockets be received from there. An error says why not.
pub fn probe() -> io::Result<()> {
    // The end of a ring interrupts calls of the thread that had it, some time later.
    let (tell, told) = channel();
    let probe = thread::Builder::new().name("s3engine-probe".into());
    probe.spawn(move || drop(tell.send(probe_here())))?;
    // Where a ring can be made and not entered, nothing ends the wait for it.
    let nothing = |_| Err(io::Error::other("its operations do not end"));
    told.recv_timeout(PATIENCE).unwrap_or_else(nothing)
}

fn probe_here() -> io::Result<()> {
    let runtime = Runtime::new()?;
    // Seccomp may close a single operation, too.
    runtime.block_on(tokio_uring::no_op())?;
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
    match received(socket.as_fd()) {
        Some(_) => Ok(()),
        None => Err(io::Error::other(
            "TCP_INFO does not tell how many bytes have come",
        )),
    }
}

/// What the error of making a ring means.
fn explained(error: &io::Error) -> io::Error {
    let why = match Errno::from_io_error(error) {
        Some(Errno::PERM | Errno::ACCESS) => {
            "it is closed here, by kernel.io_uring_disabled or seccomp"
        }
        Some(Errno::NOSYS) => "this kernel has none, or seccomp closes it",
        Some(Errno::INVAL) => "this kernel's is older than Linux 5.19",
        Some(Errno::NOMEM) => "no locked memory is left for it (ulimit -l)",
        Some(Errno::MFILE) => "too many open files in this process (ulimit -n)",
        _ => return io::Error::new(error.kind(), error.to_string()),
    };
    io::Error::new(error.kind(), format!("{why} ({error})"))
}

/// A connected socket that the kernel receives from by itself.
pub struct Socket(Arc<OwnedFd>);

impl Socket {
    /// Takes over a TCP socket. Its file must not be non-blocking: the kernel would not wait then.
    pub fn new(fd: OwnedFd) -> Socket {
        Socket(Arc::new(fd))
    }

    /// Gives the socket back, unless the kernel may still be at work on it.
    pub fn into_fd(self) -> Option<OwnedFd> {
        Arc::into_inner(self.0)
    }

    /// Bytes that have come since it was connected, taken or not. Only of TCP, and Linux since 4.1.
    pub fn received(&self) -> Option<u64> {
        received(self.0.as_fd())
    }

    /// Has the kernel receive bytes into the place that `claim` keeps: all of them, unless the other end closes or
    /// fails before.
    pub(crate) fn receive<'a>(&self, claim: Claim) -> Receiving<'a> {
        let entry = opcode::Recv::new(types::Fd(self.0.as_raw_fd()), claim.address, claim.len)
            .flags(libc::MSG_WAITALL)
            .build();
        // What the entry points to is kept by the runtime until the kernel is done, also where nobody waits any more.
        let kept = (claim, Arc::clone(&self.0));
        Receiving {
            op: UnsubmittedOneshot::new(kept, Received, entry).submit(),
            socket: Arc::clone(&self.0),
            ended: false,
            window: PhantomData,
        }
    }
}

/// The kernel receives into a window. Dropped before its end, it shuts its socket down, and the window's slot is
/// nobody's until the kernel is done with it.
pub struct Receiving<'a> {
    op: InFlightOneshot<Kept, Received>,
    socket: Arc<OwnedFd>,
    ended: bool,
    window: PhantomData<&'a mut ()>,
}

/// What the kernel writes to, and where it reads.
type Kept = (Claim, Arc<OwnedFd>);

impl Receiving<'_> {
    /// Gives it up before its end: the socket is shut down, and the kernel is waited for, which takes no time then.
    pub async fn stop(self) -> io::Result<usize> {
        self.shut_down();
        self.await
    }

    fn shut_down(&self) {
        let _ = shutdown(&self.socket, Shutdown::Both);
    }
}

impl Future for Receiving<'_> {
    /// How many bytes are there: none, where the other end has closed.
    type Output = io::Result<usize>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let received = ready!(Pin::new(&mut self.op).poll(cx));
        self.ended = true;
        Poll::Ready(received)
    }
}

impl Drop for Receiving<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.shut_down();
        }
    }
}

/// What came of it.
struct Received;

impl OneshotOutputTransform for Received {
    type Output = io::Result<usize>;
    type StoredData = Kept;

    fn transform_oneshot_output(self, kept: Kept, entry: cqueue::Entry) -> Self::Output {
        drop(kept);
        let result = entry.result();
        usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result))
    }
}

/// `tcpi_bytes_received` of TCP_INFO.
fn received(socket: BorrowedFd<'_>) -> Option<u64> {
    // Where the kernel's structure has it; later kernels append.
    const AT: usize = 128;
    let mut info = [0_u8; AT + 8];
    let mut len = info.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, which `info` has, and says there how many.
    let failed = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    let found = info.get(AT..len as usize).filter(|_| failed == 0)?;
    Some(u64::from_ne_bytes(found.try_into().ok()?))
}
