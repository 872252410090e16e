//! Clients that are killed at any moment, over and over, beside one that lives.

use std::thread;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use s3engine::{Buffer, Completion, ConnectOptions, Engine, Get, Memory, Queue, QueueOptions};
use s3engine_tests::{
    Footprint, Owner, PATIENCE, Program, Rig, drain, fill, helper, is_untouched, kills,
};
use s3sim::{Action, Kind, Rule, content};

/// What those read that are killed; the server is at times slow with it.
const VICTIMS: &str = "300KiB-v";

/// What the one reads that lives. Of a size that a client does not keep memory for.
const SURVIVORS: &str = "1100KiB-s";

/// Connections to the server that the service may have idle: those of the requests that it has at once.
const CONNECTIONS: usize = 64;

/// By how many mappings and KiB the service may grow once it is warm, however many are killed: stacks and heaps of
/// threads that come and go as work does.
const PRIVATE: usize = 64;
const PSS: u64 = 6 << 10;

/// Where in its life a client is killed.
#[derive(Clone, Copy, Debug)]
enum Stage {
    Starting,
    Idle,
    Queued,
    Http,
    Loopback,
    Reaping,
    Forked,
}

impl Stage {
    const ALL: [Stage; 7] = [
        Stage::Starting,
        Stage::Idle,
        Stage::Queued,
        Stage::Http,
        Stage::Loopback,
        Stage::Reaping,
        Stage::Forked,
    ];

    /// What the client is told to do.
    fn args(self) -> &'static [&'static str] {
        match self {
            Stage::Starting | Stage::Idle => &["idle", VICTIMS],
            Stage::Queued => &["hoard", VICTIMS, "64"],
            Stage::Http => &["http", VICTIMS],
            Stage::Loopback => &["rdma", VICTIMS],
            Stage::Reaping => &["reap", VICTIMS, "16"],
            Stage::Forked => &["fork", VICTIMS],
        }
    }

    /// Milliseconds from its word to its kill, at most; for one that starts, from its start.
    fn within(self) -> u64 {
        match self {
            Stage::Starting => 12,
            Stage::Idle | Stage::Reaping => 4,
            _ => 25,
        }
    }

    /// Starts a client, lets it come so far, and kills it.
    fn kill(self, owner: &Owner, random: &mut StdRng) {
        let mut command = helper(env!("CARGO_BIN_EXE_attached"));
        let mut client = Program::run(command.arg(owner.socket()).args(self.args()));
        let said = match self {
            Stage::Starting => String::new(),
            _ => client.line(),
        };
        let child = match self {
            Stage::Forked => {
                let child = Pid::from_raw(said.parse().unwrap()).unwrap();
                Some(pidfd_open(child, PidfdFlags::empty()).unwrap())
            }
            _ => None,
        };
        let within = Duration::from_millis(self.within());
        thread::sleep(within.mul_f64(random.random()));
        client.signal(Signal::KILL);
        drop(client);
        if let Some(child) = child {
            // Its parent's end is seen while it lives; see `processes`.
            thread::sleep(Duration::from_millis(2));
            pidfd_send_signal(child, Signal::KILL).unwrap();
        }
    }
}

/// A client that lives through all of it.
struct Survivor {
    engine: Engine,
    queue: Queue,
    canaries: Vec<Buffer>,
    /// Arrived, and looked at again after the next kill.
    kept: Vec<Completion>,
}

impl Survivor {
    fn new(owner: &Owner) -> Self {
        let engine = Engine::connect(&owner.socket(), ConnectOptions::default()).unwrap();
        let lens = [1 << 20, 64 << 10, 4 << 10, 4 << 10];
        let canary = |len| {
            let mut canary = engine.pool().alloc(len, Memory::Host, PATIENCE).unwrap();
            fill(&mut canary);
            canary
        };
        Self {
            canaries: lens.into_iter().map(canary).collect(),
            queue: engine.queue(QueueOptions { capacity: 8 }),
            engine,
            kept: Vec::new(),
        }
    }

    fn submit(&mut self) {
        let size = content::size_of_key(SURVIVORS).unwrap();
        for nth in 0..3 {
            let get = Get::new("bench", SURVIVORS);
            let pool = self.engine.pool();
            let get = match nth {
                0 => get,
                _ => get.into(pool.alloc(size, Memory::Host, PATIENCE).unwrap()),
            };
            self.queue.push(get).unwrap();
        }
        self.queue.submit();
    }

    fn check(&mut self) {
        for canary in &self.canaries {
            assert!(is_untouched(canary.as_slice().unwrap()), "{canary:?}");
        }
        let intact = |end: &Completion| {
            let data = end.data().unwrap_or_else(|| panic!("{end:?}"));
            content::verify(SURVIVORS, 0, 0, data).unwrap();
        };
        self.kept.iter().for_each(intact);
        self.kept = drain(&mut self.queue);
        self.kept.iter().for_each(intact);
    }
}

/// Kills so many clients beside one that lives, which then leaves too. What is left of them all in the service?
fn kill(count: usize, owner: &mut Owner, random: &mut StdRng) -> Footprint {
    let mut survivor = Survivor::new(owner);
    let mut stages = Vec::new();
    for _ in 0..count {
        if stages.is_empty() {
            stages.extend(Stage::ALL);
            stages.shuffle(random);
        }
        survivor.submit();
        stages.pop().unwrap().kill(owner, random);
        survivor.check();
    }
    survivor.submit();
    survivor.check();
    survivor.check();
    drop(survivor);
    owner.settle()
}

#[test]
fn clients_that_are_killed_at_any_moment_leave_nothing_behind_and_change_nothing_of_anothers() {
    let seed: u64 = rand::random();
    let (count, _) = kills();
    println!("seed {seed}, {count} kills");
    let mut random = StdRng::seed_from_u64(seed);
    let late = Rule::new(Action::AnswerLate { ms: 15 });
    let stray = Rule::new(Action::WriteLate { ms: 10 }).only(Kind::Rdma);
    let rig = Rig::new([
        stray.key("*-v").probability(0.05, seed),
        late.key("*-v").probability(0.3, seed),
    ]);
    let mut owner = Owner::new(env!("CARGO_BIN_EXE_owner"), &rig);
    // What is made once is there after the first.
    let start = kill(0, &mut owner, &mut random);
    let early = kill(count.div_ceil(10), &mut owner, &mut random);
    let end = kill(count - count.div_ceil(10), &mut owner, &mut random);
    println!("start {start:?}\nearly {early:?}\nend {end:?}");
    assert_eq!((&end.fds, end.shared), (&start.fds, start.shared));
    assert!(end.connections <= CONNECTIONS, "{end:?}");
    assert!(end.private <= early.private + PRIVATE, "{early:?} {end:?}");
    assert!(end.pss <= early.pss + PSS, "{early:?} {end:?}");
}
