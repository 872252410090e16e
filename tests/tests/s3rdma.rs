//! The fabric of MinIO's library over a stand-in for it: what fails there is told apart, stays bounded, and is nobody
//! else's; rails are chosen, taken over and told about.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use cuda_standin::with_standin;
use fabric_standin::Copied;
use s3engine::{Flags, Get, Memory, Path as Way, Policy, PoolOptions, Rdma, Reason, S3rdmaOptions};
use s3engine_tests::{PATIENCE, Rig, ServiceRig, block_on, wait_until};
use s3sim::{Action, Kind, Rule, content};
use tempfile::TempDir;

const KEY: &str = "300KiB-x";
const MIB: u64 = 1 << 20;
const TWO: &str = "mlx5_0@127.0.0.2,mlx5_1@127.0.0.3";

/// A library of a test's own, and an engine that uses it.
struct Setup {
    rig: Rig,
    standin: Copied,
    _folder: TempDir,
}

fn setup(
    rules: impl IntoIterator<Item = Rule>,
    devices: &[&str],
    shape: impl FnOnce(Copied) -> Copied,
    options: impl FnOnce(&mut S3rdmaOptions),
) -> Setup {
    let folder = tempfile::tempdir().unwrap();
    let library = shape(s3rdma_standin::copied(folder.path()).noting_calls());
    let mut s3rdma = S3rdmaOptions {
        file: Some(library.path().into()),
        devices: devices.iter().map(|&name| name.into()).collect(),
        ..S3rdmaOptions::default()
    };
    options(&mut s3rdma);
    let mut placed = None;
    let rig = Rig::with(rules, |builder, loopback| {
        placed = Some(library.loopback(loopback));
        builder.rdma(Rdma::S3rdma(s3rdma)).pool(PoolOptions {
            slab_bytes: 4 << 20,
            max_bytes: Some(32 << 20),
            revoke_timeout: PATIENCE,
            ..PoolOptions::default()
        })
    });
    Setup {
        rig,
        standin: placed.unwrap(),
        _folder: folder,
    }
}

fn with_faults(faults: &str) -> Setup {
    setup([], &["mlx5_0"], |library| library.faults(faults), |_| {})
}

/// The same, where a call may take a tenth of a second.
fn hanging(faults: &str) -> Setup {
    let brief = |options: &mut S3rdmaOptions| options.call_timeout = Duration::from_millis(100);
    setup([], &["mlx5_0"], |library| library.faults(faults), brief)
}

impl Setup {
    /// That RDMA fails for this reason, in these words, where it is required; and that all goes by HTTP for the same
    /// reason where it is not.
    fn assert_fails(&self, reason: Reason, words: &str) {
        let refused = self.rig.get_whole(Policy::RequireRdma, KEY);
        let error = refused.error().unwrap();
        assert_eq!(
            (refused.path(), refused.reason()),
            (Way::None, reason),
            "{error:#}"
        );
        let told = format!("{error:#}");
        assert!(told.contains(words), "{told}");
        assert!(told.len() < 2000, "{} characters", told.len());
        drop(refused);
        let other = self.rig.get_whole(Policy::PreferRdma, KEY);
        assert!(other.is_ok(), "{:?}", other.error());
        assert_eq!((other.path(), other.reason()), (Way::Http, reason));
        let fallback = other.fallback().unwrap();
        assert!(fallback.detail.contains(words), "{}", fallback.detail);
        content::verify(KEY, 0, 0, other.data().unwrap()).unwrap();
        drop(other);
        self.rig.assert_drains();
    }

    fn assert_works(&self) {
        let done = self.rig.get_whole(Policy::RequireRdma, KEY);
        assert!(done.is_ok(), "{:?}", done.error());
        assert_eq!((done.path(), done.reason()), (Way::Rdma, Reason::Ok));
        assert_eq!(done.flags(), Flags::NOT_VERIFIED);
        content::verify(KEY, 0, 0, done.data().unwrap()).unwrap();
    }
}

