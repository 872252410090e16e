//! An answer whose head has arrived: its body goes into a window, or becomes an error.

use std::error::Error as StdError;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use http::header::{LOCATION, RETRY_AFTER};
use http::response::Parts;
use http::{HeaderMap, HeaderName, Method, StatusCode, Uri};
use hyper::body::{Body as _, Incoming};
use s3engine_pool::{Filling, Window, WriteError};
use tokio::time::{Sleep, sleep_until, timeout};

use super::answer::{Expected, GetPart, check_head, content_length};
use super::client::{Client, operation};
use super::connection::Connection;
use super::error_body::{ErrorBody, LONGEST_ERROR_BODY};
use crate::error::{Error, ErrorKind, Phase};
use crate::object::{ObjectInfo, text};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-amz-request-id");
const HOST_ID: HeaderName = HeaderName::from_static("x-amz-id-2");
const BUCKET_REGION: HeaderName = HeaderName::from_static("x-amz-bucket-region");

/// An answer with its body still to come.
///
/// Its connection serves the next request only after the body ended cleanly; dropping the answer
/// before that closes the connection.
pub struct Response {
    /// When its head had arrived.
    pub first_byte: Instant,
    head: Parts,
    body: Incoming,
    connection: Connection,
    client: Client,
    method: Method,
    bucket: String,
    key: String,
}

/// What one GET delivered.
#[derive(Clone, Debug)]
pub struct Received {
    /// The bytes now in the window, from its beginning.
    pub bytes: u64,
    /// Whether they went through staging on their way to a device.
    pub staged: bool,
    /// What the answer says about the object.
    pub info: ObjectInfo,
    /// The HTTP status.
    pub status: u16,
    /// The server's id of the request.
    pub request_id: Option<String>,
    /// When the head of the answer had arrived.
    pub first_byte: Instant,
}

/// A body that has been received.
#[derive(Clone, Copy, Debug, Default)]
pub struct Body {
    /// The bytes now in the window, from its beginning.
    pub bytes: u64,
    /// Those of them that went through staging on their way to a device.
    pub staged: u64,
}

impl Response {
    pub(super) fn new(
        answer: http::Response<Incoming>,
        connection: Connection,
        client: Client,
        (method, bucket, key): (&Method, &str, &str),
    ) -> Response {
        let (head, body) = answer.into_parts();
        Response {
            first_byte: Instant::now(),
            head,
            body,
            connection,
            client,
            method: method.clone(),
            bucket: bucket.to_owned(),
            key: key.to_owned(),
        }
    }

    /// The HTTP status.
    pub fn status(&self) -> StatusCode {
        self.head.status
    }

    /// The headers.
    pub fn headers(&self) -> &HeaderMap {
        &self.head.headers
    }

    /// The announced length of the body.
    pub fn content_length(&self) -> Option<u64> {
        content_length(&self.head.headers).ok().flatten()
    }

    /// The server's id of the request.
    pub fn request_id(&self) -> Option<&str> {
        text(&self.head.headers, &REQUEST_ID)
    }

    /// What the answer says about the object.
    pub fn info(&self) -> ObjectInfo {
        ObjectInfo::from_headers(self.head.status, &self.head.headers)
    }

    /// Judges the head as the answer to `part` and receives the body into the window.
    pub async fn receive_part(
        self,
        part: &GetPart<'_>,
        window: &mut Window,
    ) -> Result<Received, Error> {
        let mut received = Received {
            bytes: 0,
            staged: false,
            info: self.info(),
            status: self.head.status.as_u16(),
            request_id: self.request_id().map(str::to_owned),
            first_byte: self.first_byte,
        };
        match check_head(self.head.status, &self.head.headers, part, window.len()) {
            Ok(expected) => {
                let Body { bytes, staged } = self.receive(window, expected).await?;
                (received.bytes, received.staged) = (bytes, staged > 0);
            }
            Err(ErrorKind::Status { .. } | ErrorKind::RangeNotSatisfiable { .. }) => {
                let error = self.into_error().await;
                // Some servers give the size of the object only in the body of the 416.
                match error.kind() {
                    ErrorKind::RangeNotSatisfiable { size } if part.is_empty_object(*size) => {
                        received.info.size = *size;
                    }
                    _ => return Err(error),
                }
            }
            Err(kind) => return Err(self.error(kind).with_phase(Phase::FirstByte)),
        }
        Ok(received)
    }

