//! Feeds [`s3engine_fuzz::http_answer`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    s3engine_fuzz::http_answer(data);
});