#[test]
fn each_fault_of_the_library_has_its_own_reason_and_its_words() {
    for (faults, reason, words) in [
        ("version=garbage", Reason::FabricInitFailed, "has version"),
        ("version=endless", Reason::FabricInitFailed, "has version"),
        (
            "client_init=fails",
            Reason::FabricInitFailed,
            "mlx5_0: s3rdma_client_init failed: no RDMA device with an ACTIVE port",
        ),
        (
            "register=12",
            Reason::RegistrationFailed,
            "for 4194304 bytes: Cannot allocate memory",
        ),
        (
            "register=silent",
            Reason::RegistrationFailed,
            "the library gave no reason",
        ),
        ("register=endless", Reason::RegistrationFailed, "xxxxxxxx"),
        ("get_token=fails", Reason::TokenFailed, "no usable rail has"),
        ("get_token=garbage", Reason::TokenFailed, "exactly 81 bytes"),
        ("get_token=endless", Reason::TokenFailed, "exactly 81 bytes"),
    ] {
        println!("{faults}");
        with_faults(faults).assert_fails(reason, words);
    }
}

#[test]
fn a_call_that_hangs_is_named_and_bounded_and_the_engine_lives_on() {
    for (faults, reason, words) in [
        (
            "client_init=hangs",
            Reason::FabricInitFailed,
            "s3rdma_client_init has not returned within 0.1 s",
        ),
        (
            "register=hangs",
            Reason::RegistrationFailed,
            "s3rdma_client_register has not returned within 0.1 s",
        ),
    ] {
        println!("{faults}");
        let s = hanging(faults);
        s.assert_fails(reason, words);
        s.standin.release();
    }
    let s = hanging("get_token=hangs");
    let refused = s.rig.get_whole(Policy::RequireRdma, KEY);
    assert_eq!(refused.reason(), Reason::TokenFailed);
    let told = format!("{:#}", refused.error().unwrap());
    let words = "s3rdma_client_get_token has not returned within 0.1 s";
    assert!(told.contains(words), "{told}");
    drop(refused);
    // It is not waited for again.
    s.assert_fails(Reason::RailDown, words);
    s.standin.release();
}

#[test]
fn what_was_registered_too_late_is_not_left_registered() {
    let s = hanging("register#1=hangs");
    s.assert_fails(Reason::RegistrationFailed, "has not returned");
    s.standin.release();
    wait_until("it is deregistered", || s.standin.count("deregister") == 1);
}

#[test]
fn a_registration_that_fails_once_is_tried_once_more() {
    let s = with_faults("register#1=11");
    s.assert_works();
    assert_eq!(s.rig.engine.pool().stats().ledger.retried, 1);
    assert_eq!(s.standin.count("register"), 2);
}

#[test]
fn memory_is_registered_once_however_many_gets_there_are() {
    let s = setup(
        [],
        &["mlx5_0", "mlx5_1"],
        |library| library.devices(TWO),
        |_| {},
    );
    for _ in 0..20 {
        s.assert_works();
    }
    let stats = s.rig.engine.pool().stats();
    assert_eq!(s.standin.count("register") as u64, stats.slabs_made);
    assert_eq!(stats.ledger.registered, stats.slabs_made);
    assert_eq!(s.standin.count("get_token"), 20);
    assert_eq!(s.standin.count("free_token"), 20);
}

#[test]
fn segments_spread_over_rails_that_are_equally_near() {
    let s = setup(
        [],
        &["mlx5_0", "mlx5_1"],
        |library| library.devices(TWO),
        |_| {},
    );
    let get = |buffer| {
        Get::new("bench", "4MiB-x")
            .into(buffer)
            .policy(Policy::RequireRdma)
    };
    let buffers: Vec<_> = (0..4).map(|_| s.rig.buffer(4 * MIB)).collect();
    let done: Vec<_> = buffers
        .into_iter()
        .map(|buffer| s.rig.get(Policy::RequireRdma, get(buffer)))
        .collect();
    assert!(done.iter().all(|done| done.path() == Way::Rdma));
    let rails = s.rig.engine.rails();
    let of = |rail: &s3engine::Rail| (rail.name.to_string(), rail.registered, rail.bytes);
    let rails: Vec<_> = rails.iter().map(of).collect();
    let each = |name: &str| (name.to_owned(), 2, 8 * MIB);
    assert_eq!(rails, [each("mlx5_0"), each("mlx5_1")]);
}

