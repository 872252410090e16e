//! Who may call, and what devices there are.

use std::ptr::null_mut;
use std::thread;

use cuda_standin::{Standin, with_standin};
use cudarc::driver::sys;

use crate::calls::{MIB, alloc, start, write};

#[test]
fn nothing_works_before_the_driver_is_started() {
    with_standin(|| {
        let (mut count, mut address) = (0, 0);
        assert_eq!(code!(cuDeviceGetCount(&raw mut count)), 3);
        assert_eq!(code!(cuMemAlloc_v2(&raw mut address, MIB)), 3);
        let version: i32 = given!(cuDriverGetVersion());
        assert_eq!(version, 13000);
        assert_eq!(code!(cuInit(1)), 1);
        ok!(cuInit(0));
        ok!(cuInit(0));
        ok!(cuDeviceGetCount(&raw mut count));
        assert_eq!(count, 2);
        assert_eq!(code!(cuDeviceGetCount(null_mut())), 1);
    });
}

#[test]
fn errors_have_the_names_that_the_driver_gives_them() {
    with_standin(|| {
        let text = |get: unsafe fn(sys::CUresult, *mut *const i8) -> sys::CUresult, code| {
            let mut text = std::ptr::null();
            // SAFETY: writes one pointer, to a string that stays.
            assert_eq!(unsafe { get(code, &raw mut text) } as u32, 0);
            // SAFETY: as above.
            unsafe { std::ffi::CStr::from_ptr(text) }.to_str().unwrap()
        };
        let memory = sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY;
        assert_eq!(
            text(sys::cuGetErrorName, memory),
            "CUDA_ERROR_OUT_OF_MEMORY"
        );
        assert_eq!(text(sys::cuGetErrorString, memory), "out of memory");
    });
}

#[test]
fn a_thread_needs_a_context_and_a_context_ends_with_its_last_holder() {
    with_standin(|| {
        let context = start(0);
        let address = alloc(MIB);
        thread::scope(|scope| {
            let without = scope.spawn(|| {
                let mut other = 0;
                assert_eq!(code!(cuMemAlloc_v2(&raw mut other, MIB)), 201);
                assert_eq!(code!(cuMemFree_v2(address)), 201);
                assert_eq!(write(address, &[1]), 201);
                assert_eq!(code!(cuCtxSynchronize()), 201);
            });
            without.join().unwrap();
        });
        let again: sys::CUcontext = given!(cuDevicePrimaryCtxRetain(0));
        assert_eq!(again, context);
        ok!(cuDevicePrimaryCtxRelease_v2(0));
        assert_eq!(write(address, &[1]), 0);
        ok!(cuDevicePrimaryCtxRelease_v2(0));
        assert_eq!(write(address, &[1]), 709);
        assert_eq!(code!(cuDevicePrimaryCtxRelease_v2(0)), 201);
        assert_eq!(code!(cuCtxSetCurrent(context)), 201);
        start(0);
        assert_eq!(write(address, &[1]), 1, "its memory ended with the context");
    });
}

#[test]
fn contexts_are_a_stack() {
    with_standin(|| {
        ok!(cuInit(0));
        let [one, two] =
            [0, 1].map(|device| -> sys::CUcontext { given!(cuDevicePrimaryCtxRetain(device)) });
        let current = || -> sys::CUcontext { given!(cuCtxGetCurrent()) };
        assert_eq!(current(), null_mut());
        ok!(cuCtxPushCurrent_v2(one));
        ok!(cuCtxPushCurrent_v2(two));
        let device: i32 = given!(cuCtxGetDevice());
        assert_eq!((current(), device), (two, 1));
        let popped: sys::CUcontext = given!(cuCtxPopCurrent_v2());
        assert_eq!((popped, current()), (two, one));
        ok!(cuCtxSetCurrent(two));
        assert_eq!(current(), two);
        ok!(cuCtxSetCurrent(null_mut()));
        assert_eq!(current(), null_mut());
        assert_eq!(code!(cuCtxPopCurrent_v2(null_mut())), 201);
        ok!(cuCtxSetCurrent(one));
        ok!(cuCtxEnablePeerAccess(two, 0));
        assert_eq!(code!(cuCtxEnablePeerAccess(two, 0)), 704);
        assert_eq!(code!(cuCtxEnablePeerAccess(one, 0)), 101);
    });
}

#[test]
fn a_forked_child_has_no_driver() {
    with_standin(|| {
        start(0);
        let address = alloc(MIB);
        // SAFETY: the child makes calls of the driver, which end at once, and leaves.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let mut count = 0;
            let codes = [
                code!(cuInit(0)),
                code!(cuDeviceGetCount(&raw mut count)),
                write(address, &[1]),
                code!(cuMemFree_v2(address)),
            ];
            // SAFETY: leaves without running what is the parent's.
            unsafe { libc::_exit(i32::from(codes != [3; 4])) };
        }
        let mut status = -1;
        // SAFETY: a child of this process, which makes four calls and leaves.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        assert_eq!(write(address, &[1]), 0, "the parent goes on");
    });
}

fn uuid(device: i32) -> [i8; 16] {
    let uuid: sys::CUuuid = given!(cuDeviceGetUuid_v2(device));
    uuid.bytes
}

#[test]
fn devices_are_those_that_the_process_may_see() {
    Standin::default().gpus(3).visible("2,0,7").run(|| {
        ok!(cuInit(0));
        let count: i32 = given!(cuDeviceGetCount());
        assert_eq!(count, 2);
        let place = |device| uuid(device)[15];
        assert_eq!((place(0), place(1)), (2, 0));
        let device: i32 = given!(cuDeviceGet(1));
        assert_eq!(device, 1);
        let mut none = 0;
        assert_eq!(code!(cuDeviceGet(&raw mut none, 2)), 101);
        assert_eq!(code!(cuDeviceGet(&raw mut none, -1)), 101);
        let mut text = [0; 16];
        ok!(cuDeviceGetPCIBusId(text.as_mut_ptr(), 16, 0));
        assert_eq!(text.map(|byte| byte as u8), *b"0000:a2:00.0\0\0\0\0");
        let can: i32 = given!(cuDeviceCanAccessPeer(0, 1));
        let self_can: i32 = given!(cuDeviceCanAccessPeer(0, 0));
        assert_eq!((can, self_can), (1, 0));
    });
}

#[test]
fn a_process_that_may_see_no_device_has_none() {
    Standin::default().visible("-1").run(|| {
        assert_eq!(code!(cuInit(0)), 100);
        let mut count = 0;
        assert_eq!(code!(cuDeviceGetCount(&raw mut count)), 3);
    });
}
