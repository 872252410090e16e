//! Signed requests to one endpoint, over connections that one thread keeps.

use std::borrow::Cow;
use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::header::{ACCEPT_ENCODING, IF_MATCH, PROXY_AUTHORIZATION, RANGE, USER_AGENT};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use s3engine_pool::Window;
use tokio::time::timeout;

use super::answer::{GetPart, check_version_id};
use super::connection::{Connection, ExchangeError, IdleConnections};
use super::dial::{self, ConnectError, Place};
use super::framing::Framing;
use super::head;
use super::incoming::Incoming;
use super::response::{Received, Response};
use super::resume::Kept;
use super::route::{Route, remove_secrets};
use super::signed::Signer;
use crate::checksum::Mode;
use crate::endpoint::Endpoint;
use crate::error::{Error, ErrorKind, Phase};
use crate::object::ObjectInfo;
use crate::open_files::OpenFiles;
use crate::options::RequestOptions;
use crate::progress::{Progress, Waits};
use crate::proxy::Proxy;
use crate::signing::{Last, Payload, Signing, sign};
use crate::timeouts::Timeouts;
use crate::tls;
use crate::upstream::Upstream;

/// Asks for the object's checksum in the answer.
const CHECKSUM_MODE: HeaderName = HeaderName::from_static("x-amz-checksum-mode");

/// An S3 client of one thread; clones share its connections.
///
/// Its futures must run on one tokio runtime with I/O and time.
#[derive(Clone)]
pub struct Client(Rc<Shared>, Option<Arc<Progress>>);

struct Shared {
    upstream: Arc<Upstream>,
    idle: IdleConnections,
    signed_last: Last,
}

/// What to do when an idle connection turns out dead after the request was handed to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stale {
    /// Send again at once on a fresh connection: right for requests that change nothing.
    Retry,
    /// Report it: the server may have seen the request, as matters for a token.
    Report,
}

/// One request without a body.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The method.
    pub method: Method,
    /// The bucket.
    pub bucket: &'a str,
    /// The key; empty for a request on the bucket.
    pub key: &'a str,
    /// The query, not yet encoded.
    pub query: &'a [(&'a str, &'a str)],
    /// More headers; they are signed.
    pub headers: HeaderMap,
    /// How long to wait for the head of the answer.
    pub first_byte: Duration,
    /// What to do when an idle connection turns out dead.
    pub stale: Stale,
    /// The address of the rail that the request names: its connection begins there, where nothing else is said.
    pub rail: Option<IpAddr>,
}

/// A request without an answer.
#[derive(Debug)]
pub struct SendError {
    /// What went wrong.
    pub error: Error,
    /// `false`: no byte of the request was handed to a connection.
    pub may_have_reached_server: bool,
}

/// The answer to a HEAD.
#[derive(Clone, Debug)]
pub struct Head {
    /// What it says about the object.
    pub info: ObjectInfo,
    /// The HTTP status.
    pub status: u16,
    /// The server's id of the request.
    pub request_id: Option<String>,
}

/// A connection that did not answer.
struct Unanswered {
    failed: SendError,
    /// It was idle before, and died as one does that the server had closed.
    was_stale: bool,
}

impl Client {
    /// A client without connections yet.
    pub fn new(upstream: Arc<Upstream>) -> Client {
        let shared = Shared {
            upstream,
            idle: IdleConnections::default(),
            signed_last: Last::default(),
        };
        Client(Rc::new(shared), None)
    }

    /// The same client, which tells where its requests are.
    pub fn watched(&self, progress: Arc<Progress>) -> Client {
        Client(Rc::clone(&self.0), Some(progress))
    }

    /// Whoever wants to know where the request is.
    pub(crate) fn progress(&self) -> Option<&Progress> {
        self.1.as_deref()
    }

    fn waits_for(&self, what: Waits) {
        if let Some(progress) = self.progress() {
            progress.waits_for(what);
        }
    }

    /// The endpoint.
    pub fn endpoint(&self) -> &Endpoint {
        self.0.upstream.endpoint()
    }

