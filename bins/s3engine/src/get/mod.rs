//! `s3engine get`: an object into a file or a stream, in bounded memory, with the truth about its path.

mod memory;
mod output;
mod range;
mod summary;
mod transfer;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use s3engine::{
    Engine, Error, ErrorKind, Get, Memory, ObjectInfo, Policy, RequestOptions, memory_limit,
};

use crate::asks::ObjectAsks;
use crate::cli::Common;
use crate::config::{ConfigError, Settings};
use crate::connect;
use crate::destination::Destination;
use crate::exit::Failure;
use crate::get::output::{Output, destination};
use crate::get::range::{Extent, RangeArg};
use crate::get::summary::{Summary, Tally};
use crate::get::transfer::Plan;
use crate::interrupt::Interrupt;
use crate::object_url::ObjectUrl;
use crate::progress::Progress;
use crate::via::{self, Via};
use crate::wait::wait_for;

/// Fetch an object into a file or to stdout.
#[derive(Args, Debug)]
pub(crate) struct GetArgs {
    /// The object; the key is taken as it stands
    #[arg(value_name = "s3://BUCKET/KEY")]
    pub(crate) url: ObjectUrl,

    /// Only these bytes: FIRST-LAST (both included), FIRST- or -COUNT
    #[arg(long, value_name = "RANGE", allow_hyphen_values = true)]
    pub(crate) range: Option<RangeArg>,

    /// File, folder or device to write; - is stdout [default: the key's last component]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<OsString>,

    /// Read everything a second time by HTTP and compare before it is written. Without it, bytes that came by RDMA
    /// are reported as not verified (in JSON, `verified` is false, or null where all came by HTTP)
    #[arg(long)]
    pub(crate) verify: bool,

    #[command(flatten)]
    pub(crate) asks: ObjectAsks,

    /// Print the result to stdout as JSON
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) common: Common,
}

/// Runs the command.
pub(crate) fn run(
    args: &GetArgs,
    settings: &Settings,
    interrupt: &Interrupt,
) -> Result<(), Failure> {
    let destination = destination(args.output.as_deref(), &args.url);
    if args.json && matches!(destination, Ok(Destination::Stdout)) {
        let text = "--json and the object both want stdout: choose another file with -o".to_owned();
        return Err(Failure::Usage(text));
    }
    let result = destination.and_then(|to| {
        let source = Source::of(args, settings)?;
        let through_service = source.service.is_some();
        fetch(args, &to, settings, source, interrupt).map_err(|failure| match through_service {
            true => failure.of_service(),
            false => failure,
        })
    });
    match &result {
        Err(failure) if args.json => print_json(&summary::failed(&args.url, failure))?,
        _ => {}
    }
    result
}

fn fetch(
    args: &GetArgs,
    destination: &Destination,
    settings: &Settings,
    source: Source,
    interrupt: &Interrupt,
) -> Result<(), Failure> {
    let began = Instant::now();
    let until = settings.deadline.map(|deadline| began + deadline.0);
    let Source {
        engine,
        service,
        chunk,
    } = source;
    let _watch = interrupt.watch(&engine);
    let options = Arc::new(args.asks.options()?);
    let mut output = Output::open(destination, interrupt)?;
    let info = look(&engine, args, &options, until, interrupt)?;
    let size = info.size.ok_or_else(|| {
        let kind = ErrorKind::Protocol("the answer to HEAD has no size".into());
        request_error(&engine, "HEAD", &args.url, kind)
    })?;
    let extent = Extent::resolve(args.range, size);
    let plan = Plan {
        url: &args.url,
        info: &info,
        extent,
        chunk,
        policy: settings.policy(),
        checksum: settings.checksum(),
        options: &options,
        verify: args.verify,
        until,
    };
    let mut tally = Tally::default();
    let name = args.url.file_name().unwrap_or(&args.url.key);
    let progress = Progress::new(name, extent.len, !args.common.quiet);
    let verified = transfer::run(
        &engine,
        &plan,
        &mut output,
        &mut tally,
        &progress,
        interrupt,
    )?;
    drop(progress);
    let output_name = output.name();
    output.finish()?;
    let summary = Summary {
        url: &args.url,
        output: output_name,
        service: service.as_deref(),
        etag: info.etag.as_ref().map(|etag| etag.as_str().to_owned()),
        object_size: size,
        offset: extent.offset,
        elapsed: began.elapsed(),
        verify: args.verify,
        verified,
        tally: &tally,
    };
    report(args, &summary)
}

