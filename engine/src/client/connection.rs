//! One session with the host service: its socket, who waits for what on it, and when it is lost.

use std::io::{self, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use event_listener::{Event, Listener};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use s3engine_pool::Process;
use s3engine_ring::{Client, EventBell, Layout, SocketBell};
use s3engine_s3::error::ErrorKind;
use tokio::sync::oneshot;

use super::asks::{Answered, Asks, Waiter, give_back};
use super::memory::Holdings;
use super::{ConnectError, ConnectOptions, text};
use crate::control::{
    Answer, Ask, Failure, Frames, Greeting, Hello, LARGEST_SAID, Request, Said, VERSIONS, Welcome,
    encode, send_with_fds,
};
use crate::open::Opener;

/// The longest wait for a service's greeting.
const TO_GREET: Duration = Duration::from_secs(10);

/// The longest that the end of a session is waited for once a queue of it has ended.
const TO_SEE_THE_END: Duration = Duration::from_millis(200);

/// The shortest that [`ConnectOptions::patience`] means.
const SHORTEST_PATIENCE: Duration = Duration::from_millis(10);

/// A message, and the descriptor that goes with it.
type Frame = (Vec<u8>, Option<OwnedFd>);

/// A session with a host service.
pub(crate) struct Connection {
    process: Process,
    welcome: Welcome,
    socket: UnixStream,
    /// To the thread that writes.
    frames: Mutex<Option<mpsc::Sender<Frame>>>,
    asks: Asks,
    /// The longest that one who asks is left without a sign of life.
    patience: Duration,
    lost: OnceLock<String>,
    /// Told when it is lost, and when the service has memory again.
    pub(super) changed: Event,
    /// What is mapped of the service's memory.
    pub(super) holdings: OnceLock<Weak<Holdings>>,
    objects: u64,
}

impl Connection {
    /// Attaches to the service at `socket`.
    pub(super) fn open(path: &Path, options: &ConnectOptions) -> Result<Arc<Self>, ConnectError> {
        let protocol = |why: String| ConnectError::Protocol {
            socket: path.to_owned(),
            why,
        };
        let mut socket = connect(path).map_err(|source| ConnectError::NoService {
            socket: path.to_owned(),
            source,
        })?;
        let hello = Hello {
            versions: VERSIONS,
            endpoint: options.endpoint.clone(),
            label: options.label.clone().unwrap_or_else(default_label),
        };
        let mut frames = Frames::new(LARGEST_SAID);
        let greeting = greet(&mut socket, &hello, &mut frames).map_err(protocol)?;
        let welcome = match greeting {
            Greeting::Welcome(welcome) => welcome,
            Greeting::Refused(why) => {
                let socket = path.to_owned();
                // It ends up on terminals.
                let why = why.chars().filter(|c| !c.is_control()).collect();
                return Err(ConnectError::Refused { socket, why });
            }
        };
        let (sender, to_write) = mpsc::channel();
        let connection = Arc::new(Self {
            process: Process::current(),
            welcome,
            frames: Mutex::new(Some(sender)),
            asks: Asks::default(),
            patience: options.patience.max(SHORTEST_PATIENCE),
            lost: OnceLock::new(),
            changed: Event::new(),
            holdings: OnceLock::new(),
            objects: crate::open::table_number(),
            socket: socket
                .try_clone()
                .map_err(|error| protocol(error.to_string()))?,
        });
        let clone = |of: &UnixStream| of.try_clone().map_err(|error| protocol(error.to_string()));
        let (write, read) = (clone(&socket)?, socket);
        read.set_read_timeout(Some(connection.patience / 2))
            .map_err(|error| protocol(error.to_string()))?;
        let (of_writer, of_reader) = (Arc::downgrade(&connection), Arc::downgrade(&connection));
        let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
            let thread = thread::Builder::new().name(name.to_owned());
            thread
                .spawn(run)
                .map_err(|error| protocol(error.to_string()))
        };
        spawn(
            "s3engine-write",
            Box::new(move || write_frames(write, &to_write, &of_writer)),
        )?;
        spawn(
            "s3engine-read",
            Box::new(move || read_answers(&read, frames, &of_reader)),
        )?;
        Ok(connection)
    }

    /// The version that both sides speak.
    pub(super) fn version(&self) -> u32 {
        self.welcome.version
    }

    pub(super) fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    /// Why there is no session any more.
    pub(crate) fn lost(&self) -> Option<String> {
        self.lost.get().cloned()
    }

    /// The same, for one who has seen a queue end: the socket of a service that was killed may take a moment longer.
    pub(super) fn lost_soon(&self) -> Option<String> {
        let until = Instant::now() + TO_SEE_THE_END;
        loop {
            let changed = self.changed.listen();
            if self.is_lost() || changed.wait_deadline(until).is_none() {
                return self.lost();
            }
        }
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lost.get().is_some()
    }

    /// Where ids of objects that it opened mean something.
    pub(super) fn objects(&self) -> u64 {
        self.objects
    }

    /// Ends the session here, for good.
    pub(super) fn lose(&self, why: &str) {
        if self.lost.set(why.to_owned()).is_err() {
            return;
        }
        tracing::warn!(
            session = self.welcome.session,
            why,
            "the host service is lost"
        );
        let _ = self.socket.shutdown(Shutdown::Both);
        for waiter in self.asks.leave_all() {
            waiter.tell(Err(Failure::Refused(why.to_owned())));
        }
        self.changed.notify(usize::MAX);
    }

    /// Says something that has no answer. Never waits.
    pub(super) fn say(&self, ask: Ask) {
        self.send(0, ask, None);
    }

    fn send(&self, id: u64, ask: Ask, fd: Option<OwnedFd>) {
        let frame = encode(&Request { id, ask }, fd.iter().len());
        let frames = self.frames.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(frames) = &*frames {
            // The thread that writes ends only when the session does.
            let _ = frames.send((frame, fd));
        }
    }

    fn begin(&self, ask: Ask, fd: Option<OwnedFd>, waiter: Waiter) -> u64 {
        let id = self.asks.enter(waiter);
        self.send(id, ask, fd);
        // Lost in between: nobody else tells the waiter.
        if let Some(why) = self.lost()
            && let Some(waiter) = self.asks.leave(id)
        {
            waiter.tell(Err(Failure::Refused(why)));
        }
        id
    }

    /// Nobody waits for that any more. Returns whether somebody did: if not, its answer was told, or just is.
    fn forget(&self, id: u64) -> bool {
        let waited = self.asks.leave(id).is_some();
        if waited {
            self.say(Ask::Forget { request: id });
        }
        waited
    }

    fn late(&self) -> Answered {
        let why = format!("it has not answered within {:?}", self.patience);
        Err(Failure::Refused(why))
    }

    /// Asks what asks no server, and waits on this thread.
    pub(super) fn ask_now(&self, ask: Ask) -> Answered {
        self.ask_with(ask, None)
    }

    /// The same, with a descriptor.
    pub(super) fn ask_with(&self, ask: Ask, fd: Option<OwnedFd>) -> Answered {
        let (sender, receiver) = mpsc::sync_channel(1);
        let id = self.begin(ask, fd, Waiter::Thread(sender));
        match receiver.recv_timeout(self.patience) {
            Ok(answered) => answered,
            Err(_) if self.forget(id) => self.late(),
            Err(_) => receiver.recv().unwrap_or_else(|_| self.late()),
        }
    }

    /// Asks what may take the service as long as a GET; it is heard in between that the service lives. A future that
    /// is dropped is forgotten over there too.
    pub(super) async fn ask(self: &Arc<Self>, ask: Ask) -> Answered {
        let (sender, receiver) = oneshot::channel();
        let since = Instant::now();
        let mut asked = Asked {
            connection: self,
            id: self.begin(ask, None, Waiter::Task { since, sender }),
            receiver,
        };
        let answered = (&mut asked.receiver).await;
        answered.unwrap_or_else(|_| Err(Failure::Refused("the session has ended".to_owned())))
    }

    /// Nothing was heard for a while: asks for a sign of life where a task waits, and, where it was asked for one
    /// already, lets those go who have waited too long. Returns whether it is asked.
    fn hear_nothing(&self, was_asked: bool) -> bool {
        if was_asked {
            for (request, waiter) in self.asks.leave_late(self.patience) {
                waiter.tell(self.late());
                self.say(Ask::Forget { request });
            }
        }
        let asks = self.asks.has_tasks();
        if asks && !was_asked {
            self.say(Ask::Ping);
        }
        asks
    }

    /// Takes what the service says.
    fn hear(&self, answer: Answer, fds: Vec<OwnedFd>) {
        if let Ok(Said::Changed) = answer.said {
            self.changed.notify(usize::MAX);
        }
        if let Ok(Said::Gone { slabs }) = &answer.said
            && let Some(holdings) = self.holdings.get().and_then(Weak::upgrade)
        {
            holdings.unmap(slabs);
        }
        let answered = answer.said.map(|said| (said, fds));
        let unheard = match self.asks.leave(answer.id) {
            Some(waiter) => waiter.tell(answered),
            None => give_back(answered),
        };
        if let Some(back) = unheard {
            self.say(back);
        }
    }

    /// A queue's client half, the bell that it hears, and the one that it rings.
    pub(super) fn queue(
        &self,
        layout: Layout,
    ) -> Result<(Client, SocketBell, EventBell), ErrorKind> {
        let entries = layout.entries();
        let answered = self.ask_now(Ask::Queue { entries });
        let (said, fds) = answered.map_err(|failure| ErrorKind::Service(text(&failure)))?;
        let fds = <[OwnedFd; 4]>::try_from(fds);
        let (Said::Queue, Ok([client, service, heard, rung])) = (said, fds) else {
            return Err(super::nonsense());
        };
        let client = Client::import(layout, client.as_fd(), service.as_fd());
        let client = client.map_err(|error| ErrorKind::Service(error.to_string()))?;
        let (heard, rung) = (SocketBell::from_fd(heard), EventBell::from_fd(rung));
        Ok((client, heard, rung))
    }
}

