//! From a request to its answer: routes, S3's checks in S3's order, and the faults.

use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use crate::answer::{Answer, Span};
use crate::auth::Authority;
use crate::checksum::Checksums;
use crate::counters::{Counters, Tally, add};
use crate::customer_key::CustomerKey;
use crate::faults::{Action, Faults, Kind};
use crate::listing::{self, ListQuery};
use crate::modelled::Modelled;
use crate::pace::Pace;
use crate::range::{self, Ranged};
use crate::rdma::Rdma;
use crate::request::Request;
use crate::s3_error::S3Error;
use crate::store::{Object, Store};
use crate::tls::Tls;
use crate::uri;

/// Where Prometheus scrapes.
pub(crate) const METRICS: &str = "/minio/metrics/v3/api/rdma";
const TOKEN: &str = "x-amz-rdma-token";
const CHECKSUM_MODE: &str = "x-amz-checksum-mode";
const PAYER: &str = "x-amz-request-payer";

/// All that connections share.
pub(crate) struct Service {
    pub store: Store,
    pub authority: Authority,
    pub faults: Faults,
    pub tally: Tally,
    /// Absent for a server without the feature.
    pub rdma: Option<Rdma>,
    /// What it behaves like, where it is not to be as fast as it can.
    pub model: Option<Modelled>,
    /// Whether buckets keep old versions.
    pub versioned: bool,
    /// Whether only those may read who say that they pay.
    pub requester_pays: bool,
    /// What objects are encrypted with.
    pub customer_key: Option<CustomerKey>,
    /// What objects were stored with.
    pub checksums: Option<Checksums>,
    /// Absent for plain connections.
    pub tls: Option<Tls>,
    /// How many seconds the server's clock is ahead of the host's.
    pub clock: AtomicI64,
    /// `host:port`, as metrics name this server.
    pub server: String,
    /// Makes request ids: they differ between requests and between servers.
    pub ids: AtomicU64,
    /// Connections that are open.
    pub connections: AtomicUsize,
}

impl Service {
    /// Answers one request.
    pub async fn answer(&self, request: &Request) -> Answer {
        add(&self.tally.requests, 1);
        let id = format!(
            "{:016X}",
            self.ids.fetch_add(0x9e37_79b9_7f4a_7c15, Relaxed)
        );
        let mut answer = match self.route(request, &id).await {
            Ok(answer) => answer,
            Err(error) => {
                tracing::debug!(%id, code = %error.code, message = %error.message, "refused");
                Answer::error(&error, &request.path, &id)
            }
        };
        if request.method == "HEAD" {
            answer = answer.without_body();
        }
        answer.close |= !request.keep_alive || request.has_body;
        tracing::debug!(%id, method = %request.method, path = %request.path, status = answer.status);
        let host_id = format!("s3sim-{id}");
        answer.date = self.now();
        answer
            .with("x-amz-request-id", id)
            .with("x-amz-id-2", host_id)
            .with("Server", "s3sim")
    }

    /// What was counted so far.
    pub fn counters(&self) -> Counters {
        let rdma_clients = self.rdma.as_ref().map_or(0, Rdma::clients);
        Counters {
            rdma_clients,
            ..self.tally.read()
        }
    }

    /// What time it is for the server.
    fn now(&self) -> SystemTime {
        let offset = self.clock.load(Relaxed);
        let by = Duration::from_secs(offset.unsigned_abs());
        let now = SystemTime::now();
        let shifted = match offset < 0 {
            true => now.checked_sub(by),
            false => now.checked_add(by),
        };
        shifted.unwrap_or(now)
    }

    async fn route(&self, request: &Request, id: &str) -> Result<Answer, S3Error> {
        if !matches!(request.method.as_str(), "GET" | "HEAD") {
            let text = "The specified method is not allowed against this resource.";
            return Err(S3Error::new(405, "MethodNotAllowed", text).with("Allow", "GET, HEAD"));
        }
        if request.path == METRICS {
            let mut text = self.counters().to_prometheus(&self.server);
            if let Some(model) = &self.model {
                text.push_str(&model.to_prometheus());
            }
            return Ok(Answer::text(200, "text/plain; version=0.0.4", text));
        }
        self.authority.verify(request, self.now())?;
        if self.requester_pays && request.header(PAYER) != Some("requester") {
            return Err(S3Error::new(403, "AccessDenied", "Access Denied"));
        }
        let not_text = || S3Error::new(400, "InvalidURI", "the request target is not UTF-8");
        let path = uri::decode(&request.path).ok_or_else(not_text)?;
        let pairs = uri::query_pairs(&request.query).ok_or_else(not_text)?;
        let host = request.header("host").unwrap_or_default();
        match uri::bucket_and_key(host, &path, self.store.buckets()) {
            ("", _) => Err(not_implemented("only objects and ListObjectsV2 are served")),
            (bucket, "") => self.bucket(request, bucket, &pairs, id),
            (bucket, key) => self.object(request, (bucket, key), &pairs, id).await,
        }
    }

