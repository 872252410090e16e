//! Bytes staged for a device: they are right when a filling says so, whatever becomes of others; what fails is an
//! error; and nothing is written to a slot that is somebody else's. On a stand-in for the driver.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::task::Poll;
use std::thread;
use std::time::Duration;

use books::{block_on, wait_until};
use cuda_standin::{Standin, with_standin};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use s3engine_pool::cuda::{CudaError, STAGING_CHUNK};
use s3engine_pool::{Buffer, Landing, Memory, Pool, PoolError, PoolOptions, Window, WriteError};

mod books;

/// Half of what is copied at once.
const HALF: u64 = STAGING_CHUNK as u64 / 2;
/// Two chunks: as few as there can be.
const STAGING: u64 = 4 * HALF;
/// As long as a copy is to be under way for sure when a test looks.
const LONG: Duration = Duration::from_secs(3);

fn pool() -> Pool {
    let options = PoolOptions {
        slab_bytes: 8 * HALF,
        max_bytes: Some(64 * HALF),
        max_cuda_bytes: Some(8 * HALF),
        staging_bytes: STAGING,
        ..PoolOptions::default()
    };
    Pool::new(options).unwrap()
}

fn buffer(pool: &Pool, len: u64) -> Buffer {
    let memory = Memory::cuda(0).unwrap();
    pool.alloc(len, memory, Duration::from_secs(30)).unwrap()
}

fn bytes(random: &mut StdRng, len: usize) -> Vec<u8> {
    let mut word = random.random::<u64>();
    let words = std::iter::from_fn(|| {
        word = word.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
        Some(word.to_le_bytes())
    });
    let mut bytes: Vec<u8> = words.take(len.div_ceil(8)).flatten().collect();
    bytes.truncate(len);
    bytes
}

fn all_of(buffer: &Buffer) -> Vec<u8> {
    let mut all = vec![0; buffer.len() as usize];
    buffer.read_to_host(0, &mut all).unwrap();
    all
}

/// Writes `data` from the start of a window on, in pieces as they come from a socket.
async fn fill(landing: &mut Landing, data: &[u8], random: &mut StdRng) -> Result<u64, WriteError> {
    let mut window = landing.window(0, landing.len()).unwrap();
    let mut filling = window.filling();
    let mut at = 0;
    while at < data.len() {
        let piece = random.random_range(1..=600_000).min(data.len() - at);
        filling.write(at as u64, &data[at..at + piece]).await?;
        if random.random_bool(0.2) {
            filling.pause();
        }
        at += piece;
    }
    filling.finish().await
}

fn cuda(result: Result<u64, WriteError>) -> CudaError {
    match result {
        Err(WriteError::Cuda(error)) => error,
        other => panic!("CUDA has failed, and this came of it: {other:?}"),
    }
}

fn copiers() -> usize {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let names = threads
        .filter_map(|thread| std::fs::read_to_string(thread.unwrap().path().join("comm")).ok());
    names
        .filter(|name| name.trim() == "s3engine-copier")
        .count()
}

#[test]
fn what_is_written_in_pieces_of_any_size_and_in_any_order_is_there() {
    with_standin(|| {
        let pool = pool();
        let mut random = StdRng::seed_from_u64(1);
        for _ in 0..12 {
            let len = random.random_range(1..6 * HALF) as usize;
            let buffer = buffer(&pool, len as u64);
            let mut expected = all_of(&buffer);
            let mut landing = buffer.into_landing();
            let mut window = landing.window(0, len as u64).unwrap();
            let mut filling = window.filling();
            let mut staged = 0;
            let mut at = 0;
            while at < len {
                let piece = random.random_range(1..=900_000).min(len - at);
                // Sometimes a gap, which keeps its bytes; sometimes nothing at all.
                let gap = random.random_bool(0.3);
                let data = bytes(&mut random, if gap { 0 } else { piece });
                block_on(filling.write(at as u64, &data)).unwrap();
                expected[at..at + data.len()].copy_from_slice(&data);
                staged += data.len() as u64;
                at += piece;
            }
            assert!(matches!(
                block_on(filling.write(len as u64, &[1])),
                Err(WriteError::OutOfBounds(_))
            ));
            assert_eq!(block_on(filling.finish()), Ok(staged));
            drop(window);
            let buffer = landing.finish().unwrap();
            assert!(all_of(&buffer) == expected, "{len} bytes");
        }
    });
}