#[test]
fn a_rail_that_the_library_thinks_broken_is_taken_over_by_another() {
    let broken = [Rule::new(Action::RdmaTransferFailed)
        .only(Kind::Rdma)
        .count(1)];
    let s = setup(
        broken,
        &["mlx5_0", "mlx5_1"],
        // Whichever is first: after a failure it has no healthy device.
        |library| library.devices(TWO).faults("healthy_nic_count#1=0"),
        |_| {},
    );
    let failed = s.rig.get_whole(Policy::PreferRdma, KEY);
    assert!(failed.is_ok(), "{:?}", failed.error());
    drop(failed);
    let down = || {
        s.rig
            .engine
            .rails()
            .into_iter()
            .filter(|rail| rail.down.is_some())
    };
    wait_until("a rail is down", || down().count() == 1);
    let first = down().next().unwrap();
    assert_eq!(first.failed, 1);
    let why = first.down.unwrap();
    assert!(
        why.contains("the library thinks it broken, after 1 failed"),
        "{why}"
    );
    let before = s.standin.count("register");
    for _ in 0..3 {
        s.assert_works();
    }
    let taken_over = s.standin.count("register") - before;
    assert_eq!(taken_over, 1, "once, and not for each GET");
    let tokens = s.standin.calls();
    let tokens = tokens
        .iter()
        .filter(|(_, function, _)| function == "get_token");
    let of: HashSet<_> = tokens.map(|(_, _, device)| device.as_str()).collect();
    assert_eq!(of.len(), 2, "{of:?}");
}

#[test]
fn without_a_rail_that_is_up_that_is_the_reason() {
    let broken = [Rule::new(Action::RdmaTransferFailed)
        .only(Kind::Rdma)
        .count(1)];
    let s = setup(
        broken,
        &["mlx5_0"],
        |library| library.faults("healthy_nic_count=0"),
        |_| {},
    );
    drop(s.rig.get_whole(Policy::PreferRdma, KEY));
    wait_until("it is down", || s.rig.engine.rails()[0].down.is_some());
    s.assert_fails(Reason::RailDown, "mlx5_0: the library thinks it broken");
}

#[test]
fn a_rail_comes_back_when_it_has_cooled_down() {
    let broken = [Rule::new(Action::RdmaTransferFailed)
        .only(Kind::Rdma)
        .count(1)];
    let s = setup(
        broken,
        &["mlx5_0"],
        |library| library.faults("healthy_nic_count=0"),
        |options| options.cool_down = Duration::from_millis(50),
    );
    drop(s.rig.get_whole(Policy::PreferRdma, KEY));
    wait_until("the library was told", || {
        s.standin.count("healthy_nic_count") == 1
    });
    wait_until("it is up again", || {
        s.rig.engine.rails()[0].down.is_none() && s.rig.get_whole(Policy::RequireRdma, KEY).is_ok()
    });
}

#[test]
fn what_says_nothing_of_a_rail_is_not_told_to_the_library() {
    for action in [
        Action::DeclineWithError,
        Action::DeclineWithBody,
        Action::TokenRejected,
        Action::IgnoreToken,
        Action::Reset { after: None },
    ] {
        let name = format!("{action:?}");
        let rule = Rule::new(action).only(Kind::Rdma);
        let s = setup([rule], &["mlx5_0"], |library| library, |_| {});
        drop(s.rig.get_whole(Policy::PreferRdma, KEY));
        drop(s.rig.get_whole(Policy::RequireRdma, KEY));
        s.rig.assert_drains();
        assert_eq!(s.standin.count("report_token_failure"), 0, "{name}");
        assert_eq!(s.rig.engine.rails()[0].failed, 0, "{name}");
    }
}

