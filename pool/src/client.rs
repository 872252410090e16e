//! The owner's part for clients in other processes: slabs of their own, exported to them and to nobody else.
//!
//! Every handle of a pool is one client's; the process's own is the first. What a client leases lies in slabs
//! that were made for it, and when the client is gone so are they.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use event_listener::Event;

use crate::accounts::Figures;
use crate::cuda::{CudaShare, IPC_HANDLE};
use crate::group::{Group, GroupOptions};
use crate::memory::Memory;
use crate::memory::SLAB_ALIGN;
use crate::options::PoolError;
use crate::pool::Pool;
use crate::room::Tally;
use crate::shared::Shared;
use crate::slab::{SlabId, SlabStats};

/// What a client gets.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// What errors and logs call it.
    pub name: Arc<str>,
    /// The most bytes of each kind of memory ever mapped for it, within the pool's bound. `None`: the pool's bound.
    pub max_bytes: Option<u64>,
    /// With which others it is bounded together.
    pub group: Option<GroupOptions>,
    /// Bytes of a slab. `None`: as the pool's.
    pub slab_bytes: Option<u64>,
    /// Whether it may only read: for a client of another user. It is given a descriptor for reading, and the mode
    /// of the memory keeps its user from opening another.
    pub read_only: bool,
}

impl ClientOptions {
    /// A client of the same user, bounded as the pool is.
    pub fn named(name: impl Into<Arc<str>>) -> Self {
        Self {
            name: name.into(),
            max_bytes: None,
            group: None,
            slab_bytes: None,
            read_only: false,
        }
    }
}

/// A client's number in one pool. Never given out twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ClientId(pub(crate) u64);

/// What does not change about a client, and what is counted without a lock.
pub(crate) struct Client {
    pub(crate) id: ClientId,
    pub(crate) name: Arc<str>,
    /// Of host memory.
    pub(crate) max_bytes: u64,
    /// Of each kind of memory, beside the pool's bound.
    most: u64,
    pub(crate) group: Option<Arc<Group>>,
    pub(crate) slab_bytes: u64,
    pub(crate) read_only: bool,
    pub(crate) mapped: Tally,
    /// Told when one of its leases ended, or it is retired.
    pub(crate) freed: Event,
    /// Held while a slab is made for it, so that two requests do not make two.
    pub(crate) growing: Mutex<()>,
}

impl Client {
    /// A client of `shared`'s pool, unless its bounds are too small for a slab.
    pub(crate) fn new(
        shared: &Shared,
        id: ClientId,
        options: ClientOptions,
    ) -> Result<Self, PoolError> {
        let group = options.group.map(|group| shared.groups.join(group));
        let of_group = group.as_ref().map_or(u64::MAX, |group| group.max_bytes);
        let most = options.max_bytes.unwrap_or(u64::MAX).min(of_group);
        let slab_bytes = options.slab_bytes.unwrap_or(shared.options.slab_bytes);
        let max_bytes = most.min(shared.max_bytes) / SLAB_ALIGN * SLAB_ALIGN;
        if max_bytes == 0 || slab_bytes < SLAB_ALIGN {
            return Err(PoolError::TooSmall {
                max_bytes: most.min(shared.max_bytes),
                slab_bytes,
            });
        }
        Ok(Self {
            id,
            name: options.name,
            max_bytes,
            most,
            group,
            slab_bytes,
            read_only: options.read_only,
            mapped: Tally::default(),
            freed: Event::new(),
            growing: Mutex::new(()),
        })
    }
}

impl Client {
    /// The most bytes of a kind of memory ever mapped for it, given the pool's bound.
    pub(crate) fn bound(&self, of_pool: u64) -> u64 {
        self.most.min(of_pool) / SLAB_ALIGN * SLAB_ALIGN
    }

    /// Whether the two are bounded together.
    pub(crate) fn is_with(&self, other: &Client) -> bool {
        match (&self.group, &other.group) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            _ => self.id == other.id,
        }
    }
}

/// What the clones of a handle share. The client ends with it.
pub(crate) struct Handle {
    pub(crate) shared: Arc<Shared>,
    pub(crate) client: Arc<Client>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        // The process's own slabs go with the pool, which buffers may keep alive.
        if self.client.id != Shared::HOST {
            self.shared.retire(&self.client);
        }
    }
}

/// A slab as another process gets it.
#[derive(Debug)]
pub struct SlabExport {
    /// What kind of memory it is.
    pub memory: Memory,
    /// What it is mapped by.
    pub share: Share,
    /// Its bytes.
    pub len: u64,
    /// Whether it can only be mapped for reading.
    pub read_only: bool,
}

