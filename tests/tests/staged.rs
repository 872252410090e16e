//! GETs over HTTP into memory of CUDA devices: what arrives, what is said of it, and what happens when the driver
//! fails. On a stand-in for the driver.

use std::collections::HashMap;
use std::time::Duration;

use cuda_standin::{Standin, with_standin};
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use s3engine::cuda::STAGING_CHUNK;
use s3engine::{Buffer, ErrorKind, Flags, Get, Memory, Path, Policy, PoolOptions, Rdma, Reason};
use s3engine_tests::{Rig, assert_holds, assert_invariants, block_on, drain, wait_until};
use s3sim::{Action, Kind, Rule, content};

const CHUNK: u64 = STAGING_CHUNK as u64;
const HALF: u64 = CHUNK / 2;
/// As much of each device as all tests need at once.
const DEVICE: u64 = 32 * HALF;
const STAGING: u64 = 3 * CHUNK;

/// Parts of a chunk and a half.
fn rig(rules: impl IntoIterator<Item = Rule>) -> Rig {
    Rig::with(rules, |builder, _| {
        let pool = PoolOptions {
            slab_bytes: 4 * HALF,
            max_bytes: Some(32 * HALF),
            max_cuda_bytes: Some(DEVICE),
            staging_bytes: STAGING,
            ..PoolOptions::default()
        };
        builder.pool(pool).part_sizes(3 * HALF, 3 * HALF)
    })
}

fn buffer(rig: &Rig, len: u64, device: u32) -> Buffer {
    let memory = Memory::cuda(device).unwrap();
    let patience = Duration::from_secs(30);
    rig.engine.pool().alloc(len, memory, patience).unwrap()
}

fn whole(rig: &Rig, key: &str, device: u32) -> Get {
    let size = content::size_of_key(key).unwrap();
    Get::new("bench", key).into(buffer(rig, size, device))
}

#[test]
fn objects_of_all_sizes_arrive_and_only_those_on_a_device_are_staged() {
    with_standin(|| {
        let rig = rig([]);
        for size in [
            1,
            4095,
            300 << 10,
            CHUNK,
            CHUNK + 1,
            3 * HALF,
            9 * HALF,
            20 * HALF + 7,
        ] {
            let key = format!("{size}-size");
            let completion = rig.get(Policy::Http, whole(&rig, &key, 0));
            assert_eq!(
                (completion.path(), completion.reason(), completion.flags()),
                (
                    Path::Http,
                    Reason::Policy,
                    Flags::HTTP_INTENDED | Flags::STAGED
                ),
                "{completion:?}"
            );
            assert_eq!(completion.bytes(), size);
            assert_holds(&completion, &key, 0);
            let completion = rig.get_whole(Policy::Http, &key);
            assert_eq!(completion.flags(), Flags::HTTP_INTENDED);
        }
        let key = "18MiB-range";
        let range = Get::new("bench", key)
            .range(1001, 5 * HALF)
            .into(buffer(&rig, 5 * HALF, 1));
        assert_holds(&rig.get(Policy::Http, range), key, 1001);
        let empty = rig.get(
            Policy::Http,
            Get::new("bench", "0-empty").into(buffer(&rig, 9, 0)),
        );
        assert!(
            empty.is_ok() && !empty.flags().contains(Flags::STAGED),
            "{empty:?}"
        );
        drop(empty);
        rig.assert_drains();
    });
}

#[test]
fn many_at_once_on_two_devices_share_what_there_is_to_stage_in() {
    with_standin(|| {
        let rig = rig([]);
        let mut queue = rig.queue();
        let mut keys = HashMap::new();
        for nth in 0..120_u64 {
            let size = [900, 70_000, 300_000, CHUNK, 1_500_000][nth as usize % 5];
            let key = format!("{size}-many{nth}");
            // Those before may still have the memory.
            let get = loop {
                let memory = Memory::cuda(nth as u32 % 2).unwrap();
                match rig.engine.pool().try_alloc(size, memory) {
                    Ok(buffer) => break Get::new("bench", &*key).into(buffer),
                    Err(_) => check_all(&mut queue, &mut keys),
                }
            };
            let ticket = queue.push(get.policy(Policy::Http)).unwrap();
            keys.insert(ticket, key);
            queue.submit();
        }
        check_all(&mut queue, &mut keys);
        assert!(keys.is_empty());
        rig.assert_drains();
    });
}

