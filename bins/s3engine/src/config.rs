//! Settings: flags, over the environment, over a file. One struct for all three.

use std::ffi::OsString;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use s3engine::{
    AddressingStyle, ChecksumMode, ConnectError, Credentials, CredentialsError, Endpoint,
    EndpointError, NoHost, Policy, ProxyError,
};
use serde::{Deserialize, Serialize};

mod environment;
mod file;

use self::environment::{CONFIG, known_names, lookup};
pub(crate) use self::file::from_file;
use crate::network::{ProxyChoice, RedirectHosts};
use crate::size::Size;
use crate::span::Span;
use crate::via::ServiceChoice;

/// Everything that can be set by a flag, by the environment or by a file; absent is the default.
#[derive(Args, Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Settings {
    /// The S3 endpoint, https://host:port, or several servers of the same buckets with commas in between
    /// [AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL; default: that of AWS for the region, where one is set]
    #[arg(long, value_name = "URL")]
    pub(crate) endpoint: Option<String>,

    /// Region that signatures name [AWS_REGION, AWS_DEFAULT_REGION; default: us-east-1]
    #[arg(long, value_name = "NAME")]
    pub(crate) region: Option<String>,

    /// How requests name the bucket [S3ENGINE_ADDRESSING]
    #[arg(long, value_name = "STYLE")]
    pub(crate) addressing: Option<Addressing>,

    /// PEM file of the CAs to trust instead of the system's [S3ENGINE_CA_BUNDLE, AWS_CA_BUNDLE]
    #[arg(long, value_name = "FILE")]
    pub(crate) ca_bundle: Option<PathBuf>,

    /// PEM file of the certificate to show to servers that ask for one [S3ENGINE_CLIENT_CERT]
    #[arg(long, value_name = "FILE")]
    pub(crate) client_cert: Option<PathBuf>,

    /// PEM file of its key, where that is another one [S3ENGINE_CLIENT_KEY]
    #[arg(long, value_name = "FILE")]
    pub(crate) client_key: Option<PathBuf>,

    /// Proxy for all requests, or none [S3ENGINE_PROXY; default: as https_proxy, http_proxy and no_proxy say]
    #[arg(long, value_name = "URL|off", value_parser = ProxyChoice::taken)]
    pub(crate) proxy: Option<ProxyChoice>,

    /// Hosts besides the endpoint's own to which redirects may take signatures and tokens: names, addresses or *.name,
    /// with commas in between [S3ENGINE_REDIRECT_TO]
    #[arg(long, value_name = "HOSTS")]
    pub(crate) redirect_to: Option<RedirectHosts>,

    /// Local address that connections begin at [S3ENGINE_SOURCE]
    #[arg(long, value_name = "IP")]
    pub(crate) source: Option<IpAddr>,

    /// Network interface that they go through [S3ENGINE_INTERFACE]
    #[arg(long, value_name = "NAME")]
    pub(crate) interface: Option<String>,

    /// Do not sign requests [S3ENGINE_ANONYMOUS]
    #[arg(long, num_args = 0, default_missing_value = "true")]
    pub(crate) anonymous: Option<bool>,

    /// Who signs requests [S3ENGINE_CREDENTIALS; default: env where its variables are set, else chain]
    #[arg(long, value_name = "SOURCE")]
    pub(crate) credentials: Option<CredentialsChoice>,

    /// The AWS profile that signs, whatever the environment says [S3ENGINE_PROFILE]
    #[arg(long, value_name = "NAME")]
    pub(crate) profile: Option<String>,

    /// The RDMA fabric to use [S3ENGINE_RDMA; default: auto]
    #[arg(long, value_name = "FABRIC")]
    pub(crate) fabric: Option<FabricChoice>,

    /// Devices that RDMA uses, by name or address, with commas [S3ENGINE_RDMA_DEVICE; default: all that are up]
    #[arg(long, value_name = "LIST")]
    pub(crate) rdma_device: Option<String>,

    /// MinIO's RDMA library, where it is not found as libs3rdma.so.0 [S3ENGINE_S3RDMA_LIBRARY]
    #[arg(long, value_name = "FILE")]
    pub(crate) s3rdma_library: Option<PathBuf>,

    /// NVIDIA's cuFile, where it is not found as libcufile.so.0 [S3ENGINE_CUFILE_LIBRARY]
    #[arg(long, value_name = "FILE")]
    pub(crate) cufile_library: Option<PathBuf>,

    /// Folder of the loopback fabric [S3ENGINE_LOOPBACK_DIR]
    #[arg(long, value_name = "DIR")]
    pub(crate) loopback_dir: Option<PathBuf>,

    /// Whether bytes must, may or shall not go by RDMA [S3ENGINE_POLICY; default: prefer]
    #[arg(long, value_name = "POLICY")]
    pub(crate) rdma: Option<RdmaPolicy>,

    /// What is asked of objects' checksums [S3ENGINE_CHECKSUM; default: when-offered]
    #[arg(long, value_name = "MODE")]
    pub(crate) checksum: Option<ChecksumChoice>,

    /// The most memory that transfers take [S3ENGINE_POOL_SIZE]
    #[arg(long, value_name = "SIZE")]
    pub(crate) pool_size: Option<Size>,

    /// The same for the memory of each GPU; 0 is none [S3ENGINE_CUDA_POOL_SIZE; default: half of it]
    #[arg(long, value_name = "SIZE")]
    pub(crate) cuda_pool_size: Option<Size>,

    /// Memory is allocated in pieces of this size; a chunk of `get` fits one [S3ENGINE_SLAB_SIZE]
    #[arg(long, value_name = "SIZE")]
    pub(crate) slab_size: Option<Size>,

    /// Threads that move bytes [S3ENGINE_ENGINE_THREADS; default: one a core, 16 at most]
    #[arg(long, value_name = "N")]
    pub(crate) engine_threads: Option<usize>,

    /// Where those threads run [S3ENGINE_PLACEMENT; default: auto]
    #[arg(long, value_name = "PLACEMENT")]
    pub(crate) placement: Option<PlacementChoice>,

    /// What brings bytes from plain sockets into memory [S3ENGINE_DRIVER; default: uring where that can be used]
    #[arg(long, value_name = "DRIVER")]
    pub(crate) driver: Option<DriverChoice>,

    /// Requests in flight at most [S3ENGINE_REQUESTS; default: 64]
    #[arg(long, value_name = "N")]
    pub(crate) requests: Option<usize>,

    /// Whether an endpoint gets fewer requests while it refuses them [S3ENGINE_ADAPTIVE; default: on]
    #[arg(long, value_name = "on|off")]
    pub(crate) adaptive: Option<AdaptiveChoice>,

    /// For opening a connection [S3ENGINE_CONNECT_TIMEOUT; default: 5s]
    #[arg(long, value_name = "TIME")]
    pub(crate) connect_timeout: Option<Span>,

    /// From a request to the head of its answer [S3ENGINE_FIRST_BYTE_TIMEOUT; default: 30s]
    #[arg(long, value_name = "TIME")]
    pub(crate) first_byte_timeout: Option<Span>,

    /// How long a body may move less than --stall-bytes [S3ENGINE_STALL_TIMEOUT; default: 15s]
    #[arg(long, value_name = "TIME")]
    pub(crate) stall_timeout: Option<Span>,

    /// The bytes that count as moving [S3ENGINE_STALL_BYTES; default: 4KiB]
    #[arg(long, value_name = "SIZE")]
    pub(crate) stall_bytes: Option<Size>,

    /// For a small RDMA request; more is added for queued bytes [S3ENGINE_RDMA_TIMEOUT; default: 10s]
    #[arg(long, value_name = "TIME")]
    pub(crate) rdma_timeout: Option<Span>,

    /// Attempts at a request, those that bring bytes not counted [S3ENGINE_ATTEMPTS; default: 3]
    #[arg(long, value_name = "N")]
    pub(crate) attempts: Option<u32>,

    /// Retries that all requests have together until successes bring more [S3ENGINE_RETRY_BUDGET; default: 500]
    #[arg(long, value_name = "N")]
    pub(crate) retry_budget: Option<u32>,

    /// For everything together [S3ENGINE_DEADLINE; default: none]
    #[arg(long, value_name = "TIME")]
    pub(crate) deadline: Option<Span>,

    /// Whose engine is used: the host service's (auto: if one runs and no endpoint is set; or its socket), or one
    /// of the command's own (off) [S3ENGINE_SERVICE; default: auto, off for bench]
    #[arg(long, value_name = "auto|off|PATH")]
    pub(crate) service: Option<ServiceChoice>,

    /// Which of the host service's endpoints, by its name there [S3ENGINE_SERVICE_ENDPOINT]
    #[arg(long, value_name = "NAME")]
    pub(crate) service_endpoint: Option<String>,

    /// How the log on stderr is written [S3ENGINE_LOG_FORMAT; default: text]
    #[arg(long, value_name = "FORMAT")]
    pub(crate) log: Option<LogFormat>,

    /// What is logged, such as `info` or `s3engine=debug` [S3ENGINE_LOG]
    #[arg(long, value_name = "FILTER")]
    pub(crate) log_filter: Option<String>,
}

