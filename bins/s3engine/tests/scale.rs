//! `s3engine bench scale`, shortly: what it counts, and how it ends. Whether its verdicts are right is shown by
//! `causes.rs`.
#![allow(missing_docs)]

mod support;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};
use s3sim::{Action, Rule, SimOptions};
use serde_json::Value;
use support::processes::{descendants, runs};
use support::{Ran, World, bare, eventually, run};
use tempfile::TempDir;

/// One short row, unless a test says more.
const SHORT: &str = "--procs 1 --size 64KiB --duration 300ms --warmup 50ms --objects 4";

/// The short row's flags, but for those that a test gives itself.
fn args<'a>(more: &[&'a str]) -> Vec<&'a str> {
    let mut args = vec!["bench", "scale"];
    let short: Vec<_> = SHORT.split(' ').collect();
    let given = |flag: &str| more.contains(&flag);
    for pair in short.chunks(2).filter(|pair| !given(pair[0])) {
        args.extend(pair);
    }
    args.extend(more);
    args
}

/// With a simulator of its own, whose files are in `folder`.
fn simulated(folder: &TempDir, more: &[&str]) -> Command {
    let mut command = bare(&args(more));
    command.current_dir(folder.path());
    command
}

fn folder_with(name: &str, text: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join(name), text).unwrap();
    folder
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn rows(report: &Value) -> &Vec<Value> {
    report["runs"].as_array().unwrap()
}

fn number(row: &Value, name: &str) -> f64 {
    row[name]
        .as_f64()
        .unwrap_or_else(|| panic!("{name} in {row}"))
}

#[test]
fn what_faults_leave_to_rdma_is_what_the_server_counts_to_the_byte() {
    let faults = r#"
        [[rule]]
        probability = 0.15
        action = "decline-with-body"
        [[rule]]
        probability = 0.15
        seed = 1
        action = "decline-with-error"
        [[rule]]
        probability = 0.15
        seed = 2
        action = "rdma-transfer-failed"
        [[rule]]
        only = "http"
        probability = 0.02
        seed = 3
        count = 6
        action = { slow-down = {} }
    "#;
    let folder = folder_with("faults.toml", faults);
    let more = ["--faults", "faults.toml", "--procs", "1,2", "--json", "-"];
    let ran = run(&mut simulated(&folder, &more));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stderr.contains("simulated: s3sim"), "{}", ran.stderr);
    let report = ran.json();
    assert_eq!(rows(&report).len(), 4);
    for row in rows(&report) {
        assert_eq!(row["share_differs"], false, "{row}");
        assert_eq!(row["rdma_bytes_server"], row["rdma_bytes_client"], "{row}");
        for share in ["rdma_share", "rdma_share_server"] {
            let share = number(row, share);
            assert!(0.0 < share && share < 1.0, "{row}");
        }
        for reason in ["server-declined", "rdma-error"] {
            assert!(row["fell_back"][reason].as_u64() > Some(0), "{row}");
        }
        assert_eq!(row["model"], "none");
        assert_eq!(row["simulated"], true);
    }
}

#[test]
fn gets_that_bring_less_than_the_object_are_failures_and_no_rate() {
    // A success without a body: of an object that this server says is empty.
    let rule = "[[rule]]\naction = { status = { code = 200 } }";
    let folder = folder_with("faults.toml", rule);
    let more = [
        "--faults",
        "faults.toml",
        "--rdma",
        "off",
        "--mode",
        "per-process",
    ];
    let ran = run(&mut simulated(&folder, &more));
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(
        ran.stderr.contains("a GET brought 0 bytes of 65536"),
        "{}",
        ran.stderr
    );
}

#[test]
fn the_policy_of_the_settings_is_that_of_the_rows() {
    let folder = tempfile::tempdir().unwrap();
    let ran = run(&mut simulated(&folder, &["--rdma", "off", "--json", "-"]));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    for row in rows(&ran.json()) {
        assert_eq!(
            (&row["policy"], number(row, "rdma_share")),
            (&"http".into(), 0.0)
        );
    }
}

