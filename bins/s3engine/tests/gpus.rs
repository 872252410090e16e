//! What commands do where there are GPUs: here those of a stand-in for the driver.
#![allow(missing_docs)]

mod support;

use std::env;
use std::fs;
use std::path::Path;

use cuda_standin::{Standin, with_standin};
use serde_json::Value;

/// A command that finds the driver which this process finds, in a folder.
fn run_in(folder: &Path, args: &[&str]) -> support::Ran {
    let mut command = support::bare(args);
    command
        .env("LD_LIBRARY_PATH", env::var("LD_LIBRARY_PATH").unwrap())
        .env("S3ENGINE_LOOPBACK_DIR", folder.join("loopback"))
        .current_dir(folder);
    support::run(&mut command)
}

fn runs(folder: &Path) -> Vec<Value> {
    let json: Value = serde_json::from_slice(&fs::read(folder.join("b.json")).unwrap()).unwrap();
    let gpus = match json["hosts"][0]["gpus"].as_array() {
        Some(gpus) => gpus,
        None => json["host"]["gpus"].as_array().unwrap(),
    };
    let uuids: Vec<_> = gpus
        .iter()
        .map(|gpu| gpu["uuid"].as_str().unwrap())
        .collect();
    assert!(uuids.len() == 2 && uuids[0] != uuids[1], "{uuids:?}");
    json["runs"].as_array().unwrap().clone()
}

#[test]
fn a_bench_into_all_gpus_takes_both_paths_and_has_its_floors() {
    with_standin(|| {
        let folder = tempfile::tempdir().unwrap();
        let what = ["bench", "--memory", "cuda:all", "--json", "b.json"];
        let rows = ["--size", "64KiB,9MiB", "--threads", "2", "--in-flight", "2"];
        let times = ["--duration", "1s", "--warmup", "50ms", "--floor", "50ms"];
        let ran = run_in(folder.path(), &[&what[..], &rows, &times].concat());
        let said = String::from_utf8(ran.ok()).unwrap();
        assert!(said.contains(", 2x CUDA stand-in "), "{said}");
        assert!(said.contains("in the memory of cuda:all"), "{said}");
        let runs = runs(folder.path());
        assert_eq!(runs.len(), 4);
        for run in runs {
            let (path, floor) = match run["policy"] == "http" {
                true => ("http", "recv"),
                false => ("rdma", "copy"),
            };
            assert_eq!(
                (&run["memory"], &run["failed"]),
                (&"cuda:all".into(), &0.into())
            );
            assert!(run["completions"][path].as_u64().unwrap() > 0, "{run}");
            assert_eq!(run["floor"]["kind"], floor, "{run}");
        }
    });
}

#[test]
fn processes_of_a_scaled_bench_have_one_gpu_or_each_the_next() {
    with_standin(|| {
        let folder = tempfile::tempdir().unwrap();
        let scale = |gpus: &str| {
            let what = [
                "bench", "scale", "--memory", "cuda", "--json", "b.json", "--gpus", gpus,
            ];
            let rows = [
                "--mode",
                "shared",
                "--procs",
                "2",
                "--threads",
                "1",
                "--size",
                "1MiB",
            ];
            // Of each GPU there is room for one client.
            let memory = ["--slab-size", "4MiB", "--cuda-pool-size", "4MiB"];
            let times = ["--duration", "1s", "--warmup", "50ms"];
            run_in(folder.path(), &[&what[..], &rows, &memory, &times].concat())
        };
        scale("spread").ok();
        let runs = runs(folder.path());
        let run = &runs[0];
        assert_eq!(
            (&run["memory"], &run["failed"]),
            (&"cuda:all".into(), &0.into())
        );
        assert!(run["completions"]["rdma"].as_u64().unwrap() > 0, "{run}");
        let ran = scale("same");
        assert_ne!(ran.code, Some(0));
        assert!(
            ran.stderr.contains("is full: 1048576 bytes wanted"),
            "{}",
            ran.stderr
        );
    });
}

#[test]
fn a_gpu_that_is_hidden_is_not_there() {
    Standin::default().visible("1").run(|| {
        let folder = tempfile::tempdir().unwrap();
        let mut command = support::bare(&["bench", "--memory", "cuda:1"]);
        command
            .env("LD_LIBRARY_PATH", env::var("LD_LIBRARY_PATH").unwrap())
            .env(
                "CUDA_VISIBLE_DEVICES",
                env::var("CUDA_VISIBLE_DEVICES").unwrap(),
            )
            .current_dir(folder.path());
        let ran = support::run(&mut command);
        assert_eq!(ran.code, Some(3), "{}", ran.stderr);
        assert!(ran.stderr.contains("no CUDA device 1"), "{}", ran.stderr);
    });
}
