//! `s3engine get`, as people run it.
#![allow(missing_docs)]

mod support;

use std::fs;
use std::io::{BufRead, BufReader};

use rustix::process::{Pid, Signal, kill_process};
use s3engine::{Algorithm, Sum};
use s3sim::{Action, Kind, Rule, SimOptions};
use support::{World, object};

const MIB: usize = 1 << 20;

#[test]
fn a_whole_object_arrives_under_the_keys_name() {
    let world = World::new();
    let ran = world.run(&["get", "s3://train/a/40MiB-x"]);
    assert!(ran.stderr.contains("40.0 MiB in "), "{}", ran.stderr);
    assert!(
        ran.stderr.contains("path http  reason no-fabric  etag "),
        "{}",
        ran.stderr
    );
    assert!(
        ran.stderr
            .contains("-> 40MiB-x\nnote: RDMA was allowed but not used"),
        "{}",
        ran.stderr
    );
    assert!(ran.ok().is_empty());
    assert_eq!(world.files(), ["40MiB-x"]);
    let found = fs::read(world.out().join("40MiB-x")).unwrap();
    assert!(found == object("a/40MiB-x", 0, 40 * MIB));
}

#[test]
fn stdout_gets_the_bytes_in_order_and_nothing_else() {
    let world = World::new();
    let args = [
        "get",
        "s3://train/5MiB-x",
        "-o",
        "-",
        "-q",
        "--slab-size",
        "2MiB",
    ];
    let ran = world.run(&[&args[..], &["--pool-size", "16MiB"]].concat());
    assert_eq!(ran.stderr, "");
    assert!(ran.ok() == object("5MiB-x", 0, 5 * MIB));
    assert!(world.files().is_empty());
}

#[test]
fn every_name_of_stdout_writes_on_where_stdout_is() {
    let world = World::new();
    for name in ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"] {
        let path = world.out().join("log");
        fs::write(&path, "before ").unwrap();
        let log = fs::File::options().append(true).open(&path).unwrap();
        let mut command = world.command(&["get", "s3://train/1000-x", "-o", name]);
        let ended = command.stdout(log).status().unwrap();
        assert!(ended.success(), "{name}");
        let written = [b"before ".to_vec(), object("1000-x", 0, 1000)].concat();
        assert!(fs::read(&path).unwrap() == written, "{name}");
        assert_eq!(world.files(), ["log"]);
    }
}

#[test]
fn an_object_larger_than_the_pool_passes_through_it() {
    let world = World::new();
    let args = [
        "get",
        "s3://train/30MiB-x",
        "-o",
        "-",
        "--pool-size",
        "4MiB",
        "--slab-size",
        "2MiB",
    ];
    for more in [&[][..], &["--verify"], &["--fabric", "loopback"]] {
        let ran = world.run(&[&args[..], more].concat());
        assert!(ran.ok() == object("30MiB-x", 0, 30 * MIB), "{more:?}");
    }
}

#[test]
fn ranges_are_inclusive_open_or_from_the_end() {
    let world = World::new();
    for (range, offset, len) in [
        ("0-0", 0, 1),
        ("1000-1999", 1000, 1000),
        ("1048000-", 1_048_000, 576),
        ("-7", 1_048_569, 7),
        ("1048000-9999999", 1_048_000, 576),
    ] {
        let ran = world.run(&["get", "s3://train/1MiB-x", "--range", range, "-o", "-"]);
        assert!(ran.ok() == object("1MiB-x", offset, len), "{range}");
    }
}

#[test]
fn the_loopback_fabric_carries_the_bytes_and_verify_compares_them() {
    let world = World::new();
    let args = [
        "get",
        "s3://train/20MiB-x",
        "-o",
        "x",
        "--fabric",
        "loopback",
        "--rdma",
        "require",
    ];
    let json = world
        .run(&[&args[..], &["--verify", "--json"]].concat())
        .json();
    assert_eq!(json["schema"], 1);
    assert_eq!(
        (&json["path"], &json["reason"]),
        (&"rdma".into(), &"ok".into())
    );
    assert_eq!(json["bytes"]["rdma"], 20 * MIB);
    assert_eq!(json["bytes_verified"], 20 * MIB);
    assert_eq!(json["verified"], true);
    let ran = world.run(&args);
    assert!(
        ran.stderr.ends_with("  not verified (not-offered)  -> x\n"),
        "{}",
        ran.stderr
    );
    assert!(json["etag"].is_string() && json["request_id"].is_string());
    assert!(json["stages_us"]["registered"].is_number());
    assert!(fs::read(world.out().join("x")).unwrap() == object("20MiB-x", 0, 20 * MIB));
}

