//! What an endpoint and a host bear: fewer requests where they are refused, files that run out, and large objects
//! beside small ones.

use std::fs::File;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use s3engine::{
    Completion, Engine, EngineBuilder, Get, Limits, Memory, Policy, PoolOptions, Reason,
    RetryPolicy,
};
use s3engine_tests::{PATIENCE, Rig, ServiceRig, block_on, credentials, quick_builder, wait_until};
use s3sim::{Action, Kind, Rule};

const MIB: u64 = 1 << 20;

fn limits(requests: usize) -> Limits {
    Limits {
        requests,
        ..Limits::default()
    }
}

/// Tries often, with short waits.
fn stubborn(builder: EngineBuilder) -> EngineBuilder {
    builder.retry(RetryPolicy {
        max_attempts: 100,
        cap: Duration::from_millis(20),
        budget: 10_000,
        ..RetryPolicy::default()
    })
}

/// So many GETs at once of a small object. All must bring it.
fn all_arrive(engine: &Engine, count: usize) {
    let gets: Vec<_> = (0..count)
        .map(|_| engine.get(Get::new("bench", "4KiB-x").policy(Policy::Http)))
        .collect();
    for get in gets {
        let completion = block_on(get);
        assert_eq!(completion.bytes(), 4096, "{:?}", completion.error());
    }
}

/// Refused at first, then served: all arrive, the window shrinks, and it is wide again after that.
fn shrinks_and_grows_back(sim: &s3sim::Sim, owner: &Engine, asks: &Engine) {
    let before = owner.concurrency().unwrap();
    assert_eq!((before.requests, before.ceiling), (16, 16));
    let busy = Rule::new(Action::SlowDown { retry_after: None }).only(Kind::Http);
    sim.faults().push(busy.count(40)).unwrap();
    all_arrive(asks, 200);
    assert!(owner.concurrency().unwrap().slow_downs > 0);
    wait_until("the window is as wide as before", || {
        all_arrive(asks, 64);
        owner.concurrency().unwrap().requests == 16
    });
}

#[test]
fn r28_r29_a_server_that_slows_down_gets_fewer_requests_and_then_as_many_as_before() {
    let rig = Rig::with([], |builder, _| {
        stubborn(builder.limits(limits(16)).adaptive(true))
    });
    shrinks_and_grows_back(&rig.sim, &rig.engine, &rig.engine);
}

#[test]
fn r28_r29_the_same_for_all_clients_of_a_host_service_together() {
    let rig = Rig::with([], |builder, _| {
        stubborn(builder.limits(limits(16)).adaptive(true))
    });
    let host = ServiceRig::with(rig, |_| {});
    let client = host.client();
    shrinks_and_grows_back(&host.rig.sim, &host.rig.engine, &client);
    assert_eq!(client.concurrency(), None, "the service learns it");
}

#[test]
fn r28_during_an_outage_a_host_asks_a_few_times_a_second_and_no_more() {
    let down = Rule::new(Action::SlowDown { retry_after: None }).only(Kind::Http);
    let rig = Rig::with([down], |builder, _| {
        stubborn(builder.limits(limits(16)).adaptive(true))
    });
    let ask = || {
        Get::new("bench", "4KiB-x")
            .policy(Policy::Http)
            .into(rig.buffer(4096))
    };
    let gets: Vec<_> = (0..64).map(|_| rig.engine.get(ask())).collect();
    wait_until("the window is at its least", || {
        rig.engine.concurrency().unwrap().requests == 2
    });
    // Two places, and each rests for half a second or more between two requests.
    wait_until("there are few requests", || {
        let (asked, began) = (rig.sim.counters().requests, Instant::now());
        thread::sleep(Duration::from_secs(1));
        let asked = rig.sim.counters().requests - asked;
        asked > 0 && asked as f64 <= began.elapsed().as_secs_f64() * 6.0
    });
    drop(gets);
}

#[test]
fn adaptive_off_gives_as_many_as_the_limits_allow() {
    let busy = Rule::new(Action::SlowDown { retry_after: None })
        .only(Kind::Http)
        .count(50);
    let shape = |builder: EngineBuilder| stubborn(builder.limits(limits(16)).adaptive(false));
    let rig = Rig::with([busy], |builder, _| shape(builder));
    all_arrive(&rig.engine, 100);
    assert_eq!(rig.engine.concurrency(), None);
}

#[test]
fn small_objects_arrive_while_a_large_one_does() {
    let late = Rule::new(Action::AnswerLate { ms: 20 }).key("*-large");
    let shape = |builder: EngineBuilder| builder.limits(limits(8)).part_sizes(64 << 10, 1 << 20);
    let rig = Rig::with([late], |builder, _| shape(builder));
    // 256 parts, seven at a time.
    let large = Get::new("bench", "16MiB-large").policy(Policy::Http);
    let mut large = Box::pin(rig.engine.get(large));
    wait_until("it is under way", || rig.sim.counters().requests > 20);
    all_arrive(&rig.engine, 100);
    let now = block_on(async { tokio::time::timeout(Duration::ZERO, &mut large).await });
    assert!(now.is_err(), "a hundred small ones came before its end");
    assert_eq!(block_on(large).bytes(), 16 * MIB);
}

