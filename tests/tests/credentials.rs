//! Keys that change while requests are under way, and clocks that differ: what has an effect on no request.
#![allow(missing_docs)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use aws_credential_types::Credentials as Keys;
use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::{ProvideCredentials, future};
use s3engine::{Completion, Credentials, Engine, ErrorKind, Get, ListQuery, Memory, Path, Policy};
use s3engine_tests::{PATIENCE, Rig, ServiceRig, block_on, drain, quick_builder};

const KEY: &str = "256KiB-a";
const SIZE: u64 = 256 << 10;
const LARGE: &str = "20MiB-b";
const HOUR: i64 = 3600;

/// Where keys come from: the pair that it holds, or none.
#[derive(Clone, Debug, Default)]
struct Vault(Arc<Inside>);

#[derive(Debug, Default)]
struct Inside {
    holds: Mutex<Option<(String, String)>>,
    fetches: AtomicU64,
}

impl Vault {
    fn new(access_key: &str, secret_key: &str) -> Vault {
        let vault = Vault::default();
        vault.put(access_key, secret_key);
        vault
    }

    /// The simulator's first pair.
    fn usual() -> Vault {
        Vault::new("s3sim", "s3simsecret")
    }

    fn put(&self, access_key: &str, secret_key: &str) {
        let pair = (access_key.to_owned(), secret_key.to_owned());
        *self.0.holds.lock().unwrap() = Some(pair);
    }

    fn credentials(&self) -> Credentials {
        Credentials::from_provider("the vault", self.clone())
    }

    fn fetches(&self) -> u64 {
        self.0.fetches.load(Ordering::SeqCst)
    }
}

impl ProvideCredentials for Vault {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        self.0.fetches.fetch_add(1, Ordering::SeqCst);
        let held = self.0.holds.lock().unwrap().clone();
        let later = SystemTime::now() + Duration::from_secs(3600);
        future::ProvideCredentials::ready(match held {
            Some((id, secret)) => Ok(Keys::new(id, secret, Some("t".into()), Some(later), "v")),
            None => Err(CredentialsError::not_loaded("it is empty")),
        })
    }
}

fn rig(vault: &Vault) -> Rig {
    let credentials = vault.credentials();
    Rig::with([], |builder, _| builder.credentials(credentials))
}

/// Replaces the keys: the new ones are good before the old ones end.
fn rotate(rig: &Rig, vault: &Vault, nth: u64) {
    let name = |nth| match nth {
        0 => "s3sim".to_owned(),
        nth => format!("KEY{nth}"),
    };
    rig.sim.admit_key(&name(nth), "another secret");
    vault.put(&name(nth), "another secret");
    rig.sim.end_key(&name(nth - 1));
}

fn push_some(engine: &Engine, queue: &mut s3engine::Queue) {
    for policy in [Policy::Http, Policy::RequireRdma, Policy::PreferRdma] {
        for (key, size) in [(KEY, SIZE), (LARGE, 20 << 20)] {
            let buffer = engine.pool().alloc(size, Memory::Host, PATIENCE).unwrap();
            let get = Get::new("bench", key).into(buffer).policy(policy);
            queue.push(get).unwrap();
        }
    }
}

fn assert_fine(done: &Completion) {
    assert!(done.error().is_none(), "{done:?}");
    assert!(matches!(done.path(), Path::Http | Path::Rdma));
    assert_eq!(done.bytes(), done.info().size.unwrap());
}

#[test]
fn r40_keys_that_rotate_under_load_fail_no_request_of_any_verb() {
    const ROUNDS: u64 = 12;
    let vault = Vault::usual();
    let rig = Rig::with([], |builder, _| {
        let pool = s3engine::PoolOptions {
            max_bytes: Some(128 << 20),
            slab_bytes: 32 << 20,
            ..s3engine::PoolOptions::default()
        };
        builder.credentials(vault.credentials()).pool(pool)
    });
    let mut queue = rig.queue();
    for nth in 1..=ROUNDS {
        push_some(&rig.engine, &mut queue);
        queue.submit();
        rotate(&rig, &vault, nth);
        let listed = block_on(rig.engine.list("bench", ListQuery::default()).next());
        listed.expect("a list, or its end");
        assert_eq!(
            block_on(rig.engine.head("bench", KEY)).unwrap().size,
            Some(SIZE)
        );
        let done = drain(&mut queue);
        assert_eq!(done.len(), 6);
        done.iter().for_each(assert_fine);
    }
    // Each time somebody was refused; and few of the many that were asked by themselves.
    let fetches = vault.fetches();
    assert!(
        (1 + ROUNDS..=1 + 3 * ROUNDS).contains(&fetches),
        "{fetches}"
    );
    rig.assert_drains();
}

#[test]
fn r40_requests_of_each_policy_are_signed_anew_and_take_the_path_they_would() {
    for (nth, policy) in [Policy::Http, Policy::RequireRdma].into_iter().enumerate() {
        let vault = Vault::usual();
        let rig = rig(&vault);
        rig.get_whole(policy, KEY);
        rotate(&rig, &vault, 1);
        let done = rig.get_whole(policy, KEY);
        assert_fine(&done);
        let path = [Path::Http, Path::Rdma][nth];
        assert_eq!((done.path(), vault.fetches()), (path, 2));
        // One of the first, one that was refused, and one that was not.
        assert_eq!(rig.sim.counters().requests, 3);
        drop(done);
        rig.assert_drains();
    }
}

