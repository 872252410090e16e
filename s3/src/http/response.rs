//! An answer whose head has arrived: its body goes into a window, or becomes an error.

use std::io;
use std::time::{Duration, Instant, SystemTime};

use http::header::{LOCATION, RETRY_AFTER};
use http::{HeaderMap, HeaderName, Method, StatusCode, Uri};
use s3engine_pool::{Filling, Window, WriteError};
use tokio::time::timeout;

use super::answer::{Expected, GetPart, check_head, content_length};
use super::client::{Client, operation};
use super::dial;
use super::error_body::{ErrorBody, LONGEST_ERROR_BODY};
use super::head::Head;
use super::incoming::{Failure, Incoming};
use super::resume::{Kept, check_rest};
use super::signed::NotAgain;
use crate::checksum::{Checksum, Sum};
use crate::error::{Error, ErrorKind, Phase};
use crate::object::{ObjectInfo, text};
use crate::redirect::{BUCKET_REGION, is_redirect};
use crate::retry;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-amz-request-id");
const HOST_ID: HeaderName = HeaderName::from_static("x-amz-id-2");

/// An answer with its body still to come.
///
/// Its connection serves the next request only after the body ended cleanly; dropping the answer
/// before that closes the connection.
pub struct Response {
    /// When its head had arrived.
    pub first_byte: Instant,
    head: Head,
    body: Incoming,
    client: Client,
    method: Method,
    bucket: String,
    key: String,
    /// What its body says, where that has been read as the body of an error.
    looked: Option<Looked>,
    not_again: Option<NotAgain>,
}

struct Looked {
    error: ErrorBody,
    /// The body has ended, and not broken off.
    ended: bool,
}

/// What one GET delivered.
#[derive(Clone, Debug)]
pub struct Received {
    /// The bytes now in the window, from its beginning.
    pub bytes: u64,
    /// Whether they went through staging on their way to a device.
    pub staged: bool,
    /// What they sum up to, where the object has a checksum to compare with.
    pub sum: Option<Checksum>,
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
#[derive(Clone, Debug, Default)]
pub struct Body {
    /// The bytes now in the window, from its beginning.
    pub bytes: u64,
    /// Those of them that went through staging on their way to a device.
    pub staged: u64,
    /// The sum of them all, where one is wanted.
    pub sum: Option<Sum>,
}

/// The stretch of a window that a body fills.
#[derive(Clone, Copy)]
struct Stretch {
    /// Bytes of the window that are there already: what comes goes behind them.
    from: u64,
    /// Bytes at the beginning of the body that are there too.
    skip: u64,
    /// The end of the part in the window, or what it may be at most.
    most: u64,
    /// Whether it is exactly that.
    exact: bool,
    /// Bytes of the window.
    have: u64,
}

impl Stretch {
    /// Of a body that begins at `at`, where the first `there` bytes of the window are there.
    fn of(at: u64, expected: Expected, there: u64, have: u64) -> Stretch {
        let (body, exact) = match expected {
            Expected::Exactly(bytes) => (bytes, true),
            Expected::UpTo(bytes) => (bytes, false),
            Expected::EmptyObject => (0, true),
        };
        Stretch {
            from: there,
            skip: there.saturating_sub(at),
            most: at.saturating_add(body),
            exact,
            have,
        }
    }

    /// Bytes that the window is to hold in the end, where that is known.
    fn exactly(&self) -> Option<u64> {
        self.exact.then_some(self.most)
    }

    /// What the window is to hold in the end.
    fn expected(&self) -> Expected {
        match self.exact {
            true => Expected::Exactly(self.most),
            false => Expected::UpTo(self.most),
        }
    }
}

impl Response {
    pub(super) fn new(
        head: Head,
        body: Incoming,
        client: Client,
        (method, bucket, key): (&Method, &str, &str),
    ) -> Response {
        Response {
            first_byte: Instant::now(),
            head,
            body,
            client,
            method: method.clone(),
            bucket: bucket.to_owned(),
            key: key.to_owned(),
            looked: None,
            not_again: None,
        }
    }

    /// The server that it came from.
    pub(super) fn place(&self) -> &dial::Place {
        self.body.place()
    }

    pub(super) fn method(&self) -> &Method {
        &self.method
    }

    /// Its error is to say why the request was not made again, otherwise or elsewhere.
    pub(super) fn not_again(&mut self, why: NotAgain) {
        self.not_again = Some(why);
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
        let nothing = (&Kept::default(), &mut Kept::default());
        self.receive_rest((part, None), window, nothing).await
    }