    /// The bounds of its requests.
    pub fn timeouts(&self) -> &Timeouts {
        self.0.upstream.timeouts()
    }

    pub(super) fn upstream(&self) -> &Upstream {
        &self.0.upstream
    }

    /// A server's text without the keys and signatures that it may repeat.
    pub(super) fn redacted(&self, text: String) -> String {
        match self.upstream().credentials().present() {
            Some(held) => held.redacted(text),
            None => text,
        }
    }

    /// Sends a request with the signature of `signer`. It is sent again only on a fresh connection: where an idle
    /// one died before it took a byte of the request, and where `request.stale` allows it.
    pub(super) async fn send_signed(
        &self,
        request: &Request<'_>,
        signer: &Signer,
        route: &Route,
    ) -> Result<Response, SendError> {
        let place = &route.places[0];
        let sure = request.stale == Stale::Report;
        let Some(connection) = self.0.idle.take(place, sure) else {
            // Apart: most requests need no room for it.
            return Box::pin(self.send_fresh(request, signer, route)).await;
        };
        let message = self.message(request, (signer, route), place, connection.proxy.as_deref())?;
        match self.exchange(connection, request, &message).await {
            Ok(response) => Ok(response),
            Err(dead) if dead.was_stale => {
                let may_send_again =
                    request.stale == Stale::Retry || !dead.failed.may_have_reached_server;
                if !may_send_again {
                    return Err(dead.failed);
                }
                Box::pin(self.send_fresh(request, signer, route)).await
            }
            Err(failed) => Err(failed.failed),
        }
    }

    /// Adds to a request what asks for the object's checksum, where that is wanted and the server bears it.
    pub(crate) fn ask_for_checksum(&self, headers: &mut HeaderMap, mode: Mode) -> bool {
        let refused = self.0.upstream.refuses_checksums.load(Ordering::Relaxed);
        let asks = mode != Mode::Off && !refused;
        if asks {
            headers.insert(CHECKSUM_MODE, HeaderValue::from_static("ENABLED"));
        }
        asks
    }

    /// Sends a request that asks for the object's checksum. A server that does not bear that is asked again without,
    /// and from then on always.
    async fn send_for_checksum(
        &self,
        mut request: Request<'_>,
        mode: Mode,
    ) -> Result<Response, Error> {
        let asks = self.ask_for_checksum(&mut request.headers, mode);
        let response = self.send(&request).await.map_err(|failed| failed.error)?;
        if !asks || !is_refusal(response.status()) {
            return Ok(response);
        }
        let error = Box::pin(response.into_error()).await;
        if !may_be_of_a_header(&error) {
            return Err(error);
        }
        request.headers.remove(CHECKSUM_MODE);
        let plain = self.send(&request).await.map_err(|failed| failed.error)?;
        if !is_refusal(plain.status()) {
            self.0
                .upstream
                .refuses_checksums
                .store(true, Ordering::Relaxed);
            tracing::info!(endpoint = %self.endpoint(), %error, "the server does not bear being asked for checksums");
        }
        Ok(plain)
    }

    /// Asks for the facts about an object.
    pub async fn head(
        &self,
        bucket: &str,
        key: &str,
        checksum: Mode,
        options: &RequestOptions,
    ) -> Result<Head, Error> {
        self.check_key(&Method::HEAD, bucket, key)?;
        let mut request = self.request(Method::HEAD, bucket, key);
        let version = options
            .version_id
            .as_deref()
            .map(|version| [("versionId", version)]);
        request.query = version.as_ref().map_or(&[], |query| query.as_slice());
        let added = options.add_to(&mut request.headers, self.endpoint());
        added.map_err(|why| self.error(&Method::HEAD, bucket, key, ErrorKind::Config(why)))?;
        let response = self.send_for_checksum(request, checksum).await?;
        if response.status() != StatusCode::OK {
            return Err(response.into_error().await);
        }
        if let Some(wanted) = &options.version_id {
            let checked = check_version_id(wanted, &response.info());
            checked.map_err(|kind| response.error(kind))?;
        }
        let head = Head {
            info: response.info(),
            status: response.status().as_u16(),
            request_id: response.request_id().map(str::to_owned),
        };
        response.finish().await;
        Ok(head)
    }

