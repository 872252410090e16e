//! A stand-in for the CUDA driver: a library with the ABI of `libcuda.so.1`, over host memory, for tests where there
//! is no GPU. What it shows is that calls are right, in the right order, and that what fails is handled; it says
//! nothing of how fast a GPU is. A test runs with it like this:
//!
//! ```no_run
//! #[test]
//! fn slabs_of_a_full_gpu_are_refused() {
//!     cuda_standin::Standin::default().memory(64 << 20).run(|| {
//!         // Whatever loads the driver here loads the stand-in.
//!     });
//! }
//! ```
//!
//! On a host with a GPU the same tests run with the driver itself: `S3ENGINE_GPU_TESTS=1` (see `rerun`).
//!
//! It is strict, for that is its use. A rule that is broken gives the driver's own error code:
//! - a call before `cuInit` or in a forked child, on a thread without a context, with a handle or an address that is
//!   none, with a size that is not a multiple; a part unmapped; anything freed twice;
//! - memory that was mapped has no access until it is given some; what may be read may not be written;
//! - addresses of a device are not readable: a processor that follows one is killed by a signal;
//! - what is shared is a descriptor that can be passed on and imported, not read or mapped;
//! - copies are judged again when they are done. What was freed, unmapped or unregistered since they were asked for is
//!   an illegal address, although the driver waits in some of these cases; as with it, the device then fails for good.
//!
//! Streams are threads. An asynchronous copy from pinned memory reads it when its turn comes, and a copy of memory
//! that is not pinned before the call returns. Streams and the default stream wait for each other as the driver says.
//!
//! The environment says what the GPUs are like; it is read once:
//!
//! | variable | what | default |
//! |---|---|---|
//! | `S3ENGINE_STANDIN_GPUS` | how many the host has | 2 |
//! | `CUDA_VISIBLE_DEVICES` | which of them are seen, as the driver has it | all |
//! | `S3ENGINE_STANDIN_MEMORY` | bytes of memory of each | 1 GiB |
//! | `S3ENGINE_STANDIN_VERSION` | what `cuDriverGetVersion` says | 13000 |
//! | `S3ENGINE_STANDIN_DELAY_US` | how late each asynchronous copy begins | 100 |
//! | `S3ENGINE_STANDIN_FAULTS` | `NAME=CODE`, `NAME=CODE@N`, `NAME=CODE@N-M`, by commas: the calls of that name from the N-th to the M-th fail | none |
//! | `S3ENGINE_STANDIN_TELL` | 1: each call that is refused, but for faults, is told on standard error | 0 |
//! | `S3ENGINE_STANDIN_STATE` | a folder where processes count memory in use together (`cuMemGetInfo`) | each alone |
//!
//! Unsafe code is in the nature of this crate: it is handed pointers by callers in other languages, and copies between
//! addresses. Pointers are read and written in `abi`, addresses in `copy`, and nowhere else but where memory is mapped.
#![allow(non_snake_case, reason = "the names are the driver's")]

mod abi;
mod alloc;
mod codes;
mod context;
mod copy;
mod device;
mod driver;
mod event;
mod faults;
mod gate;
mod host;
mod in_use;
mod physical;
mod pointer;
mod real;
mod rerun;
mod settings;
mod space;
mod stream;
mod vmm;

pub use rerun::{Standin, again, is_standin, refused, role, with_standin};
