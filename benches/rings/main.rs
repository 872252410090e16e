//! What a queue costs between two processes, beside a raw eventfd and iceoryx2.
//!
//! `cargo bench -p s3engine-benches --bench rings [-- ROUNDS] [-- --unpinned]`
//!
//! The client is this process, the service another one (this program again): it makes the queue and sends the sealed
//! memfds and the bell, as the host service does. Each side stays on a processor of its own, unless `--unpinned`.
//! Rounds of all contenders of a table are interleaved; a figure is the median of its rounds, a ratio the median of
//! its rounds' ratios to the first row. Each trip is timed by itself.
//!
//! Three ways to wait: `spinning`; `poll`, where both sides sleep in poll(2), as clients of the engine do; and
//! `epoll`, where the service sleeps in tokio as the engine's does, the client in poll(2). The eventfd is always waited
//! for in the same way as the queue that it stands beside.

mod eventfd;
mod handover;
mod iceoryx2;
mod other;
mod queue;
mod rounds;
mod wait;

use std::cell::RefCell;

use iceoryx2::Iceoryx2;
use other::{Other, Side};
use rounds::{Contender, Plan, compare, of_trips};
use wait::Wait;

/// Entries that are submitted at once where the rate is asked for.
const BATCH: u32 = 256;

fn main() {
    if std::env::var_os("S3ENGINE_BENCH_ROLE").is_some() {
        return other::run();
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| args.iter().any(|arg| arg == flag);
    let rounds = args.iter().find_map(|arg| arg.parse().ok()).unwrap_or(21);
    let plan = match has("--test") {
        true => Plan {
            rounds: 1,
            trips: 50,
            batches: 8,
        },
        false => Plan {
            rounds,
            trips: 4000,
            batches: 2000,
        },
    };
    run(plan, wait::two_processors().filter(|_| !has("--unpinned")));
}

fn run(plan: Plan, processors: Option<[usize; 2]>) {
    let other = RefCell::new(Other::start(processors));
    let peer = Iceoryx2::start(processors).map(RefCell::new);
    let trips = |side: Side, wait: Wait| -> Contender<'_> {
        let other = &other;
        let one = move || of_trips(other.borrow_mut().trips(side, wait, plan.trips));
        (side.name(), Box::new(one))
    };
    let peer_trips = |how: &'static str| -> Option<Contender<'_>> {
        let peer = peer.as_ref().ok()?;
        let one = move || {
            peer.borrow_mut()
                .round(&format!("trips {how} {}", plan.trips))
        };
        Some(("iceoryx2", Box::new(one)))
    };
    let columns = ["us, p50", "p99", "mean"];

    let mut contenders = vec![trips(Side::Queue, Wait::Spin)];
    contenders.extend(peer_trips("spin"));
    compare(
        "one NOP there and back, spinning",
        &columns,
        &mut contenders,
        plan,
    );

    let mut contenders = vec![
        trips(Side::Eventfd, Wait::Epoll),
        trips(Side::Queue, Wait::Epoll),
    ];
    compare(
        "the same, sleeping (epoll)",
        &columns,
        &mut contenders,
        plan,
    );

    let mut contenders = vec![
        trips(Side::Eventfd, Wait::Poll),
        trips(Side::Queue, Wait::Poll),
    ];
    contenders.extend(peer_trips("sleep"));
    compare("the same, sleeping (poll)", &columns, &mut contenders, plan);

    let stream = |name, wait: Wait, window: u32| -> Contender<'_> {
        let other = &other;
        let one = move || vec![other.borrow_mut().stream(wait, window, plan.batches)];
        (name, Box::new(one))
    };
    let mut contenders = vec![
        stream("queue, spinning", Wait::Spin, queue::ENTRIES),
        stream("  one batch at a time", Wait::Spin, BATCH),
        stream("queue, sleeping", Wait::Epoll, queue::ENTRIES),
        stream("  one batch at a time", Wait::Epoll, BATCH),
    ];
    if let Ok(peer) = &peer {
        // It takes about as long for a fortieth.
        let count = plan.batches.div_ceil(40) * BATCH;
        let order = format!("stream spin {count}");
        let one = move || peer.borrow_mut().round(&order);
        contenders.push(("iceoryx2, spinning, 4 in flight", Box::new(one)));
    }
    let title = "entries in batches of 256";
    compare(title, &["M entries/s"], &mut contenders, plan);

    if let Err(why) = &peer {
        println!("\niceoryx2: {why}");
    }
    println!(
        "\nmedians of {} interleaved rounds of {} trips or {} batches; ratio: to the first row, in the same round; \
         client and service {}",
        plan.rounds,
        plan.trips,
        plan.batches,
        match processors {
            Some([client, service]) => format!("on processors {client} and {service}"),
            None => "not pinned".to_owned(),
        }
    );
}
