//! One round of a GET: fills one slot, part after part, all of one version of the object.

use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use s3engine_pool::{Landing, Window};
use s3engine_s3::Reason;
use s3engine_s3::error::{Error, ErrorKind};
use s3engine_s3::object::Pin;
use s3engine_s3::progress::Waits;
use s3engine_s3::range::ByteRange;
use s3engine_s3::transport::Outcome;
use tokio::sync::mpsc;

use crate::in_flight::Permit;
use crate::interrupt::Interrupt;
use crate::operation::{Target, look};
use crate::part::{self, PartEnd, Wanted, Way};
use crate::plan::{Cuts, Part, parts};
use crate::report::Report;
use crate::under_way::Tracked;
use crate::worker::Lane;

/// The most that is asked for by HTTP before an object's size is known.
const UNKNOWN: u64 = 8 << 20;

/// Fetches the target. When this returns, no window is left: an error may leave the slot in doubt, success
/// never does.
pub(crate) async fn run(
    lane: &Rc<Lane>,
    target: &Target,
    landing: &mut Landing,
    way: Way,
    report: &mut Report,
    interrupt: &Interrupt,
) -> Result<(), Error> {
    let round = Round {
        lane,
        target,
        way,
        interrupt,
    };
    report.begin_round(target);
    let (part_size, cuts) = round.part_size(landing);
    let mut pin = target.pin.clone();
    let mut len = target.len;
    let mut done = 0;
    // The first answer tells size and version; the other parts are bound to it. And where the first part
    // cannot go by the fabric, the GET as a whole goes another way.
    if pin.is_none() || way.is_rdma() {
        let first = round.first(len, part_size, cuts)?;
        let fetched = match round.fetch_first(first, pin.clone(), landing, report).await {
            // Only an empty object has no byte 0. Whether it is one, HEAD tells: not every 416 does.
            Err(error) if target.whole && is_beyond_end(&error) => {
                let info = look(lane, target, report, interrupt).await?;
                if info.size != Some(0) {
                    return Err(error);
                }
                report.set_info(info);
                return Ok(());
            }
            fetched => fetched?,
        };
        len = round.len_after_first(report)?;
        let Some(first) = first else { return Ok(()) };
        if fetched < first.range.len || len <= first.range.len {
            return Ok(());
        }
        report.check_offer(target, len)?;
        done = first.range.len;
        if pin.is_none() {
            let Some(of_first) = Pin::of(report.info()) else {
                let text = "the answer to a range does not tell the object's size".to_owned();
                return Err(report.error(ErrorKind::Protocol(text)));
            };
            pin = Some(Arc::new(of_first));
        }
    }
    let in_parts = done > 0 || len > part_size;
    if in_parts && pin.as_ref().is_some_and(|pin| !pin.is_bound()) {
        return Err(report.error(ErrorKind::Protocol(UNBOUND.to_owned())));
    }
    round
        .fetch_rest(
            parts(target.offset, done, len, part_size, cuts),
            pin,
            landing,
            report,
        )
        .await
}

/// Why an object is not put together from parts.
const UNBOUND: &str = "the object has neither an ETag nor a version, so nothing would show that its parts are of one object: \
                       only ranges of it that fit one request can be read";

fn is_beyond_end(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::RangeNotSatisfiable { .. })
}

struct Round<'a> {
    lane: &'a Rc<Lane>,
    target: &'a Target,
    way: Way,
    interrupt: &'a Interrupt,
}