/// Where the object comes from.
struct Source {
    engine: Engine,
    /// The socket of the host service, where the engine is that one's.
    service: Option<PathBuf>,
    /// Bytes of one GET.
    chunk: u64,
}

impl Source {
    fn of(args: &GetArgs, settings: &Settings) -> Result<Self, Failure> {
        match via::choose(settings, &args.common.settings)? {
            Via::Service(engine, socket) => {
                let most = engine.pool().stats().max_bytes;
                let pool = memory::pool(settings, Some(most));
                Ok(Self {
                    engine,
                    service: Some(socket),
                    chunk: memory::chunk_size(&pool, args.verify),
                })
            }
            Via::Nowhere(why) => Err(ConfigError::Nowhere(why).into()),
            Via::Own => Self::own(args, settings),
        }
    }

    fn own(args: &GetArgs, settings: &Settings) -> Result<Self, Failure> {
        let (endpoint, credentials) = (settings.endpoint()?, settings.credentials()?);
        let pool = memory::pool(settings, memory_limit().map(|limit| limit.bytes));
        let chunk = memory::chunk_size(&pool, args.verify);
        let engine = connect::describe(settings, endpoint, credentials)?.pool(pool);
        Ok(Self {
            engine: connect::start(engine, settings)?,
            service: None,
            chunk,
        })
    }
}

fn report(args: &GetArgs, summary: &Summary<'_>) -> Result<(), Failure> {
    if !args.common.quiet {
        // The transfer is done, whether somebody reads of it or not.
        let _ = io::stderr().write_all(summary.text().as_bytes());
    }
    if args.json {
        print_json(&summary.json())?;
    }
    Ok(())
}

fn print_json(value: &serde_json::Value) -> Result<(), Failure> {
    writeln!(io::stdout(), "{value}").map_err(Failure::unwritten)
}

/// What the server says of the object. An answer to HEAD has no words, so where it is an error, a GET of one
/// byte gets them.
fn look(
    engine: &Engine,
    args: &GetArgs,
    options: &Arc<RequestOptions>,
    until: Option<Instant>,
    interrupt: &Interrupt,
) -> Result<ObjectInfo, Failure> {
    let url = &args.url;
    let late = || Failure::from(request_error(engine, "HEAD", url, ErrorKind::Deadline));
    let head = engine.head_with(&url.bucket, &url.key, Arc::clone(options));
    let error = match wait_for(head, until, late, interrupt)? {
        Ok(info) => return matching(engine, args, info),
        Err(error) => error,
    };
    let silent = matches!(error.kind(), ErrorKind::Status { code: None, .. });
    if !silent {
        return Err(error.into());
    }
    let Ok(buffer) = engine.pool().try_alloc(1, Memory::Host) else {
        return Err(error.into());
    };
    let get = Get::new(&*url.bucket, &*url.key)
        .range(0, 1)
        .into(buffer)
        .options(Arc::clone(options));
    let done = wait_for(engine.get(get.policy(Policy::Http)), until, late, interrupt)?;
    let telling = done
        .error()
        .filter(|found| found.status() == error.status());
    Err(telling.cloned().unwrap_or(error).into())
}

/// The object, where it is the one that is wanted.
fn matching(engine: &Engine, args: &GetArgs, info: ObjectInfo) -> Result<ObjectInfo, Failure> {
    let Some(wanted) = args
        .asks
        .etag()
        .filter(|etag| info.etag.as_ref() != Some(etag))
    else {
        return Ok(info);
    };
    let found = info.etag.as_ref();
    let kind = ErrorKind::Modified {
        expected: format!("etag {wanted}"),
        found: found.map_or("no etag".to_owned(), |etag| format!("etag {etag}")),
    };
    Err(request_error(engine, "HEAD", &args.url, kind).into())
}

fn request_error(
    engine: &Engine,
    operation: &'static str,
    url: &ObjectUrl,
    kind: ErrorKind,
) -> Error {
    Error::new(operation, &*url.bucket, &*url.key, kind)
        .with_endpoint(engine.endpoint().to_string())
}
