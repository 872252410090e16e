//! `s3engine ls`, as people run it.
#![allow(missing_docs)]

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use s3sim::{Action, Kind, Listed, Rule, SimOptions};
use support::{Ran, World};
use tempfile::TempDir;

/// A bucket `train` of so many synthetic names.
fn synthetic(count: u32) -> SimOptions {
    SimOptions {
        listed: Listed {
            count,
            size: 4096,
            prefix: "set/".into(),
        },
        ..SimOptions::default()
    }
}

/// A bucket `train` of files with these names; each holds its own name.
fn files(keys: &[&str]) -> (TempDir, World) {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("train")).unwrap();
    for key in keys {
        let path = root.path().join("train").join(key);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, key).unwrap();
    }
    let world = serve(root.path());
    (root, world)
}

fn serve(root: &Path) -> World {
    World::with(SimOptions {
        root: Some(root.to_owned()),
        ..SimOptions::default()
    })
}

fn lines(ran: Ran) -> Vec<String> {
    let text = String::from_utf8(ran.ok()).unwrap();
    text.lines().map(str::to_owned).collect()
}

/// The last column.
fn names(ran: Ran) -> Vec<String> {
    let name = |line: &String| line[20 + 2 + 13 + 2..].to_owned();
    lines(ran).iter().map(name).collect()
}

fn values(ran: Ran) -> Vec<serde_json::Value> {
    let value = |line: String| serde_json::from_str(&line).unwrap();
    lines(ran).into_iter().map(value).collect()
}

/// The keys or prefixes of `--json`.
fn json_names(ran: Ran) -> Vec<String> {
    let name = |value: serde_json::Value| {
        let name = value.get("key").or(value.get("prefix"));
        name.unwrap().as_str().unwrap().to_owned()
    };
    values(ran).into_iter().map(name).collect()
}

#[test]
fn all_of_2500_names_come_once_and_in_order() {
    let world = World::with(synthetic(2500));
    let ran = world.run(&["ls", "s3://train/set/"]);
    assert_eq!(ran.stderr, "");
    let found = names(ran);
    let expected: Vec<_> = (0..2500).map(|i| format!("set/4096-{i:010}")).collect();
    assert_eq!(found, expected);
    assert_eq!(world.sim.counters().requests, 3);
    let found = json_names(world.run(&["ls", "s3://train", "--recursive", "--json"]));
    assert_eq!(found, expected);
}

#[test]
fn a_line_is_date_size_and_key() {
    let (_root, world) = files(&["a/x", "b"]);
    let path = _root.path().join("train/b");
    fs::write(&path, vec![0; 3 << 20]).unwrap();
    let time = std::time::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.set_modified(time).unwrap();
    let found = lines(world.run(&["ls", "s3://train"]));
    assert_eq!(
        found,
        [
            "                                PRE  a/",
            "2023-11-14T22:13:20Z        3145728  b"
        ]
    );
    let found = lines(world.run(&["ls", "s3://train/b", "--human"]));
    assert_eq!(found, ["2023-11-14T22:13:20Z       3.00 MiB  b"]);
    let found = values(world.run(&["ls", "s3://train", "--json"]));
    assert_eq!(
        (&found[0]["prefix"], &found[1]["key"], &found[1]["size"]),
        (&"a/".into(), &"b".into(), &(3 << 20).into())
    );
    assert!(found[1]["etag"].is_string());
    assert_eq!(found[1]["bucket"], "train");
}

#[test]
fn a_prefix_is_text_and_only_recursion_goes_past_the_next_slash() {
    let (_root, world) = files(&["a", "ab/c", "ab/d/e", "abc", "b/a"]);
    let ls = |args: &[&str]| names(world.run(&[&["ls"], args].concat()));
    assert_eq!(ls(&["s3://train"]), ["a", "ab/", "abc", "b/"]);
    assert_eq!(ls(&["s3://train/"]), ["a", "ab/", "abc", "b/"]);
    assert_eq!(ls(&["s3://train/ab"]), ["ab/", "abc"]);
    assert_eq!(ls(&["s3://train/ab/"]), ["ab/c", "ab/d/"]);
    assert_eq!(ls(&["s3://train/ab", "-r"]), ["ab/c", "ab/d/e", "abc"]);
    assert_eq!(ls(&["s3://train", "--recursive"]).len(), 5);
}

