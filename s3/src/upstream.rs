//! An S3 service as this process reaches it: what the clients of all threads share.

use std::sync::Arc;

use crate::credentials::Credentials;
use crate::endpoint::Endpoint;
use crate::http::Resolver;
use crate::timeouts::Timeouts;

/// An endpoint, who signs for it, and what is known of its addresses.
pub struct Upstream {
    endpoint: Endpoint,
    credentials: Credentials,
    timeouts: Timeouts,
    pub(crate) resolver: Resolver,
}

impl Upstream {
    /// Nothing of it is asked for yet.
    pub fn new(endpoint: Endpoint, credentials: Credentials, timeouts: Timeouts) -> Arc<Upstream> {
        Arc::new(Upstream {
            endpoint,
            credentials,
            timeouts,
            resolver: Resolver::new(),
        })
    }

    /// The endpoint.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Who signs the requests.
    pub fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    /// The bounds of its requests.
    pub fn timeouts(&self) -> &Timeouts {
        &self.timeouts
    }
}
