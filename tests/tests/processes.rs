//! Clients of a host service in processes of their own: stopped, forked, elsewhere, many.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use s3engine::service::{Rule, Who};
use s3engine::{ConnectOptions, Engine, Get, ListQuery, Memory, Policy, Reason};
use s3engine_tests::{
    Owner, Program, Rig, ServiceRig, block_on, fill, helper, is_untouched, own, wait_until,
};
use s3sim::{Action, Rule as Fault};

const KEY: &str = "300KiB-p";

fn client(host: &ServiceRig, what: &str, key: &str, count: Option<usize>) -> Program {
    let mut command = helper(env!("CARGO_BIN_EXE_attached"));
    let count = count.map(|count| count.to_string());
    Program::run(command.arg(host.socket()).args([what, key]).args(count))
}

fn read_through(host: &ServiceRig) {
    let mut reader = client(host, "read", KEY, Some(8));
    assert_eq!(reader.line(), "done");
    assert!(reader.ended());
}

#[test]
fn many_processes_are_one_rdma_client_with_one_registration_a_slab() {
    let host = ServiceRig::new();
    let mut readers: Vec<_> = (0..6)
        .map(|_| client(&host, "read", KEY, Some(10)))
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
fn the_end_of_a_parent_is_seen_though_its_child_keeps_the_socket() {
    let host = ServiceRig::new();
    let mut parent = client(&host, "fork", KEY, None);
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
    let mut busy = client(&host, "busy", KEY, None);
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
fn who_asks_a_service_that_is_stopped_is_told_so_in_time_and_is_served_when_it_goes_on() {
    let slow = Fault::new(Action::AnswerLate { ms: 1200 }).key("*-slow");
    let rig = Rig::new([slow]);
    let owner = Owner::new(env!("CARGO_BIN_EXE_owner"), &rig);
    let options = ConnectOptions {
        patience: Duration::from_millis(400),
        ..ConnectOptions::default()
    };
    let client = Engine::connect(&owner.socket(), options).unwrap();
    let mut buffer = client.pool().try_alloc(4096, Memory::Host).unwrap();
    fill(&mut buffer);
    // The service lives, however long the server takes.
    block_on(client.head("bench", "300KiB-slow")).unwrap();

    owner.process().signal(Signal::STOP);
    let late = [
        block_on(client.head("bench", KEY)).map(drop),
        block_on(client.list("bench", ListQuery::default()).next()).map(drop),
        block_on(client.open("bench", KEY)).map(drop),
    ];
    for error in late.map(Result::unwrap_err) {
        assert_eq!(error.reason(), Reason::ServiceLost);
        let text = error.to_string();
        assert!(text.contains("it has not answered within 400ms"), "{text}");
    }
    owner.process().signal(Signal::CONT);
    block_on(client.head("bench", KEY)).unwrap();
    assert!(is_untouched(buffer.as_slice().unwrap()), "same session");
}

#[test]
fn a_client_that_takes_no_completions_holds_up_nobody() {
    let host = ServiceRig::with(Rig::new([]), |options| options.caps.bytes = Some(8 << 20));
    let mut hoarder = client(&host, "hoard", "1MiB-h", Some(32));
    assert_eq!(hoarder.line(), "hoards");
    for _ in 0..3 {
        read_through(&host);
    }
    drop(hoarder);
    host.assert_drains();
}

#[test]
fn each_embedded_engine_is_an_rdma_client_of_its_own() {
    let host = ServiceRig::new();
    let folders: Vec<_> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
    let services: Vec<_> = folders
        .iter()
        .map(|folder| {
            let socket = folder.path().join("s.sock");
            let service = own(helper(env!("CARGO_BIN_EXE_owner")), &host.rig, &socket);
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
    let mut client = Program::run(command.arg(host.socket()).args(["busy", KEY]));
    assert_eq!(client.line(), "busy");
    drop(client);
    host.assert_drains();
}

#[test]
fn a_service_of_another_pid_namespace_does_not_see_who_its_client_is_and_serves_it() {
    let host = ServiceRig::new();
    let Some(command) = elsewhere(env!("CARGO_BIN_EXE_owner")) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s.sock");
    let _service = own(command, &host.rig, &socket);
    for _ in 0..2 {
        let mut command = helper(env!("CARGO_BIN_EXE_attached"));
        let mut client = Program::run(command.arg(&socket).args(["read", KEY, "5"]));
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
        let mut client = Program::run(&mut command);
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
