//! Memory of devices and of the host, and who may touch it.

use std::ptr::null_mut;

use cuda_standin::{Standin, with_standin};
use cudarc::driver::sys::CUpointer_attribute::*;
use cudarc::driver::sys::{self, CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD};

use crate::calls::{
    INVALID_VALUE, MIB, alloc, attribute, create, create_code, free_memory, map, pinned, prop,
    read, set_access, slab, start, write,
};

const SIZE: usize = 4 * MIB;

#[test]
fn mapped_memory_is_touched_as_access_was_set() {
    with_standin(|| {
        start(0);
        let address = map(create(0, SIZE), SIZE);
        assert_eq!(write(address, b"early"), INVALID_VALUE);
        assert_eq!(set_access(address, SIZE, 0, 3), 0);
        assert_eq!(write(address + 7, b"bytes"), 0);
        assert_eq!(set_access(address, SIZE, 0, 1), 0);
        assert_eq!(write(address, b"late"), INVALID_VALUE);
        assert_eq!(read(address + 7, 5), b"bytes");
        assert_eq!(set_access(address, SIZE, 0, 0), 0);
        let mut byte = 0_u8;
        let out = (&raw mut byte).cast();
        assert_eq!(code!(cuMemcpyDtoH_v2(out, address, 1)), INVALID_VALUE);
        assert_eq!(set_access(address, SIZE, 1, 3), 0);
        assert_eq!(
            code!(cuMemcpyDtoH_v2(out, address, 1)),
            INVALID_VALUE,
            "of another device"
        );
        assert_eq!(set_access(address, SIZE, 2, 3), 101);
        assert_eq!(set_access(address, 2 * MIB, 0, 3), INVALID_VALUE, "a part");
    });
}

#[test]
fn mapping_has_rules() {
    with_standin(|| {
        start(0);
        let (mut handle, mut address) = (0, 0);
        for size in [0, 1, 2 * MIB + 4096] {
            let wrong = create_code(&mut handle, size, 0);
            assert_eq!(wrong, INVALID_VALUE, "{size}");
            let wrong = code!(cuMemAddressReserve(&raw mut address, size, 0, 0, 0));
            assert_eq!(wrong, INVALID_VALUE, "{size}");
        }
        assert_eq!(create_code(&mut handle, SIZE, 2), 101);
        handle = create(0, SIZE);
        ok!(cuMemAddressReserve(&raw mut address, 4 * SIZE, 0, 0, 0));
        assert_eq!(address % (2 << 20), 0);
        let map = |address, size, handle| code!(cuMemMap(address, size, 0, handle, 0));
        assert_eq!(map(address + 4096, SIZE, handle), INVALID_VALUE);
        assert_eq!(
            map(address, 2 * SIZE, handle),
            INVALID_VALUE,
            "more than there is"
        );
        assert_eq!(
            map(address + 3 * SIZE as u64 + 2 * MIB as u64, SIZE, handle),
            INVALID_VALUE
        );
        assert_eq!(map(address, SIZE, 12345), INVALID_VALUE);
        assert_eq!(map(address, SIZE, handle), 0);
        assert_eq!(
            map(address + 2 * MIB as u64, SIZE, handle),
            INVALID_VALUE,
            "over another"
        );
        assert_eq!(
            map(address + SIZE as u64, SIZE, handle),
            0,
            "the same once more"
        );
        let unmap = |address, size| code!(cuMemUnmap(address, size));
        assert_eq!(unmap(address, 2 * MIB), INVALID_VALUE);
        assert_eq!(unmap(address, 3 * SIZE), INVALID_VALUE, "a hole");
        assert_eq!(
            code!(cuMemAddressFree(address, 4 * SIZE)),
            INVALID_VALUE,
            "still mapped"
        );
        assert_eq!(unmap(address, 2 * SIZE), 0);
        assert_eq!(unmap(address, SIZE), INVALID_VALUE, "twice");
        assert_eq!(code!(cuMemAddressFree(address, SIZE)), INVALID_VALUE);
        ok!(cuMemAddressFree(address, 4 * SIZE));
        assert_eq!(code!(cuMemAddressFree(address, 4 * SIZE)), INVALID_VALUE);
        ok!(cuMemRelease(handle));
        assert_eq!(code!(cuMemRelease(handle)), INVALID_VALUE);
    });
}

