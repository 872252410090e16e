//! `s3engine serve` and its clients, each a process of its own.
#![allow(missing_docs)]

mod support;

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io::Write;
use std::net::TcpStream;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::Signal;
use s3engine::{ConnectOptions, Engine, Get, QueueOptions};
use s3sim::{Action, Kind, Rule, SimOptions};
use support::host::Host;
use support::{PATIENCE, Ran, World, bare, eventually, object, run};

const MIB: usize = 1 << 20;

/// Objects whose name ends in `slow` are answered late, those in `stalled` never whole.
fn world() -> World {
    let late = Rule::new(Action::AnswerLate { ms: 700 });
    let stall = Rule::new(Action::Stall {
        after: Some(1000),
        ms: 600_000,
    });
    World::with(SimOptions {
        faults: vec![
            late.only(Kind::Http).key("*slow"),
            stall.only(Kind::Http).key("*stalled"),
        ],
        ..SimOptions::default()
    })
}

fn get<'a>(object: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["get", object, "-o", "x"], more].concat()
}

#[test]
fn clients_need_no_endpoint_and_no_keys() {
    let world = World::new();
    let host = world.host(&[]);
    let ran = run(&mut world.client(&get("s3://train/40MiB-x", &[])));
    assert!(
        ran.stderr.contains("  via the host service  -> x"),
        "{}",
        ran.stderr
    );
    ran.ok();
    let found = fs::read(world.out().join("x")).unwrap();
    assert!(found == object("40MiB-x", 0, 40 * MIB));
    let socket = host.socket.to_str().unwrap();
    let named = ["--json", "--verify", "--service", socket];
    let ran = run(&mut world.client(&get("s3://train/5MiB-x", &named)));
    let json = ran.json();
    assert_eq!(json["service"], socket);
    assert_eq!(json["verified"], true);
    let ls = ["ls", "s3://train", "--service", socket, "-v"];
    let ran = run(&mut world.client(&ls));
    assert!(
        ran.stderr.contains("via the host service"),
        "{}",
        ran.stderr
    );
    ran.ok();
    let ran = run(&mut world.client(&get("s3://train/no-size", &[])));
    ran.fails(4, &["404 NoSuchKey", &world.sim.url()]);
    assert!(!host.told().contains(world.sim.secret_key()));
}

#[test]
fn an_endpoint_or_off_means_an_engine_of_the_commands_own() {
    let world = World::new();
    let host = world.host(&[]);
    let url = world.sim.url();
    for more in [&["--service", "off"][..], &["--endpoint", &url], &[]] {
        // With the simulator's endpoint and keys in the environment.
        let mut command = world.command(&get("s3://train/1MiB-x", more));
        let ran = run(command.env("XDG_RUNTIME_DIR", world.folder.path()));
        assert!(
            !ran.stderr.contains("via the host service"),
            "{}",
            ran.stderr
        );
        ran.ok();
    }
    // A service that is named is used, or the command fails.
    let socket = host.socket.to_str().unwrap().to_owned();
    let by_name = get("s3://train/1MiB-x", &["--service", &socket]);
    assert!(
        run(&mut world.command(&by_name))
            .stderr
            .contains("via the host service")
    );
    drop(host);
    let ran = run(&mut world.command(&by_name));
    ran.fails(3, &["no host service at", &socket]);
    let both = get("s3://train/x", &["--service", &socket, "--endpoint", &url]);
    run(&mut world.client(&both)).fails(2, &["--service-endpoint"]);
    // Without both there is nothing to use.
    let ran = run(&mut world.client(&["ls", "s3://train"]));
    ran.fails(3, &["AWS_ENDPOINT_URL", "no host service at", &socket]);
}

#[test]
fn a_bench_measures_the_service_only_where_it_is_asked_to() {
    let world = World::new();
    let host = world.host(&[]);
    let quick = ["--size", "64KiB", "--threads", "1", "--duration", "500ms"];
    let quick = [
        &quick[..],
        &["--warmup", "20ms", "--floor", "20ms", "--json", "-"],
    ]
    .concat();
    let socket = host.socket.to_str().unwrap();
    let served = [&["bench", "--service", socket], &*quick].concat();
    let json = run(&mut world.client(&served)).json();
    assert_eq!(json["service"], socket);
    assert_eq!(json["runs"][0]["mode"], "service");
    assert!(json["runs"][0]["completions"]["http"].as_u64().unwrap() > 0);
    let own = run(&mut world.client(&[&["bench"], &*quick].concat())).json();
    assert_eq!(own["runs"][0]["mode"], "embedded");
}

