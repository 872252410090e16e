//! What the server says that it sent by RDMA.

use std::collections::BTreeMap;
use std::fmt;
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

/// Servers that one text may stand for.
const MOST_SERVERS: usize = 256;

/// The variable that has the bearer token.
pub(crate) const TOKEN: &str = "S3ENGINE_SERVER_METRICS_TOKEN";

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

/// The servers that tell, and how they are asked.
#[derive(Clone, Default, PartialEq)]
pub(crate) struct Servers {
    urls: Vec<String>,
    /// For those that tell only who has it.
    token: Option<String>,
}

impl fmt::Debug for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let token = self.token.as_ref().map(|_| "redacted");
        let mut shown = f.debug_struct("Servers");
        shown
            .field("urls", &self.urls)
            .field("token", &token)
            .finish()
    }
}

impl Servers {
    /// As `http://aistor-{1..4}:9000` names four, each with a scheme or without; the token is in the environment.
    pub(crate) fn of(texts: &[String]) -> Result<Self, String> {
        let mut urls = Vec::new();
        for text in texts {
            let with_scheme = |url: String| match url.contains("://") {
                true => url,
                false => format!("http://{url}"),
            };
            urls.extend(expanded(text)?.into_iter().map(with_scheme));
        }
        for url in &urls {
            let told = |why: String| format!("{url}: {why}");
            let parsed: http::Uri = url.parse().map_err(|e| told(format!("no URL: {e}")))?;
            match (parsed.scheme_str(), parsed.host()) {
                (Some("http"), Some(host)) if !host.is_empty() => {}
                (Some("http"), _) => return Err(told("a URL without a host".into())),
                _ => return Err(told("metrics are read by http".into())),
            }
        }
        let token = std::env::var(TOKEN).ok().filter(|token| !token.is_empty());
        token.as_deref().map(secret).transpose()?;
        Ok(Self { urls, token })
    }

    /// One that needs no token.
    pub(crate) fn add(&mut self, url: String) {
        self.urls.push(url);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.urls.is_empty()
    }

    /// Asks all of them. The error says which one does not tell, and why.
    pub(crate) fn read(&self) -> Result<Counters, String> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| error.to_string())?;
        let read = runtime.block_on(self.read_all());
        // A name that is still looked up is not waited for.
        runtime.shutdown_background();
        read
    }

    async fn read_all(&self) -> Result<Counters, String> {
        let mut pages = Vec::new();
        for url in &self.urls {
            let page = tokio::time::timeout(PATIENCE, page(url, self.token.as_deref())).await;
            let page = page.unwrap_or_else(|_| Err(format!("no answer within {PATIENCE:?}")));
            let page = page.and_then(|page| Page::of(&page));
            pages.push((url, page.map_err(|why| format!("{url}: {why}"))?));
        }
        Ok(Page::sum(
            pages.iter().map(|(url, page)| (url.as_str(), page)),
        ))
    }
}

/// The texts that `{1..4}` in one stands for.
fn expanded(text: &str) -> Result<Vec<String>, String> {
    let Some((before, rest)) = text.split_once('{') else {
        return Ok(vec![text.to_owned()]);
    };
    let range = rest.split_once('}').and_then(|(range, after)| {
        let (first, last) = range.split_once("..")?;
        let numbers = first.parse::<u32>().ok()?..=last.parse::<u32>().ok()?;
        let fits = numbers.clone().count().wrapping_sub(1) < MOST_SERVERS;
        (fits && !after.contains('{')).then_some((numbers, after))
    });
    let (numbers, after) = range.ok_or_else(|| {
        format!("{text}: write {{1..4}} for four servers; {MOST_SERVERS} are the most")
    })?;
    Ok(numbers
        .map(|number| format!("{before}{number}{after}"))
        .collect())
}

