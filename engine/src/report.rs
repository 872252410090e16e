//! From the facts of a GET to its completion, its metrics, and the log: in one place, once per GET.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use metrics::SharedString;
use s3engine_pool::Buffer;
use s3engine_s3::checksum::{Algorithm, Checksum, Mode, Offered, Tally, Unverified, Verified};
use s3engine_s3::error::{Error, ErrorKind};
use s3engine_s3::object::ObjectInfo;
use s3engine_s3::progress::{Progress, Waits};
use s3engine_s3::range::ByteRange;
use s3engine_s3::{Path, Reason};

use crate::completion::{BytesByPath, Completion, Fallback, Flags, Stages};
use crate::engine::Core;
use crate::get::{Get, Ticket};
use crate::operation::Target;
use crate::part::PartEnd;
use crate::sink::Sink;
use crate::under_way::{Asked, Tracked};

/// Causes that were warned of.
#[derive(Default)]
pub(crate) struct Warnings(Mutex<HashSet<(Reason, String)>>);

impl Warnings {
    /// More causes than this are not told apart any more, so that the table stays small.
    const MOST: usize = 64;

    fn is_new(&self, fallback: &Fallback) -> bool {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // What this host's fabric says tells causes apart; what servers say differs from answer to answer.
        let of_fabric = matches!(
            fallback.reason,
            Reason::NoFabric
                | Reason::FabricInitFailed
                | Reason::RegistrationFailed
                | Reason::TokenFailed
        );
        let text = match of_fabric && seen.len() < Self::MOST {
            true => fallback.detail.clone(),
            false => String::new(),
        };
        seen.insert((fallback.reason, text))
    }
}

/// Gathers what happens to one GET, and tells its sink exactly once how it ended: when dropped without
/// an end, as cancelled.
pub(crate) struct Report {
    core: Arc<Core>,
    sink: Option<Sink>,
    ticket: Ticket,
    user_data: u64,
    bucket: Arc<str>,
    key: Arc<str>,
    submitted: Instant,
    intent: Option<Reason>,
    flags: Flags,
    by_path: BytesByPath,
    tally: Tally,
    verified: Verified,
    sum: Option<Checksum>,
    fallback: Option<Fallback>,
    last: Last,
    stages: Stages,
    /// Whether it was told that the GET waits.
    waits: bool,
    /// Of the client of the host service that it is for.
    client: Option<SharedString>,
    /// Its place among those that are under way.
    tracked: Tracked,
}

/// Facts of the last answer.
#[derive(Default)]
struct Last {
    status: Option<u16>,
    info: ObjectInfo,
    request_id: Option<String>,
}

impl Report {
    pub(crate) fn new(
        core: Arc<Core>,
        sink: Sink,
        ticket: Ticket,
        get: &Get,
        submitted: Instant,
    ) -> Self {
        metrics::gauge!("s3engine_in_flight_gets").increment(1);
        let tenant = get.tenant.as_ref().unwrap_or(&core.tenant);
        let asked = Asked {
            operation: "GET",
            bucket: Arc::clone(&get.bucket),
            key: Arc::clone(&get.key),
            part: None,
            submitted,
        };
        Self {
            client: tenant.label.clone(),
            tracked: tenant.under_way.enter(asked),
            core,
            sink: Some(sink),
            ticket,
            user_data: get.user_data,
            bucket: Arc::clone(&get.bucket),
            key: Arc::clone(&get.key),
            submitted,
            intent: None,
            flags: Flags::empty(),
            by_path: BytesByPath::default(),
            tally: Tally::default(),
            verified: Verified::NotVerified(Unverified::Nothing),
            sum: None,
            fallback: None,
            last: Last::default(),
            stages: Stages::default(),
            waits: false,
        }
    }

    /// An error of this GET.
    pub(crate) fn error(&self, kind: ErrorKind) -> Error {
        Error::new("GET", &*self.bucket, &*self.key, kind)
            .with_endpoint(self.core.upstream.endpoint().to_string())
    }

