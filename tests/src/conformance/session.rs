//! A host over a simulator, and cases run on it in batches.

use std::collections::HashMap;
use std::thread;
use std::time::{Duration, Instant};

use s3engine::{
    Buffer, Completion, Engine, Flags, Memory, Path, Queue, QueueOptions, Reason, Ticket,
};
use s3engine_pool::SlotId;
use s3sim::Counters;

use super::case::{Case, script};
use super::check::{Facts, News, Seen, contradiction, judge};
use super::expect::{End, Expected, expect};
use super::fault::Ends;
use super::host::{FabricIs, Host, LATE, Running, Site, Tempo};
use crate::rig::{PATIENCE, block_on, wait_until};
use crate::watch::{contents, fill, is_untouched};
use crate::{Failure, FreeMemory};

/// What completions told, added up.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// How many GETs ended in which way.
    pub gets: HashMap<(Path, Reason), u64>,
    /// Bytes by what carried them, and the reason of that.
    pub bytes: HashMap<(Path, Reason), u64>,
}

/// A host that runs over a simulator.
pub struct Session {
    name: String,
    fabric: FabricIs,
    memory: Memory,
    // Ends before its server does.
    running: Running,
    site: Site,
    /// Each in one line, with its case.
    violations: Vec<String>,
    tally: Tally,
    cases: usize,
}

/// With so many violations no more cases are run.
const ENOUGH: usize = 40;

/// How often memory on its way back is looked at.
const POLL: Duration = Duration::from_millis(1);

/// A case under way.
struct Asked<'a> {
    case: &'a Case,
    expected: Vec<Expected>,
    given: Option<SlotId>,
    ticket: Option<Ticket>,
    news: Vec<News>,
    by_rdma: u64,
    ended: usize,
}

/// Buffers that came back, filled anew: nobody else may write to them any more.
#[derive(Default)]
struct Kept(Vec<(String, Buffer)>);

impl Session {
    /// Starts the host. `None`, said aloud: it cannot break its fabric that way.
    pub fn open(host: &dyn Host, tempo: Tempo, failure: Option<Failure>) -> Option<Self> {
        let site = Site::new(tempo, failure);
        let Some(running) = host.start(&site) else {
            let (name, failure) = (host.name(), &site.failure);
            eprintln!("skipped: {name} cannot have {failure:?}");
            return None;
        };
        Some(Self {
            name: host.name().to_owned(),
            fabric: host.fabric(),
            memory: host.memory(),
            running,
            site,
            violations: Vec::new(),
            tally: Tally::default(),
            cases: 0,
        })
    }

    /// What was wrong so far.
    pub fn violations(&self) -> &[String] {
        &self.violations
    }

    /// Ends the host. Panics with all that was wrong; tells what completions told.
    pub fn finish(self) -> Tally {
        let (violations, cases) = (&self.violations, self.cases);
        assert!(cases > 0, "no case was run");
        let count = violations.len();
        let first: Vec<_> = violations.iter().take(ENOUGH).map(String::as_str).collect();
        let first = first.join("\n");
        assert!(count == 0, "{count} violations in {cases} cases\n{first}");
        self.tally
    }

    /// Runs cases together, through one queue.
    pub fn run(&mut self, cases: &[Case]) {
        if self.violations.len() >= ENOUGH {
            return;
        }
        let before = self.begin(cases);
        let mut asked = self.ask(cases);
        let mut queue = self.engine().queue(QueueOptions {
            capacity: cases.len(),
        });
        for (nth, asked) in asked.iter_mut().enumerate() {
            let (get, given) = asked.case.get(self.engine());
            asked.given = given;
            asked.ticket = queue.push(get.user_data(nth as u64)).ok();
        }
        queue.submit();
        self.cancel(&mut queue, &asked, before);
        let mut kept = Kept::default();
        loop {
            match queue.next(PATIENCE) {
                Ok(Some(completion)) => self.take(completion, &mut asked, &mut kept),
                Ok(None) => break,
                Err(error) => {
                    self.violations.push(format!("{}: {error}", self.name));
                    break;
                }
            }
        }
        self.settle(&asked, kept, before);
        for completion in queue.completions() {
            let text = format!("{}: one too many: {completion:?}", self.name);
            self.violations.push(text);
        }
    }

