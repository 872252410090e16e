//! Who may attach, and what they get.

use std::cell::{Cell, RefCell};
use std::num::NonZeroU32;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};

use s3engine_pool::{ClientOptions, GroupOptions};
use tokio::net::UnixStream;

use super::{Facts, Session};
use crate::control::{Hello, VERSIONS};
use crate::engine::Engine;
use crate::served::ENDING;
use crate::service::Host;
use crate::service::peer::Peer;
use crate::tenant::Tenant;

/// The longest label.
const LONGEST_LABEL: usize = 128;

impl Session {
    /// Judges a client by what the kernel says of it and what it says itself.
    pub(super) fn admit(
        host: &Arc<Host>,
        socket: &Rc<UnixStream>,
        peer: &Peer,
        hello: Hello,
    ) -> Result<(Rc<Session>, u32), String> {
        if host.draining.is_cancelled() {
            return Err(ENDING.to_owned());
        }
        let (oldest, newest) = hello.versions;
        let version = newest.min(VERSIONS.1);
        if version < VERSIONS.0 || version < oldest {
            return Err(format!(
                "the client speaks versions {oldest} to {newest}, the service {} to {}",
                VERSIONS.0, VERSIONS.1
            ));
        }
        let named =
            |(name, _): &&(String, Engine)| hello.endpoint.as_deref().is_none_or(|of| of == name);
        let Some((endpoint, engine)) = host.endpoints.iter().find(named) else {
            let names: Vec<_> = host.endpoints.iter().map(|(name, _)| &**name).collect();
            let wanted = hello.endpoint.unwrap_or_default();
            let wanted: String = wanted.chars().take(LONGEST_LABEL).collect();
            return Err(format!(
                "no endpoint {wanted:?}: there are {}",
                names.join(", ")
            ));
        };
        let inner = engine.embedded().ok_or("the service serves nothing")?;
        let label: String = hello
            .label
            .chars()
            .filter(|c| !c.is_control())
            .take(LONGEST_LABEL)
            .collect();
        let mut sessions = host.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let of_uid = sessions
            .values()
            .filter(|other| other.uid == peer.uid)
            .count();
        let caps = &host.caps;
        if sessions.len() >= caps.sessions || of_uid >= caps.sessions_per_uid {
            return Err(format!(
                "{} sessions, {of_uid} of uid {}: at most {} and {} are allowed",
                sessions.len(),
                peer.uid,
                caps.sessions,
                caps.sessions_per_uid
            ));
        }
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let core = &inner.core;
        let client = ClientOptions {
            name: label.as_str().into(),
            max_bytes: caps.bytes,
            group: caps.bytes_per_uid.map(|max_bytes| GroupOptions {
                number: peer.uid.into(),
                max_bytes,
            }),
            slab_bytes: Some(caps.slab_bytes),
            read_only: peer.uid != host.uid,
        };
        let pool = core
            .pool
            .for_client(client)
            .map_err(|error| error.to_string())?;
        let of_user = caps.of_user(peer.uid);
        let share = core
            .in_flight
            .share_in(of_user, NonZeroU32::MIN, caps.of_share());
        let headers = Arc::clone(&host.client_headers);
        let access = host.access(endpoint, peer.uid, &peer.groups);
        let facts = Arc::new(Facts {
            number,
            pid: peer.pid,
            uid: peer.uid,
            groups: peer.groups.clone(),
            endpoint: endpoint.clone(),
            tenant: Tenant::new(Some(&label), pool, share, access, Some(headers)),
            label,
            leases: Arc::default(),
            queues: AtomicUsize::new(0),
            asks: AtomicU64::new(0),
            ended: host.stop.child_token(),
        });
        sessions.insert(number, Arc::clone(&facts));
        metrics::gauge!("s3engine_service_sessions").set(sessions.len() as f64);
        drop(sessions);
        let session = Session {
            host: Arc::clone(host),
            facts,
            engine: engine.clone(),
            inner: Arc::clone(inner),
            socket: Rc::clone(socket),
            shared: RefCell::default(),
            watched: RefCell::default(),
            tells_gone: Cell::new(false),
            objects: RefCell::default(),
            running: RefCell::default(),
            watching: Cell::new(false),
            why_it_left: RefCell::default(),
        };
        Ok((Rc::new(session), version))
    }
}
