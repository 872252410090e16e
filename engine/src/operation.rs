//! The life of one GET: checked, sent its way, fetched in rounds, reported.
//!
//! ```text
//! check ── size, memory ── route ── round ──┬─ fetched ───────────────────────────── succeed
//!                                   ^       └─ failed ──┬─ another way is allowed ─┐
//!                                   │                   └─ none is ────────────────┼─ fail
//!                                   └── the same memory, or other memory where a remote may still write
//! ```
//! A round fills one slot (see `round`).

use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use s3engine_pool::{Buffer, Landing, Memory, PoolError, Returning};
use s3engine_s3::checksum::{Mode, Sum};
use s3engine_s3::error::{Error, ErrorKind};
use s3engine_s3::object::{ETag, ObjectInfo, Pin};
use s3engine_s3::options::{NO_OPTIONS, RequestOptions};
use s3engine_s3::progress::Waits;
use s3engine_s3::{Policy, Reason};

use crate::completion::Fallback;
use crate::engine::Core;
use crate::get::{Get, Ticket};
use crate::interrupt::Interrupt;
use crate::part::Way;
use crate::report::Report;
use crate::request::{head, told};
use crate::round;
use crate::route::{Route, route};
use crate::sink::Sink;
use crate::tenant::Tenant;
use crate::worker::Lane;
use tokio_util::sync::CancellationToken;

/// Rounds of one GET under `require-rdma`, each in memory of its own.
const RDMA_ROUNDS: u32 = 2;

/// Bytes read back at once from a device whose bytes no processor has seen.
const READ_BACK: usize = 4 << 20;

/// Hands a GET to a thread.
pub(crate) fn submit(core: &Arc<Core>, get: Get, sink: Sink, cancel: CancellationToken) {
    let submitted = Instant::now();
    let report = Report::new(Arc::clone(core), sink, Ticket(0), &get, submitted);
    if !core.process.is_this() {
        let error = report.error(forked());
        return report.fail(error, get.buffer);
    }
    let until = after(submitted, get.deadline.unwrap_or(core.deadline));
    let interrupt = Interrupt::new(cancel, core.stop.clone(), until);
    core.workers.bulk.spawn_near(
        get.numa_node(),
        Box::new(move |lane| Box::pin(run(lane, get, report, interrupt))),
    );
}

/// A time that far off; one that cannot be counted is as good as never.
pub(crate) fn after(start: Instant, wait: Duration) -> Instant {
    const NEVER: Duration = Duration::from_secs(30 * 365 * 86_400);
    start.checked_add(wait).unwrap_or(start + NEVER)
}

/// What a handle says in a process that was forked from the engine's.
pub(crate) fn forked() -> ErrorKind {
    let text = "the engine is of the process that forked this one: make another engine here";
    ErrorKind::Service(text.to_owned())
}

/// What a GET asks for, checked.
pub(crate) struct Target {
    pub(crate) tenant: Arc<Tenant>,
    pub(crate) bucket: Arc<str>,
    pub(crate) key: Arc<str>,
    pub(crate) offset: u64,
    /// Bytes wanted; for a whole object of unknown size, bytes there is room for.
    pub(crate) len: u64,
    /// Bytes that the caller asked for, which may be more than the object has.
    pub(crate) asked: Option<u64>,
    /// All of the object is wanted, however much that is.
    pub(crate) whole: bool,
    pub(crate) if_match: Option<ETag>,
    /// The version, where it is known before the first answer.
    pub(crate) pin: Option<Arc<Pin>>,
    /// What is asked of the object's checksum.
    pub(crate) checksum: Mode,
    /// What else requests say.
    pub(crate) options: Option<Arc<RequestOptions>>,
}

struct Destination {
    tenant: Arc<Tenant>,
    fixed: bool,
    memory: Memory,
    len: u64,
    align: u64,
}

