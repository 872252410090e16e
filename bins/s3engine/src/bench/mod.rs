//! `s3engine bench`: GETs by policy, size and number of threads, each beside its floor.
//!
//! ```text
//! simulator (child process, unless an endpoint is given)
//! check ── every size and policy once, byte for byte
//! for each row: load ── tally, window ──┐
//!               floor ── the same bytes ┴─> report ── table, JSON
//! ```

mod check;
mod floor;
mod json_file;
mod load;
mod memory;
mod out;
mod outputs;
mod report;
mod rows;
mod scale;
mod server;
mod simulator;
mod table;
mod tally;
mod watch;
mod window;

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, Subcommand};
use s3engine::{Concurrency, Engine, Limits, Memory, Policy};
use s3sim::content;

use crate::bench::floor::Floor;
use crate::bench::json_file::JsonFile;
use crate::bench::memory::MemoryKind;
use crate::bench::out::Out;
use crate::bench::report::{Place, Registrations, Round, Run};
use crate::bench::rows::{HTTP_PART, KeyTemplate, RDMA_PART, Row};
pub(crate) use crate::bench::scale::{
    CompareArgs, MergeArgs, ScaleArgs, compare, merge, run as scale, worker,
};
use crate::bench::server::Server;
use crate::bench::tally::Tally;
use crate::bench::watch::Watch;
use crate::bench::window::{Times, Window};
use crate::cli::Common;
use crate::config::Settings;
use crate::connect;
use crate::exit::Failure;
use crate::gpus;
use crate::interrupt::Interrupt;
use crate::size::Size;
use crate::span::Span;

/// A slab unless a setting says else.
const SLAB: u64 = 64 << 20;

/// Other things to measure.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    Scale(Box<ScaleArgs>),
    Compare(CompareArgs),
    Merge(MergeArgs),
    /// A process of `scale`
    #[command(hide = true)]
    Worker,
}

/// Measure GETs.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) command: Option<BenchCommand>,

    /// Sizes of objects
    #[arg(
        long,
        value_name = "SIZES",
        value_delimiter = ',',
        default_value = "64KiB,1MiB,8MiB"
    )]
    pub(crate) size: Vec<Size>,

    /// Numbers of threads that submit, each with a queue of its own
    #[arg(
        long,
        value_name = "NUMBERS",
        value_delimiter = ',',
        default_value = "1,2"
    )]
    pub(crate) threads: Vec<usize>,

    /// GETs in flight in each queue
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub(crate) in_flight: usize,

    /// Policies: require-rdma, prefer-rdma, http [default: http, and require-rdma where there is a fabric]
    #[arg(long, value_name = "POLICIES", value_delimiter = ',')]
    pub(crate) policy: Vec<Policy>,

    /// How long each row is measured
    #[arg(long, value_name = "TIME", default_value = "2s")]
    pub(crate) duration: Span,

    /// How long each row runs before that
    #[arg(long, value_name = "TIME", default_value = "400ms")]
    pub(crate) warmup: Span,

    /// How long each floor is measured
    #[arg(long, value_name = "TIME", default_value = "500ms")]
    pub(crate) floor: Span,

    /// Rounds of each row, each followed by its floor; the table has the medians
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) rounds: usize,

    /// Where the bytes land: host, or the memory of a GPU, cuda[:N], or of all, thread by thread: cuda:all
    #[arg(long, value_name = "KIND", default_value = "host")]
    pub(crate) memory: MemoryKind,

    /// The bucket
    #[arg(long, value_name = "NAME", default_value = "bench")]
    pub(crate) bucket: String,

    /// Keys of the objects
    #[arg(long, value_name = "TEXT", default_value = "bench/{size}-{index}")]
    pub(crate) key_template: KeyTemplate,

    /// Objects of each size, read in turn
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub(crate) objects: usize,

    /// Write all figures to a file as JSON; - is stdout
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) common: Common,
}

/// Runs the command.
pub(crate) fn run(
    args: &BenchArgs,
    settings: &Settings,
    interrupt: &Interrupt,
) -> Result<(), Failure> {
    args.check()?;
    let open = |path: &PathBuf| JsonFile::open(path, interrupt);
    let json = args.json.as_ref().map(open).transpose()?;
    let memories = args.memory.in_turn()?;
    let server = Server::of(args, settings, interrupt)?;
    let (engine, rows) = start(args, &server)?;
    let _watch = interrupt.watch(&engine);
    let bench = Bench {
        args,
        place: server.place(args, &engine),
        memories,
        server: &server,
        engine: &engine,
        watch: Watch::new(interrupt, server.simulator.as_ref()),
        json_to_stdout: matches!(json, Some(JsonFile::Stdout)),
    };
    bench.say(&bench.introduction())?;
    bench.check(&rows)?;
    bench.say(&table::headings())?;
    let mut runs = Vec::with_capacity(rows.len());
    for row in rows {
        let run = bench.row(row)?;
        bench.say(&table::row(&run))?;
        runs.push(run);
    }
    bench.say(&bench.explanation(&runs))?;
    if let Some(json) = json {
        json.write(&format!("{:#}\n", report::json(&bench.place, &runs)))?;
    }
    failures(&runs)?;
    empty(&runs)
}

