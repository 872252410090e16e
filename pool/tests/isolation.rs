//! Against a model: whatever clients do and however they end, none gets what another had.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use books::{Books, client, pool_with, wait_until};
use proptest::prelude::*;
use s3engine_pool::{Buffer, Memory, Pool, SlabId, SlabStats};

mod books;

const MIB: u64 = 1 << 20;

#[derive(Clone, Debug)]
enum Step {
    Alloc { client: usize, len: u64 },
    Free(usize),
    Transfer { nth: usize, answered: bool },
    Export(usize),
    Retire(usize),
    RefuseRevoke(bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0usize..4, 1u64..3 * MIB).prop_map(|(client, len)| Step::Alloc { client, len }),
        4 => any::<usize>().prop_map(Step::Free),
        3 => (any::<usize>(), any::<bool>()).prop_map(|(nth, answered)| Step::Transfer { nth, answered }),
        2 => any::<usize>().prop_map(Step::Export),
        1 => (0usize..4).prop_map(Step::Retire),
        1 => prop::bool::weighted(0.2).prop_map(Step::RefuseRevoke),
    ]
}

/// Each case waits for quarantines to end, so there are few unless more are asked for.
fn cases() -> u32 {
    let asked = std::env::var("PROPTEST_CASES").ok();
    asked.and_then(|cases| cases.parse().ok()).unwrap_or(16)
}

/// Clients, each with a number that its bytes are filled with; a retired one is followed by another.
struct Model {
    books: Arc<Books>,
    host: Pool,
    clients: Vec<(u8, Pool)>,
    held: Vec<(u8, Buffer)>,
    /// Whose a slab was first, and whose a file in memory was, by its inode. The descriptors are kept, so that
    /// no inode's number comes again.
    slabs: HashMap<SlabId, u8>,
    files: HashMap<u64, (u8, OwnedFd)>,
    next: u8,
}

impl Model {
    fn new() -> Self {
        let books = Arc::<Books>::default();
        let host = pool_with(&books, 16 * MIB);
        let clients = vec![(1, host.clone())];
        let mut model = Self {
            books,
            host,
            clients,
            held: Vec::new(),
            slabs: HashMap::new(),
            files: HashMap::new(),
            next: 1,
        };
        (0..3).for_each(|_| model.arrive());
        model
    }

    fn arrive(&mut self) {
        self.next += 1;
        let pool = client(&self.host, &format!("client {}", self.next));
        self.clients.push((self.next, pool));
    }

    fn alloc(&mut self, nth: usize, len: u64) -> Result<(), TestCaseError> {
        let (number, pool) = &self.clients[nth];
        let Ok(mut buffer) = pool.try_alloc(len, Memory::Host) else {
            return Ok(());
        };
        let slab = buffer.slot().slab;
        prop_assert_eq!(self.slabs.entry(slab).or_insert(*number), number);
        let bytes = buffer.as_mut_slice().unwrap();
        let foreign = bytes
            .iter()
            .step_by(61)
            .find(|byte| ![0, *number].contains(byte));
        prop_assert_eq!(foreign, None, "another client's bytes");
        bytes.fill(*number);
        self.held.push((*number, buffer));
        Ok(())
    }

    fn transfer(&mut self, nth: usize, answered: bool) {
        let (number, buffer) = self.held.swap_remove(nth % self.held.len());
        let mut landing = buffer.into_landing();
        let mut window = landing.window(0, landing.len().min(4096)).unwrap();
        if window.arm(self.host.fabric(0).unwrap()).is_ok() && answered {
            window.disarm();
        }
        drop(window);
        if let Ok(buffer) = landing.finish() {
            self.held.push((number, buffer));
        }
    }

    fn export(&mut self, nth: usize) -> Result<(), TestCaseError> {
        let (number, buffer) = &self.held[nth % self.held.len()];
        let slab = buffer.slot().slab;
        for (other, pool) in &self.clients {
            let exported = pool.export(slab);
            prop_assert!(exported.is_err() || other == number);
            let Ok(export) = exported else { continue };
            let inode = rustix::fs::fstat(export.share.fd().unwrap())
                .unwrap()
                .st_ino;
            let (first, _) = self
                .files
                .entry(inode)
                .or_insert((*number, export.share.descriptor().unwrap()));
            prop_assert_eq!(&*first, number);
        }
        Ok(())
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let stats = self.host.stats();
        prop_assert!(stats.mapped <= stats.max_bytes);
        let walked = |f: fn(&SlabStats) -> u64| stats.slabs.iter().map(f).sum();
        prop_assert_eq!(stats.leased, walked(|slab| slab.leased));
        prop_assert_eq!(stats.quarantined, walked(|slab| slab.quarantined));
        for (number, buffer) in &self.held {
            let mut bytes = buffer.as_slice().unwrap().iter().step_by(4099);
            prop_assert!(bytes.all(|byte| byte == number));
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    /// Whatever the order of leases, doubts, unconfirmed revocations, exports and ends of clients.
    #[test]
    fn no_slab_and_no_byte_of_one_client_is_ever_anothers(steps in prop::collection::vec(step(), 1..60)) {
        let mut model = Model::new();
        for step in steps {
            match step {
                Step::Alloc { client, len } => model.alloc(client, len)?,
                Step::Free(nth) if !model.held.is_empty() => {
                    drop(model.held.swap_remove(nth % model.held.len()));
                }
                Step::Transfer { nth, answered } if !model.held.is_empty() => model.transfer(nth, answered),
                Step::Export(nth) if !model.held.is_empty() => model.export(nth)?,
                Step::Retire(nth) if nth > 0 => {
                    let (_, pool) = model.clients.remove(nth);
                    if model.next.is_multiple_of(2) { pool.retire() } else { drop(pool) }
                    model.arrive();
                }
                Step::RefuseRevoke(refuse) => model.books.refuse_revoke.store(refuse, Ordering::SeqCst),
                _ => {}
            }
            model.check()?;
        }
        model.books.refuse_revoke.store(false, Ordering::SeqCst);
        model.held.clear();
        model.clients.truncate(1);
        let own = || model.host.client_stats().unwrap().mapped;
        wait_until("only the owner's own slabs are left", || {
            let stats = model.host.stats();
            (stats.clients, stats.leased, stats.quarantined) == (0, 0, 0) && stats.mapped == own()
        });
    }
}