#[test]
fn an_empty_bucket_and_a_prefix_without_names_are_no_error() {
    let (_root, world) = files(&[]);
    for url in ["s3://train", "s3://train/nothing/"] {
        let ran = world.run(&["ls", url]);
        assert_eq!(ran.stderr, "");
        assert!(ran.ok().is_empty());
    }
}

#[test]
fn odd_keys_are_shown_as_they_are_and_taken_as_they_stand() {
    let mut keys = [
        " space at both ends ",
        "a+b",
        "a%20b",
        "100%",
        "<&>'\"`",
        "?x#y",
        "ключ/文",
        "🦀 é e\u{301}",
        "back\\slash",
        "tab\tand\u{1b}[31m",
    ];
    keys.sort_unstable();
    let (_root, world) = files(&keys);
    assert_eq!(names(world.run(&["ls", "-r", "s3://train"])), keys);
    for key in keys {
        let found = names(world.run(&["ls", "-r", &format!("s3://train/{key}")]));
        assert_eq!(found, [key]);
    }
    // A line feed would be two lines of columns; it is one of JSON.
    fs::write(_root.path().join("train/line\nfeed"), "x").unwrap();
    let found = json_names(world.run(&["ls", "s3://train/line", "--json"]));
    assert_eq!(found, ["line\nfeed"]);
}

#[test]
fn a_limit_ends_the_list_and_asks_for_no_more() {
    let world = World::with(synthetic(2500));
    let count = |limit: &str| names(world.run(&["ls", "-r", "s3://train", "--limit", limit])).len();
    for limit in [1, 999, 1000, 1001, 2499, 2500] {
        assert_eq!(count(&limit.to_string()), limit);
    }
    assert_eq!(count("99999999"), 2500);
    let before = world.sim.counters().requests;
    assert_eq!(count("1000"), 1000);
    assert_eq!(world.sim.counters().requests, before + 1);
    for bad in ["0", "-1", "x"] {
        let limit = format!("--limit={bad}");
        assert_eq!(world.run(&["ls", "s3://train", &limit]).code, Some(2));
    }
}

#[test]
fn a_bucket_that_is_not_there_exits_with_4() {
    let world = World::new();
    let ran = world.run(&["ls", "s3://nowhere/a"]);
    ran.fails(
        4,
        &[
            "LIST s3://nowhere: 404 NoSuchBucket",
            "(request ",
            &world.sim.url(),
        ],
    );
    let ran = world.run(&["ls", "s3://nowhere", "--json"]);
    ran.fails(4, &[]);
    let json = ran.json();
    assert_eq!(json["error"]["code"], "NoSuchBucket");
    assert_eq!(json["error"]["exit_code"], 4);
}

#[test]
fn who_may_not_list_is_told_and_the_secret_is_not() {
    let world = World::new();
    let ran = world.run(&["ls", "s3://train", "--anonymous"]);
    ran.fails(1, &["LIST s3://train: 403 AccessDenied", "(request "]);
    let mut command = world.command(&["ls", "s3://train"]);
    let ran = support::run(command.env("AWS_SECRET_ACCESS_KEY", "hush-hush"));
    ran.fails(3, &["403 SignatureDoesNotMatch"]);
    assert!(!ran.stderr.contains("hush-hush"));
}

#[test]
fn what_cannot_be_meant_is_a_matter_of_usage() {
    let world = World::new();
    for args in [
        &["ls"][..],
        &["ls", "train"],
        &["ls", "s3://"],
        &["ls", "s3:///a"],
        &["ls", "s3://train", "--json", "--human"],
    ] {
        assert_eq!(world.run(args).code, Some(2), "{args:?}");
    }
}

#[test]
fn a_busy_server_is_asked_again_and_a_broken_answer_too() {
    for action in [
        Action::SlowDown { retry_after: None },
        Action::Reset { after: Some(1000) },
        Action::Cut { after: Some(1000) },
    ] {
        let world = World::with(SimOptions {
            faults: vec![Rule::new(action).only(Kind::List).skip(1).count(2)],
            ..synthetic(2500)
        });
        assert_eq!(names(world.run(&["ls", "-r", "s3://train"])).len(), 2500);
        assert_eq!(world.sim.counters().requests, 5);
    }
}

#[test]
fn pages_are_shown_before_an_error_and_the_error_is_not_hidden() {
    let world = World::with(SimOptions {
        faults: vec![
            Rule::new(Action::SlowDown { retry_after: None })
                .only(Kind::List)
                .skip(1),
        ],
        ..synthetic(2500)
    });
    let ran = world.run(&["ls", "-r", "s3://train", "--json"]);
    ran.fails(1, &["LIST s3://train: 503 SlowDown", "attempt 3 of 3"]);
    let text = String::from_utf8(ran.stdout).unwrap();
    assert_eq!(text.lines().count(), 1001);
    assert!(text.lines().last().unwrap().contains("\"SlowDown\""));
}

