//! Feeds [`s3engine_fuzz::redirect`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    s3engine_fuzz::redirect(data);
});
