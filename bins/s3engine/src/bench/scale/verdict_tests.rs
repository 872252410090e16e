use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::bench::scale::run::{Registrations, SlabRate};
use crate::bench::scale::sample::{HEALTHY, World, late, run, sweep};

const MIB: u64 = 1 << 20;
const SIZES: [u64; 2] = [MIB, 8 * MIB];

/// What the rules blame; a full wire and busy processors are no fault.
fn is_fault(cause: Cause) -> bool {
    !matches!(
        cause,
        Cause::LineRate | Cause::ClientCpu | Cause::Undetermined
    )
}

/// The verdict of one mode.
fn of(runs: &[Run], mode: Mode) -> Verdict {
    let mut verdicts = judge(runs);
    verdicts.retain(|verdict| verdict.mode == mode);
    assert_eq!(verdicts.len(), 1);
    verdicts.remove(0)
}

#[track_caller]
fn assert_judged(runs: &[Run], mode: Mode, cause: Cause, evidence: &[&str]) {
    let verdict = of(runs, mode);
    assert_eq!(verdict.cause, cause, "{verdict:#?}");
    for text in evidence {
        assert!(
            verdict.evidence.iter().any(|line| line.contains(text)),
            "no {text:?} in {verdict:#?}"
        );
    }
}

#[test]
fn a_full_wire_is_no_fault_and_what_fills_it_is_said() {
    let runs = sweep(HEALTHY, &SIZES);
    for mode in [Mode::Shared, Mode::PerProcess] {
        let expected = ["1.00 GB/s of 1.00 GB/s (100 %; "];
        assert_judged(&runs, mode, Cause::LineRate, &expected);
    }
}

#[test]
fn a_verdict_for_each_mode_in_the_order_of_the_rows() {
    let modes = |runs: &[Run]| {
        judge(runs)
            .iter()
            .map(|verdict| verdict.mode)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        modes(&sweep(HEALTHY, &SIZES)),
        [Mode::PerProcess, Mode::Shared]
    );
    assert_eq!(modes(&[run(HEALTHY, Mode::Shared, 1, MIB)]), [Mode::Shared]);
    assert_eq!(judge(&[]), []);
}

#[test]
fn clients_that_cost_the_server_are_blamed_where_there_are_several() {
    let world = World {
        client_us: 9_000.0,
        ..HEALTHY
    };
    let runs = sweep(world, &SIZES);
    let evidence = [
        "time of a small GET grows from 72.0 ms with 1 client to 4.61 s with 8 clients, 8.0 times as much at the same number in flight",
        "operations a second go from 111 to 14",
        "the same threads through one service get 111",
    ];
    assert_judged(&runs, Mode::PerProcess, Cause::PerClientCost, &evidence);
    assert_ne!(of(&runs, Mode::Shared).cause, Cause::PerClientCost);
}

#[test]
fn more_clients_behind_a_full_wire_are_not_blamed_for_waiting() {
    // All waits grow with the number in flight, and the line rate is not known.
    let mut runs = sweep(HEALTHY, &SIZES);
    for run in &mut runs {
        run.line_rate_gb_per_s = None;
    }
    for mode in [Mode::Shared, Mode::PerProcess] {
        let evidence = ["share of the line rate: not known"];
        assert_judged(&runs, mode, Cause::Undetermined, &evidence);
    }
}

/// Rows of one and of eight processes that get `fall` times less in all, at `growth` times the cost of a small GET for
/// the same number in flight.
fn worse_with_eight(fall: f64, growth: f64) -> [Run; 2] {
    let [few, mut many] = [1, 8].map(|processes| run(HEALTHY, Mode::PerProcess, processes, MIB));
    many.ops_per_s = few.ops_per_s / fall;
    many.gb_per_s = few.gb_per_s / fall;
    let control = few.stages_us.control.p50 as f64 * 8.0 * growth;
    many.stages_us.control.p50 = control as u64;
    [few, many]
}

