//! Devices as this process sees them, and its context on each.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use cudarc::driver::sys::{self, CUdevice_attribute as Attribute};

use super::driver::{check, driver};
use super::error::CudaError;
use super::writer::Lanes;
use crate::topology::numa_node;

/// A device's name that is the same in every process, whatever CUDA_VISIBLE_DEVICES hides or reorders.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uuid(pub [u8; 16]);

impl fmt::Display for Uuid {
    /// As `nvidia-smi -L` and CUDA_VISIBLE_DEVICES have it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GPU")?;
        for (nth, byte) in self.0.iter().enumerate() {
            if matches!(nth, 0 | 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Not a device's UUID.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not like GPU-01234567-89ab-cdef-0123-456789abcdef")]
pub struct NotAUuid(String);

impl FromStr for Uuid {
    type Err = NotAUuid;

    fn from_str(text: &str) -> Result<Self, NotAUuid> {
        let no = || NotAUuid(text.to_owned());
        let digits = text.strip_prefix("GPU-").ok_or_else(no)?;
        let digits: Vec<u8> = digits.bytes().filter(|&byte| byte != b'-').collect();
        let mut bytes = [0; 16];
        if digits.len() != 32 {
            return Err(no());
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| no())?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| no())?;
        }
        let uuid = Uuid(bytes);
        // Signs, and dashes in other places.
        let same = uuid.to_string().eq_ignore_ascii_case(text);
        same.then_some(uuid).ok_or_else(no)
    }
}

/// How this device orders what others write to its memory over the bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteOrdering {
    /// For whom such writes are ordered without a flush: 0 nobody, 100 this device, 200 all devices.
    pub ordered_for: i32,
    /// Whether the host can flush them.
    pub host_flush: bool,
}

/// Whether contexts are made small: see [`run_no_kernels`].
static NO_KERNELS: AtomicBool = AtomicBool::new(false);

/// Bytes of stack for each thread of a kernel: the driver rounds this up to the least that it can do with.
const LEAST_STACK: usize = 16;

/// Says that this process runs no kernels: contexts that the pool makes from now on take half as much of the device's
/// memory. For processes that only move bytes. Kernels still run, after the driver has made room for their stacks.
pub fn run_no_kernels() {
    NO_KERNELS.store(true, Ordering::Relaxed);
}

/// A device that this process sees.
pub struct Gpu {
    ordinal: i32,
    device: sys::CUdevice,
    uuid: Uuid,
    name: String,
    pci: String,
    numa_node: Option<u32>,
    memory: u64,
    vmm: bool,
    dma_buf: bool,
    ordering: WriteOrdering,
    /// The primary context once it was retained, which it then is until the process ends.
    context: AtomicPtr<sys::CUctx_st>,
    retaining: Mutex<()>,
    lanes: Lanes,
}

