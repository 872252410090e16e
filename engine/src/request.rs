//! Requests that need no memory of the pool, HEAD and LIST: run on the engine's threads whatever executor polls.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use s3engine_s3::checksum::Mode;
use s3engine_s3::error::{Error, ErrorKind};
use s3engine_s3::object::ObjectInfo;
use s3engine_s3::options::RequestOptions;
use s3engine_s3::progress::{Progress, Waits};
use s3engine_s3::retry::{Attempts, Failed};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::engine::Core;
use crate::in_flight::{Ending, Share};
use crate::interrupt::Interrupt;
use crate::operation::{after, forked};
use crate::tenant::Tenant;
use crate::under_way::Asked;
use crate::worker::Lane;

type Answer<T> = Pin<Box<dyn Future<Output = Result<T, Error>>>>;

/// Has a thread make a request. Dropping the future cancels it; it takes no longer than the deadline of a GET.
pub(crate) async fn ask<T: Send + 'static>(
    core: &Arc<Core>,
    tenant: &Tenant,
    operation: &'static str,
    (bucket, key): (&str, &str),
    request: impl FnOnce(Rc<Lane>, Arc<Progress>) -> Answer<T> + Send + 'static,
) -> Result<T, Error> {
    let error = Error::new(operation, bucket, key, ErrorKind::Cancelled)
        .with_endpoint(core.upstream.endpoint().to_string());
    if !core.process.is_this() {
        return Err(error.with_kind(forked()));
    }
    let cancel = CancellationToken::new();
    let _cancel_on_drop = cancel.clone().drop_guard();
    let submitted = Instant::now();
    let tracked = tenant.under_way.enter(Asked {
        operation,
        bucket: bucket.into(),
        key: key.into(),
        part: None,
        submitted,
    });
    let until = after(submitted, core.deadline);
    let interrupt = Interrupt::new(cancel, core.stop.clone(), until);
    let (sender, receiver) = oneshot::channel();
    let raised = error.clone();
    core.workers.quick.spawn(Box::new(move |lane| {
        Box::pin(async move {
            let progress = Arc::clone(&tracked.progress);
            let answer = interrupt.or(request(lane, progress)).await;
            let answer =
                answer.unwrap_or_else(|kind| Err(told(raised.with_kind(kind), &tracked.progress)));
            // Nobody may wait any more.
            let _ = sender.send(answer);
        })
    }));
    receiver.await.unwrap_or(Err(error))
}

/// Makes a request as often as the policy for retries allows, when it is the turn of the share that it works for.
pub(crate) async fn retried<T>(
    core: &Core,
    share: &Share,
    progress: &Progress,
    request: impl AsyncFn() -> Result<T, Error>,
) -> Result<T, Error> {
    let mut attempts = Attempts::new(&core.retry, &core.retry_budget);
    let first = Instant::now();
    progress.waits_for(Waits::Turn);
    // Refused only when the engine stops, and that ends this from outside.
    let mut permit = share.admit(0).await;
    loop {
        let began = first.elapsed();
        let answer = request().await;
        let took = first.elapsed().saturating_sub(began);
        if let Some(permit) = &mut permit {
            permit.ended(took, Ending::of(answer.as_ref().map(|_| 0)));
        }
        let error = match answer {
            Ok(answer) => {
                attempts.succeeded();
                progress.succeeded();
                return Ok(answer);
            }
            Err(error) => error,
        };
        let how = Failed {
            began,
            took,
            ..Failed::default()
        };
        let (wait, error) = attempts.failed(error, how, rand::random())?;
        tracing::debug!(%error, ?wait, "trying again");
        metrics::counter!("s3engine_retries_total", "reason" => error.reason().as_str())
            .increment(1);
        progress.backs_off(wait, error);
        if let Some(permit) = &mut permit {
            permit.back_off(wait).await;
        }
    }
}

/// The error of a deadline or cancel, which does not say what was waited for, with what the last attempt failed with.
pub(crate) fn told(error: Error, progress: &Progress) -> Error {
    let Some(last) = progress.last_error() else {
        return error;
    };
    let [request_id, host_id] = [last.request_id(), last.host_id()].map(|id| id.map(str::to_owned));
    error
        .with_attempt(last.attempt(), last.attempts())
        .with_ids(request_id, host_id)
        .with_history(last.history().clone())
        .with_source(last.kind().clone())
}

/// What the server says about an object.
pub(crate) async fn head(
    lane: &Lane,
    share: &Share,
    progress: &Arc<Progress>,
    (bucket, key): (&str, &str),
    checksum: Mode,
    options: &RequestOptions,
) -> Result<ObjectInfo, Error> {
    let client = lane.client.watched(Arc::clone(progress));
    let head = retried(&lane.core, share, progress, async || {
        client.head(bucket, key, checksum, options).await
    });
    Ok(head.await?.info)
}