#[test]
fn host_memory_is_written_at_once_and_nothing_is_staged() {
    with_standin(|| {
        let pool = pool();
        let buffer = pool.try_alloc(HALF, Memory::Host).unwrap();
        let mut landing = buffer.into_landing();
        let mut window = landing.window(0, HALF).unwrap();
        let mut filling = window.filling();
        block_on(filling.write(5, b"here")).unwrap();
        assert_eq!(block_on(filling.finish()), Ok(0));
        drop(window);
        assert_eq!(
            &landing.finish().unwrap().as_slice().unwrap()[5..9],
            b"here"
        );
        assert_eq!(copiers(), 0);
    });
}

/// A read of a socket on which nothing has come.
fn nothing_there(room: &mut [u8]) -> io::Result<usize> {
    assert!(!room.is_empty());
    Err(io::ErrorKind::WouldBlock.into())
}

#[test]
fn what_a_read_puts_there_counts_and_no_more() {
    with_standin(|| {
        let pool = pool();
        for memory in [Memory::Host, Memory::cuda(0).unwrap()] {
            let len = 3 * HALF + 5;
            let buffer = pool.try_alloc(len, memory).unwrap();
            let mut expected = all_of(&buffer);
            let mut landing = buffer.into_landing();
            let mut window = landing.window(0, len).unwrap();
            let mut filling = window.filling();
            let (mut at, mut byte) = (10, 0);
            while at < len - 10 {
                byte += 1;
                let most = (len - 10 - at).min(700_000);
                let blocked = block_on(filling.receive(at, most, nothing_there)).unwrap();
                assert_eq!(blocked.unwrap_err().kind(), io::ErrorKind::WouldBlock);
                let read = |room: &mut [u8]| {
                    assert!(!room.is_empty() && room.len() as u64 <= most);
                    // Says what it has filled, or more than there is room for.
                    let (said, filled) = match byte % 3 {
                        0 => (usize::MAX, room.len()),
                        _ => (room.len().div_ceil(2), room.len().div_ceil(2)),
                    };
                    room[..filled].fill(byte);
                    Ok(said)
                };
                let received = block_on(filling.receive(at, most, read)).unwrap().unwrap();
                expected[at as usize..][..received].fill(byte);
                at += received as u64;
            }
            let end = block_on(filling.receive(at, 10, |_| Ok(0))).unwrap();
            assert_eq!(end.unwrap(), 0);
            let empty = block_on(filling.receive(len, 0, nothing_there)).unwrap();
            assert_eq!(empty.unwrap(), 0);
            assert!(block_on(filling.receive(len, 1, nothing_there)).is_err());
            assert!(block_on(filling.receive(1, u64::MAX, nothing_there)).is_err());
            let staged = block_on(filling.finish()).unwrap();
            let expected_staged = if memory == Memory::Host { 0 } else { at - 10 };
            assert_eq!(staged, expected_staged);
            drop(window);
            assert!(all_of(&landing.finish().unwrap()) == expected, "{memory}");
        }
    });
}

#[test]
fn who_has_received_nothing_holds_no_chunk() {
    with_standin(|| {
        let pool = pool();
        let mut waiting: Vec<_> = (0..3).map(|_| buffer(&pool, 1000).into_landing()).collect();
        let mut windows: Vec<_> = waiting
            .iter_mut()
            .map(|landing| landing.window(0, 1000).unwrap())
            .collect();
        let mut fillings: Vec<_> = windows.iter_mut().map(Window::filling).collect();
        for filling in &mut fillings {
            let blocked = block_on(filling.receive(0, 1000, nothing_there)).unwrap();
            assert!(blocked.is_err());
        }
        // More than there are chunks, and yet all are there for another.
        let mut random = StdRng::seed_from_u64(7);
        let data = bytes(&mut random, 5 * HALF as usize);
        let mut landing = buffer(&pool, 5 * HALF).into_landing();
        block_on(fill(&mut landing, &data, &mut random)).unwrap();
        assert!(all_of(&landing.finish().unwrap()) == data);
        drop(fillings);
    });
}

