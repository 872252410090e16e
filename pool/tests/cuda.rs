//! CUDA slabs, on whatever driver there is. Without a device these tests say that they are skipped, but for one: then
//! there must be a clear error. All of them run with the stand-in for the driver too.

use std::ffi::c_void;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cudarc::driver::sys;
use s3engine_pool::cuda::{
    CudaError, CudaKind, CudaMapping, CudaShare, Flush, Gpu, Pinned, Stream, Uuid, measure_copy,
};
use s3engine_pool::{
    Buffer, CopyError, ImportedSlab, Memory, MemoryError, Pool, PoolError, PoolOptions,
    RegisterError, Registrar, RegistrationHandle, RevokeError, Segment,
};

const MIB: u64 = 1 << 20;

/// The first device, unless there is none: for one test at a time, since what frees memory waits for all that runs
/// on the device, and free memory is counted.
fn gpu() -> Option<Alone> {
    static ONE: Mutex<()> = Mutex::new(());
    match Gpu::all() {
        Ok([gpu, ..]) => Some(Alone(
            gpu,
            ONE.lock().unwrap_or_else(PoisonError::into_inner),
        )),
        Ok([]) => {
            println!("skipped: no CUDA device");
            None
        }
        Err(error) => {
            println!("skipped: no CUDA device ({error})");
            None
        }
    }
}

struct Alone(&'static Gpu, MutexGuard<'static, ()>);

fn options() -> PoolOptions {
    PoolOptions {
        slab_bytes: 8 * MIB,
        max_bytes: Some(64 * MIB),
        max_cuda_bytes: Some(32 * MIB),
        ..PoolOptions::default()
    }
}

fn pool() -> Pool {
    Pool::new(options()).unwrap()
}

fn refused(error: PoolError) -> CudaError {
    match error {
        PoolError::Memory(MemoryError::Cuda(error)) => error,
        other => panic!("not CUDA's: {other}"),
    }
}

fn check(result: sys::CUresult) {
    assert_eq!(result, sys::CUresult::CUDA_SUCCESS);
}

/// Fails unless it holds soon.
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < until, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn all_of_this_with_the_stand_in() {
    let Some(said) = cuda_standin::Standin::default().run_all() else {
        return;
    };
    assert!(!said.contains("skipped: "), "{said}");
    // What tests ask in vain. Nothing that gives something back is among it.
    let in_vain = [
        "cuMemCreate",
        "cuMemHostAlloc",
        "cuMemImportFromShareableHandle",
        "cuMemRetainAllocationHandle",
        "cuPointerGetAttribute",
    ];
    assert_eq!(cuda_standin::refused(&said), in_vain, "{said}");
}

#[test]
fn asking_for_cuda_without_a_driver_or_device_is_a_clear_error() {
    let error = match Gpu::all() {
        Ok([]) | Err(_) => refused(Memory::cuda(0).map(drop).unwrap_err().into()),
        Ok(_) => refused(
            pool()
                .try_alloc(1, Memory::Cuda(Uuid([9; 16])))
                .unwrap_err(),
        ),
    };
    let text = error.to_string();
    assert!(text.contains("no CUDA"), "{text}");
    assert!(
        pool().try_alloc(1, Memory::Host).is_ok(),
        "host memory goes on"
    );
}

