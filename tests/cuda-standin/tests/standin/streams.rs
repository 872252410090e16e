//! Streams do things in order, and later.

use std::ffi::c_void;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use cuda_standin::with_standin;
use cudarc::driver::sys;

use crate::calls::{
    INVALID_VALUE, MIB, NO_STREAM, alloc, event, pinned, read, slab, start, stream, write,
};

/// What a stream waits for.
struct Gate(Receiver<()>);

unsafe extern "C" fn pass(gate: *mut c_void) {
    // SAFETY: the box that `close` made, once.
    let gate = unsafe { Box::from_raw(gate.cast::<Gate>()) };
    let _ = gate.0.recv();
}

/// The stream does nothing until what is returned is sent to, or dropped.
fn close(stream: sys::CUstream) -> Sender<()> {
    let (open, wait) = channel();
    let gate = Box::into_raw(Box::new(Gate(wait)));
    ok!(cuLaunchHostFunc(stream, Some(pass), gate.cast()));
    open
}

fn copy(to: u64, from: &[u8], stream: sys::CUstream) -> u32 {
    code!(cuMemcpyHtoDAsync_v2(
        to,
        from.as_ptr().cast(),
        from.len(),
        stream
    ))
}

#[test]
fn a_copy_from_pinned_memory_reads_it_when_its_turn_comes() {
    with_standin(|| {
        start(0);
        let (device, source) = (slab(0, 2 * MIB), pinned(4096));
        assert_eq!(write(device, &[1; 4096]), 0);
        let (stream, event) = (stream(), event());
        source.fill(2);
        let open = close(stream);
        assert_eq!(copy(device, source, stream), 0);
        ok!(cuEventRecord(event, stream));
        assert_eq!(code!(cuEventQuery(event)), 600);
        assert_eq!(code!(cuStreamQuery(stream)), 600);
        assert_eq!(read(device, 4096), [1; 4096], "before the event");
        source.fill(3);
        drop(open);
        ok!(cuEventSynchronize(event));
        ok!(cuEventQuery(event));
        assert_eq!(
            read(device, 4096),
            [3; 4096],
            "what it was when the copy was done"
        );
    });
}

#[test]
fn a_copy_from_other_memory_takes_it_at_once() {
    with_standin(|| {
        start(0);
        let (device, stream) = (alloc(MIB), stream());
        let mut source = vec![2; 4096];
        let open = close(stream);
        assert_eq!(copy(device, &source, stream), 0);
        source.fill(3);
        assert_eq!(read(device, 4096), [0; 4096]);
        drop(open);
        ok!(cuStreamSynchronize(stream));
        assert_eq!(read(device, 4096), [2; 4096]);
        source.fill(0);
        let to = source.as_mut_ptr().cast();
        ok!(cuMemcpyDtoHAsync_v2(to, device, 4096, stream));
        assert_eq!(source, [2; 4096], "and is there when the call returns");
    });
}

#[test]
fn streams_wait_for_events_of_others() {
    with_standin(|| {
        start(0);
        let (from, to, source) = (alloc(MIB), alloc(MIB), pinned(64));
        let (first, second, between) = (stream(), stream(), event());
        source.fill(9);
        ok!(cuStreamWaitEvent(second, between, 0));
        ok!(cuStreamSynchronize(second));
        let open = close(first);
        assert_eq!(copy(from, source, first), 0);
        ok!(cuEventRecord(between, first));
        ok!(cuStreamWaitEvent(second, between, 0));
        ok!(cuMemcpyDtoDAsync_v2(to, from, 64, second));
        assert_eq!(code!(cuStreamQuery(second)), 600);
        drop(open);
        ok!(cuStreamSynchronize(second));
        assert_eq!(read(to, 64), [9; 64]);
    });
}

#[test]
fn the_default_stream_waits_for_blocking_ones_and_they_for_it() {
    with_standin(|| {
        start(0);
        let (device, source, event) = (alloc(MIB), pinned(64), event());
        let blocking: sys::CUstream = given!(cuStreamCreate(0));
        source.fill(1);
        let open = close(blocking);
        assert_eq!(copy(device, source, blocking), 0);
        ok!(cuMemsetD8_v2(device, 2, 64));
        ok!(cuMemcpyDtoDAsync_v2(device + 64, device, 64, blocking));
        ok!(cuEventRecord(event, NO_STREAM));
        assert_eq!(code!(cuEventQuery(event)), 600);
        drop(open);
        ok!(cuCtxSynchronize());
        assert_eq!(read(device, 128), [2; 128]);

        let open = close(NO_STREAM);
        ok!(cuMemsetD8_v2(device, 3, 64));
        ok!(cuMemcpyDtoDAsync_v2(device + 64, device, 64, blocking));
        // Time to do it too early.
        thread::sleep(Duration::from_millis(20));
        assert_eq!(code!(cuStreamQuery(blocking)), 600);
        drop(open);
        ok!(cuStreamSynchronize(blocking));
        assert_eq!(read(device, 128), [3; 128]);
    });
}