#[test]
fn fabrics_that_are_off_and_a_policy_of_http_are_intents() {
    let world = World::new();
    for intent in [["--fabric", "off"], ["--rdma", "off"]] {
        let args = [
            &["get", "s3://train/1MiB-x", "-o", "x", "--json"][..],
            &intent,
        ]
        .concat();
        let json = world.run(&args).json();
        assert_eq!(
            (&json["path"], &json["reason"]),
            (&"http".into(), &"policy".into())
        );
        assert!(json["fallback"].is_null() && json["verified"].is_null());
    }
}

#[test]
fn a_server_that_declines_is_a_fallback_with_its_reason() {
    let world = World::with(SimOptions {
        faults: vec![Rule::new(Action::DeclineWithError).only(Kind::Rdma)],
        ..SimOptions::default()
    });
    let args = [
        "get",
        "s3://train/1MiB-x",
        "-o",
        "x",
        "--json",
        "--fabric",
        "loopback",
    ];
    let json = world.run(&args).json();
    assert_eq!(
        (&json["path"], &json["reason"]),
        (&"http".into(), &"server-declined".into())
    );
    assert!(fs::read(world.out().join("x")).unwrap() == object("1MiB-x", 0, MIB));

    let ran = world.run(&[
        "get",
        "s3://train/1MiB-x",
        "-o",
        "y",
        "--fabric",
        "loopback",
        "--rdma",
        "require",
    ]);
    assert_eq!(ran.code, Some(5));
    assert!(
        ran.stderr
            .contains("RDMA required, not possible: server-declined"),
        "{}",
        ran.stderr
    );
    assert_eq!(world.files(), ["x"]);
}

#[test]
fn where_rdma_carried_a_part_the_note_says_how_much() {
    let world = World::with(SimOptions {
        faults: vec![
            Rule::new(Action::DeclineWithError)
                .only(Kind::Rdma)
                .count(1),
        ],
        ..SimOptions::default()
    });
    let args = ["get", "s3://train/64MiB-x", "-o", "x"];
    let ran = world.run(&[&args[..], &["--fabric", "loopback"]].concat());
    let note = "note: RDMA carried 75 % of the bytes; the rest went by HTTP: server-declined: ";
    assert!(ran.stderr.contains(note), "{}", ran.stderr);
    assert!(!ran.stderr.contains("cache"), "{}", ran.stderr);
    ran.ok();
}

#[test]
fn odd_keys_are_taken_as_they_stand() {
    let root = tempfile::tempdir().unwrap();
    let keys = [
        "a b",
        "a+b",
        "a%20b",
        "ключ/文",
        "dir/x~y(1)'!*",
        "é?x=1&y#z",
    ];
    for key in keys {
        let path = root.path().join("train").join(key);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, key.repeat(1000)).unwrap();
    }
    let world = World::with(SimOptions {
        root: Some(root.path().to_owned()),
        ..SimOptions::default()
    });
    for key in keys {
        let ran = world.run(&["get", &format!("s3://train/{key}"), "-o", "-"]);
        assert!(ran.ok() == key.repeat(1000).into_bytes(), "{key}");
    }
}

#[test]
fn double_slashes_stay_double() {
    let world = World::new();
    let ran = world.run(&["get", "s3://train/a//b/1MiB-x", "-o", "-"]);
    assert!(ran.ok() == object("a//b/1MiB-x", 0, MIB));
}

#[test]
fn an_empty_object_is_an_empty_file() {
    let world = World::new();
    let json = world
        .run(&["get", "s3://train/0-x", "--json", "--verify"])
        .json();
    assert_eq!(
        (&json["path"], &json["length"]),
        (&"none".into(), &0.into())
    );
    assert_eq!(fs::read(world.out().join("0-x")).unwrap(), b"");
}

