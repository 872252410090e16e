//! One row: its processes, its steps, its window.
//!
//! ```text
//! bench      host service      workers
//!   ├─ Serve ──> ready             │
//!   ├─ Prepare ───────────────────>│ engines, memory, each buffer filled once
//!   │<─────────────────────── Ready│  (start ends)
//!   ├─ Probe ─────────────────────>│ small GETs
//!   │                              │  (barrier; the server's counters are read)
//!   ├─ Go ────────────────────────>│ reading; nothing counts yet
//!   ├─ Count ─────────────────────>│ (window begins)
//!   │<───────────── Sample, Sample,│ until stable, or long enough
//!   ├─ Stop ──────────────────────>│ (window ends) what is under way ends
//!   │<──────────────────────── Done│
//! ```

use std::thread;
use std::time::{Duration, Instant, SystemTime};

use s3engine::Memory;

use crate::bench::rows::KeyTemplate;
use crate::bench::simulator::Simulator;
use crate::bench::watch::Watch;
use crate::exit::Failure;
use crate::server_metrics::Counters;
use crate::size::Size;

use super::args::ScaleArgs;
use super::busy::{Busy, waited_for_processors};
use super::cases::Case;
use super::crew::Crew;
use super::message::{Count, Means, Order, Task, Times, Used, Word, added};
use super::progress::Progress;
use super::run::Stopped;
use super::site::Server;
use super::steady::{Block, is_stable};

/// How long a step of preparation may take, besides what the GETs in it may.
const STEP: Duration = Duration::from_secs(300);

/// How long processes have to end what is under way, and to tell.
const END: Duration = Duration::from_secs(150);

/// The same after a signal: soon this process has to have ended.
const SOON: Duration = Duration::from_millis(700);

/// How often the window is judged: as often as workers say what they have moved.
const BLOCK: Duration = Duration::from_millis(100);

/// What one row brought.
pub(crate) struct Measured {
    pub(crate) stopped: Stopped,
    pub(crate) start_seconds: f64,
    pub(crate) counts: Vec<Count>,
    pub(crate) probed: Vec<Times>,
    pub(crate) blocks: Vec<Block>,
    /// What the host service used in the window, and its registrations in its whole life.
    pub(crate) service: Option<Used>,
    pub(crate) means: Means,
    /// The share of all processors that was busy in the window.
    pub(crate) host_busy: f64,
    /// Seconds that all threads together waited for a processor in the window, a simulator's too.
    pub(crate) cpu_wait: f64,
    /// What the server counted from the barrier to after the last GET, or why that is not known.
    pub(crate) server: Option<Result<Counters, String>>,
}

/// All that rows have in common.
pub(crate) struct Bench<'a> {
    pub(crate) args: &'a ScaleArgs,
    pub(crate) server: &'a Server,
    /// Which processes take in turn.
    pub(crate) memories: &'a [Memory],
    pub(crate) watch: Watch<'a>,
    pub(crate) progress: &'a Progress,
}

