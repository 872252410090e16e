//! Chunked bodies, in any pieces.

use s3engine_s3::http::fuzz_response;

/// Reads the bytes as a chunked body that comes in pieces as long as the first byte says. Whether it is complete.
pub fn chunks(data: &[u8]) -> bool {
    let Some((piece, body)) = data.split_first() else {
        return false;
    };
    let head = format!("GET {piece}\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
    fuzz_response(&[head.as_bytes(), body].concat())
}