    /// Gets an object or a range of it into the window.
    ///
    /// Success means that all bytes of the part, and no others, of the version asked for are there.
    pub async fn get(&self, part: &GetPart<'_>, window: &mut Window) -> Result<Received, Error> {
        self.resume(part, window, &mut Kept::default()).await
    }

    /// The same, going on where an earlier attempt at the part has broken off; and where this one does, it says in
    /// `kept` what is there. The window must be untouched in between.
    pub async fn resume(
        &self,
        part: &GetPart<'_>,
        window: &mut Window,
        kept: &mut Kept,
    ) -> Result<Received, Error> {
        // Nothing is known of the window if this future is dropped.
        let before = std::mem::take(kept);
        let rest = before.rest(part, window.len());
        match self.send_part(rest.as_ref().unwrap_or(part)).await {
            Ok(response) => {
                let asked = (part, rest.as_ref());
                response.receive_rest(asked, window, (&before, kept)).await
            }
            Err(error) => {
                *kept = before;
                Err(error)
            }
        }
    }

    async fn send_part(&self, part: &GetPart<'_>) -> Result<Response, Error> {
        let version = part
            .version_to_name()
            .map(|version| [("versionId", version)]);
        let mut request = self.get_request(part)?;
        request.query = version.as_ref().map_or(&[], |query| query.as_slice());
        self.send_for_checksum(request, part.checksum).await
    }