#[test]
fn many_fill_at_once_and_leave_at_any_moment_with_two_chunks_for_all() {
    with_standin(|| {
        let pool = pool();
        thread::scope(|scope| {
            for nth in 0..6 {
                let pool = &pool;
                scope.spawn(move || {
                    let mut random = StdRng::seed_from_u64(nth);
                    for _ in 0..25 {
                        let len = random.random_range(1..HALF) as usize;
                        let data = bytes(&mut random, len);
                        let mut landing = buffer(pool, len as u64).into_landing();
                        let polls = match random.random_bool(0.5) {
                            true => random.random_range(0..4),
                            false => usize::MAX,
                        };
                        let filled =
                            block_on(within(polls, fill(&mut landing, &data, &mut random)));
                        let Some(staged) = filled else { continue };
                        assert_eq!(staged, Ok(len as u64));
                        assert!(all_of(&landing.finish().unwrap()) == data);
                    }
                });
            }
        });
        // Nothing was lost: all chunks are there for one who fills more than they hold, and all memory is back.
        let mut random = StdRng::seed_from_u64(99);
        let data = bytes(&mut random, 8 * HALF as usize);
        let mut landing = buffer(&pool, 8 * HALF).into_landing();
        block_on(fill(&mut landing, &data, &mut random)).unwrap();
        assert!(all_of(&landing.finish().unwrap()) == data);
    });
}

/// A future that is dropped after so many polls.
async fn within<F: Future>(mut polls: usize, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    poll_fn(|context| {
        if polls == 0 {
            return Poll::Ready(None);
        }
        polls -= 1;
        future.as_mut().poll(context).map(Some)
    })
    .await
}

/// Sends a chunk, and leaves while it is copied.
fn leave_behind(landing: &mut Landing, data: &[u8]) {
    let mut window = landing.window(0, landing.len()).unwrap();
    let mut filling = window.filling();
    block_on(filling.write(0, data)).unwrap();
}

#[test]
fn a_slot_is_nobody_elses_while_a_copy_into_it_is_under_way() {
    Standin::default().delay(LONG).run(|| {
        let pool = pool();
        let memory = Memory::cuda(0).unwrap();
        let mut landing = buffer(&pool, 8 * HALF).into_landing();
        leave_behind(&mut landing, &vec![1; 4 * HALF as usize]);
        drop(landing);
        assert_eq!(pool.stats().quarantined, 8 * HALF);
        assert!(matches!(
            pool.try_alloc(8 * HALF, memory),
            Err(PoolError::WouldBlock { .. })
        ));
        let mut next = buffer(&pool, 8 * HALF);
        next.write_from_host(0, &vec![2; 8 * HALF as usize])
            .unwrap();
        thread::sleep(LONG / 4);
        assert!(all_of(&next) == vec![2; 8 * HALF as usize], "written late");
        assert_eq!(pool.stats().quarantined, 0);
    });
}

#[test]
fn who_waits_for_the_slot_itself_gets_it_when_the_copy_has_ended() {
    Standin::default().delay(LONG).run(|| {
        let pool = pool();
        let mut landing = buffer(&pool, 4 * HALF).into_landing();
        leave_behind(&mut landing, &vec![1; 2 * HALF as usize]);
        let returning = landing.finish().expect_err("a copy is under way");
        let buffer = block_on(returning.wait()).unwrap();
        assert!(all_of(&buffer)[..2 * HALF as usize] == vec![1; 2 * HALF as usize]);
    });
}

