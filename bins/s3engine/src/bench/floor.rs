//! What no client can beat here, measured in the same run.
//!
//! - HTTP: as many connections as there are requests in flight, each a thread that sends a request made beforehand
//!   and receives with MSG_WAITALL into touched memory of the engine's pool. No signing, no checks, no queue.
//! - RDMA over loopback: copies of the simulator's bytes into that memory, by as many threads as the simulator
//!   copies with.
//! - RDMA into a GPU: copies from pinned memory to it, of the same size and as many at once.

use std::io::{self, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

use http::header::RANGE;
use http::{HeaderMap, HeaderValue, Method};
use rustix::net::{RecvFlags, recv};
use s3engine::cuda::{Gpu, measure_copy};
use s3engine::{Buffer, Credentials, Engine, Memory, PoolError};
use s3engine_s3::signing::{Payload, sign_request};
use s3sim::content;

use crate::bench::rows::{HTTP_PART, Row};
use crate::bench::watch::Watch;
use crate::bench::window::{Clock, Phase, Times, Window, lead};
use crate::exit::Failure;

/// The longest wait for bytes of the server.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest head of an answer.
const HEAD: usize = 8192;

/// Larger copies are no faster, and neither are more at once; pinning memory takes time.
const MOST_CHUNK: u64 = 64 << 20;
const MOST_COPIES: usize = 64;

/// What a floor is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Bare sockets.
    Recv,
    /// Copies in memory.
    Memcpy,
    /// Copies from pinned memory to GPUs.
    Copy,
}

impl Kind {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Kind::Recv => "recv",
            Kind::Memcpy => "memcpy",
            Kind::Copy => "copy",
        }
    }
}

/// A measured floor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Floor {
    pub(crate) kind: Kind,
    /// Connections, threads that copy, or copies at once.
    pub(crate) workers: usize,
    pub(crate) gb_per_s: f64,
    pub(crate) cpu_s_per_gib: Option<f64>,
}

/// Measures the floor of HTTP for a row.
pub(crate) fn http(
    engine: &Engine,
    credentials: &Credentials,
    (bucket, keys): (&str, &[Arc<str>]),
    row: Row,
    (connections, times): (usize, Times),
    watch: Watch<'_>,
) -> Result<Floor, Failure> {
    let part = row.size.0.min(HTTP_PART);
    let mut requests = Vec::with_capacity(keys.len());
    for key in keys {
        let request = request(engine, credentials, bucket, key, row);
        requests.push(request.map_err(|why| Failure::Other(format!("floor: {why}")))?);
    }
    let pairs = (0..connections)
        .map(|nth| Ok((connect(engine)?, lease(engine, part)?, nth)))
        .collect::<Result<Vec<_>, Failure>>()?;
    let requests = &requests;
    let workers = pairs.into_iter().map(|(mut stream, mut buffer, nth)| {
        let mut turn = nth;
        move || {
            turn += 1;
            let into = buffer.as_mut_slice().unwrap_or_default();
            get(&mut stream, &requests[turn % requests.len()], into)
        }
    });
    let window = run(workers.collect(), times, watch)?;
    Ok(floor(Kind::Recv, connections, window, part))
}

/// Measures the floor of one-sided writes on this host for a row.
pub(crate) fn memcpy(
    engine: &Engine,
    key: &str,
    row: Row,
    (copiers, times): (usize, Times),
    watch: Watch<'_>,
) -> Result<Floor, Failure> {
    let copiers = copiers.min(row.gets()).max(1);
    let mut sets: Vec<Vec<Buffer>> = (0..copiers).map(|_| Vec::new()).collect();
    for nth in 0..row.gets() {
        sets[nth % copiers].push(lease(engine, row.size.0)?);
    }
    let workers = sets.into_iter().map(|mut set| {
        let mut turn = 0;
        move || {
            turn = (turn + 1) % set.len();
            let into = set[turn].as_mut_slice().unwrap_or_default();
            content::fill(key, 0, 0, std::hint::black_box(into));
            Ok(())
        }
    });
    let window = run(workers.collect(), times, watch)?;
    Ok(floor(Kind::Memcpy, copiers, window, row.size.0))
}