#[test]
fn only_both_less_in_all_and_dearer_requests_blame_clients() {
    for (fall, growth, cause) in [
        (2.0, 2.0, Cause::PerClientCost),
        (2.0, 1.2, Cause::Undetermined),
        (1.0, 2.0, Cause::LineRate),
    ] {
        let runs = worse_with_eight(fall, growth);
        assert_judged(&runs, Mode::PerProcess, cause, &[]);
    }
    // A busy host explains both, unless requests are slower than any processor.
    let mut runs = worse_with_eight(2.0, 2.0);
    runs[1].host_busy = 0.95;
    assert_judged(&runs, Mode::PerProcess, Cause::ClientCpu, &[]);
    runs[1].stages_us.control.p50 = 200_000;
    assert_judged(&runs, Mode::PerProcess, Cause::PerClientCost, &[]);
    // Or the processes had no processor: then nothing shows what the server would have taken.
    runs[1].cpu_wait_us = runs[1].latency_us.mean / 2.0;
    assert_judged(&runs, Mode::PerProcess, Cause::ClientCpu, &[]);
}

#[test]
fn a_service_that_is_ahead_blames_clients_only_where_they_do_not_scale() {
    for (fall, cause) in [(1.0, Cause::PerClientCost), (0.7, Cause::Undetermined)] {
        let [mut few, mut many] = worse_with_eight(fall, 2.0);
        let mut shared = run(HEALTHY, Mode::Shared, 8, MIB);
        shared.ops_per_s = many.ops_per_s * 2.0;
        for run in [&mut few, &mut many, &mut shared] {
            run.line_rate_gb_per_s = None;
        }
        assert_judged(&[few, many, shared], Mode::PerProcess, cause, &[]);
    }
}

#[test]
fn what_does_not_matter_at_the_line_rate_is_not_blamed() {
    let world = World {
        op_us: 40_000.0,
        ..HEALTHY
    };
    let runs = sweep(world, &[8 * MIB]);
    assert!(rules::control_share(&runs[0]).unwrap() > 0.5);
    assert_judged(&runs, Mode::PerProcess, Cause::LineRate, &[]);
}

#[test]
fn a_rate_that_was_there_with_fewer_processes_is_not_the_line_rate() {
    let mut runs = sweep(HEALTHY, &[8 * MIB]);
    runs[3].gb_per_s *= 0.85;
    assert_judged(&runs, Mode::PerProcess, Cause::LineRate, &[]);
    runs[3].gb_per_s *= 0.85;
    assert_judged(&runs, Mode::PerProcess, Cause::Undetermined, &[]);
}

#[test]
fn equal_load_is_compared_where_there_is_some() {
    // One process with 8 threads, and 8 with one: the same number in flight.
    let world = World {
        client_us: 9_000.0,
        ..HEALTHY
    };
    let mut few = run(world, Mode::PerProcess, 1, 8 * MIB);
    few.threads = 8;
    few.stages_us.control.p50 *= 4;
    let mut many = run(world, Mode::PerProcess, 4, 8 * MIB);
    many.threads = 2;
    let evidence = ["1 client to 1.15 s with 4 clients, 4.0 times as much at the same number"];
    assert_judged(
        &[few, many],
        Mode::PerProcess,
        Cause::PerClientCost,
        &evidence,
    );
}

#[test]
fn slow_requests_are_blamed_if_they_are_slow_from_the_start() {
    let world = World {
        op_us: 40_000.0,
        ..HEALTHY
    };
    let runs = sweep(world, &SIZES);
    let evidence = [
        "a small GET takes 40.1 ms where a whole one takes",
        "already with 1 process",
    ];
    for mode in [Mode::Shared, Mode::PerProcess] {
        assert_judged(&runs, mode, Cause::ControlLatency, &evidence);
    }
    let alone = [run(world, Mode::Shared, 2, MIB)];
    let evidence = ["with 2 processes (2 x 2, 1MiB, prefer-rdma); whether it grows"];
    assert_judged(&alone, Mode::Shared, Cause::ControlLatency, &evidence);
}