#[test]
fn a_second_service_is_refused_and_what_a_killed_one_left_is_replaced() {
    let world = World::new();
    let mut host = world.host(&[]);
    let second = run(world.serve(&[]).env("S3ENGINE_LOG", "error"));
    second.fails(3, &["a service runs at", "s3engine.sock already"]);
    run(&mut world.client(&get("s3://train/1MiB-x", &[]))).ok();
    host.signal(Signal::KILL);
    host.ended();
    assert!(host.socket.exists(), "it had no time to tidy up");
    let ran = run(&mut world.client(&get("s3://train/1MiB-x", &[])));
    ran.fails(3, &["no host service at"]);
    let _next = world.host(&[]);
    run(&mut world.client(&get("s3://train/1MiB-x", &[]))).ok();
}

/// A client that waits for an answer.
fn under_way(world: &World, host: &Host, object: &str) -> std::process::Child {
    let before = world.sim.counters().faults;
    let child =
        support::spawn(world.client(&get(object, &["--service", host.socket.to_str().unwrap()])));
    eventually("the request", || world.sim.counters().faults > before);
    child
}

#[test]
fn requests_under_way_end_before_the_service_does() {
    let world = world();
    let mut host = world.host(&["--metrics", "127.0.0.1:0"]);
    assert_eq!(host.http("/readyz"), (200, "ready\n".to_owned()));
    let client = under_way(&world, &host, "s3://train/1MiB-slow");
    host.signal(Signal::TERM);
    host.says("ending: requests under way may end first");
    assert_eq!(host.http("/readyz").0, 503);
    assert_eq!(host.http("/healthz").0, 200);
    let refused = run(&mut world.client(&get("s3://train/1MiB-x", &[])));
    refused.fails(3, &["refuses: the service is about to end"]);
    Ran::from(client.wait_with_output().unwrap()).ok();
    assert!(host.ended().success());
    assert!(
        host.told().contains("nothing was under way"),
        "{}",
        host.told()
    );
    assert!(!host.socket.exists());
}

#[test]
fn what_does_not_end_in_time_is_cut_off_and_its_client_is_told() {
    let world = world();
    let mut host = world.host(&["--drain", "200ms"]);
    let client = under_way(&world, &host, "s3://train/1MiB-stalled");
    host.signal(Signal::INT);
    assert!(host.ended().success());
    assert!(
        host.told().contains("these were cut off requests=1"),
        "{}",
        host.told()
    );
    let ran = Ran::from(client.wait_with_output().unwrap());
    ran.fails(1, &["s3://train/1MiB-stalled", "host service"]);
}

#[test]
fn a_client_whose_service_is_killed_says_so_and_fails_as_a_transfer_does() {
    let world = world();
    let mut host = world.host(&[]);
    let client = under_way(&world, &host, "s3://train/1MiB-stalled");
    host.signal(Signal::KILL);
    host.ended();
    let ran = Ran::from(client.wait_with_output().unwrap());
    assert!(!ran.stderr.contains("what helps"), "{}", ran.stderr);
    ran.fails(
        1,
        &[
            "s3://train/1MiB-stalled",
            "host service: it has ended or was killed",
        ],
    );
}

#[test]
fn what_helps_where_rdma_is_required_of_a_service_are_settings_of_the_service() {
    let world = World::new();
    let _host = world.host(&["--fabric", "off"]);
    let require = ["--rdma", "require"];
    let ran = run(&mut world.client(&get("s3://train/1MiB-x", &require)));
    assert!(!ran.stderr.contains("--fabric"), "{}", ran.stderr);
    assert_eq!(ran.code, Some(5), "{}", ran.stderr);
    assert!(
        ran.stderr.contains("what helps: the host service"),
        "{}",
        ran.stderr
    );
}