#[test]
fn a_slot_on_a_device_holds_what_is_written_to_it() {
    let Some(Alone(gpu, _alone)) = gpu() else {
        return;
    };
    let pool = pool();
    let memory = Memory::cuda(gpu.ordinal()).unwrap();
    let mut first = pool.try_alloc(5000, memory).unwrap();
    let mut second = pool.try_alloc(3, memory).unwrap();
    assert_eq!(first.memory(), Memory::Cuda(gpu.uuid()));
    assert!(first.as_slice().is_none() && first.as_mut_slice().is_none());
    first.write_from_host(0, &[1; 5000]).unwrap();
    second.write_from_host(1, &[2; 2]).unwrap();
    first.write_from_host(4998, &[3; 2]).unwrap();
    let mut seen = [0; 4];
    first.read_to_host(4996, &mut seen).unwrap();
    assert_eq!(seen, [1, 1, 3, 3]);
    let mut seen = [0; 2];
    second.read_to_host(1, &mut seen).unwrap();
    assert_eq!(seen, [2, 2]);
    assert!(matches!(
        second.read_to_host(2, &mut seen),
        Err(CopyError::OutOfBounds(_))
    ));
    assert!(matches!(
        first.write_from_host(u64::MAX, &[1]),
        Err(CopyError::OutOfBounds(_))
    ));
    let stats = pool.stats();
    assert_eq!(stats.mapped, 0, "no host memory");
    assert_eq!(
        (stats.cuda[0].device, stats.cuda[0].mapped),
        (gpu.uuid(), 8 * MIB)
    );
    assert_eq!(stats.slabs[0].cuda, Some(CudaKind::Vmm));
}

#[test]
fn a_device_has_a_bound_of_its_own() {
    let Some(Alone(gpu, _alone)) = gpu() else {
        return;
    };
    let pool = pool();
    let memory = Memory::Cuda(gpu.uuid());
    let held = pool.alloc_many(4, 8 * MIB, memory).unwrap();
    let full = pool.try_alloc(1, memory).unwrap_err();
    assert!(
        matches!(full, PoolError::WouldBlock { leased, max_bytes, .. } if (leased, max_bytes) == (32 * MIB, 32 * MIB)),
        "{full}"
    );
    assert!(matches!(
        pool.try_alloc(33 * MIB, memory),
        Err(PoolError::TooLarge { .. })
    ));
    assert!(
        pool.try_alloc(8 * MIB, Memory::Host).is_ok(),
        "the host's is another"
    );
    drop(held);
    assert!(
        pool.try_alloc(16 * MIB, memory).is_ok(),
        "idle slabs make room"
    );
    assert!(pool.stats().cuda[0].mapped <= 32 * MIB);
}

#[test]
fn what_a_device_has_not_is_a_typed_error_and_leaves_nothing() {
    let Some(Alone(gpu, _alone)) = gpu() else {
        return;
    };
    let free = gpu.free_memory().unwrap();
    let pool = Pool::new(PoolOptions {
        max_cuda_bytes: Some(1 << 50),
        ..options()
    });
    let pool = pool.unwrap();
    let memory = Memory::Cuda(gpu.uuid());
    let error = refused(pool.try_alloc(gpu.memory() + 2 * MIB, memory).unwrap_err());
    assert!(
        error.is_out_of_memory() && !error.is_device_lost(),
        "{error}"
    );
    assert!(
        error.to_string().contains(&gpu.uuid().to_string()),
        "{error}"
    );
    assert!(pool.stats().cuda.is_empty());
    assert_eq!(gpu.free_memory().unwrap(), free);
}

#[test]
fn who_imports_a_slab_sees_the_same_bytes_and_keeps_them() {
    let Some(Alone(gpu, _alone)) = gpu() else {
        return;
    };
    let pool = pool();
    let mut buffer = pool.try_alloc(5, Memory::Cuda(gpu.uuid())).unwrap();
    let slab = buffer.slot().slab;
    let export = pool.export(slab).unwrap();
    assert_eq!(export.memory, Memory::Cuda(gpu.uuid()));
    let share = s3engine_pool::cuda::CudaShare::Descriptor(export.share.fd().unwrap());
    let imported = ImportedSlab::map_cuda(&share, export.len, slab, gpu.uuid()).unwrap();
    assert_eq!(imported.memory(), Memory::Cuda(gpu.uuid()));
    assert_ne!(imported.address(), buffer.address());
    buffer.write_from_host(0, b"owner").unwrap();
    struct Giver;
    impl s3engine_pool::GiveBack for Giver {
        fn give_back(&self, _: s3engine_pool::SlotId) {}
        fn is_alive(&self) -> bool {
            true
        }
    }
    let theirs = Buffer::imported(&imported, buffer.slot(), 0, 5, 4096, Arc::new(Giver)).unwrap();
    let read = || {
        let mut seen = [0; 5];
        theirs.read_to_host(0, &mut seen).unwrap();
        seen
    };
    assert_eq!(&read(), b"owner");
    drop((buffer, pool));
    assert_eq!(&read(), b"owner");
    assert!(ImportedSlab::map_cuda(&share, export.len, slab, Uuid([1; 16])).is_err());
    let file = std::fs::File::open("/proc/self/status").unwrap();
    let wrong = s3engine_pool::cuda::CudaShare::Descriptor(std::os::fd::AsFd::as_fd(&file));
    assert!(ImportedSlab::map_cuda(&wrong, export.len, slab, gpu.uuid()).is_err());
}

