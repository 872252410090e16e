//! Slabs in real other processes: what they can do with a descriptor, and what a forked child can.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use books::{Books, client, pool_with};
use rustix::fs::{FallocateFlags, Mode, SealFlags};
use rustix::io::Errno;
use rustix::process::Uid;
use s3engine_pool::{
    Buffer, ClientOptions, GiveBack, ImportedSlab, Mapping, Memory, Pool, PoolError, SlabId, SlotId,
};

mod books;

const MIB: u64 = 1 << 20;
const SLAB: u64 = 4 * MIB;
const ROLE: &str = "S3ENGINE_POOL_TEST_ROLE";
const PATIENCE: Duration = Duration::from_secs(60);

/// A giver that counts.
#[derive(Default)]
struct Counts(AtomicUsize);

impl GiveBack for Counts {
    fn give_back(&self, _slot: SlotId) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    fn is_alive(&self) -> bool {
        true
    }
}

/// Runs this program again as a client that has the slab's descriptor as its standard input.
fn in_another_process(role: &str, pool: &Pool, slab: SlabId) {
    let export = pool.export(slab).unwrap();
    assert_eq!(export.len, SLAB);
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--ignored", "--nocapture", "a_client"])
        .env(ROLE, role)
        .stdin(Stdio::from(export.share.descriptor().unwrap()))
        .spawn()
        .unwrap();
    let began = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if began.elapsed() > PATIENCE {
            child.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    assert!(status.success(), "{role}: {status}");
}

/// The other process. Alone it has nothing to do.
#[test]
#[ignore = "the tests here run it in processes of their own"]
fn a_client() {
    let stdin = std::io::stdin();
    match std::env::var(ROLE).as_deref() {
        Ok("writer") => write_and_read(stdin.as_fd()),
        Ok("reader") => try_to_write(stdin.as_fd()),
        Ok(role) => panic!("no role {role}"),
        Err(_) => {}
    }
}

fn buffer(slab: &Arc<ImportedSlab>, offset: u64, len: u64) -> Buffer {
    let slot = SlotId {
        slab: slab.id(),
        index: 0,
        generation: 1,
    };
    let giver = Arc::new(Counts::default());
    Buffer::imported(slab, slot, offset, len, 4096, giver).unwrap()
}

fn write_and_read(fd: BorrowedFd<'_>) {
    let slab = ImportedSlab::map(fd, SLAB, SlabId(0), false).unwrap();
    let mut buffer = buffer(&slab, 0, 8);
    assert_eq!(buffer.as_slice(), Some(&b"question"[..]));
    buffer.as_mut_slice().unwrap().copy_from_slice(b"answered");
    assert_eq!(rustix::fs::ftruncate(fd, 0), Err(Errno::PERM));
    assert_eq!(
        rustix::fs::fcntl_add_seals(fd, SealFlags::FUTURE_WRITE),
        Err(Errno::PERM)
    );
    // What the reader may not is possible here: so it is not for another cause that it fails there.
    let again = anew(fd).unwrap();
    again.write_all_at(b"anew", 4096).unwrap();
    assert!(punch(again.as_fd(), 8192).is_ok());
}

fn anew(fd: BorrowedFd<'_>) -> std::io::Result<File> {
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd));
    OpenOptions::new().read(true).write(true).open(path)
}

fn punch(fd: BorrowedFd<'_>, at: u64) -> rustix::io::Result<()> {
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(fd, punch, at, 4096)
}

/// First with what rights the test has, then as a user who has none.
fn try_to_write(fd: BorrowedFd<'_>) {
    let slab = ImportedSlab::map(fd, SLAB, SlabId(0), true).unwrap();
    let mut buffer = buffer(&slab, 0, 6);
    assert_eq!(buffer.as_slice(), Some(&b"secret"[..]));
    assert!(buffer.as_mut_slice().is_none());
    cannot_write(fd);
    let nobody = Uid::from_raw(65534);
    if rustix::process::getuid().is_root() {
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        assert_eq!(rustix::fs::fchmod(fd, Mode::RWXU), Err(Errno::PERM));
        let refused = anew(fd).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
    }
    cannot_write(fd);
    assert_eq!(buffer.as_slice(), Some(&b"secret"[..]));
}

fn cannot_write(fd: BorrowedFd<'_>) {
    let error = Mapping::import(fd, SLAB).unwrap_err();
    assert!(error.to_string().contains("mmap"), "{error}");
    assert_eq!(rustix::io::pwrite(fd, b"x", 0), Err(Errno::BADF));
    assert_eq!(punch(fd, 0), Err(Errno::BADF));
    // Not open for writing, or sealed: the system says either.
    for len in [0, 2 * SLAB] {
        assert!(rustix::fs::ftruncate(fd, len).is_err());
    }
    assert_eq!(
        rustix::fs::fcntl_add_seals(fd, SealFlags::WRITE),
        Err(Errno::PERM)
    );
}

