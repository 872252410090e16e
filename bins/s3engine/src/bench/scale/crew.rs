//! Worker processes, and the lines that go to and from them.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use crate::bench::watch::Watch;
use crate::exit::Failure;

use super::message::{Order, Word};

/// How often it is looked whether all is well.
const POLL: Duration = Duration::from_millis(50);

/// Another process of this program. It is killed when this is dropped.
struct Worker {
    child: Child,
    orders: ChildStdin,
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What one of them says; nothing more after an end.
type Said = (usize, Option<Word>);

/// Processes that start, wait and end together.
pub(crate) struct Crew<'a> {
    workers: Vec<Worker>,
    words: Receiver<Said>,
    watch: Watch<'a>,
}

impl<'a> Crew<'a> {
    /// Starts so many.
    pub(crate) fn start(count: usize, watch: Watch<'a>) -> Result<Self, Failure> {
        let (sender, words) = mpsc::channel();
        let start = |nth| start(nth, sender.clone());
        let workers = (0..count).map(start).collect::<Result<_, _>>()?;
        Ok(Self {
            workers,
            words,
            watch,
        })
    }

    /// From here on a signal does not end what is asked of them: it is being seen to.
    pub(crate) fn without_signals(&mut self) {
        self.watch = self.watch.without_signals();
    }

    /// Their process numbers.
    pub(crate) fn processes(&self) -> impl Iterator<Item = u32> + '_ {
        self.workers.iter().map(|worker| worker.child.id())
    }

    /// Tells each of them something.
    pub(crate) fn tell(&mut self, order: impl Fn(usize) -> Order) -> Result<(), Failure> {
        for (nth, worker) in self.workers.iter_mut().enumerate() {
            let line = serde_json::to_string(&order(nth))
                .map_err(|error| Failure::Other(error.to_string()))?;
            // One that is gone is seen where its answer is missed.
            let _ = writeln!(worker.orders, "{line}");
        }
        Ok(())
    }

    /// Waits for one answer of each, in the order of workers.
    pub(crate) fn answers<T>(
        &self,
        doing: &str,
        within: Duration,
        answer: impl Fn(Word) -> Option<T>,
    ) -> Result<Vec<T>, Failure> {
        let until = Instant::now() + within;
        let mut answers: Vec<Option<T>> = self.workers.iter().map(|_| None).collect();
        while answers.iter().any(Option::is_none) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let silent = answers.iter().filter(|answer| answer.is_none()).count();
                let text = format!(
                    "{silent} of {} workers did not {doing} within {within:?}",
                    answers.len()
                );
                return Err(Failure::Other(text));
            }
            if let Some((nth, word)) = self.hear(left.min(POLL), doing)?
                && let Some(said) = answer(word)
            {
                answers[nth] = Some(said);
            }
        }
        Ok(answers.into_iter().flatten().collect())
    }

    /// The next word of any of them, if one comes in time. What ends the bench is an error.
    pub(crate) fn hear(
        &self,
        within: Duration,
        doing: &str,
    ) -> Result<Option<(usize, Word)>, Failure> {
        self.watch.check()?;
        match self.words.recv_timeout(within) {
            Ok((nth, Some(Word::Failed(why)))) => {
                self.watch.check_after_failures()?;
                Err(Failure::Other(format!("worker {nth}: {why}")))
            }
            Ok((nth, Some(word))) => Ok(Some((nth, word))),
            Ok((nth, None)) => {
                self.watch.check_after_failures()?;
                Err(Failure::WorkerLost(format!(
                    "worker {nth} ended while it was to {doing}"
                )))
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Ok(None),
        }
    }
}

fn start(nth: usize, words: Sender<Said>) -> Result<Worker, Failure> {
    let cannot = |error: std::io::Error| Failure::Other(format!("cannot start a worker: {error}"));
    let mut child = Command::new(std::env::current_exe().map_err(cannot)?)
        .args(["bench", "worker"])
        // Ctrl-C is for the bench, which tells them.
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(cannot)?;
    let (orders, stdout) = (child.stdin.take(), child.stdout.take());
    let (Some(orders), Some(stdout)) = (orders, stdout) else {
        return Err(Failure::Other("a worker without stdin and stdout".into()));
    };
    // Ends with the child, whose end of the pipe then closes.
    thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            let word = serde_json::from_str(&line)
                .unwrap_or_else(|error| Word::Failed(format!("said what is no answer: {error}")));
            if words.send((nth, Some(word))).is_err() {
                return;
            }
        }
        let _ = words.send((nth, None));
    });
    Ok(Worker { child, orders })
}
