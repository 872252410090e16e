//! What the server says that it sent by RDMA.

use std::io::Read;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// Where AIStor has its RDMA counters, and the simulator too.
const PATH: &str = "/minio/metrics/v3/api/rdma";

/// How long one server may take to tell.
const PATIENCE: Duration = Duration::from_secs(10);

/// No page of metrics is longer.
const MOST_BYTES: usize = 16 << 20;

/// Where counters of 64 bits end.
const MOST: f64 = u64::MAX as f64;

/// What all servers have counted since they started.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Counters {
    pub(crate) bytes: u64,
    pub(crate) ops: u64,
    /// Distinct clients, where it counts them.
    pub(crate) clients: Option<u64>,
    /// The simulator's model, and its line rate in bytes a second.
    pub(crate) model: Option<String>,
    pub(crate) line_rate: Option<f64>,
}

/// Asks all servers. The error says which one does not tell, and why.
pub(crate) fn read(urls: &[String]) -> Result<Counters, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| error.to_string())?;
    let read = runtime.block_on(read_all(urls));
    // A name that is still looked up is not waited for.
    runtime.shutdown_background();
    read
}

async fn read_all(urls: &[String]) -> Result<Counters, String> {
    let mut all = Counters::default();
    for url in urls {
        let page = tokio::time::timeout(PATIENCE, page(url)).await;
        let page = page.unwrap_or_else(|_| Err(format!("no answer within {PATIENCE:?}")));
        let counted = page.and_then(|page| counters(&page));
        let counted = counted.map_err(|why| format!("{url}: {why}"))?;
        all.bytes = all.bytes.saturating_add(counted.bytes);
        all.ops = all.ops.saturating_add(counted.ops);
        all.clients = all.clients.max(counted.clients);
        all.model = all.model.or(counted.model);
        all.line_rate = all.line_rate.or(counted.line_rate);
    }
    Ok(all)
}

/// Fetches a page of metrics.
async fn page(url: &str) -> Result<String, String> {
    let uri: http::Uri = url.parse().map_err(|error| format!("no URL: {error}"))?;
    if uri.scheme_str().is_some_and(|scheme| scheme != "http") {
        return Err("metrics are read by http".into());
    }
    let host = uri.host().ok_or("a URL without a host")?;
    let port = uri.port_u16().unwrap_or(80);
    let path = match uri.path() {
        "" | "/" => PATH,
        path => path,
    };
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let address = tokio::net::lookup_host((host.trim_matches(['[', ']']), port))
        .await
        .map_err(|error| text(&error))?
        .next()
        .ok_or("no address")?;
    let stream = TcpStream::connect(address)
        .await
        .map_err(|error| text(&error))?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| text(&error))?;
    let request = http::Request::get(path)
        .header(
            http::header::HOST,
            uri.authority().map_or(host, |all| all.as_str()),
        )
        .body(Empty::<Bytes>::new())
        .map_err(|error| text(&error))?;
    // The sender goes with the answer, and with it the connection ends; one that ends by itself has said what it has.
    let answer = async move {
        let answer = sender
            .send_request(request)
            .await
            .map_err(|error| text(&error))?;
        if !answer.status().is_success() {
            return Err(format!("{path} answers {}", answer.status()));
        }
        let body = Limited::new(answer.into_body(), MOST_BYTES).collect().await;
        let body = body.map_err(|error| text(&error))?.aggregate();
        let mut page = String::new();
        let read = bytes::Buf::reader(body).read_to_string(&mut page);
        read.map_err(|error| text(&error))?;
        Ok(page)
    };
    tokio::join!(answer, connection).0
}

/// Reads the page. Samples of several labels are summed.
fn counters(page: &str) -> Result<Counters, String> {
    let sum = |name: &str, of: &str| {
        let mut sum = None::<f64>;
        for (_, value) in samples(page, name) {
            let more = sum.unwrap_or(0.0) + value;
            if !(value >= 0.0 && more < MOST) {
                return Err(format!(
                    "{name} {value}: a counter that is no number of {of}"
                ));
            }
            sum = Some(more);
        }
        Ok(sum.map(|sum| sum as u64))
    };
    let needed = |name: &str, of: &str| sum(name, of)?.ok_or_else(|| format!("it has no {name}"));
    let rates = samples(page, "s3sim_model_line_rate_bytes_per_second");
    let rates = rates.filter(|(_, rate)| *rate > 0.0 && rate.is_finite());
    let label = |(labels, _): (&str, f64)| {
        let rest = labels.split_once("model=\"")?.1;
        Some(rest.split_once('"')?.0.to_owned())
    };
    Ok(Counters {
        bytes: needed("minio_api_rdma_read_bytes_total", "bytes")?,
        ops: needed("minio_api_rdma_read_ops_total", "operations")?,
        clients: sum("s3sim_rdma_clients_seen", "clients")?,
        model: samples(page, "s3sim_model_info").find_map(label),
        line_rate: rates
            .map(|(_, rate)| rate)
            .reduce(|sum, rate| sum + rate)
            .filter(|sum| sum.is_finite()),
    })
}

