//! The command as a parent process sees it.

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Output, Stdio};

fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_s3sim"));
    command.stdin(Stdio::null());
    command
}

#[test]
fn it_says_where_it_listens_serves_and_ends_with_its_stdin() {
    let mut child = command()
        .args(["--anonymous", "--threads", "1", "--exit-with-stdin"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    let address = line
        .trim_end()
        .strip_prefix("listening on http://")
        .unwrap();

    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(support::PATIENCE)).unwrap();
    let request = "GET /bench/10 HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200 OK\r\n"));

    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "", "one line on stdout and no more");
}

/// Asserts that the command failed with one clear line, and gives it.
fn failure(output: &Output) -> String {
    assert!(!output.status.success() && output.stdout.is_empty());
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert!(text.starts_with("error: "), "{text}");
    text
}

#[test]
fn what_it_cannot_do_it_says() {
    let missing = command()
        .args(["--root", "/no/such/folder"])
        .output()
        .unwrap();
    assert!(failure(&missing).contains("/no/such/folder"));
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("faults.toml");
    std::fs::write(
        &script,
        "[[rule]]\naction = { trickle = { bytes = 0, ms = 1 } }",
    )
    .unwrap();
    let impossible = command().arg("--faults").arg(&script).output().unwrap();
    let text = failure(&impossible);
    assert!(
        text.contains("faults.toml") && text.contains("bytes must be at least 1"),
        "{text}"
    );
    let model = folder.path().join("mine.toml");
    std::fs::write(&model, "line_rate = \"1GB/s\"\nop_mss = 1").unwrap();
    let wrong = command().arg("--model").arg(&model).output().unwrap();
    let text = failure(&wrong);
    assert!(
        text.contains("mine.toml") && text.contains("op_mss"),
        "{text}"
    );
    let unknown = command().args(["--model", "nome"]).output().unwrap();
    assert!(failure(&unknown).contains("far-gpu"));
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let taken = command().args(["--listen", &address]).output().unwrap();
    assert!(failure(&taken).contains(&address));
}
