//! Bytes that the kernel receives into windows by itself: where they land, and whose the slot is until it is done.

use std::io::{self, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;

use s3engine_pool::uring::{self, Runtime, Socket};
use s3engine_pool::{HugePages, Landing, Memory, Pool, PoolOptions, Window, WriteError};

const LEN: u64 = 1 << 20;

/// Runs a test where io_uring can be used.
fn run<F: Future>(test: impl FnOnce() -> F) {
    if let Err(why) = uring::probe() {
        return eprintln!("skipped: {why}");
    }
    let runtime = Runtime::new().unwrap();
    assert!(!uring::is_here());
    runtime.block_on(async {
        assert!(uring::is_here());
        let test = Box::pin(test());
        let bounded = tokio::time::timeout(Duration::from_secs(30), test);
        bounded.await.expect("in time");
    });
    assert!(!uring::is_here());
}

/// Both ends of a connection.
fn pair() -> (Socket, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (theirs, _) = listener.accept().unwrap();
    (Socket::new(ours.into()), theirs)
}

fn landing(pool: &Pool) -> (Landing, Window) {
    let mut landing = pool.try_alloc(LEN, Memory::Host).unwrap().into_landing();
    let window = landing.window(0, LEN).unwrap();
    (landing, window)
}

fn pool() -> Pool {
    let options = PoolOptions {
        slab_bytes: 4 << 20,
        max_bytes: Some(4 << 20),
        huge_pages: HugePages::Never,
        ..PoolOptions::default()
    };
    Pool::new(options).unwrap()
}

/// Waits until the kernel has so many bytes for a socket.
async fn has_come(socket: &Socket, bytes: u64) {
    while socket.received().unwrap() < bytes {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn bytes_land_whole_however_they_come_and_are_counted() {
    run(|| async {
        let pool = pool();
        let (socket, mut theirs) = pair();
        let (landing, mut window) = landing(&pool);
        let mut filling = window.filling();
        assert!(filling.is_direct());
        let before = socket.received().unwrap();
        let receiving = filling.receive_by(&socket, 10, 1000).await.unwrap();
        let sender = std::thread::spawn(move || {
            for nth in 0..100_u8 {
                theirs.write_all(&[nth; 10]).unwrap();
            }
            theirs
        });
        assert_eq!(receiving.await.unwrap(), 1000);
        assert_eq!(socket.received().unwrap(), before + 1000);
        let expected: Vec<u8> = (0..100).flat_map(|nth| [nth; 10]).collect();
        assert_eq!(filling.received(10, 1000), Some(&*expected));
        drop(sender.join().unwrap());
        let end = filling.receive_by(&socket, 1010, 10).await.unwrap();
        assert_eq!(end.await.unwrap(), 0, "the other end has closed");
        drop(window);
        let buffer = landing.finish().expect("nothing is under way");
        assert_eq!(buffer.as_slice().unwrap()[10..1010], *expected);
        assert!(socket.into_fd().is_some());
    });
}

#[test]
fn what_came_before_the_end_or_a_stop_is_there() {
    run(|| async {
        let pool = pool();
        for stopped in [false, true] {
            let (socket, mut theirs) = pair();
            let (landing, mut window) = landing(&pool);
            let mut filling = window.filling();
            let receiving = filling.receive_by(&socket, 0, LEN).await.unwrap();
            theirs.write_all(b"seven..").unwrap();
            has_come(&socket, 7).await;
            let received = match stopped {
                true => receiving.stop().await,
                false => {
                    drop(theirs);
                    receiving.await
                }
            };
            assert_eq!(received.unwrap(), 7, "stopped: {stopped}");
            drop(window);
            let buffer = landing.finish().expect("nothing is under way");
            assert_eq!(buffer.as_slice().unwrap()[..7], *b"seven..");
        }
    });
}

#[test]
fn a_reset_is_an_error() {
    run(|| async {
        let pool = pool();
        let (socket, theirs) = pair();
        let (_landing, mut window) = landing(&pool);
        let mut filling = window.filling();
        let receiving = filling.receive_by(&socket, 0, LEN).await.unwrap();
        rustix::net::sockopt::set_socket_linger(&theirs, Some(Duration::ZERO)).unwrap();
        drop(theirs);
        let error = receiving.await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    });
}

#[test]
fn a_slot_is_nobodys_until_the_kernel_is_done_with_what_nobody_waits_for() {
    run(|| async {
        let pool = pool();
        let (socket, mut theirs) = pair();
        let (landing, mut window) = landing(&pool);
        let mut filling = window.filling();
        drop(filling.receive_by(&socket, 0, LEN).await.unwrap());
        drop(window);
        // The kernel is told of the receive, and of its end, only when this thread next waits.
        let returning = landing.finish().expect_err("the kernel may still write");
        assert_eq!(pool.stats().quarantined, LEN);
        let buffer = returning.wait().await.expect("the kernel is done");
        assert_eq!(pool.stats().quarantined, 0);
        let before = buffer.as_slice().unwrap().to_vec();
        // Whatever comes now goes nowhere: the socket was shut down.
        let _ = theirs.write_all(&[0xff; 4096]);
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(buffer.as_slice().unwrap(), before);
    });
}

#[test]
fn who_fills_a_window_again_waits_for_the_kernel() {
    run(|| async {
        let pool = pool();
        for by_kernel in [false, true] {
            let ((first, _), (second, mut theirs)) = (pair(), pair());
            let (landing, mut window) = landing(&pool);
            let receiving = window.filling();
            let mut filling = receiving;
            drop(filling.receive_by(&first, 0, LEN).await.unwrap());
            let mut filling = window.filling();
            theirs.write_all(b"again").unwrap();
            match by_kernel {
                true => {
                    let receiving = filling.receive_by(&second, 0, 5).await.unwrap();
                    assert_eq!(receiving.await.unwrap(), 5);
                }
                false => filling.write(0, b"again").await.unwrap(),
            }
            drop(window);
            let buffer = landing.finish().expect("nothing is under way");
            assert_eq!(buffer.as_slice().unwrap()[..5], *b"again");
        }
    });
}

#[test]
fn a_socket_is_given_back_only_when_the_kernel_is_done_with_it() {
    run(|| async {
        let pool = pool();
        let (socket, _theirs) = pair();
        let (_landing, mut window) = landing(&pool);
        let mut filling = window.filling();
        drop(filling.receive_by(&socket, 0, LEN).await.unwrap());
        assert!(socket.into_fd().is_none());
    });
}

#[test]
fn nothing_is_received_outside_the_window_or_to_where_a_remote_may_write() {
    run(|| async {
        let pool = pool();
        let (socket, _theirs) = pair();
        let (_landing, mut window) = landing(&pool);
        let mut filling = window.filling();
        for (at, most) in [(0, LEN + 1), (LEN, 1), (u64::MAX, 2)] {
            let refused = filling.receive_by(&socket, at, most).await.err();
            let refused = refused.unwrap_or_else(|| panic!("{most} bytes at {at}"));
            assert!(matches!(refused, WriteError::OutOfBounds(_)), "{refused:?}");
        }
    });
}

#[test]
fn a_runtime_that_ends_waits_for_what_it_has_under_way() {
    if let Err(why) = uring::probe() {
        return eprintln!("skipped: {why}");
    }
    let pool = pool();
    let (socket, _theirs) = pair();
    let (landing, mut window) = landing(&pool);
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        let mut filling = window.filling();
        drop(filling.receive_by(&socket, 0, LEN).await.unwrap());
    });
    drop((socket, runtime));
    drop(window);
    landing.finish().expect("nothing is under way");
}