/// How requests name the bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Addressing {
    /// http://host/bucket/key
    Path,
    /// http://bucket.host/key
    Virtual,
}

/// Where keys come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum CredentialsChoice {
    /// AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN
    Env,
    /// The environment, the profile, a web identity, the container's agent, the instance's metadata: the first that has some
    Chain,
    /// Nowhere: requests are not signed
    Anonymous,
}

/// Which fabric is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum FabricChoice {
    /// The best one of this host; none found is said
    Auto,
    /// None, by intent
    Off,
    /// One-sided writes on this host: for s3sim
    Loopback,
    /// MinIO's library, libs3rdma
    S3rdma,
    /// NVIDIA's library, libcufile, which is under libcuobjclient
    Cufile,
}

/// Where threads that move bytes run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum PlacementChoice {
    /// Spread over the NUMA nodes, near to the memory of GPUs
    Auto,
    /// Wherever the kernel has them run
    Off,
}

/// What brings bytes from plain sockets into memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum DriverChoice {
    /// io_uring, or an error that says why not
    Uring,
    /// epoll
    Epoll,
}

/// Whether requests in flight follow what the endpoint bears.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum AdaptiveChoice {
    /// Fewer while it refuses them, or while fewer bring as much
    On,
    /// As many as may be, always
    Off,
}

