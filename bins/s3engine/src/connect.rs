//! From settings to an engine.

use std::time::Duration;

use s3engine::{
    BuildError, Credentials, CufileOptions, Driver, Endpoint, Engine, EngineBuilder, Limits,
    LoopbackOptions, Placement, PoolError, PoolOptions, Rdma, RetryPolicy, S3rdmaOptions, Timeouts,
};

use crate::config::{
    AdaptiveChoice, ConfigError, DriverChoice, FabricChoice, PlacementChoice, Settings,
};
use crate::exit::Failure;
use crate::size::Size;

/// No pool and no slab can be smaller.
const LEAST: Size = Size(2 << 20);

/// Describes an engine as the settings say, all but its memory.
pub(crate) fn describe(
    settings: &Settings,
    endpoint: Endpoint,
    credentials: Credentials,
) -> Result<EngineBuilder, ConfigError> {
    let builder = Engine::builder(endpoint)
        .credentials(credentials)
        .network(settings.network()?)
        .rdma(fabric(settings))
        .placement(match settings.placement {
            None | Some(PlacementChoice::Auto) => Placement::Auto,
            Some(PlacementChoice::Off) => Placement::Off,
        })
        .policy(settings.policy())
        .checksum(settings.checksum())
        .timeouts(timeouts(settings))
        .adaptive(settings.adaptive != Some(AdaptiveChoice::Off))
        .retry(retry(settings))
        .limits(Limits {
            requests: settings.requests.unwrap_or(Limits::default().requests),
            ..Limits::default()
        });
    let builder = match settings.engine_threads {
        Some(threads) => builder.threads(threads),
        None => builder,
    };
    let builder = match settings.driver {
        Some(DriverChoice::Uring) => builder.driver(Driver::Uring),
        Some(DriverChoice::Epoll) => builder.driver(Driver::Epoll),
        None => builder,
    };
    Ok(match settings.deadline {
        Some(deadline) => builder.deadline(deadline.0),
        None => builder,
    })
}

/// Memory in slabs of so many bytes, of at most `max_bytes` of the host's, and as much of each GPU's as the settings
/// allow.
pub(crate) fn pool(
    settings: &Settings,
    slab_bytes: u64,
    max_bytes: Option<u64>,
) -> Result<PoolOptions, ConfigError> {
    let too_small = |size: &Size| (Size(1)..LEAST).contains(size);
    if let Some(value) = settings.cuda_pool_size.filter(too_small) {
        return Err(ConfigError::Size {
            setting: "--cuda-pool-size",
            value,
            problem: format!("at least {LEAST} are needed, or 0 for none"),
        });
    }
    Ok(PoolOptions {
        slab_bytes,
        max_bytes,
        max_cuda_bytes: settings.cuda_pool_size.map(|size| size.0),
        ..PoolOptions::default()
    })
}

/// Starts it. What is wrong with its memory is told in the words of the settings.
pub(crate) fn start(builder: EngineBuilder, settings: &Settings) -> Result<Engine, Failure> {
    builder.build().map_err(|error| told(error, settings))
}

fn told(error: BuildError, settings: &Settings) -> Failure {
    let small = |size: &Size| *size < LEAST;
    let (setting, value, problem) = match (&error, settings.pool_size, settings.slab_size) {
        (BuildError::Pool(PoolError::TooSmall { .. }), Some(pool), _) if small(&pool) => {
            ("--pool-size", pool, format!("at least {LEAST} are needed"))
        }
        (BuildError::Pool(PoolError::TooSmall { .. }), _, Some(slab)) if small(&slab) => {
            ("--slab-size", slab, format!("at least {LEAST} are needed"))
        }
        (BuildError::Pool(PoolError::OverMemoryLimit { limit, .. }), Some(pool), _) => {
            let problem = format!("more than the memory limit of {limit}");
            ("--pool-size", pool, problem)
        }
        (BuildError::Pool(PoolError::OverMemoryLimit { limit, .. }), None, Some(slab)) => {
            let problem = format!("the slabs need more than the memory limit of {limit}");
            ("--slab-size", slab, problem)
        }
        _ => return error.into(),
    };
    Failure::Config(ConfigError::Size {
        setting,
        value,
        problem,
    })
}