#[test]
fn names_of_endpoints_are_shown_and_not_obeyed() {
    let world = World::new();
    let name = "\\u001b[2Jmain";
    let text = format!("[endpoint.\"{name}\"]\nurl = \"{}\"\n", world.sim.url());
    let host = Host::start(served_with(&world, &text), world.socket());
    host.says("  metrics ");
    let told = host.told();
    assert!(told.contains("\\u{1b}[2Jmain: http://"), "{told}");
    assert!(!told.contains('\u{1b}'), "{told}");
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let world = world();
    let mut host = world.host(&["--drain", "1h"]);
    let mut client = under_way(&world, &host, "s3://train/1MiB-stalled");
    host.signal(Signal::TERM);
    host.says("ending: requests under way may end first");
    host.signal(Signal::TERM);
    assert_eq!(host.ended().code(), Some(128 + 15));
    assert_eq!(client.wait().unwrap().code(), Some(1));
}

#[test]
fn a_dump_tells_what_each_request_waits_for() {
    let world = world();
    let host = world.host(&[]);
    let mut client = under_way(&world, &host, "s3://train/1MiB-stalled");
    host.signal(Signal::USR1);
    host.says("first_byte=0");
    let told = host.told();
    let line = |word: &str| {
        told.lines()
            .find(|line| line.contains(word))
            .unwrap()
            .to_owned()
    };
    let whole = line("1MiB-stalled");
    assert!(whole.contains("waits_for=\"its parts, "), "{told}");
    let part = line("first_byte=0");
    assert!(part.contains("waits_for=\"the "), "{told}");
    let who = line(" client session=");
    assert!(
        who.contains(&format!("pid={}", client.id())) && who.contains("outstanding=1"),
        "{who}"
    );
    client.kill().unwrap();
    client.wait().unwrap();
    host.says("a client has left");
    host.signal(Signal::USR1);
    host.says(" pool clients=0");
}

#[test]
fn figures_have_words_and_count_what_clients_did() {
    let world = World::new();
    let host = world.host(&["--metrics", "127.0.0.1:0"]);
    run(&mut world.client(&get("s3://train/5MiB-x", &[]))).ok();
    let (status, text) = host.http("/metrics");
    assert_eq!(status, 200);
    for line in [
        "# HELP s3engine_bytes_total bytes of objects that arrived, by path and reason",
        "# TYPE s3engine_get_seconds histogram",
        "s3engine_bytes_total{path=\"http\",reason=\"no-fabric\"} 5242880",
        "s3engine_get_seconds_bucket{path=\"http\",le=\"+Inf\"} 1",
        "s3engine_client_bytes_total{client=\"s3engine ",
        "s3engine_build_info{version=\"",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
    assert_eq!(host.http("/healthz"), (200, "ok\n".to_owned()));
    assert_eq!(host.http("/").0, 404);
    eventually("the client has left and its memory is free", || {
        let (_, text) = host.http("/metrics");
        let gone = [
            "s3engine_service_sessions 0\n",
            "s3engine_pool_leased_bytes 0\n",
        ];
        gone.iter().all(|line| text.contains(line))
    });
    let url = world.sim.url();
    let taken = [
        "--socket",
        "other.sock",
        "--metrics",
        &url["http://".len()..],
    ];
    let taken = run(world.serve(&taken).env("S3ENGINE_LOG", "error"));
    taken.fails(3, &["--metrics: cannot listen at 127.0.0.1:", "in use"]);
}

#[test]
fn probes_are_answered_though_others_hold_many_connections_and_read_nothing() {
    let world = World::new();
    let host = world.host(&["--metrics", "127.0.0.1:0"]);
    let address = host.metrics_address();
    let silent: Vec<_> = (0..100)
        .map(|nth| {
            let mut stream = TcpStream::connect(&address).unwrap();
            // Some say nothing; others ask without end, and read no answer.
            if nth % 2 == 0 {
                let asked = b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n".repeat(10_000);
                stream.set_nonblocking(true).unwrap();
                let _ = stream.write(&asked);
            }
            stream
        })
        .collect();
    assert_eq!(host.http("/healthz"), (200, "ok\n".to_owned()));
    assert_eq!(host.http("/readyz"), (200, "ready\n".to_owned()));
    assert_eq!(host.http("/metrics").0, 200);
    drop(silent);
}

#[test]
fn the_service_manager_is_told_how_it_is() {
    let world = World::new();
    let path = world.folder.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    assert_is_told(&world, path.as_os_str(), &manager);
}

#[test]
fn a_service_manager_at_an_abstract_socket_is_told_as_well() {
    let world = World::new();
    // Unlike any other of this host.
    let name = format!("s3engine-notify{}", world.folder.path().display());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let manager = UnixDatagram::bind_addr(&address).unwrap();
    assert_is_told(&world, OsStr::new(&format!("@{name}")), &manager);
}

fn assert_is_told(world: &World, socket: &OsStr, manager: &UnixDatagram) {
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let heard = || {
        let mut buffer = [0; 4096];
        let n = manager.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..n].to_vec()).unwrap()
    };
    let mut command = world.serve(&[]);
    command.env("NOTIFY_SOCKET", socket);
    let mut host = Host::start(command, world.socket());
    let ready = heard();
    assert!(
        ready.contains("READY=1\n") && ready.contains("STATUS=serving at /"),
        "{ready}"
    );
    assert!(host.socket.exists(), "a client may attach now");
    host.signal(Signal::HUP);
    let reloading = heard();
    assert!(
        reloading.starts_with("RELOADING=1\nMONOTONIC_USEC="),
        "{reloading}"
    );
    assert!(heard().starts_with("READY=1\n"));
    host.signal(Signal::TERM);
    assert!(heard().starts_with("STOPPING=1\n"));
    assert!(host.ended().success());
}

