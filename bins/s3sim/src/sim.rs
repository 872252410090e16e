//! A running server: its options, its threads and its end.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use s3engine_s3::fabric::loopback::LoopbackError;
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, watch};

use crate::auth::Authority;
use crate::checksum::{Checksum, Checksums};
use crate::connection;
use crate::content;
use crate::counters::{Counters, Tally, add};
use crate::customer_key::CustomerKey;
use crate::faults::{FaultError, Faults, Rule};
use crate::model::Model;
use crate::modelled::Modelled;
use crate::rdma::Rdma;
use crate::service::Service;
use crate::store::{Listed, Store};
use crate::tls::{Tls, TlsError, TlsOptions};

/// Connections over this many are closed at once.
const CONNECTIONS: usize = 8192;
/// How long the end of a server waits for work that cannot be interrupted (reading a file, fetching
/// a client's memory).
const END: Duration = Duration::from_secs(6);

/// How a server is to be.
#[derive(Clone)]
pub struct SimOptions {
    /// Where it listens; port 0 takes a free one.
    pub listen: SocketAddr,
    /// How many threads serve.
    pub threads: usize,
    /// Serve the files of this folder, whose subfolders are the buckets, instead of synthetic objects.
    pub root: Option<PathBuf>,
    /// The buckets of synthetic objects.
    pub buckets: Vec<String>,
    /// The synthetic names that listings show.
    pub listed: Listed,
    /// More names that listings show, of objects that follow the grammar of keys.
    pub names: Vec<String>,
    /// The access key that signatures must be of.
    pub access_key: String,
    /// Its secret.
    pub secret_key: String,
    /// The region that signatures must be for.
    pub region: String,
    /// Whether unsigned requests are served too.
    pub anonymous: bool,
    /// Whether buckets keep the versions that the fault `swap` replaces.
    pub versioned: bool,
    /// Whether only those may read who say that they pay.
    pub requester_pays: bool,
    /// The key of SSE-C that all objects are encrypted with.
    pub customer_key: Option<CustomerKey>,
    /// What objects' checksums are, told to who asks; they have none where absent.
    pub checksum: Option<Checksum>,
    /// How it speaks TLS; plain HTTP where absent.
    pub tls: Option<TlsOptions>,
    /// How many seconds its clock is ahead of the host's, or behind where negative. A century at most.
    pub clock_offset: i64,
    /// Whether the server speaks RDMA. One that does not ignores tokens.
    pub rdma: bool,
    /// The loopback fabric's folder; its default where absent.
    pub loopback_folder: Option<PathBuf>,
    /// The faults to begin with.
    pub faults: Vec<Rule>,
    /// What it behaves like; as fast as it can where absent.
    pub model: Option<Model>,
}

impl Default for SimOptions {
    fn default() -> SimOptions {
        let threads = thread::available_parallelism().map_or(2, |n| n.get().min(16));
        SimOptions {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            threads,
            root: None,
            buckets: ["bench", "train", "test"].map(str::to_owned).into(),
            listed: Listed::default(),
            names: Vec::new(),
            access_key: "s3sim".to_owned(),
            secret_key: "s3simsecret".to_owned(),
            region: "us-east-1".to_owned(),
            anonymous: false,
            versioned: false,
            requester_pays: false,
            customer_key: None,
            checksum: None,
            tls: None,
            clock_offset: 0,
            rdma: true,
            loopback_folder: None,
            faults: Vec::new(),
            model: None,
        }
    }
}

impl fmt::Debug for SimOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimOptions")
            .field("listen", &self.listen)
            .field("threads", &self.threads)
            .field("root", &self.root)
            .field("buckets", &self.buckets)
            .field("listed", &self.listed)
            .field("names", &self.names)
            .field("access_key", &self.access_key)
            .field("secret_key", &"redacted")
            .field("region", &self.region)
            .field("anonymous", &self.anonymous)
            .field("requester_pays", &self.requester_pays)
            .field("customer_key", &self.customer_key)
            .field("checksum", &self.checksum)
            .field("tls", &self.tls)
            .field("clock_offset", &self.clock_offset)
            .field("rdma", &self.rdma)
            .field("loopback_folder", &self.loopback_folder)
            .field("faults", &self.faults)
            .field("model", &self.model)
            .finish()
    }
}

