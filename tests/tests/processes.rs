//! Clients of a host service in processes of their own: killed, stopped, forked, many.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use s3engine::service::{Rule, Who};
use s3engine::{ConnectOptions, Engine, Get, Memory, Policy, QueueOptions, Reason};
use s3engine_tests::{PATIENCE, Rig, ServiceRig, block_on, wait_until};
use s3sim::{Action, content};

const KEY: &str = "300KiB-p";

struct Client {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Client {
    fn new(host: &ServiceRig, what: &str, key: &str, count: Option<usize>) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_attached"));
        let count = count.map(|count| count.to_string());
        Self::run(command.arg(host.socket()).args([what, key]).args(count))
    }

    fn run(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Self { child, out }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id() as i32).unwrap();
        kill_process(pid, signal).unwrap();
    }

    fn ended(mut self) -> bool {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.success();
            }
            assert!(began.elapsed() < PATIENCE, "it does not end");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read_through(host: &ServiceRig) {
    let mut reader = Client::new(host, "read", KEY, Some(8));
    assert_eq!(reader.line(), "done");
    assert!(reader.ended());
}

#[test]
fn many_processes_are_one_rdma_client_with_one_registration_a_slab() {
    let host = ServiceRig::new();
    let mut readers: Vec<_> = (0..6)
        .map(|_| Client::new(&host, "read", KEY, Some(10)))
        .collect();
    for reader in &mut readers {
        assert_eq!(reader.line(), "done");
    }
    let stats = host.rig.engine.pool().stats();
    assert_eq!(stats.ledger.registered, stats.slabs_made, "{stats:?}");
    assert_eq!(host.rig.sim.counters().rdma_clients, 1);
    drop(readers);
    host.assert_drains();
}

#[test]
fn a_client_that_is_killed_at_any_moment_leaves_nothing_behind() {
    let slow = s3sim::Rule::new(Action::AnswerLate { ms: 50 }).probability(0.3, 7);
    let host = ServiceRig::with(Rig::new([slow]), |_| {});
    read_through(&host);
    let fds = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    host.assert_drains();
    let before = fds();
    for nth in 0..12 {
        let mut busy = Client::new(&host, "busy", KEY, None);
        if nth % 3 > 0 {
            assert_eq!(busy.line(), "busy");
        }
        std::thread::sleep(std::time::Duration::from_millis(nth * 7 % 40));
        busy.signal(Signal::KILL);
        drop(busy);
    }
    host.assert_drains();
    wait_until("descriptors are as before", || fds() <= before);
    read_through(&host);
    host.assert_drains();
}

#[test]
fn the_end_of_a_parent_is_seen_though_its_child_keeps_the_socket() {
    let host = ServiceRig::new();
    let mut parent = Client::new(&host, "fork", KEY, None);
    let child: i32 = parent.line().parse().unwrap();
    wait_until("it reads", || {
        host.service()
            .clients()
            .iter()
            .any(|client| client.leased > 0)
    });
    parent.signal(Signal::KILL);
    host.assert_drains();
    let child = Pid::from_raw(child).unwrap();
    assert!(kill_process(child, Signal::KILL).is_ok(), "the child lives");
}

#[test]
fn a_client_that_is_stopped_holds_up_nobody() {
    let host = ServiceRig::new();
    let mut busy = Client::new(&host, "busy", KEY, None);
    assert_eq!(busy.line(), "busy");
    busy.signal(Signal::STOP);
    for _ in 0..3 {
        read_through(&host);
    }
    busy.signal(Signal::CONT);
    busy.signal(Signal::KILL);
    drop(busy);
    host.assert_drains();
}

#[test]
fn a_client_that_takes_no_completions_holds_up_nobody() {
    let host = ServiceRig::with(Rig::new([]), |options| options.caps.bytes = Some(8 << 20));
    let mut hoarder = Client::new(&host, "hoard", "1MiB-h", Some(32));
    assert_eq!(hoarder.line(), "hoards");
    for _ in 0..3 {
        read_through(&host);
    }
    drop(hoarder);
    host.assert_drains();
}

/// A service in a process of its own, over the rig's simulator.
fn owner(host: &ServiceRig, socket: &Path, fabric: &Path) -> Client {
    let mut command = Command::new(env!("CARGO_BIN_EXE_owner"));
    own(&mut command, host, socket, fabric)
}

fn own(command: &mut Command, host: &ServiceRig, socket: &Path, fabric: &Path) -> Client {
    let sim = &host.rig.sim;
    command.arg(socket).arg(sim.url());
    command
        .args([sim.access_key(), sim.secret_key()])
        .arg(fabric);
    let mut owner = Client::run(command.stdin(Stdio::piped()));
    assert_eq!(owner.line(), "serves");
    owner
}

