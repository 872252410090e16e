//! Who an owner is, in the fields that a token has for it.
//!
//! `lid` and `dctn` together are a random number of 40 bits that names the owner's socket file. `gid` is
//! a random capability: whoever presents it may write. It is in no file name and in no log.

use std::fmt;
use std::hint::black_box;

use crate::token::{Dctn, Token};

/// The secret that a token carries.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Capability([u8; 16]);

impl From<[u8; 16]> for Capability {
    fn from(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }
}

impl Capability {
    pub(super) fn bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// Compares in a time that does not depend on where the two differ.
    pub(super) fn matches(&self, other: &Capability) -> bool {
        let difference = self
            .0
            .iter()
            .zip(other.0)
            .fold(0, |sum, (a, b)| black_box(sum | (a ^ b)));
        difference == 0
    }
}

impl fmt::Debug for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Capability(redacted)")
    }
}

/// One owner: the number of its socket file, and its capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Identity {
    lid: u16,
    dctn: Dctn,
    pub(super) capability: Capability,
}

impl Identity {
    pub(super) fn random() -> Self {
        let dctn = Dctn::new(rand::random::<u32>() >> 8).expect("a number of 24 bits");
        Self {
            lid: rand::random(),
            dctn,
            capability: Capability(rand::random()),
        }
    }

    /// Whom a token speaks of; nobody where it carries no capability.
    pub(super) fn of(token: &Token) -> Option<Self> {
        Some(Self {
            lid: token.lid,
            dctn: token.dctn,
            capability: Capability(token.gid?),
        })
    }

    pub(super) fn token(&self, address: u64, size: u32, rkey: u32) -> Token {
        Token {
            address,
            size,
            rkey,
            lid: self.lid,
            dctn: self.dctn,
            gid: Some(self.capability.0),
        }
    }

    /// The number that names the socket file, as text.
    pub(super) fn instance(&self) -> String {
        format!("{:04x}{:06x}", self.lid, self.dctn.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_leads_back_to_its_owner() {
        let owner = Identity::random();
        let token = owner.token(4096, 17, 99);
        assert_eq!((token.address, token.size, token.rkey), (4096, 17, 99));
        assert_eq!(Identity::of(&token), Some(owner));
        assert_eq!(Identity::of(&Token { gid: None, ..token }), None);
    }

    #[test]
    fn the_file_name_does_not_tell_the_capability() {
        let owner = Identity::random();
        let other = Identity {
            capability: Identity::random().capability,
            ..owner
        };
        assert_eq!(owner.instance(), other.instance());
        assert_eq!(owner.instance().len(), 10);
        assert_ne!(owner, other);
        assert!(format!("{owner:?}").contains("redacted"));
    }

    #[test]
    fn a_capability_matches_itself_only() {
        let Identity { capability, .. } = Identity::random();
        assert!(capability.matches(&capability.clone()));
        for bit in 0..128 {
            let mut bytes = *capability.bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(!capability.matches(&Capability(bytes)));
        }
    }
}
