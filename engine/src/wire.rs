//! A GET and its completion as the rings carry them, both ways: what one end says, the other hears.

mod history;

use std::error::Error as StdError;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use s3engine_pool::{Buffer, Memory, SlabId, SlotId};
use s3engine_ring::{
    CheckedGet, Cqe, DETAIL_BUDGET, DETAIL_CUT, DETAIL_ERRNO, DETAIL_OF_HEAD, DETAIL_SLOT,
    DETAIL_STATUS, Destination, Detail, GetRequest, OPTIONS_VERSION, Object, Options, Outcome,
    TextKind, UNKNOWN, Version, checksum_mode_code, checksum_mode_name, error_code, error_name,
    path_code, path_name, reason_code, reason_name, verified_code, verified_name,
};
use s3engine_s3::checksum::{Checksum, Mismatch, Mode, Offered, Unverified, Verified};
use s3engine_s3::error::{Error, ErrorKind, Phase};
use s3engine_s3::object::{ETag, ObjectInfo, Pin};
use s3engine_s3::options::{CustomerKey, ExtraHeaders, NO_OPTIONS, RequestOptions};
use s3engine_s3::{Path, Policy, Reason};

use crate::completion::{BytesByPath, Completion, Fallback, Flags, Stages};
use crate::get::{Get, Ticket};

/// A GET as a client says it. Its buffer is named, not carried.
pub(crate) fn request<'a>(
    get: &'a Get,
    options: Option<&'a Options>,
) -> Result<GetRequest<'a>, ErrorKind> {
    Ok(GetRequest {
        options,
        object: match &get.opened {
            Some(opened) => Object::Opened(opened.id()),
            None => named(get)?,
        },
        range: get.range,
        destination: match &get.buffer {
            Some(buffer) => {
                let SlotId {
                    slab,
                    index,
                    generation,
                } = buffer.slot();
                Destination::Slot {
                    slab: slab.0,
                    slot: index,
                    generation,
                    fixed: get.fixed,
                }
            }
            None => Destination::LeaseHost,
        },
        policy: get.policy.map(|policy| match policy {
            Policy::RequireRdma => s3engine_ring::Policy::RequireRdma,
            Policy::PreferRdma => s3engine_ring::Policy::PreferRdma,
            Policy::Http => s3engine_ring::Policy::Http,
        }),
        // 0 is the engine's own.
        deadline_ms: get.deadline.map_or(0, |deadline| {
            let whole = deadline.as_nanos().div_ceil(1_000_000);
            u32::try_from(whole.max(1)).unwrap_or(u32::MAX)
        }),
    })
}

/// What a GET says besides its object, to a peer of that version. One that knows no options is not told what it could
/// only do better with.
pub(crate) fn options(get: &Get, version: u32) -> Result<Option<Options>, ErrorKind> {
    // Of an object that was opened, the other end knows it.
    let pin = get.version.as_ref().filter(|_| get.opened.is_none());
    let checksum = pin.and_then(|pin| pin.checksum?.whole());
    if get.checksum.is_none() && checksum.is_none() && get.options.is_none() {
        return Ok(None);
    }
    if version < OPTIONS_VERSION {
        let must = get.checksum == Some(Mode::Required) || get.options.is_some();
        return if must { Err(no_options()) } else { Ok(None) };
    }
    let told = get.options.as_deref().unwrap_or(&NO_OPTIONS);
    let key = told.customer_key.as_ref();
    let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    Ok(Some(Options {
        checksum_mode: get
            .checksum
            .and_then(|mode| checksum_mode_code(mode.as_str())),
        checksum: checksum.map(|checksum| checksum.to_string()),
        version_id: told.version_id.clone(),
        customer_key: key.map(|key| (*key.bytes(), key.goes_over_plain_http())),
        request_payer: told.request_payer,
        expected_bucket_owner: told.expected_bucket_owner.clone(),
        headers: told.headers.iter().map(owned).collect(),
    }))
}

/// What a peer of an older version cannot do.
pub(crate) fn no_options() -> ErrorKind {
    let text = "it is of an older version, which knows no options of requests: start a newer one";
    ErrorKind::Service(text.to_owned())
}