#[test]
fn who_fills_a_window_again_is_not_overwritten_by_the_first_try() {
    Standin::default().delay(LONG).run(|| {
        let pool = pool();
        // Both chunks are there from now on.
        leave_behind(
            &mut buffer(&pool, 4 * HALF).into_landing(),
            &vec![0; 4 * HALF as usize],
        );
        let mut landing = buffer(&pool, 2 * HALF).into_landing();
        let mut window = landing.window(0, 2 * HALF).unwrap();
        let mut first = window.filling();
        block_on(first.write(0, &vec![1; 2 * HALF as usize])).unwrap();
        drop(first);
        let mut second = window.filling();
        let at_once = block_on(within(1, second.write(0, &[2; 10])));
        assert_eq!(at_once, None, "the first copy comes first");
        block_on(second.write(0, &[2; 10])).unwrap();
        block_on(second.finish()).unwrap();
        let mut third = window.filling();
        block_on(third.write(0, &vec![3; 2 * HALF as usize])).unwrap();
        block_on(third.stop());
        drop(window);
        let buffer = landing.finish().expect("what stops is waited for");
        assert!(all_of(&buffer) == vec![3; 2 * HALF as usize]);
    });
}

/// One of six fillings fails, for one call of the driver did. All slots come back, and the others are right.
fn one_fails(expected: u32) {
    let pool = pool();
    let mut random = StdRng::seed_from_u64(3);
    let mut failures = Vec::new();
    for _ in 0..6 {
        let data = bytes(&mut random, 2 * HALF as usize);
        let mut landing = buffer(&pool, data.len() as u64).into_landing();
        let filled = block_on(fill(&mut landing, &data, &mut random));
        let buffer = landing.finish().expect("nothing is under way");
        match filled {
            Ok(_) => assert!(all_of(&buffer) == data),
            failed => failures.push(cuda(failed)),
        }
    }
    let [CudaError::Driver { code, .. }] = &failures[..] else {
        panic!("one fails: {failures:?}")
    };
    assert_eq!(*code, expected, "{failures:?}");
}

#[test]
fn a_copy_that_is_refused_is_an_error_of_its_filling_alone() {
    Standin::default()
        .faults("cuMemcpyHtoDAsync_v2=1@2-2")
        .run(|| one_fails(1));
}

#[test]
fn a_copy_of_which_nobody_knows_how_it_ended_is_an_error() {
    Standin::default()
        .faults("cuEventSynchronize=1@3-3")
        .run(|| one_fails(1));
}

#[test]
fn a_copy_without_an_event_behind_it_is_an_error() {
    Standin::default()
        .faults("cuEventRecord=1@2-2")
        .run(|| one_fails(1));
}

#[test]
fn a_copy_for_which_no_event_is_made_is_an_error() {
    Standin::default()
        .faults("cuEventCreate=2@1-1")
        .run(|| one_fails(2));
}

#[test]
fn without_pinned_memory_a_filling_fails_and_the_next_tries_again() {
    Standin::default()
        .faults("cuMemHostAlloc=2@1-1")
        .run(|| one_fails(2));
}

#[test]
fn where_no_more_can_be_pinned_one_chunk_must_do_for_all() {
    Standin::default().faults("cuMemHostAlloc=2@2").run(|| {
        let pool = pool();
        thread::scope(|scope| {
            for nth in 0..3 {
                let pool = &pool;
                scope.spawn(move || {
                    let mut random = StdRng::seed_from_u64(nth);
                    let data = bytes(&mut random, 2 * HALF as usize + 77);
                    let mut landing = buffer(pool, data.len() as u64).into_landing();
                    block_on(fill(&mut landing, &data, &mut random)).unwrap();
                    assert!(all_of(&landing.finish().unwrap()) == data);
                });
            }
        });
    });
}

