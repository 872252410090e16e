//! Four processes read through one host service while its server goes wrong in every way at once, by dice with a seed.
//!
//! `S3ENGINE_CHAOS_SEED` chooses the seed, which each run prints.

use std::process::Command;
use std::time::Duration;

use s3engine::Timeouts;
use s3engine_tests::{Program, Rig, ServiceRig, helper};
use s3sim::{Action, Kind, Rule};

const PROCESSES: usize = 4;

/// What the variable says, else `other`.
fn seed_or(other: u64) -> u64 {
    match std::env::var("S3ENGINE_CHAOS_SEED") {
        Ok(text) => text.parse().expect("S3ENGINE_CHAOS_SEED is a number"),
        Err(_) => other,
    }
}

/// Faults in so many of a thousand requests, one kind after the other. Lies that nobody can see through are left out:
/// bytes claimed and not written, and a shorter object than there is.
fn mix(seed: u64) -> Vec<Rule> {
    let slow = |code: u16, s3_code: &str| Action::Status {
        code,
        s3_code: Some(s3_code.to_owned()),
        headers: Default::default(),
    };
    let faults = [
        (20, Action::SlowDown { retry_after: None }),
        (10, slow(500, "InternalError")),
        (5, slow(403, "AccessDenied")),
        (5, slow(404, "NoSuchKey")),
        (5, slow(400, "RequestTimeout")),
        (20, Action::Cut { after: Some(700) }),
        (10, Action::Cut { after: None }),
        (
            20,
            Action::Reset {
                after: Some(30_000),
            },
        ),
        (10, Action::Reset { after: None }),
        (2, Action::NeverAnswer),
        (
            2,
            Action::Stall {
                after: Some(500),
                ms: 700,
            },
        ),
        (
            10,
            Action::Stall {
                after: Some(500),
                ms: 20,
            },
        ),
        (
            5,
            Action::Trickle {
                bytes: 20_000,
                ms: 1,
            },
        ),
        (10, Action::AnswerLate { ms: 15 }),
        (5, Action::WrongLength { delta: 3 }),
        (5, Action::WrongRange { shift: 1 }),
        (5, Action::Swap),
        (5, Action::DeclineWithBody),
        (5, Action::DeclineWithError),
        (5, Action::IgnoreToken),
        (5, Action::IgnoreTokenEmpty),
        (
            5,
            Action::WrongBytes {
                value: None,
                delta: Some(-1),
            },
        ),
        (5, Action::MissingBytes),
        (5, Action::MissingReply),
        (5, Action::TokenRejected),
        (5, Action::RdmaTransferFailed),
        (2, Action::WriteLate { ms: 600 }),
    ];
    let rule = |(nth, (share, action)): (u64, (u32, Action))| Rule {
        probability: f64::from(share) / 1000.0,
        seed: seed.wrapping_add(nth),
        ..Rule::new(action)
    };
    let list = Rule {
        probability: 0.1,
        ..Rule::new(Action::Reset { after: None }).only(Kind::List)
    };
    (0..).zip(faults).map(rule).chain([list]).collect()
}

/// Runs `gets` GETs in all, spread over the processes.
fn run(gets: usize, seed: u64) {
    println!("S3ENGINE_CHAOS_SEED={seed}");
    let rig = Rig::with(mix(seed), |builder, _| {
        let builder = builder.adaptive(true).part_sizes(64 << 10, 128 << 10);
        builder.timeouts(Timeouts {
            first_byte: Duration::from_millis(400),
            stall: Duration::from_millis(400),
            rdma_base: Duration::from_millis(300),
            ..Timeouts::default()
        })
    });
    let host = ServiceRig::with(rig, |_| {});
    let client = |nth: usize| {
        let mut command: Command = helper(env!("CARGO_BIN_EXE_chaos"));
        let seed = seed.wrapping_add(nth as u64).to_string();
        let count = (gets / PROCESSES).to_string();
        Program::run(command.arg(host.socket()).args([seed, count]))
    };
    let clients: Vec<_> = (0..PROCESSES).map(client).collect();
    for mut client in clients {
        loop {
            let line = client.line();
            assert!(!line.is_empty(), "a client has died: seed {seed}");
            println!("{line}");
            if line == "end" {
                break;
            }
        }
        assert!(client.ended(), "seed {seed}");
    }
    host.assert_drains();
}

#[test]
fn every_get_ends_with_right_bytes_or_an_error_whatever_the_server_does() {
    run(20_000, seed_or(20_000));
}

#[test]
#[ignore = "minutes"]
fn the_same_for_long() {
    run(1_000_000, seed_or(rand::random()));
}
