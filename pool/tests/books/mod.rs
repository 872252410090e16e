//! A fabric that only keeps the books, for tests of the ledger, of quarantine and of clients.

#![allow(dead_code)] // No test uses all of it.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use s3engine_pool::{
    ClientOptions, Pool, PoolOptions, RegisterError, Registrar, RegistrationHandle, RevokeError,
    Segment,
};

const MIB: u64 = 1 << 20;

/// What is registered, and how the next calls end.
#[derive(Default)]
pub struct Books {
    next: AtomicU64,
    live: Mutex<HashSet<u64>>,
    pub refuse_register: AtomicBool,
    /// So many registrations fail, and then none.
    pub refuse_next: AtomicU64,
    /// How often one was asked for.
    pub asked: AtomicU64,
    pub refuse_revoke: AtomicBool,
    pub panic_in_revoke: AtomicBool,
    /// A revocation waits while this is set, and `revoking` says that it does.
    pub hold_revoke: AtomicBool,
    pub revoking: AtomicBool,
}

impl Books {
    pub fn live(&self) -> usize {
        self.live.lock().unwrap().len()
    }

    pub fn is_live(&self, handle: RegistrationHandle) -> bool {
        self.live.lock().unwrap().contains(&handle.0)
    }
}

impl Registrar for Books {
    fn name(&self) -> &'static str {
        "books"
    }

    fn segment_limit(&self) -> u64 {
        4 * MIB
    }

    fn register(&self, segment: Segment<'_>) -> Result<RegistrationHandle, RegisterError> {
        assert!(segment.len <= self.segment_limit());
        self.asked.fetch_add(1, Ordering::SeqCst);
        let take = |left: u64| left.checked_sub(1);
        let (set, fetch) = (Ordering::SeqCst, Ordering::SeqCst);
        let is_next = self.refuse_next.fetch_update(set, fetch, take).is_ok();
        if is_next || self.refuse_register.load(Ordering::SeqCst) {
            return Err(RegisterError {
                errno: Some(12),
                text: "no rail could register".into(),
            });
        }
        let handle = self.next.fetch_add(1, Ordering::SeqCst);
        self.live.lock().unwrap().insert(handle);
        Ok(RegistrationHandle(handle))
    }

    fn revoke(&self, handle: RegistrationHandle, _timeout: Duration) -> Result<(), RevokeError> {
        assert!(
            !self.panic_in_revoke.load(Ordering::SeqCst),
            "as the test wants it"
        );
        while self.hold_revoke.load(Ordering::SeqCst) {
            self.revoking.store(true, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(1));
        }
        if self.refuse_revoke.load(Ordering::SeqCst) {
            return Err(RevokeError {
                text: "the peer is silent".into(),
            });
        }
        assert!(self.live.lock().unwrap().remove(&handle.0), "revoked once");
        Ok(())
    }
}

/// Runs one future on this thread. One that does not end is a failure.
pub fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut context = std::task::Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    let began = Instant::now();
    loop {
        assert!(began.elapsed() < Duration::from_secs(60), "never ready");
        match future.as_mut().poll(&mut context) {
            std::task::Poll::Ready(output) => return output,
            std::task::Poll::Pending => std::thread::park_timeout(Duration::from_secs(1)),
        }
    }
}

/// A pool of slabs of 4 MiB that quarantines for at most a moment.
pub fn pool_with(books: &Arc<Books>, max: u64) -> Pool {
    let options = PoolOptions {
        slab_bytes: 4 * MIB,
        max_bytes: Some(max),
        quarantine_max: Duration::from_millis(50),
        ..PoolOptions::default()
    };
    Pool::with_fabrics(options, vec![Arc::clone(books) as Arc<dyn Registrar>]).unwrap()
}

pub fn client(pool: &Pool, name: &str) -> Pool {
    pool.for_client(ClientOptions::named(name)).unwrap()
}

pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < Duration::from_secs(20), "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
