//! Keys that come from elsewhere and change: read without a lock, fetched anew by one thread for all.
//!
//! ```text
//! requests ── present ──────> keys                        the source's thread
//!    │ there are none, they have ended, or were refused        │  ahead of their end; after a failure; asked to
//!    └── wanted ───────────────────────────────────────────> fetch ── provider
//!        news  <──────────────────────────────── present, news ┘
//! ```
//!
//! As long as there are keys that have not ended nobody waits, whatever the source does. Whether keys serve is the
//! server's to say: keys that have ended by this host's clock are used where no others can be had.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwapOption;
use aws_credential_types::provider::{ProvideCredentials, SharedCredentialsProvider};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::held::Held;
use super::refresh;

/// Failures in a row after which those who wait are told. The source goes on trying.
const PATIENCE: u32 = 3;
/// How long what a fetch did not bring holds: nobody asks for it again before.
pub(super) const STILL_SO: Duration = Duration::from_secs(1);

/// A source of keys. Dropping it ends its thread.
pub(crate) struct Source {
    shared: Arc<Shared>,
    started: OnceLock<Result<(), String>>,
}

/// What the thread and those who ask it have in common.
pub(super) struct Shared {
    pub(super) provider: SharedCredentialsProvider,
    pub(super) asked: Asked,
    pub(super) present: ArcSwapOption<Held>,
    /// Fetches that have begun.
    pub(super) begun: AtomicU64,
    pub(super) news: watch::Sender<News>,
    pub(super) wanted: watch::Sender<Wanted>,
    stop: CancellationToken,
}

/// Who is asked for keys, or gave them: for people.
#[derive(Clone, Default)]
pub(super) struct Asked(Arc<Mutex<String>>);

/// What the fetches so far have brought.
#[derive(Clone, Debug, Default)]
pub(super) struct News {
    /// The number of the last one that has ended.
    pub(super) fetch: u64,
    pub(super) ended: Option<Instant>,
    /// How many have failed since the last that did not.
    pub(super) failures: u32,
    /// Why the last one failed.
    pub(super) problem: Option<Problem>,
    /// It brought what there was already.
    pub(super) same: bool,
}

/// Why there are no keys.
#[derive(Clone, Debug)]
pub(super) struct Problem {
    pub(super) text: Arc<str>,
    /// It does not pass by itself.
    pub(super) lasting: bool,
}

/// What somebody waits for: other keys than those of a generation, by a fetch of this number or a later one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wanted {
    pub(super) fetch: u64,
    pub(super) other_than: u64,
}

impl Asked {
    pub(super) fn set(&self, who: &str) {
        let mut asked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        who.clone_into(&mut asked);
    }

    pub(super) fn get(&self) -> String {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl News {
    /// Whether asking again now would bring nothing else.
    fn hold(&self) -> bool {
        let recent = self.ended.is_some_and(|ended| ended.elapsed() < STILL_SO);
        recent && (self.same || self.are_bad())
    }

    /// Whether those who wait have waited enough.
    fn are_bad(&self) -> bool {
        let lasting = self.problem.as_ref().is_some_and(|why| why.lasting);
        lasting || self.failures >= PATIENCE
    }
}

impl Shared {
    /// Zero: there are no keys yet.
    pub(super) fn generation(&self) -> u64 {
        let present = self.present.load();
        present.as_ref().map_or(0, |held| held.generation)
    }
}

impl Source {
    /// Keys that `provider` gives. `asked` is who it asks; nothing is asked for yet.
    pub(super) fn new(provider: impl ProvideCredentials + 'static, asked: Asked) -> Source {
        Source {
            shared: Arc::new(Shared {
                provider: SharedCredentialsProvider::new(provider),
                asked,
                present: ArcSwapOption::empty(),
                begun: AtomicU64::new(0),
                news: watch::Sender::new(News::default()),
                wanted: watch::Sender::new(Wanted::default()),
                stop: CancellationToken::new(),
            }),
            started: OnceLock::new(),
        }
    }

    /// Has the thread fetch keys, if it does not yet.
    pub(crate) fn start(&self) -> Result<(), String> {
        let started = self.started.get_or_init(|| {
            let shared = Arc::clone(&self.shared);
            let started = run_in_thread(shared, self.shared.stop.clone());
            started.map_err(|error| format!("starting the thread that fetches them: {error}"))
        });
        started.clone()
    }

    /// The present keys, if there are any.
    pub(crate) fn present(&self) -> Option<Arc<Held>> {
        self.shared.present.load_full()
    }

    /// Keys to sign with. Waits only where there are none, or where they have ended and others may be had.
    pub(crate) async fn keys(&self, limit: Duration) -> Result<Arc<Held>, String> {
        let present = self.present();
        let generation = match present {
            Some(held) if !held.have_expired(SystemTime::now()) || !self.may_give_others() => {
                return Ok(held);
            }
            Some(held) => held.generation,
            None => 0,
        };
        let fetched = self.others_than(generation, limit).await;
        // Whatever came of it, there may be keys that have ended; whether they serve the server will say.
        self.present()
            .ok_or_else(|| fetched.err().unwrap_or_default())
    }

    /// Waits for other keys than those of a generation, which were refused. An error says why there are none.
    pub(crate) async fn others_than(&self, generation: u64, limit: Duration) -> Result<(), String> {
        self.start()?;
        let shared = &*self.shared;
        let mut news = shared.news.subscribe();
        let before = news.borrow().clone();
        if shared.generation() != generation {
            return Ok(());
        }
        if before.hold() {
            return Err(self.why_not(&before));
        }
        // What a fetch that is under way has read may be older than the refusal.
        let fetch = shared.begun.load(Ordering::Acquire) + u64::from(generation > 0);
        let fetch = fetch.max(before.fetch + 1);
        shared.wanted.send_modify(|wanted| {
            wanted.fetch = wanted.fetch.max(fetch);
            wanted.other_than = wanted.other_than.max(generation);
        });
        let settled = |news: &News| {
            let fetched = news.fetch >= fetch && news.failures == 0;
            let failed = news.fetch > before.fetch && news.are_bad();
            fetched || failed || shared.generation() != generation
        };
        // It ends with the time, or settled: the sender is there as long as this.
        let _ = timeout(limit, news.wait_for(settled)).await;
        let news = shared.news.borrow();
        if shared.generation() != generation {
            Ok(())
        } else if news.fetch >= fetch || news.problem.is_some() {
            Err(self.why_not(&news))
        } else {
            let asked = shared.asked.get();
            Err(format!("{asked} has not answered within {limit:?}"))
        }
    }

    fn may_give_others(&self) -> bool {
        let news = self.shared.news.borrow();
        news.failures == 0 && !news.same
    }

    fn why_not(&self, news: &News) -> String {
        match &news.problem {
            Some(problem) => problem.text.to_string(),
            None => format!("{} gives the same keys again", self.shared.asked.get()),
        }
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        self.shared.stop.cancel();
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source")
            .field("asked", &self.shared.asked.get())
            .field("present", &self.present())
            .finish_non_exhaustive()
    }
}

/// The thread ends soon after the stop: what a provider is doing then is dropped.
fn run_in_thread(shared: Arc<Shared>, stop: CancellationToken) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let run = move || {
        runtime.block_on(async {
            tokio::select! {
                () = stop.cancelled() => {}
                () = refresh::run(&shared) => {}
            }
        });
        // A look-up of a name cannot be interrupted, and ends by itself.
        runtime.shutdown_background();
    };
    let thread = thread::Builder::new().name("s3engine-keys".to_owned());
    thread.spawn(run).map(drop)
}
