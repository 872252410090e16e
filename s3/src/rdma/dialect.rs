//! How a request names memory on the wire, and how an answer says what became of it.

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::reply::{BYTES_HEADER, Expected, REPLY_HEADER, Reply, Verdict, judge};
use crate::token::Token;

/// The header that carries the token.
pub const TOKEN_HEADER: HeaderName = HeaderName::from_static("x-amz-rdma-token");

/// A dialect of the control plane.
pub(super) trait Dialect: Send + Sync {
    /// Adds to a request what names the window, and returns what of that nobody may see.
    fn ask(&self, token: &Token, headers: &mut HeaderMap) -> String;

    /// What an answer says of the transfer.
    fn said<'a>(&self, headers: &'a HeaderMap) -> Said<'a>;

    /// What that means.
    fn judge(&self, reply: &Reply<'_>, expected: &Expected<'_>) -> Verdict;

    /// Whether an answer is of somebody who knows of the transfer.
    fn knows_of_it(&self, headers: &HeaderMap) -> bool;
}

/// What an answer says, not yet understood.
pub(super) struct Said<'a> {
    /// How it ended.
    pub(super) reply: Option<&'a str>,
    /// How many bytes were written.
    pub(super) bytes: Option<&'a str>,
}

/// The headers `x-amz-rdma-*`, and the ways of AIStor with them: a decline as an error of status 501, and a token that
/// it does not understand as one of status 500.
pub(super) struct Standard;

impl Dialect for Standard {
    fn ask(&self, token: &Token, headers: &mut HeaderMap) -> String {
        let text = token.encode();
        // A token is hexadecimal: there is nothing in it that a header cannot carry.
        let value = HeaderValue::from_str(&text);
        let mut value = value.unwrap_or_else(|_| HeaderValue::from_static(""));
        value.set_sensitive(true);
        headers.insert(TOKEN_HEADER, value);
        text
    }

    fn said<'a>(&self, headers: &'a HeaderMap) -> Said<'a> {
        let header = |name: &'static str| headers.get(name).and_then(|value| value.to_str().ok());
        Said {
            reply: header(REPLY_HEADER),
            bytes: header(BYTES_HEADER),
        }
    }

    fn judge(&self, reply: &Reply<'_>, expected: &Expected<'_>) -> Verdict {
        judge(reply, expected)
    }

    fn knows_of_it(&self, headers: &HeaderMap) -> bool {
        headers.contains_key(REPLY_HEADER)
    }
}
