//! `s3engine doctor`, run as people run it.

mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use s3sim::{Action, Kind, Rule};
use serde_json::Value;
use support::{Ran, World, bare, eventually, object, run};

const ASK: [&str; 3] = ["doctor", "--bucket", "bench"];

fn doctor(world: &World, more: &[&str]) -> Ran {
    let args: Vec<_> = ASK.iter().chain(more).copied().collect();
    world.run(&args)
}

/// What it prints, whatever its exit code.
fn text(ran: &Ran) -> String {
    assert_eq!(ran.stderr, "", "{}", ran.stderr);
    String::from_utf8(ran.stdout.clone()).unwrap()
}

#[test]
fn where_a_get_goes_by_rdma_the_answer_is_yes() {
    let world = World::new();
    let ran = doctor(&world, &["--fabric", "loopback", "--key", "1MiB-x"]);
    let told = text(&ran);
    assert_eq!(ran.code, Some(0), "{told}");
    assert!(
        told.starts_with(&format!("RDMA for {}", world.sim.url())),
        "{told}"
    );
    let first = told.lines().next().unwrap();
    assert!(first.ends_with(": YES, a GET has gone by it"), "{told}");
    assert!(
        told.contains("1048576 bytes of 1MiB-x by RDMA, the same as by HTTP"),
        "{told}"
    );
    assert!(told.contains("GETs go by RDMA."), "{told}");
    assert!(!told.contains(world.sim.secret_key()), "{told}");
}

#[test]
fn where_rdma_is_off_or_there_is_no_library_http_works_and_that_is_said() {
    let world = World::new();
    let off = doctor(&world, &["--fabric", "off", "--key", "1MiB-x"]);
    assert_eq!(off.code, Some(5));
    assert!(text(&off).contains(": NO, "), "{}", text(&off));
    let missing = [
        "--fabric",
        "s3rdma",
        "--s3rdma-library",
        "/nowhere/lib.so",
        "--key",
        "1MiB-x",
    ];
    let missing = doctor(&world, &missing);
    let told = text(&missing);
    assert_eq!(missing.code, Some(5), "{told}");
    assert!(told.contains("cannot load /nowhere/lib.so"), "{told}");
    assert!(told.contains("1048576 bytes of 1MiB-x by HTTP"), "{told}");
    assert!(told.contains("GETs go by HTTP, and say so"), "{told}");
}

#[test]
fn a_server_that_says_it_wrote_what_it_did_not_is_found_out() {
    let world = World::new();
    let lie = Rule::new(Action::ClaimWithoutWriting).only(Kind::Rdma);
    world.sim.faults().push(lie).unwrap();
    let ran = doctor(&world, &["--fabric", "loopback", "--key", "1MiB-x"]);
    let told = text(&ran);
    assert_eq!(ran.code, Some(5), "{told}");
    assert!(told.contains("other bytes than by HTTP"), "{told}");
}

#[test]
fn why_the_server_declines_is_told() {
    let world = World::new();
    world
        .sim
        .faults()
        .push(Rule::new(Action::DeclineWithError).only(Kind::Rdma))
        .unwrap();
    let ran = doctor(&world, &["--fabric", "loopback", "--key", "1MiB-x"]);
    let told = text(&ran);
    assert_eq!(ran.code, Some(5), "{told}");
    assert!(
        told.lines().next().unwrap().contains("NO, server-declined"),
        "{told}"
    );
}

#[test]
fn an_endpoint_that_is_dead_or_refuses_is_told_with_its_words() {
    let dead = [
        "doctor",
        "--endpoint",
        "http://127.0.0.1:1",
        "--anonymous",
        "--bucket",
        "b",
        "--timeout",
        "2s",
    ];
    let ran = run(&mut bare(&dead));
    let told = text(&ran);
    assert_eq!(ran.code, Some(1), "{told}");
    assert!(told.contains("127.0.0.1:1: Connection refused"), "{told}");
    let world = World::new();
    let args: Vec<_> = ASK
        .iter()
        .chain(&["--fabric", "loopback"])
        .copied()
        .collect();
    let ran = run(world.command(&args).env("AWS_SECRET_ACCESS_KEY", "wrong"));
    let told = text(&ran);
    assert_eq!(ran.code, Some(1), "{told}");
    assert!(
        told.contains("403") && told.contains("NO, not even HTTP works"),
        "{told}"
    );
}