#[test]
fn a_deadline_and_a_signal_end_a_list_that_stalls() {
    let stall = Action::Stall {
        after: Some(100),
        ms: 600_000,
    };
    let world = World::with(SimOptions {
        faults: vec![Rule::new(stall).only(Kind::List).skip(1)],
        ..synthetic(2500)
    });
    let ran = world.run(&["ls", "-r", "s3://train", "--deadline", "500ms"]);
    ran.fails(1, &["LIST s3://train: deadline passed", &world.sim.url()]);

    let child = support::spawn(world.command(&["ls", "-r", "s3://train"]));
    let before = world.sim.counters().faults;
    support::eventually("a stalled request", || world.sim.counters().faults > before);
    kill_process(Pid::from_raw(child.id() as i32).unwrap(), Signal::INT).unwrap();
    let ran = Ran::from(child.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(130), "{}", ran.stderr);
}

#[test]
fn r27_a_page_is_there_before_the_next_one_is() {
    let stall = Action::Stall {
        after: None,
        ms: 600_000,
    };
    let world = World::with(SimOptions {
        faults: vec![Rule::new(stall).only(Kind::List).skip(1)],
        ..synthetic(1001)
    });
    let mut child = support::spawn(world.command(&["ls", "-r", "s3://train"]));
    let mut out = BufReader::new(child.stdout.take().unwrap());
    for _ in 0..1000 {
        assert!(out.read_line(&mut String::new()).unwrap() > 0);
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let world = World::with(synthetic(20_000));
    for args in [
        &["ls", "-r", "s3://train"][..],
        &["ls", "-r", "s3://train", "--json"],
    ] {
        let mut child = support::spawn(world.command(args));
        // More than a pipe holds follows.
        child
            .stdout
            .take()
            .unwrap()
            .read_exact(&mut [0; 100])
            .unwrap();
        let ran = Ran::from(child.wait_with_output().unwrap());
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    }
    assert!(world.sim.counters().requests < 40, "it went on for nobody");
}

#[test]
fn an_output_that_is_full_is_an_error() {
    let world = World::with(synthetic(10));
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = world.command(&["ls", "-r", "s3://train"]);
    let ran = Ran::from(command.stdout(full).output().unwrap());
    ran.fails(1, &["cannot write to stdout", "No space left"]);
}

/// Gives every request the same answer, as long as the process lives. Returns the URL.
fn canned(body: &str) -> String {
    let answer = format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let answer = answer.clone();
            thread::spawn(move || answer_all(stream, &answer));
        }
    });
    url
}

fn answer_all(mut stream: TcpStream, answer: &str) {
    let mut requests = BufReader::new(stream.try_clone().unwrap());
    let mut line = String::new();
    while requests.read_line(&mut line).is_ok_and(|read| read > 0) {
        if line == "\r\n" && stream.write_all(answer.as_bytes()).is_err() {
            return;
        }
        line.clear();
    }
}

#[test]
fn answers_that_are_no_whole_list_are_errors_and_never_shorter_lists() {
    let world = World::new();
    let object = "<Contents><Key>k</Key><Size>1</Size></Contents>";
    let whole =
        format!("<ListBucketResult><IsTruncated>false</IsTruncated>{object}</ListBucketResult>");
    let again = whole.replace(
        "<IsTruncated>false</IsTruncated>",
        "<IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>",
    );
    let ls = |body: &str| world.run(&["ls", "s3://train", "--endpoint", &canned(body)]);
    assert_eq!(names(ls(&whole)), ["k"]);
    for (body, shown, words) in [
        (&whole[..whole.len() - 9], 0, "breaks off after"),
        ("", 0, "breaks off after 0 bytes"),
        ("<html>hello</html>", 0, "not a list but <html>"),
        (&whole.replace('1', "-1"), 0, "<Size> is \"-1\""),
        (&whole.replace("false", "true"), 0, "does not say where"),
        (&again, 1, "goes on where this page began"),
    ] {
        let ran = ls(body);
        ran.fails(1, &["LIST s3://train: bad answer: ", words]);
        let text = String::from_utf8(ran.stdout).unwrap();
        assert_eq!(text.lines().count(), shown, "{text}");
    }
}
