//! Where keys come from unless somebody says otherwise: the sources that all AWS tools ask, one after the other.
//!
//! Each time everything is read anew: a file may have been written again, somebody may have logged in. A variable that
//! is set to nothing counts as one that is not set.

mod variables;

use std::fmt;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_config::Region;
use aws_config::ecs::EcsCredentialsProvider;
use aws_config::imds;
use aws_config::imds::credentials::ImdsCredentialsProvider;
// The names that this crate gives them; their own crate is none of ours.
#[allow(deprecated)]
use aws_config::profile::profile_file::{ProfileFileKind, ProfileFiles};
use aws_config::profile::{self, ProfileFileCredentialsProvider};
use aws_config::provider_config::ProviderConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::web_identity_token::{StaticConfiguration, WebIdentityTokenCredentialsProvider};
use aws_credential_types::Credentials as Keys;
use aws_credential_types::provider::error::CredentialsError as Failed;
use aws_credential_types::provider::{ProvideCredentials, future};
use aws_smithy_http_client::tls::{Provider as TlsProvider, rustls_provider::CryptoMode};

use self::variables::Variables;
use super::source::Asked;
use super::{ACCESS_KEY_ID, Credentials, CredentialsError, SECRET_ACCESS_KEY, story};

/// The address of an instance's metadata, where no setting names another.
const IMDS: &str = "http://169.254.169.254";
/// Not every host has that address, and one that has is near.
const IMDS_CONNECT: Duration = Duration::from_secs(1);
/// Many that ask at once make it slow.
const IMDS_READ: Duration = Duration::from_secs(4);

const CONNECT: Duration = Duration::from_secs(3);
const ATTEMPT: Duration = Duration::from_secs(8);

/// The region that role requests name where nothing names one.
const REGION: &str = "us-east-1";

/// The chain, or one profile of it.
pub(super) struct Chain {
    profile: Option<String>,
    asked: Asked,
    /// Its connections and the roots it trusts are kept.
    base: OnceLock<ProviderConfig>,
}

/// What those who had no keys said.
#[derive(Default)]
struct Said(Vec<String>);

/// Why there are no keys, of all who were asked.
#[derive(Debug)]
struct Told(String);

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Told {}

impl Said {
    fn add(&mut self, who: &str, what: impl fmt::Display) {
        self.0.push(format!("{who}: {what}"));
    }

    fn told(self) -> Told {
        Told(self.0.join("; "))
    }
}

impl Chain {
    pub(super) fn new(profile: Option<&str>, asked: Asked) -> Chain {
        asked.set("environment");
        Chain {
            profile: profile.map(str::to_owned),
            asked,
            base: OnceLock::new(),
        }
    }

    async fn fetch(&self) -> Result<Keys, Failed> {
        let variables = Variables::of_process();
        let mut said = Said::default();
        if self.profile.is_none()
            && let Some(keys) = self.of_environment(&variables, &mut said)?
        {
            return Ok(keys);
        }
        let chosen = self.profile.as_deref();
        let name = chosen.or(variables.get("AWS_PROFILE")).unwrap_or("default");
        let config = self.config(&variables, name).await;
        let provider = of_profile(&config, &variables, name);
        if let Some(keys) = self
            .ask(&format!("profile {name}"), provider, &mut said)
            .await?
        {
            return Ok(keys);
        }
        if chosen.is_some() {
            return Err(Failed::not_loaded(said.told()));
        }
        match web_identity(&config, &variables) {
            Ok(provider) => {
                if let Some(keys) = self.ask("web identity", provider, &mut said).await? {
                    return Ok(keys);
                }
            }
            Err(why) => said.add("web identity", why),
        }
        match container(&config, &variables) {
            Ok(provider) => {
                if let Some(keys) = self.ask("container", provider, &mut said).await? {
                    return Ok(keys);
                }
            }
            Err(why) => said.add("container", why),
        }
        let provider = instance(&config, &variables, name).await;
        match self.ask("instance metadata", provider, &mut said).await? {
            Some(keys) => Ok(keys),
            None => Err(Failed::not_loaded(said.told())),
        }
    }

    fn of_environment(
        &self,
        variables: &Variables,
        said: &mut Said,
    ) -> Result<Option<Keys>, Failed> {
        self.asked.set("environment");
        let read = |name| Ok(variables.get(name).map(str::to_owned));
        match Credentials::from_variables(read) {
            Ok(credentials) => Ok(credentials.present().map(|held| held.keys.clone())),
            Err(CredentialsError::Missing) => {
                let text = format!("{ACCESS_KEY_ID} and {SECRET_ACCESS_KEY} are not set");
                said.add("environment", text);
                Ok(None)
            }
            Err(error) => Err(Failed::invalid_configuration(error)),
        }
    }

    /// Asks one provider. Where it has no keys the next is asked; where it should have some and fails, it is the last,
    /// since others would sign as somebody else.
    async fn ask(
        &self,
        who: &str,
        provider: impl ProvideCredentials,
        said: &mut Said,
    ) -> Result<Option<Keys>, Failed> {
        self.asked.set(who);
        match provider.provide_credentials().await {
            Ok(keys) => Ok(Some(keys)),
            Err(error @ Failed::CredentialsNotLoaded(_)) => {
                said.add(who, story(&error));
                Ok(None)
            }
            Err(error) => {
                let told = Told(format!("{who}: {}", story(&error)));
                Err(match error {
                    Failed::InvalidConfiguration(_) => Failed::invalid_configuration(told),
                    _ => Failed::provider_error(told),
                })
            }
        }
    }

