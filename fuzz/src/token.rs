//! The text of `x-amz-rdma-token`.

use s3engine_s3::token::Token;

/// Reads the bytes as a token.
pub fn token(data: &[u8]) -> bool {
    let Some(text) = std::str::from_utf8(data).ok() else {
        return false;
    };
    let Ok(token) = Token::parse(text) else {
        return false;
    };
    let (written, lower) = (token.encode(), text.to_ascii_lowercase());
    assert_eq!(written.len(), Token::LEN);
    assert_eq!(Token::parse(&written), Ok(token));
    // A GID without its flag is not kept.
    let kept = if token.gid.is_some() { Token::LEN } else { 49 };
    assert_eq!(written[..kept], lower[..kept]);
    true
}
