//! How fast the server itself is on this machine: what no client of it can beat here.
//!
//! Client and server share the machine, as they do in a benchmark that embeds the server. The
//! clients are as bare as they can be: threads that send a fixed request and receive into a buffer
//! that was touched before.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use crate::content;
use crate::sim::{Sim, SimError, SimOptions};

const LARGE: usize = 8 << 20;
const SMALL: usize = 64 << 10;
const CONNECTIONS: usize = 8;
/// The longest wait for bytes of the server.
const PATIENCE: Duration = Duration::from_secs(10);

/// What was measured.
#[derive(Clone, Copy, Debug)]
pub struct Ceiling {
    /// GETs of 8 MiB, 8 in flight.
    pub large: Rate,
    /// GETs of 64 KiB, 8 in flight.
    pub small: Rate,
    /// Copies of an object's bytes into touched memory of 8 MiB, by as many threads as serve: what
    /// an RDMA write costs here.
    pub copy: Rate,
    /// How many threads served.
    pub threads: usize,
}

/// A rate of operations.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Operations in a second.
    pub per_second: f64,
    /// Bytes in a second.
    pub bytes_per_second: f64,
}

/// Why the ceiling could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum CeilingError {
    /// The server did not start.
    #[error(transparent)]
    Start(#[from] SimError),
    /// A request to it failed.
    #[error("a request to the server failed: {0}")]
    Request(#[from] io::Error),
}

/// Measures a server with `threads` threads, `window` for each of the three rates.
pub fn measure(threads: usize, window: Duration) -> Result<Ceiling, CeilingError> {
    let options = SimOptions {
        threads,
        anonymous: true,
        rdma: false,
        ..SimOptions::default()
    };
    let sim = Sim::start(options)?;
    Ok(Ceiling {
        large: rate(CONNECTIONS, LARGE, window, |buffer| getter(&sim, buffer))?,
        small: rate(CONNECTIONS, SMALL, window, |buffer| getter(&sim, buffer))?,
        copy: rate(threads, LARGE, window, |buffer| {
            let len = buffer.len();
            Ok(move |buffer: &mut [u8]| {
                content::fill("ceiling", 0, 0, std::hint::black_box(&mut buffer[..len]));
                Ok(())
            })
        })?,
        threads,
    })
}

/// Runs `workers` threads for `window`, each doing one operation of `size` bytes after the other.
fn rate<O: FnMut(&mut [u8]) -> io::Result<()>>(
    workers: usize,
    size: usize,
    window: Duration,
    operation: impl Fn(&mut [u8]) -> io::Result<O> + Sync,
) -> io::Result<Rate> {
    let (done, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let work = || -> io::Result<()> {
        let mut buffer = vec![1; size];
        let mut once = operation(&mut buffer)?;
        while !stop.load(Relaxed) {
            once(&mut buffer)?;
            done.fetch_add(1, Relaxed);
        }
        Ok(())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        // The first part of the time warms up and is not counted.
        thread::sleep(window / 5);
        let (before, start) = (done.load(Relaxed), Instant::now());
        thread::sleep(window);
        // A busy machine may not have finished a single operation yet.
        while done.load(Relaxed) == before && start.elapsed() < window + PATIENCE {
            thread::sleep(Duration::from_millis(10));
        }
        let (after, seconds) = (done.load(Relaxed), start.elapsed().as_secs_f64());
        stop.store(true, Relaxed);
        for thread in threads {
            thread
                .join()
                .map_err(|_| io::Error::other("a client thread panicked"))??;
        }
        let per_second = (after - before) as f64 / seconds;
        Ok(Rate {
            per_second,
            bytes_per_second: per_second * size as f64,
        })
    })
}

/// A connection, and the operation of getting one object over it.
fn getter(sim: &Sim, buffer: &[u8]) -> io::Result<impl FnMut(&mut [u8]) -> io::Result<()> + use<>> {
    let mut stream = TcpStream::connect(sim.addr())?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let request = format!(
        "GET /bench/{} HTTP/1.1\r\nHost: {}\r\n\r\n",
        buffer.len(),
        sim.addr()
    );
    Ok(move |buffer: &mut [u8]| {
        stream.write_all(request.as_bytes())?;
        let mut head = [0; 1024];
        let (mut filled, end) = loop {
            let n = stream.peek(&mut head)?;
            if n == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if let Some(end) = head[..n].windows(4).position(|four| four == b"\r\n\r\n") {
                break (0, end + 4);
            }
        };
        if !head.starts_with(b"HTTP/1.1 200 ") {
            return Err(io::Error::other(
                "the server did not answer with the object",
            ));
        }
        stream.read_exact(&mut head[..end])?;
        while filled < buffer.len() {
            match stream.read(&mut buffer[filled..])? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => filled += n,
            }
        }
        Ok(())
    })
}

impl fmt::Display for Ceiling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "ceiling of s3sim with {} threads, clients on the same machine",
            self.threads
        )?;
        let rows = [
            ("http get, 8 MiB, 8 in flight", self.large),
            ("http get, 64 KiB, 8 in flight", self.small),
            ("copy of 8 MiB, as rdma writes", self.copy),
        ];
        for (name, rate) in rows {
            let gb = rate.bytes_per_second / 1e9;
            writeln!(
                f,
                "{name:<30}  {gb:>7.2} GB/s  {:>9.0} a second",
                rate.per_second
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rate_is_measured() {
        let ceiling = measure(2, Duration::from_millis(100)).unwrap();
        for rate in [ceiling.large, ceiling.small, ceiling.copy] {
            assert!(rate.per_second > 0.0 && rate.bytes_per_second > rate.per_second);
        }
        assert_eq!(ceiling.to_string().lines().count(), 4);
    }
}
