//! Settings by environment variables.

use std::env::VarError;
use std::ffi::OsString;
use std::str::FromStr;

use clap::ValueEnum;

use super::{ConfigError, Settings};
use crate::server_metrics;

/// The variable that names the file of settings.
pub(super) const CONFIG: &str = "S3ENGINE_CONFIG";
pub(super) const PREFIX: &str = "S3ENGINE_";

/// Variables that are no settings of the engine.
const OTHERS: [&str; 2] = [CONFIG, server_metrics::TOKEN];

type Set = fn(&mut Settings, &str) -> Result<(), String>;

/// Variables in the order of their weight: the first one that is set counts.
pub(super) const VARIABLES: &[(&str, Set)] = &[
    ("AWS_ENDPOINT_URL_S3", |s, v| set(&mut s.endpoint, v)),
    ("AWS_ENDPOINT_URL", |s, v| set(&mut s.endpoint, v)),
    ("AWS_REGION", |s, v| set(&mut s.region, v)),
    ("AWS_DEFAULT_REGION", |s, v| set(&mut s.region, v)),
    ("S3ENGINE_ADDRESSING", |s, v| choose(&mut s.addressing, v)),
    ("S3ENGINE_CA_BUNDLE", |s, v| set(&mut s.ca_bundle, v)),
    ("AWS_CA_BUNDLE", |s, v| set(&mut s.ca_bundle, v)),
    ("S3ENGINE_CLIENT_CERT", |s, v| set(&mut s.client_cert, v)),
    ("S3ENGINE_CLIENT_KEY", |s, v| set(&mut s.client_key, v)),
    ("S3ENGINE_PROXY", |s, v| set(&mut s.proxy, v)),
    ("S3ENGINE_REDIRECT_TO", |s, v| set(&mut s.redirect_to, v)),
    ("S3ENGINE_SOURCE", |s, v| set(&mut s.source, v)),
    ("S3ENGINE_INTERFACE", |s, v| set(&mut s.interface, v)),
    ("S3ENGINE_ANONYMOUS", |s, v| set(&mut s.anonymous, v)),
    ("S3ENGINE_CREDENTIALS", |s, v| choose(&mut s.credentials, v)),
    ("S3ENGINE_PROFILE", |s, v| set(&mut s.profile, v)),
    ("S3ENGINE_RDMA", |s, v| choose(&mut s.fabric, v)),
    ("S3ENGINE_RDMA_DEVICE", |s, v| set(&mut s.rdma_device, v)),
    ("S3ENGINE_S3RDMA_LIBRARY", |s, v| {
        set(&mut s.s3rdma_library, v)
    }),
    ("S3ENGINE_CUFILE_LIBRARY", |s, v| {
        set(&mut s.cufile_library, v)
    }),
    ("S3ENGINE_LOOPBACK_DIR", |s, v| set(&mut s.loopback_dir, v)),
    ("S3ENGINE_POLICY", |s, v| choose(&mut s.rdma, v)),
    ("S3ENGINE_CHECKSUM", |s, v| choose(&mut s.checksum, v)),
    ("S3ENGINE_POOL_SIZE", |s, v| set(&mut s.pool_size, v)),
    ("S3ENGINE_CUDA_POOL_SIZE", |s, v| {
        set(&mut s.cuda_pool_size, v)
    }),
    ("S3ENGINE_SLAB_SIZE", |s, v| set(&mut s.slab_size, v)),
    ("S3ENGINE_ENGINE_THREADS", |s, v| {
        set(&mut s.engine_threads, v)
    }),
    ("S3ENGINE_PLACEMENT", |s, v| choose(&mut s.placement, v)),
    ("S3ENGINE_DRIVER", |s, v| choose(&mut s.driver, v)),
    ("S3ENGINE_REQUESTS", |s, v| set(&mut s.requests, v)),
    ("S3ENGINE_ADAPTIVE", |s, v| choose(&mut s.adaptive, v)),
    ("S3ENGINE_CONNECT_TIMEOUT", |s, v| {
        set(&mut s.connect_timeout, v)
    }),
    ("S3ENGINE_FIRST_BYTE_TIMEOUT", |s, v| {
        set(&mut s.first_byte_timeout, v)
    }),
    ("S3ENGINE_STALL_TIMEOUT", |s, v| {
        set(&mut s.stall_timeout, v)
    }),
    ("S3ENGINE_STALL_BYTES", |s, v| set(&mut s.stall_bytes, v)),
    ("S3ENGINE_ATTEMPTS", |s, v| set(&mut s.attempts, v)),
    ("S3ENGINE_RETRY_BUDGET", |s, v| set(&mut s.retry_budget, v)),
    ("S3ENGINE_RDMA_TIMEOUT", |s, v| set(&mut s.rdma_timeout, v)),
    ("S3ENGINE_DEADLINE", |s, v| set(&mut s.deadline, v)),
    ("S3ENGINE_SERVICE", |s, v| set(&mut s.service, v)),
    ("S3ENGINE_SERVICE_ENDPOINT", |s, v| {
        set(&mut s.service_endpoint, v)
    }),
    ("S3ENGINE_LOG", |s, v| set(&mut s.log_filter, v)),
    ("S3ENGINE_LOG_FORMAT", |s, v| choose(&mut s.log, v)),
];

fn set<T: FromStr<Err: std::fmt::Display>>(slot: &mut Option<T>, text: &str) -> Result<(), String> {
    let value = text.parse().map_err(|error: T::Err| error.to_string())?;
    slot.get_or_insert(value);
    Ok(())
}

fn choose<T: ValueEnum>(slot: &mut Option<T>, text: &str) -> Result<(), String> {
    let value = T::from_str(text, false).map_err(|_| {
        let names: Vec<_> = T::value_variants()
            .iter()
            .filter_map(|value| Some(value.to_possible_value()?.get_name().to_owned()))
            .collect();
        format!("{text:?} is none of {}", names.join(", "))
    })?;
    slot.get_or_insert(value);
    Ok(())
}

pub(super) fn known_names() -> String {
    let ours = VARIABLES.iter().map(|(name, _)| *name);
    let names: Vec<_> = ours
        .filter(|name| name.starts_with(PREFIX))
        .chain(OTHERS)
        .collect();
    names.join(", ")
}

impl Settings {
    pub(super) fn from_environment(
        environment: &[(OsString, OsString)],
    ) -> Result<Self, ConfigError> {
        let unknown = environment.iter().find_map(|(name, _)| {
            let name = name.to_string_lossy();
            let known =
                OTHERS.contains(&&*name) || VARIABLES.iter().any(|(known, _)| *known == name);
            (name.starts_with(PREFIX) && !known).then(|| name.into_owned())
        });
        if let Some(name) = unknown {
            return Err(ConfigError::UnknownVariable { name });
        }
        let mut settings = Self::default();
        for &(name, set) in VARIABLES {
            if let Some(value) = lookup(environment, name)? {
                set(&mut settings, &value)
                    .map_err(|problem| ConfigError::Variable { name, problem })?;
            }
        }
        Ok(settings)
    }
}

/// A variable's value; an empty one is unset.
pub(super) fn lookup(
    environment: &[(OsString, OsString)],
    name: &'static str,
) -> Result<Option<String>, ConfigError> {
    let found = environment.iter().find(|(key, _)| key == name);
    match found.map(|(_, value)| value.clone().into_string()) {
        None => Ok(None),
        Some(Ok(value)) => Ok(Some(value).filter(|value| !value.is_empty())),
        Some(Err(value)) => Err(ConfigError::Variable {
            name,
            problem: VarError::NotUnicode(value).to_string(),
        }),
    }
}
