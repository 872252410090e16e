//! On whose behalf a GET runs: whose memory it lands in, whose turn it takes, what it may read.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use arc_swap::ArcSwap;
use metrics::SharedString;
use s3engine_pool::Pool;
use s3engine_s3::error::ErrorKind;
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
    /// GETs taken from its queues and not ended.
    pub(crate) outstanding: AtomicU64,
    /// The same GETs, one by one, of a client of the host service.
    pub(crate) under_way: Arc<UnderWay>,
    /// What people call it; the embedding program has no name.
    pub(crate) label: Option<SharedString>,
}

impl Tenant {
    pub(crate) fn new(label: Option<&str>, pool: Pool, share: Share, access: Access) -> Arc<Self> {
        Arc::new(Self {
            pool,
            leasing: Mutex::default(),
            share,
            access: ArcSwap::from_pointee(access),
            outstanding: AtomicU64::new(0),
            under_way: Arc::default(),
            label: label.map(|label| SharedString::from_shared(label.into())),
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
