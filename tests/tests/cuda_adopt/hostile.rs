//! Clients that share memory against the rules: only their own session suffers.

use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd};

use cuda_standin::{Standin, with_standin};
use rustix::process::{Resource, Rlimit, setrlimit};
use s3engine::Policy;
use s3engine::cuda::Gpu;
use s3engine_tests::{Raw, Rig, ServiceRig, wait_until};
use serde_json::{Value, json};

use crate::callers::{Callers, How, MIB};
use crate::{get, slabs};

/// That may be made while a client does its worst: one for each thread.
const CONNECTIONS: usize = 2;

fn device() -> [u8; 16] {
    Gpu::nth(0).unwrap().uuid().0
}

fn adopt(id: u64, whole: u64, at: u64, len: u64) -> Value {
    let adopt = json!({"device": device(), "whole": whole, "at": at, "len": len});
    json!({"id": id, "ask": {"Adopt": adopt}})
}

/// What is answered to that.
fn said(raw: &mut Raw, ask: &Value, fds: &[BorrowedFd<'_>]) -> Value {
    raw.say_with(ask, fds);
    let (mut answer, fds) = raw.hear().expect("the session goes on");
    assert!(fds.is_empty());
    answer["said"].take()
}

fn open_files() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn shared_memory_that_is_none_or_not_as_it_is_said_to_be_is_refused() {
    Standin::default().gpus(2).run(|| {
        let host = ServiceRig::new();
        let honest = host.client();
        let memory = Callers::new(4 * MIB, How::Shareable);
        let fd = memory.descriptor();
        let null = File::open("/dev/null").unwrap();
        let own = Callers::new(2 * MIB, How::Malloc).handle_for_ipc();
        let mut raw = Raw::greeted(&host);
        let fds = |of: &'static str| match of {
            "memory" => vec![fd.as_fd()],
            "null" => vec![null.as_fd()],
            _ => vec![],
        };
        let of = |device: [u8; 16], handle: Value| {
            let adopt =
                json!({"device": device, "handle": handle, "whole": 4 * MIB, "at": 0, "len": 1});
            json!({"id": 1, "ask": {"Adopt": adopt}})
        };
        for (ask, came) in [
            (adopt(1, 4 * MIB, 0, 1), "nothing"),
            (adopt(1, 4 * MIB, 0, 1), "null"),
            (adopt(1, 0, 0, 1), "memory"),
            (adopt(1, 4 * MIB + 1, 0, 1), "memory"),
            (adopt(1, 8 * MIB, 0, 1), "memory"),
            (adopt(1, u64::MAX, 0, 1), "memory"),
            (adopt(1, 1 << 60, 0, 1), "memory"),
            (adopt(1, 4 * MIB, 0, 0), "memory"),
            (adopt(1, 4 * MIB, 4 * MIB, 1), "memory"),
            (adopt(1, 4 * MIB, 1, u64::MAX), "memory"),
            (adopt(1, 4 * MIB, u64::MAX, 1), "memory"),
            (of([9; 16], Value::Null), "memory"),
            (of(Gpu::nth(1).unwrap().uuid().0, Value::Null), "memory"),
            (of(device(), json!(own)), "nothing"),
            (of(device(), json!(own)), "memory"),
            (of(device(), json!([7; 64].as_slice())), "nothing"),
            (
                json!({"id": 1, "ask": {"AdoptAgain": {"slab": 0, "at": 0, "len": 1}}}),
                "nothing",
            ),
        ] {
            let said = said(&mut raw, &ask, &fds(came));
            assert!(said["Err"].is_object(), "{ask} with {came}: {said}");
            assert_eq!(slabs(&host).0, 0, "{ask}");
        }
        get(&honest, &memory, 1, Policy::RequireRdma);
    });
}

#[test]
fn slabs_of_the_service_are_not_adopted_and_adopted_ones_not_exported() {
    with_standin(|| {
        let host = ServiceRig::new();
        let memory = Callers::new(4 * MIB, How::Shareable);
        let fd = memory.descriptor();
        let mut raw = Raw::greeted(&host);
        let lease = json!({"id": 1, "ask": {"Lease": {"len": 10, "align": 4096}}});
        raw.say(&lease);
        let (leased, _) = raw.hear().unwrap();
        let slab = leased["said"]["Ok"]["Leased"]["slot"]["slab"].clone();
        let again = json!({"id": 1, "ask": {"AdoptAgain": {"slab": slab, "at": 8192, "len": 1}}});
        assert!(said(&mut raw, &again, &[])["Err"].is_object());
        let disown = json!({"id": 1, "ask": {"Disown": {"slab": slab}}});
        assert_eq!(
            said(&mut raw, &disown, &[])["Ok"],
            json!({"Disowned": true})
        );
        let slab = json!({"id": 1, "ask": {"Slab": {"slab": slab}}});
        raw.say(&slab);
        let (there, _) = raw.hear().unwrap();
        assert!(
            there["said"]["Ok"].is_object(),
            "it is there still: {there}"
        );

        let adopted = said(&mut raw, &adopt(1, 4 * MIB, 5, 5), &[fd.as_fd()]);
        let slab = adopted["Ok"]["Leased"]["slot"]["slab"].clone();
        let export = json!({"id": 1, "ask": {"Slab": {"slab": slab}}});
        assert!(said(&mut raw, &export, &[])["Err"].is_object());
        let mut other = Raw::greeted(&host);
        let again = json!({"id": 1, "ask": {"AdoptAgain": {"slab": slab, "at": 0, "len": 1}}});
        assert!(
            said(&mut other, &again, &[])["Err"].is_object(),
            "it is not its"
        );
        assert!(said(&mut raw, &again, &[])["Ok"].is_object());
    });
}