#[test]
fn copies_go_over_neighbouring_mappings() {
    with_standin(|| {
        start(0);
        let (one, two) = (create(0, 2 * MIB), create(0, 2 * MIB));
        let address: u64 = given!(cuMemAddressReserve(SIZE, 0, 0, 0));
        let seam = address + 2 * MIB as u64;
        ok!(cuMemMap(address, 2 * MIB, 0, one, 0));
        ok!(cuMemMap(seam, 2 * MIB, 0, two, 0));
        assert_eq!(set_access(address, SIZE, 0, 3), 0);
        assert_eq!(write(seam - 3, b"abcdefg"), 0);
        let other = alloc(MIB);
        ok!(cuMemcpyDtoD_v2(other + 1, seam - 2, 5));
        assert_eq!(read(other + 1, 5), b"bcdef");
        ok!(cuMemsetD8_v2(seam - 1, b'x', 2));
        assert_eq!(read(seam - 3, 7), b"abxxefg");
        assert_eq!(
            write(address + SIZE as u64 - 1, b"ab"),
            INVALID_VALUE,
            "beyond the end"
        );
    });
}

#[test]
fn memory_is_there_until_nobody_has_it() {
    with_standin(|| {
        start(0);
        let all = free_memory();
        let handle = create(0, SIZE);
        let address = map(handle, SIZE);
        ok!(cuMemRelease(handle));
        assert_eq!(all - free_memory(), SIZE, "mapped");
        let again: u64 = given!(cuMemRetainAllocationHandle(address as *mut _));
        assert_eq!(again, handle);
        ok!(cuMemUnmap(address, SIZE));
        assert_eq!(all - free_memory(), SIZE, "held");
        ok!(cuMemRelease(again));
        assert_eq!(free_memory(), all);
        ok!(cuMemAddressFree(address, SIZE));

        let address = alloc(MIB + 1);
        assert_eq!(all - free_memory(), 2 * MIB);
        let (mut start, mut len) = (0, 0);
        ok!(cuMemGetAddressRange_v2(
            &raw mut start,
            &raw mut len,
            address + 5
        ));
        assert_eq!((start, len), (address, MIB + 1));
        assert_eq!(code!(cuMemFree_v2(address + 1)), INVALID_VALUE);
        ok!(cuMemFree_v2(address));
        assert_eq!(code!(cuMemFree_v2(address)), INVALID_VALUE);
        assert_eq!(free_memory(), all);
        assert_eq!(write(address, &[1]), INVALID_VALUE);
    });
}

#[test]
fn no_more_memory_than_there_is() {
    Standin::default().memory(16 << 20).run(|| {
        start(0);
        let mut handle = 0;
        let mut create_more = |size| create_code(&mut handle, size, 0);
        assert_eq!(create_more(1 << 40), 2);
        let first = alloc(10 * MIB);
        assert_eq!(create_more(8 * MIB), 2);
        assert_eq!(create_more(6 * MIB), 0);
        let mut address = 0;
        assert_eq!(code!(cuMemAlloc_v2(&raw mut address, 1)), 2);
        ok!(cuMemFree_v2(first));
        ok!(cuMemAlloc_v2(&raw mut address, 1));
        start(1);
        assert_eq!(free_memory(), 16 * MIB, "of another device");
    });
}

#[test]
fn a_processor_cannot_follow_the_address_of_a_device() {
    with_standin(|| {
        start(0);
        let mut pipe = [0; 2];
        // SAFETY: two integers; then a write that the kernel judges.
        let refused = |address: u64| unsafe {
            libc::pipe(pipe.as_mut_ptr());
            libc::write(pipe[1], address as *const _, 1) == -1
                && *libc::__errno_location() == libc::EFAULT
        };
        assert!([alloc(MIB), slab(0, SIZE)].map(refused) == [true; 2]);
    });
}

#[test]
fn the_driver_tells_what_an_address_is() {
    with_standin(|| {
        let first = start(0);
        start(1);
        let (legacy, vmm, host) = (alloc(MIB), slab(1, SIZE), pinned(4096).as_ptr() as u64);
        let plain = vec![0_u8; 4096];
        let of = |address| {
            [
                CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                CU_POINTER_ATTRIBUTE_MAPPED,
                CU_POINTER_ATTRIBUTE_RANGE_SIZE,
            ]
            .map(|what| attribute(what, address))
        };
        assert_eq!(of(legacy + 9), [2, 1, 1, 1, MIB as u64].map(Ok));
        assert_eq!(of(vmm + 9), [2, 1, 0, 1, SIZE as u64].map(Ok));
        assert_eq!(of(host + 9), [1, 1, 0, 1, 4096].map(Ok));
        assert_eq!(of(plain.as_ptr() as u64), [Err(INVALID_VALUE); 5]);
        let ids = [legacy, vmm, host].map(|at| attribute(CU_POINTER_ATTRIBUTE_BUFFER_ID, at));
        assert!(ids[0] != ids[1] && ids[1] != ids[2] && ids[0].is_ok());
        assert_eq!(
            attribute(CU_POINTER_ATTRIBUTE_CONTEXT, vmm),
            Ok(0),
            "nobody's"
        );
        assert_ne!(
            attribute(CU_POINTER_ATTRIBUTE_CONTEXT, legacy),
            Ok(first as u64)
        );

        let (mut kind, mut device) = (7_u32, 7_i32);
        let mut asked = [
            CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
            CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        ];
        let mut answers = [(&raw mut kind).cast(), (&raw mut device).cast()];
        let (asked, answers) = (asked.as_mut_ptr(), answers.as_mut_ptr());
        ok!(cuPointerGetAttributes(
            2,
            asked,
            answers,
            plain.as_ptr() as u64
        ));
        assert_eq!(
            (kind, device),
            (0, -2),
            "no error where several are asked for"
        );
    });
}