impl Round<'_> {
    fn part_size(&self, landing: &Landing) -> (u64, Cuts) {
        let core = &self.lane.core;
        match (&core.fabric, self.way) {
            (Some((_, fabric)), way) if way.is_rdma() => {
                let (first, step) = core.pool.segment_ends(landing, *fabric);
                (core.rdma_part, Cuts { first, step })
            }
            _ => (core.http_part, Cuts::NONE),
        }
    }

    /// Bytes of the GET, now that the first answer may have told the object's size.
    fn len_after_first(&self, report: &Report) -> Result<u64, Error> {
        let (size, len) = (report.info().size, self.target.len);
        match size {
            Some(size) if !self.target.whole => {
                Ok(len.min(size.saturating_sub(self.target.offset)))
            }
            Some(size) if size > len => Err(report.error(ErrorKind::BufferTooSmall {
                needed: size,
                have: len,
            })),
            Some(size) => Ok(size),
            None if self.target.whole && self.way.is_rdma() => {
                let reason = Reason::BytesMismatch;
                let detail = "the object's size is not told".to_owned();
                Err(report.error(ErrorKind::Rdma { reason, detail }))
            }
            None => Ok(len),
        }
    }

    /// The first part, or `None` for the whole object in one request by HTTP: then no range is asked for,
    /// and the body's length is the object's size. By a fabric only the answer to a range tells the size, and
    /// without it nothing would show that all bytes came.
    fn first(&self, len: u64, part_size: u64, cuts: Cuts) -> Result<Option<Part>, Error> {
        // Where the size is not known, a request is charged with no more than this: buffers may be much larger than
        // objects, and each would keep others from starting.
        let part_size = match self.target.whole && self.target.pin.is_none() && !self.way.is_rdma()
        {
            true => part_size.min(UNKNOWN),
            false => part_size,
        };
        if self.target.whole && len <= part_size && !self.way.is_rdma() {
            return Ok(None);
        }
        let first = parts(self.target.offset, 0, len, part_size, cuts).next();
        first.map(Some).ok_or_else(|| {
            let text = format!("{len} bytes at {} cannot be asked for", self.target.offset);
            self.wanted(None, None).error(ErrorKind::Config(text))
        })
    }

    fn wanted(&self, range: Option<ByteRange>, pin: Option<Arc<Pin>>) -> Wanted {
        Wanted {
            bucket: Arc::clone(&self.target.bucket),
            key: Arc::clone(&self.target.key),
            range,
            pin,
            if_match: self.target.if_match.clone(),
            checksum: self.target.checksum,
            options: self.target.options.clone(),
        }
    }

    /// Waits out a revocation of the slab before a request's place is taken up: others could not run for it.
    async fn wait_until_open(&self, landing: &Landing, report: &Report) {
        let pool = &self.lane.core.pool;
        let opened = async {
            loop {
                let changed = pool.changed();
                if !landing.is_draining() {
                    return;
                }
                changed.await;
            }
        };
        if self.way.is_rdma() && landing.is_draining() {
            report.waits_for(Waits::Revocation);
            // What is not open by then, or ends before, the transport deals with.
            let bounded = tokio::time::timeout(pool.quarantine_bound(), opened);
            let _ = self.interrupt.or(pin!(bounded)).await;
        }
    }

    fn window(&self, landing: &mut Landing, at: u64, len: u64) -> Result<Window, Error> {
        landing.window(at, len).map_err(|error| {
            let kind = ErrorKind::BufferTooSmall {
                needed: at.saturating_add(len),
                have: error.have,
            };
            self.wanted(None, None).error(kind)
        })
    }

    /// The first part, on this thread. Returns its bytes.
    async fn fetch_first(
        &self,
        first: Option<Part>,
        pin: Option<Arc<Pin>>,
        landing: &mut Landing,
        report: &mut Report,
    ) -> Result<u64, Error> {
        let (at, len) = first.map_or((0, self.target.len), |part| (part.at, part.range.len));
        let wanted = self.wanted(first.map(|part| part.range), pin);
        let window = self.window(landing, at, len)?;
        self.wait_until_open(landing, report).await;
        report.waits_for(Waits::Turn);
        let admitted = {
            let admitted = pin!(self.target.tenant.share.admit(len));
            self.interrupt.or(admitted).await
        };
        let Ok(Some(mut permit)) = admitted else {
            return Err(wanted.error(admitted.err().unwrap_or(ErrorKind::Cancelled)));
        };
        report.admitted();
        let way = if self.way == Way::RdmaThenHttp {
            Way::Rdma
        } else {
            self.way
        };
        let (permit, progress) = (&mut permit, report.progress());
        let ended = part::run(
            self.lane,
            &wanted,
            window,
            way,
            permit,
            self.interrupt,
            progress,
        );
        let end = ended.await;
        end.refund(permit);
        let bytes = end.outcome.bytes;
        report.part(end).map_or(Ok(bytes), Err)
    }

    /// All other parts, spread over the threads. After the first error no more are started, and those under
    /// way are ended or waited for.
    async fn fetch_rest(
        &self,
        rest: impl Iterator<Item = Part>,
        pin: Option<Arc<Pin>>,
        landing: &mut Landing,
        report: &mut Report,
    ) -> Result<(), Error> {
        let interrupt = self.interrupt.child();
        let (reply, mut ends) = mpsc::unbounded_channel();
        let mut pending = Pending {
            ends: &mut ends,
            count: 0,
            failed: None,
            report,
        };
        let most = most_of_one(self.lane.core.in_flight.limits().requests);
        for part in rest {
            while pending.count >= most {
                pending.one().await;
            }
            if pending.failed.is_some() {
                break;
            }
            let wanted = self.wanted(Some(part.range), pin.clone());
            let window = match self.window(landing, part.at, part.range.len) {
                Ok(window) => window,
                Err(error) => {
                    pending.failed.get_or_insert(error);
                    break;
                }
            };
            pending.report.waits_for(Waits::Turn);
            let mut admission = std::pin::pin!(self.target.tenant.share.admit(part.range.len));
            let permit = loop {
                tokio::select! {
                    biased;
                    why = interrupt.raised() => {
                        pending.failed.get_or_insert_with(|| wanted.error(why));
                        break None;
                    }
                    () = pending.one(), if pending.count > 0 => {
                        if pending.failed.is_some() {
                            break None;
                        }
                    }
                    permit = &mut admission => {
                        if permit.is_none() {
                            let error = wanted.error(ErrorKind::Cancelled);
                            pending.failed.get_or_insert(error);
                        }
                        break permit;
                    }
                }
            };
            let Some(permit) = permit else { break };
            pending.report.admitted();
            pending.count += 1;
            let tracked = pending.report.enter_part(part.range);
            let reply = Reply(Some(reply.clone()));
            self.spawn(wanted, window, (permit, tracked), &interrupt, reply);
        }
        pending.report.waits_for(Waits::Parts);
        loop {
            if pending
                .failed
                .as_ref()
                .is_some_and(|error| self.ends_others(error))
            {
                interrupt.cancel();
            }
            if pending.count == 0 {
                break;
            }
            pending.one().await;
        }
        pending.failed.map_or(Ok(()), Err)
    }

    /// Whether the parts under way end at once with a failed one. By the fabric, ending a request that will be
    /// answered anyway would leave its memory in doubt, and with it the whole slab.
    fn ends_others(&self, error: &Error) -> bool {
        let answered = error.status().is_some();
        !(self.way.is_rdma() && answered)
    }

    fn spawn(
        &self,
        wanted: Wanted,
        window: Window,
        (mut permit, tracked): (Permit, Tracked),
        interrupt: &Interrupt,
        reply: Reply,
    ) {
        let (way, interrupt) = (self.way, interrupt.clone());
        self.lane.core.workers.bulk.spawn_near(
            window.memory().numa_node(),
            Box::new(move |lane| {
                Box::pin(async move {
                    let (of, progress) = (&mut permit, &tracked.progress);
                    let ended = part::run(&lane, &wanted, window, way, of, &interrupt, progress);
                    let end = ended.await;
                    end.refund(&mut permit);
                    drop(permit);
                    reply.send(end);
                })
            }),
        );
    }
}

/// Requests that one object may have at once: an eighth is left to others.
fn most_of_one(requests: usize) -> usize {
    requests - requests / 8
}

/// Parts under way on other threads.
struct Pending<'a> {
    ends: &'a mut mpsc::UnboundedReceiver<PartEnd>,
    count: usize,
    failed: Option<Error>,
    report: &'a mut Report,
}

impl Pending<'_> {
    /// Waits for one of them. The first error is the round's; what it made others end with is not.
    async fn one(&mut self) {
        if let Some(end) = self.ends.recv().await {
            self.count -= 1;
            if let Some(error) = self.report.part(end) {
                self.failed.get_or_insert(error);
            }
        }
    }
}

/// Sends a part's end exactly once, also when its task is dropped unfinished.
struct Reply(Option<mpsc::UnboundedSender<PartEnd>>);

impl Reply {
    fn send(mut self, end: PartEnd) {
        if let Some(sender) = self.0.take() {
            let _ = sender.send(end);
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if let Some(sender) = self.0.take() {
            let error = Error::new("GET", "", "", ErrorKind::Cancelled);
            let _ = sender.send(PartEnd {
                outcome: Outcome::failed(error),
                fallback: None,
            });
        }
    }
}
