//! What people get wrong: one clear line, the right exit code, and nothing left behind.
#![allow(missing_docs)]

mod support;

use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use s3sim::{Action, Kind, Rule, SimOptions};
use support::{Ran, World, bare, run};

#[test]
fn a_wrong_url_is_a_matter_of_configuration() {
    let world = World::new();
    for (url, word) in [
        ("127.0.0.1:9000", "write http://127.0.0.1:9000"),
        ("http://host/path?query", "holds a query"),
        ("http://", "no host"),
        ("ftp://host", "scheme"),
    ] {
        let ran = world.run(&["get", "s3://train/1KiB-x", "--endpoint", url]);
        ran.fails(3, &[word]);
    }
    assert!(world.files().is_empty());
}

#[test]
fn a_proxy_that_cannot_be_is_told_without_its_password() {
    let world = World::new();
    for url in ["socks5h://user:hunter2@proxy:1080", "http://user:hunter2@"] {
        let ran = world.run(&["get", "s3://train/1KiB-x", "--proxy", url]);
        ran.fails(3, &["proxy"]);
        assert!(!ran.stderr.contains("hunter2"), "{}", ran.stderr);
    }
}

#[test]
fn missing_or_half_credentials_say_what_to_set() {
    let world = World::new();
    let args = ["get", "s3://train/1KiB-x", "--endpoint", &world.sim.url()];
    run(&mut bare(&args)).fails(
        3,
        &[
            "s3://train/1KiB-x: no credentials: environment: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
            "profile default: ",
            "container: ",
            "instance metadata: ",
            "--anonymous",
        ],
    );
    let only = [&args[..], &["--credentials", "env"]].concat();
    let words = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "--anonymous"];
    run(&mut bare(&only)).fails(3, &words);
    let both = [&args[..], &["--credentials", "env", "--profile", "p"]].concat();
    run(&mut bare(&both)).fails(3, &["--credentials and --profile"]);
    assert_eq!(world.sim.counters().requests, 0);
    let ran = run(bare(&args).env("AWS_ACCESS_KEY_ID", "s3sim"));
    ran.fails(3, &["AWS_SECRET_ACCESS_KEY"]);
}

#[test]
fn a_wrong_secret_is_refused_and_never_shown() {
    let world = World::new();
    let mut command = world.command(&["get", "s3://train/1KiB-x"]);
    let ran = run(command.env("AWS_SECRET_ACCESS_KEY", "hush-hush"));
    ran.fails(
        3,
        &["403 SignatureDoesNotMatch", "(request ", &world.sim.url()],
    );
    let mut command = world.command(&["get", "s3://train/1KiB-x", "-vv"]);
    let ran = run(command.env("AWS_SECRET_ACCESS_KEY", "hush-hush"));
    assert!(
        !ran.stderr.contains("hush-hush") && ran.stderr.contains("phase: "),
        "{}",
        ran.stderr
    );
    assert!(world.files().is_empty());
}

#[test]
fn anonymous_access_that_is_not_allowed_is_an_s3_error() {
    let world = World::new();
    let ran = world.run(&["get", "s3://train/1KiB-x", "--anonymous"]);
    ran.fails(1, &["403 AccessDenied", "(request "]);
}

#[test]
fn a_missing_bucket_or_key_is_told_apart_and_exits_with_4() {
    let world = World::new();
    for (url, code) in [
        ("s3://nowhere/1KiB-x", "404 NoSuchBucket"),
        ("s3://train/no-size", "404 NoSuchKey"),
    ] {
        world
            .run(&["get", url, "-o", "x"])
            .fails(4, &[url, code, "(request ", &world.sim.url()]);
    }
    assert!(world.files().is_empty());
}

#[test]
fn an_endpoint_that_cannot_be_reached_is_named() {
    let world = World::new();
    // A port that was free a moment ago.
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let url = format!("http://127.0.0.1:{port}");
    let ran = world.run(&["get", "s3://train/1KiB-x", "--endpoint", &url]);
    ran.fails(1, &["cannot connect", &url]);
    assert!(world.files().is_empty());
}

#[test]
fn an_output_that_cannot_be_written_is_named() {
    let world = World::new();
    let ran = world.run(&["get", "s3://train/1KiB-x", "-o", "/nonexistent/x"]);
    ran.fails(1, &["/nonexistent/x", "No such file"]);
    let ran = world.run(&["get", "s3://train/1KiB-x", "-o", "/dev/full"]);
    ran.fails(1, &["/dev/full", "No space left"]);
}

#[test]
fn a_range_beyond_the_end_is_the_servers_416() {
    let world = World::new();
    let ran = world.run(&["get", "s3://train/1000-x", "--range", "1000-1001"]);
    ran.fails(
        1,
        &["416 InvalidRange", "the object has 1000 bytes", "(request "],
    );
    assert!(world.files().is_empty());
}

#[test]
fn what_cannot_be_meant_is_a_matter_of_usage() {
    let world = World::new();
    for args in [
        &["get"][..],
        &["get", "train/x"],
        &["get", "s3://train"],
        &["get", "s3://train/1KiB", "--range", "5-4"],
        &["get", "s3://train/1KiB", "--range", "18446744073709551615-"],
        &["get", "s3://train/1KiB", "--pool-size", "5MB"],
        &["get", "s3://train/1KiB", "--rdma", "maybe"],
        &["get", "s3://train/1KiB", "--json", "-o", "-"],
        &["get", "s3://train/1KiB", "--json", "-o", "/dev/stdout"],
        &["get", "s3://train/1KiB", "-o", "/dev/fd/2"],
        &["get", "s3://train/1KiB", "-o", "/proc/self/fd/9"],
        &["get", "s3://train/1KiB", "-o", ""],
        &["get", "s3://train/dir/"],
        &["bench", "--size", "0"],
        &["bench", "--key-template", "{x}"],
        &["nothing"],
    ] {
        assert_eq!(world.run(args).code, Some(2), "{args:?}");
    }
    assert!(world.files().is_empty());
}

