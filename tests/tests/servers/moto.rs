//! A second independent server, where Python has it: moto, which shares no code with this project nor with s3s.
//!
//! `pip install 'moto[server]'` brings it; without it these tests say so and pass.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use s3engine::{Engine, Get, ListQuery, Policy, PoolOptions};
use s3engine_tests::{assert_invariants, block_on, credentials, keys_and_prefixes, quick_builder};

const BUCKET: &str = "files";

/// Serves at a free port, which it prints, until its stdin ends: it cannot outlive its test.
const SERVE: &str = "
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address='127.0.0.1', port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
server.stop()
";

/// A server with one bucket.
pub struct Moto {
    process: Child,
    port: u16,
}

impl Moto {
    /// `None` where it is not installed.
    pub fn start() -> Option<Self> {
        let import = python("import moto.server").stderr(Stdio::null()).status();
        if !import.is_ok_and(|status| status.success()) {
            return None;
        }
        let mut process = python(SERVE)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let stdout = process.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        let port = line.trim().parse().expect("moto prints its port");
        let moto = Self { process, port };
        moto.put("", b"");
        Some(moto)
    }

    /// Puts an object under a key that is already encoded; the bucket where that is empty.
    fn put(&self, key: &str, bytes: &[u8]) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let length = bytes.len();
        write!(
            stream,
            "PUT /{BUCKET}{key} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
        stream.write_all(bytes).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{key}: {answer}");
    }

    fn engine(&self) -> Engine {
        let pool = PoolOptions {
            slab_bytes: 8 << 20,
            max_bytes: Some(32 << 20),
            ..PoolOptions::default()
        };
        quick_builder(&format!("http://127.0.0.1:{}", self.port))
            .credentials(credentials("reader", "secret"))
            .pool(pool)
            .part_sizes(1 << 20, 1 << 20)
            .policy(Policy::Http)
            .build()
            .unwrap()
    }
}

impl super::Server for Moto {
    fn name(&self) -> &str {
        "moto"
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn key_pair(&self) -> (&str, &str) {
        ("reader", "secret")
    }

    fn bucket(&self) -> &str {
        BUCKET
    }

    fn keep(&self, key: &str, bytes: &[u8]) {
        const PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/');
        self.put(&format!("/{}", utf8_percent_encode(key, PATH)), bytes);
    }

    fn refuses(&self, key: &str) -> Option<&'static str> {
        key.contains('\n').then_some("its routes end with a line")
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn python(program: &str) -> Command {
    let mut command = Command::new("python3");
    command.args(["-c", program]).stdin(Stdio::null());
    command
}

fn fetch(engine: &Engine, get: Get) -> Vec<u8> {
    let completion = block_on(engine.get(get));
    assert_invariants(&completion, Policy::Http);
    assert!(completion.is_ok(), "{}", completion.error().unwrap());
    completion.data().unwrap_or_default().to_vec()
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
}

#[test]
fn objects_come_whole_ranged_and_in_parts() {
    let Some(moto) = Moto::start() else {
        return println!("skipped: moto is not installed");
    };
    let engine = moto.engine();
    let bytes = pattern((5 << 20) + 12_345);
    moto.put("/large", &bytes);
    moto.put("/empty", b"");
    assert!(fetch(&engine, Get::new(BUCKET, "large")) == bytes);
    for (offset, len) in [(0, 1), (1_048_575, 2), (3_000_000, 2_000_000)] {
        let get = Get::new(BUCKET, "large").range(offset, len);
        let wanted = &bytes[offset as usize..(offset + len) as usize];
        assert!(fetch(&engine, get) == wanted, "{len} bytes at {offset}");
    }
    assert!(fetch(&engine, Get::new(BUCKET, "empty")).is_empty());
    let info = block_on(engine.head(BUCKET, "large")).unwrap();
    assert_eq!(info.size, Some(bytes.len() as u64));
    assert!(info.etag.is_some());
    let missing = block_on(engine.head(BUCKET, "nothing")).unwrap_err();
    assert!(missing.is_not_found(), "{missing}");
}

#[test]
fn odd_keys_are_read_and_listed_as_they_are() {
    let Some(moto) = Moto::start() else {
        return println!("skipped: moto is not installed");
    };
    let engine = moto.engine();
    let mut keys = [
        ("a space", "a%20space"),
        (" space at both ends ", "%20space%20at%20both%20ends%20"),
        ("plus+plus", "plus%2Bplus"),
        ("100%", "100%25"),
        ("%41%2f%20", "%2541%252f%2520"),
        ("grüße/ümlaut", "gr%C3%BC%C3%9Fe/%C3%BCmlaut"),
        ("🦀/crab", "%F0%9F%A6%80/crab"),
        ("query?a=b&c=d", "query%3Fa%3Db%26c%3Dd"),
        ("hash#fragment", "hash%23fragment"),
        ("quotes'\"`<>&", "quotes%27%22%60%3C%3E%26"),
        ("a//b", "a//b"),
    ];
    for (key, encoded) in keys {
        moto.put(&format!("/{encoded}"), key.as_bytes());
        assert_eq!(fetch(&engine, Get::new(BUCKET, key)), key.as_bytes());
    }
    keys.sort_unstable();
    let (found, prefixes) = keys_and_prefixes(&engine, BUCKET, ListQuery::default());
    assert_eq!(found, keys.map(|(key, _)| key));
    assert!(prefixes.is_empty());
}

#[test]
fn a_list_comes_in_pages_by_prefix_and_delimiter() {
    let Some(moto) = Moto::start() else {
        return println!("skipped: moto is not installed");
    };
    let engine = moto.engine();
    let expected: Vec<_> = (0..25).map(|i| format!("set/{i:03}")).collect();
    for key in &expected {
        moto.put(&format!("/{key}"), key.as_bytes());
    }
    moto.put("/other", b"");
    let query = ListQuery {
        prefix: "set/".into(),
        max_keys: Some(10),
        ..ListQuery::default()
    };
    let mut lister = engine.list(BUCKET, query.clone());
    let mut sizes = Vec::new();
    while let Some(page) = block_on(lister.next()).unwrap() {
        assert!(
            page.objects
                .iter()
                .all(|object| object.size == 7 && object.etag.is_some())
        );
        sizes.push(page.objects.len());
    }
    assert_eq!(sizes, [10, 10, 5]);
    assert_eq!(keys_and_prefixes(&engine, BUCKET, query).0, expected);
    let query = ListQuery {
        delimiter: Some("/".into()),
        ..ListQuery::default()
    };
    let (keys, prefixes) = keys_and_prefixes(&engine, BUCKET, query);
    assert_eq!(
        (keys, prefixes),
        (vec!["other".to_owned()], vec!["set/".to_owned()])
    );
    let query = ListQuery {
        start_after: Some("set/019".into()),
        max_keys: Some(2),
        ..ListQuery::default()
    };
    assert_eq!(keys_and_prefixes(&engine, BUCKET, query).0, expected[20..]);
    let missing = block_on(engine.list("nowhere", ListQuery::default()).next()).unwrap_err();
    assert_eq!(missing.code(), Some("NoSuchBucket"));
}
