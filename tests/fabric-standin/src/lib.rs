//! What the stand-ins for vendors' RDMA libraries have in common.
//!
//! Each is a library with the ABI of the vendor's, which registers memory with the loopback fabric: what the simulator
//! writes arrives as it would from a card. What that shows is that the calls are right, in the right order, and that
//! what fails is told apart; it says nothing of a card, and nothing of how fast one is.
//!
//! A library is handed a pointer and nothing else. Which file is mapped there is looked up in `/proc/self/maps`, and
//! its descriptor among those of the process: slabs are memfds, whose owner keeps them open.
//!
//! The environment says what a library is like; or a file beside it, `<library>.settings` with lines `NAME=VALUE`, so
//! that tests of one process can differ: a copy of a library is another library (see [`Copied`]).
//!
//! | setting | what | default |
//! |---|---|---|
//! | `S3ENGINE_LOOPBACK_DIR` | the folder of the loopback fabric | the user's |
//! | `S3ENGINE_STANDIN_DEVICES` | names, or `NAME@ADDRESS`, by commas | `mlx5_0` |
//! | `S3ENGINE_STANDIN_FABRIC_FAULTS` | what goes wrong, by commas: below | nothing |
//! | `S3ENGINE_STANDIN_CALLS` | a file that gets a line for each call: thread, function, device | none |
//! | `S3ENGINE_STANDIN_PEERMEM` | 1: device memory can be registered, and nobody can write to it | 0 |
//!
//! A fault is `FUNCTION=WHAT`, or `FUNCTION@DEVICE=WHAT` for one device, or `FUNCTION#K=WHAT` for the first K calls. A
//! function is one of the library's without its prefix. What it does instead:
//!
//! | what | |
//! |---|---|
//! | a number | it fails with that code, or errno |
//! | `fails` | it fails, with the library's text |
//! | `silent` | it fails without any text |
//! | `slow:MS` | it takes that long, and works |
//! | `hangs` | it returns when the settings file is gone, or after an hour |
//! | `garbage` | it returns nonsense: not a token, not a version |
//! | `endless` | its text has no end within a kibibyte |

mod copied;
mod faults;
mod memory;
mod settings;

pub use copied::Copied;
pub use faults::{Fault, What};
pub use memory::{Memory, Refused};
pub use settings::Settings;