    /// HEAD of a bucket, and listings.
    fn bucket(
        &self,
        request: &Request,
        bucket: &str,
        pairs: &[(String, String)],
        id: &str,
    ) -> Result<Answer, S3Error> {
        if request.method == "HEAD" {
            self.store.check_bucket(bucket)?;
            let region = self.authority.region();
            return Ok(Answer::empty(200).with("x-amz-bucket-region", region));
        }
        if !pairs
            .iter()
            .any(|(name, value)| name == "list-type" && value == "2")
        {
            return Err(not_implemented("of a bucket only ListObjectsV2 is served"));
        }
        let fault = self.pick(Kind::List, "");
        let answer = match &fault {
            Some(fault) if let Some(answer) = instead(fault, request) => answer,
            _ => self.list(bucket, pairs),
        };
        Ok(shaped(answer, fault.as_ref(), request, id))
    }

    fn list(&self, bucket: &str, pairs: &[(String, String)]) -> Result<Answer, S3Error> {
        let query = ListQuery::from_pairs(pairs)?;
        let entries = self.store.list(bucket)?;
        let xml = listing::to_xml(bucket, &query, &listing::page(&entries, &query));
        Ok(Answer::text(200, "application/xml", xml))
    }

    /// GET and HEAD of an object.
    async fn object(
        &self,
        request: &Request,
        name: (&str, &str),
        pairs: &[(String, String)],
        id: &str,
    ) -> Result<Answer, S3Error> {
        let token = request.header(TOKEN).filter(|_| self.rdma.is_some());
        let kind = match (request.method.as_str(), token) {
            ("HEAD", _) => Kind::Head,
            (_, Some(_)) => Kind::Rdma,
            (_, None) => Kind::Http,
        };
        let fault = self.pick(kind, name.1);
        let pace = match &self.model {
            Some(model) => model.begin().await,
            None => Pace::default(),
        };
        let answer = match &fault {
            Some(fault) if let Some(answer) = instead(fault, request) => answer,
            fault => {
                let how = (kind, fault.as_ref(), pace);
                self.read(request, name, pairs, how).await
            }
        };
        Ok(shaped(answer, fault.as_ref(), request, id))
    }

    async fn read(
        &self,
        request: &Request,
        (bucket, key): (&str, &str),
        pairs: &[(String, String)],
        (kind, fault, mut pace): (Kind, Option<&Action>, Pace),
    ) -> Result<Answer, S3Error> {
        if matches!(
            fault,
            Some(Action::Swap | Action::IgnoreIfMatch { swap: true })
        ) {
            self.store.swap(bucket, key);
        }
        let object = self.store.object(bucket, key, self.version(pairs)?)?;
        if let Some(key) = &self.customer_key {
            key.check(request)?;
        }
        if !matches!(fault, Some(Action::IgnoreIfMatch { .. })) {
            check_precondition(request, &object)?;
        }
        let range = request.header("range");
        let range = range.filter(|_| fault != Some(&Action::IgnoreRange));
        let mut span = span(range, &object)?;
        if let Some(Action::WrongRange { shift }) = fault {
            span.first = span.first.saturating_add(*shift);
            span.ranged = true;
        }
        let mut answer = match (kind, &self.rdma, request.header(TOKEN)) {
            (Kind::Rdma, Some(rdma), Some(token)) => {
                let model = (self.model.as_ref(), &mut pace);
                rdma.answer(&self.tally, model, token, &object, span, fault)
                    .await?
            }
            _ => Answer::object(&object, span),
        };
        answer.pace = pace;
        if let (Some(checksums), Some("ENABLED")) = (&self.checksums, request.header(CHECKSUM_MODE))
        {
            let wrong = fault == Some(&Action::WrongChecksum);
            let told = checksums.tell(answer, (bucket, key), &object, wrong).await;
            answer = told.map_err(|error| S3Error::new(500, "InternalError", error.to_string()))?;
        }
        if let Some(key) = &self.customer_key {
            answer = key.tell(answer);
        }
        if self.requester_pays {
            answer = answer.with("x-amz-request-charged", "requester");
        }
        Ok(match self.versioned {
            true => answer.with("x-amz-version-id", object.version),
            false => answer,
        })
    }

