//! The addresses of servers: looked up once for all threads, kept a while, and taken in turn.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::endpoint::Origin;

/// How long addresses are used before they are looked up anew.
const LIFETIME: Duration = Duration::from_secs(30);
/// How long they are used while that is under way. Older ones are only better than none.
const STALE: Duration = Duration::from_secs(300);
/// How long after a look-up that failed the next one begins, where there are old addresses.
const PAUSE: Duration = Duration::from_secs(5);
/// The most names that are kept; redirects can bring any.
const MOST_NAMES: usize = 256;

type Found = Arc<[SocketAddr]>;
type Answer = Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>>;
type LookUp = Box<dyn Fn(String, u16) -> Answer + Send + Sync>;
/// Names and ports, and what is known of them.
type Names = Mutex<HashMap<(String, u16), Name>>;

/// Finds the addresses of servers.
pub(crate) struct Resolver {
    names: Arc<Names>,
    look_up: LookUp,
    turn: AtomicUsize,
}

#[derive(Default)]
struct Name {
    /// Since when.
    found: Option<(Instant, Found)>,
    /// No look-up begins before.
    next: Option<Instant>,
    /// One is under way: its end.
    pending: Option<watch::Receiver<Option<Ended>>>,
}

/// How a look-up has ended: errors cannot be cloned, and many may wait.
type Ended = Result<Found, (io::ErrorKind, String)>;

impl Resolver {
    pub(crate) fn new() -> Resolver {
        Resolver::with(Box::new(|host, port| Box::pin(look_up(host, port))))
    }

    fn with(look_up: LookUp) -> Resolver {
        Resolver {
            names: Arc::default(),
            look_up,
            // Processes that start together do not all begin with the same address.
            turn: AtomicUsize::new(rand::random::<u16>().into()),
        }
    }

    /// All addresses, beginning with another one each time so that connections spread over them.
    ///
    /// Old addresses are better than none: they stay in use while a look-up fails.
    pub(crate) async fn addresses(&self, server: &Origin) -> io::Result<Vec<SocketAddr>> {
        if let Some(ip) = server.ip() {
            return Ok(vec![SocketAddr::new(ip, server.port())]);
        }
        let mut addresses = self.found(server).await?.to_vec();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let first = turn.checked_rem(addresses.len()).unwrap_or(0);
        addresses.rotate_left(first);
        Ok(addresses)
    }

    /// The addresses that are known already.
    pub(crate) fn known(&self, server: &Origin) -> Vec<SocketAddr> {
        match server.ip() {
            Some(ip) => vec![SocketAddr::new(ip, server.port())],
            None => {
                let names = lock(&self.names);
                let name = names.get(&(server.host(), server.port()));
                let found = name.and_then(|name| name.found.as_ref());
                found.map_or(Vec::new(), |(_, found)| found.to_vec())
            }
        }
    }

    async fn found(&self, server: &Origin) -> io::Result<Found> {
        let (old, pending) = self.ask(server);
        let Some(mut pending) = pending else {
            return old.map(|(_, found)| found).ok_or_else(abandoned);
        };
        if let Some((since, found)) = &old
            && since.elapsed() < STALE
        {
            return Ok(Arc::clone(found));
        }
        let ended = match pending.wait_for(Option::is_some).await {
            Ok(ended) => ended.clone(),
            Err(_) => None,
        };
        match (ended, old) {
            (Some(Ok(found)), _) | (_, Some((_, found))) => Ok(found),
            (Some(Err((kind, text))), None) => Err(io::Error::new(kind, text)),
            (None, None) => Err(abandoned()),
        }
    }