/// Fetches a page of metrics.
async fn page(url: &str, token: Option<&str>) -> Result<String, String> {
    let uri: http::Uri = url.parse().map_err(|error| format!("no URL: {error}"))?;
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
    let request = http::Request::get(path).header(
        http::header::HOST,
        uri.authority().map_or(host, |all| all.as_str()),
    );
    let request = match token {
        Some(token) => request.header(http::header::AUTHORIZATION, secret(token)?),
        None => request,
    };
    let request = request
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

fn secret(token: &str) -> Result<http::HeaderValue, String> {
    let value = http::HeaderValue::from_str(&format!("Bearer {token}"));
    let mut value = value.map_err(|_| format!("{TOKEN} is no token"))?;
    value.set_sensitive(true);
    Ok(value)
}

/// What one page says, by the server that it names: two nodes may tell of the same one.
#[derive(Debug, PartialEq)]
struct Page {
    bytes: BTreeMap<String, u64>,
    ops: BTreeMap<String, u64>,
    clients: Option<u64>,
    model: Option<String>,
    line_rate: Option<f64>,
}

impl Page {
    fn of(page: &str) -> Result<Self, String> {
        let rates = samples(page, "s3sim_model_line_rate_bytes_per_second");
        let rates = rates.filter(|(_, rate)| *rate > 0.0 && rate.is_finite());
        let clients = by_server(page, "s3sim_rdma_clients_seen", "clients")?;
        Ok(Self {
            bytes: needed(page, "minio_api_rdma_read_bytes_total", "bytes")?,
            ops: needed(page, "minio_api_rdma_read_ops_total", "operations")?,
            clients: clients.into_values().max(),
            model: samples(page, "s3sim_model_info").find_map(|(labels, _)| label(labels, "model")),
            line_rate: rates
                .map(|(_, rate)| rate)
                .reduce(|sum, rate| sum + rate)
                .filter(|sum| sum.is_finite()),
        })
    }

    /// All pages, by where they are from. Of a server that several tell of, the latest count counts.
    fn sum<'a>(pages: impl Iterator<Item = (&'a str, &'a Page)>) -> Counters {
        let (mut bytes, mut ops) = (BTreeMap::new(), BTreeMap::new());
        let mut all = Counters::default();
        for (url, page) in pages {
            for (counts, all) in [(&page.bytes, &mut bytes), (&page.ops, &mut ops)] {
                for (server, count) in counts {
                    let server = match server.is_empty() {
                        true => url,
                        false => server,
                    };
                    let known = all.entry(server.to_owned()).or_insert(0);
                    *known = (*known).max(*count);
                }
            }
            all.clients = all.clients.max(page.clients);
            all.model = all.model.or_else(|| page.model.clone());
            all.line_rate = all.line_rate.or(page.line_rate);
        }
        let sum = |counts: BTreeMap<String, u64>| {
            let counts = counts.into_values();
            counts.fold(0, |sum: u64, count| sum.saturating_add(count))
        };
        (all.bytes, all.ops) = (sum(bytes), sum(ops));
        all
    }
}

fn needed(page: &str, name: &str, of: &str) -> Result<BTreeMap<String, u64>, String> {
    let counts = by_server(page, name, of)?;
    match counts.is_empty() {
        true => Err(format!("it has no {name}")),
        false => Ok(counts),
    }
}

/// A counter, by the server that its label names; samples of other labels are summed.
fn by_server(page: &str, name: &str, of: &str) -> Result<BTreeMap<String, u64>, String> {
    let mut counts = BTreeMap::new();
    let mut total = 0.0;
    for (labels, value) in samples(page, name) {
        total += value;
        if !(value >= 0.0 && total < MOST) {
            return Err(format!(
                "{name} {value}: a counter that is no number of {of}"
            ));
        }
        let server = label(labels, "server").unwrap_or_default();
        *counts.entry(server).or_insert(0) += value as u64;
    }
    Ok(counts)
}

/// The value of a label.
fn label(labels: &str, name: &str) -> Option<String> {
    let rest = labels.split_once(&format!("{name}=\""))?.1;
    Some(rest.split_once('"')?.0.to_owned())
}