/// What `--rdma` allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum RdmaPolicy {
    /// RDMA or an error that says why not
    Require,
    /// RDMA where possible, else HTTP, with the reason
    Prefer,
    /// HTTP
    Off,
}

impl From<RdmaPolicy> for Policy {
    fn from(policy: RdmaPolicy) -> Self {
        match policy {
            RdmaPolicy::Require => Policy::RequireRdma,
            RdmaPolicy::Prefer => Policy::PreferRdma,
            RdmaPolicy::Off => Policy::Http,
        }
    }
}

/// What is asked of objects' checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ChecksumChoice {
    /// Nothing
    Off,
    /// Where the server offers one that can show something, bytes that do not have it are an error
    WhenOffered,
    /// Bytes that none has shown to be right are an error
    Required,
}

impl From<ChecksumChoice> for ChecksumMode {
    fn from(choice: ChecksumChoice) -> Self {
        match choice {
            ChecksumChoice::Off => ChecksumMode::Off,
            ChecksumChoice::WhenOffered => ChecksumMode::WhenOffered,
            ChecksumChoice::Required => ChecksumMode::Required,
        }
    }
}

/// How the log is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum LogFormat {
    /// Lines for people
    #[default]
    Text,
    /// One JSON object a line
    Json,
}

/// Why the settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    #[error("cannot read the settings in {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("the settings in {} are not read: it is {what} and not a regular file", path.display())]
    NotAFile { path: PathBuf, what: &'static str },
    #[error("the settings in {} are longer than {} bytes", path.display(), file::MOST_BYTES)]
    TooLong { path: PathBuf },
    #[error("{}, line {line}: {problem}", path.display())]
    File {
        path: PathBuf,
        line: usize,
        problem: String,
    },
    #[error(
        "the environment variable {name} is unknown; known are {}",
        known_names()
    )]
    UnknownVariable { name: String },
    #[error("the environment variable {name}: {problem}")]
    Variable { name: &'static str, problem: String },
    #[error("{setting} {value}: {problem}")]
    Size {
        setting: &'static str,
        value: Size,
        problem: String,
    },
    #[error("this process may open too few files (ulimit -n): {0}")]
    FewFiles(io::Error),
    #[error("no endpoint: set AWS_ENDPOINT_URL, or give --endpoint http://host:port")]
    NoEndpoint,
    #[error("no endpoint: set AWS_ENDPOINT_URL, or give --endpoint http://host:port; and {0}")]
    Nowhere(ConnectError),
    #[error(
        "nothing to serve: give --endpoint http://host:port, set AWS_ENDPOINT_URL, or write [endpoint.NAME] into the file of --config"
    )]
    NothingServed,
    #[error("{flag}: {problem}")]
    Flag { flag: &'static str, problem: String },
    #[error("{}: {key}: {problem}", path.display())]
    Key {
        path: PathBuf,
        key: String,
        problem: String,
    },
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    #[error(transparent)]
    Proxy(#[from] ProxyError),
    #[error("--redirect-to: {0}")]
    RedirectTo(#[from] NoHost),
    #[error(
        "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give --credentials chain or --anonymous"
    )]
    NoCredentials,
    #[error("{one} and {other} say different things: give one of them")]
    Contradiction {
        one: &'static str,
        other: &'static str,
    },
    #[error(transparent)]
    Credentials(CredentialsError),
}