#[test]
fn writes_of_many_threads_are_there_when_they_return() {
    let Some(Alone(gpu, _alone)) = gpu() else {
        return;
    };
    const PIECE: usize = 100_003;
    let bytes: &'static [u8] = vec![5; 4 * PIECE].leak();
    let pool = pool();
    let len = 24 * PIECE as u64;
    let buffer = pool.try_alloc(len, Memory::Cuda(gpu.uuid())).unwrap();
    let export = pool.export(buffer.slot().slab).unwrap();
    let share = CudaShare::Descriptor(export.share.fd().unwrap());
    let mapping = CudaMapping::import(gpu, &share, export.len, true).unwrap();
    let pinned = Pinned::bytes(gpu, bytes).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (mapping, buffer) = (&mapping, &buffer);
            scope.spawn(move || {
                for nth in 0..3 {
                    let at = (thread * 3 + nth) * PIECE;
                    let other = vec![at as u8; PIECE];
                    let data = match nth {
                        0 => &bytes[PIECE..2 * PIECE],
                        _ => &other,
                    };
                    mapping.write(at as u64, data).unwrap();
                    let mut seen = vec![0; PIECE];
                    buffer.read_to_host(at as u64, &mut seen).unwrap();
                    assert!(seen == data, "{thread} {nth}");
                }
            });
        }
    });
    drop(pinned);
    // It can be pinned again only where it is not any more.
    drop(Pinned::bytes(gpu, bytes).unwrap());
    mapping.write(export.len, &[]).unwrap();
    for (at, len) in [(export.len, 1), (export.len - 1, 2), (u64::MAX, 1)] {
        let refused = mapping.write(at, &vec![1; len]);
        assert!(matches!(refused, Err(CudaError::Unusable { .. })), "{at}");
    }
    let mapping = CudaMapping::import(gpu, &share, export.len, false).unwrap();
    let refused = mapping.write(0, &[1]);
    assert!(matches!(refused, Err(CudaError::Unusable { .. })));
}

/// A fabric that knows nothing of memory made by the calls for virtual memory, and notes what it registers.
#[derive(Default)]
struct OldFabric(Mutex<Vec<Seen>>);

/// Address, length, kind, and whether there was a descriptor.
type Seen = (u64, u64, Option<CudaKind>, bool);

impl Registrar for OldFabric {
    fn name(&self) -> &'static str {
        "old"
    }

    fn segment_limit(&self) -> u64 {
        1 << 32
    }

    fn cuda_kind(&self) -> CudaKind {
        CudaKind::Legacy
    }

    fn register(&self, segment: Segment<'_>) -> Result<RegistrationHandle, RegisterError> {
        let kind = segment.cuda.map(|memory| memory.kind());
        let seen = (segment.address, segment.len, kind, segment.fd.is_some());
        self.0.lock().unwrap().push(seen);
        Ok(RegistrationHandle(1))
    }

    fn revoke(&self, _: RegistrationHandle, _: Duration) -> Result<(), RevokeError> {
        Ok(())
    }
}