/// Adds to a GET what a service has heard besides its object.
pub(crate) fn set_options(get: &mut Get, heard: Options) -> Result<(), ErrorKind> {
    let refused = |text: String| ErrorKind::Config(text);
    get.checksum = match heard.checksum_mode {
        None => None,
        Some(code) => Some(
            checksum_mode_name(code)
                .and_then(|name| name.parse().ok())
                .ok_or_else(|| refused(format!("checksum mode {code} is unknown")))?,
        ),
    };
    if let (Some(text), Some(pin)) = (heard.checksum, &mut get.version) {
        let checksum = text.parse::<Checksum>();
        pin.checksum = Some(Offered::Whole(
            checksum.map_err(|e| refused(e.to_string()))?,
        ));
    }
    let headers = heard
        .headers
        .iter()
        .map(|(name, value)| (&**name, &**value));
    let options = RequestOptions {
        version_id: heard.version_id,
        customer_key: heard.customer_key.map(|(key, over_plain_http)| {
            let key = CustomerKey::new(key);
            if over_plain_http {
                key.over_plain_http()
            } else {
                key
            }
        }),
        request_payer: heard.request_payer,
        expected_bucket_owner: heard.expected_bucket_owner,
        headers: ExtraHeaders::of(headers).map_err(|error| refused(error.to_string()))?,
    };
    get.options = (!options.is_none()).then(|| Arc::new(options));
    Ok(())
}

fn named(get: &Get) -> Result<Object<&str>, ErrorKind> {
    let of_pin = get.version.as_ref().and_then(|pin| pin.etag.as_ref());
    let etag = match (&get.if_match, of_pin) {
        (Some(wanted), Some(pinned)) if wanted != pinned => {
            return Err(ErrorKind::Modified {
                expected: format!("etag {wanted}"),
                found: format!("etag {pinned}"),
            });
        }
        (wanted, pinned) => wanted.as_ref().or(pinned),
    };
    Ok(Object::Named {
        bucket: &get.bucket,
        key: &get.key,
        etag: etag.map(ETag::as_str),
        version: get.version.as_ref().map(|pin| Version {
            size: pin.size,
            id: pin.version_id.as_deref(),
        }),
    })
}

/// The object of a GET as a service knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    pub(crate) bucket: Arc<str>,
    pub(crate) key: Arc<str>,
    pub(crate) if_match: Option<ETag>,
    pub(crate) version: Option<Pin>,
}

impl Name {
    /// As a client has said it.
    pub(crate) fn new(
        bucket: Arc<str>,
        key: Arc<str>,
        etag: Option<Arc<str>>,
        version: Option<Version<Arc<str>>>,
    ) -> Self {
        let etag = etag.map(|etag| ETag::new(&*etag));
        let (if_match, version) = match version {
            Some(Version { size, id }) => {
                let version_id = id.map(|id| id.as_ref().to_owned());
                let pin = Pin {
                    etag,
                    version_id,
                    size,
                    checksum: None,
                };
                (None, Some(pin))
            }
            None => (etag, None),
        };
        Self {
            bucket,
            key,
            if_match,
            version,
        }
    }
}

/// A GET as a service hears it, without its buffer.
pub(crate) fn get(checked: &CheckedGet, user_data: u64, name: Name) -> Get {
    Get {
        bucket: name.bucket,
        key: name.key,
        opened: None,
        range: checked.range,
        if_match: name.if_match,
        version: name.version,
        buffer: None,
        fixed: matches!(checked.destination, Destination::Slot { fixed: true, .. }),
        memory: Memory::Host,
        checksum: None,
        options: None,
        policy: checked.policy.map(|policy| match policy {
            s3engine_ring::Policy::RequireRdma => Policy::RequireRdma,
            s3engine_ring::Policy::PreferRdma => Policy::PreferRdma,
            s3engine_ring::Policy::Http => Policy::Http,
        }),
        deadline: checked
            .deadline_ms
            .map(|ms| Duration::from_millis(ms.get().into())),
        user_data,
        tenant: None,
    }
}

/// The slot that a GET names.
pub(crate) fn slot(destination: Destination) -> Option<SlotId> {
    match destination {
        Destination::LeaseHost => None,
        Destination::Slot {
            slab,
            slot: index,
            generation,
            ..
        } => Some(SlotId {
            slab: SlabId(slab),
            index,
            generation,
        }),
    }
}

