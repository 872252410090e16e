//! Memory that several processes have.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Child, ChildStdout, Stdio};

use cuda_standin::{Standin, again, role, with_standin};
use cudarc::driver::sys::{self, CUmemAllocationHandleType};

use crate::calls::{
    INVALID_VALUE, MIB, alloc, create, free_memory, map, read, set_access, start, write,
};

const POSIX: CUmemAllocationHandleType =
    CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
const SIZE: usize = 4 * MIB;

fn export(handle: u64) -> OwnedFd {
    let mut fd = -1_i32;
    ok!(cuMemExportToShareableHandle(
        (&raw mut fd).cast(),
        handle,
        POSIX,
        0
    ));
    // SAFETY: the driver's gift.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn import(fd: i32) -> Result<u64, u32> {
    let mut handle = 0;
    match code!(cuMemImportFromShareableHandle(
        &raw mut handle,
        fd as usize as *mut _,
        POSIX
    )) {
        0 => Ok(handle),
        code => Err(code),
    }
}

#[test]
fn memory_goes_to_another_process_by_a_descriptor() {
    with_standin(|| {
        start(0);
        if role().is_some() {
            let handle = import(0).unwrap();
            assert_eq!(
                free_memory(),
                (1 << 30) - SIZE,
                "two have it, it is there once"
            );
            let address = map(handle, SIZE);
            let bytes = [0; 5];
            assert_eq!(
                write(address, &bytes),
                INVALID_VALUE,
                "access is each process's own"
            );
            assert_eq!(set_access(address, SIZE, 0, 3), 0);
            assert_eq!(read(address + 9, 5), b"hello");
            assert_eq!(write(address + 9, b"world"), 0);
            return;
        }
        let handle = create(0, SIZE);
        let address = map(handle, SIZE);
        assert_eq!(set_access(address, SIZE, 0, 3), 0);
        assert_eq!(write(address + 9, b"hello"), 0);
        let status = again("peer").stdin(export(handle)).status().unwrap();
        assert!(status.success());
        assert_eq!(read(address + 9, 5), b"world");
        ok!(cuMemRelease(import(export(handle).as_raw_fd()).unwrap()));
        assert_eq!(free_memory(), (1 << 30) - SIZE, "had twice, given up once");
    });
}

#[test]
fn what_is_no_descriptor_of_memory_is_refused() {
    with_standin(|| {
        start(0);
        let fd = export(create(0, SIZE));
        let number = fd.as_raw_fd();
        // SAFETY: judged by the kernel.
        let mapped = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                4096,
                libc::PROT_READ,
                libc::MAP_SHARED,
                number,
                0,
            )
        };
        assert_eq!(mapped, libc::MAP_FAILED, "nor is it memory of a processor");
        let mut plain = sys::CUmemAllocationProp {
            ..crate::calls::prop(0)
        };
        plain.requestedHandleTypes = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE;
        let handle: u64 = given!(cuMemCreate(SIZE, &raw const plain, 0));
        let mut none = -1_i32;
        let wrong = code!(cuMemExportToShareableHandle(
            (&raw mut none).cast(),
            handle,
            POSIX,
            0
        ));
        assert_eq!(wrong, INVALID_VALUE);
        for other in [1, 1000, -1] {
            assert_eq!(import(other), Err(INVALID_VALUE));
        }
        import(number).unwrap();
    });
}

/// One more process of the test, with which it talks.
struct Peer {
    child: Child,
    says: BufReader<ChildStdout>,
}

impl Peer {
    fn start(role: &str, told: &str) -> Self {
        let mut command = again(role);
        command
            .env("TOLD", told)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let says = BufReader::new(child.stdout.take().unwrap());
        Self { child, says }
    }

    /// The next line that is the test's.
    fn hear(&mut self) -> String {
        let lines = (&mut self.says).lines().map_while(Result::ok);
        let mut own = lines.filter_map(|line| Some(line.split_once("peer: ")?.1.to_owned()));
        own.next().expect("the peer says something")
    }

