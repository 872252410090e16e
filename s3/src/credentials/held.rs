//! Keys that sign requests, and which ones of a source they are.

use std::fmt;
use std::time::SystemTime;

use aws_credential_types::Credentials as Keys;

/// Keys as they were given at some time. Never shown.
pub(crate) struct Held {
    pub(crate) keys: Keys,
    /// Counts the different keys that a source has given: a request that was refused tells by it whether there are
    /// others by now.
    pub(crate) generation: u64,
}

impl Held {
    pub(crate) fn new(keys: Keys, generation: u64) -> Held {
        Held { keys, generation }
    }

    /// Whether they have ended, as far as this host's clock knows.
    pub(crate) fn have_expired(&self, now: SystemTime) -> bool {
        self.keys.expiry().is_some_and(|expiry| expiry <= now)
    }

    /// A text of a server's without what it may repeat of a request: people must not see it.
    pub(crate) fn redacted(&self, mut text: String) -> String {
        for secret in [
            self.keys.session_token(),
            Some(self.keys.secret_access_key()),
        ] {
            if let Some(secret) = secret.filter(|secret| !secret.is_empty()) {
                text = text.replace(secret, "<redacted>");
            }
        }
        let mut shown = String::with_capacity(text.len());
        let mut pieces = text.split("Signature=");
        shown.push_str(pieces.next().unwrap_or_default());
        for piece in pieces {
            shown.push_str("Signature=<redacted>");
            shown.push_str(piece.trim_start_matches(|c: char| c.is_ascii_hexdigit()));
        }
        shown
    }

    /// Whether these keys are the same. When they end is no part of them.
    pub(crate) fn are(&self, keys: &Keys) -> bool {
        let parts = |keys: &Keys| {
            let token = keys.session_token().unwrap_or_default().to_owned();
            let (id, secret) = (keys.access_key_id(), keys.secret_access_key());
            (id.to_owned(), secret.to_owned(), token)
        };
        parts(&self.keys) == parts(keys)
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held")
            .field("access_key_id", &self.keys.access_key_id())
            .field("generation", &self.generation)
            .finish_non_exhaustive()
    }
}
