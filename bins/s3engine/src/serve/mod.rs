//! `s3engine serve`: the host service. It owns memory, connections and credentials for every process of the host.
//!
//! ```text
//! flags, environment, file ──> plan ──> engines (one pool, one fabric) ──> service ── socket ── clients
//! signals ──> events ──> end (drain), reload, dump          probes ── /metrics, /healthz, /readyz
//! ```

mod account;
mod figures;
mod file;
mod plan;
mod probes;
mod reload;
mod screen;
mod share;
mod signals;
mod systemd;

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use s3engine::Engine;
use s3engine::service::{Service, ServiceOptions};

use crate::config::{ConfigError, LogFormat, Settings};
use crate::connect;
use crate::exit::Failure;
use crate::logging;
use crate::object_url::on_one_line;
use crate::serve::account::Account;
use crate::serve::figures::Figures;
use crate::serve::plan::Plan;
use crate::serve::probes::{Probes, Ready};
use crate::serve::reload::Reload;
use crate::serve::signals::Event;
use crate::span::Span;

/// How often it is looked whether the service still runs.
const LOOK: Duration = Duration::from_secs(1);

/// How long clients with nothing under way have to leave by themselves.
const TO_LEAVE: Duration = Duration::from_secs(2);

pub(crate) const HELP: &str = "\
Examples:
  s3engine serve --endpoint http://10.0.0.5:9000 --metrics 127.0.0.1:9910
  s3engine serve --config /etc/s3engine/serve.toml --log json
  s3engine serve --endpoint http://10.0.0.5:9000 --socket /run/s3engine/train.sock --allow-gid train
  s3engine get s3://train/shard-000.tar          (a client: no keys, no endpoint)

Signals: SIGTERM and SIGINT let requests end within --drain, then the service ends; a second one ends it at once.
SIGHUP reads the file again: who may attach, rules, log_filter. SIGUSR1 logs clients and what their requests wait for.
docs/service.md has the file. A file of settings (S3ENGINE_CONFIG) and the environment count as for other commands.

Exit codes: 0 ended by a signal, 1 the service failed, 2 usage, 3 configuration, credentials, or another service runs.";

/// Own memory, connections and credentials for every process of this host.
#[derive(Args, Debug)]
#[command(mut_arg("service", |arg| arg.hide(true)), mut_arg("service_endpoint", |arg| arg.hide(true)))]
pub(crate) struct ServeArgs {
    /// Socket that clients attach to [default: s3engine/s3engine.sock in $XDG_RUNTIME_DIR, else in /run]
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,

    /// The service's file (TOML): endpoints, who may attach, rules, caps
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// A user who may attach besides the service's own, by number or name; reads what rules of the file allow
    #[arg(long, value_name = "USER")]
    pub(crate) allow_uid: Vec<Account>,

    /// The same for a group
    #[arg(long, value_name = "GROUP")]
    pub(crate) allow_gid: Vec<Account>,

    /// Serve /metrics, /healthz and /readyz over HTTP here, such as 127.0.0.1:9910
    #[arg(long, value_name = "ADDR")]
    pub(crate) metrics: Option<SocketAddr>,

    /// Compare the bytes counted as RDMA with the servers' own counters, so often; takes --server-metrics
    #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = "60s")]
    pub(crate) check_share: Option<Span>,

    /// Where the servers count their RDMA bytes: host and port, or the whole URL; http://aistor-{1..4}:9000 for four
    /// (a bearer token: S3ENGINE_SERVER_METRICS_TOKEN)
    #[arg(long, value_name = "URLS", value_delimiter = ',')]
    pub(crate) server_metrics: Vec<String>,

    /// How long requests under way have to end after SIGTERM [default: 30s]
    #[arg(long, value_name = "TIME")]
    pub(crate) drain: Option<Span>,

    /// Let clients add this header to their requests; may be given several times
    #[arg(long, value_name = "NAME")]
    pub(crate) client_header: Vec<String>,

    #[command(flatten, next_help_heading = "Settings")]
    pub(crate) settings: Settings,

    /// Log more
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
}

/// Serves until a signal ends it.
pub(crate) fn run(args: &ServeArgs) -> Result<(), Failure> {
    let (sender, events) = mpsc::channel();
    let cannot = |what: &str, error: io::Error| Failure::Other(format!("cannot {what}: {error}"));
    signals::listen(sender.clone()).map_err(|error| cannot("handle signals", error))?;
    let plan = Plan::new(args)?;
    let level = logging::of_verbosity(args.verbose.saturating_add(1));
    let log = logging::start(&plan.settings, level).map_err(Failure::Usage)?;
    let figures = match plan.metrics.is_some() || plan.check_share.is_some() {
        true => Some(figures::start().map_err(Failure::Other)?),
        false => None,
    };
    let engines = engines(&plan)?;
    let service = Service::start(ServiceOptions {
        socket: plan.socket.clone(),
        endpoints: engines.clone(),
        allow: plan.access.allow.clone(),
        rules: plan.access.rules.clone(),
        client_headers: plan.client_headers.clone(),
        caps: plan.caps,
    })?;
    let ready = Ready::new(AtomicBool::new(true));
    if let (Some((servers, every)), Some(figures)) = (&plan.check_share, &figures) {
        share::check(servers.clone(), *every, figures.clone())
            .map_err(|error| cannot("compare shares", error))?;
    }
    let metrics = probes(&plan, figures, &ready)?;
    let (_, engine) = &engines[0];
    match plan.settings.log.unwrap_or_default() {
        // Nobody to tell if stderr is closed.
        LogFormat::Text => {
            drop(io::stderr().write_all(screen::text(&plan, engine, metrics).as_bytes()))
        }
        LogFormat::Json => screen::log(&plan, engine, metrics),
    }
    let status = format!("serving at {}", plan.socket.display());
    systemd::ready(&status);
    let serving = Serving {
        service: Arc::new(service),
        reload: Reload::new(args, &plan, log, level),
        drain: plan.drain,
        engine: engine.clone(),
        ready,
        status,
    };
    serving.run(sender, &events)
}