impl BenchArgs {
    fn check(&self) -> Result<(), Failure> {
        let numbers = [self.in_flight, self.objects, self.rounds];
        let mut all = numbers.iter().chain(&self.threads);
        if all.any(|number| !(1..=65_536).contains(number)) {
            let text = "threads, GETs in flight, objects and rounds are numbers from 1 to 65536";
            return Err(Failure::Usage(text.into()));
        }
        if self.size.iter().any(|size| size.0 == 0) {
            return Err(Failure::Usage(
                "there is nothing to measure in objects of 0 bytes".into(),
            ));
        }
        Ok(())
    }
}

/// The engine, and the rows that it can be asked for.
fn start(args: &BenchArgs, server: &Server) -> Result<(Engine, Vec<Row>), Failure> {
    let engine = match &server.service {
        Some((engine, _)) => engine.clone(),
        None => own_engine(args, server)?,
    };
    let policies = match (args.policy.as_slice(), server.settings.rdma) {
        ([], Some(chosen)) => vec![chosen.into()],
        ([], None) if engine.fabric().is_ok() => vec![Policy::Http, Policy::RequireRdma],
        ([], None) => vec![Policy::Http],
        (chosen, _) => chosen.to_vec(),
    };
    let rows = rows::rows(&policies, &args.size, &args.threads, args.in_flight);
    Ok((engine, rows))
}

fn own_engine(args: &BenchArgs, server: &Server) -> Result<Engine, Failure> {
    let settings = &server.settings;
    // The most that any choice of policies needs: which ones there are is known once the engine has looked.
    let most = rows::rows(&[Policy::Http], &args.size, &args.threads, args.in_flight);
    let slab_bytes = settings.slab_size.map_or(SLAB, |size| size.0);
    let max_bytes = match settings.pool_size {
        Some(size) => size.0,
        None => rows::pool_bytes(&most, slab_bytes.max(1)),
    };
    let builder = connect::describe(
        settings,
        settings.endpoint_at(&server.url)?,
        server.credentials.clone(),
    )?
    .pool(connect::pool(settings, slab_bytes, Some(max_bytes))?)
    .part_sizes(HTTP_PART, RDMA_PART);
    connect::start(builder, settings)
}

struct Bench<'a> {
    args: &'a BenchArgs,
    place: Place,
    server: &'a Server,
    engine: &'a Engine,
    /// Which threads take in turn.
    memories: Vec<Memory>,
    watch: Watch<'a>,
    json_to_stdout: bool,
}