/// Runs a GET to its end.
pub(crate) async fn run(lane: Rc<Lane>, get: Get, mut report: Report, interrupt: Interrupt) {
    let policy = get.policy.unwrap_or(lane.core.policy);
    // The caller's own memory is nowhere else.
    let fixed = get.fixed || get.buffer.as_ref().is_some_and(Buffer::is_adopted);
    let (target, buffer) = match prepare(&lane, get, &mut report, &interrupt).await {
        // There is nothing to fetch: a range of no bytes, or an object that is known to be empty.
        Ok((target, buffer)) if target.len == 0 && (target.pin.is_some() || !target.whole) => {
            report.begin_round(&target);
            return match report.verify(&target) {
                Ok(()) => report.succeed_without_bytes(buffer),
                Err(error) => report.fail(error, Some(buffer)),
            };
        }
        Ok(both) => both,
        Err((error, buffer)) => return report.fail(error, buffer),
    };
    let core = &lane.core;
    let way = match route(policy, core.fabric_state, target.len, core.rdma_threshold) {
        Route::Rdma if policy == Policy::RequireRdma => Way::RdmaOnly,
        Route::Rdma => Way::RdmaThenHttp,
        Route::HttpIntended(reason) => {
            report.http_intended(reason);
            Way::Http
        }
        Route::HttpFallback(reason) => {
            report.fell_back(Fallback {
                reason,
                detail: core.fabric_detail.clone(),
            });
            Way::Http
        }
        Route::Refused(reason) => {
            let kind = ErrorKind::Rdma {
                reason,
                detail: core.fabric_detail.clone(),
            };
            let error = report.error(kind);
            return report.fail(error, Some(buffer));
        }
    };
    let destination = Destination {
        tenant: Arc::clone(&target.tenant),
        fixed,
        memory: buffer.memory(),
        len: buffer.len(),
        align: buffer.align(),
    };
    fetch(
        &lane,
        &target,
        buffer.into_landing(),
        way,
        &destination,
        report,
        &interrupt,
    )
    .await;
}

/// Rounds until one succeeds, or fails for good.
async fn fetch(
    lane: &Rc<Lane>,
    target: &Target,
    mut landing: Landing,
    mut way: Way,
    destination: &Destination,
    mut report: Report,
    interrupt: &Interrupt,
) {
    let mut rounds = 1;
    let mut has_differed = false;
    loop {
        let result = round::run(lane, target, &mut landing, way, &mut report, interrupt).await;
        let finished = landing.finish();
        let result = match (result, &finished) {
            (Ok(()), Ok(buffer)) => verify(target, buffer, &mut report).await,
            (result, _) => result,
        };
        let error = match result {
            Ok(()) => match finished {
                Ok(buffer) => return report.succeed(buffer, target.asked),
                // Never so: a round succeeds only when all of its parts were answered.
                Err(_) => {
                    let error = report.error(ErrorKind::Cancelled);
                    return report.fail(error, None);
                }
            },
            Err(error) => error,
        };
        let again = match way {
            Way::RdmaThenHttp if error.reason().is_of_rdma() => Some(Way::Http),
            // Nobody answered: the server is asked once more, for other memory.
            Way::RdmaOnly if unanswered(&error) && rounds < RDMA_ROUNDS => Some(way),
            // Bytes that were changed on their way may come right the next time.
            _ if matches!(error.kind(), ErrorKind::Checksum(_)) => {
                (!std::mem::replace(&mut has_differed, true)).then_some(way)
            }
            _ => None,
        };
        let memory = match finished {
            Ok(buffer) => Some(buffer),
            Err(returning) => {
                let goes_on = again.is_some();
                let memory = another(
                    returning,
                    destination,
                    goes_on,
                    &error,
                    &mut report,
                    interrupt,
                );
                match memory.await {
                    Ok(memory) => memory,
                    Err(kind) => {
                        let error = report.error(kind);
                        return report.fail(error, None);
                    }
                }
            }
        };
        let (next, buffer) = match (again, memory) {
            (Some(next), Some(buffer)) => (next, buffer),
            (_, memory) => return report.fail(error, memory),
        };
        if next != way {
            report.fell_back(Fallback::of(&error));
        }
        way = next;
        report.start_over();
        landing = buffer.into_landing();
        rounds += 1;
    }
}

/// Whether what came is the object, as far as its checksum shows it. Where that is required, also bytes that no
/// processor has seen are looked at.
async fn verify(target: &Target, buffer: &Buffer, report: &mut Report) -> Result<(), Error> {
    let Some((algorithm, bytes)) = report.unseen(target) else {
        return report.verify(target);
    };
    let mut sum = Sum::new(algorithm);
    let mut piece = vec![0; READ_BACK];
    let mut at = 0;
    while at < bytes {
        let len = usize::try_from(bytes - at).map_or(READ_BACK, |left| left.min(READ_BACK));
        let read = buffer.read_to_host(at, &mut piece[..len]);
        read.map_err(|error| report.error(ErrorKind::Cuda(error.to_string())))?;
        sum.update(&piece[..len]);
        at += len as u64;
        // Other GETs of the thread have their turn.
        tokio::task::yield_now().await;
    }
    report.read_again(bytes, sum.finish());
    report.verify(target)
}

