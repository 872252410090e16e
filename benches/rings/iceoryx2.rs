//! A peer that does the same with iceoryx2's request-response, in two processes of a program of its own.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use super::wait::spawn;

/// It has this long to leave, and then is killed.
const TO_LEAVE: Duration = Duration::from_secs(2);

/// Client and server.
pub struct Iceoryx2 {
    client: Process,
    server: Process,
}

impl Iceoryx2 {
    /// Starts both, each on its processor. The error says how the program is built.
    pub fn start(processors: Option<[usize; 2]>) -> Result<Self, String> {
        let peer = concat!(env!("CARGO_MANIFEST_DIR"), "/peers/iceoryx2");
        let program = Path::new(peer).join("target/release/iceoryx2-peer");
        if !program.exists() {
            let build = "cargo build --release --manifest-path benches/peers/iceoryx2/Cargo.toml";
            let target = "--target-dir benches/peers/iceoryx2/target";
            return Err(format!("not built ({build} {target})"));
        }
        let name = format!("s3engine-rings-{}", std::process::id());
        let start = |role: &str, side: usize| {
            let processor = processors.map(|both| both[side]);
            Process::start(&program, [role, &name], processor)
        };
        // The client last: this thread stays where that is.
        let server = start("answer", 1)?;
        let client = start("ask", 0)?;
        Ok(Self { client, server })
    }

    /// Has both do one round. Returns the client's figures.
    pub fn round(&mut self, order: &str) -> Vec<f64> {
        self.server.say(order);
        assert_eq!(self.server.line(), "ready");
        self.client.say(order);
        let line = self.client.line();
        let figures = line.split(' ').map(|figure| figure.parse());
        let figures: Result<Vec<f64>, _> = figures.collect();
        figures.unwrap_or_else(|_| panic!("not figures: {line:?}"))
    }
}

struct Process {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Process {
    fn start(program: &Path, args: [&str; 2], processor: Option<usize>) -> Result<Self, String> {
        let mut command = Command::new(program);
        command
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = spawn(&mut command, processor)
            .map_err(|error| format!("{} does not start: {error}", program.display()))?;
        let to = child.stdin.take();
        let from = BufReader::new(child.stdout.take().expect("piped"));
        let mut process = Self { child, to, from };
        match process.line().as_str() {
            "started" => Ok(process),
            other => Err(format!("{} {args:?} says {other:?}", program.display())),
        }
    }

    fn say(&mut self, text: &str) {
        let to = self.to.as_mut().expect("open");
        writeln!(to, "{text}").expect("it listens");
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.from.read_line(&mut line).expect("it says something");
        line.trim().to_owned()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It removes its files in shared memory when nothing more is to come.
        self.to.take();
        let began = Instant::now();
        while began.elapsed() < TO_LEAVE {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