/// The sum of a counter's samples that have a label.
pub(crate) fn sum_of(page: &str, name: &str, labelled: &str) -> u64 {
    let of = samples(page, name).filter(|(labels, _)| labels.contains(labelled));
    of.map(|(_, value)| value as u64)
        .fold(0, u64::saturating_add)
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

    fn read_page(page: &str) -> Result<Counters, String> {
        let page = Page::of(page)?;
        Ok(Page::sum([("http://a", &page)].into_iter()))
    }

    fn read(urls: &[&str]) -> Result<Counters, String> {
        let urls = urls.iter().map(|&url| url.to_owned()).collect();
        Servers { urls, token: None }.read()
    }

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
        let read = read_page(PAGE).unwrap();
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
    fn a_server_that_two_nodes_tell_of_counts_once() {
        let page = |a: u64, b: u64| {
            let text = format!(
                "minio_api_rdma_read_bytes_total{{server=\"a\"}} {a}\nminio_api_rdma_read_bytes_total{{server=\"b\"}} {b}\nminio_api_rdma_read_ops_total 1\n"
            );
            Page::of(&text).unwrap()
        };
        let (one, other) = (page(10, 5), page(11, 5));
        let all = Page::sum([("http://x", &one), ("http://y", &other)].into_iter());
        assert_eq!((all.bytes, all.ops), (16, 2));
    }

    #[test]
    fn a_text_stands_for_one_server_or_for_several() {
        let of = |text: &str| Servers::of(&[text.to_owned()]).map(|servers| servers.urls);
        assert_eq!(of("a:9000").unwrap(), ["http://a:9000"]);
        let two = ["http://a-1:9000/x", "http://a-2:9000/x"];
        assert_eq!(of("http://a-{1..2}:9000/x").unwrap(), two);
        for text in [
            "a{",
            "a{1}",
            "a{1..}",
            "a{2..1}",
            "a{0..4294967295}",
            "a{x..y}",
            "a{1..2}{1..2}",
            "",
            "http://[",
            "ftp://x",
            "https://x:1",
        ] {
            assert!(of(text).is_err(), "{text}");
        }
        let servers = Servers {
            urls: Vec::new(),
            token: Some("hidden".into()),
        };
        assert!(!format!("{servers:?}").contains("hidden"));
    }

    #[test]
    fn the_token_is_sent_to_who_wants_it() {
        use std::io::Write;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let answer = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = [0; 1024];
            let read = stream.read(&mut asked).unwrap();
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{PAGE}",
                PAGE.len()
            );
            stream.write_all(head.as_bytes()).unwrap();
            String::from_utf8_lossy(&asked[..read]).into_owned()
        });
        let token = Some("abc".to_owned());
        let servers = Servers {
            urls: vec![url],
            token,
        };
        assert_eq!(servers.read().unwrap().bytes, 1024);
        assert!(
            answer
                .join()
                .unwrap()
                .contains("authorization: Bearer abc\r\n")
        );
    }

    #[test]
    fn a_page_without_the_counters_says_which_one_is_missing() {
        let why = read_page("minio_api_rdma_read_bytes_total 1").unwrap_err();
        assert_eq!(why, "it has no minio_api_rdma_read_ops_total");
    }

    #[test]
    fn a_counter_that_is_no_number_is_an_error() {
        for value in ["-1", "NaN", "+Inf", "-Inf", "1e300", "many"] {
            for (there, of) in [("} 24", "bytes"), ("_total 2\n", "operations")] {
                let start = there.trim_end_matches(|c: char| c != ' ');
                let page = PAGE.replace(there, &format!("{start}{value}\n"));
                let why = read_page(&page).unwrap_err();
                let expected = format!(": a counter that is no number of {of}");
                assert!(why.ends_with(&expected), "{value}: {why}");
            }
            let page = format!("{PAGE}s3sim_rdma_clients_seen {value}\n");
            assert!(read_page(&page).is_err(), "{value}");
        }
        // Each is one, and the sum is none.
        let page = PAGE.replace("1000", "1e19").replace(" 24", " 1e19");
        assert!(read_page(&page).is_err());
    }

    #[test]
    fn a_line_rate_that_is_none_is_ignored() {
        for rate in ["+Inf", "NaN", "-8e8", "0", "fast"] {
            let read = read_page(&PAGE.replace("8e8", rate)).unwrap();
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
            assert_eq!(read(&[&url]).unwrap().bytes, 1024);
        }
        answers.join().unwrap();
    }

    #[test]
    fn a_server_that_does_not_tell_is_named() {
        let why = read(&["http://127.0.0.1:1"]).unwrap_err();
        assert!(why.starts_with("http://127.0.0.1:1: "), "{why}");
        assert!(read(&["https://127.0.0.1:1"]).is_err());
    }

    proptest! {
        #[test]
        fn any_page_is_read_or_refused(page in "(minio_api_rdma_read_(bytes|ops)_total)?[ {}a-z=\"0-9\n.]{0,80}") {
            let _ = read_page(&page);
        }
    }
}