    /// The version that a query names.
    fn version(&self, pairs: &[(String, String)]) -> Result<Option<u64>, S3Error> {
        let named = pairs.iter().find(|(name, _)| name == "versionId");
        let Some((_, text)) = named.filter(|_| self.versioned) else {
            return Ok(None);
        };
        let invalid = |_| S3Error::new(400, "InvalidArgument", "Invalid version id specified");
        text.parse().map(Some).map_err(invalid)
    }

    fn pick(&self, kind: Kind, key: &str) -> Option<Action> {
        let fault = self.faults.pick(kind, key)?;
        add(&self.tally.faults, 1);
        tracing::info!(?kind, key, ?fault, "fault");
        Some(fault)
    }
}

/// The answer of a fault that needs no object.
fn instead(fault: &Action, request: &Request) -> Option<Result<Answer, S3Error>> {
    let error = match fault {
        Action::Redirect {
            code,
            location,
            region,
        } => redirect(*code, location.as_deref(), region.as_deref(), request),
        Action::NeverAnswer => return Some(Ok(Answer::empty(200))),
        Action::Status {
            code,
            s3_code: None,
            headers,
        } => {
            let mut answer = Answer::empty(*code);
            answer
                .headers
                .extend(headers.iter().map(|(n, v)| (n.clone().into(), v.clone())));
            return Some(Ok(answer));
        }
        Action::Status {
            code,
            s3_code: Some(s3_code),
            headers,
        } => {
            let mut error = S3Error::new(*code, s3_code.clone(), "by a fault rule");
            error
                .headers
                .extend(headers.iter().map(|(n, v)| (n.clone().into(), v.clone())));
            error
        }
        Action::SlowDown { retry_after } => {
            let error = S3Error::new(503, "SlowDown", "Please reduce your request rate.");
            match retry_after {
                Some(seconds) => error.with("Retry-After", seconds),
                None => error,
            }
        }
        _ => return None,
    };
    Some(Err(error))
}

/// Another place, as S3 tells it.
fn redirect(code: u16, location: Option<&str>, region: Option<&str>, request: &Request) -> S3Error {
    let s3_code = match code {
        400 => "AuthorizationHeaderMalformed",
        301 | 308 => "PermanentRedirect",
        _ => "TemporaryRedirect",
    };
    let mut error = S3Error::new(code, s3_code, "by a fault rule");
    if let Some(location) = location {
        let (_, host) = location.split_once("//").unwrap_or(("", location));
        let mark = if request.query.is_empty() { "" } else { "?" };
        error = error.telling("Endpoint", host);
        error = match host.contains('/') {
            true => error.with("Location", location),
            false => {
                let target = format!("{location}{}{mark}{}", request.path, request.query);
                error.with("Location", target)
            }
        };
    }
    match region {
        Some(region) => error
            .with("x-amz-bucket-region", region)
            .telling("Region", region),
        None => error,
    }
}

/// Has the fault shape the delivery, of an error too.
fn shaped(
    answer: Result<Answer, S3Error>,
    fault: Option<&Action>,
    request: &Request,
    id: &str,
) -> Answer {
    let answer = answer.unwrap_or_else(|error| Answer::error(&error, &request.path, id));
    match fault {
        Some(fault) => answer.misdeliver(fault),
        None => answer,
    }
}

/// `If-Match`: one tag, several, or `*`.
fn check_precondition(request: &Request, object: &Object) -> Result<(), S3Error> {
    let Some(wanted) = request.header("if-match") else {
        return Ok(());
    };
    let bare = object.etag.trim_matches('"');
    let matches = |tag: &str| matches!(tag, "*") || tag.trim_matches('"') == bare;
    if wanted.split(',').any(|tag| matches(tag.trim())) {
        return Ok(());
    }
    let text = "At least one of the pre-conditions you specified did not hold";
    Err(S3Error::new(412, "PreconditionFailed", text))
}

fn span(range: Option<&str>, object: &Object) -> Result<Span, S3Error> {
    match range::parse(range, object.size) {
        Ranged::Whole => Ok(Span {
            first: 0,
            len: object.size,
            ranged: false,
        }),
        Ranged::Part { first, len } => Ok(Span {
            first,
            len,
            ranged: true,
        }),
        Ranged::Unsatisfiable => {
            let error = S3Error::new(
                416,
                "InvalidRange",
                "The requested range is not satisfiable",
            );
            Err(error.with("Content-Range", format!("bytes */{}", object.size)))
        }
    }
}

fn not_implemented(text: &'static str) -> S3Error {
    S3Error::new(501, "NotImplemented", text)
}