#[test]
fn descriptors_that_are_too_many_end_the_session() {
    with_standin(|| {
        let host = ServiceRig::new();
        let memory = Callers::new(4 * MIB, How::Shareable);
        let fd = memory.descriptor();
        let ping = json!({"id": 0, "ask": "Ping"});
        let before = open_files();
        for (ask, count) in [(adopt(1, 4 * MIB, 0, 1), 2), (ping, 1)] {
            let mut raw = Raw::greeted(&host);
            raw.say_with(&ask, &vec![fd.as_fd(); count]);
            raw.assert_ended();
        }
        wait_until("none is kept", || open_files() <= before);
    });
}

#[test]
fn a_client_that_adopts_without_end_is_refused_and_takes_no_more_files() {
    with_standin(|| {
        let host = ServiceRig::new();
        let honest = host.client();
        let memory = Callers::new(2 * MIB, How::Shareable);
        get(&honest, &memory, 1, Policy::RequireRdma);
        let fd = memory.descriptor();
        let before = open_files();
        let mut raw = Raw::greeted(&host);
        let slab = |said: &Value| said["Ok"]["Leased"]["slot"]["slab"].as_u64();
        let mut taken = Vec::new();
        for nth in 0..600 {
            let said = said(&mut raw, &adopt(nth, 2 * MIB, 0, 1), &[fd.as_fd()]);
            taken.extend(slab(&said));
        }
        assert_eq!(taken.len(), 256);
        assert_eq!(slabs(&host).0, 257);
        let disown = json!({"id": 1, "ask": {"Disown": {"slab": taken[0]}}});
        let busy = said(&mut raw, &disown, &[]);
        assert_eq!(busy["Ok"], json!({"Disowned": false}));
        // One byte after the other.
        let mut slots = 1;
        loop {
            let again = json!({"slab": taken[0], "at": slots, "len": 1});
            let said = said(
                &mut raw,
                &json!({"id": 1, "ask": {"AdoptAgain": again}}),
                &[],
            );
            if slab(&said).is_none() {
                break;
            }
            slots += 1;
        }
        assert_eq!(slots, 4096);
        get(&honest, &memory, 1, Policy::RequireRdma);
        drop(raw);
        // A connection to the storage has two ends here.
        let files = before + 2 * CONNECTIONS;
        wait_until("all is let go", || {
            slabs(&host).0 == 1 && open_files() <= files
        });
        get(&honest, &memory, 1, Policy::Http);
    });
}

#[test]
fn what_is_adopted_for_one_who_waits_no_more_takes_files_all_the_same() {
    with_standin(|| {
        let rig = Rig::new([]);
        // Those of a client, and of twenty allocations, beside what the service keeps.
        let limit = open_files() as u64 + 2 * 64 + 192 + 10 + 2 * 20;
        let (current, maximum) = (Some(limit), Some(limit));
        setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
        let host = ServiceRig::with(rig, |_| {});
        let memory = Callers::new(2 * MIB, How::Shareable);
        let fd = memory.descriptor();
        let mut raw = Raw::greeted(&host);
        for id in 1..100 {
            raw.say_with(&adopt(id, 2 * MIB, 0, 1), &[fd.as_fd()]);
            raw.say(&json!({"id": 0, "ask": {"Forget": {"request": id}}}));
        }
        let refused = (100..1000).find_map(|id| {
            raw.say_with(&adopt(id, 2 * MIB, 0, 1), &[fd.as_fd()]);
            let answers = std::iter::from_fn(|| raw.hear());
            let mut answers = answers.map(|(answer, _)| answer);
            let answer = answers.find(|answer| answer["id"] == id).unwrap();
            answer["said"]["Err"]["Refused"].as_str().map(str::to_owned)
        });
        let refused = refused.unwrap();
        assert!(refused.contains("open files"), "{refused}");
        assert!(slabs(&host).0 <= 20, "{}", slabs(&host).0);
        drop(raw);
        host.assert_drains();
        wait_until("all is let go", || slabs(&host).0 == 0);
    });
}