fn unanswered(error: &Error) -> bool {
    matches!(error.reason(), Reason::RdmaTimeout | Reason::RdmaError) && error.status().is_none()
}

/// Memory in place of a slot that a remote may still write to: the same slot after revocation where the
/// caller fixed it, else a fresh one if the GET goes on.
async fn another(
    returning: Returning,
    destination: &Destination,
    goes_on: bool,
    why: &Error,
    report: &mut Report,
    interrupt: &Interrupt,
) -> Result<Option<Buffer>, ErrorKind> {
    report.waits_for(Waits::Revocation);
    if destination.fixed {
        report.waits(why);
        // Also after a cancel or the deadline: the slot is the caller's again only when no remote can write.
        // Only the engine's own end leaves it to quarantine.
        return Ok(tokio::select! {
            slot = returning.wait() => slot.ok(),
            () = interrupt.stopped() => None,
        });
    }
    if !goes_on {
        return Ok(None);
    }
    if let Some(buffer) = fresh(destination).await {
        report.moved();
        return Ok(Some(buffer));
    }
    // The pool is full: the slot itself comes back after revocation.
    if let Ok(buffer) = interrupt.or(pin!(returning.wait())).await? {
        return Ok(Some(buffer));
    }
    // Or its slab was given up, which makes room.
    let buffer = fresh(destination).await;
    report.moved();
    Ok(buffer)
}

/// A slot like the one that the GET had, if there is room.
async fn fresh(destination: &Destination) -> Option<Buffer> {
    let pool = destination.tenant.pool.clone();
    let &Destination {
        len, memory, align, ..
    } = destination;
    // Making a slab takes time.
    let tried = tokio::task::spawn_blocking(move || pool.try_alloc_aligned(len, memory, align));
    tried.await.ok()?.ok()
}

type Refused = (Error, Option<Buffer>);

/// Checks what was asked for and finds its size and memory.
async fn prepare(
    lane: &Rc<Lane>,
    mut get: Get,
    report: &mut Report,
    interrupt: &Interrupt,
) -> Result<(Target, Buffer), Refused> {
    let (memory, buffer) = (get.memory, get.buffer.take());
    let mut target = match target(get, lane, report) {
        Ok(target) => target,
        Err(error) => return Err((error, buffer)),
    };
    if let Err(error) = learn_checksum(lane, &mut target, report, interrupt).await {
        return Err((error, buffer));
    }
    if let Some(buffer) = buffer {
        return match fit(&mut target, &buffer, lane, report) {
            Ok(()) => Ok((target, buffer)),
            Err(error) => Err((error, Some(buffer))),
        };
    }
    let leased = async {
        if target.whole && target.pin.is_none() {
            let info = look(lane, &target, report, interrupt).await?;
            let Some(pin) = Pin::of(&info) else {
                let text = "the answer to HEAD has no size".to_owned();
                return Err(report.error(ErrorKind::Protocol(text)));
            };
            target.len = pin.size;
            target.pin = Some(Arc::new(pin));
            report.set_info(info);
        }
        lease(&target, memory, report, interrupt).await
    };
    match leased.await {
        Ok(buffer) => Ok((target, buffer)),
        Err(error) => Err((error, None)),
    }
}

/// Where a checksum is required of a whole object, HEAD tells it: many servers give none with ranges.
async fn learn_checksum(
    lane: &Rc<Lane>,
    target: &mut Target,
    report: &mut Report,
    interrupt: &Interrupt,
) -> Result<(), Error> {
    let known = target.pin.as_ref().and_then(|pin| pin.checksum);
    if target.checksum != Mode::Required || !target.whole || known.is_some() {
        return Ok(());
    }
    let info = look(lane, target, report, interrupt).await?;
    let differs = target.pin.as_ref().and_then(|pin| pin.difference(&info));
    if let Some((expected, found)) = differs {
        return Err(report.error(ErrorKind::Modified { expected, found }));
    }
    if let Some(pin) = Pin::of(&info) {
        target.len = pin.size;
        target.pin = Some(Arc::new(pin));
    }
    report.set_info(info);
    Ok(())
}

