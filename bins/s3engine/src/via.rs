//! Which engine a command uses: that of the host service, or one of its own.

use std::path::PathBuf;
use std::str::FromStr;

use s3engine::service::default_socket;
use s3engine::{ConnectError, ConnectOptions, Engine};
use serde::{Deserialize, Serialize};

use crate::config::Settings;
use crate::exit::Failure;

/// What `--service` says.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) enum ServiceChoice {
    /// The host service at its usual socket, if one runs and no endpoint is set.
    Auto,
    /// An engine of the command's own.
    Off,
    /// The host service at this socket.
    At(PathBuf),
}

/// A text that names no service.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write auto, off, or the path of a host service's socket")]
pub(crate) struct BadService;

impl FromStr for ServiceChoice {
    type Err = BadService;

    fn from_str(text: &str) -> Result<Self, BadService> {
        Ok(match text {
            "" => return Err(BadService),
            "auto" => Self::Auto,
            "off" => Self::Off,
            path => Self::At(path.into()),
        })
    }
}

impl TryFrom<String> for ServiceChoice {
    type Error = BadService;

    fn try_from(text: String) -> Result<Self, BadService> {
        text.parse()
    }
}

impl From<ServiceChoice> for String {
    fn from(choice: ServiceChoice) -> Self {
        match choice {
            ServiceChoice::Auto => "auto".into(),
            ServiceChoice::Off => "off".into(),
            ServiceChoice::At(path) => path.to_string_lossy().into_owned(),
        }
    }
}

/// Where a command's engine is.
pub(crate) enum Via {
    /// In the host service.
    Service(Engine, PathBuf),
    /// In the command's own process.
    Own,
    /// No endpoint is set, and there is no service either.
    Nowhere(ConnectError),
}

/// Decides, and attaches to the service where that is it. A service that is there and refuses is an error.
pub(crate) fn choose(settings: &Settings, flags: &Settings) -> Result<Via, Failure> {
    let named = flags.endpoint.is_some();
    let (socket, must) = match settings.service.clone().unwrap_or(ServiceChoice::Auto) {
        ServiceChoice::Off => return Ok(Via::Own),
        ServiceChoice::At(_) if named && flags.service.is_some() => {
            let text = "--endpoint is for an engine of this command's own; the host service's are named by --service-endpoint";
            return Err(Failure::Usage(text.to_owned()));
        }
        ServiceChoice::At(socket) if !named => (socket, true),
        ServiceChoice::Auto if settings.endpoint.is_none() => (default_socket(), false),
        ServiceChoice::Auto | ServiceChoice::At(_) => return Ok(Via::Own),
    };
    let options = ConnectOptions {
        endpoint: settings.service_endpoint.clone(),
        ..ConnectOptions::default()
    };
    match Engine::connect(&socket, options) {
        Ok(engine) => {
            tracing::info!(socket = %socket.display(), endpoint = %engine.endpoint(), "via the host service");
            Ok(Via::Service(engine, socket))
        }
        // That of AWS for the region.
        Err(ConnectError::NoService { .. }) if !must && settings.region.is_some() => Ok(Via::Own),
        Err(none @ ConnectError::NoService { .. }) if !must => Ok(Via::Nowhere(none)),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(service: Option<&str>, endpoint: Option<&str>) -> Settings {
        Settings {
            service: service.map(|text| text.parse().unwrap()),
            endpoint: endpoint.map(str::to_owned),
            ..Settings::default()
        }
    }

    #[test]
    fn an_endpoint_or_off_means_an_engine_of_its_own() {
        let none = settings(None, None);
        let url = Some("http://x");
        for (settings, flags) in [
            // Wherever the endpoint was set.
            (settings(None, url), &none),
            (settings(Some("auto"), url), &none),
            (settings(Some("off"), None), &none),
            // The flag is over the environment's service.
            (settings(Some("/nowhere.sock"), url), &settings(None, url)),
        ] {
            let chosen = choose(&settings, flags).ok().unwrap();
            assert!(matches!(chosen, Via::Own), "{settings:?}");
        }
    }

    #[test]
    fn a_named_service_that_is_not_there_is_an_error_whatever_else_is_set() {
        let none = settings(None, None);
        for endpoint in [None, Some("http://of-the-environment")] {
            let settings = settings(Some("/nowhere.sock"), endpoint);
            let failure = choose(&settings, &none).err().unwrap();
            assert!(failure.to_string().contains("/nowhere.sock"), "{failure}");
            assert_eq!(failure.code(), 3);
        }
    }

    #[test]
    fn a_service_and_an_endpoint_on_the_command_line_are_one_too_many() {
        let flags = settings(Some("/nowhere.sock"), Some("http://x"));
        assert_eq!(choose(&flags, &flags).err().unwrap().code(), 2);
        assert_eq!("".parse::<ServiceChoice>(), Err(BadService));
    }
}