fn check_all(queue: &mut s3engine::Queue, keys: &mut HashMap<s3engine::Ticket, String>) {
    for completion in drain(queue) {
        assert_invariants(&completion, Policy::Http);
        let key = keys.remove(&completion.ticket()).unwrap();
        assert_eq!(completion.bytes(), content::size_of_key(&key).unwrap());
        assert_holds(&completion, &key, 0);
    }
}

#[test]
fn a_body_that_breaks_off_goes_on_from_what_is_there() {
    with_standin(|| {
        for action in [
            Action::Cut {
                after: Some(2_500_000),
            },
            Action::Reset {
                after: Some(2_500_000),
            },
        ] {
            let rig = rig([Rule::new(action).count(2)]);
            let completion = rig.get(Policy::Http, whole(&rig, "6MiB-again", 0));
            assert!(completion.flags().contains(Flags::STAGED), "{completion:?}");
            assert_holds(&completion, "6MiB-again", 0);
            assert_eq!(rig.sim.counters().requests, 3);
        }
        // So little that it counts as nothing.
        let rig = rig([Rule::new(Action::Cut { after: Some(2500) })]);
        let failed = rig.get(Policy::Http, whole(&rig, "6MiB-never", 0));
        assert_eq!(
            (failed.path(), failed.reason()),
            (Path::None, Reason::HttpError)
        );
        assert!(
            failed.into_buffer().is_some(),
            "nothing is under way any more"
        );
        rig.assert_drains();
    });
}

#[test]
fn an_object_in_the_body_of_an_rdma_answer_is_staged_too() {
    with_standin(|| {
        let rig = rig([Rule::new(Action::DeclineWithBody).only(Kind::Rdma)]);
        let completion = rig.get(Policy::PreferRdma, whole(&rig, "10MiB-declined", 0));
        assert_eq!(
            (completion.path(), completion.reason(), completion.flags()),
            (
                Path::Http,
                Reason::ServerDeclined,
                Flags::FELL_BACK | Flags::STAGED
            ),
            "{completion:?}"
        );
        assert_holds(&completion, "10MiB-declined", 0);
        let rig = self::rig([Rule::new(Action::DeclineWithBody).only(Kind::Rdma).count(1)]);
        let completion = rig.get(Policy::PreferRdma, whole(&rig, "18MiB-both", 0));
        let by_path = completion.bytes_by_path();
        assert!(by_path.rdma > 0 && by_path.http > 0, "{completion:?}");
        assert_holds(&completion, "18MiB-both", 0);
    });
}

#[test]
fn a_get_that_ends_early_writes_to_nobody_elses_memory() {
    Standin::default().delay(Duration::from_secs(2)).run(|| {
        let rig = rig([]);
        let whole_device = || buffer(&rig, DEVICE, 0);
        let get = Get::new("bench", "4MiB-early")
            .range(0, CHUNK)
            .into(whole_device());
        let early = rig.get(Policy::Http, get.deadline(Duration::from_millis(700)));
        assert_eq!(
            (early.path(), early.reason()),
            (Path::None, Reason::Deadline)
        );
        assert!(!early.flags().contains(Flags::STAGED));
        drop(early);
        // Once it comes back, nothing is written to it any more.
        let mut next = whole_device();
        next.write_from_host(0, &[0x55; CHUNK as usize]).unwrap();
        std::thread::sleep(Duration::from_millis(500));
        let mut found = vec![0; CHUNK as usize];
        next.read_to_host(0, &mut found).unwrap();
        assert!(found == [0x55; CHUNK as usize], "written late");
        drop(next);
        rig.assert_drains();
    });
}

#[test]
fn a_fixed_buffer_comes_back_only_when_nothing_is_copied_to_it() {
    Standin::default().delay(Duration::from_secs(2)).run(|| {
        let rig = rig([]);
        let key = "4MiB-fixed";
        let get = Get::new("bench", key).into_fixed(buffer(&rig, CHUNK, 0));
        let early = block_on(rig.engine.get(get.deadline(Duration::from_millis(700))));
        assert_eq!(early.reason(), Reason::Deadline, "{early:?}");
        let mut buffer = early.into_buffer().expect("the same memory");
        buffer.write_from_host(0, &[0x55; CHUNK as usize]).unwrap();
        std::thread::sleep(Duration::from_millis(500));
        let mut found = vec![0; CHUNK as usize];
        buffer.read_to_host(0, &mut found).unwrap();
        assert!(found == [0x55; CHUNK as usize], "written late");
    });
}