/// The slot that a completion hands back.
pub(crate) fn slot_back(detail: &Detail) -> Option<SlotId> {
    (detail.flags & DETAIL_SLOT != 0).then_some(SlotId {
        slab: SlabId(detail.slab),
        index: detail.slot,
        generation: detail.generation,
    })
}

/// A completion as a service says it. Its buffer is named, not carried.
pub(crate) fn told(completion: &Completion) -> (Outcome, Detail) {
    let outcome = Outcome {
        bytes: completion.bytes(),
        // The two ends' flags are the same bits; a test holds that.
        flags: completion.flags.bits() as u16,
        error: completion
            .error
            .as_ref()
            .map_or(0, |error| code_of(error.kind())),
        status: completion.status.unwrap_or(0),
        path: path_code(completion.path.as_str()).unwrap_or(0),
        reason: reason_code(completion.reason.as_str()).unwrap_or(0),
    };
    let mut detail = Detail {
        queued_ns: maybe_ns(completion.stages.queued),
        registered_ns: maybe_ns(completion.stages.registered),
        first_byte_ns: maybe_ns(completion.stages.first_byte),
        done_ns: ns(completion.stages.done),
        rdma_bytes: completion.by_path.rdma,
        http_bytes: completion.by_path.http,
        cache_bytes: completion.by_path.cache,
        total_size: completion.info.size.unwrap_or(UNKNOWN),
        last_modified_ns: maybe_ns(completion.info.last_modified.and_then(since_1970)),
        fallback: completion
            .fallback
            .as_ref()
            .and_then(|fallback| reason_code(fallback.reason.as_str()))
            .unwrap_or(0),
        verified: verified_code(shown(completion.verified)).unwrap_or(0),
        ..Detail::default()
    };
    if let Some(buffer) = &completion.buffer {
        set_slot(&mut detail, buffer);
    }
    let info = &completion.info;
    let error = completion.error.as_ref();
    let texts = error.map_or_else(|| Texts::of_sums(completion), Texts::of);
    let request_id = completion.request_id.as_deref();
    let request_id = error.and_then(Error::request_id).or(request_id);
    let fallback = completion.fallback.as_ref();
    let all = [
        info.etag.as_ref().map(ETag::as_str),
        info.version_id.as_deref(),
        request_id,
        error.and_then(Error::host_id),
        texts.address.as_deref(),
        texts.first.as_deref(),
        texts.second.as_deref(),
        texts.third.as_deref(),
        fallback.map(|fallback| &*fallback.detail),
        texts.cause.as_deref(),
    ];
    if let Some(error) = error {
        set_error(&mut detail, error);
    }
    for (kind, text) in TextKind::ALL.into_iter().zip(all) {
        detail.add(kind, text.unwrap_or(""));
    }
    if let Some(error) = error {
        add_history(&mut detail, error);
    }
    (outcome, detail)
}

fn set_slot(detail: &mut Detail, buffer: &Buffer) {
    let slot = buffer.slot();
    detail.flags |= DETAIL_SLOT;
    (detail.slot_at, detail.slot_len) = (buffer.offset(), buffer.len());
    (detail.slab, detail.slot, detail.generation) = (slot.slab.0, slot.index, slot.generation);
}

fn add_history(detail: &mut Detail, error: &Error) {
    let (text, cut) = history::told(error.history(), detail.room(TextKind::History));
    detail.add(TextKind::History, &text);
    if cut {
        detail.flags |= DETAIL_CUT;
    }
}

fn set_error(detail: &mut Detail, error: &Error) {
    (detail.error_a, detail.error_b) = match error.kind() {
        ErrorKind::Timeout { after, .. } => (ns(*after), 0),
        ErrorKind::Truncated { received, expected } => (*received, *expected),
        ErrorKind::BufferTooSmall { needed, have } => (*needed, *have),
        ErrorKind::RangeNotSatisfiable { size } => (size.unwrap_or(UNKNOWN), 0),
        _ => (0, 0),
    };
    let phase = match error.kind() {
        ErrorKind::Timeout { phase, .. } => Some(*phase),
        _ => error.phase(),
    };
    detail.phase = phase_code(phase);
    detail.retry_after_ns = maybe_ns(error.retry_after());
    detail.attempt = u16::try_from(error.attempt()).unwrap_or(u16::MAX);
    detail.attempts = u16::try_from(error.attempts()).unwrap_or(u16::MAX);
    if error.status().is_some() {
        detail.flags |= DETAIL_STATUS;
    }
    if error.is_budget_spent() {
        detail.flags |= DETAIL_BUDGET;
    }
    if error.operation() == "HEAD" {
        detail.flags |= DETAIL_OF_HEAD;
    }
    if let Some(errno) = errno(error) {
        detail.flags |= DETAIL_ERRNO;
        detail.errno = errno;
    }
}

