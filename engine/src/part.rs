//! One part of a GET: attempts by its first way, then by HTTP where that is allowed.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use s3engine_pool::Window;
use s3engine_s3::Path;
use s3engine_s3::checksum::Mode;
use s3engine_s3::error::{Error, ErrorKind};
use s3engine_s3::http::GetPart;
use s3engine_s3::object::{ETag, Pin};
use s3engine_s3::options::{NO_OPTIONS, RequestOptions};
use s3engine_s3::progress::Progress;
use s3engine_s3::range::ByteRange;
use s3engine_s3::retry::{self, Failed};
use s3engine_s3::transport::{HttpTransport, Outcome, Transport};

use crate::completion::Fallback;
use crate::in_flight::{Ending, Permit};
use crate::interrupt::Interrupt;
use crate::request;
use crate::worker::Lane;

/// How long a part that was cancelled waits for copies that are under way, before its slot goes to quarantine.
const COPIES: Duration = Duration::from_millis(100);

/// How a part may travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// By the fabric, and by nothing else.
    RdmaOnly,
    /// By the fabric; in the answer's body where the server prefers that.
    Rdma,
    /// The same; and by HTTP where neither delivers.
    RdmaThenHttp,
    /// By HTTP.
    Http,
}

impl Way {
    pub(crate) fn is_rdma(self) -> bool {
        self != Way::Http
    }
}

/// What to fetch.
#[derive(Clone)]
pub(crate) struct Wanted {
    pub(crate) bucket: Arc<str>,
    pub(crate) key: Arc<str>,
    pub(crate) range: Option<ByteRange>,
    pub(crate) pin: Option<Arc<Pin>>,
    pub(crate) if_match: Option<ETag>,
    pub(crate) checksum: Mode,
    pub(crate) options: Option<Arc<RequestOptions>>,
}

/// What became of a part.
pub(crate) struct PartEnd {
    pub(crate) outcome: Outcome,
    /// Why its bytes, or its last attempt, went by HTTP although RDMA was wanted.
    pub(crate) fallback: Option<Fallback>,
}

impl PartEnd {
    /// Takes off the charge what an answer shows not to have been moved. Without an answer nobody knows.
    pub(crate) fn refund(&self, permit: &mut Permit) {
        let error = self.outcome.error.as_ref();
        if self.outcome.path != Path::None || error.is_some_and(|error| error.status().is_some()) {
            permit.refund(self.outcome.bytes);
        }
    }
}

impl Wanted {
    fn request(&self) -> GetPart<'_> {
        GetPart {
            bucket: &self.bucket,
            key: &self.key,
            range: self.range,
            pin: self.pin.as_deref(),
            if_match: self.if_match.as_ref(),
            checksum: self.checksum,
            options: self.options.as_deref().unwrap_or(&NO_OPTIONS),
        }
    }

    pub(crate) fn error(&self, kind: ErrorKind) -> Error {
        Error::new("GET", &*self.bucket, &*self.key, kind)
    }
}

/// Fetches a part into its window. A window that a remote may still write to goes to quarantine with its
/// slot when this returns.
///
/// Between two attempts the permit is given up.
pub(crate) async fn run(
    lane: &Lane,
    wanted: &Wanted,
    mut window: Window,
    way: Way,
    permit: &mut Permit,
    interrupt: &Interrupt,
    progress: &Arc<Progress>,
) -> PartEnd {
    let attempts = Attempts {
        lane,
        wanted,
        way,
        progress,
    };
    let result = {
        let attempts = pin!(attempts.run(&mut window, permit));
        interrupt.or(attempts).await
    };
    match result {
        Ok(end) => end,
        Err(kind) => {
            // Copies to a device end soon, and then nothing is in doubt.
            let _ = tokio::time::timeout(COPIES, window.settled()).await;
            let error = wanted.error(kind);
            let error = error.with_endpoint(lane.core.upstream.endpoint().to_string());
            let error = request::told(error, progress);
            PartEnd {
                outcome: Outcome::failed(error),
                fallback: None,
            }
        }
    }
}