#[test]
fn events_have_times_and_a_context() {
    with_standin(|| {
        let first = start(0);
        let (stream, from, to) = (stream(), event(), event());
        let mut elapsed = -1.0;
        let mut between = |from, to| code!(cuEventElapsedTime_v2(&raw mut elapsed, from, to));
        assert_eq!(between(from, to), 400, "not recorded");
        ok!(cuEventRecord(from, stream));
        let open = close(stream);
        ok!(cuEventRecord(to, stream));
        assert_eq!(between(from, to), 600);
        drop(open);
        ok!(cuEventSynchronize(to));
        assert_eq!(between(from, to), 0);
        let untimed: sys::CUevent = given!(cuEventCreate(2));
        ok!(cuEventRecord(untimed, stream));
        ok!(cuEventSynchronize(untimed));
        assert_eq!(between(from, untimed), 400);
        assert!(elapsed >= 0.0);
        start(1);
        let other = event();
        assert_eq!(
            code!(cuEventRecord(other, stream)),
            400,
            "of another context"
        );
        ok!(cuEventQuery(from));
        let of: sys::CUcontext = {
            let mut context = std::ptr::null_mut();
            ok!(cuStreamGetCtx(stream, &raw mut context));
            context
        };
        assert_eq!(of, first);
        ok!(cuCtxSetCurrent(first));
        ok!(cuEventDestroy_v2(from));
        assert_eq!(code!(cuEventDestroy_v2(from)), 400);
        assert_eq!(code!(cuEventQuery(from)), 400);
    });
}

unsafe extern "C" fn ask(answer: *mut c_void) {
    let code = code!(cuCtxSynchronize());
    // SAFETY: an integer that the test keeps until the stream is done.
    unsafe { answer.cast::<u32>().write(code) };
}

#[test]
fn a_function_in_a_stream_may_not_call_the_driver() {
    with_standin(|| {
        start(0);
        let (stream, mut answer) = (stream(), 7_u32);
        ok!(cuLaunchHostFunc(
            stream,
            Some(ask),
            (&raw mut answer).cast()
        ));
        ok!(cuStreamSynchronize(stream));
        assert_eq!(answer, 800);
    });
}

#[test]
fn a_stream_that_is_destroyed_does_what_it_was_given() {
    with_standin(|| {
        start(0);
        let (device, source, stream, event) = (alloc(MIB), pinned(64), stream(), event());
        source.fill(5);
        let open = close(stream);
        assert_eq!(copy(device, source, stream), 0);
        ok!(cuEventRecord(event, stream));
        ok!(cuStreamDestroy_v2(stream));
        assert_eq!(code!(cuStreamDestroy_v2(stream)), 400);
        assert_eq!(copy(device, source, stream), 400);
        drop(open);
        ok!(cuEventSynchronize(event));
        assert_eq!(read(device, 64), [5; 64]);
    });
}

#[test]
fn memory_that_ends_under_a_copy_ends_the_device() {
    with_standin(|| {
        start(0);
        let (device, source, stream) = (slab(0, 2 * MIB), pinned(64), stream());
        let untouched = alloc(MIB);
        source.fill(1);
        let open = close(stream);
        assert_eq!(copy(device, source, stream), 0);
        assert_eq!(copy(untouched, source, stream), 0);
        assert_eq!(
            copy(device + 2 * MIB as u64, source, stream),
            INVALID_VALUE,
            "known before"
        );
        ok!(cuMemUnmap(device, 2 * MIB));
        drop(open);
        assert_eq!(code!(cuStreamSynchronize(stream)), 700);
        let mut address = 0;
        assert_eq!(code!(cuMemAlloc_v2(&raw mut address, MIB)), 700);
        assert_eq!(code!(cuCtxSynchronize()), 700);
        start(1);
        assert_eq!(read(untouched, 64), [0; 64], "nothing was done after it");
        assert_eq!(write(alloc(MIB), b"other"), 0);
    });
}

#[test]
fn host_memory_that_ends_under_a_copy_ends_the_device() {
    with_standin(|| {
        start(0);
        let (device, source, stream) = (alloc(MIB), pinned(64), stream());
        let open = close(stream);
        assert_eq!(copy(device, source, stream), 0);
        ok!(cuMemFreeHost(source.as_mut_ptr().cast()));
        drop(open);
        assert_eq!(code!(cuCtxSynchronize()), 700);
    });
}