#[test]
fn a_copy_that_fails_is_an_error_that_says_so() {
    Standin::default()
        .faults("cuMemcpyHtoDAsync_v2=1@2-2")
        .run(|| {
            let rig = rig([]);
            let failed = rig.get(Policy::Http, whole(&rig, "6MiB-fault", 0));
            assert_eq!(
                (failed.path(), failed.reason()),
                (Path::None, Reason::HttpError)
            );
            let error = failed.error().unwrap();
            assert!(matches!(error.kind(), ErrorKind::Cuda(_)), "{error:?}");
            assert_eq!(error.attempt(), 1, "it is not tried again");
            let text = error.to_string();
            assert!(
                text.contains("CUDA: copying from staging on cuda:0"),
                "{text}"
            );
            assert!(text.contains("CUDA_ERROR_INVALID_VALUE"), "{text}");
            let buffer = failed.into_buffer().expect("nothing is under way");
            let again = rig.get(Policy::Http, Get::new("bench", "6MiB-fault").into(buffer));
            assert_holds(&again, "6MiB-fault", 0);
        });
}

#[test]
fn a_lost_device_ends_all_its_gets_and_no_others() {
    Standin::default()
        .faults("cuMemcpyHtoDAsync_v2=700@3")
        .run(|| {
            let rig = rig([]);
            let mut queue = rig.queue();
            for nth in 0..8 {
                let get = whole(&rig, &format!("6MiB-lost{nth}"), 0);
                queue.push(get.policy(Policy::Http)).unwrap();
            }
            queue.submit();
            let failed = drain(&mut queue);
            let failed = failed.iter().filter(|completion| !completion.is_ok());
            let kinds: Vec<_> = failed
                .map(|failed| failed.error().unwrap().kind())
                .collect();
            assert!(
                kinds.len() >= 7,
                "two copies make no two objects: {kinds:?}"
            );
            assert!(
                kinds.iter().all(|kind| matches!(kind, ErrorKind::Cuda(_))),
                "{kinds:?}"
            );
            let host = rig.get_whole(Policy::Http, "6MiB-host");
            content::verify("6MiB-host", 0, 0, host.data().unwrap()).unwrap();
        });
}

/// Everything counted so far, by name and device.
fn counted(snapshotter: &Snapshotter, sums: &mut HashMap<String, f64>) {
    for (key, _, _, value) in snapshotter.snapshot().into_vec() {
        let sum = sums.entry(key.key().name().to_owned()).or_default();
        match value {
            DebugValue::Counter(count) => *sum += count as f64,
            DebugValue::Gauge(gauge) => *sum = gauge.into_inner(),
            DebugValue::Histogram(values) => *sum += values.len() as f64,
        }
    }
}

#[test]
fn what_is_staged_is_counted_and_takes_no_more_memory_than_allowed() {
    Standin::default()
        .gpus(1)
        .delay(Duration::from_millis(5))
        .run(|| {
            let recorder = DebuggingRecorder::new();
            let snapshotter = recorder.snapshotter();
            recorder.install().unwrap();
            let mut sums = HashMap::new();
            let rig = Rig::with([], |builder, _| {
                let pool = PoolOptions {
                    max_bytes: Some(32 * HALF),
                    max_cuda_bytes: Some(DEVICE),
                    slab_bytes: 4 * HALF,
                    staging_bytes: STAGING,
                    ..PoolOptions::default()
                };
                builder.pool(pool).rdma(Rdma::Off)
            });
            let mut queue = rig.queue();
            for nth in 0..8 {
                let get = whole(&rig, &format!("6MiB-counted{nth}"), 0);
                queue.push(get.policy(Policy::Http)).unwrap();
            }
            queue.submit();
            for completion in drain(&mut queue) {
                assert!(completion.is_ok(), "{completion:?}");
            }
            counted(&snapshotter, &mut sums);
            let of = |name: &str| sums.get(name).copied().unwrap_or_default();
            assert_eq!(of("s3engine_cuda_staged_bytes_total"), (24 * HALF) as f64);
            let copies = of("s3engine_cuda_copies_total");
            assert!(copies >= 16.0, "a part is two chunks: {copies}");
            assert_eq!(of("s3engine_cuda_copy_errors_total"), 0.0);
            assert!(
                of("s3engine_cuda_staging_wait_seconds") > 0.0,
                "the first waits for its making"
            );
            let staging = of("s3engine_cuda_staging_bytes");
            assert!(
                (CHUNK as f64..=STAGING as f64).contains(&staging),
                "{staging}"
            );
            drop((queue, rig));
            wait_until("what was pinned is given back", || {
                counted(&snapshotter, &mut sums);
                sums["s3engine_cuda_staging_bytes"] == 0.0
            });
        });
}