    /// The same; or judges it as the answer to the rest of the part, after what is there. Where the body breaks off,
    /// `kept` tells what is there then.
    pub(super) async fn receive_rest(
        self,
        (part, rest): (&GetPart<'_>, Option<&GetPart<'_>>),
        window: &mut Window,
        (before, kept): (&Kept, &mut Kept),
    ) -> Result<Received, Error> {
        let (status, headers, have) = (self.head.status, &self.head.headers, window.len());
        let judged = match rest {
            Some(rest) => check_rest(status, headers, (part, rest), have),
            None => check_head(status, headers, part, have).map(|expected| (0, expected)),
        };
        let mut received = Received {
            bytes: 0,
            staged: before.staged,
            sum: None,
            info: before.about(self.info()),
            status: status.as_u16(),
            request_id: self.request_id().map(str::to_owned),
            first_byte: before.first_byte.unwrap_or(self.first_byte),
        };
        match judged {
            Ok((at, expected)) => {
                let place = Stretch::of(at, expected, before.bytes(), have);
                let info = &received.info;
                let keep = |there: Body| {
                    kept.keep(info, there.bytes, place.expected());
                    kept.staged = before.staged || there.staged > 0;
                    kept.first_byte = Some(received.first_byte);
                    kept.sum = there.sum;
                };
                let sum = match before.bytes() {
                    0 => part.sums_by(info, place.exactly()).map(Sum::new),
                    _ => before.sum.clone(),
                };
                let body = match expected {
                    Expected::EmptyObject => self.end().await,
                    _ => self.receive_at(window, place, sum, keep).await?,
                };
                received.bytes = body.bytes;
                received.staged |= body.staged > 0;
                received.sum = body.sum.map(Sum::finish);
            }
            Err(ErrorKind::Status { .. } | ErrorKind::RangeNotSatisfiable { .. }) => {
                *kept = before.clone();
                let error = Box::pin(self.into_error()).await;
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

    /// Receives the body to the beginning of the window: what is expected, or an error.
    pub async fn receive(self, window: &mut Window, expected: Expected) -> Result<Body, Error> {
        match expected {
            Expected::EmptyObject => Ok(self.end().await),
            _ => {
                let place = Stretch::of(0, expected, 0, window.len());
                self.receive_at(window, place, None, |_| ()).await
            }
        }
    }

    async fn end(self) -> Body {
        Box::pin(self.finish()).await;
        Body::default()
    }

    /// Receives the body to a place in the window. `keep` is told what is there where that breaks off.
    async fn receive_at(
        mut self,
        window: &mut Window,
        place: Stretch,
        sum: Option<Sum>,
        keep: impl FnOnce(Body),
    ) -> Result<Body, Error> {
        match self.receive_body(window, place, sum).await {
            Ok(received) => {
                self.client.keep(self.body);
                Ok(received)
            }
            Err((failed, there)) => {
                keep(there);
                Err(self.body_error(failed))
            }
        }
    }

    /// An error comes with what is in the window all the same.
    async fn receive_body(
        &mut self,
        window: &mut Window,
        place: Stretch,
        sum: Option<Sum>,
    ) -> Result<Body, (BodyError, Body)> {
        let have = window.len();
        if place.most > have {
            let needed = place.most;
            let kind = ErrorKind::BufferTooSmall { needed, have };
            return Err(((kind, None), Body::default()));
        }
        let mut filling = window.filling();
        let (mut bytes, mut sum) = (place.from, sum);
        let filled = self.fill(&mut filling, &place, (&mut bytes, &mut sum));
        match filled.await {
            Ok(()) => match filling.finish().await {
                Ok(staged) => Ok(Body { bytes, staged, sum }),
                Err(error) => {
                    let kind = not_written(error, bytes, have);
                    Err(((kind, None), Body::default()))
                }
            },
            Err(error) if retry::may_pass(&error.0, Some(Phase::Body)) => {
                // What has come is there once its copies have ended.
                let there = match filling.finish().await {
                    Ok(staged) => Body { bytes, staged, sum },
                    Err(_) => Body::default(),
                };
                Err((error, there))
            }
            Err(error) => {
                // What was sent before may not arrive after what a next attempt brings.
                filling.stop().await;
                Err((error, Body::default()))
            }
        }
    }

    /// Receives what comes after the first `received` bytes of the part, counts it, and sums it up where that is
    /// wanted: while it is still in the processor's caches.
    async fn fill(
        &mut self,
        filling: &mut Filling<'_>,
        place: &Stretch,
        (received, sum): (&mut u64, &mut Option<Sum>),
    ) -> Result<(), BodyError> {
        let &Stretch {
            most, exact, have, ..
        } = place;
        let failed =
            |failure: Failure, received| failure.into_kind(received, exact.then_some(most));
        let progress = self.client.progress();
        if let Some(progress) = progress {
            progress.receives(*received, exact.then_some(most));
        }
        self.body.goes_to(filling);
        let skipped = self.body.skip(place.skip).await;
        skipped.map_err(|failure| failed(failure, *received))?;
        while let Some(len) = self
            .body
            .next(|| filling.pause())
            .await
            .map_err(|failure| failed(failure, *received))?
        {
            let end = received.saturating_add(len);
            if end > most {
                let kind = if exact {
                    ErrorKind::Protocol(format!("body longer than the {most} bytes announced"))
                } else {
                    ErrorKind::BufferTooSmall { needed: end, have }
                };
                return Err((kind, None));
            }
            let (place, before) = ((&mut *filling, *received), *received);
            let told = |more| {
                if let Some(progress) = progress {
                    progress.received(before + more);
                }
            };
            let landed = self.body.land(place, len, sum.as_mut(), told).await;
            let landed = landed.map_err(|error| (not_written(error, end, have), None))?;
            *received += landed.map_err(|failure| failed(failure, *received))? as u64;
            if let Some(progress) = progress {
                progress.received(*received);
            }
        }
        if exact && *received < most {
            let kind = ErrorKind::Truncated {
                received: *received,
                expected: most,
            };
            return Err((kind, None));
        }
        Ok(())
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
                self.client.keep(self.body);
                parsed
            }
            Err(failed) => Err(self.body_error(failed)),
        }
    }

    async fn whole_body(&mut self, most: u64) -> Result<Vec<u8>, BodyError> {
        let announced = content_length(&self.head.headers).map_err(|kind| (kind, None))?;
        let mut body = Vec::new();
        loop {
            let received = body.len() as u64;
            let known = announced.unwrap_or_default().max(received);
            if known > most {
                let text = format!("a body of {known} bytes or more, where {most} are the most");
                return Err((ErrorKind::Protocol(text), None));
            }
            let more = self.body.append(&mut body).await;
            if !more.map_err(|failure| failure.into_kind(received, announced))? {
                return Ok(body);
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
        let body = self.look().await.clone();
        let error = self.error_of(body);
        if self.looked.is_some_and(|looked| looked.ended) {
            self.client.keep(self.body);
        }
        match self.not_again {
            Some(why) => error.with_source(why),
            None => error,
        }
    }

    /// What its body says, as that of an error.
    pub(super) async fn look(&mut self) -> &ErrorBody {
        let looked = match self.looked.take() {
            Some(looked) => looked,
            None => {
                let body = self.short_body().await;
                Looked {
                    // A body that breaks off still leaves the status, which says more than its breaking.
                    error: ErrorBody::parse(body.as_deref().unwrap_or_default()),
                    ended: body.is_some(),
                }
            }
        };
        &self.looked.insert(looked).error
    }

    /// Reads and drops what little body there may be, so that the connection can be used again. Returns its
    /// length; `None` where it is longer than that, breaks off or takes too long.
    pub async fn finish(mut self) -> Option<u64> {
        if let Some(Looked { ended: false, .. }) = self.looked {
            return None;
        }
        let body = self.short_body().await?;
        self.client.keep(self.body);
        Some(body.len() as u64)
    }

    /// A short body, whole; `None` where it is longer, breaks off or takes too long.
    async fn short_body(&mut self) -> Option<Vec<u8>> {
        let limit = self.client.timeouts().stall;
        let mut bytes = Vec::new();
        let read = async {
            while self.body.append(&mut bytes).await.ok()? {
                if bytes.len() > LONGEST_ERROR_BODY {
                    return None;
                }
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
        let kind = if is_redirect(self.head.status) {
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
                message: body.message.map(|message| self.client.redacted(message)),
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
            .with_address(Some(self.body.address()))
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

type BodyError = (ErrorKind, Option<io::Error>);

/// What a write to a window that does not succeed says about the answer.
fn not_written(error: WriteError, needed: u64, have: u64) -> ErrorKind {
    match error {
        WriteError::Cuda(error) => ErrorKind::Cuda(error.to_string()),
        WriteError::OutOfBounds(_) | WriteError::Armed => {
            ErrorKind::BufferTooSmall { needed, have }
        }
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
