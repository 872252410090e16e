//! Clients that break the rules of the host service: only their own session suffers.

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::SendFlags;
use s3engine::service::Caps;
use s3engine::{Engine, Get, QueueOptions};
use s3engine_tests::{PATIENCE, Raw, Rig, ServiceRig, wait_until};
use s3sim::content;
use serde_json::json;

const KEY: &str = "100KiB-honest";

/// Another client's GETs go on, whatever was done.
fn assert_serves(engine: &Engine) {
    let mut queue = engine.queue(QueueOptions { capacity: 4 });
    for _ in 0..4 {
        queue.push(Get::new("bench", KEY)).unwrap();
    }
    queue.submit();
    while let Some(done) = queue.next(PATIENCE).unwrap() {
        content::verify(KEY, 0, 0, done.data().unwrap()).unwrap();
    }
}

fn open_fds() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn bytes_that_are_no_messages_end_the_session_that_sends_them() {
    let host = ServiceRig::new();
    let honest = host.client();
    let frames: [&[u8]; 6] = [
        b"GET / HTTP/1.1\r\n\r\n",
        &[0xff; 64],
        &[5, 0, 0, 0, 0, b'h', b'e', b'l', b'l', b'o'],
        &[2, 0, 0, 0, 0, b'{', b'}'],
        &[2, 0, 0, 0, 9, b'{', b'}'],
        &[0, 0, 0, 0, 0],
    ];
    for greeted in [false, true] {
        for frame in frames {
            let mut raw = match greeted {
                true => Raw::greeted(&host),
                false => Raw::silent(&host),
            };
            raw.0.write_all(frame).unwrap();
            raw.assert_ended();
        }
    }
    assert_serves(&honest);
}

#[test]
fn asks_that_make_no_sense_are_refused_or_end_the_session() {
    let host = ServiceRig::new();
    let honest = host.client();
    let mut raw = Raw::greeted(&host);
    let asks = [
        json!({"Queue": {"entries": 3}}),
        json!({"Queue": {"entries": 0}}),
        json!({"Queue": {"entries": u32::MAX}}),
        json!({"Lease": {"len": u64::MAX, "align": 4096}}),
        json!({"Lease": {"len": 10, "align": 3}}),
        json!({"Slab": {"slab": 0}}),
        json!({"Slab": {"slab": u32::MAX}}),
        json!({"Head": {"bucket": "", "key": ""}}),
        json!({"Open": {"bucket": "bench", "key": "no such key"}}),
    ];
    for ask in asks {
        raw.say(&json!({"id": 7, "ask": ask}));
        let (answer, fds) = raw.hear().unwrap();
        assert!(answer["said"]["Err"].is_object(), "{ask}: {answer}");
        assert!(fds.is_empty());
    }
    // Unasked for, and of things that are not there: nothing comes of it.
    raw.say(
        &json!({"id": 0, "ask": {"Free": {"slots": [{"slab": 9, "index": 9, "generation": 9}]}}}),
    );
    raw.say(&json!({"id": 0, "ask": {"Close": {"object": 99}}}));
    raw.say(&json!({"id": 0, "ask": {"Forget": {"request": 99}}}));
    raw.say(&json!({"id": 8, "ask": {"Lease": {"len": 10, "align": 4096}}}));
    let (answer, fds) = raw.hear().unwrap();
    assert!(answer["said"]["Ok"]["Leased"].is_object(), "{answer}");
    assert_eq!(fds.len(), 1);
    raw.say(&json!({"id": 1, "ask": {"Format": {"disk": "c:"}}}));
    raw.assert_ended();
    assert_serves(&honest);
}