#[test]
fn small_objects_are_mostly_requests_and_nobody_is_blamed() {
    let runs = sweep(HEALTHY, &[64 << 10]);
    for mode in [Mode::Shared, Mode::PerProcess] {
        let verdict = of(&runs, mode);
        assert!(!is_fault(verdict.cause), "{verdict:#?}");
    }
    let slower = World {
        op_us: 2_000.0,
        line_gb_per_s: 20.0,
        ..HEALTHY
    };
    let runs = sweep(slower, &[64 << 10]);
    assert_judged(
        &runs,
        Mode::Shared,
        Cause::Undetermined,
        &["a small GET: 100 %"],
    );
}

#[test]
fn registration_is_blamed_in_operations_and_in_the_start() {
    let world = World {
        register_us: 12_000.0,
        ..HEALTHY
    };
    let runs = sweep(world, &SIZES);
    let evidence = ["registration is 9", "of the mean operation: "];
    assert_judged(&runs, Mode::PerProcess, Cause::Registration, &evidence);

    let mut runs = sweep(HEALTHY, &SIZES);
    for run in &mut runs {
        let clients = if run.mode == Mode::Shared {
            1
        } else {
            run.processes
        };
        run.start_seconds = 6.0;
        run.gb_per_s_with_start = run.gb_per_s * run.seconds / (run.seconds + 6.0);
        run.registrations = Registrations {
            count: 16,
            failed: 0,
            seconds: 4.5 * clients as f64,
        };
    }
    let evidence = [
        "in the start: registration is 75 % of 6.0 s",
        "the start leaves 25 % of the rate",
        "also line rate: ",
    ];
    for mode in [Mode::Shared, Mode::PerProcess] {
        assert_judged(&runs, mode, Cause::Registration, &evidence);
    }
    for run in &mut runs {
        run.registrations.seconds /= 4.0;
    }
    assert_judged(&runs, Mode::Shared, Cause::LineRate, &[]);
}

#[test]
fn late_answers_are_the_cause_or_what_follows_from_it() {
    let late_with = |world| {
        let mut runs = sweep(world, &[8 * MIB]);
        runs[3] = late(runs[3].clone(), 0.33);
        runs
    };
    let evidence = [" % of operations had no answer by RDMA in time (8 x 2, 8MiB, prefer-rdma)"];
    let runs = late_with(HEALTHY);
    assert_judged(&runs, Mode::PerProcess, Cause::TimeoutFallback, &evidence);
    assert_eq!(of(&runs, Mode::PerProcess).then, None);
    assert_judged(&runs, Mode::Shared, Cause::LineRate, &[]);

    // Memory is registered anew after a timeout: that is no cause.
    let mut runs = runs;
    (
        runs[3].line_rate_gb_per_s,
        runs[3].stages_us.registration.mean,
    ) = (None, 1e6);
    assert_judged(&runs, Mode::PerProcess, Cause::TimeoutFallback, &evidence);

    let runs = late_with(World {
        client_us: 9_000.0,
        ..HEALTHY
    });
    assert_judged(&runs, Mode::PerProcess, Cause::PerClientCost, &evidence);
    assert_eq!(
        of(&runs, Mode::PerProcess).then,
        Some(Cause::TimeoutFallback)
    );
    assert_eq!(of(&runs, Mode::Shared).then, None);
}

#[test]
fn two_kinds_of_memory_are_told_apart() {
    let world = World {
        far_us: 900_000.0,
        ..HEALTHY
    };
    let runs = sweep(world, &SIZES);
    for mode in [Mode::Shared, Mode::PerProcess] {
        let evidence = ["slabs get 0.00", "an operation, the others "];
        assert_judged(&runs, mode, Cause::MemoryDistance, &evidence);
    }
    // In one row of three that have enough slabs, it is chance.
    let mut runs = sweep(HEALTHY, &[8 * MIB]);
    for run in &mut runs {
        run.line_rate_gb_per_s = None;
    }
    let slabs = run(world, Mode::PerProcess, 4, 8 * MIB).slabs;
    runs[2].slabs = slabs;
    assert_judged(&runs, Mode::PerProcess, Cause::Undetermined, &[]);
}

