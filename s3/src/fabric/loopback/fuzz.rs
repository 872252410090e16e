//! Entry point for fuzzers: any bytes, no panic, and what must hold of whatever is accepted.

use super::wire::Message;

/// Reads the bytes as a message between owner and peer. Whether it is one.
pub fn fuzz_message(data: &[u8]) -> bool {
    let Ok(message) = Message::decode(data) else {
        return false;
    };
    assert_eq!(message.encode(), data, "{message:?} is written otherwise");
    if let Message::Segment { extent, .. } = message
        && let Some(end) = extent.fd_end()
    {
        let last = extent.len - 1;
        assert_eq!(end - extent.fd_offset, extent.len);
        assert!(end <= extent.slab_len);
        assert_eq!(extent.locate(extent.base + last, 1), Some(last));
        assert_eq!(extent.locate(extent.base, extent.len), Some(0));
        assert_eq!(extent.locate(extent.base + last, 2), None);
        assert_eq!(extent.locate(extent.base + extent.len, 1), None);
        assert_eq!(extent.locate(extent.base.wrapping_sub(1), 1), None);
    }
    true
}
