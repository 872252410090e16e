//! From settings to an engine.

use std::time::Duration;

use s3engine::{
    Credentials, Endpoint, Engine, EngineBuilder, Limits, LoopbackOptions, Rdma, Timeouts,
};

use crate::config::{FabricChoice, Settings};

/// Describes an engine as the settings say, all but its memory.
pub(crate) fn describe(
    settings: &Settings,
    endpoint: Endpoint,
    credentials: Credentials,
) -> EngineBuilder {
    let builder = Engine::builder(endpoint)
        .credentials(credentials)
        .rdma(fabric(settings))
        .policy(settings.policy())
        .timeouts(timeouts(settings))
        .limits(Limits {
            requests: settings.requests.unwrap_or(Limits::default().requests),
            ..Limits::default()
        });
    let builder = match settings.engine_threads {
        Some(threads) => builder.threads(threads),
        None => builder,
    };
    match settings.deadline {
        Some(deadline) => builder.deadline(deadline.0),
        None => builder,
    }
}

fn fabric(settings: &Settings) -> Rdma {
    match settings.fabric.unwrap_or(FabricChoice::Auto) {
        FabricChoice::Auto => Rdma::Auto,
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
        rdma_base: or(settings.rdma_timeout, defaults.rdma_base),
        ..defaults
    }
}
