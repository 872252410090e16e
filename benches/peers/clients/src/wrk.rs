//! wrk, where it is installed: a load generator that throws away what it reads, for small objects.

use std::process::Command;

use crate::server::Server;
use crate::window::Measured;
use crate::work::{BUCKET, Result, Shape};

/// Its name, as a client and as a program.
pub const NAME: &str = "wrk";

/// Whether it is here.
pub fn is_installed() -> bool {
    Command::new(NAME).arg("--version").output().is_ok()
}

/// One run. It does not tell what its process cost.
pub fn run(shape: &Shape, server: &Server) -> Result<Measured> {
    if shape.part > 0 {
        return Err("wrk asks for whole objects only".into());
    }
    let url = format!("http://{}/{BUCKET}/sz-{}", server.address, shape.size);
    let seconds = shape.seconds.ceil();
    let threads = shape.threads.min(shape.in_flight);
    let output = Command::new(NAME)
        .args(["-t", &threads.to_string()])
        .args(["-c", &shape.in_flight.to_string()])
        .args(["-d", &format!("{seconds}s")])
        .arg(url)
        .output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    let rate = said
        .lines()
        .find_map(|line| line.strip_prefix("Requests/sec:"));
    let rate: f64 = rate.ok_or("wrk told no rate")?.trim().parse()?;
    Ok(Measured {
        requests: (rate * seconds) as u64,
        seconds,
        cpu_seconds: None,
    })
}