fn fabric(settings: &Settings) -> Rdma {
    let devices = settings.rdma_device.as_deref().unwrap_or_default();
    let devices = devices.split(',').map(|device| device.trim().to_owned());
    let s3rdma = Rdma::S3rdma(S3rdmaOptions {
        file: settings.s3rdma_library.clone(),
        devices: devices.filter(|device| !device.is_empty()).collect(),
        ..S3rdmaOptions::default()
    });
    let cufile = Rdma::Cufile(CufileOptions {
        file: settings.cufile_library.clone(),
        ..CufileOptions::default()
    });
    match settings.fabric.unwrap_or(FabricChoice::Auto) {
        FabricChoice::Auto => Rdma::FirstOf(vec![s3rdma, cufile]),
        FabricChoice::S3rdma => s3rdma,
        FabricChoice::Cufile => cufile,
        FabricChoice::Off => Rdma::Off,
        FabricChoice::Loopback => Rdma::Loopback(LoopbackOptions {
            folder: settings.loopback_dir.clone(),
            ..LoopbackOptions::default()
        }),
    }
}

fn timeouts(settings: &Settings) -> Timeouts {
    let defaults = Timeouts::default();
    let or = |span: Option<crate::span::Span>, default: Duration| span.map_or(default, |s| s.0);
    Timeouts {
        connect: or(settings.connect_timeout, defaults.connect),
        first_byte: or(settings.first_byte_timeout, defaults.first_byte),
        stall: or(settings.stall_timeout, defaults.stall),
        stall_bytes: settings
            .stall_bytes
            .map_or(defaults.stall_bytes, |size| size.0),
        rdma_base: or(settings.rdma_timeout, defaults.rdma_base),
        ..defaults
    }
}

fn retry(settings: &Settings) -> RetryPolicy {
    let defaults = RetryPolicy::default();
    RetryPolicy {
        max_attempts: settings.attempts.unwrap_or(defaults.max_attempts),
        budget: settings.retry_budget.unwrap_or(defaults.budget),
        ..defaults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_cannot_be_are_told_as_they_were_given() {
        let start = |pool: Option<&str>, slab: Option<&str>| {
            let settings = Settings {
                pool_size: pool.map(|size| size.parse().unwrap()),
                slab_size: slab.map(|size| size.parse().unwrap()),
                ..Settings::default()
            };
            let endpoint = Endpoint::parse("http://127.0.0.1:1").unwrap();
            let builder = describe(&settings, endpoint, Credentials::anonymous()).unwrap();
            let slab_bytes = settings.slab_size.map_or(16 << 20, |size| size.0);
            let max_bytes = settings.pool_size.or(settings.slab_size).map(|size| size.0);
            let pool = super::pool(&settings, slab_bytes, max_bytes).unwrap();
            let failure = self::start(builder.pool(pool), &settings).err().unwrap();
            assert_eq!(failure.code(), 3);
            failure.to_string()
        };
        let least = "at least 2MiB are needed";
        assert_eq!(start(Some("1"), None), format!("--pool-size 1: {least}"));
        assert_eq!(
            start(Some("64MiB"), Some("0")),
            format!("--slab-size 0: {least}")
        );
        let text = start(Some("1024TiB"), None);
        assert!(
            text.starts_with("--pool-size 1024TiB: more than the memory limit of "),
            "{text}"
        );
        let text = start(None, Some("1024TiB"));
        assert!(
            text.starts_with("--slab-size 1024TiB: the slabs need more than the memory limit of "),
            "{text}"
        );
    }
    #[test]
    fn a_pool_of_gpus_is_none_or_large_enough() {
        let most = |size: &str| {
            let settings = Settings {
                cuda_pool_size: Some(size.parse().unwrap()),
                ..Settings::default()
            };
            pool(&settings, 16 << 20, None).map(|pool| pool.max_cuda_bytes)
        };
        assert_eq!(most("0").unwrap(), Some(0));
        assert_eq!(most("40GiB").unwrap(), Some(40 << 30));
        let error = most("1MiB").unwrap_err().to_string();
        let words = "--cuda-pool-size 1MiB: at least 2MiB are needed, or 0 for none";
        assert_eq!(error, words);
    }
}
