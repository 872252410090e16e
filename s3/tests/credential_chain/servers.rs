//! Servers on 127.0.0.1 that give keys, and one that says who signed what it was asked.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

/// A request, as text.
pub struct Asked {
    pub line: String,
    pub head: String,
    pub body: String,
}

impl Asked {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

/// A status line's end, such as `200 OK`, and a body.
pub type Answer = (&'static str, String);

/// Serves until the process ends. Returns its URL and what it was asked.
pub fn serve(
    answer: impl Fn(usize, &Asked) -> Answer + Send + Sync + 'static,
) -> (String, Receiver<Asked>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for (nth, stream) in listener.incoming().enumerate() {
            let stream = stream.unwrap();
            stream
                .set_read_timeout(Some(Duration::from_secs(30)))
                .unwrap();
            let Some(asked) = read(&stream) else { continue };
            let (status, body) = answer(nth, &asked);
            // Nobody may wait for it any more.
            let _ = sender.send(asked);
            let length = body.len();
            let text = format!(
                "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nETag: \"a\"\r\nConnection: close\r\n\r\n{body}"
            );
            let _ = (&stream).write_all(text.as_bytes());
        }
    });
    (url, receiver)
}

/// A URL where nobody answers.
pub fn nowhere() -> String {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

fn read(stream: &TcpStream) -> Option<Asked> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") && head != "\r\n" {
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let mut asked = Asked {
        line: line.trim().to_owned(),
        head,
        body: String::new(),
    };
    let length = asked
        .header("content-length")
        .map_or(0, |n| n.parse().unwrap());
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    asked.body = String::from_utf8(body).unwrap();
    Some(asked)
}

/// The keys of a role, as STS gives them for `action`.
pub fn role(action: &str, id: &str) -> Answer {
    let body = format!(
        "<{action}Response xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><{action}Result><Credentials>\
         <AccessKeyId>{id}</AccessKeyId><SecretAccessKey>hush</SecretAccessKey><SessionToken>{id}-token</SessionToken>\
         <Expiration>2099-01-01T00:00:00Z</Expiration></Credentials><AssumedRoleUser><AssumedRoleId>a:b</AssumedRoleId>\
         <Arn>arn:aws:sts::123456789012:assumed-role/reader/s</Arn></AssumedRoleUser></{action}Result></{action}Response>"
    );
    ("200 OK", body)
}

/// Keys as agents of containers and instances give them.
pub fn agent(id: &str) -> Answer {
    let body = format!(
        "{{\"Code\":\"Success\",\"Type\":\"AWS-HMAC\",\"LastUpdated\":\"2020-01-01T00:00:00Z\",\"AccessKeyId\":\"{id}\",\
         \"SecretAccessKey\":\"hush\",\"Token\":\"{id}-token\",\"Expiration\":\"2099-01-01T00:00:00Z\"}}"
    );
    ("200 OK", body)
}

/// The metadata of an instance, version 2: nothing without a token of its own.
pub fn instance(asked: &Asked) -> Answer {
    let line = &*asked.line;
    if line.starts_with("PUT /latest/api/token ") {
        assert!(
            asked
                .header("x-aws-ec2-metadata-token-ttl-seconds")
                .is_some()
        );
        return (
            "200 OK\r\nx-aws-ec2-metadata-token-ttl-seconds: 21600",
            "imds-token".into(),
        );
    }
    if asked.header("x-aws-ec2-metadata-token") != Some("imds-token") {
        return ("401 Unauthorized", String::new());
    }
    match line {
        "GET /latest/meta-data/iam/security-credentials/ HTTP/1.1" => ("200 OK", "reader".into()),
        "GET /latest/meta-data/iam/security-credentials/reader HTTP/1.1" => agent("INSTANCE"),
        _ => ("404 Not Found", String::new()),
    }
}