    /// Copies the body to the beginning of the window: what is expected, or an error.
    pub async fn receive(mut self, window: &mut Window, expected: Expected) -> Result<Body, Error> {
        let (most, exact) = match expected {
            Expected::EmptyObject => {
                self.finish().await;
                return Ok(Body::default());
            }
            Expected::Exactly(bytes) => (bytes, true),
            Expected::UpTo(bytes) => (bytes, false),
        };
        match self.copy_body(window, most, exact).await {
            Ok(received) => {
                self.client.keep(self.connection);
                Ok(received)
            }
            Err(failed) => Err(self.body_error(failed)),
        }
    }

    async fn copy_body(
        &mut self,
        window: &mut Window,
        most: u64,
        exact: bool,
    ) -> Result<Body, BodyError> {
        let have = window.len();
        if most > have {
            return Err((ErrorKind::BufferTooSmall { needed: most, have }, None));
        }
        let mut filling = window.filling();
        match self.fill(&mut filling, (most, have), exact).await {
            Ok(bytes) => match filling.finish().await {
                Ok(staged) => Ok(Body { bytes, staged }),
                Err(error) => Err((not_written(error, bytes, have), None)),
            },
            Err(error) => {
                // What was sent before may not arrive after what a next attempt brings.
                filling.stop().await;
                Err(error)
            }
        }
    }

    async fn fill(
        &mut self,
        filling: &mut Filling<'_>,
        (most, have): (u64, u64),
        exact: bool,
    ) -> Result<u64, BodyError> {
        let mut stall = Stall::new(self.client.timeouts().stall);
        let mut received = 0_u64;
        while let Some(data) = next_data(&mut self.body, &mut stall, || filling.pause())
            .await
            .map_err(|failure| failure.into_kind(received, exact.then_some(most)))?
        {
            let end = received.saturating_add(data.len() as u64);
            if end > most {
                let kind = if exact {
                    ErrorKind::Protocol(format!("body longer than the {most} bytes announced"))
                } else {
                    ErrorKind::BufferTooSmall { needed: end, have }
                };
                return Err((kind, None));
            }
            let written = filling.write(received, &data).await;
            written.map_err(|error| (not_written(error, end, have), None))?;
            received = end;
        }
        if exact && received < most {
            return Err((
                ErrorKind::Truncated {
                    received,
                    expected: most,
                },
                None,
            ));
        }
        Ok(received)
    }

    /// Receives a body of at most `most` bytes, whole, and reads it with `parse`. Only a 200 is a success.
    pub(super) async fn read<T>(
        mut self,
        most: u64,
        parse: impl FnOnce(&[u8]) -> Result<T, ErrorKind>,
    ) -> Result<T, Error> {
        if self.head.status != StatusCode::OK {
            return Err(self.into_error().await);
        }
        match self.whole_body(most).await {
            Ok(body) => {
                let parsed = parse(&body).map_err(|kind| self.error(kind).with_phase(Phase::Body));
                self.client.keep(self.connection);
                parsed
            }
            Err(failed) => Err(self.body_error(failed)),
        }
    }

    async fn whole_body(&mut self, most: u64) -> Result<Vec<u8>, BodyError> {
        let announced = content_length(&self.head.headers).map_err(|kind| (kind, None))?;
        let mut stall = Stall::new(self.client.timeouts().stall);
        let mut body = Vec::new();
        loop {
            let received = body.len() as u64;
            let known = announced.unwrap_or_default().max(received);
            if known > most {
                let text = format!("a body of {known} bytes or more, where {most} are the most");
                return Err((ErrorKind::Protocol(text), None));
            }
            let next = next_data(&mut self.body, &mut stall, || ()).await;
            match next.map_err(|failure| failure.into_kind(received, announced))? {
                Some(data) => body.extend_from_slice(&data),
                None => return Ok(body),
            }
        }
    }