/// Measures the floor of one-sided writes into GPUs for a row: all of them at once.
pub(crate) fn copies(
    memories: &[Memory],
    row: Row,
    times: Times,
    watch: Watch<'_>,
) -> Result<Floor, Failure> {
    let chunk = row.size.0.min(MOST_CHUNK);
    let depth = |nth| gets_into(row, nth, memories.len()).min(MOST_COPIES);
    let copy = |memory: Memory, depth: usize| match memory {
        Memory::Cuda(uuid) => measure_copy(Gpu::find(uuid)?, chunk, depth, times.window),
        _ => Ok(0.0),
    };
    watch.check()?;
    let bytes_per_s = thread::scope(|scope| {
        let copy = &copy;
        let each = memories.iter().enumerate();
        let used = each.filter(|&(nth, _)| depth(nth) > 0);
        let copying: Vec<_> = used
            .map(|(nth, &memory)| scope.spawn(move || copy(memory, depth(nth))))
            .collect();
        let mut sum = 0.0;
        for thread in copying {
            let lost = |_| Failure::Other("a thread of the floor panicked".into());
            let rate = thread.join().map_err(lost)?;
            sum += rate.map_err(|error| Failure::Build(PoolError::from(error).into()))?;
        }
        Ok::<f64, Failure>(sum)
    })?;
    watch.check()?;
    Ok(Floor {
        kind: Kind::Copy,
        workers: (0..memories.len()).map(depth).sum(),
        gb_per_s: bytes_per_s / 1e9,
        cpu_s_per_gib: None,
    })
}

/// GETs in flight of those threads whose turn gave them the `nth` of so many kinds of memory.
fn gets_into(row: Row, nth: usize, kinds: usize) -> usize {
    let threads = row.threads.saturating_sub(nth).div_ceil(kinds);
    threads.saturating_mul(row.in_flight)
}

fn floor(kind: Kind, workers: usize, (window, operations): (Window, u64), size: u64) -> Floor {
    let bytes = operations.saturating_mul(size);
    Floor {
        kind,
        workers,
        gb_per_s: window.gb_per_s(bytes),
        cpu_s_per_gib: window.cpu_s_per_gib(bytes),
    }
}

/// Runs each operation over and over on a thread of its own. Returns how many ended within the window.
fn run<O: FnMut() -> io::Result<()> + Send>(
    operations: Vec<O>,
    times: Times,
    watch: Watch<'_>,
) -> Result<(Window, u64), Failure> {
    let (clock, done) = (Clock::default(), AtomicU64::new(0));
    let work = |mut operation: O| -> io::Result<()> {
        loop {
            operation()?;
            match clock.phase() {
                Phase::WarmUp => {}
                Phase::Window => {
                    done.fetch_add(1, Ordering::Relaxed);
                }
                Phase::Stop => return Ok(()),
            }
        }
    };
    let window = thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = operations
            .into_iter()
            .map(|operation| scope.spawn(move || work(operation)))
            .collect();
        let window = lead(&clock, times, watch)?;
        for thread in threads {
            let ended = thread.join();
            let lost = |_| Failure::Other("a thread of the floor panicked".into());
            ended
                .map_err(lost)?
                .map_err(|e| Failure::Other(format!("floor: {e}")))?;
        }
        Ok::<_, Failure>(window)
    })?;
    Ok((window, done.into_inner()))
}

/// A buffer, touched.
fn lease(engine: &Engine, len: u64) -> Result<Buffer, Failure> {
    let leased = engine.pool().try_alloc(len, Memory::Host);
    leased.map_err(|error| Failure::Build(error.into()))
}

