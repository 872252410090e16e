//! The floor: sockets of blocking threads, read straight into touched memory, and nothing else.

use std::io::{self, Write};
use std::net::TcpStream;
use std::sync::Mutex;
use std::thread;

use rustix::net::{RecvFlags, recv};

use crate::memory;
use crate::window::{Measured, Turns};
use crate::work::{BUCKET, Result, Work};

/// Heads of answers are shorter.
const HEAD: usize = 4 << 10;

/// One thread and one connection for each request that is in flight.
pub fn run(work: &Work) -> Result<Measured> {
    let shape = &work.shape;
    let all = memory::touched(shape.each() * shape.places())?;
    let places: Vec<_> = all.chunks_mut(shape.each()).map(Mutex::new).collect();
    let turns = Turns::default();
    thread::scope(|scope| {
        let threads: Vec<_> = (0..shape.in_flight)
            .map(|_| scope.spawn(|| one_connection(work, &places, &turns)))
            .collect();
        let measured = turns.lead(shape.window(), thread::sleep);
        for thread in threads {
            thread.join().map_err(|_| "a thread panicked")??;
        }
        Ok(measured)
    })
}

fn one_connection(work: &Work, places: &[Mutex<&mut [u8]>], turns: &Turns) -> io::Result<()> {
    let mut socket = TcpStream::connect(work.server)?;
    socket.set_nodelay(true)?;
    while let Some(nth) = turns.next() {
        let place = nth % places.len();
        let range = work.shape.range(place);
        let range = range.map_or(String::new(), |(start, end)| {
            format!("Range: bytes={start}-{}\r\n", end - 1)
        });
        let (key, host) = (work.key(), work.server);
        let request = format!("GET /{BUCKET}/{key} HTTP/1.1\r\nHost: {host}\r\n{range}\r\n");
        socket.write_all(request.as_bytes())?;
        let mut memory = places[place]
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        receive(&socket, &mut memory)?;
        turns.did();
    }
    Ok(())
}

/// The body behind a head, whose bytes are looked at first and taken then.
fn receive(socket: &TcpStream, body: &mut [u8]) -> io::Result<()> {
    let mut head = [0; HEAD];
    let end = loop {
        let (_, seen) = recv(socket, &mut head[..], RecvFlags::PEEK)?;
        match head[..seen].windows(4).position(|four| four == b"\r\n\r\n") {
            Some(at) => break at + 4,
            None if seen == 0 || seen == HEAD => return Err(io::ErrorKind::UnexpectedEof.into()),
            None => {}
        }
    };
    recv(socket, &mut head[..end], RecvFlags::empty())?;
    let mut at = 0;
    while at < body.len() {
        match recv(socket, &mut body[at..], RecvFlags::WAITALL)?.1 {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => at += read,
        }
    }
    Ok(())
}
