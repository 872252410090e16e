//! Objects that are read many times: opened once, bound to one version, named by an id from then on.

use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dashmap::DashMap;
use s3engine_pool::Process;
use s3engine_s3::error::{Error, ErrorKind};
use s3engine_s3::object::{ObjectInfo, Pin};
use s3engine_s3::options::RequestOptions;
use tokio::sync::OnceCell;

use crate::in_flight::ShareId;
use crate::wire::Name;

/// What is asked for at the same time is asked once: whose turn it waits for, bucket, key and options.
type Asked = (ShareId, Arc<str>, Arc<str>, Option<Arc<RequestOptions>>);

/// The open objects of an engine.
pub(crate) struct Objects {
    process: Process,
    /// Unlike that of every other table of this process.
    number: u64,
    next: AtomicU64,
    names: DashMap<u64, Name>,
    asked: Flights<Asked, Result<ObjectInfo, Error>>,
}

impl Objects {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            process: Process::current(),
            number: table_number(),
            next: AtomicU64::new(1),
            names: DashMap::new(),
            asked: Flights::default(),
        })
    }

    /// What an id stands for.
    pub(crate) fn name(&self, id: u64) -> Option<Name> {
        Some(self.names.get(&id)?.clone())
    }

    /// Opens an object, which `head` asks the server for unless somebody of the same share is asking already: nobody
    /// waits for the turn of another's.
    pub(crate) async fn open(
        self: &Arc<Self>,
        share: ShareId,
        (bucket, key): (&str, &str),
        options: Option<Arc<RequestOptions>>,
        head: impl Future<Output = Result<ObjectInfo, Error>>,
    ) -> Result<Object, Error> {
        let (bucket, key): (Arc<str>, Arc<str>) = (bucket.into(), key.into());
        let named = (
            share,
            Arc::clone(&bucket),
            Arc::clone(&key),
            options.clone(),
        );
        let info = self.asked.join(named, head).await?;
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let opener = Arc::clone(self) as Arc<dyn Opener>;
        let named = (&*bucket, &*key);
        let Some(object) = Object::new(id, named, options, info, opener) else {
            let text = "the answer to HEAD has no size".to_owned();
            return Err(Error::new(
                "HEAD",
                &*bucket,
                &*key,
                ErrorKind::Protocol(text),
            ));
        };
        self.names.insert(id, object.name().clone());
        Ok(object)
    }
}

/// Whose ids name open objects: the engine of this process, or a session with a host service.
pub(crate) trait Opener: Send + Sync {
    /// An id is not needed any more.
    fn close(&self, id: u64);

    /// Unlike that of every other opener of this process.
    fn number(&self) -> u64;
}

/// A number that no other opener of this process has.
pub(crate) fn table_number() -> u64 {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    NUMBER.fetch_add(1, Ordering::Relaxed)
}

impl Opener for Objects {
    fn close(&self, id: u64) {
        // In a forked child the table's locks may be held by threads that are not there.
        if self.process.is_this() {
            self.names.remove(&id);
        }
    }

    fn number(&self) -> u64 {
        self.number
    }
}

/// An object that was opened: bound to the version that it had then. GETs of it need no HEAD, carry no name
/// through the rings, and fail with `modified` once it is replaced. Closed when the last clone goes and no GET
/// of it is under way.
#[derive(Clone)]
pub struct Object(Arc<Open>);

struct Open {
    id: u64,
    name: Name,
    info: ObjectInfo,
    options: Option<Arc<RequestOptions>>,
    opener: Arc<dyn Opener>,
}

impl Object {
    /// One that was opened as `id`. `None` where its size is not known, which binds it to nothing.
    pub(crate) fn new(
        id: u64,
        (bucket, key): (&str, &str),
        options: Option<Arc<RequestOptions>>,
        info: ObjectInfo,
        opener: Arc<dyn Opener>,
    ) -> Option<Self> {
        let name = Name {
            bucket: bucket.into(),
            key: key.into(),
            if_match: None,
            version: Some(Pin::of(&info)?),
        };
        Some(Self(Arc::new(Open {
            id,
            name,
            info,
            options,
            opener,
        })))
    }

