//! Ways to move bytes by one-sided remote writes.

pub mod loopback;

use s3engine_pool::{Registrar, RegistrationHandle};

use crate::token::Token;

/// A fabric: memory registered with it can be named to a server by a token, and the server then
/// writes into that memory by itself.
pub trait Fabric: Registrar {
    /// Names `len` bytes from `address` on, inside the registration, for one request.
    fn token(
        &self,
        handle: RegistrationHandle,
        address: u64,
        len: u64,
    ) -> Result<Token, TokenError>;
}

/// Why a window could not be named in a token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// The window is longer than the token's 32-bit size field can say.
    #[error("a window of {len} bytes is over the token's limit of {limit} bytes")]
    TooLong {
        /// The window's length.
        len: u64,
        /// The longest window that can be named.
        limit: u64,
    },
    /// The provider refused, in its own words.
    #[error("{text}")]
    Provider {
        /// The provider's text.
        text: String,
    },
}