    /// The request of a part, without its version, which goes into the query.
    fn get_request<'a>(&self, part: &GetPart<'a>) -> Result<Request<'a>, Error> {
        self.check_key(&Method::GET, part.bucket, part.key)?;
        let mut request = self.request(Method::GET, part.bucket, part.key);
        request.headers = part.headers(self.endpoint()).map_err(|text| {
            self.error(&Method::GET, part.bucket, part.key, ErrorKind::Config(text))
        })?;
        Ok(request)
    }

    pub(super) fn request<'a>(&self, method: Method, bucket: &'a str, key: &'a str) -> Request<'a> {
        Request {
            method,
            bucket,
            key,
            query: &[],
            headers: HeaderMap::new(),
            first_byte: self.timeouts().first_byte,
            stale: Stale::Retry,
            rail: None,
        }
    }

    /// Without a key, a GET would read the list of the bucket as if it were an object.
    fn check_key(&self, method: &Method, bucket: &str, key: &str) -> Result<(), Error> {
        if key.is_empty() {
            let kind = ErrorKind::Config("the key is empty".to_owned());
            return Err(self.error(method, bucket, key, kind));
        }
        Ok(())
    }

    /// Keeps the connection of a body that was read to its end, if it serves another request.
    pub(super) fn keep(&self, body: Incoming) {
        if let Some(connection) = body.into_connection() {
            self.0.idle.put(connection);
        }
    }

    #[cfg(test)]
    pub(super) fn idle_connections(&self) -> usize {
        self.0.idle.len()
    }

    pub(super) fn error(&self, method: &Method, bucket: &str, key: &str, kind: ErrorKind) -> Error {
        Error::new(operation(method), bucket, key, kind).with_endpoint(self.endpoint().to_string())
    }

    pub(super) fn unsent(&self, request: &Request<'_>, kind: ErrorKind) -> SendError {
        let error = self.error(&request.method, request.bucket, request.key, kind);
        SendError {
            error,
            may_have_reached_server: false,
        }
    }

    /// The request as it is sent: named, signed, and with the headers that are not signed.
    ///
    /// A proxy that passes it on is told the whole URL.
    fn message(
        &self,
        request: &Request<'_>,
        (signer, route): (&Signer, &Route),
        place: &Place,
        proxy: Option<&Proxy>,
    ) -> Result<Vec<u8>, SendError> {
        let config = |text: String| self.unsent(request, ErrorKind::Config(text));
        let target = route
            .target(self.upstream(), place, request)
            .map_err(|error| config(error.to_string()))?;
        let mut headers = request.headers.clone();
        let mut keys = signer.held.as_ref().map(|held| &held.keys);
        if !route.is_trusted() {
            remove_secrets(&mut headers);
            keys = None;
        }
        sign(
            &request.method,
            &target,
            &mut headers,
            &Signing {
                keys,
                region: &route.region,
                time: signer.time(),
                payload: Payload::Unsigned,
            },
            &self.0.signed_last,
        )
        .map_err(|error| config(error.to_string()))?;
        // Proxies change these, so they are not signed. Bytes are wanted as they are stored.
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        headers.insert(
            USER_AGENT,
            HeaderValue::from_static(concat!("s3engine/", env!("CARGO_PKG_VERSION"))),
        );
        let path: PathAndQuery = target
            .path_and_query
            .try_into()
            .map_err(|error| config(format!("the key cannot be sent: {error}")))?;
        let Some(proxy) = proxy else {
            return Ok(head::request(&request.method, path.as_str(), &headers));
        };
        if let Some(value) = &proxy.authorization {
            headers.insert(PROXY_AUTHORIZATION, value.clone());
        }
        let url = format!("http://{}{path}", target.host_header);
        Ok(head::request(&request.method, &url, &headers))
    }

    /// Sends a request over a connection of its own.
    async fn send_fresh(
        &self,
        request: &Request<'_>,
        signer: &Signer,
        route: &Route,
    ) -> Result<Response, SendError> {
        self.waits_for(Waits::Connect);
        let (upstream, places) = (&self.0.upstream, &route.places);
        // Before the connection: what cannot be sent needs none.
        let mut message = self.message(request, (signer, route), &places[0], None)?;
        let opened = self
            .connect(async || dial::open(upstream, places).await)
            .await;
        let connection = opened.map_err(|error| self.unconnected(request, error))?;
        let proxy = connection.proxy.as_deref();
        if proxy.is_some() || connection.place != places[0] {
            message = self.message(request, (signer, route), &connection.place, proxy)?;
        }
        let answer = self.exchange(connection, request, &message).await;
        answer.map_err(|unanswered| unanswered.failed)
    }

    /// Opens a connection when there is a file for it, and when not too many are being opened. However long that takes:
    /// the bound for connecting begins afterwards.
    pub(super) async fn connect(
        &self,
        open: impl AsyncFn() -> Result<Connection, ConnectError>,
    ) -> Result<Connection, ConnectError> {
        let files = OpenFiles::of_process();
        let file = files.place(|| self.close_idle()).await;
        loop {
            // Never closed.
            let turn = self.0.upstream.connecting.acquire().await;
            let opened = open().await;
            drop(turn);
            let Some(lack) = opened.as_ref().err().and_then(ConnectError::want_of_files) else {
                return opened.map(|connection| connection.with_file(file));
            };
            self.close_idle();
            files.wait(lack).await;
        }
    }

    /// Closes the connections that have no request.
    pub fn close_idle(&self) {
        self.0.idle.close();
    }

    fn unconnected(&self, request: &Request<'_>, cause: ConnectError) -> SendError {
        let mut failed = self.unsent(request, cause.kind);
        failed.error = failed
            .error
            .with_phase(cause.phase)
            .with_address(cause.address);
        if let Some(source) = cause.source {
            failed.error = failed.error.with_boxed_source(source);
        }
        failed
    }

    /// Sends a request over a connection and waits for the head of its answer.
    async fn exchange(
        &self,
        mut connection: Connection,
        request: &Request<'_>,
        message: &[u8],
    ) -> Result<Response, Unanswered> {
        self.waits_for(Waits::Answer);
        let limit = request.first_byte;
        let Ok(answer) = timeout(limit, connection.exchange(message)).await else {
            let (phase, after) = (Phase::FirstByte, limit);
            let kind = ErrorKind::Timeout { phase, after };
            return Err(self.unanswered(&connection, request, kind, true));
        };
        let head = answer.map_err(|error| self.broken(&connection, request, error))?;
        let framing = Framing::of(&request.method, &head)
            .map_err(|kind| self.unanswered(&connection, request, kind, true))?;
        let body = Incoming::new(connection, &head, framing, self.timeouts());
        let about = (&request.method, request.bucket, request.key);
        Ok(Response::new(head, body, self.clone(), about))
    }

    fn broken(
        &self,
        connection: &Connection,
        request: &Request<'_>,
        error: ExchangeError,
    ) -> Unanswered {
        let (source, reached, silent) = match error {
            ExchangeError::Unsent(error) => (error, false, true),
            ExchangeError::Broken { error, silent } => (error, true, silent),
            ExchangeError::Malformed(text) => {
                let kind = ErrorKind::Protocol(format!("not HTTP: {text}"));
                return self.unanswered(connection, request, kind, true);
            }
        };
        // Servers that want a certificate of the client say so only when the client has ended its handshake.
        if let Some(text) = tls::explain(&source, &connection.place.origin.host()) {
            let kind = ErrorKind::Tls(text);
            return self.unanswered(connection, request, kind, reached);
        }
        let kind = ErrorKind::Reset(format!("{source} before an answer"));
        let mut unanswered = self.unanswered(connection, request, kind, reached);
        unanswered.was_stale = connection.reused && silent && is_closed_by_peer(&source);
        unanswered.failed.error = unanswered.failed.error.with_source(source);
        unanswered
    }

    fn unanswered(
        &self,
        connection: &Connection,
        request: &Request<'_>,
        kind: ErrorKind,
        may_have_reached_server: bool,
    ) -> Unanswered {
        let phase = if may_have_reached_server {
            Phase::FirstByte
        } else {
            Phase::Send
        };
        let error = self
            .error(&request.method, request.bucket, request.key, kind)
            .with_address(Some(connection.address))
            .with_phase(phase);
        Unanswered {
            failed: SendError {
                error,
                may_have_reached_server,
            },
            was_stale: false,
        }
    }
}