/// A service with a file.
fn config(world: &World, text: &str) -> PathBuf {
    let path = world.folder.path().join("serve.toml");
    fs::write(&path, text).unwrap();
    path
}

fn served_with(world: &World, text: &str) -> Command {
    let path = config(world, text);
    let mut command = world.serve(&["--config", path.to_str().unwrap()]);
    command.env_remove("AWS_ENDPOINT_URL");
    command
}

#[test]
fn a_file_that_cannot_be_meant_is_named_with_the_key() {
    let world = World::new();
    let endpoint = "[endpoint.a]\nurl = \"http://127.0.0.1:1\"\n";
    for (text, words) in [
        ("\nsockt = \"x\"\n", ["serve.toml, line 2", "sockt"]),
        (
            &*format!("{endpoint}secret_key = \"hush\"\n"),
            ["line 3", "secret_key"],
        ),
        (
            &*format!("allow_uid = [\"no-such\"]\n{endpoint}"),
            ["allow_uid", "no-such"],
        ),
        ("allow_uid = [-1]\n", ["line 1", "allow_uid"]),
        ("drain = 5\n", ["line 1", "drain"]),
        ("", ["nothing to serve", "[endpoint.NAME]"]),
        (
            &*format!("{endpoint}[pool]\nbytes = \"1MiB\"\n"),
            ["--pool-size", "2MiB"],
        ),
    ] {
        let ran = run(&mut served_with(&world, text));
        ran.fails(3, &words);
        assert!(!ran.stderr.contains("hush"), "{}", ran.stderr);
    }
    run(served_with(&world, endpoint).args(["--endpoint", "http://x"])).fails(2, &["--config"]);
    run(&mut world.serve(&["--service", "off"])).fails(2, &["--service"]);
}

#[test]
fn only_a_regular_file_is_read_as_the_services_file() {
    let world = World::new();
    let pipe = world.folder.path().join("pipe");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR, 0).unwrap();
    let paths = [
        (pipe.as_path(), "it is a pipe"),
        (world.folder.path(), "it is a folder"),
        (Path::new("/dev/zero"), "it is a device"),
        (Path::new("/dev/null"), "it is a device"),
    ];
    for (path, words) in paths {
        let path = path.to_str().unwrap();
        let ran = run(&mut world.serve(&["--config", path]));
        ran.fails(3, &[path, words, "not a regular file"]);
    }
    // Nor where one has taken the file's place since: the service goes on, and hears what it is told.
    let endpoint = format!("[endpoint.main]\nurl = \"{}\"\n", world.sim.url());
    let mut host = Host::start(served_with(&world, &endpoint), world.socket());
    let file = world.folder.path().join("serve.toml");
    fs::rename(&pipe, &file).unwrap();
    host.signal(Signal::HUP);
    host.says("not reloaded: everything stays as it was");
    host.signal(Signal::TERM);
    assert!(host.ended().success());
}