impl Opener for Connection {
    fn close(&self, object: u64) {
        if self.process.is_this() {
            self.say(Ask::Close { object });
        }
    }

    fn number(&self) -> u64 {
        self.objects
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if self.process.is_this() {
            let _ = self.socket.shutdown(Shutdown::Both);
            return;
        }
        // The parent's session goes on, and locks of its threads may be held here for ever.
        let frames = self
            .frames
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        std::mem::forget(frames.take());
    }
}

/// An answer that is awaited. Dropped, nobody waits any more.
struct Asked<'a> {
    connection: &'a Connection,
    id: u64,
    receiver: oneshot::Receiver<Answered>,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if !self.connection.process.is_this() || self.connection.forget(self.id) {
            return;
        }
        self.receiver.close();
        // Told, and not taken.
        if let Ok(answered) = self.receiver.try_recv()
            && let Some(back) = give_back(answered)
        {
            self.connection.say(back);
        }
    }
}

fn default_label() -> String {
    let program = std::env::args_os().next().unwrap_or_default();
    let program = Path::new(&program).file_name().unwrap_or_default();
    format!("{} {}", program.to_string_lossy(), std::process::id())
}

/// Connects, within a bound: a service that takes nobody in lets others wait.
fn connect(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(TO_GREET))?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(UnixStream::from(socket))
}

