//! On whose behalf a GET runs: whose memory it lands in, whose turn it takes, what it may read.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use arc_swap::ArcSwap;
use metrics::SharedString;
use s3engine_pool::Pool;
use s3engine_s3::error::ErrorKind;
use s3engine_s3::options::RequestOptions;
use tokio::sync::Mutex;

use crate::in_flight::Share;
use crate::service::{Access, climbs};
use crate::under_way::UnderWay;

/// The embedding program, or one client of the host service.
pub(crate) struct Tenant {
    /// Where its memory comes from.
    pub(crate) pool: Pool,
    /// Held by the GET whose turn it is to be given memory.
    pub(crate) leasing: Mutex<()>,
    /// Its part of what is under way at once.
    pub(crate) share: Share,
    /// What it may read. Replaced when rules are loaded anew.
    pub(crate) access: ArcSwap<Access>,
    /// The headers that it may add to requests; the embedding program any.
    headers: Option<Arc<[String]>>,
    /// GETs taken from its queues and not ended.
    pub(crate) outstanding: AtomicU64,
    /// Its requests, one by one.
    pub(crate) under_way: Arc<UnderWay>,
    /// What people call it; the embedding program has no name.
    pub(crate) label: Option<SharedString>,
}

impl Tenant {
    pub(crate) fn new(
        label: Option<&str>,
        pool: Pool,
        share: Share,
        access: Access,
        headers: Option<Arc<[String]>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            pool,
            leasing: Mutex::default(),
            share,
            access: ArcSwap::from_pointee(access),
            headers,
            outstanding: AtomicU64::new(0),
            under_way: Arc::default(),
            label: label.map(|label| SharedString::from_shared(label.into())),
        })
    }

    /// Refuses headers that the service's configuration does not name. All other options are the client's own to
    /// choose.
    pub(crate) fn check_options(&self, options: Option<&RequestOptions>) -> Result<(), ErrorKind> {
        let (Some(options), Some(allowed)) = (options, &self.headers) else {
            return Ok(());
        };
        let mut names = options.headers.iter().map(|(name, _)| name);
        let refused = names.find(|name| !allowed.iter().any(|of| of.eq_ignore_ascii_case(name)));
        refused.map_or(Ok(()), |name| {
            let text = format!("the header {name} is none of client_headers");
            Err(ErrorKind::Denied(text))
        })
    }

    /// Refuses what may not be read. Asked before anything else is done for a request.
    pub(crate) fn check(&self, bucket: &str, key: &str) -> Result<(), ErrorKind> {
        match self.access.load().allows(bucket, key) {
            true => Ok(()),
            false => {
                let text = match climbs(key) {
                    true => {
                        "no rule lets this user read it: `.` or `..` between slashes match no rule with a prefix"
                    }
                    false => "no rule lets this user read it",
                };
                Err(ErrorKind::Denied(text.to_owned()))
            }
        }
    }
}