impl Settings {
    /// The settings of this process: the flags, over its environment, over the file that either names.
    pub(crate) fn load(flags: Settings, file: Option<&Path>) -> Result<Self, ConfigError> {
        Self::merge(flags, file, std::env::vars_os().collect())
    }

    fn merge(
        flags: Settings,
        file: Option<&Path>,
        environment: Vec<(OsString, OsString)>,
    ) -> Result<Self, ConfigError> {
        let named = lookup(&environment, CONFIG)?;
        let file = file.map(Path::to_owned).or(named.map(PathBuf::from));
        let from_environment = Self::from_environment(&environment)?;
        let from_file = file.map_or(Ok(Self::default()), |path| from_file(&path))?;
        Ok(flags.or(from_environment).or(from_file))
    }

    /// These, and where they say nothing, lower ones.
    pub(crate) fn or(self, lower: Self) -> Self {
        Self {
            endpoint: self.endpoint.or(lower.endpoint),
            region: self.region.or(lower.region),
            addressing: self.addressing.or(lower.addressing),
            ca_bundle: self.ca_bundle.or(lower.ca_bundle),
            client_cert: self.client_cert.or(lower.client_cert),
            client_key: self.client_key.or(lower.client_key),
            proxy: self.proxy.or(lower.proxy),
            redirect_to: self.redirect_to.or(lower.redirect_to),
            source: self.source.or(lower.source),
            interface: self.interface.or(lower.interface),
            anonymous: self.anonymous.or(lower.anonymous),
            credentials: self.credentials.or(lower.credentials),
            profile: self.profile.or(lower.profile),
            fabric: self.fabric.or(lower.fabric),
            rdma_device: self.rdma_device.or(lower.rdma_device),
            s3rdma_library: self.s3rdma_library.or(lower.s3rdma_library),
            cufile_library: self.cufile_library.or(lower.cufile_library),
            loopback_dir: self.loopback_dir.or(lower.loopback_dir),
            rdma: self.rdma.or(lower.rdma),
            checksum: self.checksum.or(lower.checksum),
            pool_size: self.pool_size.or(lower.pool_size),
            cuda_pool_size: self.cuda_pool_size.or(lower.cuda_pool_size),
            slab_size: self.slab_size.or(lower.slab_size),
            engine_threads: self.engine_threads.or(lower.engine_threads),
            placement: self.placement.or(lower.placement),
            driver: self.driver.or(lower.driver),
            requests: self.requests.or(lower.requests),
            adaptive: self.adaptive.or(lower.adaptive),
            connect_timeout: self.connect_timeout.or(lower.connect_timeout),
            first_byte_timeout: self.first_byte_timeout.or(lower.first_byte_timeout),
            stall_timeout: self.stall_timeout.or(lower.stall_timeout),
            stall_bytes: self.stall_bytes.or(lower.stall_bytes),
            attempts: self.attempts.or(lower.attempts),
            retry_budget: self.retry_budget.or(lower.retry_budget),
            rdma_timeout: self.rdma_timeout.or(lower.rdma_timeout),
            deadline: self.deadline.or(lower.deadline),
            service: self.service.or(lower.service),
            service_endpoint: self.service_endpoint.or(lower.service_endpoint),
            log: self.log.or(lower.log),
            log_filter: self.log_filter.or(lower.log_filter),
        }
    }

