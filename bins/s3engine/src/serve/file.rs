//! The service's file.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use serde::Deserialize;

use crate::config::{
    AdaptiveChoice, Addressing, ChecksumChoice, CredentialsChoice, DriverChoice, FabricChoice,
    LogFormat, PlacementChoice, Settings,
};
use crate::network::{ProxyChoice, RedirectHosts};
use crate::serve::account::Account;
use crate::size::Size;
use crate::span::Span;

/// What the file says; absent is the default. A flag that says the same thing counts instead.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct File {
    pub(crate) socket: Option<PathBuf>,
    pub(crate) metrics: Option<SocketAddr>,
    pub(crate) check_share: Option<Span>,
    pub(crate) server_metrics: Vec<String>,
    pub(crate) drain: Option<Span>,
    pub(crate) fabric: Option<FabricChoice>,
    pub(crate) rdma_device: Option<String>,
    pub(crate) s3rdma_library: Option<PathBuf>,
    pub(crate) cufile_library: Option<PathBuf>,
    pub(crate) loopback_dir: Option<PathBuf>,
    pub(crate) threads: Option<usize>,
    pub(crate) placement: Option<PlacementChoice>,
    pub(crate) driver: Option<DriverChoice>,
    pub(crate) checksum: Option<ChecksumChoice>,
    /// Headers that clients may add to requests.
    pub(crate) client_headers: Vec<String>,
    pub(crate) log: Option<LogFormat>,
    pub(crate) log_filter: Option<String>,
    pub(crate) default_endpoint: Option<String>,
    pub(crate) endpoint: BTreeMap<String, EndpointTable>,
    pub(crate) allow_uid: Vec<Account>,
    pub(crate) allow_gid: Vec<Account>,
    pub(crate) rule: Vec<RuleTable>,
    pub(crate) pool: PoolTable,
    pub(crate) limits: LimitsTable,
    pub(crate) timeouts: TimeoutsTable,
    pub(crate) retry: RetryTable,
    pub(crate) caps: CapsTable,
}

/// An endpoint. Its keys stand in the environment, never in the file.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EndpointTable {
    pub(crate) url: Option<String>,
    pub(crate) region: Option<String>,
    pub(crate) addressing: Option<Addressing>,
    pub(crate) ca_bundle: Option<PathBuf>,
    pub(crate) client_cert: Option<PathBuf>,
    pub(crate) client_key: Option<PathBuf>,
    pub(crate) proxy: Option<ProxyChoice>,
    pub(crate) redirect_to: Option<RedirectHosts>,
    pub(crate) source: Option<IpAddr>,
    pub(crate) interface: Option<String>,
    pub(crate) anonymous: Option<bool>,
    pub(crate) credentials: Option<CredentialsChoice>,
    pub(crate) profile: Option<String>,
    pub(crate) access_key_env: Option<String>,
    pub(crate) secret_key_env: Option<String>,
    pub(crate) session_token_env: Option<String>,
}

/// Who may read what.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RuleTable {
    pub(crate) uid: Option<Account>,
    pub(crate) gid: Option<Account>,
    pub(crate) endpoint: Option<String>,
    pub(crate) bucket: String,
    #[serde(default)]
    pub(crate) prefix: String,
}

/// The memory.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct PoolTable {
    pub(crate) bytes: Option<Size>,
    pub(crate) cuda_bytes: Option<Size>,
    pub(crate) slab: Option<Size>,
}

/// What may be under way for all clients together.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct LimitsTable {
    pub(crate) requests: Option<usize>,
    pub(crate) bytes: Option<Size>,
    pub(crate) adaptive: Option<AdaptiveChoice>,
}

/// How long the phases of a request may take.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct TimeoutsTable {
    pub(crate) connect: Option<Span>,
    pub(crate) first_byte: Option<Span>,
    pub(crate) stall: Option<Span>,
    pub(crate) stall_bytes: Option<Size>,
    pub(crate) rdma: Option<Span>,
}

/// How often requests are tried again.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RetryTable {
    pub(crate) attempts: Option<u32>,
    pub(crate) budget: Option<u32>,
}