#[test]
fn an_existing_file_is_replaced_and_a_folder_is_filled() {
    let world = World::new();
    fs::write(world.out().join("x"), "old").unwrap();
    world.run(&["get", "s3://train/1000-x", "-o", "x"]).ok();
    world.run(&["get", "s3://train/d/2000-x", "-o", "."]).ok();
    assert_eq!(
        fs::read(world.out().join("x")).unwrap(),
        object("1000-x", 0, 1000)
    );
    assert_eq!(
        fs::read(world.out().join("2000-x")).unwrap(),
        object("d/2000-x", 0, 2000)
    );
    assert_eq!(world.files().len(), 2);
}

#[test]
fn a_fifo_is_written_in_order() {
    let world = World::new();
    let fifo = world.out().join("fifo");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let child = support::spawn(world.command(&["get", "s3://train/40MiB-x", "-o", "fifo"]));
    let read = fs::read(&fifo).unwrap();
    support::Ran::from(child.wait_with_output().unwrap()).ok();
    assert!(read == object("40MiB-x", 0, 40 * MIB));
    assert_eq!(world.files(), ["fifo"]);
}

#[test]
fn an_object_that_changes_during_the_transfer_is_an_error() {
    let world = World::with(SimOptions {
        faults: vec![Rule::new(Action::Swap).only(Kind::Http).skip(2).count(1)],
        ..SimOptions::default()
    });
    let ran = world.run(&["get", "s3://train/64MiB-x", "-o", "x"]);
    ran.fails(
        1,
        &["object changed during the transfer", "s3://train/64MiB-x"],
    );
    assert!(world.files().is_empty());
}

