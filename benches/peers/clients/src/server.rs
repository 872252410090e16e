//! The server: one object's bytes under any name that tells a length, by ranges, without asking who wants them.
//!
//! A thread a connection, so that it costs what the kernel's copy costs: `sendfile` from memory, or TLS over that.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::{env, thread};

use clap::Args;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create, sendfile};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection};

use crate::work::Result;

/// Heads of requests are shorter.
const HEAD: usize = 8 << 10;
/// The longest object.
pub const LONGEST: u64 = 1 << 30;

/// How it is started.
#[derive(Args, Debug)]
pub struct Options {
    /// Speak TLS, with a certificate that is written into this folder
    #[arg(long)]
    tls: Option<PathBuf>,
}

/// A server in a process of its own, which ends with this value.
pub struct Server {
    child: Child,
    pub address: SocketAddr,
    pub ca: Option<PathBuf>,
}

impl Server {
    pub fn start(tls: Option<&Path>) -> Result<Server> {
        let mut command = Command::new(env::current_exe()?);
        command.arg("server");
        if let Some(folder) = tls {
            command.arg("--tls").arg(folder);
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut told = String::new();
        let stdout = child.stdout.take().ok_or("no output")?;
        io::BufRead::read_line(&mut io::BufReader::new(stdout), &mut told)?;
        let address = told
            .trim()
            .parse()
            .map_err(|_| format!("the server said {told:?}"))?;
        let ca = tls.map(|folder| folder.join("ca.pem"));
        Ok(Server { child, address, ca })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn run(options: &Options) -> Result<()> {
    let bytes = Arc::new(bytes()?);
    let tls = options.tls.as_deref().map(tls).transpose()?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    println!("{}", listener.local_addr()?);
    // It ends with whoever has started it: with its standard input.
    thread::spawn(|| {
        let _ = io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    loop {
        let (socket, _) = listener.accept()?;
        let (bytes, tls) = (Arc::clone(&bytes), tls.clone());
        // Clients come and go as they like.
        thread::spawn(move || match tls {
            None => plain(socket, &bytes),
            Some(tls) => secure(socket, tls, &bytes),
        });
    }
}

/// The object: no two of its pages are the same.
fn bytes() -> io::Result<File> {
    let mut file = File::from(memfd_create("object", MemfdFlags::CLOEXEC)?);
    ftruncate(&file, LONGEST)?;
    let mut page: Vec<u8> = (0..1 << 20)
        .map(|at: u32| (at * 7 + at / 251) as u8)
        .collect();
    for nth in 0..LONGEST >> 20 {
        page[..8].copy_from_slice(&nth.to_le_bytes());
        file.write_all(&page)?;
    }
    Ok(file)
}

fn plain(mut socket: TcpStream, bytes: &File) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let mut input = Vec::new();
    while let Some(asked) = Asked::read(&mut socket, &mut input)? {
        socket.write_all(asked.head().as_bytes())?;
        let (mut at, end) = (asked.start, asked.end);
        while at < end {
            let most = usize::try_from(end - at).unwrap_or(usize::MAX);
            if sendfile(&socket, bytes, Some(&mut at), most)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
    Ok(())
}

/// A certificate for localhost, and what a server does with it.
fn tls(folder: &Path) -> Result<Arc<ServerConfig>> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
    fs::write(folder.join("ca.pem"), made.cert.pem())?;
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der())?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)?;
    Ok(Arc::new(config))
}

fn secure(socket: TcpStream, tls: Arc<ServerConfig>, bytes: &File) -> io::Result<()> {
    use std::os::unix::fs::FileExt;
    socket.set_nodelay(true)?;
    let session = ServerConnection::new(tls).map_err(io::Error::other)?;
    let mut stream = rustls::StreamOwned::new(session, socket);
    let mut input = Vec::new();
    let mut piece = vec![0; 256 << 10];
    while let Some(asked) = Asked::read(&mut stream, &mut input)? {
        stream.write_all(asked.head().as_bytes())?;
        let mut at = asked.start;
        while at < asked.end {
            let len = (asked.end - at).min(piece.len() as u64);
            bytes.read_exact_at(&mut piece[..len as usize], at)?;
            stream.write_all(&piece[..len as usize])?;
            at += len;
        }
        stream.flush()?;
    }
    Ok(())
}

/// What a request wants.
struct Asked {
    is_head: bool,
    ranged: bool,
    size: u64,
    start: u64,
    end: u64,
}

impl Asked {
    /// The next request; none at the end of the connection.
    fn read(stream: &mut impl Read, input: &mut Vec<u8>) -> io::Result<Option<Asked>> {
        let end = loop {
            if let Some(at) = input.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            let mut room = [0; HEAD];
            let read = stream.read(&mut room)?;
            if read == 0 || input.len() > HEAD {
                return Ok(None);
            }
            input.extend_from_slice(&room[..read]);
        };
        let head: Vec<u8> = input.drain(..end).collect();
        let malformed = || io::Error::from(io::ErrorKind::InvalidInput);
        Asked::parse(&String::from_utf8_lossy(&head))
            .ok_or_else(malformed)
            .map(Some)
    }

    fn parse(head: &str) -> Option<Asked> {
        let (_, name) = head.split_once("/sz-")?;
        let size: u64 = name
            .split(|c: char| !c.is_ascii_digit())
            .next()?
            .parse()
            .ok()?;
        let size = size.min(LONGEST);
        let range = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            let is_range = name.eq_ignore_ascii_case("range");
            is_range.then(|| value.trim().strip_prefix("bytes="))?
        });
        let (start, end) = match range.and_then(|range| range.split_once('-')) {
            None => (0, size),
            Some((start, "")) => (start.parse().ok()?, size),
            Some((start, last)) => {
                let last: u64 = last.parse().ok()?;
                (start.parse().ok()?, last.checked_add(1)?.min(size))
            }
        };
        (start <= end).then_some(Asked {
            is_head: head.starts_with("HEAD"),
            ranged: range.is_some(),
            size,
            start,
            end: if head.starts_with("HEAD") { start } else { end },
        })
    }

    fn head(&self) -> String {
        let Asked {
            start, end, size, ..
        } = self;
        let len = if self.is_head { *size } else { end - start };
        let (status, range) = match self.ranged {
            false => ("200 OK", String::new()),
            true => {
                let last = end.saturating_sub(1);
                (
                    "206 Partial Content",
                    format!("Content-Range: bytes {start}-{last}/{size}\r\n"),
                )
            }
        };
        format!(
            "HTTP/1.1 {status}\r\nContent-Length: {len}\r\n{range}ETag: \"0123456789abcdef0123456789abcdef\"\r\n\
             Last-Modified: Wed, 01 Jan 2025 00:00:00 GMT\r\nAccept-Ranges: bytes\r\n\
             Content-Type: binary/octet-stream\r\nx-amz-request-id: R\r\n\r\n"
        )
    }
}
