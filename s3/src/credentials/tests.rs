//! What credentials are, and what a source does with those of a provider.

pub(crate) mod provider;

use std::thread;
use std::time::Instant;

use self::provider::Step::{Broken, Hangs, Keys, KeysFor, NotThere, Panics};
use self::provider::{Script, Step};
use super::*;

const PATIENCE: Duration = Duration::from_secs(30);

fn from(variables: &[(&str, &str)]) -> Result<Credentials, CredentialsError> {
    Credentials::from_variables(|name| {
        let found = variables.iter().find(|(variable, _)| *variable == name);
        Ok(found.map(|(_, value)| (*value).to_owned()))
    })
}

#[test]
fn a_pair_with_or_without_a_token_is_taken() {
    let temporary = from(&[
        (ACCESS_KEY_ID, "id"),
        (SECRET_ACCESS_KEY, "se"),
        (SESSION_TOKEN, "to"),
    ])
    .unwrap();
    assert_eq!(temporary.access_key_id().as_deref(), Some("id"));
    assert_eq!(
        temporary.present().unwrap().keys.session_token(),
        Some("to")
    );
    let lasting = from(&[
        (ACCESS_KEY_ID, "id"),
        (SECRET_ACCESS_KEY, "se"),
        (SESSION_TOKEN, ""),
    ])
    .unwrap();
    assert_eq!(lasting.present().unwrap().keys.session_token(), None);
}

#[test]
fn half_a_pair_names_the_missing_variable() {
    let error = from(&[(ACCESS_KEY_ID, "id"), (SECRET_ACCESS_KEY, "")]).unwrap_err();
    assert!(
        error.to_string().contains("AWS_SECRET_ACCESS_KEY is not"),
        "{error}"
    );
    let error = from(&[(SECRET_ACCESS_KEY, "se")]).unwrap_err();
    assert!(
        error.to_string().contains("AWS_ACCESS_KEY_ID is not"),
        "{error}"
    );
    assert_eq!(from(&[]).unwrap_err(), CredentialsError::Missing);
}

#[test]
fn a_line_end_is_refused_without_showing_the_value() {
    let error = Credentials::new("id", "hidden\n", None).unwrap_err();
    assert_eq!(
        error,
        CredentialsError::Invalid {
            name: SECRET_ACCESS_KEY
        }
    );
    assert!(!error.to_string().contains("hidden"));
}

#[test]
fn debug_shows_neither_secret_nor_token() {
    let shown = format!(
        "{:?}",
        Credentials::new("id", "hidden", Some("hidden".into())).unwrap()
    );
    assert!(shown.contains("id") && !shown.contains("hidden"), "{shown}");
}

fn run<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async { tokio::time::timeout(PATIENCE, work).await.expect("bounded") })
}

fn source(steps: impl IntoIterator<Item = Step>) -> (Source, Script) {
    let script = Script::new(steps);
    let asked = Asked::default();
    asked.set("the vault");
    (Source::new(script.clone(), asked), script)
}

fn keys(source: &Source, limit: Duration) -> Result<Arc<Held>, String> {
    run(source.keys(limit))
}

fn id(held: &Held) -> &str {
    held.keys.access_key_id()
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < until, "not in time: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn nothing_is_asked_for_before_keys_are_needed() {
    let (source, script) = source([Keys("a")]);
    assert!(source.present().is_none());
    assert_eq!(script.fetches(), 0);
    assert_eq!(id(&keys(&source, PATIENCE).unwrap()), "a");
    assert_eq!(script.fetches(), 1);
}

#[test]
fn r40_keys_are_fetched_anew_before_they_end() {
    let short = Duration::from_secs(2);
    let (source, script) = source([KeysFor("a", short), KeysFor("b", PATIENCE * 100)]);
    let first = keys(&source, PATIENCE).unwrap();
    assert_eq!(id(&first), "a");
    // Nobody asks for them.
    eventually("the second", || id(&source.present().unwrap()) == "b");
    assert_eq!(script.fetches(), 2);
    assert_eq!(source.present().unwrap().generation, first.generation + 1);
}

#[test]
fn r39_r42_a_source_that_hangs_delays_nobody_who_has_keys() {
    let (source, script) = source([KeysFor("a", Duration::from_secs(3600)), Hangs]);
    let held = keys(&source, PATIENCE).unwrap();
    let asking = run(source.others_than(held.generation, Duration::from_millis(50)));
    assert_eq!(
        asking.unwrap_err(),
        "the vault has not answered within 50ms"
    );
    eventually("a second fetch", || script.fetches() == 2);
    // Still under way, and nothing is waited for: there is no time to wait.
    for _ in 0..1000 {
        assert_eq!(id(&keys(&source, Duration::ZERO).unwrap()), "a");
    }
    assert_eq!(script.fetches(), 2);
}

