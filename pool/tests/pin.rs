//! Host slabs that are pinned on request: own ones, imported ones, ones that can only be read. On a stand-in for the
//! driver.

use std::sync::{Arc, Mutex};

use books::wait_until;
use cuda_standin::{Standin, with_standin};
use cudarc::driver::sys;
use s3engine_pool::cuda::{CudaError, Gpu};
use s3engine_pool::{
    Buffer, ClientOptions, GiveBack, ImportedSlab, Memory, Pool, PoolOptions, SlabId, SlotId,
};

mod books;

const MIB: u64 = 1 << 20;

fn pool() -> Pool {
    let options = PoolOptions {
        slab_bytes: 4 * MIB,
        max_bytes: Some(64 * MIB),
        ..PoolOptions::default()
    };
    Pool::new(options).unwrap()
}

fn gpu() -> &'static Gpu {
    Gpu::nth(0).unwrap()
}

/// Whether the driver knows an address of host memory, as PyTorch asks it.
fn is_pinned(address: u64) -> bool {
    let _bound = gpu().bind().unwrap();
    let mut kind: u32 = 0;
    let ask = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
    // SAFETY: writes one integer; the driver looks the address up.
    let said = unsafe { sys::cuPointerGetAttribute((&raw mut kind).cast(), ask, address) };
    said == sys::CUresult::CUDA_SUCCESS && kind == sys::CUmemorytype::CU_MEMORYTYPE_HOST as u32
}

#[test]
fn an_own_slab_is_pinned_once_as_a_whole_and_until_it_is_unmapped() {
    // The second call would fail.
    Standin::default()
        .faults("cuMemHostRegister_v2=2@2-9")
        .run(|| {
            let pool = pool();
            let first = pool.try_alloc(5000, Memory::Host).unwrap();
            let beside = pool.try_alloc(5000, Memory::Host).unwrap();
            assert_eq!(first.slot().slab, beside.slot().slab);
            assert!(!is_pinned(first.address()));
            first.pin(gpu()).unwrap();
            let whole = first.address() - first.offset();
            for at in [0, first.slab_len() - 1, beside.offset()] {
                assert!(is_pinned(whole + at), "{at}");
            }
            first.pin(gpu()).unwrap();
            beside.pin(Gpu::nth(1).unwrap()).unwrap();
            drop((first, beside));
            assert!(is_pinned(whole), "the slab is kept, and so is this");
            drop(pool);
            wait_until("it ends before the mapping", || !is_pinned(whole));
        });
}

#[test]
fn what_the_driver_refuses_is_an_error_and_can_be_tried_again() {
    Standin::default()
        .faults("cuMemHostRegister_v2=2@1-1")
        .run(|| {
            let buffer = pool().try_alloc(1, Memory::Host).unwrap();
            let error = buffer.pin(gpu()).unwrap_err();
            assert!(error.is_out_of_memory(), "{error}");
            assert!(!is_pinned(buffer.address()));
            buffer.pin(gpu()).unwrap();
            assert!(is_pinned(buffer.address()));
        });
}

#[test]
fn memory_of_a_device_needs_no_pinning() {
    Standin::default()
        .faults("cuMemHostRegister_v2=2@1-9")
        .run(|| {
            let buffer = pool().try_alloc(1, Memory::cuda(0).unwrap()).unwrap();
            buffer.pin(gpu()).unwrap();
        });
}

/// What a client tells its owner.
#[derive(Default)]
struct Told(Mutex<Vec<SlabId>>);

impl GiveBack for Told {
    fn give_back(&self, _: SlotId) {}

    fn pinned(&self, slab: SlabId) {
        self.0.lock().unwrap().push(slab);
    }

    fn is_alive(&self) -> bool {
        true
    }
}

#[test]
fn an_imported_slab_is_pinned_and_its_owner_told_even_one_for_reading() {
    with_standin(|| {
        for read_only in [false, true] {
            let owner = pool();
            let options = ClientOptions {
                read_only,
                ..ClientOptions::named("client")
            };
            let client = owner.for_client(options).unwrap();
            let leased = client.try_alloc(9000, Memory::Host).unwrap();
            let slab = leased.slot().slab;
            let export = client.export(slab).unwrap();
            let fd = export.share.fd().unwrap();
            let slab = ImportedSlab::map(fd, export.len, slab, read_only).unwrap();
            let told = Arc::new(Told::default());
            let (slot, at, giver) = (leased.slot(), leased.offset(), Arc::clone(&told));
            let buffer = Buffer::imported(&slab, slot, at, 9000, 4096, giver).unwrap();
            buffer.pin(gpu()).unwrap();
            buffer.pin(gpu()).unwrap();
            let address = slab.address();
            assert!(is_pinned(address) && is_pinned(address + slab.len() - 1));
            assert_eq!(*told.0.lock().unwrap(), [slab.id()], "told once");
            drop(slab);
            assert!(is_pinned(address), "the buffer has the slab");
            drop(buffer);
            assert!(!is_pinned(address), "read only: {read_only}");
        }
    });
}

#[test]
fn a_forked_child_pins_nothing() {
    with_standin(|| {
        let gpu = gpu();
        let buffer = pool().try_alloc(1, Memory::Host).unwrap();
        buffer.pin(gpu).unwrap();
        // SAFETY: the child asks, and leaves without any code of this program's threads.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let forked = matches!(buffer.pin(gpu), Err(CudaError::Forked));
            // SAFETY: as above.
            unsafe { libc::_exit(i32::from(!forked)) };
        }
        let mut status = 0;
        // SAFETY: waits for that child.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "it is told why");
        assert!(is_pinned(buffer.address()), "here it stays");
    });
}
