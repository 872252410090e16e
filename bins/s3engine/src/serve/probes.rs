//! Metrics and probes over HTTP: `/metrics`, `/healthz`, `/readyz`.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE};
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::task::JoinHandle;

use crate::serve::figures::Figures;

/// Connections at once. One more ends the oldest: whoever holds many open keeps no probe from its answer.
const CONNECTIONS: usize = 64;
/// How long a request's head, and a whole connection, may take.
const HEAD: Duration = Duration::from_secs(5);
const CONNECTION: Duration = Duration::from_secs(60);
/// How often histograms are tidied up where nobody asks for them.
const UPKEEP: Duration = Duration::from_secs(5);

const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";
const PLAIN: &str = "text/plain; charset=utf-8";

/// Whether clients are taken in.
pub(crate) type Ready = Arc<AtomicBool>;

/// Where figures and probes are served.
pub(crate) struct Probes {
    listener: TcpListener,
    pub(crate) address: SocketAddr,
}

impl Probes {
    pub(crate) fn bind(address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        Ok(Self { listener, address })
    }

    /// Serves until the process ends.
    pub(crate) fn serve(self, figures: Figures, ready: Ready) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let serve = move || runtime.block_on(run(self.listener, figures, ready));
        thread::Builder::new()
            .name("probes".into())
            .spawn(serve)
            .map(drop)
    }
}

async fn run(listener: TcpListener, figures: Figures, ready: Ready) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "metrics are not served"),
    };
    let upkeep = figures.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(UPKEEP).await;
            upkeep.run_upkeep();
        }
    });
    let mut connections: VecDeque<JoinHandle<()>> = VecDeque::new();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "a request for metrics cannot be taken");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let (figures, ready) = (figures.clone(), Arc::clone(&ready));
        connections.retain(|connection| !connection.is_finished());
        if connections.len() >= CONNECTIONS
            && let Some(oldest) = connections.pop_front()
        {
            oldest.abort();
        }
        connections.push_back(tokio::spawn(async move {
            let service = service_fn(move |request: Request<hyper::body::Incoming>| {
                let answer = answer(request.method(), request.uri().path(), &figures, &ready);
                async move { Ok::<_, Infallible>(answer) }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD)
                .serve_connection(TokioIo::new(stream), service);
            // Whoever asks badly or goes away is nobody's concern.
            let _ = tokio::time::timeout(CONNECTION, connection).await;
        }));
    }
}

fn answer(
    method: &Method,
    path: &str,
    figures: &Figures,
    ready: &AtomicBool,
) -> Response<Full<Bytes>> {
    let (status, kind, body) = match path {
        _ if method != Method::GET && method != Method::HEAD => {
            let status = StatusCode::METHOD_NOT_ALLOWED;
            (status, PLAIN, "only GET and HEAD\n".to_owned())
        }
        "/metrics" => (StatusCode::OK, PROMETHEUS, figures.render()),
        "/healthz" => (StatusCode::OK, PLAIN, "ok\n".to_owned()),
        "/readyz" if ready.load(Ordering::Acquire) => (StatusCode::OK, PLAIN, "ready\n".to_owned()),
        "/readyz" => {
            let text = "not ready: the service is about to end\n";
            (StatusCode::SERVICE_UNAVAILABLE, PLAIN, text.to_owned())
        }
        _ => {
            let text = "there are /metrics, /healthz and /readyz\n";
            (StatusCode::NOT_FOUND, PLAIN, text.to_owned())
        }
    };
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, http::HeaderValue::from_static(kind));
    if status == StatusCode::METHOD_NOT_ALLOWED {
        headers.insert(ALLOW, http::HeaderValue::from_static("GET, HEAD"));
    }
    response
}