#[test]
fn on_a_busy_host_memory_is_blamed_only_for_what_differs_within_a_worker() {
    let mut run = run(HEALTHY, Mode::PerProcess, 4, 8 * MIB);
    (run.line_rate_gb_per_s, run.simulated) = (None, false);
    for slab in &mut run.slabs {
        let slow = slab.worker.is_multiple_of(2);
        slab.gb_per_s_per_op = if slow { 0.1 } else { 0.3 };
    }
    for (busy, cause) in [(0.5, Cause::MemoryDistance), (0.95, Cause::Undetermined)] {
        run.host_busy = busy;
        assert_judged(&[run.clone()], Mode::PerProcess, cause, &[]);
    }
    for slab in &mut run.slabs {
        slab.gb_per_s_per_op = if slab.slab == 0 { 0.1 } else { 0.3 };
    }
    let evidence = ["4 of 8 slabs get 0.100 GB/s an operation, the others 0.300 GB/s (4 x 2"];
    assert_judged(&[run], Mode::PerProcess, Cause::MemoryDistance, &evidence);
}

#[test]
fn slabs_that_spread_evenly_are_one_kind() {
    let mut run = run(HEALTHY, Mode::Shared, 4, 8 * MIB);
    run.line_rate_gb_per_s = None;
    let slab = |at: u32| SlabRate {
        worker: 0,
        slab: at,
        ops: 10,
        gb_per_s_per_op: 0.1 + f64::from(at) * 0.03,
    };
    run.slabs = (0..16).map(slab).collect();
    assert_judged(&[run], Mode::Shared, Cause::Undetermined, &[]);
}

#[test]
fn busy_processors_are_named_and_take_the_blame_for_slow_requests() {
    let mut runs = sweep(
        World {
            op_us: 6_000.0,
            ..HEALTHY
        },
        &[MIB],
    );
    for run in &mut runs {
        (run.line_rate_gb_per_s, run.host_busy) = (Some(20.0), 0.97);
    }
    let evidence = ["the simulator share this host and, with all else on it, use 97 %"];
    for mode in [Mode::Shared, Mode::PerProcess] {
        assert_judged(&runs, mode, Cause::ClientCpu, &evidence);
    }
    for run in &mut runs {
        (run.simulated, run.client_busy) = (false, 0.8);
    }
    let evidence = ["the workers and the service use 80 % of its processors"];
    assert_judged(&runs, Mode::Shared, Cause::ClientCpu, &evidence);
}

#[test]
fn rows_that_broke_are_told_and_not_judged() {
    let mut runs = sweep(HEALTHY, &[8 * MIB]);
    runs[3] = late(runs[3].clone(), 0.5);
    runs[3].stopped = Stopped::WorkerLost;
    (runs[0].failed, runs[0].first_error) = (3, Some("GET s3://b/k: 403".into()));
    let evidence = [
        "a worker ended before its time: not judged (8 x 2, 8MiB",
        "3 operations failed (1 x 2, 8MiB, prefer-rdma); the first: GET s3://b/k: 403",
    ];
    assert_judged(&runs, Mode::PerProcess, Cause::LineRate, &evidence);
    for run in &mut runs {
        run.stopped = Stopped::WorkerLost;
    }
    assert_judged(
        &runs,
        Mode::Shared,
        Cause::Undetermined,
        &["nothing to judge"],
    );
}

#[test]
fn a_row_that_was_cut_at_its_begin_is_not_judged() {
    let mut runs = sweep(HEALTHY, &[8 * MIB]);
    runs[3] = late(runs[3].clone(), 0.5);
    runs[3].stopped = Stopped::Interrupted;
    assert_judged(&runs, Mode::PerProcess, Cause::TimeoutFallback, &["50 %"]);
    runs[3].seconds = 0.1;
    assert_judged(&runs, Mode::PerProcess, Cause::LineRate, &[]);
}

fn any_number() -> impl Strategy<Value = f64> {
    prop_oneof![
        0.0..2.0,
        any::<f64>(),
        Just(0.0),
        Just(f64::NAN),
        Just(f64::INFINITY)
    ]
}

