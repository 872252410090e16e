//! Keys that a command finds by itself.
#![allow(missing_docs)]

mod support;

use std::fs;
use std::process::Command;

use support::{World, bare, object, run};

/// A world whose command has no keys in its environment, but files of them.
fn keyless(world: &World, args: &[&str]) -> Command {
    let mut command = bare(args);
    command
        .env("AWS_ENDPOINT_URL_S3", world.sim.url())
        .env("AWS_CONFIG_FILE", world.folder.path().join("config"))
        .env("PATH", "/usr/bin:/bin")
        .current_dir(world.out());
    command
}

fn config(world: &World, text: &str) {
    fs::write(world.folder.path().join("config"), text).unwrap();
}

#[test]
fn a_profile_signs_that_is_named_or_the_usual_one() {
    let world = World::new();
    let keys = |name: &str, id: &str| {
        let secret = world.sim.secret_key();
        format!("[{name}]\naws_access_key_id = {id}\naws_secret_access_key = {secret}\n")
    };
    let known = world.sim.access_key();
    config(
        &world,
        &(keys("default", "nobody") + &keys("profile train", known)),
    );
    let get = ["get", "s3://train/1KiB-x", "-o", "-"];
    let named = [&get[..], &["--profile", "train"]].concat();
    assert_eq!(
        run(&mut keyless(&world, &named)).ok(),
        object("1KiB-x", 0, 1024)
    );
    let mut command = keyless(&world, &get);
    assert_eq!(run(command.env("AWS_PROFILE", "train")).ok().len(), 1024);
    let mut command = keyless(&world, &get);
    assert_eq!(
        run(command.env("S3ENGINE_PROFILE", "train")).ok().len(),
        1024
    );
    let refused = run(&mut keyless(&world, &get));
    refused.fails(3, &["403 InvalidAccessKeyId"]);
    let missing = [&get[..], &["--profile", "trian"]].concat();
    run(&mut keyless(&world, &missing)).fails(3, &["no credentials: profile trian: "]);
}

#[test]
fn r40_keys_that_end_are_replaced_by_those_that_a_program_gives_then() {
    let world = World::new();
    world.sim.admit_key("NEW", "another secret");
    world.sim.end_key(world.sim.access_key());
    let folder = world.folder.path().display();
    // The first time old keys, and new ones from then on.
    let (old, new) = (world.sim.access_key(), "NEW");
    let (old_secret, new_secret) = (world.sim.secret_key(), "another secret");
    let script = format!(
        "#!/bin/sh\nif mkdir {folder}/asked 2>/dev/null; then id={old} secret='{old_secret}'; else id={new} secret='{new_secret}'; fi\n\
         echo \"{{\\\"Version\\\":1,\\\"AccessKeyId\\\":\\\"$id\\\",\\\"SecretAccessKey\\\":\\\"$secret\\\"}}\"\n"
    );
    let path = world.folder.path().join("keys.sh");
    fs::write(&path, script).unwrap();
    config(
        &world,
        &format!("[default]\ncredential_process = sh {}\n", path.display()),
    );
    let ran = run(&mut keyless(
        &world,
        &["get", "s3://train/1KiB-x", "-o", "-", "-v"],
    ));
    assert!(!ran.stderr.contains("secret"), "{}", ran.stderr);
    assert_eq!(ran.ok(), object("1KiB-x", 0, 1024));
}
