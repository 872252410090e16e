//! The task that fetches keys: ahead of their end, after failures, and when somebody waits for others.

use std::error::Error as StdError;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use aws_credential_types::Credentials as Keys;
use aws_credential_types::provider::ProvideCredentials;
use aws_credential_types::provider::error::CredentialsError;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::held::Held;
use super::schedule::{backoff, refresh_after};
use super::source::{News, Problem, STILL_SO, Shared};
use super::{check_keys, story};

/// The longest that a provider may take: a program that fetches keys is not waited for any longer.
const LONGEST_FETCH: Duration = Duration::from_secs(30);
/// The longest that is slept at once; timers have an end.
const LONGEST_SLEEP: Duration = Duration::from_secs(30 * 86_400);

/// When keys are fetched next.
struct Next {
    /// Whoever asks.
    no_sooner: Duration,
    /// Nobody asking. `None`: only when asked for.
    by_itself: Option<Duration>,
}

/// Fetches keys for as long as it is polled.
pub(super) async fn run(shared: &Shared) {
    let mut wanted = shared.wanted.subscribe();
    let mut told = None;
    loop {
        let news = fetch(shared).await;
        tell(shared, &news, &mut told);
        let next = next(shared, &news);
        let fetched = news.fetch;
        shared.news.send_replace(news);
        sleep(next.no_sooner).await;
        let rest = next
            .by_itself
            .map(|wait| wait.saturating_sub(next.no_sooner));
        tokio::select! {
            () = asked(shared, &mut wanted, fetched) => {}
            () = sleep(rest.unwrap_or_default().min(LONGEST_SLEEP)), if rest.is_some() => {}
        }
    }
}

/// Ready once somebody waits for other keys than the present ones, by a fetch that has not been made.
async fn asked(shared: &Shared, wanted: &mut watch::Receiver<super::source::Wanted>, fetched: u64) {
    let asked = wanted
        .wait_for(|wanted| wanted.fetch > fetched && wanted.other_than == shared.generation());
    if asked.await.is_err() {
        // Without those who could ask, nothing is fetched any more.
        std::future::pending().await
    }
}

/// Fetches once. New keys are present when this returns.
async fn fetch(shared: &Shared) -> News {
    let fetch = 1 + shared.begun.fetch_add(1, Ordering::AcqRel);
    let before = shared.news.borrow().failures;
    let provider = shared.provider.clone();
    // In a task of its own: one that panics is a failure like others, and this goes on.
    let keys = tokio::spawn(async move { provider.provide_credentials().await });
    let passing = |what: String| Problem {
        text: format!("{} {what}", shared.asked.get()).into(),
        lasting: false,
    };
    let fetched = match timeout(LONGEST_FETCH, AbortOnDropHandle::new(keys)).await {
        Ok(Ok(Ok(keys))) => checked(keys, shared),
        Ok(Ok(Err(error))) => Err(problem(&error)),
        Ok(Err(_)) => Err(passing("panicked".to_owned())),
        Err(_) => Err(passing(format!("took longer than {LONGEST_FETCH:?}"))),
    };
    let ended = Some(Instant::now());
    match fetched {
        Ok(keys) => News {
            fetch,
            ended,
            same: !take(shared, keys),
            ..News::default()
        },
        Err(problem) => News {
            fetch,
            ended,
            failures: before.saturating_add(1),
            problem: Some(problem),
            same: false,
        },
    }
}

fn checked(keys: Keys, shared: &Shared) -> Result<Keys, Problem> {
    match check_keys(&keys) {
        Ok(()) => Ok(keys),
        Err(error) => Err(Problem {
            text: format!("{}: {error}", shared.asked.get()).into(),
            lasting: true,
        }),
    }
}

/// Makes keys the present ones. Returns whether they are others than before.
fn take(shared: &Shared, keys: Keys) -> bool {
    let present = shared.present.load_full();
    let generation = present.as_ref().map_or(0, |held| held.generation);
    let others = present.is_none_or(|held| !held.are(&keys));
    // The same keys may end later than it was said before.
    let held = Held::new(keys, generation + u64::from(others));
    shared.present.store(Some(Arc::new(held)));
    others
}

fn next(shared: &Shared, news: &News) -> Next {
    let present = shared.present.load();
    let now = SystemTime::now();
    if news.failures > 0 {
        let served = present.as_ref().is_some_and(|held| !held.have_expired(now));
        let wait = backoff(news.failures, served, rand::random());
        return Next {
            no_sooner: wait.min(STILL_SO),
            by_itself: Some(wait),
        };
    }
    let expiry = present.as_ref().and_then(|held| held.keys.expiry());
    let remaining = expiry.map(|expiry| expiry.duration_since(now).unwrap_or_default());
    Next {
        no_sooner: if news.same { STILL_SO } else { Duration::ZERO },
        by_itself: remaining.map(|remaining| refresh_after(remaining, rand::random())),
    }
}

/// Counts what a fetch brought, and logs it: a cause of failures once, until there is another or none.
fn tell(shared: &Shared, news: &News, told: &mut Option<Arc<str>>) {
    let result = match (&news.problem, news.same) {
        (Some(_), _) => "failed",
        (None, true) => "same",
        (None, false) => "new",
    };
    metrics::counter!("s3engine_credential_fetches_total", "result" => result).increment(1);
    let from = shared.asked.get();
    match &news.problem {
        Some(problem) if told.as_deref() == Some(&*problem.text) => {
            tracing::debug!(failures = news.failures, "credentials: {}", problem.text);
        }
        Some(problem) => {
            tracing::warn!("credentials cannot be fetched: {}", problem.text);
            *told = Some(Arc::clone(&problem.text));
        }
        None if told.take().is_some() => tracing::info!(from, "credentials are fetched again"),
        None => tracing::debug!(from, result, "credentials fetched"),
    }
}

fn problem(error: &CredentialsError) -> Problem {
    let lasting = matches!(
        error,
        CredentialsError::CredentialsNotLoaded(_) | CredentialsError::InvalidConfiguration(_)
    );
    let text = story(error as &dyn StdError).into();
    Problem { text, lasting }
}