#[test]
fn a_service_that_is_killed_at_any_moment_loses_its_clients_work_and_the_next_one_goes_on() {
    let slow = s3sim::Rule::new(Action::AnswerLate { ms: 30 }).probability(0.5, 3);
    let host = ServiceRig::with(Rig::new([slow]), |_| {});
    let folder = tempfile::tempdir().unwrap();
    let (socket, fabric) = (folder.path().join("s.sock"), folder.path().join("fabric"));
    let mut service = owner(&host, &socket, &fabric);
    let client = Engine::connect(&socket, ConnectOptions::default()).unwrap();
    let mut queue = client.queue(QueueOptions { capacity: 32 });
    for nth in 0..8 {
        for round in 0..16 {
            let get = Get::new("bench", KEY);
            let get = match round % 2 {
                0 => get,
                _ => get.into(
                    client
                        .pool()
                        .alloc(300 << 10, Memory::Host, PATIENCE)
                        .unwrap(),
                ),
            };
            queue.push(get).unwrap();
        }
        queue.submit();
        std::thread::sleep(std::time::Duration::from_millis(nth * 9));
        service.signal(Signal::KILL);
        drop(service);
        let mut ends = 0;
        while let Some(end) = queue.next(PATIENCE).unwrap() {
            match end.is_ok() {
                // What had come before may be unreadable already: its memory died with the service.
                true => assert!(
                    end.data()
                        .is_none_or(|data| { content::verify(KEY, 0, 0, data).is_ok() })
                ),
                false => assert_eq!(end.reason(), Reason::ServiceLost, "{end:?}"),
            }
            ends += 1;
        }
        assert_eq!(ends, 16);
        service = owner(&host, &socket, &fabric);
        let back = block_on(client.get(Get::new("bench", KEY)));
        content::verify(KEY, 0, 0, back.data().unwrap()).unwrap();
    }
}

#[test]
fn each_embedded_engine_is_an_rdma_client_of_its_own() {
    let host = ServiceRig::new();
    let folders: Vec<_> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
    let services: Vec<_> = folders
        .iter()
        .map(|folder| {
            let socket = folder.path().join("s.sock");
            let service = owner(&host, &socket, &host.rig.fabric_folder());
            (socket, service)
        })
        .collect();
    for (socket, _) in &services {
        let client = Engine::connect(socket, ConnectOptions::default()).unwrap();
        let end = block_on(client.get(Get::new("bench", KEY).policy(Policy::RequireRdma)));
        assert!(end.is_ok(), "{end:?}");
    }
    assert_eq!(host.rig.sim.counters().rdma_clients, 3);
}

/// A command that runs a program in a pid namespace of its own; `None` where the system allows none.
fn elsewhere(program: &str) -> Option<Command> {
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--kill-child"]);
        command
    };
    let allowed = unshare().arg("true").stderr(Stdio::null()).status();
    if !allowed.is_ok_and(|status| status.success()) {
        eprintln!("skipped: no pid namespace can be made here");
        return None;
    }
    let mut command = unshare();
    command.arg(program);
    Some(command)
}

#[test]
fn a_client_of_another_pid_namespace_is_served_and_its_end_is_seen() {
    let host = ServiceRig::new();
    let Some(mut command) = elsewhere(env!("CARGO_BIN_EXE_attached")) else {
        return;
    };
    let mut client = Client::run(command.arg(host.socket()).args(["busy", KEY]));
    assert_eq!(client.line(), "busy");
    drop(client);
    host.assert_drains();
}

#[test]
fn a_service_of_another_pid_namespace_does_not_see_who_its_client_is_and_serves_it() {
    let host = ServiceRig::new();
    let Some(mut command) = elsewhere(env!("CARGO_BIN_EXE_owner")) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s.sock");
    let _service = own(&mut command, &host, &socket, &host.rig.fabric_folder());
    for _ in 0..2 {
        let mut command = Command::new(env!("CARGO_BIN_EXE_attached"));
        let mut client = Client::run(command.arg(&socket).args(["read", KEY, "5"]));
        assert_eq!(client.line(), "done");
        assert!(client.ended());
    }
}

/// A user that is neither this one nor the one who stands for nobody.
const OTHER: u32 = 54321;

#[test]
fn another_user_is_refused_until_allowed_and_then_reads_only_what_a_rule_says() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can run a client as another user");
        return;
    }
    let host = ServiceRig::new();
    let program = host.open_to_others(Path::new(env!("CARGO_BIN_EXE_attached")));
    let other = |key: &str| {
        let mut command = Command::new(&program);
        command.arg(host.socket()).args(["read", key, "3"]);
        command.uid(OTHER).gid(OTHER).current_dir("/");
        let mut client = Client::run(&mut command);
        let said = client.line();
        said == "done" && client.ended()
    };
    assert!(!other(KEY), "nobody allowed it");
    let only = Rule {
        who: Who::Uid(OTHER),
        endpoint: None,
        bucket: "bench".to_owned(),
        prefix: "300KiB-".to_owned(),
    };
    host.service().reload(vec![Who::Uid(OTHER)], vec![only]);
    assert!(other(KEY), "it may attach, and read this");
    assert!(!other("100KiB-p"), "no rule says so");
    host.service().reload(Vec::new(), Vec::new());
    assert!(!other(KEY), "nor any more");
    host.assert_drains();
}