struct Attempts<'a> {
    progress: &'a Arc<Progress>,
    lane: &'a Lane,
    wanted: &'a Wanted,
    way: Way,
}

impl Attempts<'_> {
    async fn run(&self, window: &mut Window, permit: &mut Permit) -> PartEnd {
        let mut fallback = None;
        if let (true, Some((lenient, strict))) = (self.way.is_rdma(), &self.lane.rdma) {
            let transport = if self.way == Way::RdmaOnly {
                strict
            } else {
                lenient
            };
            let transport = transport.watched(Arc::clone(self.progress));
            // Apart: GETs by HTTP need no room for it.
            let outcome = Box::pin(self.attempt(&transport, window, permit)).await;
            match (outcome.path, &outcome.error) {
                // The object came in the body of the answer.
                (Path::Http, Some(error)) => fallback = Some(Fallback::of(error)),
                (Path::None, Some(error)) if self.may_go_by_http(error, window) => {
                    fallback = Some(Fallback::of(error));
                    let outcome = self.attempt(&self.http(), window, permit).await;
                    return PartEnd { outcome, fallback };
                }
                _ => {}
            }
            return PartEnd { outcome, fallback };
        }
        PartEnd {
            outcome: self.attempt(&self.http(), window, permit).await,
            fallback,
        }
    }

    fn http(&self) -> HttpTransport {
        let client = self.lane.client.watched(Arc::clone(self.progress));
        HttpTransport::new(client)
    }

    /// Attempts by one transport, as many as the policy for retries allows.
    async fn attempt(
        &self,
        transport: &impl Transport,
        window: &mut Window,
        permit: &mut Permit,
    ) -> Outcome {
        let core = &self.lane.core;
        let mut attempts = retry::Attempts::new(&core.retry, &core.retry_budget)
            .rdma_only(self.way == Way::RdmaOnly);
        let first = Instant::now();
        let mut most = 0;
        loop {
            let began = first.elapsed();
            let mut outcome = transport.get(&self.wanted.request(), window).await;
            let took = first.elapsed().saturating_sub(began);
            permit.ended(took, ending(&outcome));
            // A success that fell back keeps its error: that is the reason of the fallback.
            if outcome.path != Path::None {
                attempts.succeeded();
                self.progress.succeeded();
                return outcome;
            }
            let Some(error) = outcome.error.take() else {
                return outcome;
            };
            let how = Failed {
                began,
                took,
                gained: outcome.kept.saturating_sub(most),
                in_doubt: window.is_armed(),
            };
            most = most.max(outcome.kept);
            let (wait, error) = match attempts.failed(error, how, rand::random()) {
                Ok(again) => again,
                Err(error) => {
                    outcome.error = Some(error);
                    return outcome;
                }
            };
            tracing::debug!(%error, ?wait, "trying again");
            metrics::counter!("s3engine_retries_total", "reason" => error.reason().as_str())
                .increment(1);
            self.progress.backs_off(wait, error);
            if !permit.back_off(wait).await {
                return Outcome::failed(self.wanted.error(ErrorKind::Cancelled));
            }
        }
    }

    /// Whether HTTP may deliver what RDMA did not. Errors of the object itself would be the same there.
    fn may_go_by_http(&self, error: &Error, window: &Window) -> bool {
        self.way == Way::RdmaThenHttp && error.reason().is_of_rdma() && !window.is_armed()
    }
}

/// What an attempt tells of the endpoint.
fn ending(outcome: &Outcome) -> Option<Ending> {
    match (&outcome.error, outcome.path) {
        // A success that fell back keeps its error.
        (Some(error), Path::None) => Ending::of(Err(error)),
        _ => Ending::of(Ok(outcome.bytes)),
    }
}

impl Fallback {
    pub(crate) fn of(error: &Error) -> Self {
        let detail = match error.kind() {
            ErrorKind::Rdma { detail, .. } => detail.clone(),
            kind => kind.to_string(),
        };
        Self {
            reason: error.reason(),
            detail,
        }
    }
}