#[test]
fn programs_get_the_same_as_json() {
    let world = World::new();
    let ran = doctor(
        &world,
        &["--fabric", "loopback", "--key", "1MiB-x", "--json"],
    );
    assert_eq!((ran.code, &*ran.stderr), (Some(0), ""));
    let report = ran.json();
    for key in [
        "schema",
        "answer",
        "because",
        "endpoint",
        "findings",
        "failed",
        "warnings",
        "now",
        "exit_code",
    ] {
        assert!(report.get(key).is_some(), "{key}");
    }
    assert_eq!(report["answer"], "yes");
    let findings = report["findings"].as_array().unwrap();
    let has = |name: &str| findings.iter().any(|finding| finding["name"] == name);
    for name in [
        "endpoint",
        "clock",
        "credentials",
        "bucket",
        "get",
        "service",
    ] {
        assert!(has(name), "{name} in {report}");
    }
    let whole = |finding: &Value| finding["verdict"].is_string() && finding["what"].is_string();
    assert!(findings.iter().all(whole), "{report}");
}

#[test]
fn without_an_endpoint_it_tells_of_this_host_and_what_was_looked_for() {
    let ran = run(&mut bare(&["doctor", "--json"]));
    assert_eq!(ran.stderr, "");
    let code = ran.code;
    let report = ran.json();
    let findings = report["findings"].as_array().unwrap();
    let has = |name: &str| findings.iter().any(|finding| finding["name"] == name);
    for name in [
        "kernel",
        "device",
        "memlock",
        "huge pages",
        "io_uring",
        "libraries",
        "s3rdma",
        "cufile",
        "cufile.json",
        "gpu",
    ] {
        assert!(has(name), "{name} in {report}");
    }
    assert_eq!(code, report["exit_code"].as_i64().map(|code| code as i32));
    let usage = run(&mut bare(&["doctor", "--bucket", "b"]));
    usage.fails(2, &["which endpoint?"]);
}

#[test]
fn a_bucket_or_object_that_is_not_there_is_neither_yes_nor_http_that_fails() {
    let world = World::new();
    for (named, word) in [
        (
            ["--bucket", "nobody", "--fabric", "loopback"].as_slice(),
            "NoSuchBucket",
        ),
        (
            &[
                "--bucket",
                "bench",
                "--key",
                "nothing/of-it",
                "--fabric",
                "loopback",
            ],
            "404",
        ),
    ] {
        let args: Vec<_> = ["doctor"].iter().chain(named).copied().collect();
        let ran = world.run(&args);
        let told = text(&ran);
        assert_eq!(ran.code, Some(4), "{told}");
        assert!(
            told.contains("NOT KNOWN, there is no such bucket or object"),
            "{told}"
        );
        assert!(told.contains(word), "{told}");
    }
}

#[test]
fn an_object_of_no_bytes_is_not_tried() {
    let world = World::new();
    let ran = doctor(&world, &["--fabric", "loopback", "--key", "0B-x"]);
    let told = text(&ran);
    assert_eq!(ran.code, Some(0), "{told}");
    assert!(
        told.contains("bench/0B-x has no bytes to try with"),
        "{told}"
    );
}

#[test]
fn each_server_of_an_endpoint_is_reached() {
    let world = World::new();
    let both = format!("{},http://127.0.0.1:1", world.sim.url());
    let ran = run(&mut bare(&[
        "doctor",
        "--endpoint",
        &both,
        "--anonymous",
        "--fabric",
        "off",
    ]));
    let told = text(&ran);
    assert_eq!(ran.code, Some(5), "{told}");
    assert!(told.contains(" answers in "), "{told}");
    assert!(told.contains("127.0.0.1:1: Connection refused"), "{told}");
}