/// Labels and value of each sample of a metric; NaN where it is no number.
fn samples<'a>(page: &'a str, name: &'a str) -> impl Iterator<Item = (&'a str, f64)> {
    page.lines().filter_map(move |line| {
        let rest = line.strip_prefix(name)?;
        let (labels, rest) = match rest.strip_prefix('{') {
            Some(labelled) => labelled.rsplit_once('}')?,
            None => ("", rest.strip_prefix(' ')?),
        };
        let value = rest.split_whitespace().next()?;
        Some((labels, value.parse().unwrap_or(f64::NAN)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGE: &str = "\
# TYPE minio_api_rdma_read_bytes_total counter
minio_api_rdma_read_bytes_total{server=\"a\"} 1000
minio_api_rdma_read_bytes_total{server=\"b\"} 24
minio_api_rdma_read_bytes_total_more 7
minio_api_rdma_read_ops_total 2
s3sim_model_info{model=\"op-latency\"} 1
s3sim_model_line_rate_bytes_per_second 8e8
";

    #[test]
    fn samples_of_all_servers_are_summed_and_similar_names_are_not() {
        let read = counters(PAGE).unwrap();
        let expected = Counters {
            bytes: 1024,
            ops: 2,
            clients: None,
            model: Some("op-latency".into()),
            line_rate: Some(8e8),
        };
        assert_eq!(read, expected);
    }

    #[test]
    fn a_page_without_the_counters_says_which_one_is_missing() {
        let why = counters("minio_api_rdma_read_bytes_total 1").unwrap_err();
        assert_eq!(why, "it has no minio_api_rdma_read_ops_total");
    }

    #[test]
    fn a_counter_that_is_no_number_is_an_error() {
        for value in ["-1", "NaN", "+Inf", "-Inf", "1e300", "many"] {
            for (there, of) in [("} 24", "bytes"), ("_total 2\n", "operations")] {
                let start = there.trim_end_matches(|c: char| c != ' ');
                let page = PAGE.replace(there, &format!("{start}{value}\n"));
                let why = counters(&page).unwrap_err();
                let expected = format!(": a counter that is no number of {of}");
                assert!(why.ends_with(&expected), "{value}: {why}");
            }
            let page = format!("{PAGE}s3sim_rdma_clients_seen {value}\n");
            assert!(counters(&page).is_err(), "{value}");
        }
        // Each is one, and the sum is none.
        let page = PAGE.replace("1000", "1e19").replace(" 24", " 1e19");
        assert!(counters(&page).is_err());
    }

    #[test]
    fn a_line_rate_that_is_none_is_ignored() {
        for rate in ["+Inf", "NaN", "-8e8", "0", "fast"] {
            let read = counters(&PAGE.replace("8e8", rate)).unwrap();
            assert_eq!((read.line_rate, read.bytes), (None, 1024), "{rate}");
        }
    }

    #[test]
    fn a_server_that_closes_after_its_answer_is_read() {
        use std::io::Write;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let answers = std::thread::spawn(move || {
            for _ in 0..20 {
                let (mut stream, _) = listener.accept().unwrap();
                let _ = stream.read(&mut [0; 1024]).unwrap();
                let head = format!(
                    "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                    PAGE.len()
                );
                stream
                    .write_all(&[head.as_bytes(), PAGE.as_bytes()].concat())
                    .unwrap();
            }
        });
        for _ in 0..20 {
            assert_eq!(read(std::slice::from_ref(&url)).unwrap().bytes, 1024);
        }
        answers.join().unwrap();
    }

    #[test]
    fn a_server_that_does_not_tell_is_named() {
        let gone = "http://127.0.0.1:1".to_owned();
        let why = read(&[gone]).unwrap_err();
        assert!(why.starts_with("http://127.0.0.1:1: "), "{why}");
        assert!(read(&["https://127.0.0.1:1".into()]).is_err());
    }

    proptest! {
        #[test]
        fn any_page_is_read_or_refused(page in "(minio_api_rdma_read_(bytes|ops)_total)?[ {}a-z=\"0-9\n.]{0,80}") {
            let _ = counters(&page);
        }
    }
}
