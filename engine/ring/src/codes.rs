//! The numbers that stand for names in the ABI. A number never changes its meaning; new names go to the end.

/// What the caller allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// RDMA, or an error that says why not.
    RequireRdma,
    /// RDMA where possible; HTTP otherwise.
    PreferRdma,
    /// HTTP, by intent.
    Http,
}

/// Of a code: none given, none known.
pub const NO_CODE: u8 = 0;

/// The code of the engine's default policy.
pub const DEFAULT_POLICY: u8 = 0;

/// Policies from code 1 on.
const POLICIES: [Policy; 3] = [Policy::RequireRdma, Policy::PreferRdma, Policy::Http];

/// Names of what is asked of checksums from code 1 on.
const CHECKSUM_MODES: [&str; 3] = ["off", "when-offered", "required"];

/// Names of paths from code 1 on.
const PATHS: [&str; 4] = ["none", "rdma", "http", "cache"];

/// Names of reasons from code 1 on.
const REASONS: [&str; 24] = [
    "ok",
    "cache-hit",
    "policy",
    "below-threshold",
    "no-fabric",
    "fabric-init-failed",
    "registration-failed",
    "token-failed",
    "over-registration-limit",
    "protocol-limit",
    "server-declined",
    "token-rejected",
    "reply-missing",
    "bytes-missing",
    "bytes-mismatch",
    "rdma-timeout",
    "rdma-error",
    "rail-down",
    "stale-buffer",
    "http-error",
    "modified",
    "cancelled",
    "deadline",
    "service-lost",
];

/// Names of error kinds from code 1 on.
const ERRORS: [&str; 22] = [
    "invalid-request",
    "config",
    "connect",
    "timeout",
    "reset",
    "truncated",
    "protocol",
    "status",
    "redirect",
    "modified",
    "buffer-too-small",
    "range-not-satisfiable",
    "rdma",
    "cancelled",
    "deadline",
    "service",
    "denied",
    "cuda",
    "tls",
    "credentials",
    "checksum",
    "not-verified",
];

/// What a checksum has shown, from code 1 on: the algorithm of the one that the bytes have, or why none has.
const VERIFIED: [&str; 13] = [
    "nothing",
    "off",
    "not-offered",
    "composite",
    "unclear",
    "range",
    "parts",
    "unseen",
    "crc64nvme",
    "crc32c",
    "crc32",
    "sha256",
    "sha1",
];

/// The error code of a request that is wrong in itself: a range, a reference.
pub const INVALID_REQUEST: u16 = 1;

/// The code of a policy.
pub fn policy_code(policy: Policy) -> u8 {
    1 + policy as u8
}

/// The policy of a code.
pub fn policy(code: u8) -> Option<Policy> {
    at(&POLICIES, code.into()).copied()
}

/// The code of the path with this name.
pub fn path_code(name: &str) -> Option<u8> {
    find(&PATHS, name)
}

/// The name of the path with this code.
pub fn path_name(code: u8) -> Option<&'static str> {
    at(&PATHS, code.into()).copied()
}

/// The code of the reason with this name.
pub fn reason_code(name: &str) -> Option<u8> {
    find(&REASONS, name)
}

/// The name of the reason with this code.
pub fn reason_name(code: u8) -> Option<&'static str> {
    at(&REASONS, code.into()).copied()
}

/// The code of the error kind with this name.
pub fn error_code(name: &str) -> Option<u16> {
    find(&ERRORS, name).map(u16::from)
}

/// The name of the error kind with this code.
pub fn error_name(code: u16) -> Option<&'static str> {
    at(&ERRORS, code.into()).copied()
}

/// The code of what is asked of checksums, by its name.
pub fn checksum_mode_code(name: &str) -> Option<u8> {
    find(&CHECKSUM_MODES, name)
}

/// The name of what is asked of checksums, by its code.
pub fn checksum_mode_name(code: u8) -> Option<&'static str> {
    at(&CHECKSUM_MODES, code.into()).copied()
}

/// The code of what a checksum has shown, by its name.
pub fn verified_code(name: &str) -> Option<u8> {
    find(&VERIFIED, name)
}

/// The name of what a checksum has shown, by its code.
pub fn verified_name(code: u8) -> Option<&'static str> {
    at(&VERIFIED, code.into()).copied()
}

fn at<T>(table: &[T], code: usize) -> Option<&T> {
    table.get(code.checked_sub(1)?)
}

fn find(table: &[&str], name: &str) -> Option<u8> {
    let at = table.iter().position(|have| *have == name)?;
    u8::try_from(at + 1).ok()
}

#[cfg(all(test, not(ring_loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_code_but_none_has_one_name_that_leads_back_to_it() {
        for code in 0..=u8::MAX {
            if let Some(name) = path_name(code) {
                assert_eq!(path_code(name), Some(code));
            }
            if let Some(name) = reason_name(code) {
                assert_eq!(reason_code(name), Some(code));
            }
            if let Some(name) = checksum_mode_name(code) {
                assert_eq!(checksum_mode_code(name), Some(code));
            }
            if let Some(name) = verified_name(code) {
                assert_eq!(verified_code(name), Some(code));
            }
            if let Some(name) = error_name(code.into()) {
                assert_eq!(error_code(name), Some(code.into()));
            }
            if let Some(policy) = policy(code) {
                assert_eq!(policy_code(policy), code);
            }
        }
        assert_eq!(path_name(NO_CODE), None);
        assert_eq!(reason_name(25), None);
        assert_eq!(error_name(INVALID_REQUEST), Some("invalid-request"));
    }
}