    /// What is known, and the look-up to wait for where that is not enough: one for all who ask.
    #[allow(clippy::type_complexity)]
    fn ask(
        &self,
        server: &Origin,
    ) -> (
        Option<(Instant, Found)>,
        Option<watch::Receiver<Option<Ended>>>,
    ) {
        let key = (server.host(), server.port());
        let mut names = lock(&self.names);
        if names.len() >= MOST_NAMES && !names.contains_key(&key) {
            names.retain(|_, name| name.pending.is_some());
        }
        let name = names.entry(key.clone()).or_default();
        let old = name.found.clone();
        if old.is_some() && name.next.is_some_and(|next| Instant::now() < next) {
            return (old, None);
        }
        // The sender is gone where the runtime that was asked has ended.
        let alive = |pending: &&watch::Receiver<_>| pending.has_changed().is_ok();
        if let Some(pending) = name.pending.as_ref().filter(alive) {
            return (old, Some(pending.clone()));
        }
        let (ended, pending) = watch::channel(None);
        name.pending = Some(pending.clone());
        let answer = (self.look_up)(key.0.clone(), key.1);
        let names = Arc::clone(&self.names);
        // On its own, so that it ends however soon those who wait give up.
        tokio::spawn(async move {
            let found = answer.await.map(Found::from);
            let found = found.map_err(|error| (error.kind(), error.to_string()));
            learn(&names, &key, &found);
            ended.send_replace(Some(found));
        });
        (old, Some(pending))
    }
}

fn learn(names: &Names, key: &(String, u16), ended: &Ended) {
    let mut names = lock(names);
    let Some(name) = names.get_mut(key) else {
        return;
    };
    name.pending = None;
    let now = Instant::now();
    match ended {
        Ok(found) => {
            name.found = Some((now, Arc::clone(found)));
            name.next = Some(now + LIFETIME);
        }
        Err((_, error)) => {
            name.next = Some(now + PAUSE);
            if name.found.is_some() {
                tracing::warn!(host = %key.0, %error, "look-up failed, using the old addresses");
            }
        }
    }
}

fn lock(names: &Names) -> MutexGuard<'_, HashMap<(String, u16), Name>> {
    names.lock().unwrap_or_else(PoisonError::into_inner)
}

fn abandoned() -> io::Error {
    io::Error::other("the look-up was abandoned")
}

