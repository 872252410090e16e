//! Feeds [`s3engine_fuzz::http_request`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    s3engine_fuzz::http_request(data);
});