    /// HTTP is wanted.
    pub(crate) fn http_intended(&mut self, reason: Reason) {
        self.intent = Some(reason);
        self.flags |= Flags::HTTP_INTENDED;
    }

    /// HTTP is not wanted and carries bytes all the same. The first reason counts.
    pub(crate) fn fell_back(&mut self, fallback: Fallback) {
        if fallback.reason == Reason::RegistrationFailed {
            self.flags |= Flags::REG_FAILED;
        }
        if self.core.warnings.is_new(&fallback) {
            tracing::warn!(endpoint = %self.core.upstream.endpoint(), reason = %fallback.reason, detail = %fallback.detail,
                "RDMA was allowed and is not used; more of this cause are only counted");
        }
        self.fallback.get_or_insert(fallback);
    }

    /// Tells whoever asks what the GET waits for now.
    pub(crate) fn waits_for(&self, what: Waits) {
        self.tracked.progress.waits_for(what);
    }

    /// Where it is.
    pub(crate) fn progress(&self) -> &Arc<Progress> {
        &self.tracked.progress
    }

    /// Counts in a part of it that runs beside others.
    pub(crate) fn enter_part(&self, part: ByteRange) -> Tracked {
        self.tracked.part(Asked {
            operation: "GET",
            bucket: Arc::clone(&self.bucket),
            key: Arc::clone(&self.key),
            part: Some(part),
            submitted: Instant::now(),
        })
    }

    /// A request could start.
    pub(crate) fn admitted(&mut self) {
        self.stages
            .queued
            .get_or_insert_with(|| self.submitted.elapsed());
    }

    /// A part has ended. Its bytes count when the GET succeeds.
    pub(crate) fn part(&mut self, end: PartEnd) -> Option<Error> {
        let PartEnd { outcome, fallback } = end;
        if let Some(fallback) = fallback {
            self.fell_back(fallback);
        }
        let since = |at: Option<Instant>| at.map(|at| at.saturating_duration_since(self.submitted));
        self.stages.registered = self.stages.registered.or(since(outcome.registered));
        self.stages.first_byte = self.stages.first_byte.or(since(outcome.first_byte));
        if outcome.path != Path::None {
            self.tally.offer(outcome.info.checksum);
            let seen = outcome.path != Path::Rdma;
            self.tally.add(outcome.bytes, outcome.sum, seen);
        }
        self.last = Last {
            status: outcome.status,
            info: outcome.info,
            request_id: outcome.request_id,
        };
        if outcome.reason == Reason::RegistrationFailed {
            self.flags |= Flags::REG_FAILED;
        }
        match outcome.path {
            Path::None => Some(
                outcome
                    .error
                    .unwrap_or_else(|| self.error(ErrorKind::Cancelled)),
            ),
            path => {
                self.by_path.add(path, outcome.bytes);
                if outcome.staged {
                    self.flags |= Flags::STAGED;
                }
                None
            }
        }
    }

    /// The object as the last answer described it.
    pub(crate) fn info(&self) -> &ObjectInfo {
        &self.last.info
    }

    /// HEAD has told what the object is.
    pub(crate) fn set_info(&mut self, info: ObjectInfo) {
        self.last = Last {
            status: Some(200),
            info,
            request_id: None,
        };
    }

    /// Everything is fetched again, into other memory.
    pub(crate) fn start_over(&mut self) {
        self.by_path = BytesByPath::default();
        self.flags -= Flags::STAGED;
    }

    /// The object's parts are fetched from now on. What earlier rounds have summed up is of other bytes.
    pub(crate) fn begin_round(&mut self, target: &Target) {
        self.tally = Tally::default();
        self.tally
            .offer(target.pin.as_ref().and_then(|pin| pin.checksum));
    }

