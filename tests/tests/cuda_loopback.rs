//! RDMA GETs into memory of CUDA devices: the server's process writes to the device itself.

use std::process::Command;
use std::time::Duration;

use cuda_standin::{Standin, again, role, with_standin};
use s3engine::cuda::Gpu;
use s3engine::{
    Buffer, Completion, Engine, EngineBuilder, Flags, Get, Memory, Path, Policy, PoolOptions,
    QueueOptions, Rdma, Reason, Timeouts,
};
use s3engine_tests::{
    FailingFabric, Failure, Program, Rig, assert_holds, assert_invariants, block_on, credentials,
    drain, loopback, quick_builder, wait_until,
};
use s3sim::{Action, Kind, Rule, Sim, SimOptions, content};

const KEY: &str = "300KiB-cuda";
const SIZE: u64 = 300 << 10;

fn small_slabs(builder: EngineBuilder) -> EngineBuilder {
    builder.pool(PoolOptions {
        slab_bytes: 32 << 20,
        max_cuda_bytes: Some(256 << 20),
        ..PoolOptions::default()
    })
}

fn rig(rules: impl IntoIterator<Item = Rule>) -> Rig {
    Rig::with(rules, |builder, _| small_slabs(builder))
}

fn buffer(engine: &Engine, len: u64, device: u32) -> Buffer {
    let memory = Memory::cuda(device).unwrap();
    engine.pool().try_alloc(len, memory).unwrap()
}

/// One GET of the whole of `KEY`, by RDMA or not at all.
fn get(rig: &Rig, device: u32) -> Completion {
    let buffer = buffer(&rig.engine, SIZE, device);
    rig.get(Policy::RequireRdma, Get::new("bench", KEY).into(buffer))
}

fn assert_rdma(completion: &Completion, flags: Flags) {
    let how = (completion.path(), completion.reason(), completion.flags());
    assert_eq!(
        how,
        (Path::Rdma, Reason::Ok, flags | Flags::NOT_VERIFIED),
        "{completion:?}"
    );
}

#[test]
fn objects_of_all_sizes_come_to_the_device_that_was_asked_for() {
    Standin::default().gpus(2).run(|| {
        let rig = rig([]);
        let keys = ["1-a", "4097-b", "1MiB-c", "3145733-d", "8MiB-e", "17MiB-f"];
        for device in 0..2 {
            let mut queue = rig.engine.queue(QueueOptions::default());
            for key in keys.iter().chain(&keys) {
                let size = content::size_of_key(key).unwrap();
                let buffer = buffer(&rig.engine, size, device);
                let get = Get::new("bench", *key).into(buffer);
                let nth = keys.iter().position(|other| other == key).unwrap();
                let get = get.policy(Policy::RequireRdma).user_data(nth as u64);
                queue.push(get).unwrap();
            }
            queue.submit();
            for completion in drain(&mut queue) {
                assert_invariants(&completion, Policy::RequireRdma);
                assert_rdma(&completion, Flags::empty());
                let key = keys[completion.user_data() as usize];
                assert_eq!(content::size_of_key(key), Some(completion.bytes()));
                assert_holds(&completion, key, 0);
                let uuid = Gpu::nth(device).unwrap().uuid();
                assert_eq!(completion.buffer().unwrap().memory(), Memory::Cuda(uuid));
            }
        }
        rig.assert_drains();
    });
}

#[test]
fn a_range_comes_to_its_place_and_nothing_beside_it_changes() {
    with_standin(|| {
        let rig = rig([]);
        let [mut before, inside, mut after] = std::array::from_fn(|_| buffer(&rig.engine, 8192, 0));
        before.write_from_host(0, &[7; 8192]).unwrap();
        after.write_from_host(0, &[7; 8192]).unwrap();
        let get = Get::new("bench", "64KiB-range").range(12_345, 5000);
        let completion = rig.get(Policy::RequireRdma, get.into(inside));
        assert_rdma(&completion, Flags::empty());
        assert_eq!(completion.bytes(), 5000);
        assert_holds(&completion, "64KiB-range", 12_345);
        for beside in [before, after] {
            let mut found = [0; 8192];
            beside.read_to_host(0, &mut found).unwrap();
            assert_eq!(found, [7; 8192]);
        }
    });
}