async fn look_up(host: String, port: u16) -> io::Result<Vec<SocketAddr>> {
    let mut found = Vec::new();
    for address in tokio::net::lookup_host((host, port)).await? {
        if !found.contains(&address) {
            found.push(address);
        }
    }
    if found.is_empty() {
        let text = "the name has no address";
        return Err(io::Error::new(io::ErrorKind::NotFound, text));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::Endpoint;

    fn run<T>(work: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let bound = Duration::from_secs(20);
            tokio::time::timeout(bound, work).await.expect("bounded")
        })
    }

    fn server() -> Arc<Origin> {
        let endpoint = Endpoint::parse("http://name.invalid:80").unwrap();
        Arc::clone(endpoint.origin())
    }

    fn address(last: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, last], 80))
    }

    /// A resolver that answers so, and how often it was asked.
    fn resolver(
        answer: impl Fn(usize) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static,
    ) -> (Arc<Resolver>, Arc<AtomicUsize>) {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let look_up = move |_, _| -> Answer {
            let answer = answer(count.fetch_add(1, Ordering::SeqCst));
            Box::pin(async move {
                // Others come while it is under way.
                tokio::task::yield_now().await;
                answer
            })
        };
        (Arc::new(Resolver::with(Box::new(look_up))), asked)
    }

    fn age(resolver: &Resolver, by: Duration) {
        for name in lock(&resolver.names).values_mut() {
            let (since, _) = name.found.as_mut().unwrap();
            *since = since.checked_sub(by).unwrap();
            name.next = name.next.map(|next| next.checked_sub(by).unwrap());
        }
    }

    #[test]
    fn r32_connections_spread_evenly_over_all_addresses() {
        let (resolver, asked) = resolver(|_| Ok((1..=4).map(address).collect()));
        run(async {
            let mut first = HashMap::new();
            for _ in 0..400 {
                let found = resolver.addresses(&server()).await.unwrap();
                assert_eq!(found.len(), 4);
                *first.entry(found[0]).or_insert(0) += 1;
            }
            let counts: Vec<_> = (1..=4).map(|last| first[&address(last)]).collect();
            assert_eq!(counts, [100; 4]);
            // They are looked up again, and new ones used.
            age(&resolver, LIFETIME);
            resolver.addresses(&server()).await.unwrap();
            assert_eq!(asked.load(Ordering::SeqCst), 2);
        });
    }

    #[test]
    fn r32_processes_begin_with_different_addresses() {
        let starts: Vec<_> = (0..20).map(|_| Resolver::new().turn.into_inner()).collect();
        assert!(starts.iter().any(|start| start != &starts[0]), "{starts:?}");
    }

    #[test]
    fn r31_one_look_up_serves_all_who_wait() {
        let (resolver, asked) = resolver(|_| Ok(vec![address(1)]));
        run(async {
            let mut all = tokio::task::JoinSet::new();
            for _ in 0..300 {
                let resolver = Arc::clone(&resolver);
                all.spawn(async move { resolver.addresses(&server()).await.unwrap() });
            }
            assert_eq!(all.join_all().await, vec![vec![address(1)]; 300]);
            assert_eq!(asked.load(Ordering::SeqCst), 1);
        });
    }

    #[test]
    fn r31_one_look_up_serves_all_threads() {
        let (resolver, asked) = resolver(|_| Ok(vec![address(1)]));
        let together = Arc::new(std::sync::Barrier::new(8));
        let threads: Vec<_> = (0..8)
            .map(|_| {
                let (resolver, together) = (Arc::clone(&resolver), Arc::clone(&together));
                std::thread::spawn(move || {
                    together.wait();
                    run(async { resolver.addresses(&server()).await.unwrap() })
                })
            })
            .collect();
        for thread in threads {
            assert_eq!(thread.join().unwrap(), [address(1)]);
        }
        assert_eq!(asked.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn r31_old_addresses_stay_in_use_while_look_ups_fail() {
        let (resolver, asked) = resolver(|nth| match nth {
            0 => Ok(vec![address(1)]),
            _ => Err(io::Error::other("no answer")),
        });
        run(async {
            for old in [Duration::ZERO, LIFETIME, STALE] {
                if !old.is_zero() {
                    age(&resolver, old);
                }
                assert_eq!(resolver.addresses(&server()).await.unwrap(), [address(1)]);
                // What was begun without anybody waiting comes to its end.
                for _ in 0..10 {
                    tokio::task::yield_now().await;
                }
            }
            assert_eq!(asked.load(Ordering::SeqCst), 3);
            // After a failure there is a pause.
            assert_eq!(resolver.addresses(&server()).await.unwrap(), [address(1)]);
            assert_eq!(asked.load(Ordering::SeqCst), 3);
        });
    }

    #[test]
    fn without_any_address_the_error_says_why_and_the_next_asks_again() {
        let (resolver, asked) = resolver(|nth| match nth {
            0 => Err(io::Error::other("no answer")),
            _ => Ok(vec![address(1)]),
        });
        run(async {
            let error = resolver.addresses(&server()).await.unwrap_err();
            assert_eq!(error.to_string(), "no answer");
            assert_eq!(resolver.addresses(&server()).await.unwrap(), [address(1)]);
        });
        assert_eq!(asked.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn a_look_up_that_its_runtime_took_along_is_made_again() {
        let look_up = |_, _| -> Answer { Box::pin(std::future::pending()) };
        let resolver = Resolver::with(Box::new(look_up));
        let lost = run(async { resolver.ask(&server()).1.unwrap() });
        assert!(lost.has_changed().is_err());
        run(async { assert!(resolver.ask(&server()).1.unwrap().has_changed().is_ok()) });
    }
}