#[test]
fn several_endpoints_share_one_pool_and_clients_name_them() {
    let (world, other) = (World::new(), World::new());
    let text = format!(
        "default_endpoint = \"main\"\n[endpoint.main]\nurl = \"{}\"\naccess_key_env = \"MY_KEY\"\nsecret_key_env = \"MY_SECRET\"\n\
         [endpoint.far]\nurl = \"{}\"\nanonymous = true\n",
        world.sim.url(),
        other.sim.url()
    );
    let mut command = served_with(&world, &text);
    command
        .args(["--metrics", "127.0.0.1:0"])
        .env("MY_KEY", world.sim.access_key())
        .env("MY_SECRET", world.sim.secret_key())
        .env("AWS_SECRET_ACCESS_KEY", "another");
    let host = Host::start(command, world.socket());
    run(&mut world.client(&get("s3://train/1MiB-x", &[]))).ok();
    let far = ["--service-endpoint", "far"];
    let ran = run(&mut world.client(&get("s3://train/1MiB-x", &far)));
    // The other simulator takes nobody without a signature, and it is that one which says so.
    ran.fails(1, &["403 AccessDenied", &other.sim.url()]);
    let none = ["--service-endpoint", "none"];
    let ran = run(&mut world.client(&get("s3://train/1MiB-x", &none)));
    ran.fails(3, &["refuses: no endpoint \"none\": there are main, far"]);
    let screen = host.told();
    assert!(
        screen.contains("main, the default: http://") && screen.contains(", signed"),
        "{screen}"
    );
    assert!(
        screen.contains("far: http://") && screen.contains(", anonymous"),
        "{screen}"
    );
    assert!(!screen.contains(world.sim.secret_key()));
    // Each GPU, or why there is none.
    let gpus = screen.lines().filter(|line| line.starts_with("  gpu "));
    let told = |line: &str| line.contains(" GPU-") || line.contains("none: no CUDA on this");
    assert!(
        gpus.clone().count() > 0 && gpus.clone().all(told),
        "{screen}"
    );
}

#[test]
fn the_file_that_is_deployed_is_served() {
    let world = World::new();
    let deployed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/config.toml");
    let socket = world.socket();
    // What it says of this machine, which tests share, is replaced.
    let mut command = world.serve(&["--socket", socket.to_str().unwrap()]);
    command.args(["--metrics", "127.0.0.1:0", "--config"]);
    command.arg(deployed).env_remove("AWS_ENDPOINT_URL");
    let mut host = Host::start(command, socket);
    assert_eq!(host.http("/readyz").0, 200);
    let screen = host.told();
    assert!(screen.contains("gid 2000"), "{screen}");
    assert!(
        screen.contains("storage: http://10.0.0.5:9000, signed"),
        "{screen}"
    );
    host.signal(Signal::TERM);
    assert!(host.ended().success());
}

/// The binary and the socket, where any user can reach them.
fn open_to_all(world: &World) -> PathBuf {
    fs::set_permissions(world.folder.path(), Permissions::from_mode(0o755)).unwrap();
    let binary = world.folder.path().join("s3engine-copy");
    // By another process: who forks here meanwhile would hold the copy open for writing, and so not executable.
    let copied = Command::new("cp")
        .arg(env!("CARGO_BIN_EXE_s3engine"))
        .arg(&binary)
        .status();
    assert!(copied.unwrap().success());
    binary
}

fn as_user(uid: u32, binary: &Path, socket: &Path, args: &[&str]) -> Ran {
    let mut command = Command::new(binary);
    command.args(args).arg("--service").arg(socket);
    run(command.env_clear().current_dir("/").uid(uid).gid(uid))
}