    /// What the providers have in common.
    async fn config(&self, variables: &Variables, profile: &str) -> ProviderConfig {
        let base = self.base.get_or_init(|| {
            let ring = TlsProvider::Rustls(CryptoMode::Ring);
            let http = aws_smithy_http_client::Builder::new().tls_provider(ring);
            ProviderConfig::without_region()
                .with_http_client(http.build_https())
                .with_timeout_config(
                    TimeoutConfig::builder()
                        .connect_timeout(CONNECT)
                        .operation_attempt_timeout(ATTEMPT)
                        .build(),
                )
        });
        let region = variables
            .get("AWS_REGION")
            .or(variables.get("AWS_DEFAULT_REGION"))
            .map(str::to_owned);
        let region = match region {
            Some(region) => region,
            None => of_profile_file(variables, profile, "region")
                .await
                .unwrap_or_else(|| REGION.to_owned()),
        };
        base.clone().with_region(Some(Region::new(region)))
    }
}

impl ProvideCredentials for Chain {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        future::ProvideCredentials::new(self.fetch())
    }
}

impl fmt::Debug for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chain")
            .field("profile", &self.profile)
            .finish_non_exhaustive()
    }
}

fn of_profile(
    config: &ProviderConfig,
    variables: &Variables,
    name: &str,
) -> ProfileFileCredentialsProvider {
    ProfileFileCredentialsProvider::builder()
        .configure(config)
        .profile_files(files(variables))
        .profile_name(name)
        .build()
}

/// The files that profiles are in. Of a variable that is set to nothing the crate would read no file.
#[allow(deprecated)]
fn files(variables: &Variables) -> ProfileFiles {
    let mut files = ProfileFiles::builder()
        .include_default_config_file(!variables.is_empty("AWS_CONFIG_FILE"))
        .include_default_credentials_file(!variables.is_empty("AWS_SHARED_CREDENTIALS_FILE"));
    for (variable, kind, usual) in [
        ("AWS_CONFIG_FILE", ProfileFileKind::Config, "config"),
        (
            "AWS_SHARED_CREDENTIALS_FILE",
            ProfileFileKind::Credentials,
            "credentials",
        ),
    ] {
        if variables.is_empty(variable) {
            let home = PathBuf::from(variables.get("HOME").unwrap_or("/"));
            let path = home.join(".aws").join(usual);
            files = if path.exists() {
                files.with_file(kind, path)
            } else {
                files.with_contents(kind, "")
            };
        }
    }
    files.build()
}

/// What the profile's section says of `key`.
async fn of_profile_file(variables: &Variables, name: &str, key: &str) -> Option<String> {
    let (fs, env) = Default::default();
    let loaded = profile::load(&fs, &env, &files(variables), Some(name.to_owned().into())).await;
    // A file that cannot be read is told of when keys are looked for in it.
    loaded.ok()?.get(key).map(str::to_owned)
}

fn web_identity(
    config: &ProviderConfig,
    variables: &Variables,
) -> Result<WebIdentityTokenCredentialsProvider, &'static str> {
    let file = variables
        .get("AWS_WEB_IDENTITY_TOKEN_FILE")
        .ok_or("AWS_WEB_IDENTITY_TOKEN_FILE is not set")?;
    let role = variables
        .get("AWS_ROLE_ARN")
        .ok_or("AWS_ROLE_ARN is not set")?;
    let session = variables.get("AWS_ROLE_SESSION_NAME").map(str::to_owned);
    let own = || {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        format!("s3engine-{}", since.unwrap_or_default().as_millis())
    };
    Ok(WebIdentityTokenCredentialsProvider::builder()
        .configure(config)
        .static_configuration(StaticConfiguration {
            web_identity_token_file: file.into(),
            role_arn: role.to_owned(),
            session_name: session.unwrap_or_else(own),
        })
        .build())
}

/// The provider reads the environment itself: what is set to nothing there is in its way.
fn container(
    config: &ProviderConfig,
    variables: &Variables,
) -> Result<EcsCredentialsProvider, String> {
    let relative = variables.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
    let full = variables.get("AWS_CONTAINER_CREDENTIALS_FULL_URI");
    if relative.or(full).is_none() {
        return Err("no AWS_CONTAINER_CREDENTIALS_ variable is set".to_owned());
    }
    let hiding = [
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN",
    ];
    match hiding.iter().find(|name| variables.is_empty(name)) {
        Some(name) => Err(format!(
            "{name} is set to nothing, which hides the others: unset it"
        )),
        None => Ok(EcsCredentialsProvider::builder().configure(config).build()),
    }
}

async fn instance(
    config: &ProviderConfig,
    variables: &Variables,
    profile: &str,
) -> ImdsCredentialsProvider {
    let mut client = imds::Client::builder()
        .configure(config)
        .max_attempts(2)
        .connect_timeout(IMDS_CONNECT)
        .read_timeout(IMDS_READ);
    let hiding = [
        "AWS_EC2_METADATA_SERVICE_ENDPOINT",
        "AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE",
        "AWS_PROFILE",
    ];
    if hiding.iter().any(|name| variables.is_empty(name)) {
        let set = variables.get("AWS_EC2_METADATA_SERVICE_ENDPOINT");
        let endpoint = match set.map(str::to_owned) {
            Some(set) => Some(set),
            None => of_profile_file(variables, profile, "ec2_metadata_service_endpoint").await,
        };
        // What is no URL is told by the provider, which then reads it itself.
        let endpoint = endpoint.unwrap_or_else(|| IMDS.to_owned());
        client = match client.clone().endpoint(endpoint) {
            Ok(client) => client,
            Err(_) => client,
        };
    }
    ImdsCredentialsProvider::builder()
        .configure(config)
        .imds_client(client.build())
        .build()
}
