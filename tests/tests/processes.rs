//! Clients of a host service in processes of their own: killed, stopped, forked, many.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use s3engine_tests::{PATIENCE, Rig, ServiceRig, wait_until};
use s3sim::{Action, Rule};

const KEY: &str = "300KiB-p";

struct Client {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Client {
    fn new(host: &ServiceRig, what: &str, key: &str, count: Option<usize>) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_attached"))
            .arg(host.socket())
            .args([what, key])
            .args(count.map(|count| count.to_string()))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
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
    let slow = Rule::new(Action::AnswerLate { ms: 50 }).probability(0.3, 7);
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
