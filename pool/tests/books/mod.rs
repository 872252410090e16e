//! A fabric that only keeps the books, for tests of the ledger and of quarantine.

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use s3engine_pool::{RegisterError, Registrar, RegistrationHandle, RevokeError, Segment};

const MIB: u64 = 1 << 20;

/// What is registered, and how the next calls end.
#[derive(Default)]
pub struct Books {
    next: AtomicU64,
    live: Mutex<HashSet<u64>>,
    pub refuse_register: AtomicBool,
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
        if self.refuse_register.load(Ordering::SeqCst) {
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