impl Bench<'_> {
    /// Measures a row, the `nth` of all.
    pub(crate) fn measure(&self, case: &Case, nth: usize) -> Result<Measured, Failure> {
        self.progress.doing(case, "starting");
        let began = Instant::now();
        let site = self.server.site(self.args, case, nth);
        let mut host = match site.socket {
            Some(_) => Some(Crew::start(1, self.watch)?),
            None => None,
        };
        let mut service = None;
        if let Some(host) = &mut host {
            host.tell(|_| Order::Serve(Box::new(site.clone())))?;
            service = Some(
                host.answers("become the host service", STEP, ready)?
                    .swap_remove(0),
            );
        }
        let mut crew = Crew::start(case.processes, self.watch)?;
        crew.tell(|nth| Order::Prepare(Box::new(self.task(case, &site, nth))))?;
        let workers = crew.answers("get ready", STEP, ready)?.swap_remove(0);
        let start_seconds = began.elapsed().as_secs_f64();
        self.progress.doing(case, "small GETs");
        crew.tell(|_| Order::Probe)?;
        let probed = crew.answers("make small GETs", STEP, |word| match word {
            Word::Probed(times) => Some(times),
            _ => None,
        })?;
        let before = self.server.counters();
        self.wait_for_slot(nth)?;
        let window = self.window(case, &mut crew, host.as_mut())?;
        let ends = |word| match word {
            Word::Done(count) => Some(*count),
            _ => None,
        };
        let counts = crew.answers("end", window.patience(), ends);
        let counts = counts.or_else(|failure| self.watch.check().and(Err(failure)))?;
        // Of what was given up the server may have counted some.
        let whole = window.stopped != Stopped::Interrupted;
        let after = whole.then(|| self.server.counters()).flatten();
        Ok(Measured {
            stopped: window.stopped,
            start_seconds,
            counts,
            probed,
            blocks: window.blocks,
            service: window.service,
            means: service.unwrap_or(workers),
            host_busy: window.host_busy,
            cpu_wait: window.cpu_wait,
            server: since(before, after),
        })
    }

    fn task(&self, case: &Case, site: &super::message::Site, nth: usize) -> Task {
        let args = self.args;
        Task {
            site: site.clone(),
            nth,
            clients: args.clients_per_process,
            threads: args.threads,
            in_flight: args.in_flight,
            size: case.size,
            gpu: match self.memories[nth % self.memories.len()] {
                Memory::Cuda(uuid) => Some(uuid.to_string()),
                _ => None,
            },
            policy: case.policy.to_string(),
            register: case.register,
            bucket: args.bucket.clone(),
            keys: keys(&args.key_template, case.size, args.objects, nth),
        }
    }

    /// With `--start-at`, the windows of all hosts begin at the same times.
    fn wait_for_slot(&self, nth: usize) -> Result<(), Failure> {
        let Some(at) = self.args.start_at else {
            return Ok(());
        };
        let slot = self
            .args
            .slot
            .map_or(self.args.duration.0 + Duration::from_secs(20), |slot| {
                slot.0
            });
        let at = at + slot.as_secs_f64() * nth as f64 - self.args.warmup.0.as_secs_f64();
        let late = unix_now() - at;
        if late > 0.0 {
            let text = format!(
                "this host was not ready for window {nth} of --start-at until {late:.1} s after it: raise --slot, or start earlier"
            );
            return Err(Failure::Other(text));
        }
        while unix_now() < at {
            self.watch.check()?;
            thread::sleep(Duration::from_secs_f64((at - unix_now()).clamp(0.0, 0.05)));
        }
        Ok(())
    }

    fn window(
        &self,
        case: &Case,
        crew: &mut Crew<'_>,
        mut host: Option<&mut Crew<'_>>,
    ) -> Result<Window, Failure> {
        self.progress.doing(case, "warming up");
        crew.tell(|_| Order::Go)?;
        let warm = Instant::now() + self.args.warmup.0;
        while let Some(left) = warm.checked_duration_since(Instant::now()) {
            crew.hear(left, "warm up")?;
        }
        let before = host.as_mut().map(|host| used(host, END)).transpose()?;
        let processes: Vec<u32> = crew
            .processes()
            .chain(host.iter().flat_map(|host| host.processes()))
            .chain(self.server.simulator.iter().map(Simulator::process))
            .collect();
        let (busy, waited) = (Busy::now(), waited_for_processors(&processes));
        crew.tell(|_| Order::Count)?;
        let (stopped, blocks) = self.blocks(case, crew)?;
        let mut window = Window {
            stopped,
            blocks,
            service: None,
            host_busy: Busy::now().since(&busy),
            cpu_wait: (waited_for_processors(&processes) - waited).max(0.0),
        };
        let cut = stopped == Stopped::Interrupted;
        if cut {
            crew.without_signals();
            host.iter_mut().for_each(|host| host.without_signals());
        }
        let patience = window.patience();
        let after = host.as_mut().map(|host| used(host, patience)).transpose();
        crew.tell(|_| if cut { Order::Cut } else { Order::Stop })?;
        window.service = after?.zip(before).map(|(after, before)| Used {
            cpu: after.cpu - before.cpu,
            registrations: after.registrations,
            rails: added(&before.rails, after.rails),
        });
        Ok(window)
    }

    /// Collects samples until they are enough.
    fn blocks(&self, case: &Case, crew: &Crew<'_>) -> Result<(Stopped, Vec<Block>), Failure> {
        let began = Instant::now();
        let (mut blocks, mut block, mut last) = (Vec::new(), Block::default(), began);
        loop {
            let next = last + BLOCK;
            let heard = crew.hear(next.saturating_duration_since(Instant::now()), "read");
            match heard {
                Ok(Some((_, Word::Sample { bytes, ops }))) => {
                    block.bytes += bytes;
                    block.ops += ops;
                }
                Ok(_) => {}
                Err(Failure::Interrupted(_)) => return Ok((Stopped::Interrupted, blocks)),
                Err(failure) => return Err(failure),
            }
            let now = Instant::now();
            if now < next {
                continue;
            }
            block.seconds = (now - last).as_secs_f64();
            blocks.push(std::mem::take(&mut block));
            last = now;
            self.progress.window(case, began.elapsed(), &blocks);
            if began.elapsed() >= self.args.duration.0 {
                return Ok((Stopped::Duration, blocks));
            }
            if self.args.start_at.is_none() && is_stable(&blocks) {
                return Ok((Stopped::Stable, blocks));
            }
        }
    }
}

struct Window {
    stopped: Stopped,
    blocks: Vec<Block>,
    service: Option<Used>,
    host_busy: f64,
    cpu_wait: f64,
}

impl Window {
    /// How long processes have to end it.
    fn patience(&self) -> Duration {
        match self.stopped {
            Stopped::Interrupted => SOON,
            _ => END,
        }
    }
}

fn ready(word: Word) -> Option<Means> {
    match word {
        Word::Ready(means) => Some(means),
        _ => None,
    }
}

fn used(host: &mut Crew<'_>, within: Duration) -> Result<Used, Failure> {
    host.tell(|_| Order::Tell)?;
    let mut used = host.answers("tell what it has used", within, |word| match word {
        Word::Used(used) => Some(used),
        _ => None,
    })?;
    Ok(used.swap_remove(0))
}

/// What was counted between two readings.
fn since(
    before: Option<Result<Counters, String>>,
    after: Option<Result<Counters, String>>,
) -> Option<Result<Counters, String>> {
    let (before, after) = (before?, after?);
    Some(before.and_then(|before| {
        let after = after?;
        let less = |after: u64, before: u64| {
            let restarted = "a server's counters went back: it was restarted";
            after
                .checked_sub(before)
                .ok_or_else(|| restarted.to_owned())
        };
        Ok(Counters {
            bytes: less(after.bytes, before.bytes)?,
            ops: less(after.ops, before.ops)?,
            ..after
        })
    }))
}

/// Each worker begins with another object.
fn keys(template: &KeyTemplate, size: u64, objects: usize, nth: usize) -> Vec<String> {
    let key = |index| template.key(Size(size), index);
    let mut keys: Vec<String> = (0..objects).map(key).collect();
    keys.rotate_left(nth * 7 % objects.max(1));
    keys
}

/// Seconds since 1970.
pub(crate) fn unix_now() -> f64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or_default().as_secs_f64()
}
