//! One GET by RDMA, compared with the same by HTTP: in a process of its own, which a vendor's library may hang or end.

use std::env;
use std::ffi::OsString;
use std::process::Command;
use std::time::{Duration, Instant};

use s3engine::probe::{Asker, said_by};
use s3engine::{Engine, Get, Memory, Path, Policy};
use serde::{Deserialize, Serialize};

use super::endpoint::Outcome;
use super::finding::Finding;
use crate::exit::Failure;
use crate::interrupt::Interrupt;
use crate::wait::wait_for;

/// What that process says.
#[derive(Debug, Default, Deserialize, Serialize)]
struct Told {
    /// Why the bytes did not come by RDMA.
    why: Option<String>,
    /// The server says that it wrote them, and did not.
    lied: bool,
}

/// Starts this program once more, with its own arguments, for the GET alone.
pub(crate) fn try_one(key: &str, len: u64, bound: Duration) -> (Finding, Outcome) {
    let mut command = Command::new("/proc/self/exe");
    command.args(env::args_os().skip(1));
    command.arg(OsString::from(format!("--key={key}")));
    command.arg(format!("--only-rdma={len}"));
    let told = said_by(command, bound).and_then(|said| {
        let text = "it has ended without a word".to_owned();
        serde_json::from_slice(&said).map_err(|_| text)
    });
    let told = told.unwrap_or_else(|why| Told {
        why: Some(format!("getting it in a process of its own: {why}")),
        lied: false,
    });
    let what = format!("{len} bytes of {key} by RDMA");
    let finding = match &told.why {
        Some(why) if told.lied => Finding::fail("get", format!("{what}: {why}"))
            .means("the server says that it wrote what it did not: nothing of it can be trusted"),
        Some(why) => Finding::fail("get", format!("{what}: {why}"))
            .help("docs/rdma.md has each reason and what to do about it"),
        None => Finding::ok("get", format!("{what}, the same as by HTTP")),
    };
    (finding, told.why.map_or(Outcome::ByRdma, Outcome::ByHttp))
}

/// What that process does.
pub(crate) fn answer(
    engine: impl FnOnce() -> Result<Engine, Failure>,
    (bucket, key, len): (&str, &str, u64),
    until: Instant,
    interrupt: &Interrupt,
) -> Result<(), Failure> {
    let mut asker = Asker::meet().map_err(Failure::Other)?;
    let compared = engine().and_then(|engine| {
        let compared = compare(&engine, (bucket, key, len), until, interrupt);
        // A library that hangs as it is left is none to rely on.
        drop(engine);
        compared
    });
    let told = compared.unwrap_or_else(|failure| Told {
        why: Some(failure.to_string()),
        lied: false,
    });
    asker.tell(&told).map_err(Failure::Other)
}

fn compare(
    engine: &Engine,
    (bucket, key, len): (&str, &str, u64),
    until: Instant,
    interrupt: &Interrupt,
) -> Result<Told, Failure> {
    let late = || Failure::Other("the time is over".into());
    let get = |policy| {
        let buffer = engine.pool().try_alloc(len, Memory::Host);
        let buffer = buffer.map_err(|error| Failure::Other(error.to_string()))?;
        let get = Get::new(bucket, key).range(0, len);
        let get = get.into(buffer).policy(policy);
        wait_for(engine.get(get), Some(until), late, interrupt)
    };
    let by_rdma = get(Policy::RequireRdma)?;
    if let Some(error) = by_rdma.error() {
        return Ok(Told {
            why: Some(format!("{}: {error}", error.reason())),
            lied: false,
        });
    }
    let by_http = get(Policy::Http)?;
    if let Some(error) = by_http.error() {
        return Err(Failure::Request(error.clone()));
    }
    let lied = by_rdma.data() != by_http.data();
    let why = match by_rdma.path() {
        _ if lied => Some("other bytes than by HTTP".into()),
        Path::Rdma => None,
        path => Some(format!("path {path}")),
    };
    Ok(Told { why, lied })
}
