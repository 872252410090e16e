//! One port of a card, and the library's client for it.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use s3engine_pool::topology::{PciDevice, Topology};

use super::library::{Client, Library};
use super::segment::Segment;
use super::{S3rdmaOptions, address};
use crate::fabric::calls::Calls;
use crate::fabric::{Named, Rail, TokenError, Transfer, address_of};
use crate::token::Token;

/// What a rail is started on.
#[derive(Clone, Debug)]
pub(super) struct Device {
    pub(super) name: Arc<str>,
    /// As the library is told. None: it chooses.
    asked: Option<String>,
}

impl Device {
    pub(super) fn named(name: &str) -> Self {
        Self {
            name: name.into(),
            asked: Some(name.to_owned()),
        }
    }

    pub(super) fn any() -> Self {
        Self {
            name: "any".into(),
            asked: None,
        }
    }
}

/// A rail.
#[derive(Debug)]
pub(super) struct RailClient {
    name: Arc<str>,
    pub(super) vendor: &'static Library,
    pub(super) client: Client,
    /// Registers and deregisters, in turn.
    pub(super) registering: Calls,
    /// Makes tokens.
    naming: Calls,
    /// Its address on this host: known from its name, or from its first token.
    address: OnceLock<Option<IpAddr>>,
    health: Arc<Health>,
    pub(super) registered: AtomicU64,
    bytes: AtomicU64,
}

/// Whether a rail is to be used.
#[derive(Debug)]
struct Health {
    rail: Arc<str>,
    /// Transfers that failed.
    failed: AtomicU64,
    /// Why it is not used, and until when.
    down: Mutex<Option<(String, Instant)>>,
    cool_down: Duration,
}

impl Health {
    /// It is not used for a while.
    fn take_down(&self, why: String) {
        tracing::warn!(rail = &*self.rail, why, "the rail is not used for a while");
        metrics::counter!("s3engine_rail_downs_total", "rail" => self.rail.to_string())
            .increment(1);
        let until = Instant::now() + self.cool_down;
        *self.down.lock().unwrap_or_else(PoisonError::into_inner) = Some((why, until));
    }

    fn is_down(&self) -> Option<String> {
        let down = self.down.lock().unwrap_or_else(PoisonError::into_inner);
        let (why, _) = down.as_ref().filter(|(_, until)| Instant::now() < *until)?;
        Some(why.clone())
    }
}

impl RailClient {
    pub(super) fn start(
        library: &'static Library,
        device: Device,
        options: &S3rdmaOptions,
    ) -> Result<Self, String> {
        let thread = |what: &str| {
            let name = format!("s3rdma-{what}-{}", device.name);
            Calls::start(&name, options.call_timeout).map_err(|e| format!("starting a thread: {e}"))
        };
        let registering = thread("reg")?;
        let asked = device.asked.clone();
        let client = registering
            .call_blocking(
                "s3rdma_client_init",
                options.call_timeout,
                move || library.init(asked.as_deref()),
                move |late| drop(late.map(|client| library.free(client))),
            )
            .map_err(|error| error.to_string())??;
        let known = address(&device.name);
        Ok(Self {
            naming: thread("tok")?,
            health: Arc::new(Health {
                rail: Arc::clone(&device.name),
                failed: AtomicU64::new(0),
                down: Mutex::default(),
                cool_down: options.cool_down,
            }),
            name: device.name,
            vendor: library,
            client,
            registering,
            address: known.map_or_else(OnceLock::new, |known| OnceLock::from(Some(known))),
            registered: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        })
    }

    pub(super) fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Its place on the bus, where it was named as a device.
    pub(super) fn pci(&self, topology: &Topology) -> Option<PciDevice> {
        let nic = topology.nics.iter().find(|nic| *nic.name == *self.name)?;
        nic.pci.clone()
    }

    /// Why it is not used now.
    pub(super) fn is_down(&self) -> Option<String> {
        self.health.is_down()
    }

    /// A token for registered memory.
    pub(super) async fn token(
        &self,
        segment: &Segment,
        at: u64,
        len: u64,
    ) -> Result<Named, TokenError> {
        let provider = |text: String| TokenError::Provider {
            text: format!("rail {}: {text}", self.name),
        };
        let (library, client) = (self.vendor, self.client);
        let (base, offset) = (segment.address, at.wrapping_sub(segment.address));
        let text = self
            .naming
            .call(
                "s3rdma_client_get_token",
                move || library.token(client, base, len, offset),
                // What a token names is revoked with the registration.
                drop,
            )
            .await
            .map_err(|hangs| {
                self.health.take_down(hangs.to_string());
                provider(hangs.to_string())
            })?
            .map_err(provider)?;
        // The text is most of a key to this memory: not shown.
        let token = Token::parse(&text).map_err(|error| provider(error.to_string()))?;
        if (token.address, u64::from(token.size)) != (at, len) {
            return Err(provider("its token names another window".to_owned()));
        }
        let source = *self.address.get_or_init(|| address_of(&token));
        Ok(Named {
            token,
            rail: Some(Arc::clone(&self.name)),
            source,
        })
    }

    /// Takes note of a transfer, and tells the library of one that failed; if that thinks the rail broken then, it is
    /// not used for a while.
    pub(super) fn ended(&self, named: &Named, transfer: Transfer) {
        match transfer {
            Transfer::Done(bytes) => {
                self.bytes.fetch_add(bytes, Ordering::Relaxed);
                metrics::counter!("s3engine_rail_bytes_total", "rail" => self.name.to_string())
                    .increment(bytes);
            }
            Transfer::Failed => {
                self.health.failed.fetch_add(1, Ordering::Relaxed);
                metrics::counter!("s3engine_rail_failures_total", "rail" => self.name.to_string())
                    .increment(1);
                self.report(named.token.encode());
            }
        }
    }

    /// Nobody waits for that.
    fn report(&self, token: String) {
        let (library, client, health) = (self.vendor, self.client, Arc::clone(&self.health));
        self.naming
            .post("s3rdma_client_report_token_failure", move || {
                let told = library.report(client, &token);
                if library.healthy(client) > 0 {
                    return;
                }
                let why = told.err().map_or(String::new(), |why| format!(": {why}"));
                let failed = health.failed.load(Ordering::Relaxed);
                health.take_down(format!(
                    "the library thinks it broken, after {failed} failed transfers{why}"
                ));
            });
    }

    pub(super) fn rail(&self) -> Rail {
        Rail {
            name: Arc::clone(&self.name),
            address: self.address.get().copied().flatten(),
            down: self.is_down(),
            registered: self.registered.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            failed: self.health.failed.load(Ordering::Relaxed),
        }
    }

    /// Ends the client, when its calls have returned.
    pub(super) fn end(&self) {
        let (library, client) = (self.vendor, self.client);
        let end = move || library.free(client);
        let bound = self.registering.bound();
        let ended = self
            .registering
            .call_blocking("s3rdma_client_free", bound, end, drop);
        if let Err(why) = ended {
            tracing::warn!(rail = &*self.name, %why, "the library's client is left behind");
        }
    }
}
