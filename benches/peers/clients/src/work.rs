//! What a client is to do.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

/// Any failure ends the comparison: a client that fails has no figures.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The bucket that the server has.
pub const BUCKET: &str = "bucket";

/// One client's work, as its process is told.
#[derive(Args, Clone, Debug)]
pub struct Work {
    /// Which client
    #[arg(long)]
    pub client: String,
    /// Where the server listens
    #[arg(long)]
    pub server: SocketAddr,
    /// The certificate to trust; with it, TLS is spoken
    #[arg(long)]
    pub ca: Option<PathBuf>,
    #[command(flatten)]
    pub shape: Shape,
}

/// How much at once, and for how long.
#[derive(Args, Clone, Debug)]
pub struct Shape {
    /// Bytes of the object
    #[arg(long)]
    pub size: usize,
    /// Bytes of a range; 0: whole objects
    #[arg(long)]
    pub part: usize,
    /// Requests at once
    #[arg(long)]
    pub in_flight: usize,
    /// Threads of each client, where it has such a setting
    #[arg(long)]
    pub threads: usize,
    /// Seconds that are measured, after a quarter of them
    #[arg(long)]
    pub seconds: f64,
}

impl Shape {
    /// Bytes that one request brings.
    pub fn each(&self) -> usize {
        match self.part {
            0 => self.size,
            part => part.min(self.size),
        }
    }

    /// Places that requests write to, one after the other: all of a large object, a few times as many as are in
    /// flight of small ones.
    pub fn places(&self) -> usize {
        match self.part {
            0 => 2 * self.in_flight,
            part => (self.size / part).max(self.in_flight),
        }
    }

    /// The range that is asked for into a place. `None`: the whole object.
    pub fn range(&self, place: usize) -> Option<(usize, usize)> {
        if self.part == 0 {
            return None;
        }
        let start = place * self.part % self.size;
        Some((start, (start + self.part).min(self.size)))
    }

    pub fn window(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    pub fn arguments(&self) -> Vec<String> {
        let Shape {
            size,
            part,
            in_flight,
            threads,
            seconds,
        } = self;
        format!("--size {size} --part {part} --in-flight {in_flight} --threads {threads} --seconds {seconds}")
            .split(' ')
            .map(str::to_owned)
            .collect()
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kib = |bytes: usize| match bytes {
            b if b >= 1 << 20 => format!("{} MiB", b >> 20),
            b => format!("{} KiB", b >> 10),
        };
        match self.part {
            0 => write!(f, "whole objects of {}", kib(self.size))?,
            part => write!(f, "{} in ranges of {}", kib(self.size), kib(part))?,
        }
        write!(
            f,
            ", {} in flight, {} threads",
            self.in_flight, self.threads
        )
    }
}

impl Work {
    pub fn url(&self) -> String {
        match self.ca {
            Some(_) => format!("https://localhost:{}", self.server.port()),
            None => format!("http://{}", self.server),
        }
    }

    /// The object's name says how long it is.
    pub fn key(&self) -> String {
        format!("sz-{}", self.shape.size)
    }
}