#[test]
fn a_request_begins_at_the_address_of_the_rail_that_it_names() {
    // Named by its address, as the library allows.
    let s = setup([], &["127.0.0.3"], |library| library.devices(TWO), |_| {});
    s.assert_works();
    let rails = s.rig.engine.rails();
    assert_eq!(rails[0].address, Some("127.0.0.3".parse().unwrap()));
    let url = s.rig.sim.url();
    let port: u16 = url.rsplit(':').next().unwrap().parse().unwrap();
    // Local and remote address, as hexadecimal numbers of this machine's order.
    let from = format!("{:08X}:", u32::from_ne_bytes([127, 0, 0, 3]));
    let to = format!("{:08X}:{port:04X}", u32::from_ne_bytes([127, 0, 0, 1]));
    let sockets = fs::read_to_string(Path::new("/proc/net/tcp")).unwrap();
    let ours = |line: &&str| {
        let mut words = line.split_whitespace().skip(1);
        words.next().is_some_and(|local| local.starts_with(&from))
            && words.next() == Some(to.as_str())
    };
    assert!(sockets.lines().any(|line| ours(&line)), "{sockets}");
}

#[test]
fn a_device_that_is_not_there_is_left_out_and_none_is_a_failure() {
    let s = setup([], &["mlx5_0", "mlx5_9"], |library| library, |_| {});
    s.assert_works();
    assert_eq!(s.rig.engine.rails().len(), 1);
    let none = setup([], &["mlx5_8", "192.0.2.1"], |library| library, |_| {});
    let words = "192.0.2.1: no RDMA device found for IP 192.0.2.1";
    none.assert_fails(Reason::FabricInitFailed, words);
}

#[test]
fn the_clients_of_the_library_end_with_the_engine() {
    let s = setup(
        [],
        &["mlx5_0", "mlx5_1"],
        |library| library.devices(TWO),
        |_| {},
    );
    s.assert_works();
    let Setup {
        rig,
        standin: library,
        _folder,
    } = s;
    drop(rig);
    wait_until("both are freed", || library.count("client_free") == 2);
    assert_eq!(library.count("deregister"), library.count("register"));
}

#[test]
fn device_memory_without_peermem_is_refused_and_the_reason_says_what_lacks() {
    with_standin(|| {
        if Path::new("/sys/module/nvidia_peermem").exists() {
            println!("skipped: nvidia_peermem is loaded");
            return;
        }
        let s = setup([], &["mlx5_0"], |library| library, |_| {});
        let get = || {
            let buffer = s.rig.buffer_of(300 << 10, Memory::cuda(0).unwrap());
            Get::new("bench", KEY).into(buffer)
        };
        let refused = s.rig.get(Policy::RequireRdma, get());
        assert_eq!(refused.reason(), Reason::RegistrationFailed);
        let told = format!("{:#}", refused.error().unwrap());
        for words in ["no rail could register", "nvidia_peermem is not loaded"] {
            assert!(told.contains(words), "{told}");
        }
        drop(refused);
        let other = s.rig.get(Policy::PreferRdma, get());
        assert_eq!(
            (other.path(), other.reason()),
            (Way::Http, Reason::RegistrationFailed)
        );
        assert!(other.is_ok(), "{:?}", other.error());
        drop(other);
        s.rig.assert_drains();
    });
}

#[test]
fn clients_of_a_service_cost_a_registration_a_slab_and_none_a_get() {
    let s = setup([], &["mlx5_0"], |library| library, |_| {});
    let Setup {
        rig,
        standin: library,
        _folder,
    } = s;
    let service = ServiceRig::with(rig, |_| {});
    let clients: Vec<_> = (0..3).map(|_| service.client()).collect();
    for _ in 0..10 {
        for client in &clients {
            let buffer = client.pool().try_alloc(300 << 10, Memory::Host).unwrap();
            let get = Get::new("bench", KEY)
                .into(buffer)
                .policy(Policy::RequireRdma);
            let done = block_on(client.get(get));
            assert_eq!(done.path(), Way::Rdma, "{:?}", done.error());
        }
    }
    let stats = service.rig.engine.pool().stats();
    assert_eq!(stats.slabs_made, 3, "one for each client");
    assert_eq!(stats.ledger.registered, 3);
    assert_eq!(library.count("register"), 3);
    assert_eq!(library.count("client_init"), 1, "one client of the fabric");
}