#[test]
fn who_reads_no_more_is_not_an_error() {
    let world = World::new();
    let mut command = world.command(&["doctor", "--fabric", "off"]);
    let (unread, writes) = rustix::pipe::pipe().unwrap();
    drop(unread);
    let output = command.stdout(writes).output().unwrap();
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    assert_eq!(output.status.code(), Some(5));
}

#[test]
fn a_prober_in_a_library_that_hangs_ends_with_who_asked() {
    let folder = tempfile::tempdir().unwrap();
    let library = s3rdma_standin::copied(folder.path())
        .faults("client_init=hangs")
        .noting_calls();
    let script = r#""$0" probe-library s3rdma host "$1" & echo $!; wait"#;
    let mut asker = Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_s3engine")])
        .arg(library.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut prober = String::new();
    let mut told = BufReader::new(asker.stdout.take().unwrap());
    told.read_line(&mut prober).unwrap();
    let stat = format!("/proc/{}/stat", prober.trim());
    // Of one that has ended only its status may be left.
    let lives = || fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z "));
    eventually("the library hangs", || library.count("client_init") == 1);
    assert!(lives());
    asker.kill().unwrap();
    asker.wait().unwrap();
    eventually("the prober ends", || !lives());
}

#[test]
fn a_library_that_hangs_or_ends_its_process_is_told_and_never_loaded_here() {
    let world = World::new();
    let fabric = world.folder.path().join("fabric");
    for (faults, words) in [
        ("version=hangs", "not ended within 2 s"),
        ("client_init=aborts", "signal: 6"),
        ("register=exits", "has ended the process that tried it"),
        ("get_token=aborts", "signal: 6"),
        ("get_token=exits", "has ended the process that tried it"),
        (
            "get_token=hangs",
            "makes no token: it has not come within 1 s",
        ),
    ] {
        let library = s3rdma_standin::copied(world.folder.path())
            .loopback(&fabric)
            .faults(faults);
        let library = library.path().to_str().unwrap();
        let with = ["--fabric", "s3rdma", "--s3rdma-library", library];
        let bound = if faults.ends_with("hangs") {
            "2s"
        } else {
            "30s"
        };
        let asked = ["--key", "1MiB-x", "--timeout", bound, "--json"];
        let ran = doctor(&world, &[with.as_slice(), &asked].concat());
        assert_eq!((ran.code, &*ran.stderr), (Some(5), ""), "{faults}");
        let report = ran.json().to_string();
        assert!(report.contains(words), "{faults}: {report}");
        assert!(report.contains("of 1MiB-x by HTTP"), "{faults}: {report}");
        let file = world.folder.path().join("got");
        let get = ["get", "s3://bench/1MiB-x", "-o", file.to_str().unwrap()];
        let ran = world.run(&[get.as_slice(), &with].concat());
        assert_eq!(ran.code, Some(0), "{faults}: {}", ran.stderr);
        assert!(fs::read(&file).unwrap() == object("1MiB-x", 0, 1 << 20));
    }
}

#[test]
fn a_get_through_the_library_is_told_to_go_by_rdma() {
    let world = World::new();
    let fabric = world.folder.path().join("fabric");
    let library = s3rdma_standin::copied(world.folder.path()).loopback(&fabric);
    let library = library.path().to_str().unwrap();
    let with = ["--fabric", "s3rdma", "--s3rdma-library", library];
    let ran = doctor(&world, &[with.as_slice(), &["--key", "1MiB-x"]].concat());
    let told = text(&ran);
    assert_eq!(ran.code, Some(0), "{told}");
    assert!(told.contains("by RDMA, the same as by HTTP"), "{told}");
}

#[test]
fn names_that_cannot_be_are_usage() {
    for (args, word) in [
        (["--bucket", "a/b"], "slash"),
        (["--bucket", ""], "empty"),
        (["--key", ""], "value"),
    ] {
        let all = [["doctor", "--bucket", "b"].as_slice(), &args].concat();
        let all = if args[0] == "--bucket" {
            [["doctor"].as_slice(), &args].concat()
        } else {
            all
        };
        let ran = run(&mut bare(&all));
        assert_eq!(ran.code, Some(2), "{}", ran.stderr);
        assert!(ran.stderr.contains(word), "{}", ran.stderr);
    }
}
