//! Fuzz targets: everything that reads what others wrote, and what must hold of whatever it accepts.
//!
//! Each target is a function of any bytes. `cargo test` calls it with the seeds (`fuzz/seeds/TARGET/`) and
//! random changes of them, libFuzzer (`fuzz/run`) with whatever reaches new code.
//!
//! A target says whether its input was accepted, so that seeds cannot rot.
#![forbid(unsafe_code)]

mod checksums;
mod chunks;
mod content_range;
mod endpoint;
mod error_body;
mod etag;
mod fields;
mod http_answer;
mod list;
mod reply;
mod token;

pub use checksums::checksums;
pub use chunks::chunks;
pub use content_range::content_range;
pub use endpoint::endpoint;
pub use error_body::error_body;
pub use etag::etag;
pub use http_answer::http_answer;
pub use list::list;
pub use reply::reply;
pub use s3engine::fuzz::{fuzz_completion as completion, fuzz_requests as service_requests};
pub use s3engine_s3::fabric::loopback::fuzz_message as loopback_message;
pub use s3engine_s3::http::fuzz_response as http_response;
pub use s3engine_s3::network::fuzz_redirect as redirect;
pub use s3sim::fuzz::{fuzz_faults as faults, fuzz_request as http_request};
pub use token::token;

/// Judges the bytes as a submission.
pub fn sqe(data: &[u8]) -> bool {
    s3engine_ring::fuzz_sqe(data);
    true
}

/// Reads the bytes as a name in a key arena.
pub fn key(data: &[u8]) -> bool {
    s3engine_ring::fuzz_key(data);
    true
}