#[test]
fn a_submission_that_no_client_makes_ends_its_session_and_no_other() {
    let host = ServiceRig::new();
    let honest = host.client();
    // The tail of the submission ring is at 0, its entries begin at 512.
    let broken: [(&str, u64, Vec<u8>, u32); 4] = [
        ("an unknown operation", 512, vec![99], 1),
        ("another sequence", 512, vec![0, 0, 0, 0, 9, 0, 0, 0], 1),
        ("a tail that jumps", 512, vec![0], 1_000_000),
        (
            "an entry out of range",
            528,
            vec![0xff, 0xff, 0xff, 0xff],
            1,
        ),
    ];
    for (what, at, bytes, tail) in broken {
        let mut raw = Raw::greeted(&host);
        let [client_region, _service_region, _heard, bell] = raw.queue(8);
        rustix::io::pwrite(&client_region, &bytes, at).unwrap();
        rustix::io::pwrite(&client_region, &tail.to_le_bytes(), 0).unwrap();
        rustix::io::write(&bell, &1_u64.to_ne_bytes()).unwrap();
        let ended = raw.hear();
        assert!(ended.is_none(), "{what}: {ended:?}");
        assert_serves(&honest);
    }
}

#[test]
fn a_reference_out_of_the_arena_or_to_a_slot_of_nobody_is_an_error_of_that_request() {
    let host = ServiceRig::new();
    let mut raw = Raw::greeted(&host);
    let [client_region, service_region, _heard, bell] = raw.queue(8);
    let get = |sequence: u32, flags: u16, name_at: u32| {
        let mut sqe = [0u8; 64];
        sqe[0] = 1;
        sqe[2..4].copy_from_slice(&flags.to_le_bytes());
        sqe[4..8].copy_from_slice(&sequence.to_le_bytes());
        sqe[16..20].copy_from_slice(&sequence.to_le_bytes());
        sqe[20..24].copy_from_slice(&77u32.to_le_bytes());
        sqe[48..52].copy_from_slice(&name_at.to_le_bytes());
        sqe[52..54].copy_from_slice(&1u16.to_le_bytes());
        sqe[54] = 1;
        sqe
    };
    // Whole objects: one far out of the arena, one with a name of zeros, into a slot of a slab of nobody.
    let whole = 2u16;
    rustix::io::pwrite(&client_region, &get(0, whole, u32::MAX - 7), 512).unwrap();
    rustix::io::pwrite(&client_region, &get(1, whole, 0), 512 + 64).unwrap();
    rustix::io::pwrite(&client_region, &2u32.to_le_bytes(), 0).unwrap();
    rustix::io::write(&bell, &1_u64.to_ne_bytes()).unwrap();
    // The completion ring's tail is at 256, its entries at 512; an entry's error at 26.
    wait_until("both have ended", || {
        let mut tail = [0; 4];
        rustix::io::pread(&service_region, &mut tail, 256).unwrap();
        u32::from_le_bytes(tail) == 2
    });
    for nth in 0..2u64 {
        let mut error = [0; 2];
        rustix::io::pread(&service_region, &mut error, 512 + nth * 32 + 26).unwrap();
        assert_ne!(u16::from_le_bytes(error), 0, "request {nth}");
    }
    raw.say(&json!({"id": 1, "ask": {"Queue": {"entries": 8}}}));
    assert!(raw.hear().is_some(), "the session goes on");
}

#[test]
fn descriptors_that_nobody_asked_for_are_not_kept() {
    let host = ServiceRig::new();
    let honest = host.client();
    assert_serves(&honest);
    let mut raw = Raw::greeted(&host);
    let before = open_fds();
    let file = std::fs::File::open("/proc/self/status").unwrap();
    let close = json!({"id": 0, "ask": {"Close": {"object": 1}}});
    let fds = [file.as_fd(), file.as_fd(), file.as_fd()];
    raw.say_with(&close, &fds);
    assert!(raw.hear().is_none(), "it needs none of them");
    drop(file);
    wait_until("nothing was kept", || open_fds() <= before);
    assert_serves(&honest);
}

