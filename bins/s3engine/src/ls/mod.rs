//! `s3engine ls`: the names in a bucket, page by page as they come.

mod line;
mod target;

use std::io::{self, BufWriter, ErrorKind, IsTerminal, Write};
use std::time::Instant;

use clap::Args;
use s3engine::{Engine, Error, ListPage, ListQuery, Lister, Rdma};

use crate::asks::BucketAsks;
use crate::cli::Common;
use crate::config::{ConfigError, Settings};
use crate::connect;
use crate::exit::Failure;
use crate::interrupt::Interrupt;
use crate::ls::line::{Entry, Style, entries};
use crate::ls::target::Target;
use crate::size::human;
use crate::via::{self, Via};
use crate::wait::wait_for;

/// The most names that servers give at once.
const PAGE: u64 = 1000;

/// List the objects of a bucket.
#[derive(Args, Debug)]
pub(crate) struct LsArgs {
    /// The bucket, or all in it that begins with a prefix, which is taken as it stands
    #[arg(value_name = "s3://BUCKET[/PREFIX]")]
    pub(crate) target: Target,

    /// List everything, not only up to the next /
    #[arg(short, long)]
    pub(crate) recursive: bool,

    /// Show sizes as 4.00 GiB
    #[arg(long, conflicts_with = "json")]
    pub(crate) human: bool,

    /// Print one JSON object a line
    #[arg(long)]
    pub(crate) json: bool,

    /// End after so many lines
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) limit: Option<u64>,

    #[command(flatten)]
    pub(crate) asks: BucketAsks,

    #[command(flatten)]
    pub(crate) common: Common,
}

impl LsArgs {
    fn query(&self) -> ListQuery {
        // Of a page that would not be shown whole, no more is asked for than is shown.
        let few = self.limit.filter(|limit| *limit < PAGE);
        ListQuery {
            prefix: self.target.prefix.clone(),
            delimiter: (!self.recursive).then(|| "/".to_owned()),
            max_keys: few.and_then(|limit| u32::try_from(limit).ok()),
            ..ListQuery::default()
        }
    }

    fn style(&self) -> Style {
        match (self.json, self.human) {
            (true, _) => Style::Json,
            (false, human) => Style::Columns {
                human,
                escaped: io::stdout().is_terminal(),
            },
        }
    }
}

/// Runs the command.
pub(crate) fn run(
    args: &LsArgs,
    settings: &Settings,
    interrupt: &Interrupt,
) -> Result<(), Failure> {
    let mut listing = Listing {
        args,
        out: BufWriter::new(io::stdout()),
        style: args.style(),
        left: args.limit.unwrap_or(u64::MAX),
        shown: Shown::default(),
        via_service: false,
    };
    let result = listing.run(settings, interrupt);
    match &result {
        // Whoever read has seen enough.
        Err(Failure::Output { source, .. }) if source.kind() == ErrorKind::BrokenPipe => {
            return Ok(());
        }
        Err(failure) if args.json => listing.tell_failure(failure),
        Err(_) => {}
        Ok(()) => listing.summarize(),
    }
    result
}

/// A listing under way.
struct Listing<'a> {
    args: &'a LsArgs,
    out: BufWriter<io::Stdout>,
    style: Style,
    /// Lines that may still be shown.
    left: u64,
    shown: Shown,
    via_service: bool,
}

/// What was shown.
#[derive(Default)]
struct Shown {
    objects: u64,
    prefixes: u64,
    bytes: u128,
}

impl Listing<'_> {
    fn run(&mut self, settings: &Settings, interrupt: &Interrupt) -> Result<(), Failure> {
        let until = settings
            .deadline
            .map(|deadline| Instant::now() + deadline.0);
        let engine = self.engine(settings)?;
        let _watch = interrupt.watch(&engine);
        let options = self.args.asks.options()?;
        let bucket = &self.args.target.bucket;
        let mut lister = engine.list_with(bucket, self.args.query(), options);
        while self.left > 0 {
            let page = next(&engine, &mut lister, self.args, until, interrupt)?;
            let Some(page) = page else { break };
            self.show(page).map_err(Failure::unwritten)?;
        }
        Ok(())
    }

    fn engine(&mut self, settings: &Settings) -> Result<Engine, Failure> {
        match via::choose(settings, &self.args.common.settings)? {
            Via::Service(engine, _) => {
                self.via_service = true;
                return Ok(engine);
            }
            Via::Nowhere(why) => return Err(ConfigError::Nowhere(why).into()),
            Via::Own => {}
        }
        let (endpoint, credentials) = (settings.endpoint()?, settings.credentials()?);
        // Names go by HTTP whatever bytes may go by.
        let engine = connect::describe(settings, endpoint, credentials)?.rdma(Rdma::Off);
        Ok(engine.build()?)
    }

    fn show(&mut self, page: ListPage) -> io::Result<()> {
        for entry in entries(&page) {
            if self.left == 0 {
                break;
            }
            self.left -= 1;
            self.shown.add(&entry);
            self.style
                .write(&mut self.out, &self.args.target.bucket, &entry)?;
        }
        // What came is seen, however long the next page takes.
        self.out.flush()
    }

    /// The last line for programs.
    fn tell_failure(&mut self, failure: &Failure) {
        // The exit code and stderr tell it too.
        let _ = writeln!(self.out, "{}", failure.to_json());
        let _ = self.out.flush();
    }

    /// A last line for people: others count by themselves.
    fn summarize(&self) {
        if !self.args.common.quiet && io::stderr().is_terminal() {
            let via = match self.via_service {
                true => "; via the host service",
                false => "",
            };
            let _ = writeln!(io::stderr(), "{}{via}", self.shown.text(self.left == 0));
        }
    }
}

impl Shown {
    fn add(&mut self, entry: &Entry<'_>) {
        match entry {
            Entry::Object(object) => {
                self.objects += 1;
                self.bytes += u128::from(object.size);
            }
            Entry::Prefix(_) => self.prefixes += 1,
        }
    }

    fn text(&self, limited: bool) -> String {
        let mut text = format!("objects: {} ({})", self.objects, human(self.bytes as f64));
        if self.prefixes > 0 {
            text += &format!(", prefixes: {}", self.prefixes);
        }
        if limited {
            text += "; ended by --limit, there may be more";
        }
        text
    }
}

fn next(
    engine: &Engine,
    lister: &mut Lister,
    args: &LsArgs,
    until: Option<Instant>,
    interrupt: &Interrupt,
) -> Result<Option<ListPage>, Failure> {
    let late = || {
        let error = Error::new(
            "LIST",
            &*args.target.bucket,
            "",
            s3engine::ErrorKind::Deadline,
        );
        Failure::from(error.with_endpoint(engine.endpoint().to_string()))
    };
    Ok(wait_for(lister.next(), until, late, interrupt)??)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_counts_what_was_shown() {
        let mut shown = Shown {
            objects: 2,
            prefixes: 0,
            bytes: 3 << 20,
        };
        assert_eq!(shown.text(false), "objects: 2 (3.00 MiB)");
        shown.prefixes = 1;
        let limited = shown.text(true);
        assert!(limited.starts_with("objects: 2 (3.00 MiB), prefixes: 1; ended by --limit"));
    }
}