#[test]
fn a_copy_that_fails_is_an_error_of_the_server_and_the_next_one_goes_on() {
    Standin::default()
        .faults("cuMemcpyHtoDAsync_v2=1@1-3")
        .run(|| {
            let rig = rig([]);
            // After as many attempts.
            let failed = get(&rig, 0);
            assert_eq!(
                (failed.path(), failed.reason()),
                (Path::None, Reason::RdmaError)
            );
            let text = failed.error().unwrap().to_string();
            assert!(text.contains("copying to the device"), "{text}");
            let uuid = Gpu::nth(0).unwrap().uuid().to_string();
            assert!(text.contains(&uuid), "{text}");
            assert!(failed.buffer().is_some(), "answered: no late write");
            drop(failed);
            let next = get(&rig, 0);
            assert_rdma(&next, Flags::empty());
            assert_holds(&next, KEY, 0);
        });
}

#[test]
fn a_late_write_is_refused_once_the_slab_is_revoked() {
    with_standin(|| {
        let late = Rule::new(Action::WriteLate { ms: 2500 }).only(Kind::Rdma);
        let rig = Rig::with([late.count(1)], |builder, _| {
            small_slabs(builder).timeouts(Timeouts {
                rdma_base: Duration::from_millis(500),
                rdma_min_rate: 1 << 30,
                ..Timeouts::default()
            })
        });
        let completion = get(&rig, 0);
        assert_rdma(&completion, Flags::MOVED);
        assert_holds(&completion, KEY, 0);
        wait_until("the late write was refused", || {
            rig.sim.counters().late_writes_refused == 1
        });
        assert_holds(&completion, KEY, 0);
        drop(completion);
        rig.assert_drains();
        assert_eq!(rig.engine.pool().stats().ledger.unconfirmed, 0);
    });
}

#[test]
fn memory_that_no_peer_can_map_is_not_registered() {
    with_standin(|| {
        let rig = Rig::with([], |builder, folder| {
            small_slabs(builder).rdma(FailingFabric::of(folder, Failure::LegacyCuda))
        });
        let refused = get(&rig, 0);
        assert_eq!(refused.reason(), Reason::RegistrationFailed);
        let text = refused.error().unwrap().to_string();
        assert!(text.contains("cuMemAlloc"), "{text}");
    });
}

/// A server in a process of its own, which sees those devices.
fn server(folder: &std::path::Path, visible: &str) -> (Program, String) {
    let mut command: Command = again("server");
    command.env("FOLDER", folder);
    command.env("CUDA_VISIBLE_DEVICES", visible);
    let mut program = Program::run(&mut command);
    // The harness says something first, of as many lines.
    let mut lines = (0..5).map(|_| program.line());
    let url = lines.find_map(|line| Some(line.split_once("serves ")?.1.to_owned()));
    (program, url.expect("it serves"))
}

/// Serves until it is killed.
fn serve() {
    let folder = std::env::var_os("FOLDER").expect("the folder of the fabric");
    let sim = Sim::start(SimOptions {
        loopback_folder: Some(folder.into()),
        ..SimOptions::default()
    });
    let sim = sim.expect("the simulator starts");
    println!("serves {}", sim.url());
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
fn a_server_that_sees_the_devices_in_another_order_writes_to_the_right_one() {
    Standin::default().gpus(2).run(|| {
        if role().is_some() {
            return serve();
        }
        let folder = tempfile::tempdir().unwrap();
        let fabric = folder.path().join("loopback");
        let key = SimOptions::default();
        for (visible, sees) in [("1,0", true), ("1", false), ("", false)] {
            let (_server, url) = server(&fabric, visible);
            let builder = small_slabs(quick_builder(&url))
                .credentials(credentials(&key.access_key, &key.secret_key))
                .rdma(Rdma::Loopback(loopback(&fabric)));
            let engine = builder.build().unwrap();
            let get = Get::new("bench", KEY).policy(Policy::RequireRdma);
            let completion = block_on(engine.get(get.into(buffer(&engine, SIZE, 0))));
            assert_invariants(&completion, Policy::RequireRdma);
            if sees {
                assert_rdma(&completion, Flags::empty());
                assert_holds(&completion, KEY, 0);
                continue;
            }
            assert_eq!(completion.reason(), Reason::RdmaError, "{completion:?}");
            let text = completion.error().unwrap().to_string();
            let uuid = Gpu::nth(0).unwrap().uuid().to_string();
            assert!(text.contains(&uuid), "{text}");
        }
    });
}
