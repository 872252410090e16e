//! Before anything is timed: every size is fetched once under every policy, and compared byte for byte where the
//! bytes are known.

use std::time::Duration;

use s3engine::{Buffer, Completion, Engine, Flags, Get, Memory, Path, Policy, QueueOptions};
use s3sim::content;

use crate::bench::rows::Row;
use crate::bench::watch::Watch;
use crate::exit::Failure;
use crate::size::Size;

/// Bytes that are compared at once.
const PIECE: u64 = 4 << 20;

/// How often it is looked whether all is well.
const POLL: Duration = Duration::from_millis(100);

/// Fetches one object. `synthetic`: its bytes must be the simulator's.
pub(crate) fn object(
    engine: &Engine,
    (bucket, key): (&str, &str),
    Row { size, policy, .. }: Row,
    memory: Memory,
    synthetic: bool,
    watch: Watch<'_>,
) -> Result<(), Failure> {
    let buffer = engine.pool().try_alloc(size.0, memory);
    let buffer = buffer.map_err(|error| Failure::Build(error.into()))?;
    let done = get(
        engine,
        Get::new(bucket, key).into(buffer).policy(policy),
        watch,
    )?;
    if let Some(error) = done.error() {
        watch.check_after_failures()?;
        return Err(error.clone().into());
    }
    let wrong = |what: String| Failure::Other(format!("s3://{bucket}/{key}: {what}"));
    if done.bytes() != size.0 {
        let what = format!("the object has {} bytes, not {}", done.bytes(), size.0);
        return Err(wrong(what));
    }
    let allowed = match policy {
        Policy::RequireRdma => done.path() == Path::Rdma,
        Policy::Http => done.path() == Path::Http,
        Policy::PreferRdma => done.path() != Path::None,
    };
    if !allowed {
        return Err(wrong(format!("under {policy} the path is {}", done.path())));
    }
    if synthetic {
        let buffer = done
            .buffer()
            .ok_or_else(|| wrong("no buffer came back".to_owned()))?;
        verify(key, buffer, size).map_err(wrong)?;
    }
    Ok(())
}

/// Compares what has arrived, wherever it is, with the simulator's object.
fn verify(key: &str, buffer: &Buffer, size: Size) -> Result<(), String> {
    let mut piece = vec![0; size.0.min(PIECE) as usize];
    let mut offset = 0;
    while offset < size.0 {
        let piece = &mut piece[..(size.0 - offset).min(PIECE) as usize];
        let read = buffer.read_to_host(offset, piece);
        read.map_err(|error| error.to_string())?;
        content::verify(key, 0, offset, piece).map_err(|mismatch| mismatch.to_string())?;
        offset += piece.len() as u64;
    }
    Ok(())
}

fn get(engine: &Engine, get: Get, watch: Watch<'_>) -> Result<Completion, Failure> {
    let mut queue = engine.queue(QueueOptions { capacity: 1 });
    queue
        .push(get)
        .map_err(|full| Failure::Other(full.to_string()))?;
    queue.submit();
    loop {
        if let Ok(Some(completion)) = queue.next(POLL)
            && !completion.flags().contains(Flags::MORE)
        {
            return Ok(completion);
        }
        watch.check()?;
    }
}
