//! The endpoint as this host reaches it: its name, its addresses, its clock, its answers, and one GET by RDMA.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant, SystemTime};

use s3engine::{Endpoint, Engine, Error, Get, ListQuery, Memory, Origin};

use super::bounded::within;
use super::finding::Finding;
use crate::config::Settings;
use crate::exit::Failure;
use crate::interrupt::Interrupt;
use crate::wait::wait_for;

/// Addresses of one name that are tried.
const MOST: usize = 8;
/// What one GET asks for at most.
const PART: u64 = 1 << 20;
/// How far clocks may be apart before servers refuse signatures.
const SKEW: u64 = 900;

/// Where an endpoint is.
pub(crate) struct Reached {
    pub(crate) findings: Vec<Finding>,
    /// Addresses that were connected to.
    pub(crate) addresses: Vec<IpAddr>,
}

/// Looks the name of each of its servers up, and connects.
pub(crate) fn reach(endpoint: &Endpoint, bound: Duration) -> Reached {
    let mut reached = Reached {
        findings: Vec::new(),
        addresses: Vec::new(),
    };
    for server in endpoint.origins() {
        reached.try_server(server, bound);
    }
    reached
}

impl Reached {
    fn try_server(&mut self, server: &Origin, bound: Duration) {
        const NAME: &str = "endpoint";
        let host = server.host();
        let name = (host.clone(), server.port());
        let looked_up = within(bound, move || name.to_socket_addrs().map(Vec::from_iter));
        let found = match looked_up {
            Ok(Ok(found)) => found,
            Ok(Err(error)) => {
                let what = format!("{host} is not found: {error}");
                return self.findings.push(Finding::fail(NAME, what));
            }
            Err(late) => {
                let what = format!("looking {host} up: {late}");
                return self.findings.push(Finding::fail(NAME, what));
            }
        };
        let mut asks_for_time = !server.is_secure();
        for address in found.iter().take(MOST) {
            let began = Instant::now();
            match TcpStream::connect_timeout(address, bound) {
                Ok(stream) => {
                    let took = began.elapsed().as_secs_f64() * 1000.0;
                    self.addresses.push(address.ip());
                    let what = format!("{address} answers in {took:.1} ms");
                    self.findings.push(Finding::ok(NAME, what));
                    if std::mem::take(&mut asks_for_time) {
                        let time = clock(stream, &server.authority(), bound);
                        self.findings.push(time);
                    }
                }
                Err(error) => self.findings.push(
                    Finding::fail(NAME, format!("{address}: {error}"))
                        .help("is the server up, and the port open between the two?"),
                ),
            }
        }
    }
}

/// How far the server's clock is from this one.
fn clock(mut stream: TcpStream, host: &str, bound: Duration) -> Finding {
    const NAME: &str = "clock";
    let unknown = |why: String| Finding::skip(NAME, format!("the server's is not known: {why}"));
    let mut head = [0; 4096];
    let mut ask = || {
        stream.set_read_timeout(Some(bound))?;
        stream.set_write_timeout(Some(bound))?;
        write!(
            stream,
            "HEAD / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        )?;
        stream.read(&mut head)
    };
    let read = match ask() {
        Ok(read) => read,
        Err(error) if error.kind() == ErrorKind::WouldBlock => {
            return unknown(format!("no answer within {} s", bound.as_secs_f64()));
        }
        Err(error) => return unknown(error.to_string()),
    };
    judge_clock(&String::from_utf8_lossy(&head[..read]), SystemTime::now())
        .unwrap_or_else(|| unknown("its answer has no Date".into()))
}

fn judge_clock(head: &str, now: SystemTime) -> Option<Finding> {
    let date = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("date").then_some(value.trim())
    })?;
    let date = httpdate::parse_http_date(date).ok()?;
    let apart = match now.duration_since(date) {
        Ok(behind) => behind,
        Err(ahead) => ahead.duration(),
    };
    let what = format!("this one and the server's are {} s apart", apart.as_secs());
    Some(match apart.as_secs() {
        0..=60 => Finding::ok("clock", what),
        61..SKEW => Finding::warn("clock", what).help("set this host's clock (chronyc, timedatectl)"),
        _ => Finding::warn("clock", what)
            .means("servers refuse signatures of such a time; the engine corrects for it as it hears of it")
            .help("set this host's clock (chronyc, timedatectl)"),
    })
}