    fn body_error(&self, (kind, source): BodyError) -> Error {
        let error = self.error(kind).with_phase(Phase::Body);
        match source {
            Some(source) => error.with_source(source),
            None => error,
        }
    }

    /// Turns an answer that is no success into its error, with what the body says.
    pub async fn into_error(mut self) -> Error {
        let body = self.short_body().await;
        // A body that breaks off still leaves the status, which says more than its breaking.
        let error = self.error_of(ErrorBody::parse(body.as_deref().unwrap_or_default()));
        if body.is_some() {
            self.client.keep(self.connection);
        }
        error
    }

    /// Reads and drops what little body there may be, so that the connection can be used again. Returns its
    /// length; `None` where it is longer than that, breaks off or takes too long.
    pub async fn finish(mut self) -> Option<u64> {
        let body = self.short_body().await?;
        self.client.keep(self.connection);
        Some(body.len() as u64)
    }

    /// A short body, whole; `None` where it is longer, breaks off or takes too long.
    async fn short_body(&mut self) -> Option<Vec<u8>> {
        let limit = self.client.timeouts().stall;
        let mut bytes = Vec::new();
        let read = async {
            let mut stall = Stall::new(limit);
            while let Some(data) = next_data(&mut self.body, &mut stall, || ()).await.ok()? {
                if bytes.len() + data.len() > LONGEST_ERROR_BODY {
                    return None;
                }
                bytes.extend_from_slice(&data);
            }
            Some(())
        };
        // The stall alone would let a server drip for hours.
        timeout(limit, read).await.ok().flatten()?;
        Some(bytes)
    }

    fn error_of(&self, body: ErrorBody) -> Error {
        let headers = &self.head.headers;
        let status = self.head.status.as_u16();
        let kind = if matches!(status, 301 | 302 | 303 | 307 | 308) {
            let location = text(headers, &LOCATION).and_then(|to| to.parse::<Uri>().ok());
            ErrorKind::Redirect {
                status,
                code: body.code,
                region: text(headers, &BUCKET_REGION)
                    .map(str::to_owned)
                    .or(body.region),
                // No more than the host: the rest may carry a signature.
                host: location
                    .and_then(|to| Some(to.host()?.to_owned()))
                    .or(body.endpoint),
            }
        } else if status == 416 {
            ErrorKind::RangeNotSatisfiable {
                size: self.info().size.or(body.actual_object_size),
            }
        } else {
            ErrorKind::Status {
                status,
                code: body.code,
                message: body.message,
            }
        };
        let error = self.error(kind).with_phase(Phase::FirstByte);
        if error.request_id().is_some() {
            return error;
        }
        error.with_ids(body.request_id, body.host_id)
    }

    /// An error with all that this answer knows.
    pub(crate) fn error(&self, kind: ErrorKind) -> Error {
        let headers = &self.head.headers;
        let own = |name| text(headers, name).map(str::to_owned);
        Error::new(operation(&self.method), &*self.bucket, &*self.key, kind)
            .with_endpoint(self.client.endpoint().to_string())
            .with_address(Some(self.connection.address))
            .with_status(self.head.status.as_u16())
            .with_ids(own(&REQUEST_ID), own(&HOST_ID))
            .with_retry_after(
                text(headers, &RETRY_AFTER).and_then(|v| retry_after(v, SystemTime::now())),
            )
    }
}

/// `Retry-After`: seconds, or a date.
fn retry_after(value: &str, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    if let Ok(seconds) = value.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = httpdate::parse_http_date(value).ok()?;
    Some(date.duration_since(now).unwrap_or_default())
}

