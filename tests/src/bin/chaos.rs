//! One client of a host service whose server is at fault in every way: GETs of all sizes, policies and destinations, each
//! judged when it ends.
//!
//! `chaos SOCKET SEED COUNT`: prints `COUNT GETs: N good, M failed`, then one line `REASON COUNT` for each reason, and
//! `end`. Anything that must not be ends it with a panic.

use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use s3engine::{
    Completion, ConnectOptions, Engine, Flags, Get, Memory, Policy, QueueOptions, Ticket,
};
use s3engine_tests::{PATIENCE, assert_invariants};
use s3sim::content;

/// GETs that are submitted at once.
const AT_ONCE: usize = 24;

/// How long a GET may take, and what a busy host may add until its end is seen.
const DEADLINE: Duration = Duration::from_secs(15);
const SEEN: Duration = PATIENCE;

/// More versions than a key has in one run.
const VERSIONS: u64 = 200;

/// What one GET asks for.
struct Ask {
    key: String,
    size: u64,
    offset: u64,
    len: u64,
    policy: Policy,
    submitted: Instant,
}

fn main() {
    let mut args = std::env::args().skip(1);
    let mut next = || args.next().expect("SOCKET SEED COUNT");
    let (socket, seed, count) = (next(), next(), next());
    let mut dice = StdRng::seed_from_u64(seed.parse().expect("a seed"));
    let count: usize = count.parse().expect("a number");
    let engine = Engine::connect(socket.as_ref(), ConnectOptions::default()).expect("a service");
    let mut queue = engine.queue(QueueOptions { capacity: AT_ONCE });
    let mut under_way: HashMap<Ticket, Ask> = HashMap::new();
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    let (mut pushed, mut good) = (0, 0);
    while pushed < count || !under_way.is_empty() {
        while pushed < count && under_way.len() < AT_ONCE {
            let (get, ask) = ask(&engine, &mut dice);
            let ticket = queue.push(get).expect("room");
            assert!(under_way.insert(ticket, ask).is_none(), "a ticket twice");
            pushed += 1;
        }
        queue.submit();
        let bound = DEADLINE + SEEN;
        let end = queue.next(bound).expect("an end in time").expect("an end");
        if end.flags().contains(Flags::MORE) {
            continue;
        }
        let asked = under_way.remove(&end.ticket()).expect("one end a GET");
        judge(&end, &asked);
        good += usize::from(end.is_ok());
        *reasons.entry(end.reason().to_string()).or_default() += 1;
    }
    println!("{count} GETs: {good} good, {} failed", count - good);
    for (reason, count) in reasons {
        println!("{reason} {count}");
    }
    println!("end");
    std::io::stdout().flush().expect("somebody listens");
}

/// A GET by the dice: mostly small and whole, sometimes of many parts, into any kind of destination.
fn ask(engine: &Engine, dice: &mut StdRng) -> (Get, Ask) {
    let size = match dice.random_range(0..100) {
        0..3 => 0,
        3..10 => 1,
        10..70 => dice.random_range(1..64 << 10),
        70..97 => dice.random_range(64 << 10..200 << 10),
        _ => dice.random_range(200 << 10..1 << 20),
    };
    let key = format!("{size}-chaos-{}", dice.random_range(0..20));
    let whole = dice.random_bool(0.6) || size == 0;
    let offset = if whole { 0 } else { dice.random_range(0..size) };
    let len = if whole {
        size
    } else {
        dice.random_range(1..=size - offset)
    };
    let policy = Policy::ALL[dice.random_range(0..Policy::ALL.len())];
    let get = Get::new("bench", &*key).policy(policy).deadline(DEADLINE);
    let get = if whole { get } else { get.range(offset, len) };
    let get = match dice.random_range(0..3) {
        0 => get,
        kind => {
            let buffer = engine.pool().alloc(len.max(1), Memory::Host, PATIENCE);
            let buffer = buffer.expect("memory");
            if kind == 1 {
                get.into(buffer)
            } else {
                get.into_fixed(buffer)
            }
        }
    };
    let submitted = Instant::now();
    let ask = Ask {
        key,
        size,
        offset,
        len,
        policy,
        submitted,
    };
    (get, ask)
}

/// Right bytes or an error that says what and why, in time.
fn judge(end: &Completion, ask: &Ask) {
    assert_invariants(end, ask.policy);
    let took = ask.submitted.elapsed();
    assert!(took < DEADLINE + SEEN, "{took:?}: {end:?}");
    if let Some(error) = end.error() {
        let line = error.to_string();
        let names = line.contains(&ask.key) && !line.contains('\n');
        assert!(
            names,
            "an error that does not name its object on one line: {line}"
        );
        return;
    }
    assert_eq!(
        end.bytes(),
        ask.len,
        "{} bytes at {} of {}: {end:?}",
        ask.len,
        ask.offset,
        ask.size
    );
    let data = end.data().expect("host memory");
    let of_version = |version| content::verify(&ask.key, version, ask.offset, data).is_ok();
    assert!(
        (0..VERSIONS).any(of_version),
        "bytes of no version: {end:?}"
    );
}