#[test]
fn without_keys_a_source_that_hangs_is_waited_for_so_long_and_named() {
    let (source, _) = source([Hangs]);
    let error = keys(&source, Duration::from_millis(30)).unwrap_err();
    assert_eq!(error, "the vault has not answered within 30ms");
}

#[test]
fn a_source_that_has_nothing_is_believed_at_once_and_one_that_fails_is_tried_again() {
    let (source, script) = self::source([NotThere, Keys("a")]);
    assert_eq!(
        keys(&source, PATIENCE).unwrap_err(),
        "nothing is configured"
    );
    assert_eq!(script.fetches(), 1);
    // It may be there later.
    eventually("keys", || keys(&source, PATIENCE).is_ok());

    let (source, script) = self::source([Broken, Broken, Keys("a")]);
    assert_eq!(id(&keys(&source, PATIENCE).unwrap()), "a");
    assert_eq!(script.fetches(), 3);

    let (source, _) = self::source([Panics, Keys("a")]);
    assert_eq!(id(&keys(&source, PATIENCE).unwrap()), "a");

    let (source, script) = self::source([Broken, Broken, Broken, Hangs]);
    assert_eq!(keys(&source, PATIENCE).unwrap_err(), "429: too many ask");
    assert!(script.fetches() <= 4);
}

#[test]
fn r40_many_that_are_refused_at_once_ask_once() {
    const THREADS: u64 = 8;
    let slow = Duration::from_millis(100);
    let (source, script) = source([Keys("a"), Step::Slow("b", slow), Step::Slow("c", slow)]);
    let held = keys(&source, PATIENCE).unwrap();
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| run(source.others_than(held.generation, PATIENCE)).unwrap());
        }
    });
    let now = source.present().unwrap();
    assert!(now.generation > held.generation);
    // One that began while the first was under way would make it two.
    assert!(script.fetches() <= 3, "{}", script.fetches());
}

#[test]
fn keys_that_stay_the_same_are_said_to_and_are_not_asked_for_again_and_again() {
    let (source, script) = source((0..100).map(|_| Keys("a")));
    let held = keys(&source, PATIENCE).unwrap();
    for _ in 0..50 {
        let error = run(source.others_than(held.generation, PATIENCE)).unwrap_err();
        assert_eq!(error, "the vault gives the same keys again");
    }
    assert!(script.fetches() < 20, "{}", script.fetches());
    assert_eq!(source.present().unwrap().generation, held.generation);
}

#[test]
fn keys_that_have_ended_by_this_clock_serve_where_no_others_are_to_be_had() {
    let (source, script) = source([KeysFor("a", Duration::ZERO), NotThere, NotThere]);
    assert_eq!(id(&keys(&source, PATIENCE).unwrap()), "a");
    eventually("a second fetch", || script.fetches() > 1);
    assert_eq!(id(&keys(&source, PATIENCE).unwrap()), "a");
}

#[test]
fn keys_that_no_header_can_carry_are_refused_and_never_shown() {
    let (source, _) = source([Keys("hidden\n")]);
    let error = keys(&source, PATIENCE).unwrap_err();
    assert!(
        error.starts_with("the vault: AWS_ACCESS_KEY_ID holds"),
        "{error}"
    );
    assert!(!error.contains("hidden"), "{error}");
}

#[test]
fn dropping_a_source_ends_its_thread_whatever_it_does() {
    let script = Script::new([Hangs]);
    let source = Source::new(script.clone(), Asked::default());
    source.start().unwrap();
    eventually("a fetch", || script.fetches() == 1);
    drop(source);
    eventually("the end of the thread", || script.is_alone());
}

#[test]
fn debug_of_fetched_credentials_shows_no_secret() {
    let script = Script::new([Keys("seen")]);
    let credentials = Credentials::from_provider("the vault", script);
    run(credentials.keys(PATIENCE)).unwrap();
    let shown = format!("{credentials:?}");
    assert!(
        shown.contains("seen") && shown.contains("the vault"),
        "{shown}"
    );
    assert!(
        !shown.contains(provider::SECRET) && !shown.contains(provider::TOKEN),
        "{shown}"
    );
}

#[test]
fn a_story_is_one_line_without_repetition_and_not_too_long() {
    use aws_credential_types::provider::error::CredentialsError;
    let error = CredentialsError::provider_error("a\n  b");
    assert_eq!(story(&error), "a b");
    let error = CredentialsError::provider_error("\u{e9}".repeat(1000));
    assert_eq!(story(&error).chars().count(), 403);
    assert!(!story(&CredentialsError::not_loaded_no_source()).is_empty());
}