#[test]
fn a_reload_changes_who_may_attach_and_what_they_read_and_a_bad_file_changes_nothing() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can be another user");
        return;
    }
    const USER: u32 = 23_456;
    let world = World::new();
    let binary = open_to_all(&world);
    let endpoint = format!("[endpoint.main]\nurl = \"{}\"\n", world.sim.url());
    let host = Host::start(served_with(&world, &endpoint), world.socket());
    let ls = |prefix: &str| as_user(USER, &binary, &host.socket, &["ls", prefix]);
    // Nobody but its own user reaches the socket.
    ls("s3://train/").fails(3, &["Permission denied"]);
    let rule = format!("[[rule]]\nuid = {USER}\nbucket = \"train\"\nprefix = \"set-a/\"\n");
    config(
        &world,
        &format!("allow_uid = [{USER}]\nlog_filter = \"debug\"\n{endpoint}{rule}"),
    );
    host.signal(Signal::HUP);
    host.says("reloaded allow=1 rules=1");
    assert!(!host.told().contains("from the next start on"));
    ls("s3://train/set-a/").ok();
    ls("s3://train/").fails(1, &["denied by the host service", "no rule"]);
    let args = ["get", "s3://train/set-a/1KiB-x", "-o", "/dev/null"];
    as_user(USER, &binary, &host.socket, &args).ok();
    // A key is a name and no path; one that a server could take for a way out of the prefix is refused.
    for climbs in ["s3://train/set-a/../1KiB-x", "s3://train/set-a/./1KiB-x"] {
        let args = ["get", climbs, "-o", "/dev/null"];
        let ran = as_user(USER, &binary, &host.socket, &args);
        ran.fails(1, &["denied by the host service", "between slashes"]);
    }
    let named = ["get", "s3://train/set-a/%2e%2e/1KiB-x", "-o", "/dev/null"];
    as_user(USER, &binary, &host.socket, &named).ok();
    as_user(USER + 1, &binary, &host.socket, &args).fails(3, &["may not attach"]);
    config(&world, "allow_uid = []\nrules = 1");
    host.signal(Signal::HUP);
    host.says("not reloaded: everything stays as it was");
    assert!(
        host.told().contains("serve.toml, line 2"),
        "{}",
        host.told()
    );
    ls("s3://train/set-a/").ok();
    config(&world, &format!("drain = \"1s\"\n{endpoint}"));
    host.signal(Signal::HUP);
    host.says("from the next start on");
    ls("s3://train/set-a/").fails(3, &["Permission denied"]);
}

#[test]
fn the_log_is_json_from_its_first_line_where_that_is_wanted() {
    let world = World::new();
    let mut host = world.host(&["--log", "json"]);
    run(&mut world.client(&get("s3://train/1MiB-x", &[]))).ok();
    host.signal(Signal::TERM);
    assert!(host.ended().success());
    host.says("nothing was under way");
    let lines: Vec<serde_json::Value> = host
        .told()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let serving = lines
        .iter()
        .find(|line| line["fields"]["message"] == "serving");
    let fields = &serving.unwrap()["fields"];
    assert_eq!(fields["socket"], host.socket.to_str().unwrap());
}

#[test]
fn a_reload_changes_what_is_logged() {
    let world = World::new();
    let endpoint = format!("[endpoint.main]\nurl = \"{}\"\n", world.sim.url());
    let quiet = format!("log_filter = \"error\"\n{endpoint}");
    let host = Host::start(served_with(&world, &quiet), world.socket());
    config(
        &world,
        &format!("log_filter = \"no=such=level\"\n{endpoint}"),
    );
    host.signal(Signal::HUP);
    host.says("is no filter for the log");
    config(&world, &endpoint);
    host.signal(Signal::HUP);
    host.says("reloaded allow=0 rules=0");
}

#[test]
fn the_help_has_examples_and_no_flag_that_does_nothing() {
    let ran = run(&mut bare(&["serve", "--help"]));
    let text = String::from_utf8(ran.ok()).unwrap();
    assert!(
        text.contains("Examples:\n  s3engine serve --endpoint"),
        "{text}"
    );
    assert!(!text.contains("--service "), "{text}");
}

