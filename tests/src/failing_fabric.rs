//! The loopback fabric with a failure built in.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use s3engine::{Fabric, Rdma};
use s3engine_pool::cuda::CudaKind;
use s3engine_pool::{RegisterError, Registrar, RegistrationHandle, RevokeError, Segment};
use s3engine_s3::fabric::loopback::Loopback;
use s3engine_s3::fabric::{Named, Naming, TokenError, named};
use s3engine_s3::token::Token;

use crate::loopback;

/// What goes wrong in the fabric.
#[derive(Clone, Debug)]
pub enum Failure {
    /// No memory can be registered.
    Register(RegisterError),
    /// No token can be made.
    Token(TokenError),
    /// Tokens name memory that was never registered.
    ForgedToken,
    /// Nobody confirms a revocation.
    Revoke,
    /// Revocations are said to be done, and are not.
    ClaimRevoked,
    /// Nothing; but a registration covers at most so many bytes.
    SegmentLimit(u64),
    /// It wants device memory of cuMemAlloc, which the loopback fabric does not take.
    LegacyCuda,
}

/// The loopback fabric, failing.
pub struct FailingFabric {
    inner: Loopback,
    failure: Failure,
}

impl FailingFabric {
    /// As an engine wants it, with its sockets in `folder`.
    pub fn of(folder: &Path, failure: Failure) -> Rdma {
        let inner = Loopback::open(loopback(folder)).expect("the fabric starts");
        Rdma::Custom(Arc::new(Self { inner, failure }))
    }
}

impl Registrar for FailingFabric {
    fn name(&self) -> &'static str {
        "failing"
    }

    fn segment_limit(&self) -> u64 {
        match self.failure {
            Failure::SegmentLimit(limit) => limit,
            _ => self.inner.segment_limit(),
        }
    }

    fn cuda_kind(&self) -> CudaKind {
        match self.failure {
            Failure::LegacyCuda => CudaKind::Legacy,
            _ => self.inner.cuda_kind(),
        }
    }

    fn register(&self, segment: Segment<'_>) -> Result<RegistrationHandle, RegisterError> {
        match &self.failure {
            Failure::Register(error) => Err(error.clone()),
            _ => self.inner.register(segment),
        }
    }

    fn revoke(&self, handle: RegistrationHandle, timeout: Duration) -> Result<(), RevokeError> {
        match self.failure {
            Failure::Revoke => Err(RevokeError {
                text: "nobody has confirmed".into(),
            }),
            Failure::ClaimRevoked => Ok(()),
            _ => self.inner.revoke(handle, timeout),
        }
    }
}

impl Fabric for FailingFabric {
    fn token(&self, handle: RegistrationHandle, address: u64, len: u64) -> Naming<'_> {
        let token = self.inner.token(handle, address, len);
        let token = token.and_then(|token| match &self.failure {
            Failure::Token(error) => Err(error.clone()),
            Failure::ForgedToken => Ok(Token {
                rkey: token.rkey ^ 1,
                ..token
            }),
            _ => Ok(token),
        });
        named(token.map(Named::from))
    }
}