impl Gpu {
    /// All of them, in this process's order.
    pub fn all() -> Result<&'static [Gpu], CudaError> {
        Ok(&driver()?.gpus)
    }

    /// The CUDA version that the driver is for: 1000 * major + 10 * minor.
    pub fn driver_version() -> Result<i32, CudaError> {
        Ok(driver()?.version)
    }

    /// The one with this number in this process.
    pub fn nth(ordinal: u32) -> Result<&'static Gpu, CudaError> {
        let gpus = Self::all()?;
        let found = gpus.iter().find(|gpu| gpu.ordinal() == ordinal);
        found.ok_or_else(|| CudaError::NoSuchDevice {
            wanted: ordinal.to_string(),
            seen: seen(gpus),
        })
    }

    /// The one with this name.
    pub fn find(uuid: Uuid) -> Result<&'static Gpu, CudaError> {
        let gpus = Self::all()?;
        let found = gpus.iter().find(|gpu| gpu.uuid == uuid);
        found.ok_or_else(|| CudaError::NoSuchDevice {
            wanted: uuid.to_string(),
            seen: seen(gpus),
        })
    }

    /// Its number in this process.
    pub fn ordinal(&self) -> u32 {
        self.ordinal.unsigned_abs()
    }

    /// Its name in every process.
    pub fn uuid(&self) -> Uuid {
        self.uuid
    }

    /// The product's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its PCI address, as sysfs has it: `0000:1b:00.0`.
    pub fn pci(&self) -> &str {
        &self.pci
    }

    /// The NUMA node that it is near to, where sysfs says so.
    pub fn numa_node(&self) -> Option<u32> {
        self.numa_node
    }

    /// Bytes of memory it has.
    pub fn memory(&self) -> u64 {
        self.memory
    }

    /// How it orders remote writes.
    pub fn ordering(&self) -> WriteOrdering {
        self.ordering
    }

    /// Whether fabrics can get its memory as a dma_buf.
    pub fn has_dma_buf(&self) -> bool {
        self.dma_buf
    }

    /// Whether memory can be handed to other processes by a descriptor.
    pub fn shares_by_descriptor(&self) -> bool {
        self.vmm
    }

    pub(super) fn lanes(&self) -> &Lanes {
        &self.lanes
    }

    pub(super) fn device(&self) -> sys::CUdevice {
        self.device
    }

    /// Bytes of its memory that are free, for all processes together.
    pub fn free_memory(&self) -> Result<u64, CudaError> {
        let _bound = self.bind()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: writes two integers.
        check("asking for free memory", self, unsafe {
            sys::cuMemGetInfo_v2(&raw mut free, &raw mut total)
        })?;
        Ok(free as u64)
    }

    /// Makes this process's primary context current on the calling thread, until what is returned is dropped. That
    /// is the context which the CUDA runtime, and with it PyTorch, uses too.
    pub fn bind(&self) -> Result<Bound, CudaError> {
        // A forked child has no context.
        driver()?;
        let context = self.context()?;
        // SAFETY: a context that is retained until the process ends.
        check("binding the context", self, unsafe {
            sys::cuCtxPushCurrent_v2(context)
        })?;
        Ok(Bound(PhantomData))
    }

    fn context(&self) -> Result<sys::CUcontext, CudaError> {
        let context = self.context.load(Ordering::Acquire);
        if !context.is_null() {
            return Ok(context);
        }
        let _retaining = self
            .retaining
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let context = self.context.load(Ordering::Acquire);
        if !context.is_null() {
            return Ok(context);
        }
        let mut context = std::ptr::null_mut();
        // SAFETY: writes one pointer.
        check("retaining the context", self, unsafe {
            sys::cuDevicePrimaryCtxRetain(&raw mut context, self.device)
        })?;
        if NO_KERNELS.load(Ordering::Relaxed) {
            self.shrink(context);
        }
        self.context.store(context, Ordering::Release);
        metrics::counter!("s3engine_cuda_contexts_total").increment(1);
        tracing::debug!(device = %self, "context retained");
        Ok(context)
    }

    /// Gives back what a new context holds ready for kernels, about half of it.
    fn shrink(&self, context: sys::CUcontext) {
        // SAFETY: a context that was just retained.
        let pushed = check("binding the context", self, unsafe {
            sys::cuCtxPushCurrent_v2(context)
        });
        let shrunk = pushed.and_then(|()| {
            let _bound = Bound(PhantomData);
            // SAFETY: a limit of the context that is bound.
            check("lowering the stack of kernels", self, unsafe {
                sys::cuCtxSetLimit(sys::CUlimit::CU_LIMIT_STACK_SIZE, LEAST_STACK)
            })
        });
        if let Err(error) = shrunk {
            tracing::debug!(%error, "the context stays as large as it is");
        }
    }

    pub(super) fn open(ordinal: i32) -> Result<Self, CudaError> {
        let shown = format_args!("cuda:{ordinal}").to_string();
        let asked = |result| check("asking for a device", &shown, result);
        let mut device = 0;
        // SAFETY: writes one integer.
        asked(unsafe { sys::cuDeviceGet(&raw mut device, ordinal) })?;
        let mut uuid = sys::CUuuid { bytes: [0; 16] };
        // SAFETY: writes 16 bytes.
        asked(unsafe { sys::cuDeviceGetUuid_v2(&raw mut uuid, device) })?;
        let mut memory = 0;
        // SAFETY: writes one integer.
        asked(unsafe { sys::cuDeviceTotalMem_v2(&raw mut memory, device) })?;
        let mut name = [0; 256];
        // SAFETY: writes a string of at most so many bytes, its end included.
        asked(unsafe { sys::cuDeviceGetName(name.as_mut_ptr(), 256, device) })?;
        let mut pci = [0; 32];
        // SAFETY: the same.
        asked(unsafe { sys::cuDeviceGetPCIBusId(pci.as_mut_ptr(), 32, device) })?;
        let attribute = |attribute| {
            let mut value = 0;
            // SAFETY: writes one integer.
            asked(unsafe { sys::cuDeviceGetAttribute(&raw mut value, attribute, device) })?;
            Ok::<i32, CudaError>(value)
        };
        use Attribute::*;
        let by_descriptor =
            attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)?;
        let pci = text(&pci).to_ascii_lowercase();
        Ok(Self {
            ordinal,
            device,
            uuid: Uuid(uuid.bytes.map(|byte| byte as u8)),
            name: text(&name),
            numa_node: pci.parse().ok().and_then(numa_node),
            pci,
            memory: memory as u64,
            vmm: by_descriptor != 0,
            dma_buf: attribute(CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED)? != 0,
            ordering: WriteOrdering {
                ordered_for: attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING)?,
                host_flush: attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS)?
                    & 1
                    != 0,
            },
            context: AtomicPtr::default(),
            retaining: Mutex::default(),
            lanes: Lanes::default(),
        })
    }
}