#[test]
fn a_thousand_who_say_nothing_keep_nobody_out_for_long() {
    let host = ServiceRig::with(Rig::new([]), |options| {
        options.caps = Caps {
            sessions: 8,
            ..options.caps
        };
    });
    let honest = host.client();
    let mut crowd = Vec::new();
    for _ in 0..1000 {
        // Refused by the system when its backlog is full.
        if let Ok(socket) = UnixStream::connect(host.socket()) {
            crowd.push(socket);
        }
    }
    assert_serves(&honest);
    drop(crowd);
    wait_until("others come in again", || {
        Engine::connect(&host.socket(), Default::default()).is_ok()
    });
}

#[test]
fn a_client_that_reads_no_answers_asks_no_more_and_holds_up_nobody() {
    let host = ServiceRig::new();
    let honest = host.client();
    let mut raw = Raw::greeted(&host);
    raw.0
        .set_write_timeout(Some(Duration::from_millis(300)))
        .unwrap();
    let ask = json!({"id": 1, "ask": {"Head": {"bucket": "bench", "key": KEY}}});
    let text = ask.to_string();
    let mut frame = (text.len() as u32).to_le_bytes().to_vec();
    frame.push(0);
    frame.extend(text.as_bytes());
    let mut sent = 0;
    while sent < 100_000 && raw.0.write_all(&frame).is_ok() {
        sent += 1;
    }
    assert!(sent < 100_000, "the service hears on without being heard");
    assert_serves(&honest);
}

#[test]
fn more_asks_than_are_answered_at_once_hold_up_nothing_else_of_the_session() {
    let silent = s3sim::Rule::new(s3sim::Action::NeverAnswer).key("*silent");
    let host = ServiceRig::with(Rig::new([silent]), |_| {});
    let mut raw = Raw::greeted(&host);
    for id in 1..=40 {
        let named = json!({"bucket": "bench", "key": "1KiB-silent"});
        raw.say(&json!({"id": id, "ask": {"Head": named}}));
    }
    for request in 1..=40 {
        raw.say(&json!({"id": 0, "ask": {"Forget": {"request": request}}}));
    }
    raw.say(&json!({"id": 99, "ask": {"Lease": {"len": 10, "align": 4096}}}));
    let (answer, _) = raw.hear().unwrap();
    assert_eq!(answer["id"], 99, "{answer}");
    drop(raw);
    host.assert_drains();
}

#[test]
fn a_refusal_that_is_not_read_keeps_no_service_from_its_end() {
    let mut host = ServiceRig::new();
    let mut raw = Raw::silent(&host);
    let endpoint = "\u{7f}".repeat(60_000);
    raw.say(&json!({"versions": [1, 1], "endpoint": endpoint, "label": "raw"}));
    let began = std::time::Instant::now();
    host.service = None;
    assert!(began.elapsed() < PATIENCE / 2);
    raw.assert_ended();
}

#[test]
fn a_bell_that_is_rung_without_end_and_never_heard_holds_up_nobody() {
    let host = ServiceRig::new();
    let honest = host.client();
    let mut raw = Raw::greeted(&host);
    let [_client_region, _service_region, heard, bell] = raw.queue(8);
    for _ in 0..20_000 {
        rustix::io::write(&bell, &1_u64.to_ne_bytes()).unwrap();
        // The one that it should only hear.
        let _ = rustix::net::send(&heard, &[1; 100], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }
    assert_serves(&honest);
}

#[test]
fn a_bell_that_is_full_empty_or_made_to_block_holds_up_nobody() {
    let host = ServiceRig::new();
    let honest = host.client();
    let mut raw = Raw::greeted(&host);
    let [_client_region, _service_region, _heard, bell] = raw.queue(8);
    // Shared with the service: now who reads or writes it waits.
    rustix::io::ioctl_fionbio(&bell, false).unwrap();
    assert_serves(&honest);
    rustix::io::write(&bell, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    assert_serves(&honest);
    rustix::io::read(&bell, &mut [0_u8; 8]).unwrap();
    assert_serves(&honest);
    drop(raw);
    assert_serves(&honest);
}