/// Why a server could not start.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    /// The address could not be listened at.
    #[error("cannot listen at {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The folder to serve could not be read.
    #[error("cannot serve the folder {}: {source}", root.display())]
    Root {
        /// The folder.
        root: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A thread or its runtime could not be made.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
    /// It cannot speak TLS.
    #[error("cannot speak TLS: {0}")]
    Tls(#[from] TlsError),
    /// A fault rule is impossible.
    #[error(transparent)]
    Fault(#[from] FaultError),
    /// Clients could not be told what a registration costs on the model.
    #[error("cannot simulate the model {model}: {source}")]
    Model {
        /// The model.
        model: String,
        /// Why.
        source: LoopbackError,
    },
}

/// A running server. Dropping it stops it: connections end, pending faults are abandoned, and all
/// threads are joined.
pub struct Sim {
    address: SocketAddr,
    access_key: String,
    secret_key: String,
    region: String,
    service: Arc<Service>,
    stop: watch::Sender<bool>,
    threads: Vec<JoinHandle<()>>,
}

impl Sim {
    /// Starts a server.
    pub fn start(options: SimOptions) -> Result<Sim, SimError> {
        // Now, and not within the first request.
        content::tile();
        let (listener, address) = listen(options.listen)?;
        let service = Arc::new(service(&options, address)?);
        options
            .faults
            .iter()
            .try_for_each(|rule| service.faults.push(rule.clone()))?;
        let (stop, _) = watch::channel(false);
        let mut sim = Sim {
            address,
            access_key: options.access_key,
            secret_key: options.secret_key,
            region: options.region,
            service,
            stop,
            threads: Vec::new(),
        };
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..options.threads.max(1))
            .map(|_| mpsc::unbounded_channel())
            .unzip();
        let mut accept = Some((listener, senders));
        for (i, sockets) in receivers.into_iter().enumerate() {
            sim.start_thread(i, sockets, accept.take())?;
        }
        Ok(sim)
    }

    /// The server's URL, without a slash at its end.
    pub fn url(&self) -> String {
        let scheme = if self.service.tls.is_some() {
            "https"
        } else {
            "http"
        };
        format!("{scheme}://{}", self.address)
    }

    /// The address it listens at.
    pub fn addr(&self) -> SocketAddr {
        self.address
    }

    /// The access key that it accepts.
    pub fn access_key(&self) -> &str {
        &self.access_key
    }

    /// That key's secret.
    pub fn secret_key(&self) -> &str {
        &self.secret_key
    }

    /// Accepts another key too.
    pub fn admit_key(&self, access_key: &str, secret_key: &str) {
        self.service.authority.admit(access_key, secret_key);
    }

    /// Answers requests that are signed with a key with `ExpiredToken` from now on.
    pub fn end_key(&self, access_key: &str) {
        self.service.authority.end(access_key);
    }

    /// The region that it accepts.
    pub fn region(&self) -> &str {
        &self.region
    }

    /// What it has counted so far.
    pub fn counters(&self) -> Counters {
        self.service.counters()
    }

    /// Sets its clock so many seconds ahead of the host's, or behind where negative. A century at most.
    pub fn set_clock_offset(&self, seconds: i64) {
        let seconds = within_a_century(seconds);
        self.service.clock.store(seconds, Relaxed);
    }

    /// Its faults, to be changed while it runs.
    pub fn faults(&self) -> &Faults {
        &self.service.faults
    }

    /// One thread with its runtime; the first one accepts for all.
    fn start_thread(
        &mut self,
        index: usize,
        sockets: Sockets,
        accept: Option<Acceptor>,
    ) -> Result<(), SimError> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(8)
            .build()
            .map_err(SimError::Thread)?;
        let (service, stop) = (self.service.clone(), self.stop.subscribe());
        let run = move || run_thread(runtime, service, stop, sockets, accept);
        let thread = thread::Builder::new().name(format!("s3sim-{index}"));
        self.threads
            .push(thread.spawn(run).map_err(SimError::Thread)?);
        Ok(())
    }
}

impl fmt::Debug for Sim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Sim");
        debug
            .field("address", &self.address)
            .field("access_key", &self.access_key);
        debug.finish_non_exhaustive()
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a server thread panicked");
            }
        }
    }
}

