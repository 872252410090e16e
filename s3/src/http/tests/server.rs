//! A server that follows a script, byte by byte.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use crate::credentials::Credentials;
use crate::endpoint::Endpoint;
use crate::http::Client;
use crate::network::Network;
use crate::timeouts::Timeouts;
use crate::upstream::Upstream;

/// What the server does once a request has arrived.
#[derive(Clone)]
pub enum Step {
    /// Answers, and waits for the next request or the client's end.
    Answer(Vec<u8>),
    /// Answers, and closes.
    Close(Vec<u8>),
    /// Answers, and resets the connection.
    Reset(Vec<u8>),
    /// Answers, and says nothing more until the client closes.
    Silence(Vec<u8>),
}

/// A server with one list of steps for each connection.
pub struct Server {
    pub endpoint: Endpoint,
    /// The head of each request that arrived; `None` where the client closed a silent connection.
    pub requests: Receiver<Option<String>>,
    /// How long its clients wait for more: long on a busy host, short where it is silent by intent.
    pub patience: Duration,
}

impl Server {
    pub fn start(connections: Vec<Vec<Step>>) -> Server {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (arrived, requests) = channel();
        let is_silent = |step: &Step| matches!(step, Step::Silence(_));
        let patience = match connections.iter().flatten().any(is_silent) {
            true => Duration::from_millis(150),
            false => Duration::from_secs(5),
        };
        thread::spawn(move || {
            for steps in connections {
                let (stream, _) = listener.accept().unwrap();
                let arrived = arrived.clone();
                thread::spawn(move || follow(stream, steps, |request| drop(arrived.send(request))));
            }
        });
        Server {
            endpoint: Endpoint::parse(&format!("http://127.0.0.1:{port}")).unwrap(),
            requests,
            patience,
        }
    }

    pub fn one(step: Step) -> Server {
        Server::start(vec![vec![step]])
    }

    pub fn client(&self) -> Client {
        Client::new(self.upstream(Network::default()))
    }

    pub fn client_of(&self, credentials: Credentials) -> Client {
        Client::new(self.upstream_of(credentials, Network::default()))
    }

    pub fn upstream(&self, network: Network) -> Arc<Upstream> {
        self.upstream_of(Credentials::new("id", "hidden", None).unwrap(), network)
    }

    fn upstream_of(&self, credentials: Credentials, network: Network) -> Arc<Upstream> {
        let timeouts = Timeouts {
            connect: Duration::from_secs(5),
            first_byte: self.patience,
            stall: self.patience,
            ..Timeouts::default()
        };
        Upstream::new(self.endpoint.clone(), credentials, timeouts, network).unwrap()
    }

    pub fn next(&self) -> Option<String> {
        self.requests.recv_timeout(Duration::from_secs(10)).unwrap()
    }
}

fn follow(stream: TcpStream, steps: Vec<Step>, arrived: impl Fn(Option<String>)) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut writer = stream;
    for step in steps {
        let Some(request) = read_head(&mut reader) else {
            return;
        };
        arrived(Some(request));
        let (Step::Answer(bytes) | Step::Close(bytes) | Step::Reset(bytes) | Step::Silence(bytes)) =
            &step;
        if writer.write_all(bytes).is_err() {
            return;
        }
        match step {
            Step::Answer(_) => {}
            Step::Close(_) => return,
            Step::Reset(_) => {
                rustix::net::sockopt::set_socket_linger(&writer, Some(Duration::ZERO)).unwrap();
                return;
            }
            Step::Silence(_) => {
                assert!(read_head(&mut reader).is_none());
                arrived(None);
            }
        }
    }
    // Closing at once would race with what a test looks at after its last answer.
    read_head(&mut reader);
}

/// The lines up to the empty one; `None` where the client closed.
fn read_head(reader: &mut impl BufRead) -> Option<String> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    Some(head)
}

pub fn answer(status: &str, headers: &[&str], body: &[u8]) -> Vec<u8> {
    let mut text = format!("HTTP/1.1 {status}\r\n");
    for header in headers {
        text += header;
        text += "\r\n";
    }
    text += "\r\n";
    [text.as_bytes(), body].concat()
}

pub fn ok(body: &[u8]) -> Vec<u8> {
    answer(
        "200 OK",
        &[&format!("Content-Length: {}", body.len()), "ETag: \"a\""],
        body,
    )
}

pub fn partial(range: &str, etag: &str, body: &[u8]) -> Vec<u8> {
    let length = format!("Content-Length: {}", body.len());
    let range = format!("Content-Range: bytes {range}");
    answer(
        "206 Partial Content",
        &[&length, &range, &format!("ETag: {etag}")],
        body,
    )
}
