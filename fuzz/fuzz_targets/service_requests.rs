//! Feeds [`s3engine_fuzz::service_requests`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    s3engine_fuzz::service_requests(data);
});