#[test]
fn r22_a_signal_asks_what_is_waited_for() {
    let stall = Action::Stall {
        after: Some(1000),
        ms: 600_000,
    };
    let world = World::with(SimOptions {
        faults: vec![Rule::new(stall).only(Kind::Http)],
        ..SimOptions::default()
    });
    let mut child = support::spawn(world.command(&["get", "s3://train/1MiB-x", "-o", "x"]));
    support::eventually("the request", || world.sim.counters().faults > 0);
    let pid = Pid::from_raw(child.id() as i32).unwrap();
    kill_process(pid, Signal::USR1).unwrap();
    let mut told = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut line = || told.next().unwrap().unwrap();
    assert!(line().ends_with(" requests outstanding"));
    let get = line();
    let whole = "  GET s3://train/1MiB-x, ";
    assert!(get.starts_with(whole) && get.contains("its parts"), "{get}");
    let part = line();
    let bytes = "  GET s3://train/1MiB-x bytes 0-1048575, ";
    assert!(part.starts_with(bytes), "{part}");
    assert!(part.contains(" s, waits for the "), "{part}");
    kill_process(pid, Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

#[test]
fn r53_attempts_are_told_by_verbose_and_in_json() {
    let busy = Action::SlowDown { retry_after: None };
    let world = World::with(SimOptions {
        faults: vec![Rule::new(busy).only(Kind::Http)],
        ..SimOptions::default()
    });
    let args = [
        "get",
        "s3://train/1MiB-x",
        "-o",
        "x",
        "--attempts",
        "2",
        "--json",
    ];
    let ran = world.run(&args);
    ran.fails(1, &["503 SlowDown", "attempt 2 of 2"]);
    let error = &ran.json()["error"];
    let attempts = error["attempts"].as_array().unwrap();
    assert_eq!(attempts.len(), 2, "{error}");
    for attempt in attempts {
        assert_eq!(
            (&attempt["phase"], &attempt["error"]),
            (&"first-byte".into(), &"503 SlowDown".into())
        );
        assert!(attempt["seconds"].as_f64().is_some() && attempt["address"].is_string());
    }
    let told = world.run(&[
        "get",
        "s3://train/1MiB-x",
        "-o",
        "x",
        "--attempts",
        "2",
        "-v",
    ]);
    for line in [
        "\n  phase: first-byte\n",
        "\n  attempt 1 at 0.",
        "\n  attempt 2 at ",
    ] {
        assert!(told.stderr.contains(line), "{}", told.stderr);
    }
}

#[test]
fn bytes_that_were_claimed_and_not_written_fail_the_verification() {
    let world = World::with(SimOptions {
        faults: vec![Rule::new(Action::ClaimWithoutWriting).only(Kind::Rdma)],
        ..SimOptions::default()
    });
    let args = [
        "get",
        "s3://train/1MiB-x",
        "-o",
        "x",
        "--fabric",
        "loopback",
        "--verify",
    ];
    world
        .run(&args)
        .fails(1, &["s3://train/1MiB-x: verification failed: at offset "]);
    assert!(world.files().is_empty());
}

#[test]
fn settings_come_from_the_file_that_the_environment_names() {
    let world = World::new();
    let path = world.folder.path().join("s3engine.toml");
    fs::write(&path, "fabric = \"loopback\"\nrdma = \"require\"\n").unwrap();
    let mut command = world.command(&["get", "s3://train/1MiB-x", "-o", "x", "--json"]);
    let json = support::run(command.env("S3ENGINE_CONFIG", &path)).json();
    assert_eq!(json["path"], "rdma");
    // A flag goes over it.
    let mut command = world.command(&[
        "get",
        "s3://train/1MiB-x",
        "-o",
        "x",
        "--json",
        "--rdma",
        "off",
    ]);
    let json = support::run(command.env("S3ENGINE_CONFIG", &path)).json();
    assert_eq!(json["path"], "http");
}

#[test]
fn the_finest_log_shows_no_token_and_no_secret() {
    let world = World::new();
    let args = [
        "get",
        "s3://train/1MiB-x",
        "-o",
        "x",
        "--fabric",
        "loopback",
    ];
    let mut command = world.command(&args);
    let ran = support::run(command.env("S3ENGINE_LOG", "trace"));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stderr.contains("path rdma"), "{}", ran.stderr);
    assert!(
        ran.stderr.contains("DEBUG"),
        "there is a log: {}",
        ran.stderr
    );
    assert!(!ran.stderr.contains(world.sim.secret_key()));
    // A token is 81 characters of hexadecimal numbers with colons at these places.
    let is_token = |text: &[u8]| {
        let is_colon = |at: usize| matches!(at, 16 | 25 | 34 | 39 | 46 | 48);
        let right = |(at, byte): (usize, &u8)| match is_colon(at) {
            true => *byte == b':',
            false => byte.is_ascii_hexdigit(),
        };
        text.iter().enumerate().all(right)
    };
    assert!(!ran.stderr.as_bytes().windows(81).any(is_token));
}

/// A server that tells the checksum of one object with HEAD.
fn telling(key: &str, kind: &str) -> World {
    let mut sum = Sum::new(Algorithm::Crc64Nvme);
    let size = s3sim::content::size_of_key(key).unwrap();
    sum.update(&object(key, 0, size as usize));
    let set = [
        ("x-amz-checksum-crc64nvme", sum.finish().to_base64()),
        ("x-amz-checksum-type", kind.to_owned()),
    ];
    let set = set
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value));
    let headers = Action::Headers {
        set: set.collect(),
        drop: Vec::new(),
    };
    World::with(SimOptions {
        faults: vec![Rule::new(headers).only(Kind::Head)],
        ..SimOptions::default()
    })
}

#[test]
fn the_chunks_of_an_object_come_to_its_checksum() {
    let world = telling("40MiB-x", "FULL_OBJECT");
    for more in [&[][..], &["--fabric", "loopback", "--rdma", "require"]] {
        let get = [
            "get",
            "s3://train/40MiB-x",
            "-o",
            "x",
            "--checksum",
            "required",
        ];
        let small = ["--pool-size", "16MiB", "--slab-size", "2MiB"];
        let ran = world.run(&[&get[..], &small, more].concat());
        assert!(
            ran.stderr.contains("  verified crc64nvme  -> x\n"),
            "{}",
            ran.stderr
        );
        ran.ok();
        let json = world.run(&[&get[..], more, &["--json"]].concat()).json();
        assert_eq!(
            (&json["verified"], &json["checksum"]),
            (&true.into(), &"crc64nvme".into())
        );
    }
    let flip = Rule::new(Action::Flip { at: 30 << 20 }).only(Kind::Http);
    world.sim.faults().push(flip).unwrap();
    fs::remove_file(world.out().join("x")).unwrap();
    let ran = world.run(&["get", "s3://train/40MiB-x", "-o", "x"]);
    ran.fails(1, &["checksum crc64nvme: "]);
    assert!(world.files().is_empty(), "nothing wrong is left behind");
    let ran = world.run(&["get", "s3://train/40MiB-x", "-o", "x", "--checksum", "off"]);
    ran.ok();
}

