//! Feeds [`s3engine_fuzz::chunks`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    s3engine_fuzz::chunks(data);
});