/// Who signs.
pub(crate) fn credentials(settings: &Settings) -> Finding {
    const NAME: &str = "credentials";
    match settings.credentials() {
        Ok(nobody) if nobody.is_anonymous() => Finding::warn(NAME, "none: requests are not signed"),
        Ok(fetched) if fetched.is_fetched() => Finding::ok(
            NAME,
            "fetched: from a profile, a web identity, a container's agent or the instance",
        ),
        Ok(_) => Finding::ok(NAME, "a key pair from the environment"),
        Err(error) => Finding::fail(NAME, error.to_string()),
    }
}

/// What asking for a bucket and one of its objects has shown.
pub(crate) struct Asked {
    pub(crate) findings: Vec<Finding>,
    /// How it went, or an object that comes by HTTP, and how much of it.
    pub(crate) outcome: Result<(String, u64), Outcome>,
}

/// The same in short.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// A GET has gone by RDMA.
    ByRdma,
    /// A GET goes by HTTP, and why not by RDMA.
    ByHttp(String),
    /// The server answers; there was no object to try with.
    Untried,
    /// The server answers that there is no such bucket or object.
    Missing,
    /// Nothing works.
    Fails,
}

/// Lists a bucket, and gets one object by HTTP.
pub(crate) fn ask(
    engine: &Engine,
    bucket: &str,
    key: Option<&str>,
    until: Instant,
    interrupt: &Interrupt,
) -> Result<Asked, Failure> {
    let mut asked = Asked {
        findings: Vec::new(),
        outcome: Err(Outcome::Untried),
    };
    let late = || Failure::Other("the time is over".into());
    let object = match key {
        Some(key) => {
            let head = wait_for(engine.head(bucket, key), Some(until), late, interrupt)?;
            match head {
                Ok(info) => Some((key.to_owned(), info.size.unwrap_or(0))),
                Err(error) => return Ok(asked.failing("bucket", &error)),
            }
        }
        None => {
            let mut lister = engine.list(bucket, ListQuery::default());
            let page = wait_for(lister.next(), Some(until), late, interrupt)?;
            let objects = match page {
                Ok(page) => page.map_or_else(Vec::new, |page| page.objects),
                Err(error) => return Ok(asked.failing("bucket", &error)),
            };
            let largest = objects.into_iter().max_by_key(|object| object.size);
            largest.map(|object| (object.key, object.size))
        }
    };
    let what = format!("{bucket} answers");
    asked.findings.push(Finding::ok("bucket", what));
    let (key, size) = match object {
        Some((key, size)) if size > 0 => (key, size),
        empty => {
            let what = match empty {
                Some((key, _)) => {
                    format!("{bucket}/{key} has no bytes to try with: --key names another")
                }
                None => format!("{bucket} lists no object to try with: --key names one"),
            };
            asked.findings.push(Finding::skip("get", what));
            return Ok(asked);
        }
    };
    let len = size.min(PART);
    let buffer = engine.pool().try_alloc(len, Memory::Host);
    let buffer = buffer.map_err(|error| Failure::Other(error.to_string()))?;
    let get = Get::new(bucket, key.as_str()).range(0, len).into(buffer);
    let got = wait_for(engine.get(get), Some(until), late, interrupt)?;
    if let Some(error) = got.error() {
        return Ok(asked.failing("get", error));
    }
    let what = format!("{len} bytes of {key} by HTTP");
    asked.findings.push(Finding::ok("get", what));
    asked.outcome = Ok((key, len));
    Ok(asked)
}

impl Asked {
    fn failing(mut self, name: &'static str, error: &Error) -> Self {
        let finding = Finding::fail(name, error.to_string());
        let (helped, outcome) = match error.status() {
            Some(403) => (
                finding
                    .help("the keys may not, or are wrong: s3engine -v get tells the whole story"),
                Outcome::Fails,
            ),
            Some(404) => (finding.help("is the name right?"), Outcome::Missing),
            _ => (finding, Outcome::Fails),
        };
        self.findings.push(helped);
        self.outcome = Err(outcome);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Verdict;

    #[test]
    fn clocks_are_compared_by_the_servers_date() {
        let now = httpdate::parse_http_date("Tue, 01 Dec 2026 10:00:00 GMT").unwrap();
        let judged =
            |date: &str| judge_clock(&format!("HTTP/1.1 200 OK\r\ndAtE: {date}\r\n\r\n"), now);
        let verdict = |date| judged(date).unwrap().verdict;
        assert_eq!(verdict("Tue, 01 Dec 2026 10:00:30 GMT"), Verdict::Ok);
        assert_eq!(verdict("Tue, 01 Dec 2026 09:50:00 GMT"), Verdict::Warn);
        assert!(
            judged("Tue, 01 Dec 2026 12:00:00 GMT")
                .unwrap()
                .means
                .is_some()
        );
        assert_eq!(judged("soon"), None);
    }
}