    /// Runs cases together, each as a future. Nobody hears of news then.
    pub fn run_awaited(&mut self, cases: &[Case]) {
        let before = self.begin(cases);
        let mut asked = self.ask(cases);
        let engine = self.engine().clone();
        let get = |asked: &mut Asked<'_>| {
            let (get, given) = asked.case.get(&engine);
            asked.given = given;
            engine.get(get)
        };
        let futures: Vec<_> = asked.iter_mut().map(get).collect();
        let mut kept = Kept::default();
        for (asked, future) in asked.iter_mut().zip(futures) {
            self.end(asked, block_on(future), None, &mut kept);
        }
        self.settle(&asked, kept, before);
    }

    fn engine(&self) -> &Engine {
        &self.running.engine
    }

    fn begin(&mut self, cases: &[Case]) -> Counters {
        self.cases += cases.len();
        let faults = self.site.sim.faults();
        faults.clear();
        for rule in script(cases) {
            faults.push(rule).expect("a rule that can apply");
        }
        self.site.sim.counters()
    }

    fn ask<'a>(&self, cases: &'a [Case]) -> Vec<Asked<'a>> {
        let asked = |case| Asked {
            case,
            expected: expect(case, self.fabric),
            given: None,
            ticket: None,
            news: Vec::new(),
            by_rdma: 0,
            ended: 0,
        };
        cases.iter().map(asked).collect()
    }

    /// Cancels the cases that are to be cancelled, when all their requests are out.
    fn cancel(&self, queue: &mut Queue, asked: &[Asked<'_>], before: Counters) {
        let to_cancel = |asked: &&Asked<'_>| {
            let cancelled = End::Failure(Reason::Cancelled);
            asked.case.fault.ends == Some(Ends::Cancel)
                && asked
                    .expected
                    .iter()
                    .any(|expected| expected.end == cancelled)
        };
        let to_cancel: Vec<_> = asked.iter().filter(to_cancel).collect();
        if to_cancel.is_empty() {
            return;
        }
        wait_until("all requests are out", || {
            let faults = self.site.sim.counters().faults - before.faults;
            faults >= to_cancel.len() as u64
        });
        for asked in to_cancel {
            asked.ticket.map(|ticket| queue.cancel(ticket));
        }
    }

    /// One completion of a queue.
    fn take(&mut self, completion: Completion, asked: &mut [Asked<'_>], kept: &mut Kept) {
        let nth = completion.user_data() as usize;
        let asked = asked.get_mut(nth);
        let asked = asked.filter(|asked| asked.ticket == Some(completion.ticket()));
        let Some(asked) = asked else {
            let text = format!("{}: of no GET: {completion:?}", self.name);
            return self.violations.push(text);
        };
        if completion.flags().contains(Flags::MORE) {
            let wrong = contradiction(&completion, asked.case.policy);
            let after_end = (asked.ended > 0).then(|| "news after the end".into());
            for wrong in wrong.into_iter().chain(after_end) {
                self.violate(asked.case, &wrong);
            }
            let (reason, flags) = (completion.reason(), completion.flags());
            asked.news.push(News { reason, flags });
            return;
        }
        let news = Some(asked.news.clone());
        self.end(asked, completion, news, kept);
    }

    fn end(
        &mut self,
        asked: &mut Asked<'_>,
        end: Completion,
        news: Option<Vec<News>>,
        kept: &mut Kept,
    ) {
        asked.ended += 1;
        asked.by_rdma += end.bytes_by_path().rdma;
        self.tally.add(&end);
        let case = asked.case;
        let contradiction = contradiction(&end, case.policy);
        let seen = Seen {
            given: asked.given,
            news,
            end: Facts::of(&end),
            back: end.into_buffer(),
        };
        for wrong in [contradiction, judge(case, &asked.expected, &seen)]
            .into_iter()
            .flatten()
        {
            self.violate(case, &wrong);
        }
        if let Some(mut buffer) = seen.back {
            fill(&mut buffer);
            kept.0.push((case.to_string(), buffer));
        }
    }

    fn violate(&mut self, case: &Case, wrong: &str) {
        self.violations
            .push(format!("{}: {case}: {wrong}", self.name));
    }

    /// After the last completion: everything has ended once, nobody writes any more, all memory comes back,
    /// and the server counted no less than completions told.
    fn settle(&mut self, asked: &[Asked<'_>], kept: Kept, before: Counters) {
        for asked in asked {
            if asked.ended != 1 {
                self.violate(asked.case, &format!("{} ends", asked.ended));
            }
        }
        self.outlast_late_writes(asked);
        for (case, buffer) in &kept.0 {
            if !is_untouched(&contents(buffer)) {
                let wrong = "its buffer was written after it came back";
                self.violations
                    .push(format!("{}: {case}: {wrong}", self.name));
            }
        }
        drop(kept);
        let pool = self.engine().pool().clone();
        let began = Instant::now();
        loop {
            let stats = pool.stats();
            if stats.leased == 0 && stats.quarantined == 0 {
                break;
            }
            if began.elapsed() > PATIENCE {
                let text = format!("{}: memory is missing: {stats:?}", self.name);
                return self.violations.push(text);
            }
            thread::sleep(POLL);
        }
        self.compare_with_server(asked, before);
    }

    /// Waits for writes that come when nobody waits any more, and watches all memory that is free meanwhile.
    fn outlast_late_writes(&mut self, asked: &[Asked<'_>]) {
        if !asked.iter().any(|asked| asked.case.fault.writes_late()) {
            return;
        }
        let free = FreeMemory::lease_of(self.engine().pool(), self.memory);
        // The last token went out before the last completion came.
        thread::sleep(LATE);
        if !free.is_untouched() {
            let text = format!("{}: a late write reached free memory", self.name);
            self.violations.push(text);
        }
    }

    fn compare_with_server(&mut self, asked: &[Asked<'_>], before: Counters) {
        let now = self.site.sim.counters();
        let moved = now.rdma_read_bytes - before.rdma_read_bytes;
        let honest = asked.iter().all(|asked| asked.case.fault.rules.is_empty());
        let told: u64 = asked.iter().map(|asked| asked.by_rdma).sum();
        if moved < told || (honest && moved > told) {
            let text = format!(
                "{}: {told} bytes by RDMA, the server moved {moved}",
                self.name
            );
            self.violations.push(text);
        }
    }
}

impl Tally {
    fn add(&mut self, end: &Completion) {
        let (path, reason) = (end.path(), end.reason());
        *self.gets.entry((path, reason)).or_default() += 1;
        let by_path = end.bytes_by_path();
        for (bytes, by) in [
            (by_path.rdma, (Path::Rdma, Reason::Ok)),
            (by_path.http, (Path::Http, reason)),
        ] {
            if bytes > 0 {
                *self.bytes.entry(by).or_default() += bytes;
            }
        }
    }
}
