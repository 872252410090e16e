//! An engine in another process: the client's side of the host service.
//!
//! ```text
//! Engine::connect ── Connected ── Connection (one session: socket, threads that write and read it)
//!                      │            └── memory: slabs mapped here, slots leased by the service
//!                      ├── Queue ── rings in memfds of the service, bell ── There
//!                      └── get().await ── one queue that all waiters share
//! ```
//! When the service ends, everything of its session ends with it: GETs complete as `service-lost`, its buffers are
//! dead, since peers may still write to them. What comes later attaches to the next service.

mod adopt;
mod asks;
mod connection;
mod memory;
mod there;
mod waiters;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use s3engine_pool::{Pool, Process};
use s3engine_ring::{Client, Layout, OPTIONS_VERSION};
use s3engine_s3::endpoint::Endpoint;
use s3engine_s3::error::{Error, ErrorKind};
use s3engine_s3::list::{ListPage, ListQuery};
use s3engine_s3::object::ObjectInfo;
use s3engine_s3::options::RequestOptions;

use self::connection::Connection;
use self::memory::Memory;
use self::there::There;
pub(crate) use self::waiters::Waiters;
use crate::control::{Ask, Failure, Said};
use crate::far::{Far, Home};
use crate::open::{Object, Opener};
use crate::operation;
use crate::under_way::Outstanding;
use crate::wire;

/// How a client attaches.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// Which of the service's endpoints; its first one if absent.
    pub endpoint: Option<String>,
    /// What the service calls this client in logs and metrics, such as the job and the rank. By default the
    /// program's name and process number.
    pub label: Option<String>,
    /// The longest that the service may leave one who asks it for memory, a queue, HEAD or LIST without a sign of
    /// life, such as where it is stopped. 30 seconds by default. What it does for HEAD and LIST may take longer.
    pub patience: Duration,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            endpoint: None,
            label: None,
            patience: Duration::from_secs(30),
        }
    }
}

/// Why a client cannot attach.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Nobody serves there.
    #[error("no host service at {}: {source}", socket.display())]
    NoService {
        /// The socket.
        socket: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// It wants nothing of this client.
    #[error("the host service at {} refuses: {why}", socket.display())]
    Refused {
        /// The socket.
        socket: PathBuf,
        /// What it says.
        why: String,
    },
    /// It does not answer as a service of this kind does.
    #[error("the host service at {} cannot be talked to: {why}", socket.display())]
    Protocol {
        /// The socket.
        socket: PathBuf,
        /// What is wrong.
        why: String,
    },
}

/// An engine that is a client of a host service.
pub(crate) struct Connected {
    process: Process,
    socket: PathBuf,
    options: ConnectOptions,
    pub(crate) endpoint: Endpoint,
    pub(crate) fabric: Result<String, String>,
    pub(crate) pool: Pool,
    memory: Arc<Memory>,
    current: Mutex<Arc<Connection>>,
    pub(crate) waiters: Waiters,
}