fn pages(count: usize) -> *mut libc::c_void {
    let (access, kind) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    );
    // SAFETY: a new mapping, where nothing is.
    unsafe { libc::mmap(null_mut(), count * 4096, access, kind, -1, 0) }
}

#[test]
fn host_memory_is_pinned_once() {
    with_standin(|| {
        start(0);
        let bytes = vec![0_u8; 64 << 10];
        let at: *mut u8 = bytes.as_ptr().cast_mut();
        let register = |at: *mut u8, len, flags| code!(cuMemHostRegister_v2(at.cast(), len, flags));
        assert_eq!(register(null_mut(), 4096, 0), INVALID_VALUE);
        assert_eq!(register(at, 0, 0), INVALID_VALUE);
        assert_eq!(register(at, 32 << 10, 0), 0);
        assert_eq!(register(at.wrapping_add(16 << 10), 32 << 10, 0), 712);
        let half = &bytes[(16 << 10)..(48 << 10)];
        let device = alloc(MIB);
        assert_eq!(write(device, half), INVALID_VALUE, "a part of it is pinned");
        let end = at.wrapping_add(4096).cast();
        assert_eq!(code!(cuMemHostUnregister(end)), 713);
        assert_eq!(code!(cuMemFreeHost(at.cast())), INVALID_VALUE);
        ok!(cuMemHostUnregister(at.cast()));
        assert_eq!(code!(cuMemHostUnregister(at.cast())), 713);
        assert_eq!(write(device, half), 0);

        let made = pinned(8192).as_mut_ptr();
        assert_eq!(register(made, 4096, 0), 712);
        assert_eq!(code!(cuMemHostUnregister(made.cast())), INVALID_VALUE);
        ok!(cuMemFreeHost(made.cast()));
        assert_eq!(code!(cuMemFreeHost(made.cast())), INVALID_VALUE);
        assert_eq!(
            register(made, 8192, 0),
            INVALID_VALUE,
            "nothing is there any more"
        );
        let three: *mut u8 = pages(3).cast();
        // SAFETY: the middle one of these pages, which nobody uses.
        unsafe { libc::munmap(three.wrapping_add(4096).cast(), 4096) };
        assert_eq!(register(three, 3 * 4096, 0), INVALID_VALUE, "a hole");
        assert_eq!(register(three, 4096, 0), 0);
        let text = b"read only".as_ptr().cast_mut();
        assert_eq!(register(text, 9, 0), INVALID_VALUE);
        assert_eq!(register(text, 9, 8), 0, "and said so");
    });
}

#[test]
fn only_what_rdma_may_reach_becomes_a_dma_buf() {
    with_standin(|| {
        start(0);
        let mut fd = -1;
        let mut ask = |address, len| {
            let kind = CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
            code!(cuMemGetHandleForAddressRange(
                (&raw mut fd).cast(),
                address,
                len,
                kind,
                0
            ))
        };
        let slab = slab(0, SIZE);
        assert_eq!(ask(slab, SIZE), 0);
        assert_eq!(ask(slab + 4096, 8192), 0);
        assert_eq!(ask(slab + 1, 4096), INVALID_VALUE);
        assert_eq!(ask(slab, SIZE + 4096), INVALID_VALUE);
        assert_eq!(ask(alloc(2 * MIB), MIB), 0);
        let mut plain = prop(0);
        plain.allocFlags.gpuDirectRDMACapable = 0;
        let handle: u64 = given!(cuMemCreate(SIZE, &raw const plain, 0));
        let address = map(handle, SIZE);
        assert_eq!(set_access(address, SIZE, 0, 3), 0);
        assert_eq!(ask(address, SIZE), 801);
        let mut imported = 0;
        let kind = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        let fd = fd as usize as *mut _;
        let wrong = code!(cuMemImportFromShareableHandle(&raw mut imported, fd, kind));
        assert_eq!(wrong, INVALID_VALUE, "a dma_buf is no handle of memory");
    });
}