fn seen(gpus: &[Gpu]) -> String {
    let named: Vec<_> = gpus
        .iter()
        .map(|gpu| format!("{} = {}", gpu.ordinal, gpu.uuid))
        .collect();
    match named.is_empty() {
        true => "none".to_owned(),
        false => named.join(", "),
    }
}

/// A string of C, as far as it goes.
fn text(chars: &[std::ffi::c_char]) -> String {
    let bytes: Vec<u8> = chars
        .iter()
        .map(|&char| char as u8)
        .take_while(|&byte| byte != 0)
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

impl fmt::Display for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cuda:{} ({})", self.ordinal, self.uuid)
    }
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self} {}", self.name)
    }
}

/// A context is current on this thread; dropped, the one before it is again.
#[must_use]
pub struct Bound(PhantomData<*const ()>);

impl Drop for Bound {
    fn drop(&mut self) {
        let mut context = std::ptr::null_mut();
        // SAFETY: takes back what `bind` pushed on this thread: the value never leaves its thread.
        let _ = unsafe { sys::cuCtxPopCurrent_v2(&raw mut context) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_uuid_is_shown_as_the_tools_show_it() {
        let uuid = Uuid(std::array::from_fn(|nth| nth as u8 * 17));
        let shown = "GPU-00112233-4455-6677-8899-aabbccddeeff";
        assert_eq!(uuid.to_string(), shown);
        assert_eq!(shown.parse(), Ok(uuid));
        assert_eq!(shown.to_uppercase().parse(), Ok(uuid));
    }

    proptest! {
        #[test]
        fn every_uuid_is_read_back(bytes: [u8; 16]) {
            prop_assert_eq!(Uuid(bytes).to_string().parse(), Ok(Uuid(bytes)));
        }

        #[test]
        fn what_is_read_is_what_was_written(text in "(GPU-)?[0-9a-fA-F+-]{0,40}|\\PC{0,40}") {
            if let Ok(uuid) = text.parse::<Uuid>() {
                prop_assert!(uuid.to_string().eq_ignore_ascii_case(&text));
            }
        }
    }
}