/// The bytes of a signed request for an object of the row, or for its first part.
fn request(
    engine: &Engine,
    credentials: &Credentials,
    bucket: &str,
    key: &str,
    row: Row,
) -> Result<Vec<u8>, String> {
    let endpoint = engine.endpoint();
    let target = endpoint
        .target(bucket, key, &[])
        .map_err(|e| e.to_string())?;
    let mut headers = HeaderMap::new();
    if row.size.0 > HTTP_PART {
        let range = format!("bytes=0-{}", HTTP_PART - 1);
        let range = HeaderValue::try_from(range).map_err(|e| e.to_string())?;
        headers.insert(RANGE, range);
    }
    let (region, now) = (endpoint.region(), SystemTime::now());
    let payload = Payload::Unsigned;
    sign_request(
        &Method::GET,
        &target,
        &mut headers,
        payload,
        credentials,
        region,
        now,
    )
    .map_err(|e| e.to_string())?;
    let mut bytes = format!("GET {} HTTP/1.1\r\n", target.path_and_query).into_bytes();
    for (name, value) in &headers {
        bytes.extend_from_slice(name.as_str().as_bytes());
        bytes.extend_from_slice(b": ");
        bytes.extend_from_slice(value.as_bytes());
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(b"\r\n");
    Ok(bytes)
}

fn connect(engine: &Engine) -> Result<TcpStream, Failure> {
    let endpoint = engine.endpoint();
    if endpoint.is_secure() {
        let text = "floor: it reads bare sockets, which a https:// endpoint does not allow";
        return Err(Failure::Usage(text.to_owned()));
    }
    let server = endpoint.origin();
    let open = || -> io::Result<TcpStream> {
        let mut addresses = (server.host(), server.port()).to_socket_addrs()?;
        let address = addresses.next().ok_or(io::ErrorKind::AddrNotAvailable)?;
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(stream)
    };
    open().map_err(|error| Failure::Other(format!("floor: cannot connect to {endpoint}: {error}")))
}

/// One request and its answer, whose body must fill `into`.
fn get(stream: &mut TcpStream, request: &[u8], into: &mut [u8]) -> io::Result<()> {
    stream.write_all(request)?;
    let mut head = [0; HEAD];
    let mut have = 0;
    let end = loop {
        let (_, n) = recv(&*stream, &mut head[have..], RecvFlags::empty())?;
        have += n;
        match head[..have].windows(4).position(|four| four == b"\r\n\r\n") {
            Some(at) => break at + 4,
            None if n == 0 || have == HEAD => return Err(io::ErrorKind::UnexpectedEof.into()),
            None => {}
        }
    };
    let body = &head[end..have];
    if !ok_with(&head[..end], into.len()) || body.len() > into.len() {
        return Err(io::Error::other(
            "the server did not answer with the object",
        ));
    }
    into[..body.len()].copy_from_slice(body);
    let mut filled = body.len();
    while filled < into.len() {
        // A receive that waits for all ends early only on a time-out or a signal.
        match recv(&*stream, &mut into[filled..], RecvFlags::WAITALL)? {
            (_, 0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            (_, n) => filled += n,
        }
    }
    Ok(())
}

/// Whether the head of an answer says 200 or 206 and as many bytes.
fn ok_with(head: &[u8], len: usize) -> bool {
    let Ok(text) = std::str::from_utf8(head) else {
        return false;
    };
    let mut lines = text.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1));
    let length = lines.find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length")
            .then_some(value.trim())
    });
    matches!(status, Some("200" | "206")) && length.and_then(|l| l.parse().ok()) == Some(len)
}

#[cfg(test)]
mod tests {
    use s3engine::Policy;

    use super::*;
    use crate::size::Size;

    #[test]
    fn each_gpu_has_as_many_copies_as_gets_of_its_threads() {
        let row = Row {
            policy: Policy::RequireRdma,
            size: Size(1 << 20),
            threads: 5,
            in_flight: 8,
        };
        let of = |kinds: usize| {
            (0..kinds)
                .map(|nth| gets_into(row, nth, kinds))
                .collect::<Vec<_>>()
        };
        assert_eq!(of(1), [40]);
        assert_eq!(of(2), [24, 16]);
        assert_eq!(of(6), [8, 8, 8, 8, 8, 0]);
    }

    #[test]
    fn only_the_whole_object_is_an_answer() {
        let answers = |head: &str| ok_with(head.as_bytes(), 5);
        assert!(answers(
            "HTTP/1.1 200 OK\r\nETag: x\r\ncontent-length: 5\r\n\r\n"
        ));
        assert!(answers(
            "HTTP/1.1 206 Partial Content\r\nContent-Length: 5\r\n\r\n"
        ));
        for head in [
            "HTTP/1.1 200 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n",
            "HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\n\r\n",
            "",
        ] {
            assert!(!answers(head), "{head}");
        }
    }
}
