//! Calls that fail because a test wants it.

use cuda_standin::{Standin, again, refused, role};

use crate::calls::{MIB, alloc, create_code, event, pinned, start, stream, write};

#[test]
fn the_calls_that_were_named_fail() {
    let faults = "cuMemCreate=2@2-3,cuMemHostAlloc=1@2,cuMemFree_v2=999";
    Standin::default().faults(faults).run(|| {
        start(0);
        let mut handle = 0;
        let codes = [(); 4].map(|()| create_code(&mut handle, 2 * MIB, 0));
        assert_eq!(codes, [0, 2, 2, 0]);
        pinned(64);
        let mut at = std::ptr::null_mut();
        let codes = [(); 2].map(|()| code!(cuMemHostAlloc(&raw mut at, 64, 0)));
        assert_eq!(codes, [1, 1]);
        let address = alloc(MIB);
        assert_eq!(code!(cuMemFree_v2(address)), 999);
        assert_eq!(write(address, b"still there"), 0);
    });
}

#[test]
fn a_device_that_failed_stays_so() {
    Standin::default()
        .faults("cuMemcpyHtoDAsync_v2=700@2")
        .run(|| {
            start(0);
            let (device, source, stream, event) = (alloc(MIB), pinned(64), stream(), event());
            ok!(cuEventRecord(event, stream));
            let mut copy = || {
                code!(cuMemcpyHtoDAsync_v2(
                    device,
                    source.as_mut_ptr().cast(),
                    64,
                    stream
                ))
            };
            assert_eq!([copy(), copy(), copy()], [0, 700, 700]);
            assert_eq!(code!(cuEventQuery(event)), 700);
            assert_eq!(code!(cuStreamSynchronize(stream)), 700);
            assert_eq!(code!(cuMemFree_v2(device)), 700);
            start(1);
            assert_eq!(write(alloc(MIB), b"another device"), 0);
        });
}

#[test]
fn a_driver_may_not_start() {
    Standin::default().faults("cuInit=802@1-1").run(|| {
        assert_eq!(code!(cuInit(0)), 802);
        ok!(cuInit(0));
    });
}

#[test]
fn a_driver_may_be_old() {
    Standin::default().version(11040).run(|| {
        let version: i32 = given!(cuDriverGetVersion());
        assert_eq!(version, 11040);
    });
}

#[test]
fn a_fault_that_is_none_is_said() {
    Standin::default().faults("cuMemCreate").run(|| {
        assert_eq!(code!(cuInit(0)), 999);
    });
}

#[test]
fn calls_that_are_refused_are_told_but_not_those_that_were_to_fail() {
    Standin::default().faults("cuMemFree_v2=1@1-1").run(|| {
        if role().is_none() {
            let said = again("calls").output().unwrap().stderr;
            let said = String::from_utf8(said).unwrap();
            assert_eq!(
                refused(&said),
                ["cuCtxSynchronize", "cuMemRelease"],
                "{said}"
            );
            return;
        }
        let mut count = 0;
        code!(cuDeviceGetCount(&raw mut count));
        ok!(cuInit(0));
        assert_eq!(code!(cuCtxSynchronize()), 201);
        start(0);
        let address = alloc(MIB);
        assert_eq!(code!(cuMemFree_v2(address)), 1);
        ok!(cuMemFree_v2(address));
        assert_eq!(code!(cuMemRelease(0)), 1);
        ok!(cuEventQuery(event()));
    });
}
