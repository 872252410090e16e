//! What the clients of one user may take together, and that each client pays for what it asks.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::thread;

use s3engine::service::{Caps, Rule, Who};
use s3engine::{
    Buffer, Engine, Get, ListQuery, Memory, MemoryBound, Policy, PoolError, Queue, QueueOptions,
};
use s3engine_tests::{PATIENCE, Rig, ServiceRig, block_on, wait_until};
use s3sim::{Action, Kind};

const KEY: &str = "300KiB-c";

/// What the server never answers.
const HELD: &str = "1MiB-held";

/// A user that is neither this one nor the one who stands for nobody.
const OTHER: u32 = 54322;

/// A service that another user may read everything of.
fn host(shape: impl FnOnce(&mut Caps)) -> ServiceRig {
    let held = s3sim::Rule::new(Action::NeverAnswer)
        .only(Kind::Http)
        .key("*held");
    ServiceRig::with(Rig::new([held]), |options| {
        options.allow = vec![Who::Uid(OTHER)];
        options.rules = vec![Rule {
            who: Who::Uid(OTHER),
            endpoint: None,
            bucket: "bench".to_owned(),
            prefix: String::new(),
        }];
        shape(&mut options.caps);
    })
}

/// Asserts that a client of the other user reads as if it were alone.
fn assert_another_user_reads(host: &ServiceRig) {
    if !rustix::process::geteuid().is_root() {
        eprintln!("not looked at: only root can run a client as another user");
        return;
    }
    let program = host.open_to_others(Path::new(env!("CARGO_BIN_EXE_attached")));
    let mut command = Command::new(program);
    command.arg(host.socket()).args(["read", KEY, "3"]);
    let output = command.uid(OTHER).gid(OTHER).current_dir("/").output();
    let output = output.unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
}

fn alloc(client: &Engine, len: u64) -> Buffer {
    client.pool().try_alloc(len, Memory::Host).unwrap()
}

fn submitted(client: &Engine, keys: &[&str]) -> Queue {
    let mut queue = client.queue(QueueOptions { capacity: 8 });
    for key in keys {
        let get = Get::new("bench", *key).into(alloc(client, 1 << 20));
        queue.push(get.policy(Policy::Http)).unwrap();
    }
    queue.submit();
    queue
}

#[test]
fn clients_of_one_user_share_its_memory_and_the_error_says_so() {
    let host = host(|caps| caps.bytes_per_uid = Some(8 << 20));
    let (one, other) = (host.client(), host.client());
    let held = alloc(&one, 6 << 20);
    let error = other.pool().try_alloc(4 << 20, Memory::Host).unwrap_err();
    let full = matches!(
        error,
        PoolError::WouldBlock {
            leased: 0x60_0000,
            max_bytes: 0x80_0000,
            bound: MemoryBound::Group,
            ..
        }
    );
    assert!(full, "{error}");
    assert_another_user_reads(&host);
    drop(held);
    let room = other.pool().alloc(4 << 20, Memory::Host, PATIENCE);
    assert!(room.is_ok(), "{room:?}");
}

#[test]
fn clients_of_one_user_share_its_bytes_of_queues_and_the_refusal_says_so() {
    let host = host(|caps| caps.queue_bytes_per_uid = Some(5 << 20));
    let (one, other) = (host.client(), host.client());
    let first = one.queue(QueueOptions { capacity: 1024 });
    let end = |client: &Engine| {
        let mut queue = client.queue(QueueOptions { capacity: 1024 });
        queue.push(Get::new("bench", KEY)).unwrap();
        queue.submit();
        queue.next(PATIENCE).unwrap().unwrap()
    };
    let refused = end(&other);
    let text = refused.error().unwrap().to_string();
    let uid = rustix::process::geteuid().as_raw();
    let words = format!("the queues of uid {uid} have ");
    assert!(
        text.contains(&words) && text.contains(" of 5242880 bytes"),
        "{text}"
    );
    assert_another_user_reads(&host);
    drop(first);
    wait_until("it has room again", || end(&other).is_ok());
}

#[test]
fn clients_of_one_user_share_its_requests_and_bytes_under_way() {
    let caps: [fn(&mut Caps); 2] = [
        |caps| caps.requests_per_uid = Some(2),
        |caps| caps.in_flight_bytes_per_uid = Some(2 << 20),
    ];
    for shape in caps {
        let host = host(shape);
        let (one, other) = (host.client(), host.client());
        let first = submitted(&one, &[HELD]);
        let _second = submitted(&other, &[HELD, HELD]);
        let asked = || host.rig.sim.counters().faults;
        wait_until("two are under way", || asked() == 2);
        assert_another_user_reads(&host);
        assert_eq!(asked(), 2, "the third waits for one of the two");
        drop(first);
        wait_until("its turn has come", || asked() == 3);
    }
}

#[test]
fn heads_and_lists_are_requests_of_the_client_that_asks() {
    let host = host(|caps| caps.requests = Some(1));
    let (one, other) = (host.client(), host.client());
    let requests = || host.rig.sim.counters().requests;
    let held = submitted(&one, &[HELD]);
    wait_until("it is under way", || requests() == 1);
    let asks: [fn(&Engine) -> bool; 3] = [
        |client| block_on(client.head("bench", KEY)).is_ok(),
        |client| block_on(client.open("bench", KEY)).is_ok(),
        |client| block_on(client.list("bench", ListQuery::default()).next()).is_ok(),
    ];
    let waiting = asks.map(|ask| {
        let client = one.clone();
        thread::spawn(move || ask(&client))
    });
    let of_one = || {
        let clients = host.service().clients();
        clients.iter().map(|client| client.outstanding).max()
    };
    wait_until("all three have been asked for", || of_one() == Some(4));
    assert!(asks.iter().all(|ask| ask(&other)));
    assert_eq!(requests(), 1 + 3, "only the other client's were made");
    drop(held);
    assert!(waiting.into_iter().all(|asked| asked.join().unwrap()));
}