    fn end(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

/// Says something to whoever started this, and waits to be let go.
fn say(what: &str) {
    println!("peer: {what}");
    std::io::stdout().flush().unwrap();
    std::io::stdin().lines().for_each(drop);
}

fn told() -> String {
    std::env::var("TOLD").unwrap()
}

fn handle_of(address: u64) -> sys::CUipcMemHandle {
    given!(cuIpcGetMemHandle(address))
}

fn open(handle: sys::CUipcMemHandle, flags: u32) -> Result<u64, u32> {
    let mut address = 0;
    match code!(cuIpcOpenMemHandle_v2(&raw mut address, handle, flags)) {
        0 => Ok(address),
        code => Err(code),
    }
}

fn as_text(handle: &sys::CUipcMemHandle) -> String {
    handle
        .reserved
        .iter()
        .map(|byte| format!("{:02x}", *byte as u8))
        .collect()
}

fn from_text(text: &str) -> sys::CUipcMemHandle {
    let byte = |nth: usize| u8::from_str_radix(&text[2 * nth..2 * nth + 2], 16).unwrap();
    sys::CUipcMemHandle {
        reserved: std::array::from_fn(|nth| byte(nth) as _),
    }
}

#[test]
fn memory_goes_to_another_process_by_an_ipc_handle() {
    with_standin(|| {
        start(0);
        if role().is_some() {
            let handle = from_text(&told());
            let address = open(handle, 1).unwrap();
            assert_eq!(open(handle, 1), Ok(address), "opened twice, it is one");
            assert_eq!(read(address + 9, 5), b"hello");
            assert_eq!(code!(cuMemFree_v2(address)), INVALID_VALUE);
            ok!(cuIpcCloseMemHandle(address));
            assert_eq!(write(address + 9, b"world"), 0);
            ok!(cuIpcCloseMemHandle(address));
            assert_eq!(code!(cuIpcCloseMemHandle(address)), INVALID_VALUE);
            assert_eq!(write(address, b"gone"), INVALID_VALUE);
            let mut wrong = handle;
            wrong.reserved[9] ^= 1;
            assert_eq!(open(wrong, 1), Err(INVALID_VALUE));
            wrong.reserved = [0; 64];
            assert_eq!(open(wrong, 1), Err(INVALID_VALUE));
            return;
        }
        let address = alloc(MIB);
        assert_eq!(write(address + 9, b"hello"), 0);
        let handle = handle_of(address);
        assert_eq!(open(handle, 1), Err(201), "the process that made it");
        Peer::start("peer", &as_text(&handle)).end();
        assert_eq!(read(address + 9, 5), b"world");
        let mut none: sys::CUipcMemHandle = handle;
        let vmm = crate::calls::slab(0, SIZE);
        assert_eq!(code!(cuIpcGetMemHandle(&raw mut none, vmm)), INVALID_VALUE);
    });
}

#[test]
fn an_ipc_handle_of_memory_that_is_gone_opens_nothing() {
    with_standin(|| {
        start(0);
        if role().is_some() {
            assert_eq!(open(from_text(&told()), 1), Err(INVALID_VALUE));
            return;
        }
        let address = alloc(MIB);
        let handle = handle_of(address);
        ok!(cuMemFree_v2(address));
        // Something else may have its descriptor now.
        alloc(MIB);
        Peer::start("peer", &as_text(&handle)).end();
    });
}

#[test]
fn memory_of_a_process_that_was_killed_is_free_again() {
    Standin::default().memory(16 << 20).run(|| {
        start(0);
        if role().is_some() {
            alloc(12 * MIB);
            return say("has it");
        }
        let mut peer = Peer::start("peer", "");
        assert_eq!(peer.hear(), "has it");
        assert_eq!(free_memory(), 4 * MIB);
        let mut address = 0;
        assert_eq!(code!(cuMemAlloc_v2(&raw mut address, 8 * MIB)), 2);
        peer.child.kill().unwrap();
        peer.child.wait().unwrap();
        assert_eq!(free_memory(), 16 * MIB);
        ok!(cuMemAlloc_v2(&raw mut address, 8 * MIB));
    });
}

#[test]
fn processes_that_see_other_devices_mean_the_same_ones() {
    with_standin(|| {
        if role().is_some() {
            start(0);
            assert_eq!(import(0), Err(101), "a device that it does not see");
            return;
        }
        start(0);
        let fd = export(create(0, SIZE));
        let mut command = again("other");
        let status = command.env("CUDA_VISIBLE_DEVICES", "1").stdin(fd).status();
        assert!(status.unwrap().success());
    });
}