type BodyError = (ErrorKind, Option<hyper::Error>);

/// Why the next piece of a body did not come.
enum Failure {
    Stalled(Duration),
    Broken(hyper::Error),
}

impl Failure {
    fn into_kind(self, received: u64, expected: Option<u64>) -> BodyError {
        match self {
            Failure::Stalled(after) => (
                ErrorKind::Timeout {
                    phase: Phase::Body,
                    after,
                },
                None,
            ),
            Failure::Broken(error) => {
                let io = io_kind(&error);
                let kind = match (io, expected) {
                    (Some(io::ErrorKind::UnexpectedEof), Some(expected)) => {
                        ErrorKind::Truncated { received, expected }
                    }
                    (Some(io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput), _) => {
                        ErrorKind::Protocol(innermost(&error))
                    }
                    _ => ErrorKind::Reset(format!("{} after {received} bytes", innermost(&error))),
                };
                (kind, Some(error))
            }
        }
    }
}

/// The kind of the I/O error at the bottom of an HTTP error.
pub(super) fn io_kind(error: &hyper::Error) -> Option<io::ErrorKind> {
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(io) = error.downcast_ref::<io::Error>() {
            return Some(io.kind());
        }
        cause = error.source();
    }
    None
}

/// The text of the error at the bottom, which names the cause without its wrappings.
pub(super) fn innermost(error: &hyper::Error) -> String {
    let mut error: &dyn StdError = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

/// What a write to a window that does not succeed says about the answer.
fn not_written(error: WriteError, needed: u64, have: u64) -> ErrorKind {
    match error {
        WriteError::Cuda(error) => ErrorKind::Cuda(error.to_string()),
        WriteError::OutOfBounds(_) | WriteError::Armed => {
            ErrorKind::BufferTooSmall { needed, have }
        }
    }
}

/// The next bytes of a body; `None` at its clean end. Calls `pause` when they are not there yet.
async fn next_data(
    body: &mut Incoming,
    stall: &mut Stall,
    mut pause: impl FnMut(),
) -> Result<Option<Bytes>, Failure> {
    stall.since = None;
    poll_fn(|cx| {
        loop {
            match Pin::new(&mut *body).poll_frame(cx) {
                Poll::Ready(None) => return Poll::Ready(Ok(None)),
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(Failure::Broken(error))),
                Poll::Ready(Some(Ok(frame))) => {
                    // Trailers say nothing that is needed.
                    if let Ok(data) = frame.into_data() {
                        return Poll::Ready(Ok(Some(data)));
                    }
                }
                Poll::Pending => {
                    pause();
                    return stall.poll(cx).map(|after| Err(Failure::Stalled(after)));
                }
            }
        }
    })
    .await
}

/// Watches the pauses of one body with a single timer, which is set only when it runs out.
struct Stall {
    limit: Duration,
    since: Option<tokio::time::Instant>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Stall {
    fn new(limit: Duration) -> Stall {
        Stall {
            limit,
            since: None,
            timer: None,
        }
    }

    /// Ready once nothing has come for the limit.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Duration> {
        let since = *self.since.get_or_insert_with(tokio::time::Instant::now);
        let timer = self
            .timer
            .get_or_insert_with(|| Box::pin(sleep_until(since + self.limit)));
        // The timer may still stand for an earlier pause.
        while timer.as_mut().poll(cx).is_ready() {
            if since.elapsed() >= self.limit {
                return Poll::Ready(self.limit);
            }
            timer.as_mut().reset(since + self.limit);
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(100);
        let at = |value| retry_after(value, now);
        assert_eq!(at("7"), Some(Duration::from_secs(7)));
        assert_eq!(
            at("Thu, 01 Jan 1970 00:02:00 GMT"),
            Some(Duration::from_secs(20))
        );
        assert_eq!(at("Thu, 01 Jan 1970 00:00:00 GMT"), Some(Duration::ZERO));
        assert_eq!(at("soon"), None);
    }
}
