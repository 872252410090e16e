//! What every transfer reports: the path its bytes took, and the reason why that path.

pub use crate::named::UnknownName;

/// What carried the bytes of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Path {
    /// One-sided remote writes by a fabric.
    Rdma,
    /// The body of an HTTP response.
    Http,
    /// Memory that already held the object.
    Cache,
    /// Nothing was delivered.
    None,
}

/// What the caller allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Policy {
    /// RDMA, or an error that says why not.
    RequireRdma,
    /// RDMA where possible; HTTP otherwise, with the reason.
    #[default]
    PreferRdma,
    /// HTTP, by intent.
    Http,
}

named!(Path, "path", { Rdma => "rdma", Http => "http", Cache => "cache", None => "none" });

named!(Policy, "policy", {
    RequireRdma => "require-rdma",
    PreferRdma => "prefer-rdma",
    Http => "http",
});

/// Why the path is what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// RDMA, as allowed.
    Ok,
    /// Served from memory.
    CacheHit,
    /// HTTP because the caller or the configuration asked for it.
    Policy,
    /// HTTP because the object is smaller than the RDMA threshold.
    BelowThreshold,
    /// No fabric was found on this host.
    NoFabric,
    /// A fabric was found and could not be started.
    FabricInitFailed,
    /// The memory could not be registered with the fabric.
    RegistrationFailed,
    /// The fabric could not name the window in a token.
    TokenFailed,
    /// The window is longer than the fabric can register.
    OverRegistrationLimit,
    /// The window is longer than a token can say.
    ProtocolLimit,
    /// The server declined RDMA explicitly (501).
    ServerDeclined,
    /// The server did not accept the token.
    TokenRejected,
    /// A 2xx answer without the RDMA reply header.
    ReplyMissing,
    /// An RDMA reply without the number of bytes.
    BytesMissing,
    /// An RDMA reply with another number of bytes than the object or range has.
    BytesMismatch,
    /// No answer to an RDMA request in time.
    RdmaTimeout,
    /// The fabric or the server failed while moving the bytes.
    RdmaError,
    /// The port that would carry the bytes is down.
    RailDown,
    /// The buffer's slot was given to somebody else, or is too small.
    StaleBuffer,
    /// HTTP failed: refused, broken or answered with an error.
    HttpError,
    /// The object changed during the transfer.
    Modified,
    /// The caller cancelled.
    Cancelled,
    /// The caller's deadline passed.
    Deadline,
    /// The host service went away.
    ServiceLost,
}

named!(Reason, "reason", {
    Ok => "ok",
    CacheHit => "cache-hit",
    Policy => "policy",
    BelowThreshold => "below-threshold",
    NoFabric => "no-fabric",
    FabricInitFailed => "fabric-init-failed",
    RegistrationFailed => "registration-failed",
    TokenFailed => "token-failed",
    OverRegistrationLimit => "over-registration-limit",
    ProtocolLimit => "protocol-limit",
    ServerDeclined => "server-declined",
    TokenRejected => "token-rejected",
    ReplyMissing => "reply-missing",
    BytesMissing => "bytes-missing",
    BytesMismatch => "bytes-mismatch",
    RdmaTimeout => "rdma-timeout",
    RdmaError => "rdma-error",
    RailDown => "rail-down",
    StaleBuffer => "stale-buffer",
    HttpError => "http-error",
    Modified => "modified",
    Cancelled => "cancelled",
    Deadline => "deadline",
    ServiceLost => "service-lost",
});

impl Reason {
    /// Whether it says that RDMA failed, which HTTP need not share.
    pub const fn is_of_rdma(self) -> bool {
        match self {
            Reason::NoFabric
            | Reason::FabricInitFailed
            | Reason::RegistrationFailed
            | Reason::TokenFailed
            | Reason::OverRegistrationLimit
            | Reason::ProtocolLimit
            | Reason::ServerDeclined
            | Reason::TokenRejected
            | Reason::ReplyMissing
            | Reason::BytesMissing
            | Reason::BytesMismatch
            | Reason::RdmaTimeout
            | Reason::RdmaError
            | Reason::RailDown => true,
            Reason::Ok
            | Reason::CacheHit
            | Reason::Policy
            | Reason::BelowThreshold
            | Reason::StaleBuffer
            | Reason::HttpError
            | Reason::Modified
            | Reason::Cancelled
            | Reason::Deadline
            | Reason::ServiceLost => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_parses_back_to_its_value() {
        for reason in Reason::ALL {
            assert_eq!(reason.as_str().parse(), Ok(*reason));
        }
        for path in Path::ALL {
            assert_eq!(path.as_str().parse(), Ok(*path));
        }
        for policy in Policy::ALL {
            assert_eq!(policy.as_str().parse(), Ok(*policy));
        }
        assert!("".parse::<Reason>().is_err());
    }
}