#[test]
fn a_writable_slab_carries_bytes_both_ways_between_processes() {
    let host = pool_with(&Arc::<Books>::default(), 16 * MIB);
    let pool = client(&host, "writer");
    let mut buffer = pool.try_alloc(8, Memory::Host).unwrap();
    let bytes = buffer.as_mut_slice().unwrap();
    bytes.copy_from_slice(b"question");
    in_another_process("writer", &pool, buffer.slot().slab);
    assert_eq!(buffer.as_slice(), Some(&b"answered"[..]));
}

#[test]
fn a_read_only_slab_cannot_be_written_by_another_process_in_any_way() {
    let host = pool_with(&Arc::<Books>::default(), 16 * MIB);
    let options = ClientOptions {
        read_only: true,
        ..ClientOptions::named("reader")
    };
    let pool = host.for_client(options).unwrap();
    let mut buffer = pool.try_alloc(6, Memory::Host).unwrap();
    let bytes = buffer.as_mut_slice().unwrap();
    bytes.copy_from_slice(b"secret");
    in_another_process("reader", &pool, buffer.slot().slab);
    assert_eq!(buffer.as_slice(), Some(&b"secret"[..]));
    let bytes = buffer.as_mut_slice().unwrap();
    bytes.copy_from_slice(b"public");
}

/// Runs `work` in a forked child. Returns whether it came to its end, within bounds.
fn in_child(work: impl FnOnce()) -> bool {
    // SAFETY: the child runs only this thread, and leaves by `_exit`: no destructor of the parent's threads and
    // no code of the test harness runs in it.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork");
    if pid == 0 {
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_ok();
        // SAFETY: as above.
        unsafe { libc::_exit(if ended { 0 } else { 1 }) }
    }
    let began = Instant::now();
    loop {
        let mut status = 0;
        // SAFETY: `status` outlives the call, and the child is this function's own.
        let waited = unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) };
        if waited == pid {
            return libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0;
        }
        if began.elapsed() > PATIENCE {
            // SAFETY: it is still a child, since it was not waited for.
            unsafe { libc::kill(pid, libc::SIGKILL) };
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn handles_in_a_forked_child_do_nothing_and_the_parents_go_on() {
    let books = Arc::<Books>::default();
    let host = pool_with(&books, 16 * MIB);
    let options = ClientOptions {
        read_only: true,
        ..ClientOptions::named("client")
    };
    let pool = host.for_client(options).unwrap();
    let mut landing = pool.try_alloc(8, Memory::Host).unwrap().into_landing();
    let mut window = landing.window(0, 8).unwrap();
    window.arm(host.fabric(0).unwrap()).unwrap();
    window.disarm();
    drop(window);
    let lease = landing.finish().unwrap();
    let (slot, slabs) = (lease.slot(), pool.slabs());
    let export = pool.export(slot.slab).unwrap();
    let slab = ImportedSlab::map(export.share.fd().unwrap(), export.len, slot.slab, true).unwrap();
    let giver = Arc::new(Counts::default());
    let import = |offset| {
        let giver = Arc::clone(&giver) as Arc<dyn GiveBack>;
        Buffer::imported(&slab, slot, offset, 8, 4096, giver).unwrap()
    };
    let mut inherited = Some((lease, pool, import(0), import(4096)));
    let ended = in_child(|| {
        let (mut lease, pool, dropped, surrendered) = inherited.take().unwrap();
        assert!(lease.as_slice().is_none() && lease.as_mut_slice().is_none());
        assert!(dropped.as_slice().is_none());
        let forked = |error: PoolError| matches!(error, PoolError::Forked);
        assert!(forked(pool.try_alloc(1, Memory::Host).unwrap_err()));
        assert!(forked(pool.export(slot.slab).unwrap_err()));
        assert!(forked(pool.client_stats().unwrap_err()));
        assert!(pool.slabs().is_empty() && pool.resolve(slot).is_err());
        assert_eq!(pool.stats().mapped, 0);
        books::block_on(pool.changed());
        pool.retire();
        surrendered.surrender();
        drop((lease, pool, dropped));
        assert_eq!(
            giver.0.load(Ordering::SeqCst),
            0,
            "the slots are the parent's"
        );
    });
    assert!(ended, "the child did not come to its end");
    let (lease, pool, first, second) = inherited.unwrap();
    assert_eq!(pool.slabs(), slabs);
    assert!(pool.resolve(slot).is_ok() && !pool.is_retired());
    assert!(lease.as_slice().is_some() && first.as_slice().is_some());
    assert_eq!(books.live(), 1, "the child revoked nothing");
    drop((first, second));
    assert_eq!(giver.0.load(Ordering::SeqCst), 2);
}
