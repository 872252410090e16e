//! Who signs the requests. Secrets are never shown, not by `Debug` either.
//!
//! [`Credentials`] says where keys come from; a `source` keeps those that change, and `refresh` fetches them when
//! `schedule` says. The `chain` is where they come from unless somebody says otherwise.

mod chain;
mod held;
mod refresh;
mod schedule;
mod source;
#[cfg(test)]
pub(crate) mod tests;

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use aws_credential_types::Credentials as Keys;
use aws_credential_types::provider::ProvideCredentials;
use http::HeaderValue;

use self::chain::Chain;
pub(crate) use self::held::Held;
use self::source::{Asked, Source};

/// The environment variable that names the access key.
pub const ACCESS_KEY_ID: &str = "AWS_ACCESS_KEY_ID";
/// The environment variable that holds the secret key.
pub const SECRET_ACCESS_KEY: &str = "AWS_SECRET_ACCESS_KEY";
/// The environment variable that holds the token of a temporary key.
pub const SESSION_TOKEN: &str = "AWS_SESSION_TOKEN";

/// Who signs requests: nobody, a key pair, or whoever a source says. Clones share what they have fetched.
#[derive(Clone)]
pub struct Credentials(Kind);

#[derive(Clone)]
enum Kind {
    Anonymous,
    Fixed(Arc<Held>),
    Fetched(Arc<Source>),
}

/// Credentials that are missing or cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CredentialsError {
    /// Nothing is set.
    #[error(
        "no credentials: set {ACCESS_KEY_ID} and {SECRET_ACCESS_KEY}, or choose anonymous access"
    )]
    Missing,
    /// One of the pair is set and the other is not.
    #[error("{set} is set and {missing} is not: set both or neither")]
    Incomplete {
        /// What is set.
        set: &'static str,
        /// What is not.
        missing: &'static str,
    },
    /// A value that no HTTP header can carry, most often one with a line end.
    #[error(
        "{name} holds a character that cannot be sent, such as a line end or a space around it"
    )]
    Invalid {
        /// The value's name.
        name: &'static str,
    },
}

impl Credentials {
    /// A key pair, with the session token of a temporary one. An empty token is none.
    pub fn new(
        access_key_id: impl Into<String>,
        secret_access_key: impl Into<String>,
        session_token: Option<String>,
    ) -> Result<Credentials, CredentialsError> {
        let set = |value: String| (!value.is_empty()).then_some(value);
        let id = set(access_key_id.into());
        let secret = set(secret_access_key.into());
        Self::from_parts(id, secret, session_token.and_then(set))
    }

    /// Requests are not signed.
    pub fn anonymous() -> Credentials {
        Credentials(Kind::Anonymous)
    }

    /// Keys from where all AWS tools look for them: the environment, the profile (with roles, `credential_process` and
    /// SSO), a web identity, the container's agent, the instance's metadata. The first that has any counts.
    ///
    /// Whoever names a profile means that one: then nothing else is asked.
    ///
    /// They are fetched by a thread of their own, once for all clones of this, and anew before they end. Nothing is
    /// asked for before an engine is built with it.
    pub fn chain(profile: Option<&str>) -> Credentials {
        let asked = Asked::default();
        let chain = Chain::new(profile, asked.clone());
        Credentials(Kind::Fetched(Arc::new(Source::new(chain, asked))))
    }

    /// Keys that the caller provides, fetched and kept as those of the [`chain`](Self::chain) are. `name` says in
    /// errors and logs who is asked.
    pub fn from_provider(name: &str, provider: impl ProvideCredentials + 'static) -> Credentials {
        let asked = Asked::default();
        asked.set(name);
        Credentials(Kind::Fetched(Arc::new(Source::new(provider, asked))))
    }

    /// The key pair of the environment. An empty variable is an unset one.
    pub fn from_env() -> Result<Credentials, CredentialsError> {
        Self::from_variables(|name| match std::env::var(name) {
            Ok(value) => Ok(Some(value)),
            Err(std::env::VarError::NotPresent) => Ok(None),
            Err(std::env::VarError::NotUnicode(_)) => Err(CredentialsError::Invalid { name }),
        })
    }

