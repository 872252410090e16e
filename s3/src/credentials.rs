//! Who signs the requests. Secrets are never shown, not by `Debug` either.

use std::fmt;

use aws_credential_types::Credentials as Keys;
use http::HeaderValue;

/// The environment variable that names the access key.
pub const ACCESS_KEY_ID: &str = "AWS_ACCESS_KEY_ID";
/// The environment variable that holds the secret key.
pub const SECRET_ACCESS_KEY: &str = "AWS_SECRET_ACCESS_KEY";
/// The environment variable that holds the token of a temporary key.
pub const SESSION_TOKEN: &str = "AWS_SESSION_TOKEN";

/// A key pair that signs requests, or nobody.
#[derive(Clone)]
pub struct Credentials(Option<Keys>);

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
        Credentials(None)
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
        check(ACCESS_KEY_ID, &id)?;
        check(SECRET_ACCESS_KEY, &secret)?;
        if let Some(token) = &token {
            check(SESSION_TOKEN, token)?;
        }
        Ok(Credentials(Some(Keys::new(
            id, secret, token, None, "s3engine",
        ))))
    }

    /// Whether requests go unsigned.
    pub fn is_anonymous(&self) -> bool {
        self.0.is_none()
    }

    /// The access key, which is no secret.
    pub fn access_key_id(&self) -> Option<&str> {
        self.keys().map(Keys::access_key_id)
    }

    pub(crate) fn keys(&self) -> Option<&Keys> {
        self.0.as_ref()
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
            None => f.write_str("Credentials(anonymous)"),
            Some(keys) => f
                .debug_struct("Credentials")
                .field("access_key_id", &keys.access_key_id())
                .finish_non_exhaustive(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(temporary.access_key_id(), Some("id"));
        assert_eq!(temporary.keys().unwrap().session_token(), Some("to"));
        let lasting = from(&[
            (ACCESS_KEY_ID, "id"),
            (SECRET_ACCESS_KEY, "se"),
            (SESSION_TOKEN, ""),
        ])
        .unwrap();
        assert_eq!(lasting.keys().unwrap().session_token(), None);
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
}
