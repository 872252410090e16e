//! Servers with answers that the simulator would never give.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

/// Answers every request on every connection with `answer`, as long as the process lives. Returns the URL.
pub fn canned_server(answer: impl Into<String>) -> String {
    let answer: String = answer.into();
    answering_server(move |_| answer.clone())
}

/// Rejects every RDMA token, and repeats it in the message.
pub fn echoing_server() -> String {
    answering_server(|request| {
        let token = request
            .lines()
            .find_map(|line| line.strip_prefix("x-amz-rdma-token: "))
            .unwrap_or("none");
        let code = "InvalidRDMAToken";
        let body = format!("<Error><Code>{code}</Code><Message>bad {token}</Message></Error>");
        let length = body.len();
        format!("HTTP/1.1 400 Bad Request\r\nContent-Length: {length}\r\n\r\n{body}")
    })
}

/// The same, and hands on the requests that come.
pub fn recording_server(answer: impl Into<String>) -> (String, Receiver<String>) {
    let answer: String = answer.into();
    let (sender, requests) = channel();
    let url = answering_server(move |request| {
        // Nobody may listen any more.
        let _ = sender.send(request.to_owned());
        answer.clone()
    });
    (url, requests)
}

/// Answers every request as `answer` says. Returns the URL.
pub fn answering_server(answer: impl Fn(&str) -> String + Clone + Send + 'static) -> String {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let address = listener.local_addr().expect("its address");
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let answer = answer.clone();
            thread::spawn(move || serve(stream, answer));
        }
    });
    format!("http://{address}")
}

fn serve(mut stream: TcpStream, answer: impl Fn(&str) -> String) {
    let mut request = Vec::new();
    let mut byte = [0];
    while matches!(stream.read(&mut byte), Ok(1)) {
        request.push(byte[0]);
        if request.ends_with(b"\r\n\r\n") {
            let answer = answer(&String::from_utf8_lossy(&request));
            request.clear();
            if stream.write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    }
}