/// What is asked for, as far as it can be judged without a server.
fn target(get: Get, lane: &Lane, report: &Report) -> Result<Target, Error> {
    let pin = get.version.map(Arc::new);
    let tenant = get.tenant.unwrap_or_else(|| Arc::clone(&lane.core.tenant));
    let mut target = Target {
        tenant,
        bucket: get.bucket,
        key: get.key,
        offset: 0,
        len: pin.as_ref().map_or(0, |pin| pin.size),
        asked: get.range.map(|(_, len)| len),
        whole: get.range.is_none(),
        if_match: get.if_match,
        pin,
        checksum: get.checksum.unwrap_or(lane.core.checksum),
        options: get.options,
    };
    if target.key.is_empty() {
        return Err(report.error(ErrorKind::Config("the key is empty".into())));
    }
    if let Some((offset, len)) = get.range {
        if offset.checked_add(len).is_none() {
            let text =
                format!("a range of {len} bytes at {offset} ends past what 64 bits can count");
            return Err(report.error(ErrorKind::Config(text)));
        }
        (target.offset, target.len) = (offset, len);
        // A range past the end is asked for as it is: the server says so best.
        if let Some(pin) = target.pin.as_ref().filter(|pin| offset < pin.size) {
            target.len = len.min(pin.size - offset);
        }
    }
    Ok(target)
}

/// Checks that the target fits the buffer; where its size is not known, all of the buffer is there for it.
fn fit(target: &mut Target, buffer: &Buffer, lane: &Lane, report: &Report) -> Result<(), Error> {
    if !buffer.is_of(&lane.core.pool) {
        let text = format!(
            "slot {:?} is of another pool than this engine's",
            buffer.slot()
        );
        let error = report.error(ErrorKind::Config(text));
        return Err(error.with_reason(Reason::StaleBuffer));
    }
    if target.whole && target.pin.is_none() {
        target.len = buffer.len();
    } else if buffer.len() < target.len {
        let (needed, have) = (target.len, buffer.len());
        return Err(report.error(ErrorKind::BufferTooSmall { needed, have }));
    }
    Ok(())
}

/// The object's size and version, and whether it is the one that the caller wants.
pub(crate) async fn look(
    lane: &Lane,
    target: &Target,
    report: &Report,
    interrupt: &Interrupt,
) -> Result<ObjectInfo, Error> {
    let progress = report.progress();
    // Apart: most GETs need no room for it.
    let looked = Box::pin(head(
        lane,
        &target.tenant.share,
        progress,
        (&target.bucket, &target.key),
        target.checksum,
        target.options.as_deref().unwrap_or(&NO_OPTIONS),
    ));
    let looked = interrupt.or(looked).await;
    let info = looked.map_err(|kind| told(report.error(kind), progress))??;
    match (&target.if_match, &info.etag) {
        (Some(wanted), found) if found.as_ref() != Some(wanted) => {
            let found = found
                .as_ref()
                .map_or("no etag".to_owned(), |etag| format!("etag {etag}"));
            Err(report.error(ErrorKind::Modified {
                expected: format!("etag {wanted}"),
                found,
            }))
        }
        _ => Ok(info),
    }
}

/// A slot for the target, waited for as long as the deadline allows. Who came first is served first.
async fn lease(
    target: &Target,
    memory: Memory,
    report: &Report,
    interrupt: &Interrupt,
) -> Result<Buffer, Error> {
    report.waits_for(Waits::Memory);
    let (pool, len) = (&target.tenant.pool, target.len);
    let leased = async {
        let _turn = target.tenant.leasing.lock().await;
        loop {
            let changed = pool.changed();
            let once = pool.clone();
            // Making a slab takes time.
            let tried = tokio::task::spawn_blocking(move || once.try_alloc(len, memory)).await;
            match tried {
                Ok(Ok(buffer)) => return Ok(buffer),
                Ok(Err(PoolError::WouldBlock { .. })) => changed.await,
                Ok(Err(error)) => return Err(error.to_string()),
                Err(error) => return Err(error.to_string()),
            }
        }
    };
    match interrupt.or(pin!(leased)).await {
        Ok(Ok(buffer)) => {
            report.waits_for(Waits::Turn);
            Ok(buffer)
        }
        Ok(Err(why)) => {
            let error = report.error(ErrorKind::Config(why));
            Err(error.with_reason(Reason::StaleBuffer))
        }
        Err(kind) => Err(report.error(kind)),
    }
}