/// The default endpoint's engine, and those of the others beside it: one pool, one fabric, one set of limits.
fn engines(plan: &Plan) -> Result<Vec<(String, Engine)>, Failure> {
    let mut engines: Vec<(String, Engine)> = Vec::with_capacity(plan.endpoints.len());
    for served in &plan.endpoints {
        let (endpoint, credentials) = (served.endpoint.clone(), served.credentials.clone());
        let builder = connect::describe(&plan.settings, endpoint, credentials)?
            .network(served.network.clone())
            .limits(plan.limits);
        let builder = match engines.first() {
            None => builder.pool(plan.pool.clone()),
            Some((_, first)) => builder.beside(first),
        };
        let engine = connect::start(builder, &plan.settings)?;
        engines.push((served.name.clone(), engine));
    }
    Ok(engines)
}

fn probes(
    plan: &Plan,
    figures: Option<Figures>,
    ready: &Ready,
) -> Result<Option<SocketAddr>, Failure> {
    let (Some(address), Some(figures)) = (plan.metrics, figures) else {
        return Ok(None);
    };
    let told = |error: io::Error| {
        let problem = format!("cannot listen at {address}: {error}");
        let flag = "--metrics";
        ConfigError::Flag { flag, problem }
    };
    let probes = Probes::bind(address).map_err(told)?;
    let bound = probes.address;
    probes.serve(figures, Arc::clone(ready)).map_err(told)?;
    Ok(Some(bound))
}

/// Waits for clients to take what has arrived: their memory ends with the service.
fn let_leave(service: &Service, within: Duration) {
    let until = Instant::now() + within;
    while !service.clients().is_empty() && Instant::now() < until {
        thread::sleep(Duration::from_millis(10));
    }
}

/// The service while it runs.
struct Serving<'a> {
    service: Arc<Service>,
    reload: Reload<'a>,
    drain: Duration,
    engine: Engine,
    ready: Ready,
    status: String,
}

impl Serving<'_> {
    fn run(self, sender: Sender<Event>, events: &Receiver<Event>) -> Result<(), Failure> {
        loop {
            match events.recv_timeout(LOOK) {
                Ok(Event::End) => self.end(sender.clone())?,
                Ok(Event::Reload) => {
                    systemd::reloading();
                    self.reload.run(&self.service);
                    systemd::ready(&self.status);
                }
                Ok(Event::Dump) => self.dump(),
                Ok(Event::Drained(done)) => {
                    self.tell_drained(done);
                    return Ok(());
                }
                Err(RecvTimeoutError::Timeout) if self.service.is_running() => {}
                Err(_) => {
                    let text = "the service's thread has ended: see the log";
                    return Err(Failure::Other(text.to_owned()));
                }
            }
        }
    }

    /// Takes no new clients, and has a thread wait for the requests of the present ones.
    fn end(&self, sender: Sender<Event>) -> Result<(), Failure> {
        self.ready.store(false, Ordering::Release);
        let within = self.drain;
        systemd::stopping("waiting for requests to end");
        tracing::info!(?within, "ending: requests under way may end first");
        let service = Arc::clone(&self.service);
        let wait = move || {
            let done = service.drain(within);
            if done {
                let_leave(&service, within.min(TO_LEAVE));
            }
            drop(service);
            // Somebody listens as long as it is not drained.
            let _ = sender.send(Event::Drained(done));
        };
        let started = thread::Builder::new().name("drain".into()).spawn(wait);
        let cannot = |error| Failure::Other(format!("cannot wait for requests: {error}"));
        started.map(drop).map_err(cannot)
    }

    fn tell_drained(&self, done: bool) {
        let all = self.service.outstanding();
        // Parts are of a request that is told too.
        let requests = all.iter().filter(|one| one.part.is_none()).count();
        match done {
            true => tracing::info!("ended: nothing was under way any more"),
            false => tracing::warn!(requests, "ended: these were cut off"),
        }
    }

    /// Logs who is attached, and what each request waits for.
    fn dump(&self) {
        let pool = self.engine.pool().stats();
        let clients = self.service.clients();
        tracing::info!(
            clients = clients.len(),
            mapped = pool.mapped,
            leased = pool.leased,
            quarantined = pool.quarantined,
            "pool"
        );
        for client in clients {
            tracing::info!(
                session = client.session,
                label = client.label,
                pid = client.pid,
                uid = client.uid,
                endpoint = client.endpoint,
                queues = client.queues,
                outstanding = client.outstanding,
                leased = client.leased,
                mapped = client.mapped,
                "client"
            );
        }
        for request in self.service.outstanding() {
            let object = format!("s3://{}/{}", request.bucket, request.key);
            tracing::info!(
                session = request.session,
                operation = &*request.operation,
                object = on_one_line(&object),
                first_byte = request.part.map(|(first, _)| first),
                seconds = request.since.as_secs_f64(),
                waits_for = request.waits_for,
                "request"
            );
        }
    }
}