#[test]
fn a_lost_device_fails_all_who_wait_and_all_who_come() {
    Standin::default()
        .faults("cuMemcpyHtoDAsync_v2=700@2")
        .run(|| {
            let pool = pool();
            let buffers: Vec<_> = (0..4).map(|_| buffer(&pool, 2 * HALF)).collect();
            let results: Vec<_> = thread::scope(|scope| {
                let fillings = buffers.into_iter().enumerate().map(|(nth, buffer)| {
                    scope.spawn(move || {
                        let mut random = StdRng::seed_from_u64(nth as u64);
                        let mut landing = buffer.into_landing();
                        let data = bytes(&mut random, 2 * HALF as usize);
                        let filled = block_on(fill(&mut landing, &data, &mut random));
                        (filled, landing)
                    })
                });
                let fillings: Vec<_> = fillings.collect();
                fillings
                    .into_iter()
                    .map(|one| one.join().unwrap())
                    .collect()
            });
            let (good, failed): (Vec<_>, Vec<_>) =
                results.into_iter().partition(|(filled, _)| filled.is_ok());
            assert!(good.len() <= 1, "the second copy and all after it fail");
            for (failed, landing) in failed {
                assert!(cuda(failed).is_device_lost());
                let mut landing = landing
                    .finish()
                    .expect("nothing is under way")
                    .into_landing();
                let again = block_on(fill(&mut landing, &[1; 10], &mut StdRng::seed_from_u64(0)));
                assert!(cuda(again).is_device_lost());
                landing.finish().expect("nothing is under way");
            }
            wait_until("the copier has ended", || copiers() == 0);
        });
}

#[test]
fn the_copier_starts_with_the_first_bytes_and_ends_with_the_pool() {
    with_standin(|| {
        for _ in 0..3 {
            let pool = pool();
            let mut landing = buffer(&pool, 100).into_landing();
            assert_eq!(copiers(), 0);
            block_on(fill(&mut landing, &[7; 100], &mut StdRng::seed_from_u64(0))).unwrap();
            wait_until("it has started", || copiers() == 1);
            drop((landing, pool));
            wait_until("the copier has ended", || copiers() == 0);
        }
    });
}

#[test]
fn a_pool_that_ends_while_bytes_are_copied_waits_for_nobody_and_leaves_nothing() {
    Standin::default()
        .delay(Duration::from_millis(200))
        .run(|| {
            let pool = pool();
            let mut landing = buffer(&pool, 4 * HALF).into_landing();
            leave_behind(&mut landing, &vec![1; 4 * HALF as usize]);
            drop((landing, pool));
            wait_until("the copier has ended", || copiers() == 0);
            let free = s3engine_pool::cuda::Gpu::nth(0).unwrap().free_memory();
            assert_eq!(free, Ok(1 << 30), "all memory is back");
        });
}

#[test]
fn two_devices_have_a_copier_each() {
    Standin::default().gpus(2).run(|| {
        let pool = pool();
        thread::scope(|scope| {
            for ordinal in 0..2 {
                let pool = &pool;
                scope.spawn(move || {
                    let mut random = StdRng::seed_from_u64(ordinal.into());
                    let memory = Memory::cuda(ordinal).unwrap();
                    for _ in 0..10 {
                        let data = bytes(&mut random, 3 * HALF as usize);
                        let buffer = pool.try_alloc(3 * HALF, memory).unwrap();
                        let mut landing = buffer.into_landing();
                        block_on(fill(&mut landing, &data, &mut random)).unwrap();
                        assert!(all_of(&landing.finish().unwrap()) == data);
                    }
                });
            }
        });
        // A look may miss threads while others end.
        wait_until("each has one", || copiers() == 2);
    });
}

#[test]
fn in_a_forked_child_nothing_is_staged_and_the_parent_goes_on() {
    with_standin(|| {
        let pool = pool();
        let mut random = StdRng::seed_from_u64(0);
        let mut landing = buffer(&pool, 3 * HALF).into_landing();
        let mut window = landing.window(0, 3 * HALF).unwrap();
        let mut filling = window.filling();
        let data = bytes(&mut random, 3 * HALF as usize);
        block_on(filling.write(0, &data[..1000])).unwrap();
        // SAFETY: the child runs only this thread, and leaves by `_exit` without running destructors.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // The chunk that has begun takes what fits; a further one is the parent's.
            let refused = block_on(filling.write(1000, &data[1000..]));
            let forked = refused == Err(WriteError::Cuda(CudaError::Forked));
            // SAFETY: as above.
            unsafe { libc::_exit(if forked { 0 } else { 1 }) }
        }
        let mut status = 0;
        // SAFETY: `status` outlives the call.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "it was told");
        block_on(filling.write(1000, &data[1000..])).unwrap();
        block_on(filling.finish()).unwrap();
        drop(window);
        assert!(all_of(&landing.finish().unwrap()) == data);
    });
}
