//! A provider that follows a script.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use aws_credential_types::Credentials;
use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::{ProvideCredentials, Result, future};

pub const SECRET: &str = "the-secret-part";
pub const TOKEN: &str = "the-token-part";

/// What a fetch brings.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// Keys that do not end.
    Keys(&'static str),
    /// Keys that end.
    KeysFor(&'static str, Duration),
    /// Keys, after a while.
    Slow(&'static str, Duration),
    /// No keys, and none to come.
    NotThere,
    /// No keys this time.
    Broken,
    /// Nothing: it is broken itself.
    Panics,
    /// Nothing, for ever.
    Hangs,
}

/// Steps, the last of which is repeated.
#[derive(Clone, Debug)]
pub struct Script(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    steps: Mutex<VecDeque<Step>>,
    fetches: AtomicU64,
}

impl Script {
    pub fn new(steps: impl IntoIterator<Item = Step>) -> Script {
        Script(Arc::new(Shared {
            steps: Mutex::new(steps.into_iter().collect()),
            fetches: AtomicU64::new(0),
        }))
    }

    /// How many fetches have begun.
    pub fn fetches(&self) -> u64 {
        self.0.fetches.load(Ordering::SeqCst)
    }

    /// Whether nobody else has it any more.
    pub fn is_alone(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    async fn fetch(&self) -> Result {
        self.0.fetches.fetch_add(1, Ordering::SeqCst);
        let step = {
            let mut steps = self.0.steps.lock().unwrap();
            let step = steps.pop_front().expect("a step");
            if steps.is_empty() {
                steps.push_back(step);
            }
            step
        };
        let keys = |id: &str, expiry| {
            let token = Some(TOKEN.to_owned());
            Ok(Credentials::new(id, SECRET, token, expiry, "script"))
        };
        match step {
            Step::Keys(id) => keys(id, None),
            Step::KeysFor(id, time) => keys(id, Some(SystemTime::now() + time)),
            Step::Slow(id, time) => {
                tokio::time::sleep(time).await;
                keys(id, None)
            }
            Step::NotThere => Err(CredentialsError::not_loaded("nothing is configured")),
            Step::Broken => Err(CredentialsError::provider_error("429: too many ask")),
            Step::Panics => panic!("as the script says"),
            Step::Hangs => std::future::pending().await,
        }
    }
}

impl ProvideCredentials for Script {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        future::ProvideCredentials::new(self.fetch())
    }
}