/// The error number of the operating system, where that is all that lies beneath.
fn errno(error: &Error) -> Option<i32> {
    error.source()?.downcast_ref::<io::Error>()?.raw_os_error()
}

/// The texts of an error.
#[derive(Default)]
struct Texts {
    address: Option<String>,
    first: Option<String>,
    second: Option<String>,
    third: Option<String>,
    cause: Option<String>,
}

impl Texts {
    /// Those of a success.
    fn of_sums(completion: &Completion) -> Texts {
        let offered = completion.info.checksum.and_then(|offered| offered.whole());
        Texts {
            first: offered.map(|checksum| checksum.to_string()),
            second: completion.sum.map(|sum| sum.to_string()),
            ..Texts::default()
        }
    }

    fn of(error: &Error) -> Texts {
        let [first, second, third] = match error.kind().clone() {
            ErrorKind::Config(text)
            | ErrorKind::Credentials(text)
            | ErrorKind::Connect(text)
            | ErrorKind::Tls(text)
            | ErrorKind::Reset(text)
            | ErrorKind::Protocol(text)
            | ErrorKind::Cuda(text)
            | ErrorKind::Service(text)
            | ErrorKind::Denied(text) => [Some(text), None, None],
            ErrorKind::Status { code, message, .. } => [code, message, None],
            ErrorKind::Redirect {
                code, region, host, ..
            } => [code, region, host],
            ErrorKind::Modified { expected, found } => [Some(expected), Some(found), None],
            ErrorKind::Checksum(Mismatch { expected, found }) => {
                [Some(expected.to_string()), Some(found.to_string()), None]
            }
            ErrorKind::NotVerified(why) => [Some(why.to_string()), None, None],
            ErrorKind::Rdma { detail, .. } => [Some(detail), None, None],
            _ => [None, None, None],
        };
        let cause = match errno(error) {
            Some(_) => None,
            None => error.source().map(|source| source.to_string()),
        };
        Texts {
            address: error.address().map(|address| address.to_string()),
            first,
            second,
            third,
            cause,
        }
    }
}

/// What a client knows of a GET that completes.
pub(crate) struct Asked<'a> {
    pub(crate) ticket: Ticket,
    pub(crate) bucket: &'a str,
    pub(crate) key: &'a str,
    pub(crate) endpoint: &'a str,
}

/// What lies beneath an error of the other end.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Cause(String);

/// A completion as a client hears it, without its buffer.
pub(crate) fn heard(cqe: &Cqe, detail: &Detail, asked: &Asked<'_>) -> Completion {
    let path: Option<Path> = path_name(cqe.path).and_then(|name| name.parse().ok());
    let said = reason(cqe.reason);
    let reason = said.unwrap_or(Reason::ServiceLost);
    let text = |kind| detail.text(kind).map(str::to_owned);
    let error = match path.and(said) {
        // A success by no path or for no reason is none.
        None if cqe.error == 0 => Some(unreadable(asked)),
        Some(_) if cqe.error == 0 => None,
        _ => Some(error(cqe, detail, reason, asked)),
    };
    // The same texts are of the error where there is one.
    let sum = |kind| -> Option<Checksum> {
        let text = detail.text(kind).filter(|_| error.is_none())?;
        text.parse().ok()
    };
    let (of_object, of_bytes) = (sum(TextKind::First), sum(TextKind::Second));
    let fallback = (detail.fallback != 0)
        .then(|| self::reason(detail.fallback))
        .flatten()
        .map(|reason| Fallback {
            reason,
            detail: text(TextKind::Fallback).unwrap_or_default(),
        });
    Completion {
        ticket: asked.ticket,
        user_data: cqe.user_data,
        path: path.unwrap_or(Path::None),
        reason,
        flags: Flags::from_bits_truncate(cqe.flags.into()),
        by_path: BytesByPath {
            rdma: detail.rdma_bytes,
            http: detail.http_bytes,
            cache: detail.cache_bytes,
        },
        verified: match error {
            Some(_) => Verified::NotVerified(Unverified::Nothing),
            None => verified(detail.verified),
        },
        sum: of_bytes,
        status: (cqe.status != 0).then_some(cqe.status),
        info: ObjectInfo {
            etag: detail.text(TextKind::ETag).map(ETag::new),
            version_id: text(TextKind::VersionId),
            size: known(detail.total_size),
            last_modified: known(detail.last_modified_ns)
                .and_then(|since| SystemTime::UNIX_EPOCH.checked_add(Duration::from_nanos(since))),
            checksum: of_object.map(Offered::Whole),
        },
        request_id: text(TextKind::RequestId),
        stages: Stages {
            queued: duration(detail.queued_ns),
            registered: duration(detail.registered_ns),
            first_byte: duration(detail.first_byte_ns),
            done: duration(detail.done_ns).unwrap_or_default(),
        },
        fallback,
        error,
        buffer: None,
    }
}

