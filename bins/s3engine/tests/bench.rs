//! `s3engine bench`, shortly.
#![allow(missing_docs)]

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Lines};
use std::net::TcpStream;
use std::process::{Child, ChildStdout};

use rustix::process::{Pid, Signal, kill_process};

use s3sim::{Action, Kind, Rule, SimOptions};
use support::World;

const SHORT: [&str; 6] = ["--duration", "200ms", "--warmup", "50ms", "--floor", "50ms"];

#[test]
fn with_a_simulator_of_its_own_it_measures_both_paths() {
    let folder = tempfile::tempdir().unwrap();
    let loopback = folder.path().join("fabric");
    let args = [
        "bench",
        "--size",
        "64KiB,1MiB,12MiB",
        "--threads",
        "1",
        "--json",
        "b.json",
    ];
    // Long enough for a whole object of the largest size, however busy the machine is.
    let times = ["--duration", "1s", "--warmup", "50ms", "--floor", "50ms"];
    let mut command = support::bare(&[&args[..], &times].concat());
    command
        .env("S3ENGINE_LOOPBACK_DIR", &loopback)
        .current_dir(folder.path());
    let stdout = String::from_utf8(support::run(&mut command).ok()).unwrap();
    assert!(stdout.contains("simulated: s3sim"), "{stdout}");
    let rows = |policy: &str| {
        stdout
            .lines()
            .filter(|line| line.starts_with(policy))
            .count()
    };
    assert_eq!((rows("http "), rows("require-rdma ")), (3, 3), "{stdout}");

    let json = fs::read(folder.path().join("b.json")).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(
        (&json["schema"], &json["engine"]["fabric"]),
        (&1.into(), &"loopback".into())
    );
    let runs = json["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 6);
    for run in runs {
        let by_rdma = run["policy"] == "require-rdma";
        let (path, other) = if by_rdma {
            ("rdma", "http")
        } else {
            ("http", "rdma")
        };
        let reason = if by_rdma { "ok" } else { "policy" };
        assert_eq!(
            (&run["simulated"], &run["failed"]),
            (&true.into(), &0.into()),
            "{run}"
        );
        assert_eq!(run["completions"][path], run["reasons"][reason], "{run}");
        assert!(run["completions"][other].is_null(), "{run}");
        let gets = run["completions"][path].as_u64().unwrap();
        let size = run["object_size"].as_u64().unwrap();
        assert!(
            gets > 0 && run["bytes"][path].as_u64() == Some(gets * size),
            "{run}"
        );
        assert_eq!(
            run["floor"]["kind"],
            if by_rdma { "memcpy" } else { "recv" }
        );
        assert!(run["vs_floor"].as_f64().unwrap() > 0.0, "{run}");
        assert!(run["latency_us"]["p50"].as_u64() <= run["latency_us"]["max"].as_u64());
    }
}

#[test]
fn against_an_endpoint_json_alone_goes_to_stdout() {
    let world = World::new();
    let args = [
        "bench",
        "--size",
        "64KiB",
        "--threads",
        "2",
        "--json",
        "-",
        "--policy",
        "prefer-rdma",
    ];
    let json = world.run(&[&args[..], &SHORT].concat());
    assert!(json.stderr.contains("prefer-rdma"), "{}", json.stderr);
    let json = json.json();
    let run = &json["runs"][0];
    assert_eq!(
        (&run["simulated"], &run["rdma_share"]),
        (&false.into(), &0.0.into())
    );
    assert!(run["reasons"]["no-fabric"].as_u64() > Some(0));
    assert_eq!(run["floor"]["workers"], 16);
}

#[test]
fn gets_that_fail_are_counted_and_fail_the_run() {
    let world = World::with(SimOptions {
        faults: vec![
            Rule::new(Action::Status {
                code: 403,
                s3_code: Some("AccessDenied".into()),
                headers: Default::default(),
            })
            .only(Kind::Http)
            .skip(1)
            .count(3),
        ],
        ..SimOptions::default()
    });
    let args = [
        "bench",
        "--size",
        "64KiB",
        "--threads",
        "1",
        "--policy",
        "http",
        "--json",
        "b.json",
    ];
    let ran = world.run(&[&args[..], &SHORT].concat());
    assert_eq!(ran.code, Some(1));
    assert!(
        ran.stderr
            .contains("error: 3 GETs failed, the first one so: GET s3://bench/"),
        "{}",
        ran.stderr
    );
    let json: serde_json::Value =
        serde_json::from_slice(&fs::read(world.out().join("b.json")).unwrap()).unwrap();
    assert_eq!(json["runs"][0]["failed"], 3);
}

#[test]
fn a_missing_object_ends_it_before_anything_is_timed() {
    let world = World::new();
    let args = ["bench", "--bucket", "nowhere", "--policy", "http"];
    let ran = world.run(&[&args[..], &SHORT].concat());
    assert_eq!(ran.code, Some(4));
    assert!(ran.stderr.contains("NoSuchBucket"), "{}", ran.stderr);
}

#[test]
fn a_gpu_that_there_is_not_ends_it_before_anything_starts() {
    let world = World::new();
    // No host has so many.
    let args = ["bench", "--policy", "http", "--memory", "cuda:4096"];
    let ran = world.run(&[&args[..], &SHORT].concat());
    assert_eq!(ran.code, Some(3), "{}", ran.stderr);
    assert!(ran.stderr.contains("error: no CUDA "), "{}", ran.stderr);
    let ran = world.run(&["bench", "--memory", "vram"]);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    let words = "none of host, cuda, cuda:N, cuda:all";
    assert!(ran.stderr.contains(words), "{}", ran.stderr);
}

#[test]
fn the_simulator_ends_with_it_however_it_ends() {
    for signal in [Signal::INT, Signal::KILL] {
        let folder = tempfile::tempdir().unwrap();
        let mut command = support::bare(&["bench", "--size", "64KiB", "--duration", "10m"]);
        command.env("S3ENGINE_LOOPBACK_DIR", folder.path().join("fabric"));
        let mut child = support::spawn(command);
        let (address, _stdout) = simulator(&mut child);
        assert!(TcpStream::connect(&address).is_ok());
        kill_process(Pid::from_raw(child.id() as i32).unwrap(), signal).unwrap();
        let status = child.wait().unwrap();
        if signal == Signal::INT {
            assert_eq!(status.code(), Some(130));
        }
        support::eventually("the end of the simulator", || {
            TcpStream::connect(&address).is_err()
        });
    }
}

/// The address of the simulator, from the lines before the table; and the rest of them, for which stdout must stay
/// open.
fn simulator(child: &mut Child) -> (String, Lines<BufReader<ChildStdout>>) {
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = lines.find_map(|line| Some(line.ok()?.split_once("at http://")?.1.to_owned()));
    (line.unwrap(), lines)
}

#[test]
fn it_ends_with_its_simulator_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = support::bare(&["bench", "--size", "64KiB", "--duration", "10m", "-v"]);
    command.env("S3ENGINE_LOOPBACK_DIR", folder.path().join("fabric"));
    let mut child = support::spawn(command);
    let (_, _stdout) = simulator(&mut child);
    let id = child.id();
    let children = format!("/proc/{id}/task/{id}/children");
    let children = fs::read_to_string(children).unwrap();
    let simulator: i32 = children.trim().parse().unwrap();
    kill_process(Pid::from_raw(simulator).unwrap(), Signal::KILL).unwrap();
    let ran = support::Ran::from(child.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    let told = "error: the simulator ended during the measurement: signal: 9";
    assert!(ran.stderr.contains(told), "{}", ran.stderr);
}

#[test]
fn a_row_without_an_end_is_an_error_that_names_it() {
    let world = World::with(SimOptions {
        faults: vec![
            Rule::new(Action::AnswerLate { ms: 400 })
                .only(Kind::Http)
                .skip(1),
        ],
        ..SimOptions::default()
    });
    let args = ["bench", "--size", "1MiB", "--threads", "1"];
    let args = [&args[..], &["--policy", "http", "--json", "b.json"], &SHORT].concat();
    let ran = world.run(&args);
    assert_eq!(ran.code, Some(1));
    let told = "error: no GET ended within the window of the row http of 1MiB by 1 threads";
    assert!(ran.stderr.contains(told), "{}", ran.stderr);
    assert!(ran.stderr.contains("--duration"), "{}", ran.stderr);
    let json: serde_json::Value =
        serde_json::from_slice(&fs::read(world.out().join("b.json")).unwrap()).unwrap();
    assert_eq!(json["runs"][0]["gb_per_s"], 0.0);
}

#[test]
fn a_file_that_cannot_be_written_ends_it_before_anything_is_measured() {
    let world = World::new();
    let args = ["bench", "--duration", "10m", "--json", "no/b.json"];
    let ran = world.run(&args);
    ran.fails(1, &["cannot create no/b.json", "No such file"]);
    assert!(ran.stdout.is_empty());
    assert_eq!(world.sim.counters().requests, 0);
}
