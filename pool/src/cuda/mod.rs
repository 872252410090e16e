//! Memory of CUDA devices.
//!
//! The driver is loaded when somebody first asks for CUDA; without one that is an error, and nothing else changes.
//! Only calls of the driver are made, none of the CUDA runtime: what works here works beside any version of it.
//! Every call that needs a context binds the device's primary one first (see [`Gpu::bind`]).

mod caller;
mod copier;
mod copies;
mod copy;
mod device;
mod driver;
mod error;
mod measure;
mod memory;
mod pinned;
mod release;
mod ring;
mod staging;
mod visibility;
mod writer;

pub use caller::CallersRange;
pub use device::{Bound, Gpu, NotAUuid, Uuid, WriteOrdering, run_no_kernels};
pub use error::{CudaCause, CudaError};
pub use measure::measure_copy;
pub use memory::{CudaKind, CudaMapping, CudaMemory, CudaShare, IPC_HANDLE};
pub use pinned::Pinned;
pub use release::{NotReleased, Stream};
pub use staging::CHUNK as STAGING_CHUNK;
pub use visibility::Flush;

pub(crate) use caller::import as import_callers;
pub(crate) use copies::{Copies, Landed};
pub(crate) use copy::{to_device, to_host};
pub(crate) use pinned::PinnedOnce;
pub(crate) use staging::{Chunk, Staging};