fn unreadable(asked: &Asked<'_>) -> Error {
    let kind = ErrorKind::Service("a completion that cannot be read".to_owned());
    Error::new("GET", asked.bucket, asked.key, kind).with_endpoint(asked.endpoint)
}

fn error(cqe: &Cqe, detail: &Detail, reason: Reason, asked: &Asked<'_>) -> Error {
    let operation = match detail.flags & DETAIL_OF_HEAD {
        0 => "GET",
        _ => "HEAD",
    };
    let text = |kind| detail.text(kind).map(str::to_owned);
    let kind = kind(cqe, detail, reason);
    let mut error = Error::new(operation, asked.bucket, asked.key, kind)
        .with_endpoint(asked.endpoint)
        .with_reason(reason)
        .with_ids(text(TextKind::RequestId), text(TextKind::HostId))
        .with_address(
            detail
                .text(TextKind::Address)
                .and_then(|address| address.parse().ok()),
        )
        .with_retry_after(duration(detail.retry_after_ns))
        .with_attempt(detail.attempt.into(), detail.attempts.into());
    if detail.flags & DETAIL_STATUS != 0 {
        error = error.with_status(cqe.status);
    }
    if detail.flags & DETAIL_BUDGET != 0 {
        error = error.with_budget_spent();
    }
    if let Some(history) = detail.text(TextKind::History) {
        error = error.with_history(history::heard(history));
    }
    if let Some(phase) = phase(detail.phase) {
        error = error.with_phase(phase);
    }
    match (detail.flags & DETAIL_ERRNO, text(TextKind::Cause)) {
        (0, None) => error,
        (0, Some(cause)) => error.with_source(Cause(cause)),
        _ => error.with_source(io::Error::from_raw_os_error(detail.errno)),
    }
}

fn code_of(kind: &ErrorKind) -> u16 {
    let name = match kind {
        ErrorKind::Config(_) => "config",
        ErrorKind::Credentials(_) => "credentials",
        ErrorKind::Connect(_) => "connect",
        ErrorKind::Tls(_) => "tls",
        ErrorKind::Timeout { .. } => "timeout",
        ErrorKind::Reset(_) => "reset",
        ErrorKind::Truncated { .. } => "truncated",
        ErrorKind::Protocol(_) => "protocol",
        ErrorKind::Status { .. } => "status",
        ErrorKind::Redirect { .. } => "redirect",
        ErrorKind::Modified { .. } => "modified",
        ErrorKind::BufferTooSmall { .. } => "buffer-too-small",
        ErrorKind::RangeNotSatisfiable { .. } => "range-not-satisfiable",
        ErrorKind::Rdma { .. } => "rdma",
        ErrorKind::Cuda(_) => "cuda",
        ErrorKind::Service(_) => "service",
        ErrorKind::Denied(_) => "denied",
        ErrorKind::Checksum(_) => "checksum",
        ErrorKind::NotVerified(_) => "not-verified",
        ErrorKind::Cancelled => "cancelled",
        ErrorKind::Deadline => "deadline",
        _ => "protocol",
    };
    error_code(name).unwrap_or(s3engine_ring::INVALID_REQUEST)
}