impl Connected {
    pub(crate) fn new(socket: &Path, options: ConnectOptions) -> Result<Arc<Self>, ConnectError> {
        let connection = Connection::open(socket, &options)?;
        let welcome = connection.welcome();
        let endpoint =
            Endpoint::parse(&welcome.endpoint).map_err(|error| ConnectError::Protocol {
                socket: socket.to_owned(),
                why: format!("its endpoint {:?}: {error}", welcome.endpoint),
            })?;
        let memory = Arc::new(Memory::new(Arc::clone(&connection)));
        Ok(Arc::new(Self {
            process: Process::current(),
            socket: socket.to_owned(),
            endpoint,
            fabric: welcome.fabric.clone(),
            options,
            pool: Pool::remote(Arc::clone(&memory) as _),
            memory,
            current: Mutex::new(connection),
            waiters: Waiters::default(),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, Arc<Connection>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The present session; a new one where the last was lost.
    pub(crate) fn connection(&self) -> Result<Arc<Connection>, ErrorKind> {
        if !self.process.is_this() {
            return Err(operation::forked());
        }
        let mut current = self.lock();
        if let Some(why) = current.lost() {
            let opened = Connection::open(&self.socket, &self.options);
            *current = opened.map_err(|error| ErrorKind::Service(format!("{why}; {error}")))?;
            self.memory.renew(Arc::clone(&current));
        }
        Ok(Arc::clone(&current))
    }

    pub(crate) async fn head(
        &self,
        bucket: &str,
        key: &str,
        options: Option<Arc<RequestOptions>>,
    ) -> Result<ObjectInfo, Error> {
        let (bucket, key) = (bucket.to_owned(), key.to_owned());
        let ask = Ask::Head {
            bucket: bucket.clone(),
            key: key.clone(),
            options: carried(options.as_ref()),
        };
        match self.ask("HEAD", (&bucket, &key), ask).await? {
            Said::Info(info) => Ok(info),
            _ => Err(self.error("HEAD", (&bucket, &key), nonsense())),
        }
    }

    pub(crate) async fn open(
        &self,
        bucket: &str,
        key: &str,
        options: Option<Arc<RequestOptions>>,
    ) -> Result<Object, Error> {
        let connection = self
            .connection()
            .map_err(|kind| self.error("HEAD", (bucket, key), kind))?;
        let ask = Ask::Open {
            bucket: bucket.to_owned(),
            key: key.to_owned(),
            options: carried(options.as_ref()),
        };
        let said = self.ask_at(&connection, "HEAD", (bucket, key), ask).await?;
        let Said::Opened { object, info } = said else {
            return Err(self.error("HEAD", (bucket, key), nonsense()));
        };
        let opener = connection as Arc<dyn Opener>;
        Object::new(object, (bucket, key), options, info, opener)
            .ok_or_else(|| self.error("HEAD", (bucket, key), nonsense()))
    }

    pub(crate) async fn list(
        &self,
        bucket: &str,
        query: ListQuery,
        options: Option<Arc<RequestOptions>>,
    ) -> Result<ListPage, Error> {
        let ask = Ask::List {
            bucket: bucket.to_owned(),
            query,
            options: carried(options.as_ref()),
        };
        match self.ask("LIST", (bucket, ""), ask).await? {
            Said::Page(page) => Ok(page),
            _ => Err(self.error("LIST", (bucket, ""), nonsense())),
        }
    }

    pub(crate) async fn outstanding(&self) -> Result<Vec<Outstanding>, Error> {
        const NAME: &str = "outstanding";
        match self.ask(NAME, ("", ""), Ask::Outstanding).await? {
            Said::Outstanding(all) => Ok(all),
            _ => Err(self.error(NAME, ("", ""), nonsense())),
        }
    }

    async fn ask(
        &self,
        operation: &'static str,
        named: (&str, &str),
        ask: Ask,
    ) -> Result<Said, Error> {
        let connection = self
            .connection()
            .map_err(|kind| self.error(operation, named, kind))?;
        self.ask_at(&connection, operation, named, ask).await
    }

    async fn ask_at(
        &self,
        connection: &Arc<Connection>,
        operation: &'static str,
        named: (&str, &str),
        ask: Ask,
    ) -> Result<Said, Error> {
        let has_options = ask.options().is_some();
        if has_options && connection.version() < OPTIONS_VERSION {
            return Err(self.error(operation, named, wire::no_options()));
        }
        // Of the same version; an older service would end the session.
        if matches!(ask, Ask::Outstanding) && connection.version() < OPTIONS_VERSION {
            let text = "it is of an older version, which cannot tell".to_owned();
            return Err(self.error(operation, named, ErrorKind::Service(text)));
        }
        match connection.ask(ask).await {
            Ok((said, _)) => Ok(said),
            Err(Failure::Request(record)) => Err(record.error()),
            Err(failure) => Err(self.error(operation, named, ErrorKind::Service(text(&failure)))),
        }
    }

    fn error(
        &self,
        operation: &'static str,
        (bucket, key): (&str, &str),
        kind: ErrorKind,
    ) -> Error {
        Error::new(operation, bucket, key, kind).with_endpoint(self.endpoint.to_string())
    }
}

/// Options as messages carry them.
fn carried(options: Option<&Arc<RequestOptions>>) -> Option<Box<RequestOptions>> {
    options.map(|options| Box::new(RequestOptions::clone(options)))
}

fn nonsense() -> ErrorKind {
    ErrorKind::Service("it answers something else than it was asked".to_owned())
}

/// A failure in words.
pub(crate) fn text(failure: &Failure) -> String {
    match failure {
        Failure::WouldBlock {
            leased,
            max_bytes,
            bound,
        } => format!("no memory now: of {bound}, {leased} of {max_bytes} bytes are in use"),
        Failure::TooLarge { max_bytes } => format!("more than the {max_bytes} bytes there are"),
        Failure::UnknownSlab { slab } => format!("slab {slab} is none of this client's"),
        Failure::Request(record) => record.error().to_string(),
        Failure::Cuda { why, .. } | Failure::Refused(why) => why.clone(),
    }
}

impl Home for Connected {
    fn attach(self: Arc<Self>, layout: Layout) -> Result<(Client, Box<dyn Far>), ErrorKind> {
        self.connection()?;
        let holdings = self.memory.present();
        let (client, heard, rung) = holdings.connection.queue(layout)?;
        let version = holdings.connection.version();
        let far = There::new(holdings, self.pool.clone(), version, heard, rung);
        Ok((client, Box::new(far)))
    }

    fn process(&self) -> Process {
        self.process
    }

    fn endpoint(&self) -> String {
        self.endpoint.to_string()
    }

    fn why_lost(&self) -> ErrorKind {
        if !self.process.is_this() {
            return operation::forked();
        }
        let connection = Arc::clone(&self.lock());
        let lost = connection.lost_soon();
        ErrorKind::Service(lost.unwrap_or_else(|| "it has ended the queue".to_owned()))
    }

    fn objects(&self) -> Option<u64> {
        self.process.is_this().then(|| self.lock().objects())
    }
}