#[test]
fn keys_that_end_and_stay_the_same_fail_requests_that_then_say_so() {
    let vault = Vault::usual();
    let rig = rig(&vault);
    rig.sim.end_key("s3sim");
    for policy in [Policy::Http, Policy::RequireRdma, Policy::PreferRdma] {
        let done = rig.get_whole(policy, KEY);
        let error = done.error().unwrap();
        assert_eq!(error.code(), Some("ExpiredToken"));
        let story = format!("{error:?}");
        assert!(
            story.contains("the vault gives the same keys again"),
            "{story}"
        );
        assert!(!story.contains("s3simsecret"), "{story}");
    }
    rig.assert_drains();
}

#[test]
fn engines_beside_each_other_share_one_source_or_have_each_their_own() {
    let vault = Vault::usual();
    let credentials = vault.credentials();
    let rig = Rig::with([], |builder, _| builder.credentials(credentials.clone()));
    let beside = quick_builder(&rig.sim.url())
        .credentials(credentials)
        .beside(&rig.engine)
        .build()
        .unwrap();
    let other = Vault::new("OTHER", "other secret");
    rig.sim.admit_key("OTHER", "other secret");
    let alone = quick_builder(&rig.sim.url())
        .credentials(other.credentials())
        .build()
        .unwrap();
    let engines = [&rig.engine, &beside, &alone];
    let fine = |engine: &Engine| block_on(engine.head("bench", KEY)).map(|info| info.size);
    for engine in engines {
        assert_eq!(fine(engine).unwrap(), Some(SIZE));
    }
    assert_eq!((vault.fetches(), other.fetches()), (1, 1));
    rotate(&rig, &vault, 1);
    for engine in engines {
        assert_eq!(fine(engine).unwrap(), Some(SIZE));
    }
    assert_eq!((vault.fetches(), other.fetches()), (2, 1));
    rig.sim.end_key("OTHER");
    // The answer to a HEAD has no body that says more.
    assert_eq!(fine(&alone).unwrap_err().status(), Some(400));
    assert!(fine(&beside).is_ok());
}

#[test]
fn r42_clients_of_a_service_have_its_keys_and_its_errors() {
    let vault = Vault::default();
    let host = ServiceRig::with(rig(&vault), |_| {});
    let client = host.client();
    let get = || {
        let buffer = client.pool().alloc(SIZE, Memory::Host, PATIENCE).unwrap();
        let get = Get::new("bench", KEY).into(buffer).policy(Policy::Http);
        let mut queue = client.queue(s3engine::QueueOptions::default());
        queue.push(get).unwrap();
        queue.submit();
        queue.next(PATIENCE).unwrap().unwrap()
    };
    let empty = ErrorKind::Credentials("it is empty".to_owned());
    assert_eq!(get().error().unwrap().kind(), &empty);
    assert_eq!(
        block_on(client.head("bench", KEY)).unwrap_err().kind(),
        &empty
    );
    vault.put("s3sim", "s3simsecret");
    // The source is asked again by itself or by the next request, and not more often than once a second.
    s3engine_tests::wait_until("keys", || get().error().is_none());
    rotate(&host.rig, &vault, 1);
    assert_fine(&get());
}

#[test]
fn r43_clocks_that_differ_have_no_effect_on_any_request() {
    let rig = Rig::new([]);
    for ahead in [HOUR, -24 * HOUR, 0, 2 * HOUR] {
        rig.sim.set_clock_offset(ahead);
        let mut queue = rig.queue();
        for policy in [Policy::Http, Policy::RequireRdma] {
            for _ in 0..4 {
                let get = Get::new("bench", KEY).into(rig.buffer(SIZE));
                queue.push(get.policy(policy)).unwrap();
            }
        }
        queue.submit();
        let done = drain(&mut queue);
        assert_eq!(done.len(), 8);
        done.iter().for_each(assert_fine);
        assert_eq!(
            block_on(rig.engine.head("bench", KEY)).unwrap().size,
            Some(SIZE)
        );
        // What was learned holds for all that come later: nobody is refused any more.
        let before = rig.sim.counters().requests;
        assert_fine(&rig.get_whole(Policy::Http, KEY));
        assert_eq!(rig.sim.counters().requests, before + 1, "{ahead}");
        drop(done);
    }
    rig.assert_drains();
}

#[test]
fn a_vault_that_is_slow_delays_only_the_first() {
    /// Answers after a while, as metadata that many ask.
    #[derive(Debug)]
    struct Slow(Vault);

    impl ProvideCredentials for Slow {
        fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
        where
            Self: 'a,
        {
            future::ProvideCredentials::new(async {
                let again = self.0.fetches() > 0;
                let keys = self.0.provide_credentials().await;
                if again {
                    std::future::pending::<()>().await;
                }
                keys
            })
        }
    }

    let vault = Vault::usual();
    let slow = Credentials::from_provider("the vault", Slow(vault.clone()));
    let timeouts = s3engine::Timeouts {
        connect: Duration::from_millis(500),
        ..s3engine::Timeouts::default()
    };
    let rig = Rig::with([], |builder, _| {
        builder.credentials(slow).timeouts(timeouts)
    });
    rig.get_whole(Policy::Http, KEY);
    // Has the source asked, which does not answer any more.
    rig.sim.admit_key("s3sim", "s3simsecret");
    rig.sim.end_key("s3sim");
    let refused = rig.get_whole(Policy::Http, KEY);
    let story = format!("{:?}", refused.error().unwrap());
    assert!(
        story.contains("the vault has not answered within 500ms"),
        "{story}"
    );
    assert_eq!(vault.fetches(), 2);
    rig.sim.admit_key("s3sim", "s3simsecret");
    for _ in 0..20 {
        assert_fine(&rig.get_whole(Policy::Http, KEY));
    }
    assert_eq!(vault.fetches(), 2, "still under way");
}
