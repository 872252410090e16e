//! Services that are killed at any moment, over and over, under one client. Alone in its process, whose descriptors
//! and mappings are counted.

use std::thread;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rustix::process::Signal;
use s3engine::{
    Completion, ConnectOptions, Engine, Get, ListQuery, Memory, Policy, PoolError, Queue,
    QueueOptions, Reason,
};
use s3engine_tests::{Footprint, Owner, PATIENCE, Rig, block_on, kills};
use s3sim::{Action, Rule, content};

const KEY: &str = "300KiB-p";

/// GETs at once.
const AT_ONCE: usize = 16;

/// The latest kill, in milliseconds after the client's work has begun.
const LATEST: f64 = 40.0;

/// By how many mappings and KiB the client may grow once it is warm: heaps and stacks.
const PRIVATE: usize = 64;
const PSS: u64 = 6 << 10;

/// What the client does when its service is killed.
#[derive(Clone, Copy, Debug)]
enum Stage {
    Attaching,
    Asking,
    Leasing,
    Queued,
    Http,
    Loopback,
    Reaping,
    Nothing,
}

impl Stage {
    const ALL: [Stage; 8] = [
        Stage::Attaching,
        Stage::Asking,
        Stage::Leasing,
        Stage::Queued,
        Stage::Http,
        Stage::Loopback,
        Stage::Reaping,
        Stage::Nothing,
    ];

    /// Works until the service is gone. Each end says so, or brings all bytes.
    fn work(self, owner: &Owner, client: &mut Client) {
        match self {
            Stage::Attaching => {
                let attach = || Engine::connect(&owner.socket(), ConnectOptions::default());
                while let Ok(other) = attach() {
                    let end = block_on(other.get(Get::new("bench", KEY)));
                    client.check(&end);
                }
            }
            Stage::Asking => client.ask(),
            Stage::Leasing => client.lease(),
            Stage::Queued => while !client.turn(Policy::PreferRdma, AT_ONCE, 1) {},
            Stage::Http => while !client.turn(Policy::Http, 2, 1) {},
            Stage::Loopback => while !client.turn(Policy::RequireRdma, 2, 1) {},
            Stage::Reaping => while !client.turn(Policy::PreferRdma, AT_ONCE, AT_ONCE) {},
            Stage::Nothing => {}
        }
    }
}

struct Client {
    engine: Engine,
    queue: Queue,
}

impl Client {
    fn new(owner: &Owner) -> Self {
        let engine = Engine::connect(&owner.socket(), ConnectOptions::default()).unwrap();
        let queue = engine.queue(QueueOptions { capacity: AT_ONCE });
        Self { engine, queue }
    }

    /// Returns whether the service was lost.
    fn check(&self, end: &Completion) -> bool {
        match end.error() {
            // What came before its service's end may be unreadable already: its memory died with that.
            None => {
                if let Some(data) = end.data() {
                    content::verify(KEY, 0, 0, data).unwrap();
                }
                false
            }
            Some(_) => {
                assert_eq!(end.reason(), Reason::ServiceLost, "{end:?}");
                true
            }
        }
    }

    /// So many GETs, half of them into buffers, taken once `ready` have ended. Returns whether the service was lost.
    fn turn(&mut self, policy: Policy, count: usize, ready: usize) -> bool {
        let mut lost = false;
        for nth in 0..count {
            let get = Get::new("bench", KEY).policy(policy);
            let buffer = match nth % 2 {
                0 => None,
                _ => Some(self.engine.pool().alloc(300 << 10, Memory::Host, PATIENCE)),
            };
            let get = match buffer {
                Some(Ok(buffer)) => get.into(buffer),
                Some(Err(error)) => {
                    assert!(matches!(error, PoolError::Lost { .. }), "{error}");
                    lost = true;
                    get
                }
                None => get,
            };
            self.queue.push(get).unwrap();
        }
        self.queue.submit();
        self.queue.wait(ready, PATIENCE).unwrap();
        let mut ends = 0;
        while let Some(end) = self.queue.next(PATIENCE).unwrap() {
            lost |= self.check(&end);
            ends += 1;
        }
        assert_eq!(ends, count);
        lost
    }

    fn ask(&self) {
        loop {
            let head = block_on(self.engine.head("bench", KEY)).map(drop);
            let query = ListQuery::default();
            let list = || block_on(self.engine.list("bench", query).next()).map(drop);
            if let Err(error) = head.and_then(|()| list()) {
                assert_eq!(error.reason(), Reason::ServiceLost, "{error}");
                return;
            }
        }
    }

    fn lease(&self) {
        for nth in 1.. {
            // Of sizes that are kept and that are not.
            let len = nth % 9 * (200 << 10) + 1;
            match self.engine.pool().alloc(len, Memory::Host, PATIENCE) {
                Ok(mut buffer) => {
                    // It may be dead by now.
                    if let Some(bytes) = buffer.as_mut_slice() {
                        bytes.fill(nth as u8);
                    }
                }
                Err(error) => {
                    assert!(matches!(error, PoolError::Lost { .. }), "{error}");
                    return;
                }
            }
        }
    }
}

/// Kills so many services, each followed by the next, which serves. What does this process have then?
fn kill(
    count: usize,
    owner: &mut Owner,
    client: &mut Client,
    rig: &Rig,
    random: &mut StdRng,
) -> Footprint {
    let mut stages = Vec::new();
    for _ in 0..count {
        if stages.is_empty() {
            stages.extend(Stage::ALL);
            stages.shuffle(random);
        }
        let stage: Stage = stages.pop().unwrap();
        let after = Duration::from_secs_f64(random.random::<f64>() * LATEST / 1000.0);
        let service = &*owner;
        thread::scope(|scope| {
            scope.spawn(move || {
                thread::sleep(after);
                service.process().signal(Signal::KILL);
            });
            stage.work(service, client);
        });
        owner.renew(rig);
        // The queue sees that its service is another one.
        client.queue.submit();
        let back = block_on(client.engine.get(Get::new("bench", KEY)));
        let data = back.data().unwrap_or_else(|| panic!("{stage:?}: {back:?}"));
        content::verify(KEY, 0, 0, data).unwrap();
    }
    Footprint::settled(std::process::id() as i32)
}

#[test]
fn services_that_are_killed_at_any_moment_lose_what_was_under_way_and_the_next_one_goes_on() {
    let seed: u64 = rand::random();
    let (_, count) = kills();
    println!("seed {seed}, {count} kills");
    let mut random = StdRng::seed_from_u64(seed);
    let late = Rule::new(Action::AnswerLate { ms: 15 }).probability(0.3, seed);
    let rig = Rig::new([late]);
    let mut owner = Owner::new(env!("CARGO_BIN_EXE_owner"), &rig);
    let mut client = Client::new(&owner);
    let warm = count.div_ceil(10).min(Stage::ALL.len());
    let early = kill(warm, &mut owner, &mut client, &rig, &mut random);
    let end = kill(count - warm, &mut owner, &mut client, &rig, &mut random);
    println!("early {early:?}\nend {end:?}");
    assert_eq!((&end.fds, end.shared), (&early.fds, early.shared));
    assert!(end.private <= early.private + PRIVATE, "{early:?} {end:?}");
    assert!(end.pss <= early.pss + PSS, "{early:?} {end:?}");
}