    /// The bucket.
    pub fn bucket(&self) -> &str {
        &self.0.name.bucket
    }

    /// The key.
    pub fn key(&self) -> &str {
        &self.0.name.key
    }

    /// What the server said of it: ETag, version, size.
    pub fn info(&self) -> &ObjectInfo {
        &self.0.info
    }

    pub(crate) fn options(&self) -> Option<&Arc<RequestOptions>> {
        self.0.options.as_ref()
    }

    pub(crate) fn id(&self) -> u64 {
        self.0.id
    }

    pub(crate) fn name(&self) -> &Name {
        &self.0.name
    }

    /// Whether its id means it to the opener of this number.
    pub(crate) fn is_of(&self, opener: u64) -> bool {
        self.0.opener.number() == opener
    }
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Object")
            .field("bucket", &self.bucket())
            .field("info", &self.0.info)
            .finish_non_exhaustive()
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.opener.close(self.id);
    }
}

/// Work that is done once for all who want the same at the same time. Nothing is kept when it is done.
struct Flights<K: Eq + Hash, T>(DashMap<K, Arc<OnceCell<T>>>);

impl<K: Eq + Hash, T> Default for Flights<K, T> {
    fn default() -> Self {
        Self(DashMap::new())
    }
}

impl<K: Clone + Eq + Hash, T: Clone> Flights<K, T> {
    /// The result of this work, or of the same by somebody else who began before. If that one gives up, the
    /// next one's work is done.
    async fn join(&self, key: K, work: impl Future<Output = T>) -> T {
        let flight = Arc::clone(&self.0.entry(key.clone()).or_default());
        let joined = Joined {
            flights: self,
            key,
            flight,
        };
        joined.flight.get_or_init(|| work).await.clone()
    }
}

struct Joined<'a, K: Eq + Hash, T> {
    flights: &'a Flights<K, T>,
    key: K,
    flight: Arc<OnceCell<T>>,
}

impl<K: Eq + Hash, T> Drop for Joined<'_, K, T> {
    fn drop(&mut self) {
        self.flights.0.remove_if(&self.key, |_, now| {
            let alone = Arc::strong_count(now) == 2;
            Arc::ptr_eq(now, &self.flight) && (now.initialized() || alone)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use tokio::sync::Notify;
    use tokio::task::LocalSet;

    fn run(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        LocalSet::new().block_on(&runtime, test);
    }

    #[test]
    fn who_wants_the_same_at_the_same_time_shares_one_flight() {
        run(async {
            let (flights, go, runs) = (Flights::default(), Notify::new(), Cell::new(0));
            let work = || async {
                runs.set(runs.get() + 1);
                go.notified().await;
                7
            };
            let late = async { go.notify_one() };
            let (a, b, ()) =
                tokio::join!(flights.join("k", work()), flights.join("k", work()), late);
            assert_eq!((a, b, runs.get()), (7, 7, 1));
            assert!(flights.0.is_empty(), "nothing is kept");
            go.notify_one();
            assert_eq!(flights.join("k", work()).await, 7);
            assert_eq!(runs.get(), 2, "what is asked later is asked anew");
        });
    }

    #[test]
    fn a_flight_whose_pilot_gives_up_is_flown_by_the_next() {
        run(async {
            let flights = Flights::default();
            {
                let mut never = std::pin::pin!(flights.join("k", std::future::pending::<u32>()));
                tokio::select! {
                    biased;
                    _ = &mut never => unreachable!(),
                    () = std::future::ready(()) => {}
                }
                let mut next = std::pin::pin!(flights.join("k", async { 8 }));
                tokio::select! {
                    biased;
                    _ = &mut next => panic!("somebody else is at it"),
                    () = std::future::ready(()) => {}
                }
                never.set(flights.join("other", std::future::pending()));
                assert_eq!(next.await, 8);
            }
            assert!(flights.0.is_empty(), "those who gave up leave nothing");
        });
    }
}