    /// The endpoint, which must be set; or that of AWS for a region that is.
    pub(crate) fn endpoint(&self) -> Result<Endpoint, ConfigError> {
        match (&self.endpoint, &self.region) {
            (Some(url), _) => self.endpoint_at(url),
            (None, Some(region)) => self.endpoint_at(&Endpoint::of_aws(region)?.to_string()),
            (None, None) => Err(ConfigError::NoEndpoint),
        }
    }

    /// The endpoint at `url`, with region and addressing as set.
    pub(crate) fn endpoint_at(&self, url: &str) -> Result<Endpoint, ConfigError> {
        let mut endpoint = Endpoint::parse(url)?;
        if let Some(region) = &self.region {
            endpoint = endpoint.with_region(region)?;
        }
        if let Some(addressing) = self.addressing {
            endpoint = endpoint.with_style(match addressing {
                Addressing::Path => AddressingStyle::Path,
                Addressing::Virtual => AddressingStyle::VirtualHost,
            })?;
        }
        Ok(endpoint)
    }

    /// Who signs: what is chosen; else the environment's key pair, and where there is none the chain.
    pub(crate) fn credentials(&self) -> Result<Credentials, ConfigError> {
        use CredentialsChoice::{Anonymous, Chain, Env};
        let contradiction = |one, other| Err(ConfigError::Contradiction { one, other });
        match (
            self.anonymous == Some(true),
            self.credentials,
            &self.profile,
        ) {
            (true, Some(Env | Chain), _) => contradiction("--anonymous", "--credentials"),
            (true, _, Some(_)) => contradiction("--anonymous", "--profile"),
            (_, Some(Env | Anonymous), Some(_)) => contradiction("--credentials", "--profile"),
            (true, ..) | (_, Some(Anonymous), None) => Ok(Credentials::anonymous()),
            (_, _, Some(profile)) => Ok(Credentials::chain(Some(profile))),
            (_, Some(Chain), None) => Ok(Credentials::chain(None)),
            (_, chosen, None) => match Credentials::from_env() {
                Ok(credentials) => Ok(credentials),
                Err(CredentialsError::Missing) if chosen.is_none() => Ok(Credentials::chain(None)),
                Err(CredentialsError::Missing) => Err(ConfigError::NoCredentials),
                Err(other) => Err(ConfigError::Credentials(other)),
            },
        }
    }

    /// What is asked of objects' checksums.
    pub(crate) fn checksum(&self) -> ChecksumMode {
        self.checksum.map_or(ChecksumMode::default(), Into::into)
    }

    /// What GETs allow.
    pub(crate) fn policy(&self) -> Policy {
        self.rdma.map_or(Policy::default(), Policy::from)
    }
}

#[cfg(test)]
mod tests;