#[test]
fn a_fabric_that_cannot_register_vmm_memory_gets_the_other_kind() {
    let Some(Alone(gpu, _alone)) = gpu() else {
        return;
    };
    let fabric = Arc::new(OldFabric::default());
    let pool = Pool::with_fabrics(options(), vec![Arc::clone(&fabric) as Arc<dyn Registrar>]);
    let pool = pool.unwrap();
    let buffer = pool.try_alloc(MIB, Memory::Cuda(gpu.uuid())).unwrap();
    let (address, slab) = (buffer.address(), buffer.slot().slab);
    assert_eq!(pool.stats().slabs[0].cuda, Some(CudaKind::Legacy));
    assert!(matches!(
        pool.export(slab).unwrap().share,
        s3engine_pool::Share::Ipc(_)
    ));
    let mut landing = buffer.into_landing();
    let mut window = landing.window(0, MIB).unwrap();
    window.arm(pool.fabric(0).unwrap()).unwrap();
    window.make_visible(pool.fabric(0).unwrap()).unwrap();
    window.disarm();
    drop(window);
    assert!(landing.finish().is_ok());
    let seen = fabric.0.lock().unwrap().clone();
    assert_eq!(seen, [(address, 8 * MIB, Some(CudaKind::Legacy), false)]);
}

/// A fabric that registers by dma_buf, and asks for it once for each of two segments.
#[derive(Default)]
struct ByDmaBuf(Mutex<Vec<i32>>);

impl Registrar for ByDmaBuf {
    fn name(&self) -> &'static str {
        "by-dma-buf"
    }

    fn segment_limit(&self) -> u64 {
        4 * MIB
    }

    fn register(&self, segment: Segment<'_>) -> Result<RegistrationHandle, RegisterError> {
        let memory = segment.cuda.expect("a device's memory");
        assert_eq!(segment.slab_len, memory.len());
        let fd = memory.dma_buf().expect("a dma_buf").as_raw_fd();
        let mut seen = self.0.lock().unwrap();
        seen.push(fd);
        Ok(RegistrationHandle(seen.len() as u64))
    }

    fn revoke(&self, _: RegistrationHandle, _: Duration) -> Result<(), RevokeError> {
        Ok(())
    }
}

#[test]
fn a_slab_has_one_dma_buf_for_all_of_its_segments() {
    let Some(Alone(gpu, _alone)) = gpu() else {
        return;
    };
    let fabric = Arc::new(ByDmaBuf::default());
    let pool = Pool::with_fabrics(options(), vec![Arc::clone(&fabric) as Arc<dyn Registrar>]);
    let pool = pool.unwrap();
    let buffer = pool.try_alloc(8 * MIB, Memory::Cuda(gpu.uuid())).unwrap();
    let mut landing = buffer.into_landing();
    for at in [0, 4 * MIB] {
        let mut window = landing.window(at, 4 * MIB).unwrap();
        window.arm(pool.fabric(0).unwrap()).unwrap();
        window.disarm();
    }
    assert!(landing.finish().is_ok());
    let seen = fabric.0.lock().unwrap().clone();
    assert_eq!(seen.len(), 2);
    assert_eq!(seen[0], seen[1]);
}

/// Memory that the caller has allocated, as cudaMalloc does.
struct Callers {
    address: u64,
    gpu: &'static Gpu,
}

impl Callers {
    fn new(gpu: &'static Gpu, len: u64) -> Self {
        let _bound = gpu.bind().unwrap();
        let mut address = 0;
        // SAFETY: writes one address.
        check(unsafe { sys::cuMemAlloc_v2(&raw mut address, len as usize) });
        Self { address, gpu }
    }
}

impl Drop for Callers {
    fn drop(&mut self) {
        let _bound = self.gpu.bind().unwrap();
        // SAFETY: allocated above, freed once.
        check(unsafe { sys::cuMemFree_v2(self.address) });
    }
}