#[test]
fn r35_a_request_takes_the_room_of_the_object_and_not_of_its_part_or_buffer() {
    // By part or buffer, one alone would take most of the bytes that may be under way.
    let rig = Rig::with([Rule::new(Action::NeverAnswer)], |builder, _| {
        let builder = builder.part_sizes(512 * MIB, 512 * MIB).pool(PoolOptions {
            slab_bytes: 24 * MIB,
            max_bytes: Some(72 * MIB),
            ..PoolOptions::default()
        });
        builder.limits(Limits {
            requests: 16,
            bytes: 32 * MIB,
        })
    });
    let get = || {
        let buffer = rig.buffer(24 * MIB);
        Get::new("bench", "1MiB-x")
            .policy(Policy::Http)
            .into(buffer)
    };
    let gets: Vec<_> = (0..3).map(|_| rig.engine.get(get())).collect();
    wait_until("all are asked for, and none is answered", || {
        rig.sim.counters().requests == 3
    });
    drop(gets);
}

#[test]
fn r36_a_small_object_is_one_request() {
    let rig = Rig::new([]);
    for nth in 1..=10 {
        let get = Get::new("bench", "4KiB-x").into(rig.buffer(64 << 10));
        assert_eq!(rig.get(Policy::Http, get).bytes(), 4096);
        assert_eq!(rig.sim.counters().requests, nth);
    }
}

/// Says to the child of a test where the server is, and how many files it may open.
const SERVER: &str = "LOAD_TEST_SERVER";

/// Runs a test again in a process of its own.
fn again_with_files(test: &str, files: u64) {
    let rig = Rig::new([]);
    let (access, secret) = (rig.sim.access_key(), rig.sim.secret_key());
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(
            SERVER,
            format!("{} {access} {secret} {files}", rig.sim.url()),
        )
        .spawn()
        .unwrap();
    wait_until("the child ends", || child.try_wait().unwrap().is_some());
    assert!(child.wait().unwrap().success());
}

/// An engine of a child that wants many requests at once, and may open only so many files.
fn of_child() -> Option<Engine> {
    let server = std::env::var(SERVER).ok()?;
    let [url, access, secret, files] = server.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{server}")
    };
    let files = files.parse().unwrap();
    let limit = Rlimit {
        // Half as many for now: building an engine changes that.
        current: Some(files / 2),
        maximum: Some(files),
    };
    setrlimit(Resource::Nofile, limit).unwrap();
    let credentials = credentials(access, secret);
    let builder = quick_builder(url).credentials(credentials);
    let engine = builder.limits(limits(512)).adaptive(true).build().unwrap();
    assert_eq!(getrlimit(Resource::Nofile).current, Some(files));
    Some(engine)
}

#[test]
fn r33_more_requests_than_files_wait_for_each_other() {
    let Some(engine) = of_child() else {
        let test = "r33_more_requests_than_files_wait_for_each_other";
        return again_with_files(test, 150);
    };
    let ceiling = engine.concurrency().unwrap().ceiling;
    assert!(ceiling <= 75, "{ceiling}: half of the files at most");
    all_arrive(&engine, 1000);
}

/// All the files that there are.
fn take_files(taken: &mut Vec<File>) {
    taken.extend(std::iter::from_fn(|| File::open("/dev/null").ok()));
}

#[test]
fn r33_without_a_file_a_connect_waits_and_the_deadline_bounds_that() {
    let Some(engine) = of_child() else {
        let test = "r33_without_a_file_a_connect_waits_and_the_deadline_bounds_that";
        return again_with_files(test, 200);
    };
    let get = |engine: &Engine| {
        let buffer = engine.pool().try_alloc(4096, Memory::Host).unwrap();
        Get::new("bench", "4KiB-x")
            .policy(Policy::Http)
            .into(buffer)
    };
    let first = get(&engine);
    let mut taken = Vec::new();
    take_files(&mut taken);
    let late: Completion = block_on(engine.get(first.deadline(Duration::from_millis(300))));
    assert_eq!(late.reason(), Reason::Deadline, "{late:?}");
    let waits = engine.get(get(&engine).deadline(PATIENCE));
    let freed = thread::spawn(move || {
        thread::sleep(Duration::from_millis(500));
        drop(taken);
    });
    let completion = block_on(waits);
    assert_eq!(completion.bytes(), 4096, "{:?}", completion.error());
    freed.join().unwrap();
}