    fn from_variables(
        read: impl Fn(&'static str) -> Result<Option<String>, CredentialsError>,
    ) -> Result<Credentials, CredentialsError> {
        let set = |name| Ok(read(name)?.filter(|value| !value.is_empty()));
        Self::from_parts(
            set(ACCESS_KEY_ID)?,
            set(SECRET_ACCESS_KEY)?,
            set(SESSION_TOKEN)?,
        )
    }

    fn from_parts(
        id: Option<String>,
        secret: Option<String>,
        token: Option<String>,
    ) -> Result<Credentials, CredentialsError> {
        let incomplete = |set, missing| Err(CredentialsError::Incomplete { set, missing });
        let (id, secret) = match (id, secret) {
            (Some(id), Some(secret)) => (id, secret),
            (Some(_), None) => return incomplete(ACCESS_KEY_ID, SECRET_ACCESS_KEY),
            (None, Some(_)) => return incomplete(SECRET_ACCESS_KEY, ACCESS_KEY_ID),
            (None, None) => return Err(CredentialsError::Missing),
        };
        let keys = Keys::new(id, secret, token, None, "s3engine");
        check_keys(&keys)?;
        Ok(Credentials(Kind::Fixed(Arc::new(Held::new(keys, 1)))))
    }

    /// Whether requests go unsigned.
    pub fn is_anonymous(&self) -> bool {
        matches!(self.0, Kind::Anonymous)
    }

    /// The access key, which is no secret. Of keys that are fetched, the present one, if there is any yet.
    pub fn access_key_id(&self) -> Option<String> {
        let held = self.present();
        held.map(|held| held.keys.access_key_id().to_owned())
    }

    /// Has keys fetched, where they are, before they are needed.
    pub(crate) fn prepare(&self) {
        if let Kind::Fetched(source) = &self.0
            && let Err(error) = source.start()
        {
            tracing::warn!("credentials cannot be fetched: {error}");
        }
    }

    /// The present keys. Nothing of it waits or locks.
    pub(crate) fn present(&self) -> Option<Arc<Held>> {
        match &self.0 {
            Kind::Anonymous => None,
            Kind::Fixed(held) => Some(Arc::clone(held)),
            Kind::Fetched(source) => source.present(),
        }
    }

    /// Keys to sign with, or nobody's. An error says why there are none; it comes within `limit`.
    pub(crate) async fn keys(&self, limit: Duration) -> Result<Option<Arc<Held>>, String> {
        match &self.0 {
            Kind::Fetched(source) => source.keys(limit).await.map(Some),
            Kind::Anonymous | Kind::Fixed(_) => Ok(self.present()),
        }
    }

    /// Whether they are fetched from a source, which may give others later.
    pub fn is_fetched(&self) -> bool {
        matches!(self.0, Kind::Fetched(_))
    }

    /// Whether there are other keys by now than those that a request was signed with; waits for the source to be asked
    /// again where there are not. An error says why there are no others; it comes within `limit`.
    pub(crate) async fn others_than(&self, held: &Held, limit: Duration) -> Result<(), String> {
        match &self.0 {
            Kind::Fetched(source) => source.others_than(held.generation, limit).await,
            Kind::Anonymous | Kind::Fixed(_) => Err("they are fixed".to_owned()),
        }
    }
}

/// Whether headers can carry them.
fn check_keys(keys: &Keys) -> Result<(), CredentialsError> {
    check(ACCESS_KEY_ID, keys.access_key_id())?;
    check(SECRET_ACCESS_KEY, keys.secret_access_key())?;
    keys.session_token()
        .map_or(Ok(()), |token| check(SESSION_TOKEN, token))
}

/// An error and what led to it, in one line that is not too long.
fn story(error: &dyn StdError) -> String {
    const LONGEST: usize = 400;
    // The first one says no more than that there is an error.
    let mut cause = error.source();
    let mut text = cause.map_or_else(|| error.to_string(), ToString::to_string);
    while let Some(next) = cause.and_then(StdError::source) {
        let more = next.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = Some(next);
    }
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

fn check(name: &'static str, value: &str) -> Result<(), CredentialsError> {
    let sendable = HeaderValue::from_str(value).is_ok_and(|value| value.to_str().is_ok());
    if sendable && value.trim() == value {
        Ok(())
    } else {
        Err(CredentialsError::Invalid { name })
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Anonymous => f.write_str("Credentials(anonymous)"),
            Kind::Fixed(held) => f.debug_tuple("Credentials").field(held).finish(),
            Kind::Fetched(source) => f.debug_tuple("Credentials").field(source).finish(),
        }
    }
}