#[test]
fn a_checksum_of_no_use_is_told_and_one_that_is_required_is_an_error() {
    let world = telling("3MiB-x", "COMPOSITE");
    let ran = world.run(&["get", "s3://train/3MiB-x", "-o", "x"]);
    assert!(
        ran.stderr.contains("  not verified (composite)  -> x\n"),
        "{}",
        ran.stderr
    );
    let required = ["--checksum", "required"];
    let ran = world.run(&[&["get", "s3://train/3MiB-x", "-o", "y"], &required[..]].concat());
    ran.fails(1, &["(composite)"]);
    let range = ["get", "s3://train/3MiB-x", "--range", "0-9", "-o", "y"];
    let ran = world.run(&[&range[..], &required].concat());
    ran.fails(1, &["only a part of the object was asked for"]);
    let ran = world.run(&[
        "get",
        "s3://train/3MiB-x",
        "-o",
        "y",
        "--checksum",
        "perhaps",
    ]);
    assert_eq!(ran.code, Some(2));
    assert_eq!(world.files(), ["x"]);
}

#[test]
fn versions_and_tags_are_those_that_are_asked_for() {
    let world = World::with(SimOptions {
        versioned: true,
        faults: vec![Rule::new(Action::Swap).count(1)],
        ..SimOptions::default()
    });
    let get = |more: &[&str]| {
        world.run(&[&["get", "s3://train/1000-x", "-o", "x", "--json"], more].concat())
    };
    // The first request has made version 1.
    let etag = get(&[]).json()["etag"].as_str().unwrap().to_owned();
    get(&["--version-id", "0"]).ok();
    assert_eq!(
        fs::read(world.out().join("x")).unwrap(),
        object("1000-x", 0, 1000)
    );
    get(&["--version-id", "1", "--if-match", &etag]).ok();
    get(&["--if-match", etag.trim_matches('"')]).ok();
    let ran = get(&["--version-id", "0", "--if-match", &etag]);
    ran.fails(1, &["object changed"]);
}

#[test]
fn headers_and_keys_that_cannot_be_sent_are_refused_before_anything_is_asked() {
    let world = World::new();
    for (more, said) in [
        (["--header", "Host: elsewhere"], "set by the engine alone"),
        (
            ["--header", "x-amz-rdma-token: 1"],
            "set by the engine alone",
        ),
        (["--header", "nonsense"], "NAME:VALUE"),
        (["--sse-c-key", "missing"], "--sse-c-key: missing: "),
        (["--sse-c-key", "/dev/null"], "32 bytes"),
    ] {
        let ran = world.run(&[&["get", "s3://train/1000-x", "-o", "x"], &more[..]].concat());
        ran.fails(3, &[said]);
    }
    assert_eq!(world.sim.counters().requests, 0);
    assert!(world.files().is_empty());
    // Signed, or the simulator would refuse them.
    let more = [
        "--header",
        "x-trace: 1",
        "--request-payer",
        "--expected-bucket-owner",
        "1",
    ];
    world
        .run(&[&["get", "s3://train/1000-x"], &more[..]].concat())
        .ok();
    world.run(&[&["ls", "s3://train"], &more[..]].concat()).ok();
    fs::write(world.folder.path().join("key"), [7; 32]).unwrap();
    let key = world.folder.path().join("key");
    let key = ["--sse-c-key", key.to_str().unwrap()];
    world
        .run(&[&["get", "s3://train/1000-x"], &key[..]].concat())
        .ok();
}