    /// Refuses to go on where a checksum is required and the first answer shows that none will be of use. `len` bytes
    /// are fetched in all.
    pub(crate) fn check_offer(&self, target: &Target, len: u64) -> Result<(), Error> {
        let whole = target.offset == 0 && self.last.info.size.is_none_or(|size| size == len);
        let why = match self.tally.offered() {
            _ if target.checksum != Mode::Required => return Ok(()),
            _ if !whole => Unverified::Range,
            None => Unverified::NotOffered,
            Some(Offered::Composite) => Unverified::Composite,
            Some(Offered::Unclear) => Unverified::Unclear,
            Some(Offered::Whole(checksum)) if checksum.algorithm().joins() => return Ok(()),
            Some(Offered::Whole(_)) => Unverified::Parts,
        };
        Err(self.error(ErrorKind::NotVerified(why)))
    }

    /// Judges all that came by the object's checksum.
    pub(crate) fn verify(&mut self, target: &Target) -> Result<(), Error> {
        let (mode, bytes) = (target.checksum, self.by_path.total());
        let judged = self
            .tally
            .judge(mode, (target.offset, bytes), self.is_all(target));
        let mismatch = |mismatch| self.error(ErrorKind::Checksum(mismatch));
        let verified = judged.map_err(mismatch)?;
        match verified {
            Verified::Verified(_) | Verified::NotVerified(Unverified::Nothing) => {}
            Verified::NotVerified(why) if mode == Mode::Required => {
                return Err(self.error(ErrorKind::NotVerified(why)));
            }
            Verified::NotVerified(_) => {}
        }
        self.verified = verified;
        self.last.info.checksum = self.tally.offered();
        self.sum = self.tally.sum(target.offset, bytes);
        Ok(())
    }

    /// By which algorithm how many bytes are to be summed up that no processor has seen, where that is required.
    pub(crate) fn unseen(&self, target: &Target) -> Option<(Algorithm, u64)> {
        let required = target.checksum == Mode::Required && self.is_all(target);
        let checksum = self.tally.offered().filter(|_| required)?.whole()?;
        let bytes = self.by_path.total();
        self.tally
            .is_unseen()
            .then_some((checksum.algorithm(), bytes))
    }

    /// Those bytes have been read, and sum up to this.
    pub(crate) fn read_again(&mut self, bytes: u64, sum: Checksum) {
        self.tally.read_again(bytes, sum);
    }

    /// Whether what came is all of the object.
    fn is_all(&self, target: &Target) -> bool {
        let size = self.last.info.size;
        let size = size.or(target.pin.as_ref().map(|pin| pin.size));
        let covers = size == Some(self.by_path.total());
        target.offset == 0 && (target.whole || covers)
    }

    /// The buffer is another one than the caller gave.
    pub(crate) fn moved(&mut self) {
        self.flags |= Flags::MOVED;
    }

    /// Tells, once, that the GET waits for its memory: a remote may still write to it.
    pub(crate) fn waits(&mut self, why: &Error) {
        if std::mem::replace(&mut self.waits, true) {
            return;
        }
        if let Some(sink) = &self.sink {
            let mut news = self.completion(Path::None, why.reason(), Flags::MORE, None, None);
            news.by_path = BytesByPath::default();
            sink.news(news);
        }
    }

    /// All bytes are there, `asked` of which the caller wanted if the object has them.
    pub(crate) fn succeed(mut self, buffer: Buffer, asked: Option<u64>) {
        let BytesByPath { rdma, http, .. } = self.by_path;
        let mut flags = self.flags;
        let verified = matches!(self.verified, Verified::Verified(_));
        flags.set(Flags::NOT_VERIFIED, rdma > 0 && !verified);
        flags.set(
            Flags::PARTIAL,
            asked.is_some_and(|asked| self.by_path.total() < asked),
        );
        let (path, reason) = match (&self.fallback, self.intent) {
            (Some(fallback), _) => {
                flags |= Flags::FELL_BACK;
                (Path::Http, fallback.reason)
            }
            (None, Some(intent)) => (Path::Http, intent),
            (None, None) if http == 0 && (rdma > 0 || self.last.status.is_some()) => {
                (Path::Rdma, Reason::Ok)
            }
            (None, None) => (Path::None, Reason::Ok),
        };
        let completion = self.completion(path, reason, flags, None, Some(buffer));
        self.end(completion);
    }

