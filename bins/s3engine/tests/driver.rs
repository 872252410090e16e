//! What brings bytes from plain sockets into memory: io_uring where it can be used, epoll elsewhere, and which it is.
#![allow(missing_docs)]

mod support;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use support::host::Host;
use support::seccomp::{close, with_little_locked_memory};
use support::{World, object, run};

const LARGE: &str = "s3://train/d/9MiB-x";

/// As in many containers.
fn without_uring(mut command: Command) -> Command {
    close(&mut command, libc::SYS_io_uring_setup);
    command
}

/// Whether this host has io_uring for those that can use it.
fn is_there() -> bool {
    s3engine::Driver::probe()
        .inspect_err(|why| eprintln!("skipped: {why}"))
        .is_ok()
}

fn assert_there(world: &World) {
    let found = fs::read(world.out().join("9MiB-x")).unwrap();
    assert!(found == object("d/9MiB-x", 0, 9 << 20));
}

#[test]
fn where_io_uring_is_closed_epoll_does_it_and_the_log_says_so_once() {
    let world = World::new();
    let get = world.command(&["get", LARGE, "--log-filter", "info"]);
    let ran = run(&mut without_uring(get));
    let said = "io_uring cannot be used, and epoll is";
    assert_eq!(ran.stderr.matches(said).count(), 1, "{}", ran.stderr);
    let why = "closed here, by kernel.io_uring_disabled or seccomp";
    assert!(ran.stderr.contains(why), "{}", ran.stderr);
    ran.ok();
    assert_there(&world);
}

#[test]
fn where_io_uring_is_closed_and_asked_for_that_is_an_error() {
    let world = World::new();
    let get = world.command(&["get", LARGE, "--driver", "uring"]);
    let words = [
        "io_uring cannot be used",
        "seccomp",
        "Operation not permitted",
    ];
    run(&mut without_uring(get)).fails(3, &words);
    assert!(world.files().is_empty());
}

#[test]
fn where_rings_can_be_made_and_not_used_epoll_does_it() {
    let world = World::new();
    let mut get = world.command(&["get", LARGE]);
    close(&mut get, libc::SYS_io_uring_enter);
    run(&mut get).ok();
    assert_there(&world);
    let mut get = world.command(&["get", LARGE, "--driver", "uring"]);
    close(&mut get, libc::SYS_io_uring_enter);
    run(&mut get).fails(3, &["io_uring cannot be used", "do not end"]);
}

#[test]
fn where_the_memory_for_rings_runs_out_some_threads_go_without() {
    if !is_there() || !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: only root can be somebody else");
    }
    let world = World::new();
    let program = world.folder.path().join("s3engine");
    // By another process: who forks here meanwhile would hold the copy open for writing, and so not executable.
    let copied = Command::new("cp")
        .arg(env!("CARGO_BIN_EXE_s3engine"))
        .arg(&program)
        .status();
    assert!(copied.unwrap().success());
    fs::set_permissions(world.folder.path(), Permissions::from_mode(0o755)).unwrap();
    let get = |driver: &[&str]| {
        let line = ["get", LARGE, "-o", "/dev/null", "--engine-threads", "8"];
        let like = world.command(&[]);
        let mut command = Command::new(&program);
        command.args([&line[..], driver].concat()).env_clear();
        command.envs(
            like.get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        );
        with_little_locked_memory(&mut command, 40 << 10);
        run(&mut command)
    };
    let said = get(&["--log-filter", "info"]);
    assert!(
        said.stderr.contains("io_uring cannot be used"),
        "{}",
        said.stderr
    );
    said.ok();
    let words = ["io_uring cannot be used", "ulimit -l"];
    get(&["--driver", "uring"]).fails(3, &words);
}

#[test]
fn each_can_be_asked_for_and_brings_the_same_bytes() {
    let drivers: &[_] = if is_there() {
        &["uring", "epoll"]
    } else {
        &["epoll"]
    };
    for driver in drivers {
        let world = World::new();
        let line = ["get", LARGE, "--driver", driver, "--log-filter", "info"];
        let ran = world.run(&line);
        assert!(!ran.stderr.contains("io_uring"), "{}", ran.stderr);
        ran.ok();
        assert_there(&world);
    }
}

#[test]
fn one_that_is_none_is_refused() {
    let world = World::new();
    assert_eq!(world.run(&["get", LARGE, "--driver", "iocp"]).code, Some(2));
    let ran = run(world
        .command(&["get", LARGE])
        .env("S3ENGINE_DRIVER", "iocp"));
    ran.fails(3, &["S3ENGINE_DRIVER", "uring, epoll"]);
}

#[test]
fn bench_says_which_it_is() {
    let short = ["--duration", "100ms", "--warmup", "20ms", "--floor", "20ms"];
    let bench = |driver: &[&str], closed: bool| {
        let world = World::new();
        let line = [
            "bench",
            "--size",
            "1MiB",
            "--threads",
            "1",
            "--json",
            "b.json",
        ];
        let command = world.command(&[&line[..], &short, driver].concat());
        let ran = match closed {
            true => run(&mut without_uring(command)),
            false => run(&mut { command }),
        };
        let text = String::from_utf8(ran.ok()).unwrap();
        let json = fs::read(world.out().join("b.json")).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
        let told = json["engine"]["driver"].as_str().unwrap().to_owned();
        assert!(text.contains(&format!("driver {told}\n")), "{text}");
        told
    };
    assert_eq!(bench(&["--driver", "epoll"], false), "epoll");
    assert!(bench(&[], true).starts_with("epoll: it is closed here"));
    if is_there() {
        assert_eq!(bench(&[], false), "uring");
    }
}

#[test]
fn serve_says_which_it_is() {
    let world = World::new();
    let closed = Host::start(without_uring(world.serve(&[])), world.socket());
    closed.says("  driver    epoll: it is closed here");
    drop(closed);
    let forced = world.host(&["--driver", "epoll"]);
    forced.says("  driver    epoll\n");
    drop(forced);
    if is_there() {
        let host = world.host(&[]);
        host.says("  driver    uring\n");
        let ran = run(&mut world.client(&["get", LARGE]));
        ran.ok();
        assert_there(&world);
    }
}

#[test]
fn a_service_of_several_endpoints_says_once_why_it_has_no_io_uring() {
    let world = World::new();
    let (file, url) = (world.folder.path().join("serve.toml"), world.sim.url());
    let text = format!(
        "default_endpoint = \"a\"\nlog_filter = \"info\"\n[endpoint.a]\nurl = \"{url}\"\n[endpoint.b]\nurl = \"{url}\"\n"
    );
    fs::write(&file, text).unwrap();
    let mut serve = world.serve(&["--config", file.to_str().unwrap()]);
    serve.env_remove("AWS_ENDPOINT_URL");
    let host = Host::start(without_uring(serve), world.socket());
    host.says("  driver    epoll: it is closed here");
    let told = host.told();
    let said = told
        .matches("io_uring cannot be used, and epoll is")
        .count();
    assert_eq!(said, 1, "{told}");
}