#[test]
fn bytes_that_only_the_server_counts_are_flagged() {
    let rule = "[[rule]]\nprobability = 0.3\naction = { wrong-bytes = { delta = 1 } }";
    let folder = folder_with("faults.toml", rule);
    let more = [
        "--faults",
        "faults.toml",
        "--mode",
        "per-process",
        "--json",
        "b.json",
    ];
    let ran = run(&mut simulated(&folder, &more));
    let stdout = String::from_utf8(ran.ok()).unwrap();
    let line = stdout.lines().find(|line| line.starts_with("per-process"));
    assert!(line.unwrap().contains("% !"), "{stdout}");
    let report = read(&folder.path().join("b.json"));
    let row = &rows(&report)[0];
    assert_eq!(row["share_differs"], true);
    assert!(
        number(row, "rdma_bytes_server") > number(row, "rdma_bytes_client"),
        "{row}"
    );
    assert!(
        row["fell_back"]["bytes-mismatch"].as_u64() > Some(0),
        "{row}"
    );
}

#[test]
fn what_each_client_costs_the_server_holds_back_processes_and_not_clients_of_one_service() {
    // Times far above what a busy machine adds to them.
    let model = "line_rate = '600MB/s'\nop_ms = 40\nclient_ms = 50";
    let folder = folder_with("costly.toml", model);
    let times = ["--duration", "1s", "--procs", "1,4"];
    let more = [&["--model", "costly.toml", "--json", "b.json"][..], &times].concat();
    run(&mut simulated(&folder, &more)).ok();
    let report = read(&folder.path().join("b.json"));
    let [one, four, shared_one, shared_four] = &rows(&report)[..] else {
        panic!("{report}");
    };
    assert_eq!(four["model"], "costly");
    assert_eq!(
        (&one["scale"], &shared_one["scale"]),
        (&1.0.into(), &1.0.into())
    );
    assert!(number(four, "scale") < 0.6, "{four}");
    assert!(number(shared_four, "scale") > 0.9, "{shared_four}");
    // However many clients a service has, the server sees one more.
    let seen = [one, four, shared_one, shared_four].map(|row| number(row, "rdma_clients_server"));
    assert_eq!(seen, [1.0, 5.0, 6.0, 7.0]);
    let verdicts = &report["verdicts"];
    // Where others use the processors up, that is said instead.
    let expected = match number(one, "host_busy").max(number(four, "host_busy")) < 0.9 {
        true => "per-client-cost",
        false => "client-cpu",
    };
    assert!(
        [expected, "per-client-cost"].contains(&verdicts[0]["cause"].as_str().unwrap()),
        "{verdicts}"
    );
    assert_ne!(verdicts[1]["cause"], "per-client-cost", "{verdicts}");
}

fn kill(id: u32, signal: Signal) {
    kill_process(Pid::from_raw(id as i32).unwrap(), signal).unwrap();
}