#[test]
fn the_callers_memory_is_found_again_until_it_is_freed() {
    let Some(Alone(gpu, _alone)) = gpu() else {
        return;
    };
    let fabric = Arc::new(OldFabric::default());
    let pool = Pool::with_fabrics(options(), vec![Arc::clone(&fabric) as Arc<dyn Registrar>]);
    let pool = pool.unwrap();
    let registered = || fabric.0.lock().unwrap().len();
    let callers = Callers::new(gpu, 4 * MIB);
    // SAFETY: freed at the end of the test, and used by nobody else.
    let adopt = |at: u64, len: u64| unsafe { pool.adopt_cuda(callers.address + at, len) };
    let fill = |buffer: Buffer| {
        let mut landing = buffer.into_landing();
        let mut window = landing.window(0, 1).unwrap();
        window.arm(pool.fabric(0).unwrap()).unwrap();
        window.disarm();
        drop(window);
        landing.finish().unwrap()
    };
    let first = fill(adopt(100, 1000).unwrap());
    assert_eq!(
        (first.address(), first.len()),
        (callers.address + 100, 1000)
    );
    assert!(first.is_adopted());
    assert!(adopt(1099, 10).is_err(), "its last byte is another GET's");
    let second = fill(adopt(1100, 10).unwrap());
    assert_eq!(registered(), 1, "one registration of the whole allocation");
    assert!(
        !pool.forget(callers.address, 1).unwrap(),
        "buffers of it are about"
    );
    drop((first, second));
    drop(fill(adopt(0, 4 * MIB).unwrap()));
    assert_eq!(registered(), 1, "it is known still");
    assert!(pool.forget(callers.address, 1).unwrap());
    drop(fill(adopt(0, 1).unwrap()));
    assert_eq!(registered(), 2);
    assert!(adopt(0, 0).is_err());
    assert_eq!(pool.stats().cuda, [], "nothing of the bound is taken");
    let local = 0u64;
    // SAFETY: not memory of a device: refused.
    let host = unsafe { pool.adopt_cuda((&raw const local).addr() as u64, 8) };
    assert!(host.is_err());
    // SAFETY: no memory at all: refused.
    assert!(unsafe { pool.adopt_cuda(0x1000, 8) }.is_err());
}

#[test]
fn more_of_the_callers_allocations_than_are_remembered_are_forgotten_in_turn() {
    let Some(Alone(gpu, _alone)) = gpu() else {
        return;
    };
    let pool = pool();
    let all: Vec<Callers> = (0..300).map(|_| Callers::new(gpu, 4096)).collect();
    let held = {
        // SAFETY: freed at the end of the test, and used by nobody else.
        unsafe { pool.adopt_cuda(all[0].address, 1) }.unwrap()
    };
    for one in &all[1..] {
        // SAFETY: the same.
        drop(unsafe { pool.adopt_cuda(one.address, 1) }.unwrap());
    }
    assert!(pool.slabs().len() <= 256, "{}", pool.slabs().len());
    assert!(
        pool.slabs().contains(&held.slot().slab),
        "what is in use is not forgotten"
    );
}

static GO_ON: AtomicBool = AtomicBool::new(false);

