//! The host service beside an engine of the same process, and many client processes beside one.
//!
//! `cargo bench -p s3engine-benches --bench service [-- ROUNDS SECONDS]`
//!
//! A simulator, a service, and workers are processes of their own (this program again). Rounds are interleaved and
//! compared pair by pair: `served` against `embedded` with one worker of 8 GETs in flight, 8 workers of 1 against 1
//! worker of 8. CPU time is that of the workers and, where it is used, the service; not the simulator's.

mod roles;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// GETs in flight, over all workers.
const IN_FLIGHT: usize = 8;

/// Another process of this program.
struct Process {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Process {
    fn new(role: &str, args: &[&str]) -> Self {
        let program = std::env::current_exe().expect("this program");
        let mut child = Command::new(program)
            .env("S3ENGINE_BENCH_ROLE", role)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("another process");
        let to = child.stdin.take().expect("piped");
        let from = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, to, from }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.from.read_line(&mut line).expect("it says something");
        line.trim().to_owned()
    }

    fn say(&mut self, text: &str) {
        writeln!(self.to, "{text}").expect("it listens");
        self.to.flush().expect("it listens");
    }

    /// CPU time used so far.
    fn cpu(&self) -> f64 {
        let path = format!("/proc/{}/stat", self.child.id());
        let stat = std::fs::read_to_string(path).expect("it lives");
        // After the name, which may hold anything: fields 14 and 15 in hundredths of a second.
        let rest = stat.rsplit(')').next().unwrap_or_default();
        let field = |nth| -> f64 {
            let text = rest.split_whitespace().nth(nth);
            text.and_then(|text| text.parse().ok()).expect("a number")
        };
        (field(11) + field(12)) / 100.0
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What one round showed.
#[derive(Clone, Copy)]
struct Shown {
    gb_per_s: f64,
    cpu_s_per_gib: f64,
}

/// Workers that do the same work in each round.
struct Crew {
    workers: Vec<Process>,
    service: bool,
}

impl Crew {
    fn new(count: usize, kind: &str, policy: &str, sim: &[&str], socket: &str) -> Self {
        let each = (IN_FLIGHT / count).to_string();
        let workers = (0..count)
            .map(|_| {
                let mut args = vec![kind, policy, &*each, socket];
                args.extend(sim);
                let mut worker = Process::new("worker", &args);
                assert_eq!(worker.line(), "ready");
                worker
            })
            .collect();
        Self {
            workers,
            service: kind == "served",
        }
    }

    fn round(&mut self, service: &Process, time: Duration) -> Shown {
        let cpu = |crew: &Crew| {
            let own: f64 = crew.workers.iter().map(Process::cpu).sum();
            own + if crew.service { service.cpu() } else { 0.0 }
        };
        let before = cpu(self);
        for worker in &mut self.workers {
            worker.say(&time.as_millis().to_string());
        }
        let (mut rate, mut bytes) = (0.0, 0.0);
        for worker in &mut self.workers {
            let line = worker.line();
            let (moved, seconds) = line.split_once(' ').expect("bytes and seconds");
            let (moved, seconds): (f64, f64) = (
                moved.parse().expect("a number"),
                seconds.parse().expect("a number"),
            );
            rate += moved / seconds;
            bytes += moved;
        }
        let used = cpu(self) - before;
        Shown {
            gb_per_s: rate / 1e9,
            cpu_s_per_gib: used / (bytes / f64::from(1 << 30)),
        }
    }
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

/// Both in turn, and the medians of each pair's ratios.
fn compare(
    what: &str,
    names: [&str; 2],
    crews: &mut [Crew; 2],
    service: &Process,
    times: (usize, Duration),
) {
    let (rounds, time) = times;
    let mut shown: [Vec<Shown>; 2] = [Vec::new(), Vec::new()];
    for round in 0..=rounds {
        // Whoever goes first changes from pair to pair, and the first pair only warms up.
        for nth in [round % 2, 1 - round % 2] {
            let one = crews[nth].round(service, time);
            if round > 0 {
                shown[nth].push(one);
            }
        }
    }
    let of = |nth: usize, pick: fn(&Shown) -> f64| median(shown[nth].iter().map(pick).collect());
    let ratio = |pick: fn(&Shown) -> f64| {
        let pairs = shown[1].iter().zip(&shown[0]);
        median(pairs.map(|(one, base)| pick(one) / pick(base)).collect())
    };
    for nth in [0, 1] {
        println!(
            "{what:<9} {:<12} {:>7.2} {:>12.3}",
            names[nth],
            of(nth, |shown| shown.gb_per_s),
            of(nth, |shown| shown.cpu_s_per_gib),
        );
    }
    println!(
        "{what:<9} {:<12} {:>7.2} {:>12.2}   ({rounds} pairs, medians)",
        "ratio",
        ratio(|shown| shown.gb_per_s),
        ratio(|shown| shown.cpu_s_per_gib),
    );
}

fn main() {
    if let Ok(role) = std::env::var("S3ENGINE_BENCH_ROLE") {
        return roles::run(&role);
    }
    let numbers: Vec<u64> = std::env::args()
        .filter_map(|arg| arg.parse().ok())
        .collect();
    if std::env::args().any(|arg| arg == "--test") {
        return run(1, Duration::from_millis(50));
    }
    let rounds = numbers.first().copied().unwrap_or(9) as usize;
    run(
        rounds,
        Duration::from_secs(numbers.get(1).copied().unwrap_or(1)),
    );
}

fn run(rounds: usize, time: Duration) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let in_folder = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let fabric = in_folder("loopback");
    let mut sim = Process::new("sim", &[&fabric]);
    let (url, access, secret) = (sim.line(), sim.line(), sim.line());
    let sim_args = [&*url, &*access, &*secret, &*fabric];
    println!(
        "{:<9} {:<12} {:>7} {:>12}",
        "path", "what", "GB/s", "CPU-s/GiB"
    );
    for (path, policy) in [("http", "http"), ("loopback", "require-rdma")] {
        let socket = in_folder(&format!("{path}.sock"));
        let mut args = vec![&*socket];
        args.extend(sim_args);
        let mut service = Process::new("service", &args);
        assert_eq!(service.line(), "ready");
        assert!(Path::new(&socket).exists());
        let crew = |count, kind| Crew::new(count, kind, policy, &sim_args, &socket);
        let mut pair = [crew(1, "embedded"), crew(1, "served")];
        compare(
            path,
            ["embedded", "served"],
            &mut pair,
            &service,
            (rounds, time),
        );
        drop(pair);
        let mut pair = [crew(1, "served"), crew(8, "served")];
        let names = ["1 process", "8 processes"];
        compare(path, names, &mut pair, &service, (rounds, time));
    }
}