/// What a client may take.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct CapsTable {
    pub(crate) sessions: Option<usize>,
    pub(crate) sessions_per_uid: Option<usize>,
    pub(crate) queues: Option<usize>,
    pub(crate) entries: Option<u32>,
    pub(crate) queue_bytes: Option<Size>,
    pub(crate) queue_bytes_per_uid: Option<Size>,
    pub(crate) bytes: Option<Size>,
    pub(crate) bytes_per_uid: Option<Size>,
    pub(crate) requests: Option<usize>,
    pub(crate) requests_per_uid: Option<usize>,
    pub(crate) in_flight_bytes_per_uid: Option<Size>,
}

impl File {
    /// What it says of what flags and the environment can say too.
    pub(crate) fn settings(&self) -> Settings {
        Settings {
            fabric: self.fabric,
            rdma_device: self.rdma_device.clone(),
            s3rdma_library: self.s3rdma_library.clone(),
            cufile_library: self.cufile_library.clone(),
            loopback_dir: self.loopback_dir.clone(),
            engine_threads: self.threads,
            placement: self.placement,
            driver: self.driver,
            pool_size: self.pool.bytes,
            cuda_pool_size: self.pool.cuda_bytes,
            slab_size: self.pool.slab,
            requests: self.limits.requests,
            checksum: self.checksum,
            adaptive: self.limits.adaptive,
            connect_timeout: self.timeouts.connect,
            first_byte_timeout: self.timeouts.first_byte,
            stall_timeout: self.timeouts.stall,
            stall_bytes: self.timeouts.stall_bytes,
            rdma_timeout: self.timeouts.rdma,
            attempts: self.retry.attempts,
            retry_budget: self.retry.budget,
            log: self.log,
            log_filter: self.log_filter.clone(),
            ..Settings::default()
        }
    }

    /// Without what can be replaced while the service runs.
    pub(crate) fn fixed(&self) -> Self {
        Self {
            allow_uid: Vec::new(),
            allow_gid: Vec::new(),
            rule: Vec::new(),
            log_filter: None,
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> String {
        let page = include_str!("../../../../docs/service.md");
        let (_, rest) = page.split_once("```toml\n").unwrap();
        rest.split_once("```").unwrap().0.to_owned()
    }

    #[test]
    fn the_documented_file_is_understood() {
        let file: File = toml::from_str(&example()).unwrap();
        assert_eq!(file.endpoint.len(), 2);
        assert_eq!(file.allow_uid[1], Account::Number(1002));
        assert_eq!(file.rule[1].prefix, "");
        assert_eq!(file.pool.slab, Some(Size(64 << 20)));
        assert_eq!(file.settings().cuda_pool_size, Some(Size(40 << 30)));
        assert_eq!(file.settings().placement, Some(PlacementChoice::Auto));
        assert_eq!(file.settings().driver, Some(DriverChoice::Uring));
        assert_eq!(file.settings().stall_bytes, Some(Size(4 << 10)));
        assert_eq!(file.settings().retry_budget, Some(500));
    }

    #[test]
    fn the_file_in_the_manifest_is_understood() {
        let manifest = include_str!("../../../../deploy/kubernetes.yaml");
        let (_, rest) = manifest.split_once("  serve.toml: |\n").unwrap();
        let (block, _) = rest.split_once("\n---\n").unwrap();
        let file: File = toml::from_str(block).unwrap();
        assert_eq!(file.allow_uid, [Account::Number(10_001)]);
        assert_eq!(file.rule[0].bucket, "train");
    }

    #[test]
    fn unknown_keys_are_refused_at_every_level() {
        for table in [
            "",
            "[pool]",
            "[limits]",
            "[timeouts]",
            "[retry]",
            "[caps]",
            "[endpoint.x]\nurl = \"http://x\"",
            "[[rule]]\nbucket = \"b\"",
        ] {
            let text = format!("{table}\nsecret_key = 1");
            let error = toml::from_str::<File>(&text).unwrap_err().to_string();
            assert!(error.contains("unknown field `secret_key`"), "{error}");
        }
    }

    #[test]
    fn what_can_be_reloaded_is_no_part_of_what_is_fixed() {
        let file: File = toml::from_str(&example()).unwrap();
        let other = File {
            allow_uid: vec![Account::Number(1)],
            allow_gid: Vec::new(),
            rule: Vec::new(),
            log_filter: Some("debug".to_owned()),
            ..file.clone()
        };
        assert_eq!(file.fixed(), other.fixed());
        let moved = File {
            socket: None,
            ..file.clone()
        };
        assert_ne!(file.fixed(), moved.fixed());
    }
}
