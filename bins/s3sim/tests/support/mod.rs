//! A client as bare as it can be: sees exactly what comes over the wire.
#![allow(dead_code, missing_docs)]

pub mod memory;

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use s3sim::{Rule, Sim, SimOptions};

/// The longest wait for anything.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A server that wants no signatures, with these rules.
pub fn sim(rules: impl IntoIterator<Item = Rule>) -> Sim {
    start(SimOptions {
        faults: rules.into_iter().collect(),
        ..options()
    })
}

pub fn options() -> SimOptions {
    SimOptions {
        anonymous: true,
        threads: 2,
        ..SimOptions::default()
    }
}

pub fn start(options: SimOptions) -> Sim {
    Sim::start(options).unwrap()
}

/// An answer with its body as it came.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self
            .headers
            .iter()
            .find(|(n, _)| n.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// The text of an XML element.
    pub fn element(&self, tag: &str) -> Option<&str> {
        self.elements(tag).first().copied()
    }

    pub fn elements(&self, tag: &str) -> Vec<&str> {
        let open = format!("<{tag}>");
        let parts = self.text().split(&open).skip(1);
        parts
            .map(|part| part.split_once(&format!("</{tag}>")).unwrap().0)
            .collect()
    }
}

pub struct Client {
    pub stream: TcpStream,
    host: String,
}

impl Client {
    pub fn connect(sim: &Sim) -> Client {
        let stream = TcpStream::connect(sim.addr()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Client {
            stream,
            host: sim.addr().to_string(),
        }
    }

    /// Sends a request without a body.
    pub fn send(&mut self, method: &str, target: &str, headers: &[(&str, &str)]) {
        let mut text = format!("{method} {target} HTTP/1.1\r\nHost: {}\r\n", self.host);
        for (name, value) in headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        self.stream
            .write_all(format!("{text}\r\n").as_bytes())
            .unwrap();
    }

    /// Reads a head, byte by byte so that nothing of the body is taken with it.
    pub fn head(&mut self) -> io::Result<Reply> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            self.stream.read_exact(&mut byte)?;
            head.push(byte[0]);
        }
        let text = String::from_utf8(head).unwrap();
        let mut lines = text.trim_end().split("\r\n");
        let status = lines
            .next()
            .unwrap()
            .split(' ')
            .nth(1)
            .unwrap()
            .parse()
            .unwrap();
        let split = |line: &str| {
            let (name, value) = line.split_once(": ").unwrap();
            (name.to_owned(), value.to_owned())
        };
        Ok(Reply {
            status,
            headers: lines.map(split).collect(),
            body: Vec::new(),
        })
    }

    /// Reads head and as much body as `Content-Length` says.
    pub fn reply(&mut self) -> io::Result<Reply> {
        let mut reply = self.head()?;
        reply.body = vec![0; reply.header("content-length").unwrap().parse().unwrap()];
        self.stream.read_exact(&mut reply.body)?;
        Ok(reply)
    }

    pub fn get(&mut self, target: &str, headers: &[(&str, &str)]) -> Reply {
        self.send("GET", target, headers);
        self.reply().unwrap()
    }

    pub fn head_of(&mut self, target: &str, headers: &[(&str, &str)]) -> Reply {
        self.send("HEAD", target, headers);
        self.head().unwrap()
    }

    /// Reads until the connection ends; what came, and how it ended.
    pub fn rest(&mut self) -> (Vec<u8>, io::Result<()>) {
        let mut bytes = Vec::new();
        let end = self.stream.read_to_end(&mut bytes).map(drop);
        (bytes, end)
    }

    /// Asserts that the connection is there and nothing comes for a while.
    pub fn assert_silent(&mut self, time: Duration) {
        self.stream.set_read_timeout(Some(time)).unwrap();
        let error = self.stream.read(&mut [0]).expect_err("something came");
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        self.stream.set_read_timeout(Some(PATIENCE)).unwrap();
    }
}
