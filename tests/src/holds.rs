//! Whether a buffer holds what it should, in whatever memory.

use s3engine::Completion;
use s3sim::content;

/// Asserts that the bytes in the completion's buffer are the object's, from `offset` on.
pub fn assert_holds(completion: &Completion, key: &str, offset: u64) {
    let mut found = vec![0; completion.bytes() as usize];
    let buffer = completion.buffer().unwrap();
    buffer.read_to_host(0, &mut found).unwrap();
    content::verify(key, 0, offset, &found).unwrap();
}
