//! Feeds [`s3engine_fuzz::checksums`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    s3engine_fuzz::checksums(data);
});