/// What a kernel stands for: the stream goes on when it is told.
unsafe extern "C" fn hold(_: *mut c_void) {
    let until = Instant::now() + Duration::from_secs(20);
    while !GO_ON.load(Ordering::Acquire) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_buffer_released_behind_a_stream_comes_back_when_its_work_is_done() {
    let Some(Alone(gpu, _alone)) = gpu() else {
        return;
    };
    let pool = pool();
    let bound = gpu.bind().unwrap();
    let mut raw = std::ptr::null_mut();
    // SAFETY: writes one stream.
    check(unsafe { sys::cuStreamCreate(&raw mut raw, 1) });
    // SAFETY: a stream that exists, and a function that takes nothing.
    check(unsafe { sys::cuLaunchHostFunc(raw, Some(hold), std::ptr::null_mut()) });
    drop(bound);
    // SAFETY: the stream lives to the end of the test.
    let stream = unsafe { Stream::from_raw(raw.cast()) };
    let on_device = pool.try_alloc(MIB, Memory::Cuda(gpu.uuid())).unwrap();
    let on_host = pool.try_alloc(MIB, Memory::Host).unwrap();
    let slots = [on_device.slot(), on_host.slot()];
    on_device.release_after(stream).unwrap();
    on_host.release_after(stream).unwrap();
    std::thread::sleep(Duration::from_millis(30));
    assert!(
        slots.iter().all(|&slot| pool.resolve(slot).is_ok()),
        "the stream is held"
    );
    GO_ON.store(true, Ordering::Release);
    eventually("both come back", || {
        slots.iter().all(|&slot| pool.resolve(slot).is_err())
    });
    let _bound = gpu.bind().unwrap();
    // SAFETY: made above, destroyed once.
    check(unsafe { sys::cuStreamDestroy_v2(raw) });
}

#[test]
fn a_thread_keeps_the_context_that_it_had() {
    let Some(Alone(gpu, _alone)) = gpu() else {
        return;
    };
    let current = || {
        let mut context = std::ptr::null_mut();
        // SAFETY: writes one pointer.
        check(unsafe { sys::cuCtxGetCurrent(&raw mut context) });
        context
    };
    let before = current();
    let buffer = pool().try_alloc(1, Memory::Cuda(gpu.uuid())).unwrap();
    buffer.read_to_host(0, &mut [0]).unwrap();
    assert_eq!(current(), before);
    let bound = gpu.bind().unwrap();
    let own = current();
    assert!(!own.is_null());
    buffer.read_to_host(0, &mut [0]).unwrap();
    assert_eq!(current(), own);
    drop(bound);
    assert_eq!(current(), before);
}

#[test]
fn another_device_reaches_a_slab_when_it_is_let() {
    let Some(Alone(gpu, _alone)) = gpu() else {
        return;
    };
    let buffer = pool().try_alloc(1, Memory::Cuda(gpu.uuid())).unwrap();
    for other in Gpu::all().unwrap() {
        match buffer.allow(other) {
            Ok(()) => {}
            // Some hosts have no way between two devices.
            Err(error) => assert!(error.to_string().contains("has no way"), "{error}"),
        }
    }
    buffer.read_to_host(0, &mut [0]).unwrap();
    assert!(
        pool()
            .try_alloc(1, Memory::Host)
            .unwrap()
            .allow(gpu)
            .is_ok()
    );
}

#[test]
fn a_device_that_cannot_be_asked_does_not_take_the_others_away() {
    // The second device's attributes.
    let broken = cuda_standin::Standin::default().gpus(2);
    broken.faults("cuDeviceGetAttribute=101@7-7").run(|| {
        let gpus = Gpu::all().unwrap();
        assert_eq!(gpus.len(), 1, "{gpus:?}");
        let memory = Memory::cuda(gpus[0].ordinal()).unwrap();
        assert!(pool().try_alloc(1, memory).is_ok());
        let other = 1 - gpus[0].ordinal();
        assert!(Memory::cuda(other).is_err());
    });
}

#[test]
fn flushes_that_a_device_offers_succeed() {
    let Some(Alone(gpu, _alone)) = gpu() else {
        return;
    };
    gpu.flush(Flush::None).unwrap();
    if gpu.ordering().host_flush {
        gpu.flush(Flush::Owner).unwrap();
        gpu.flush(Flush::AllDevices).unwrap();
    }
    assert!(gpu.flush(Flush::Impossible).is_err());
}

#[test]
fn bare_copies_are_measured_and_leave_nothing_behind() {
    let Some(Alone(gpu, _alone)) = gpu() else {
        return;
    };
    let before = gpu.free_memory().unwrap();
    let rate = measure_copy(gpu, 32 * MIB, 8, Duration::from_millis(50)).unwrap();
    assert!(rate.is_finite() && rate > 0.0, "{rate}");
    // The driver keeps a little for streams, and other tests have memory meanwhile: not half as much for long.
    eventually("the memory is free again", || {
        gpu.free_memory().unwrap() + 128 * MIB > before
    });
    for (chunk, depth) in [(0, 1), (MIB, 0), (1 << 50, 1)] {
        let refused = measure_copy(gpu, chunk, depth, Duration::from_millis(1));
        assert!(refused.is_err(), "{depth} of {chunk}");
    }
}