prop_compose! {
    /// Anything that the JSON can hold, and more.
    fn any_run()(
        numbers in proptest::collection::vec(any_number(), 12),
        counts in proptest::collection::vec(prop_oneof![0..9u64, any::<u64>()], 12),
        sizes in proptest::collection::vec(prop_oneof![0..9usize, any::<usize>()], 4),
        slabs in proptest::collection::vec((any_number(), 0..9u64), 0..9),
        flags in any::<[bool; 4]>(),
    ) -> Run {
        let mode = if flags[0] { Mode::Shared } else { Mode::PerProcess };
        let mut run = run(HEALTHY, mode, 1, counts[0]);
        (run.processes, run.threads) = (sizes[0], sizes[1]);
        (run.in_flight, run.clients_per_process) = (sizes[2], sizes[3]);
        (run.gb_per_s, run.gb_per_s_with_start) = (numbers[0], numbers[1]);
        (run.ops_per_s, run.start_seconds) = (numbers[2], numbers[3]);
        run.line_rate_gb_per_s = flags[1].then_some(numbers[4]);
        (run.host_busy, run.client_busy) = (numbers[5], numbers[6]);
        (run.latency_us.mean, run.latency_us.p50) = (numbers[7], counts[1]);
        (run.stages_us.registration.mean, run.stages_us.control.p50) = (numbers[8], counts[2]);
        (run.registrations.seconds, run.registrations.count) = (numbers[9], counts[3]);
        (run.ops, run.failed, run.simulated) = (counts[4], counts[5], flags[2]);
        run.reasons = BTreeMap::from([("ok".into(), counts[6]), ("rdma-timeout".into(), counts[7])]);
        run.fell_back = BTreeMap::from([("rdma-timeout".into(), counts[8])]);
        run.slabs = slabs.iter().map(|(rate, ops)| SlabRate {
            worker: 0,
            slab: 0,
            ops: *ops,
            gb_per_s_per_op: *rate,
        }).collect();
        if flags[3] {
            run.stopped = Stopped::WorkerLost;
        }
        run
    }
}

proptest! {
    #[test]
    fn any_rows_are_judged(runs in proptest::collection::vec(any_run(), 0..8)) {
        let verdicts = judge(&runs);
        prop_assert!(verdicts.len() <= 2);
        prop_assert!(verdicts.iter().all(|verdict| !verdict.evidence.is_empty()));
    }

    /// Twice the processes, twice the rate, each operation as long as before: there is nothing to blame, wherever the
    /// line rate is and whatever else the host does.
    #[test]
    fn who_scales_is_never_blamed(
        per_process in 0.01..10.0f64,
        latency_us in 2_000.0..100_000.0f64,
        control in 0.01..0.3f64,
        registration in 0.0..0.1f64,
        line in proptest::option::of(0.01..200.0f64),
        busy in 0.0..1.0f64,
        noise in proptest::collection::vec(0.93..1.07f64, 8),
        size in prop_oneof![Just(64u64 << 10), Just(MIB), Just(64 * MIB)],
    ) {
        let mut runs = sweep(HEALTHY, &[size]);
        for (run, noise) in runs.iter_mut().zip(&noise) {
            run.gb_per_s = per_process * run.processes as f64 * noise;
            run.gb_per_s_with_start = run.gb_per_s * 0.8;
            run.ops_per_s = run.gb_per_s * 1e9 / size as f64;
            run.latency_us.p50 = (latency_us / noise) as u64;
            run.latency_us.mean = latency_us / noise;
            run.stages_us.control.p50 = (latency_us * control * noise) as u64;
            run.stages_us.registration.mean = latency_us * registration;
            (run.line_rate_gb_per_s, run.host_busy, run.client_busy) = (line, busy, busy * 0.7);
            for (slab, noise) in run.slabs.iter_mut().zip(noise_of(*noise)) {
                slab.gb_per_s_per_op = noise * size as f64 / 1e3 / latency_us;
            }
        }
        for verdict in judge(&runs) {
            prop_assert!(!is_fault(verdict.cause), "{verdict:#?}");
            prop_assert_eq!(verdict.then, None);
        }
    }
}

/// Rates of slabs, some more and some less, as one that differs makes them.
fn noise_of(seed: f64) -> impl Iterator<Item = f64> {
    (0..).map(move |at| 1.0 + 0.2 * (f64::from(at) * seed * 7.0).sin())
}