fn greet(socket: &mut UnixStream, hello: &Hello, frames: &mut Frames) -> Result<Greeting, String> {
    let until = Instant::now() + TO_GREET;
    let late = || format!("it has not greeted within {TO_GREET:?}");
    let text = |error: io::Error| match error.kind() {
        io::ErrorKind::WouldBlock => late(),
        _ => error.to_string(),
    };
    socket.set_read_timeout(Some(TO_GREET)).map_err(text)?;
    // A service that refuses at once may have closed already, and its greeting says why.
    let said = socket.write_all(&encode(hello, 0));
    loop {
        match frames.next() {
            Ok(Some((greeting, _))) => {
                socket.set_read_timeout(None).map_err(text)?;
                socket.set_write_timeout(None).map_err(text)?;
                return Ok(greeting);
            }
            Ok(None) => {}
            Err(error) => return Err(error.to_string()),
        }
        // However slowly the words drip.
        if Instant::now() > until {
            return Err(late());
        }
        if !frames.receive(&*socket).map_err(text)? {
            said.map_err(text)?;
            return Err("it has closed the connection without a word".to_owned());
        }
    }
}

fn write_frames(
    mut socket: UnixStream,
    frames: &mpsc::Receiver<Frame>,
    connection: &Weak<Connection>,
) {
    while let Ok((frame, fd)) = frames.recv() {
        if let Err(error) = write_frame(&mut socket, &frame, fd.as_ref()) {
            if let Some(connection) = connection.upgrade() {
                connection.lose(&error.to_string());
            }
            return;
        }
    }
}

/// Writes all of a frame, the descriptor beside its first byte.
fn write_frame(socket: &mut UnixStream, frame: &[u8], fd: Option<&OwnedFd>) -> io::Result<()> {
    let mut sent = 0;
    if let Some(fd) = fd {
        let none = SendFlags::empty();
        sent = loop {
            match send_with_fds(&*socket, frame, &[fd.as_fd()], none) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                sent => break sent?,
            }
        };
    }
    socket.write_all(&frame[sent..])
}

fn read_answers(socket: &UnixStream, mut frames: Frames, connection: &Weak<Connection>) {
    let mut asked = false;
    let why = loop {
        match frames.next::<Answer>() {
            Ok(Some((answer, fds))) => {
                let Some(connection) = connection.upgrade() else {
                    return;
                };
                connection.hear(answer, fds);
                continue;
            }
            Ok(None) => {}
            Err(error) => break error.to_string(),
        }
        match frames.receive(socket) {
            Ok(true) => asked = false,
            Ok(false) => break "it has ended or was killed".to_owned(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let Some(connection) = connection.upgrade() else {
                    return;
                };
                asked = connection.hear_nothing(asked);
            }
            Err(error) => break error.to_string(),
        }
    };
    if let Some(connection) = connection.upgrade() {
        connection.lose(&why);
    }
}

#[cfg(test)]
#[path = "connection_tests.rs"]
mod tests;