/// How servers refuse what they do not know.
fn is_refusal(status: StatusCode) -> bool {
    matches!(status.as_u16(), 400 | 501)
}

/// Whether a refusal may be of one header, and not of the whole request.
fn may_be_of_a_header(error: &Error) -> bool {
    error.code().is_none_or(|code| {
        matches!(
            code,
            "NotImplemented" | "InvalidArgument" | "InvalidRequest" | "BadRequest"
        )
    })
}

/// Whether a connection failed as one does that the server closed while it was idle.
fn is_closed_by_peer(error: &io::Error) -> bool {
    use io::ErrorKind::{
        BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, UnexpectedEof,
    };
    matches!(
        error.kind(),
        BrokenPipe | ConnectionAborted | ConnectionReset | NotConnected | UnexpectedEof
    )
}

/// A method as the operation of an error.
pub(super) fn operation(method: &Method) -> Cow<'static, str> {
    match *method {
        Method::GET => Cow::Borrowed("GET"),
        Method::HEAD => Cow::Borrowed("HEAD"),
        ref other => Cow::Owned(other.to_string()),
    }
}

impl GetPart<'_> {
    /// The headers that ask for this part.
    pub fn headers(&self, endpoint: &Endpoint) -> Result<HeaderMap, String> {
        let mut headers = HeaderMap::with_capacity(8);
        self.options.add_to(&mut headers, endpoint)?;
        if let Some(range) = self.range {
            let value = HeaderValue::try_from(range.header_value()).map_err(|e| e.to_string())?;
            headers.insert(RANGE, value);
        }
        if let Some(etag) = self.etag_to_match() {
            let value = HeaderValue::from_str(etag.as_str())
                .map_err(|_| format!("etag {etag} cannot be sent in If-Match"))?;
            headers.insert(IF_MATCH, value);
        }
        Ok(headers)
    }
}