impl Bench<'_> {
    fn keys(&self, size: Size) -> Vec<Arc<str>> {
        let key = |index| self.args.key_template.key(size, index).into();
        (0..self.args.objects).map(key).collect()
    }

    fn check(&self, rows: &[Row]) -> Result<(), Failure> {
        let synthetic = self.server.simulator.is_some();
        for &row in rows
            .iter()
            .filter(|row| row.threads == self.args.threads[0])
        {
            let key = self.args.key_template.key(row.size, 0);
            if synthetic && content::size_of_key(&key) != Some(row.size.0) {
                let text = "the simulator takes sizes from keys: write {size} after the last / of --key-template";
                return Err(Failure::Usage(text.into()));
            }
            let name = (&*self.args.bucket, &*key);
            for &memory in &self.memories {
                check::object(self.engine, name, row, memory, synthetic, self.watch)?;
            }
        }
        Ok(())
    }

    fn row(&self, row: Row) -> Result<Run, Failure> {
        let (engine, watch) = (self.engine, self.watch);
        let keys = self.keys(row.size);
        let times = Times {
            warm_up: self.args.warmup.0,
            window: self.args.duration.0,
        };
        let before = Registrations::of(engine);
        let mut all = Tally::new().map_err(|error| Failure::Other(error.to_string()))?;
        let mut rounds = Vec::with_capacity(self.args.rounds);
        for _ in 0..self.args.rounds {
            let (window, tally) = self.load(&keys, row, times)?;
            if tally.failed > 0 {
                watch.check_after_failures()?;
            }
            let by_rdma = tally.rdma_share().is_some_and(|share| share > 0.5);
            let floor = match self.floor(row, &keys, by_rdma) {
                Ok(floor) => Some(floor),
                Err(Failure::Interrupted(signal)) => return Err(Failure::Interrupted(signal)),
                Err(failure) => {
                    watch.check_after_failures()?;
                    let _ = writeln!(io::stderr(), "note: no floor for the next row: {failure}");
                    None
                }
            };
            let bytes = tally.by_path.total();
            rounds.push(Round {
                window,
                bytes,
                floor,
            });
            all.merge(tally);
        }
        Ok(Run {
            row,
            rounds,
            tally: all,
            registrations: Registrations::of(engine).since(before),
        })
    }

    fn load(&self, keys: &[Arc<str>], row: Row, times: Times) -> Result<(Window, Tally), Failure> {
        let objects = (&*self.args.bucket, keys);
        load::run(self.engine, objects, row, &self.memories, times, self.watch)
    }

    fn floor(&self, row: Row, keys: &[Arc<str>], by_rdma: bool) -> Result<Floor, Failure> {
        let times = Times {
            warm_up: self.args.floor.0 / 4,
            window: self.args.floor.0,
        };
        if by_rdma && self.args.memory != MemoryKind::Host {
            return floor::copies(&self.memories, row, times, self.watch);
        }
        if by_rdma {
            let workers = (self.server.threads, times);
            return floor::memcpy(self.engine, &keys[0], row, workers, self.watch);
        }
        if self.server.service.is_some() {
            let text = "the host service keeps the keys that bare requests would be signed with";
            return Err(Failure::Other(text.to_owned()));
        }
        let limit = self.server.settings.requests;
        let connections = row.http_requests(limit.unwrap_or(Limits::default().requests));
        let objects = (&*self.args.bucket, keys);
        let credentials = &self.server.credentials;
        let workers = (connections, times);
        floor::http(self.engine, credentials, objects, row, workers, self.watch)
    }

    fn introduction(&self) -> String {
        let place = &self.place;
        let fabric = place.fabric.as_deref().unwrap_or("none");
        let mut text = format!(
            "host {}, {} cores{}   s3engine {}   fabric {fabric}   {} in flight a thread, window {:?} after {:?}\n",
            place.host,
            Place::cores(),
            match place.gpus.is_empty() {
                true => String::new(),
                false => format!(", {}", gpus::counted(&place.gpus)),
            },
            env!("CARGO_PKG_VERSION"),
            self.args.in_flight,
            self.args.duration.0,
            self.args.warmup.0,
        );
        text += &match &place.simulator {
            Some(simulator) => format!("simulated: {simulator}, at {}\n", place.endpoint),
            None if place.simulated => {
                format!("simulated: a loopback server at {}\n", place.endpoint)
            }
            None => format!("endpoint {}\n", place.endpoint),
        };
        if let Some(socket) = &place.service {
            text += &format!(
                "via the host service at {socket}: memory, connections and processor time of requests are its own\n"
            );
        }
        if place.memory != MemoryKind::Host {
            text += &format!("bytes land in the memory of {}\n", place.memory);
        }
        if let Some(driver) = &place.driver {
            text += &format!("driver {driver}\n");
        }
        if let Err(why) = &place.fabric {
            text += &format!("no RDMA: {why}\n");
        }
        text
    }

    /// What each floor is that the table names.
    fn explanation(&self, runs: &[Run]) -> String {
        let mut text = String::new();
        let any = |kind| {
            runs.iter()
                .any(|run| run.floor().is_some_and(|floor| floor.kind == kind))
        };
        if any(floor::Kind::Recv) {
            text += "floor of http: as many bare sockets as requests in flight, recv(MSG_WAITALL) of the same parts into touched memory; measured after each round\n";
        }
        if any(floor::Kind::Copy) {
            text += "floor of rdma into a GPU: bare copies of the same size (64 MiB at most) from pinned memory, as many at once as GETs (64 at most)\n";
        }
        if any(floor::Kind::Memcpy) {
            text += &format!(
                "floor of rdma: memcpy of the same objects into the same kind of memory by {} threads at most, as the server copies (small ones stay in the caches); the processor time of that is the server's\n",
                self.server.threads
            );
        }
        text + &self.engine.concurrency().map_or(String::new(), narrowed)
    }

    /// Tells people: on stdout, or on stderr where JSON goes to stdout.
    fn say(&self, text: &str) -> Result<(), Failure> {
        let out = Out {
            quiet: self.args.common.quiet,
            to_stderr: self.json_to_stdout,
        };
        out.say(text)
    }
}

/// That the endpoint did not always get as many requests as it might, where that is so.
fn narrowed(window: Concurrency) -> String {
    if window.shrinks() == 0 {
        return String::new();
    }
    format!(
        "requests at once became fewer {} times (slow-down {}, timeout {}, lost {}, latency {}): {} of {} at the end\n",
        window.shrinks(),
        window.slow_downs,
        window.timeouts,
        window.losses,
        window.latencies,
        window.requests,
        window.ceiling
    )
}

/// The first error of the first run that had any, and how many there were in all.
fn failures(runs: &[Run]) -> Result<(), Failure> {
    let failed: u64 = runs.iter().map(|run| run.tally.failed).sum();
    let first = runs.iter().find_map(|run| run.tally.first_error.as_ref());
    match first {
        None => Ok(()),
        Some(error) => {
            let text = format!("{failed} GETs failed, the first one so: {error}");
            Err(Failure::Other(text))
        }
    }
}

/// A run in which no GET ended in time has measured nothing.
fn empty(runs: &[Run]) -> Result<(), Failure> {
    match runs.iter().find(|run| run.tally.gets == 0) {
        None => Ok(()),
        Some(Run { row, .. }) => Err(Failure::Other(format!(
            "no GET ended within the window of the row {} of {} by {} threads: raise --duration",
            row.policy, row.size, row.threads
        ))),
    }
}