#[test]
fn a_worker_that_is_killed_costs_its_row_and_no_other() {
    let world = World::new();
    let more = [
        "--fabric",
        "loopback",
        "--mode",
        "per-process",
        "--procs",
        "1,2",
        "--json",
        "b.json",
    ];
    let child = support::spawn(world.command(&args(&more)));
    // Preparation and small GETs are fewer.
    eventually("the window", || world.sim.counters().requests >= 150);
    let worker = descendants(child.id())
        .into_iter()
        .find(|&id| runs(id))
        .unwrap();
    kill(worker as u32, Signal::KILL);
    let ran = Ran::from(child.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    let told = "error: 1 of 2 rows lost a worker, the first one (per-process ";
    assert!(ran.stderr.contains(told), "{}", ran.stderr);
    let report = read(&world.out().join("b.json"));
    let lost = |row: &&Value| row["stopped"] == "worker-lost";
    assert_eq!(rows(&report).len(), 2);
    assert_eq!(rows(&report).iter().filter(lost).count(), 1);
    let whole = rows(&report).iter().find(|row| !lost(row)).unwrap();
    assert!(number(whole, "ops") > 0.0, "{whole}");
    let evidence = report["verdicts"][0]["evidence"].to_string();
    assert!(
        evidence.contains("a worker ended before its time"),
        "{evidence}"
    );
}

/// Many rows: it is ended before they are over.
const MANY: [&str; 6] = [
    "--procs",
    "2",
    "--size",
    "64KiB,65KiB,66KiB,67KiB,68KiB,69KiB,70KiB,71KiB,72KiB,73KiB,74KiB,75KiB,76KiB,77KiB,78KiB,79KiB",
    "--duration",
    "1s",
];

#[test]
fn a_signal_ends_it_with_what_was_measured_until_then() {
    let folder = tempfile::tempdir().unwrap();
    let more = [&MANY[..], &["--json", "b.json", "--html", "b.html"]].concat();
    let mut child = support::spawn(simulated(&folder, &more));
    let mut stdout = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut text = until_a_row(&mut stdout);
    kill(child.id(), Signal::INT);
    std::io::Read::read_to_string(&mut stdout, &mut text).unwrap();
    let ran = Ran::from(child.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(130), "{}", ran.stderr);
    assert!(
        text.contains("interrupted: this is what was measured until then"),
        "{text}"
    );
    assert!(text.contains("\nverdict  per-process: "), "{text}");
    let report = read(&folder.path().join("b.json"));
    assert_eq!(report["interrupted"], true);
    assert!((1..32).contains(&rows(&report).len()), "{report}");
    let page = fs::read_to_string(folder.path().join("b.html")).unwrap();
    assert!(page.contains("\"interrupted\":true"));
}

#[test]
fn a_row_in_its_window_is_told_as_far_as_it_came() {
    // Operations that are too few for a stable window, for as long as a test may take.
    let world = World::with(SimOptions {
        faults: vec![Rule::new(Action::AnswerLate { ms: 300 })],
        ..SimOptions::default()
    });
    let more = [
        "--fabric",
        "loopback",
        "--mode",
        "shared",
        "--duration",
        "10m",
        "--server-metrics",
        &world.sim.url(),
        "--json",
        "b.json",
    ];
    let child = support::spawn(world.command(&args(&more)));
    // Preparation and small GETs are fewer.
    eventually("the window", || world.sim.counters().requests >= 45);
    kill(child.id(), Signal::INT);
    let ran = Ran::from(child.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(130), "{}", ran.stderr);
    let stdout = String::from_utf8(ran.stdout).unwrap();
    assert!(stdout.contains("  cut\n"), "{stdout}");
    let report = read(&world.out().join("b.json"));
    let [row] = &rows(&report)[..] else {
        panic!("{report}");
    };
    assert_eq!(row["stopped"], "interrupted");
    assert!(
        number(row, "ops") > 0.0 && number(row, "cpu_s_per_gib") > 0.0,
        "{row}"
    );
    assert!(row["rdma_bytes_server"].is_null(), "{row}");
}

/// Reads until the first row of the table.
fn until_a_row(stdout: &mut impl std::io::BufRead) -> String {
    let mut text = String::new();
    loop {
        let from = text.len();
        assert!(stdout.read_line(&mut text).unwrap() > 0, "{text}");
        if text[from..].starts_with("per-process ") || text[from..].starts_with("shared ") {
            return text;
        }
    }
}

#[test]
fn nothing_is_left_running_when_it_is_killed() {
    for mode in ["per-process", "shared"] {
        let folder = tempfile::tempdir().unwrap();
        let mut child =
            support::spawn(simulated(&folder, &[&MANY[..], &["--mode", mode]].concat()));
        let mut stdout = std::io::BufReader::new(child.stdout.take().unwrap());
        until_a_row(&mut stdout);
        // Two workers, the simulator, and the service of a shared row.
        let processes = if mode == "shared" { 4 } else { 3 };
        let mut all = Vec::new();
        eventually("a row's processes", || {
            all = descendants(child.id());
            all.len() == processes
        });
        kill(child.id(), Signal::KILL);
        child.wait().unwrap();
        eventually("the end of all", || !all.iter().any(|&id| runs(id)));
    }
}

#[test]
fn what_cannot_be_done_is_refused_with_its_reason() {
    let folder = tempfile::tempdir().unwrap();
    let refused: [(&[&str], i32, &str); 18] = [
        (
            &["--gpus", "spread"],
            2,
            "--gpus says which GPU each process has",
        ),
        (
            &["--memory", "cuda:all", "--gpus", "same"],
            2,
            "one GPU is meant",
        ),
        // No host has so many.
        (&["--memory", "cuda:4096"], 3, "no CUDA "),
        (
            &["--memory", "disk"],
            2,
            "none of host, cuda, cuda:N, cuda:all",
        ),
        (
            &["--service", "auto"],
            2,
            "--service: `bench scale` starts the host service",
        ),
        (&["--slot", "5s"], 2, "--slot needs --start-at"),
        (
            &["--start-at", "1000000000"],
            2,
            "--start-at: seconds since 1970",
        ),
        (&["--start-at", "nan"], 2, "--start-at: seconds since 1970"),
        (
            &["--start-at", "99999999999999"],
            2,
            "--start-at: seconds since 1970",
        ),
        (
            &[
                "--model",
                "none",
                "--endpoint",
                "http://127.0.0.1:1",
                "--faults",
                "x",
            ],
            2,
            "are the simulator's",
        ),
        (&["--procs", "0"], 2, "numbers from 1 to 4096"),
        (
            &["--clients-per-process", "3"],
            2,
            "more clients than threads",
        ),
        (&["--size", "1"], 2, "--size: objects of at least 1 KiB"),
        (
            &["--register", "per-op", "--mode", "shared"],
            2,
            "a host service registers once",
        ),
        (&["--html", "-"], 2, "--html: a page is written to a file"),
        (&["--json", "no/b.json"], 1, "cannot create no/b.json"),
        (&["--json", "b", "--html", "b"], 2, "are the same file, b"),
        (&["--policy", "http,fast"], 2, "fast"),
    ];
    for (flags, code, why) in refused {
        let ran = run(&mut simulated(&folder, flags));
        assert_eq!(ran.code, Some(code), "{flags:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(why), "{flags:?}: {}", ran.stderr);
    }
    let past = (seconds_since_1970() - 30).to_string();
    run(&mut simulated(&folder, &["--start-at", &past]))
        .fails(2, &["--start-at: that was 3", "s ago"]);
    let ran = run(&mut simulated(&folder, &["--model", "nome"]));
    ran.fails(2, &["--model: no model \"nome\": it is none of none, "]);
}

fn seconds_since_1970() -> u64 {
    let since = std::time::SystemTime::UNIX_EPOCH.elapsed();
    since.unwrap().as_secs()
}

#[test]
fn counters_that_are_not_told_are_not_known_and_the_rest_is() {
    let world = World::new();
    let more = [
        "--fabric",
        "loopback",
        "--server-metrics",
        "127.0.0.1:1",
        "--json",
        "-",
    ];
    let ran = world.run(&args(&more));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let told = "note: the server's counters are not known: http://127.0.0.1:1: ";
    assert_eq!(ran.stderr.matches(told).count(), 1, "{}", ran.stderr);
    let report = ran.json();
    for row in rows(&report) {
        assert_eq!(row["rdma_share"], 1.0, "{row}");
        assert_eq!(row["share_differs"], false);
        for unknown in [
            "rdma_share_server",
            "rdma_bytes_server",
            "rdma_clients_server",
        ] {
            assert!(row[unknown].is_null(), "{row}");
        }
    }
}

#[test]
fn of_a_server_without_rdma_it_says_why_bytes_went_by_http() {
    let world = World::with(SimOptions {
        rdma: false,
        ..SimOptions::default()
    });
    let more = [
        "--fabric",
        "loopback",
        "--server-metrics",
        &world.sim.url(),
        "--json",
        "-",
    ];
    let report = world.run(&args(&more)).json();
    for row in rows(&report) {
        assert_eq!(
            (&row["rdma_share"], &row["rdma_share_server"]),
            (&0.0.into(), &0.0.into())
        );
        assert_eq!(row["fell_back"]["reply-missing"], row["ops"], "{row}");
        assert_eq!(row["failed"], 0);
    }
    let more = ["--fabric", "loopback", "--policy", "require-rdma"];
    let ran = world.run(&args(&more));
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains("reply-missing"), "{}", ran.stderr);
}

#[test]
fn files_of_two_runs_are_compared_and_files_of_two_hosts_are_merged() {
    let folder = tempfile::tempdir().unwrap();
    for (file, threads) in [("a.json", "1"), ("b.json", "2")] {
        run(&mut simulated(
            &folder,
            &["--json", file, "--threads", threads],
        ))
        .ok();
    }
    let here = |args: &[&str]| {
        let mut command = bare(args);
        command.current_dir(folder.path());
        run(&mut command)
    };
    let compared = here(&["bench", "compare", "a.json", "a.json"]).ok();
    let compared = String::from_utf8(compared).unwrap();
    assert!(
        compared.starts_with("same host, version and settings\n"),
        "{compared}"
    );
    assert_eq!(compared.matches("(x1.00)").count(), 8, "{compared}");
    let json = here(&["bench", "compare", "a.json", "b.json", "--json", "-"]).json();
    assert_eq!(
        json["rows"].as_array().unwrap().len(),
        0,
        "threads differ: {json}"
    );
    assert_eq!(json["only_after"].as_array().unwrap().len(), 2, "{json}");

    here(&["bench", "merge", "a.json", "a.json", "-o", "all.json"]).fails(2, &["the same host"]);
    let a = fs::read_to_string(folder.path().join("a.json")).unwrap();
    fs::write(folder.path().join("c.json"), of_another_host(&a)).unwrap();
    here(&[
        "bench", "merge", "a.json", "c.json", "-o", "all.json", "--html", "all.html",
    ])
    .ok();
    let (one, all) = (
        read(&folder.path().join("a.json")),
        read(&folder.path().join("all.json")),
    );
    assert_eq!(rows(&all).len(), 6);
    let sums = rows(&all).iter().filter(|row| row["host"] == "all");
    let ops: f64 = sums.map(|row| number(row, "ops")).sum();
    let of_one: f64 = rows(&one).iter().map(|row| number(row, "ops")).sum();
    assert_eq!(ops, 2.0 * of_one);
    assert!(folder.path().join("all.html").exists());
}

/// The same figures, of a host of another name.
fn of_another_host(report: &str) -> String {
    let mut report: Value = serde_json::from_str(report).unwrap();
    report["hosts"][0]["name"] = "elsewhere".into();
    for row in report["runs"].as_array_mut().unwrap() {
        row["host"] = "elsewhere".into();
    }
    report.to_string()
}

/// Runs what it is told on one node, and has its figures as those of a second one too.
const SRUN: &str = r#"#!/bin/bash
while [ "$1" != bash ]; do shift; done
SLURMD_NODENAME=one "$@" || exit
folder=$5
host=$(uname -n)
sed "s/\"host\": \"$host\"/\"host\": \"other\"/; s/\"name\": \"$host\"/\"name\": \"other\"/" "$folder/one.json" >"$folder/other.json"
"#;

#[test]
fn the_script_for_slurm_says_what_the_program_understands() {
    let world = World::new();
    let bin = world.folder.path().join("bin");
    fs::create_dir(&bin).unwrap();
    symlink(env!("CARGO_BIN_EXE_s3engine"), bin.join("s3engine")).unwrap();
    // A minute is for real nodes.
    let date = format!("#!/bin/bash\necho {}\n", seconds_since_1970() + 12);
    for (name, text) in [("srun", SRUN), ("date", &date)] {
        fs::write(bin.join(name), text).unwrap();
        fs::set_permissions(bin.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/slurm-bench.sh");
    let mut command = Command::new("bash");
    // The environment of the binary, and the batch system's.
    let of_binary = world.command(&[]);
    let environment = of_binary
        .get_envs()
        .filter_map(|(name, value)| Some((name, value?)));
    command
        .arg(script)
        .args(&args(&["--mode", "per-process"])[2..])
        .env_clear()
        .envs(environment)
        .env("PATH", format!("{}:/usr/bin:/bin", bin.display()))
        .env("SLURM_JOB_ID", "7")
        .env("SLURM_CPUS_ON_NODE", "2")
        .current_dir(world.out());
    run(&mut command).ok();
    let report = read(&world.out().join("s3engine-bench-7/all.json"));
    assert_eq!(report["hosts"].as_array().unwrap().len(), 2, "{report}");
    assert!(report["start_at"].is_string(), "{report}");
    assert_eq!(
        rows(&report)[0]["stopped"],
        "duration",
        "every window is as long as the other"
    );
}

#[test]
fn bytes_are_told_by_the_rail_that_they_came_through() {
    let world = World::new();
    let fabric = world.folder.path().join("fabric");
    let library = s3rdma_standin::copied(world.folder.path())
        .loopback(&fabric)
        .devices("mlx5_0,mlx5_1");
    let library = library.path().to_str().unwrap();
    let scale = [
        "bench",
        "scale",
        "--fabric",
        "s3rdma",
        "--s3rdma-library",
        library,
    ];
    let rows = [
        "--procs",
        "2",
        "--size",
        "1MiB",
        "--duration",
        "300ms",
        "--json",
        "-",
    ];
    let rails = ["--rails", "mlx5_0,mlx5_1", "--mode", "per-process,shared"];
    let args: Vec<_> = scale.iter().chain(&rows).chain(&rails).copied().collect();
    let ran = world.run(&args);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let report = ran.json();
    let runs = report["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 2, "{report}");
    for run in runs {
        assert_eq!(run["rdma_share"], 1.0, "{run}");
        let rails = run["rails"].as_object().unwrap();
        let names: Vec<_> = rails.keys().map(String::as_str).collect();
        assert_eq!(names, ["mlx5_0", "mlx5_1"]);
        let bytes: u64 = rails.values().filter_map(Value::as_u64).sum();
        assert!(bytes > 1 << 20, "{run}");
    }
}