fn kind(cqe: &Cqe, detail: &Detail, reason: Reason) -> ErrorKind {
    let text = |kind| detail.text(kind).map(str::to_owned);
    let first = || text(TextKind::First).unwrap_or_default();
    let second = || text(TextKind::Second).unwrap_or_default();
    let (a, b) = (detail.error_a, detail.error_b);
    match error_name(cqe.error).unwrap_or_default() {
        "credentials" => ErrorKind::Credentials(first()),
        "connect" => ErrorKind::Connect(first()),
        "tls" => ErrorKind::Tls(first()),
        "timeout" => ErrorKind::Timeout {
            phase: phase(detail.phase).unwrap_or(Phase::FirstByte),
            after: Duration::from_nanos(a),
        },
        "reset" => ErrorKind::Reset(first()),
        "truncated" => ErrorKind::Truncated {
            received: a,
            expected: b,
        },
        "protocol" => ErrorKind::Protocol(first()),
        "status" => ErrorKind::Status {
            status: cqe.status,
            code: text(TextKind::First),
            message: text(TextKind::Second),
        },
        "redirect" => ErrorKind::Redirect {
            status: cqe.status,
            code: text(TextKind::First),
            region: text(TextKind::Second),
            host: text(TextKind::Third),
        },
        "modified" => ErrorKind::Modified {
            expected: first(),
            found: second(),
        },
        "buffer-too-small" => ErrorKind::BufferTooSmall { needed: a, have: b },
        "range-not-satisfiable" => ErrorKind::RangeNotSatisfiable { size: known(a) },
        "rdma" => ErrorKind::Rdma {
            reason,
            detail: first(),
        },
        "cuda" => ErrorKind::Cuda(first()),
        "service" => ErrorKind::Service(first()),
        "denied" => ErrorKind::Denied(first()),
        "checksum" => match (first().parse(), second().parse()) {
            (Ok(expected), Ok(found)) => ErrorKind::Checksum(Mismatch { expected, found }),
            _ => ErrorKind::Service("a checksum that cannot be read".to_owned()),
        },
        "not-verified" => ErrorKind::NotVerified(first().parse().unwrap_or(Unverified::Nothing)),
        "cancelled" => ErrorKind::Cancelled,
        "deadline" => ErrorKind::Deadline,
        _ => ErrorKind::Config(first()),
    }
}

/// The name of what a checksum has shown.
fn shown(verified: Verified) -> &'static str {
    match verified {
        Verified::Verified(algorithm) => algorithm.as_str(),
        Verified::NotVerified(why) => why.as_str(),
    }
}

/// What a checksum has shown, by its code. A service of a version without checksums says nothing of them.
fn verified(code: u8) -> Verified {
    let name = verified_name(code).unwrap_or(Unverified::Off.as_str());
    match name.parse() {
        Ok(algorithm) => Verified::Verified(algorithm),
        Err(_) => Verified::NotVerified(name.parse().unwrap_or(Unverified::Off)),
    }
}

fn reason(code: u8) -> Option<Reason> {
    reason_name(code)?.parse().ok()
}

/// Phases by their code less one.
const PHASES: [Phase; 6] = [
    Phase::Resolve,
    Phase::Connect,
    Phase::Send,
    Phase::FirstByte,
    Phase::Body,
    Phase::Tls,
];

fn phase_code(phase: Option<Phase>) -> u8 {
    let at = PHASES.iter().position(|known| Some(*known) == phase);
    at.map_or(0, |at| at as u8 + 1)
}

fn phase(code: u8) -> Option<Phase> {
    PHASES.get(usize::from(code).checked_sub(1)?).copied()
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(UNKNOWN - 1)
}

fn maybe_ns(time: Option<Duration>) -> u64 {
    time.map_or(UNKNOWN, ns)
}

fn known(number: u64) -> Option<u64> {
    (number != UNKNOWN).then_some(number)
}

fn duration(ns: u64) -> Option<Duration> {
    known(ns).map(Duration::from_nanos)
}

fn since_1970(time: SystemTime) -> Option<Duration> {
    time.duration_since(SystemTime::UNIX_EPOCH).ok()
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