/// What another process maps a slab by.
#[derive(Debug)]
pub enum Share {
    /// A descriptor of a memfd, or of [`CudaKind::Vmm`](crate::cuda::CudaKind::Vmm) memory, closed on exec.
    Descriptor(OwnedFd),
    /// A handle of [`CudaKind::Legacy`](crate::cuda::CudaKind::Legacy) memory.
    Ipc([u8; IPC_HANDLE]),
}

impl Share {
    /// The descriptor, where it is that.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Share::Descriptor(fd) => Some(fd.as_fd()),
            Share::Ipc(_) => None,
        }
    }

    /// The same, taken.
    pub fn descriptor(self) -> Option<OwnedFd> {
        match self {
            Share::Descriptor(fd) => Some(fd),
            Share::Ipc(_) => None,
        }
    }
}

impl From<CudaShare<OwnedFd>> for Share {
    fn from(share: CudaShare<OwnedFd>) -> Self {
        match share {
            CudaShare::Descriptor(fd) => Share::Descriptor(fd),
            CudaShare::Ipc(handle) => Share::Ipc(handle),
        }
    }
}

/// What one client holds at a moment.
#[derive(Clone, Debug)]
pub struct ClientStats {
    /// Its name.
    pub name: Arc<str>,
    /// Its bound.
    pub max_bytes: u64,
    /// Bytes of host memory mapped for it, until the last holder of each slab is gone.
    pub mapped: u64,
    /// Bytes leased, quarantined ones included.
    pub leased: u64,
    /// Bytes in quarantine.
    pub quarantined: u64,
    /// Slabs made for it since it came.
    pub slabs_made: u64,
    /// Exports of its slabs since it came.
    pub exports: u64,
    /// The slabs there are.
    pub slabs: Vec<SlabStats>,
}

impl Pool {
    /// A handle to the same pool for a client in another process. What it leases lies in slabs of this client
    /// alone; the pool's bound, fabrics and quarantine are shared. Its last clone's end retires the client.
    pub fn for_client(&self, options: ClientOptions) -> Result<Pool, PoolError> {
        let shared = &self.owner()?.shared;
        Ok(Self::of(shared.open(options)?))
    }

    /// A slab's descriptor, for the client that this handle is of. Only slabs of this client.
    pub fn export(&self, slab: SlabId) -> Result<SlabExport, PoolError> {
        let Handle { shared, client } = &**self.owner()?;
        let slab = shared.lock().export(client, slab)?;
        let share = slab.export()?;
        metrics::counter!("s3engine_slab_exports_total").increment(1);
        Ok(SlabExport {
            memory: slab.memory(),
            share,
            len: slab.len(),
            read_only: client.read_only,
        })
    }

    /// Ends the client: it leases nothing any more, and each of its slabs is revoked and unmapped as soon as
    /// the last lease in it has ended and nothing of it is in quarantine. Does not wait for that. Once is enough.
    /// Of a pool that another process owns, nothing.
    pub fn retire(&self) {
        if let Ok(owner) = self.owner() {
            owner.shared.retire(&owner.client);
        }
    }

    /// Whether the client was retired. Of a pool that another process owns: no.
    pub fn is_retired(&self) -> bool {
        let owner = self.owner();
        owner.is_ok_and(|owner| owner.shared.lock().is_retired(owner.client.id))
    }

    /// The client's slabs. One that is missing here was destroyed, and its number never comes again:
    /// [`changed`](Self::changed) tells when to look. Empty where another process owns the pool.
    pub fn slabs(&self) -> Vec<SlabId> {
        let Ok(owner) = self.owner() else {
            return Vec::new();
        };
        let accounts = owner.shared.lock();
        let account = accounts.get(owner.client.id);
        account.map_or(Vec::new(), |account| {
            account.slabs.keys().copied().collect()
        })
    }

    /// What the client holds now. An error in a forked child, and where another process owns the pool.
    pub fn client_stats(&self) -> Result<ClientStats, PoolError> {
        let Handle { shared, client } = &**self.owner()?;
        let accounts = shared.lock();
        let (account, sums) = (accounts.get(client.id), accounts.sums(client.id));
        let slabs = account.map(|account| account.slabs.values().map(Figures::of).collect());
        let (slabs_made, exports) =
            account.map_or((0, 0), |account| (account.made, account.exports));
        drop(accounts);
        Ok(ClientStats {
            name: Arc::clone(&client.name),
            max_bytes: client.max_bytes,
            mapped: client.mapped.of(Memory::Host),
            leased: sums.leased,
            quarantined: sums.quarantined,
            slabs_made,
            exports,
            slabs: Figures::stats(slabs.unwrap_or_default()),
        })
    }
}