    /// There was nothing to fetch: no path, and none was needed.
    pub(crate) fn succeed_without_bytes(mut self, buffer: Buffer) {
        let completion =
            self.completion(Path::None, Reason::Ok, Flags::empty(), None, Some(buffer));
        self.end(completion);
    }

    /// Nothing counts as arrived.
    pub(crate) fn fail(mut self, error: Error, buffer: Option<Buffer>) {
        let flags = self.flags & (Flags::REG_FAILED | Flags::MOVED);
        let mut completion =
            self.completion(Path::None, error.reason(), flags, Some(error), buffer);
        completion.by_path = BytesByPath::default();
        self.end(completion);
    }

    fn completion(
        &self,
        path: Path,
        reason: Reason,
        flags: Flags,
        error: Option<Error>,
        buffer: Option<Buffer>,
    ) -> Completion {
        Completion {
            ticket: self.ticket,
            user_data: self.user_data,
            path,
            reason,
            flags,
            by_path: self.by_path,
            verified: match error {
                Some(_) => Verified::NotVerified(Unverified::Nothing),
                None => self.verified,
            },
            sum: self.sum.filter(|_| error.is_none()),
            status: error.as_ref().and_then(Error::status).or(self.last.status),
            info: self.last.info.clone(),
            request_id: self.last.request_id.clone(),
            stages: Stages {
                done: self.submitted.elapsed(),
                ..self.stages
            },
            fallback: self.fallback.clone(),
            error,
            buffer,
        }
    }

    fn end(&mut self, completion: Completion) {
        let Some(sink) = self.sink.take() else { return };
        record(&completion);
        if let Some(client) = &self.client {
            record_for(client, &completion);
        }
        sink.end(completion);
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        // The engine stopped before the GET ended, or its thread died.
        if self.sink.is_some() {
            let error = self.error(ErrorKind::Cancelled);
            let mut completion = self.completion(
                Path::None,
                error.reason(),
                Flags::empty(),
                Some(error),
                None,
            );
            completion.by_path = BytesByPath::default();
            self.end(completion);
        }
        metrics::gauge!("s3engine_in_flight_gets").decrement(1);
    }
}

/// Counts a completion for one client of the host service.
fn record_for(client: &SharedString, completion: &Completion) {
    let (path, reason) = (completion.path.as_str(), completion.reason.as_str());
    metrics::counter!("s3engine_client_gets_total", "client" => client.clone(), "path" => path, "reason" => reason)
        .increment(1);
    metrics::counter!("s3engine_client_bytes_total", "client" => client.clone(), "path" => path)
        .increment(completion.bytes());
}

/// Counts a completion.
pub(crate) fn record(completion: &Completion) {
    let (path, reason) = (completion.path.as_str(), completion.reason.as_str());
    metrics::counter!("s3engine_gets_total", "path" => path, "reason" => reason).increment(1);
    let BytesByPath { rdma, http, cache } = completion.by_path;
    let by_path = [
        (Path::Rdma, Reason::Ok.as_str(), rdma),
        (Path::Http, reason, http),
        (Path::Cache, Reason::CacheHit.as_str(), cache),
    ];
    for (path, reason, bytes) in by_path {
        if bytes > 0 {
            metrics::counter!("s3engine_bytes_total", "path" => path.as_str(), "reason" => reason)
                .increment(bytes);
        }
    }
    metrics::histogram!("s3engine_get_seconds", "path" => path)
        .record(completion.stages.done.as_secs_f64());
    if let Some(first_byte) = completion.stages.first_byte {
        metrics::histogram!("s3engine_first_byte_seconds", "path" => path)
            .record(first_byte.as_secs_f64());
    }
}