#[test]
fn rdma_that_is_required_and_not_there_exits_with_5_and_says_what_helps() {
    let world = World::new();
    let ran = world.run(&["get", "s3://train/1MiB-x", "--rdma", "require"]);
    assert_eq!(ran.code, Some(5));
    let lines: Vec<_> = ran.stderr.lines().collect();
    assert_eq!(
        lines[0],
        "error: s3://train/1MiB-x: RDMA required, not possible: no-fabric"
    );
    assert!(lines[1].starts_with("  ") && lines[2].starts_with("  what helps: "));
    assert!(world.files().is_empty());
}

#[test]
fn unknown_settings_are_errors_that_name_them() {
    let world = World::new();
    let path = world.folder.path().join("s3engine.toml");
    fs::write(&path, "pool_size = \"1GiB\"\n").unwrap();
    let ran = world.run(&[
        "get",
        "s3://train/1KiB-x",
        "--config",
        path.to_str().unwrap(),
    ]);
    ran.fails(3, &["s3engine.toml, line 1", "pool_size", "pool-size"]);
    let mut command = world.command(&["get", "s3://train/1KiB-x"]);
    run(command.env("S3ENGINE_POOL", "1GiB")).fails(3, &["S3ENGINE_POOL ", "S3ENGINE_POOL_SIZE"]);
}

#[test]
fn a_pool_larger_than_the_machine_is_refused() {
    let world = World::new();
    world
        .run(&["get", "s3://train/1KiB-x", "--pool-size", "1024TiB"])
        .fails(3, &["--pool-size 1024TiB: ", "memory limit"]);
}

#[test]
fn a_deadline_ends_a_stalled_transfer() {
    let world = World::with(stalled());
    let ran = world.run(&["get", "s3://train/1MiB-x", "--deadline", "300ms"]);
    ran.fails(1, &["deadline passed"]);
    assert!(world.files().is_empty());
}

#[test]
fn a_failed_transfer_is_json_where_that_is_wanted() {
    let world = World::new();
    let ran = world.run(&["get", "s3://train/nosize", "-o", "x", "--json"]);
    ran.fails(4, &[]);
    let json = ran.json();
    assert_eq!(
        (&json["path"], &json["error"]["code"]),
        (&"none".into(), &"NoSuchKey".into())
    );
    assert_eq!(json["error"]["exit_code"], 4);
}

#[test]
fn a_signal_leaves_no_file() {
    let mut signals = vec![Signal::INT, Signal::TERM];
    if !hang_ups_are_ignored() {
        signals.push(Signal::HUP);
    }
    for signal in signals {
        let world = World::with(stalled());
        let ran = in_mid_transfer(&world, world.command(&TO_X), signal);
        assert_eq!(ran.code, Some(128 + signal.as_raw()), "{}", ran.stderr);
        assert!(world.files().is_empty());
    }
}

#[test]
fn a_kill_leaves_no_file_where_files_can_be_without_a_name() {
    let world = World::with(stalled());
    let flags = OFlags::TMPFILE | OFlags::WRONLY;
    if rustix::fs::open(world.out(), flags, Mode::RUSR).is_err() {
        return;
    }
    let ran = in_mid_transfer(&world, world.command(&TO_X), Signal::KILL);
    assert_eq!(ran.code, None);
    assert!(world.files().is_empty());
}

#[test]
fn a_hang_up_does_not_end_what_runs_under_nohup() {
    let world = World::with(stalled());
    let plain = world.command(&[]);
    // The shell ignores the signal, and so does what it becomes.
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", "trap '' HUP; exec \"$0\" \"$@\""])
        .arg(plain.get_program())
        .args(TO_X)
        .args(["--deadline", "2s"])
        .stdin(Stdio::null())
        .env_clear()
        .envs(plain.get_envs().filter_map(|(k, v)| Some((k, v?))))
        .current_dir(world.out());
    let ran = in_mid_transfer(&world, command, Signal::HUP);
    ran.fails(1, &["deadline passed"]);
}

/// As under nohup: then they are so for every child too.
fn hang_ups_are_ignored() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    u64::from_str_radix(mask.unwrap().trim(), 16).unwrap() & 1 == 1
}

const TO_X: [&str; 4] = ["get", "s3://train/1MiB-x", "-o", "x"];

/// Sends a signal to a transfer that stalls, and gives how it ended.
fn in_mid_transfer(world: &World, command: Command, signal: Signal) -> Ran {
    let child = support::spawn(command);
    support::eventually("a stalled request", || world.sim.counters().faults > 0);
    kill_process(Pid::from_raw(child.id() as i32).unwrap(), signal).unwrap();
    Ran::from(child.wait_with_output().unwrap())
}

#[test]
fn a_signal_ends_a_write_that_nobody_reads() {
    let world = World::new();
    let mut child = support::spawn(world.command(&["get", "s3://train/64MiB-x", "-o", "-"]));
    // The first chunk is on its way out, and larger than any pipe.
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0]).unwrap();
    kill_process(Pid::from_raw(child.id() as i32).unwrap(), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

/// Every body stalls after its first bytes.
fn stalled() -> SimOptions {
    let ms = Duration::from_secs(600).as_millis() as u64;
    let action = Action::Stall {
        after: Some(1000),
        ms,
    };
    SimOptions {
        faults: vec![Rule::new(action).only(Kind::Http)],
        ..SimOptions::default()
    }
}
