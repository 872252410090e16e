//! A server that gives every request the same answer, for answers that the simulator would never give.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;

/// Answers every request on every connection with `answer`, as long as the process lives. Returns the URL.
pub fn canned_server(answer: impl Into<String>) -> String {
    let answer: String = answer.into();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let address = listener.local_addr().expect("its address");
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let answer = answer.clone();
            thread::spawn(move || serve(stream, &answer));
        }
    });
    format!("http://{address}")
}

fn serve(mut stream: TcpStream, answer: &str) {
    let mut request = Vec::new();
    let mut byte = [0];
    while matches!(stream.read(&mut byte), Ok(1)) {
        request.push(byte[0]);
        if request.ends_with(b"\r\n\r\n") {
            request.clear();
            if stream.write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    }
}
