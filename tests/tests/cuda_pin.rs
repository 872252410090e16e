//! Host memory that clients of a service pin for CUDA contexts of their own. On a stand-in for the driver.

use cuda_standin::with_standin;
use cudarc::driver::sys;
use s3engine::Memory;
use s3engine::cuda::Gpu;
use s3engine_tests::{PATIENCE, ServiceRig, wait_until};

const MIB: u64 = 1 << 20;

/// Of the service's pool, and of a slab.
const POOL: u64 = 32 * MIB;
const SLAB: u64 = 4 * MIB;

fn is_pinned(address: u64) -> bool {
    let _bound = Gpu::nth(0).unwrap().bind().unwrap();
    let mut kind: u32 = 0;
    let ask = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
    // SAFETY: writes one integer; the driver looks the address up.
    let said = unsafe { sys::cuPointerGetAttribute((&raw mut kind).cast(), ask, address) };
    said == sys::CUresult::CUDA_SUCCESS && kind == sys::CUmemorytype::CU_MEMORYTYPE_HOST as u32
}

#[test]
fn a_pinned_slab_that_others_need_is_let_go() {
    with_standin(|| {
        let host = ServiceRig::new();
        let (client, other) = (host.client(), host.client());
        let held = client.pool().try_alloc(2 * MIB, Memory::Host).unwrap();
        let gone = client.pool().try_alloc(SLAB, Memory::Host).unwrap();
        assert_ne!(held.slot().slab, gone.slot().slab);
        for buffer in [&held, &gone] {
            buffer.pin(Gpu::nth(0).unwrap()).unwrap();
            assert!(is_pinned(buffer.address()));
        }
        let address = gone.address();
        drop(gone);
        assert!(is_pinned(address), "it is kept for the next");
        let all = other.pool().alloc(POOL - SLAB, Memory::Host, PATIENCE);
        let all = all.unwrap();
        // Unpinned before it is unmapped, or the driver would know it still.
        wait_until("it is unmapped here", || !is_pinned(address));
        assert!(is_pinned(held.address()), "what is in use stays");
        drop((all, held));
    });
}