/// Binds, and tells the address that port 0 came to.
fn listen(address: SocketAddr) -> Result<(TcpListener, SocketAddr), SimError> {
    let bound = TcpListener::bind(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    });
    bound.map_err(|source| SimError::Listen { address, source })
}

/// HTTP's dates have years of four digits.
fn within_a_century(seconds: i64) -> i64 {
    let century = 100 * 366 * 86_400;
    seconds.clamp(-century / 2, century)
}

fn service(options: &SimOptions, address: SocketAddr) -> Result<Service, SimError> {
    let store = match &options.root {
        None => {
            let names = options.names.iter();
            Store::synthetic(options.buckets.clone(), &options.listed, names)
        }
        Some(root) => Store::folder(root.clone()).map_err(|source| SimError::Root {
            root: root.clone(),
            source,
        })?,
    };
    let model = options.model.clone().map(|model| {
        let name = model.name.clone();
        let folder = options.rdma.then_some(options.loopback_folder.as_deref());
        Modelled::start(model, folder).map_err(|source| SimError::Model {
            model: name,
            source,
        })
    });
    let SimOptions {
        access_key,
        secret_key,
        region,
        anonymous,
        ..
    } = options;
    Ok(Service {
        store,
        authority: Authority::new(access_key, secret_key, region, *anonymous),
        faults: Faults::default(),
        tally: Tally::default(),
        rdma: options
            .rdma
            .then(|| Rdma::new(options.loopback_folder.clone())),
        model: model.transpose()?,
        versioned: options.versioned,
        requester_pays: options.requester_pays,
        customer_key: options.customer_key,
        checksums: options.checksum.map(Checksums::new),
        tls: options.tls.as_ref().map(Tls::new).transpose()?,
        clock: AtomicI64::new(within_a_century(options.clock_offset)),
        server: address.to_string(),
        ids: AtomicU64::new(rand::random()),
        connections: AtomicUsize::new(0),
    })
}

type Sockets = mpsc::UnboundedReceiver<std::net::TcpStream>;
type Acceptor = (TcpListener, Vec<mpsc::UnboundedSender<std::net::TcpStream>>);

/// Runs until the server stops; all that still runs then is dropped where it waits.
fn run_thread(
    runtime: Runtime,
    service: Arc<Service>,
    mut stop: watch::Receiver<bool>,
    sockets: Sockets,
    acceptor: Option<Acceptor>,
) {
    runtime.block_on(async {
        if let Some((listener, threads)) = acceptor {
            tokio::spawn(accept(listener, threads, service.clone()));
        }
        tokio::spawn(serve_all(sockets, service.clone()));
        // An error means that the server is gone, which is an end too.
        let _ = stop.wait_for(|stop| *stop).await;
    });
    runtime.shutdown_timeout(END);
}

/// Hands connections to the threads in turn.
async fn accept(
    listener: TcpListener,
    threads: Vec<mpsc::UnboundedSender<std::net::TcpStream>>,
    service: Arc<Service>,
) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "cannot accept connections"),
    };
    for thread in threads.iter().cycle() {
        match listener.accept().await {
            Ok(_) if service.connections.load(Relaxed) >= CONNECTIONS => {
                tracing::warn!(CONNECTIONS, "too many connections, one is closed");
            }
            Ok((stream, _)) => {
                if let Ok(stream) = stream.into_std() {
                    let _ = thread.send(stream);
                }
            }
            Err(error) => {
                // Out of descriptors, most likely: some connection must end first.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
}

async fn serve_all(mut sockets: Sockets, service: Arc<Service>) {
    while let Some(stream) = sockets.recv().await {
        match TcpStream::from_std(stream) {
            Ok(stream) => {
                let counted = Counted::new(service.clone());
                add(&service.tally.connections, 1);
                tokio::spawn(async move {
                    let service = &counted.0;
                    match &service.tls {
                        Some(tls) => tls.serve(service, stream).await,
                        None => connection::serve(service, stream).await,
                    }
                });
            }
            Err(error) => tracing::warn!(%error, "a connection is lost"),
        }
    }
}

/// Counts a connection for as long as it lives.
struct Counted(Arc<Service>);

impl Counted {
    fn new(service: Arc<Service>) -> Counted {
        service.connections.fetch_add(1, Relaxed);
        Counted(service)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Relaxed);
    }
}