#[test]
fn clients_take_no_files_that_connections_to_the_storage_need() {
    let world = World::new();
    let serve = world.serve(&[]);
    let few = |limit: u32| {
        let mut command = Command::new("sh");
        command.args([
            "-c",
            &format!("ulimit -n {limit}; exec \"$0\" serve --slab-size 16MiB"),
        ]);
        command.arg(serve.get_program());
        for (name, value) in serve.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
    };
    let none = run(few(200).env("S3ENGINE_LOG", "error"));
    none.fails(3, &["the limit of 200 open files", "LimitNOFILE"]);
    let host = Host::start(few(480), world.socket());
    let attach = || Engine::connect(&host.socket, ConnectOptions::default());
    let mut clients = Vec::new();
    let refused = loop {
        match attach() {
            Ok(client) => clients.push(client),
            Err(refused) => break refused.to_string(),
        }
        assert!(clients.len() < 100, "nobody is refused");
    };
    assert!(refused.contains("no open files left"), "{refused}");
    // Each of those who are in has its queue and its memory, and all of them have connections at once.
    let mut queues: Vec<_> = clients
        .iter()
        .map(|client| {
            let mut queue = client.queue(QueueOptions { capacity: 8 });
            for _ in 0..8 {
                queue.push(Get::new("train", "1MiB-x")).unwrap();
            }
            queue.submit();
            queue
        })
        .collect();
    for queue in &mut queues {
        while let Some(end) = queue.next(PATIENCE).unwrap() {
            assert!(end.is_ok(), "{end:?}");
        }
    }
    assert!(clients.len() > 4, "{} clients", clients.len());
    drop((queues, clients));
    eventually("there is room again", || attach().is_ok());
}

#[test]
fn a_service_goes_on_when_its_clients_are_killed() {
    let world = world();
    let host = world.host(&[]);
    for _ in 0..3 {
        let mut client = under_way(&world, &host, "s3://train/1MiB-stalled");
        client.kill().unwrap();
        client.wait().unwrap();
    }
    eventually("all have left", || {
        host.told().matches("a client has left").count() == 3
    });
    run(&mut world.client(&get("s3://train/1MiB-x", &[]))).ok();
}

#[test]
fn bytes_that_no_server_has_sent_by_rdma_are_told() {
    // A server that never counts.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let page = "minio_api_rdma_read_bytes_total 5\nminio_api_rdma_read_ops_total 1\n";
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = std::io::Read::read(&mut stream, &mut [0; 1024]).unwrap();
            let length = page.len();
            let _ = write!(
                stream,
                "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{page}"
            );
        }
    });
    let world = World::new();
    let own = &world.sim.url()["http://".len()..];
    for (servers, is_told) in [(own, false), (&silent, true)] {
        let checked = [
            "--fabric",
            "loopback",
            "--check-share",
            "100ms",
            "--server-metrics",
        ];
        let args: Vec<_> = checked.iter().copied().chain([servers]).collect();
        let mut host = world.host(&args);
        let get = [
            "get",
            "s3://train/1MiB-x",
            "-o",
            "/dev/null",
            "--rdma",
            "require",
        ];
        let read = || run(&mut world.client(&get)).ok();
        match is_told {
            // What is read before the first look does not count.
            true => eventually("it is told", || {
                read();
                host.told()
                    .contains("were not sent by RDMA, as the servers count")
            }),
            false => (0..5).for_each(|_| drop(read())),
        }
        host.signal(Signal::TERM);
        assert!(host.ended().success());
        let told = host.told().contains("were not sent by RDMA");
        assert_eq!(told, is_told, "{}", host.told());
    }
    let with_token = ["--check-share", "1s", "--server-metrics", own];
    let mut with_token = world.serve(&with_token);
    with_token.env("S3ENGINE_SERVER_METRICS_TOKEN", "not\na token");
    let refused = run(&mut with_token);
    assert_eq!(refused.code, Some(3), "{}", refused.stderr);
    assert!(
        refused
            .stderr
            .contains("S3ENGINE_SERVER_METRICS_TOKEN is no token"),
        "{}",
        refused.stderr
    );
    let unnamed = run(&mut world.serve(&["--check-share"]));
    unnamed.fails(2, &["--check-share: which servers?"]);
}
