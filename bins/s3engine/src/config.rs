//! Settings: flags, over the environment, over a file. One struct for all three.

use std::env::VarError;
use std::ffi::OsString;
use std::fs::{File, FileType};
use std::io::{self, Read};
use std::net::IpAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::{Args, ValueEnum};
use rustix::fs::{Mode, OFlags};
use s3engine::{
    AddressingStyle, ChecksumMode, ConnectError, Credentials, CredentialsError, Endpoint,
    EndpointError, NoHost, Policy, ProxyError,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

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
    #[error("the settings in {} are longer than {MOST_BYTES} bytes", path.display())]
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

/// The variable that names the file of settings.
const CONFIG: &str = "S3ENGINE_CONFIG";
const PREFIX: &str = "S3ENGINE_";
/// The longest file of settings that is read: another file is meant then.
const MOST_BYTES: u64 = 1 << 20;

type Set = fn(&mut Settings, &str) -> Result<(), String>;

/// Variables in the order of their weight: the first one that is set counts.
const VARIABLES: &[(&str, Set)] = &[
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

fn known_names() -> String {
    let ours = VARIABLES.iter().map(|(name, _)| *name);
    let names: Vec<_> = ours
        .filter(|name| name.starts_with(PREFIX))
        .chain([CONFIG])
        .collect();
    names.join(", ")
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

    fn from_environment(environment: &[(OsString, OsString)]) -> Result<Self, ConfigError> {
        let unknown = environment.iter().find_map(|(name, _)| {
            let name = name.to_string_lossy();
            let known = name == CONFIG || VARIABLES.iter().any(|(known, _)| *known == name);
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
            loopback_dir: self.loopback_dir.or(lower.loopback_dir),
            rdma: self.rdma.or(lower.rdma),
            checksum: self.checksum.or(lower.checksum),
            pool_size: self.pool_size.or(lower.pool_size),
            cuda_pool_size: self.cuda_pool_size.or(lower.cuda_pool_size),
            slab_size: self.slab_size.or(lower.slab_size),
            engine_threads: self.engine_threads.or(lower.engine_threads),
            placement: self.placement.or(lower.placement),
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

/// What a TOML file says. An error names the file, the line and the key.
pub(crate) fn from_file<T: DeserializeOwned>(path: &Path) -> Result<T, ConfigError> {
    let text = read(path)?;
    toml::from_str(&text).map_err(|error| {
        let start = error.span().map_or(0, |span| span.start);
        let (line, key) = place(&text, start);
        let message = error.message().replace('\n', " ");
        let problem = match key {
            Some(key) if !message.contains(key) => format!("{key}: {message}"),
            _ => message,
        };
        ConfigError::File {
            path: path.to_owned(),
            line,
            problem,
        }
    })
}

fn read(path: &Path) -> Result<String, ConfigError> {
    let own = |source| ConfigError::Read {
        path: path.to_owned(),
        source,
    };
    let mut file = open(path).map_err(own)?;
    if let Some(what) = other_than_a_file(file.metadata().map_err(own)?.file_type()) {
        let path = path.to_owned();
        return Err(ConfigError::NotAFile { path, what });
    }
    let mut text = String::new();
    let read = Read::by_ref(&mut file)
        .take(MOST_BYTES + 1)
        .read_to_string(&mut text)
        .map_err(own)?;
    if read as u64 > MOST_BYTES {
        let path = path.to_owned();
        return Err(ConfigError::TooLong { path });
    }
    Ok(text)
}

/// Does not wait for anybody, as opening a pipe would for one who writes.
fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?.into())
}

/// What something is that is no regular file.
fn other_than_a_file(kind: FileType) -> Option<&'static str> {
    let what = match kind {
        kind if kind.is_file() => return None,
        kind if kind.is_dir() => "a folder",
        kind if kind.is_fifo() => "a pipe",
        kind if kind.is_char_device() || kind.is_block_device() => "a device",
        _ => "something else",
    };
    Some(what)
}

/// The line at a byte of a TOML text, counted from 1, and the key that it sets.
fn place(text: &str, at: usize) -> (usize, Option<&str>) {
    let before = &text.as_bytes()[..at.min(text.len())];
    let nth = before.iter().filter(|b| **b == b'\n').count();
    let line = text.split('\n').nth(nth).unwrap_or_default();
    (nth + 1, line.split_once('=').map(|(key, _)| key.trim()))
}

/// A variable's value; an empty one is unset.
fn lookup(
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn environment(pairs: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
        pairs.iter().map(|(k, v)| (k.into(), v.into())).collect()
    }

    fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("settings.toml");
        fs::write(&path, text).unwrap();
        (folder, path)
    }

    fn load(
        flags: Settings,
        pairs: &[(&str, &str)],
        path: Option<&Path>,
    ) -> Result<Settings, String> {
        Settings::merge(flags, path, environment(pairs)).map_err(|error| error.to_string())
    }

    #[test]
    fn flags_go_over_the_environment_over_the_file() {
        let (_folder, path) = file(
            "endpoint = \"http://file\"\nregion = \"file\"\nrequests = 3\npool-size = \"64MiB\"\nstall-timeout = \"2s\"",
        );
        let flags = Settings {
            endpoint: Some("http://flag".into()),
            ..Settings::default()
        };
        let pairs = [
            ("AWS_ENDPOINT_URL", "http://environment"),
            ("AWS_REGION", "environment"),
        ];
        let merged = load(flags, &pairs, Some(&path)).unwrap();
        assert_eq!(merged.endpoint.as_deref(), Some("http://flag"));
        assert_eq!(merged.region.as_deref(), Some("environment"));
        assert_eq!(merged.requests, Some(3));
        assert_eq!(merged.pool_size, Some(Size(64 << 20)));
        assert_eq!(merged.stall_timeout, "2s".parse().ok());
    }

    #[test]
    fn the_environment_may_name_the_file_and_a_flag_names_another() {
        let (_a, first) = file("region = \"first\"");
        let (_b, second) = file("region = \"second\"");
        let pairs = [(CONFIG, first.to_str().unwrap())];
        let region = |path| load(Settings::default(), &pairs, path).unwrap().region;
        assert_eq!(region(None).as_deref(), Some("first"));
        assert_eq!(region(Some(&second)).as_deref(), Some("second"));
    }

    #[test]
    fn the_more_exact_variable_counts_and_an_empty_one_is_unset() {
        let pairs = [
            ("AWS_ENDPOINT_URL", "http://general"),
            ("AWS_ENDPOINT_URL_S3", "http://s3"),
            ("AWS_REGION", ""),
            ("AWS_DEFAULT_REGION", "r"),
            ("S3ENGINE_RDMA", "loopback"),
        ];
        let merged = load(Settings::default(), &pairs, None).unwrap();
        assert_eq!(merged.endpoint.as_deref(), Some("http://s3"));
        assert_eq!(merged.region.as_deref(), Some("r"));
        assert_eq!(merged.fabric, Some(FabricChoice::Loopback));
    }

    #[test]
    fn an_unknown_key_is_named_with_its_file_and_line() {
        let (_folder, path) = file("region = \"r\"\nendpont = \"http://x\"\n");
        let error = load(Settings::default(), &[], Some(&path)).unwrap_err();
        assert!(
            error.contains("settings.toml, line 2") && error.contains("endpont"),
            "{error}"
        );
        assert_eq!(error.lines().count(), 1);
    }

    #[test]
    fn an_unknown_variable_is_named_with_the_known_ones() {
        let error = load(Settings::default(), &[("S3ENGINE_POOLSIZE", "1")], None).unwrap_err();
        assert!(
            error.contains("S3ENGINE_POOLSIZE") && error.contains("S3ENGINE_POOL_SIZE"),
            "{error}"
        );
        assert!(load(Settings::default(), &[("S3SIM_X", "1")], None).is_ok());
    }

    #[test]
    fn a_bad_value_is_named_with_its_variable() {
        for (name, value, word) in [
            ("S3ENGINE_RDMA", "on", "loopback"),
            ("S3ENGINE_REQUESTS", "many", "invalid digit"),
            ("S3ENGINE_ADAPTIVE", "maybe", "on, off"),
            ("S3ENGINE_PLACEMENT", "on", "auto, off"),
            ("S3ENGINE_POOL_SIZE", "1MB", "MiB"),
            ("S3ENGINE_DEADLINE", "5", "ms"),
        ] {
            let error = load(Settings::default(), &[(name, value)], None).unwrap_err();
            assert!(error.contains(name) && error.contains(word), "{error}");
        }
    }

    #[test]
    fn every_variable_sets_something() {
        for (name, set) in VARIABLES {
            let fits = [
                "path", "true", "env", "off", "7", "3MiB", "2s", "json", "10.0.0.1",
            ];
            let took = fits.iter().any(|value| {
                let mut settings = Settings::default();
                set(&mut settings, value).is_ok() && settings != Settings::default()
            });
            assert!(took, "{name}");
        }
    }

    #[test]
    fn a_file_that_is_missing_or_of_another_type_is_an_error() {
        assert!(load(Settings::default(), &[], Some(Path::new("/nonexistent"))).is_err());
        for (text, words) in [
            ("requests = \"x\"", ["line 1: requests: ", "\"x\""]),
            ("\nstall-timeout = 2", ["line 2: stall-timeout: ", "2"]),
            ("pool-size = true", ["line 1: pool-size: ", "true"]),
            ("pool-size = -1", ["line 1: pool-size: ", "-1"]),
            ("pool-size = 1.5", ["line 1: pool-size: ", "1.5"]),
            ("slab-size = \"1MB\"", ["line 1: slab-size: ", "1MB"]),
        ] {
            let (_folder, path) = file(text);
            let error = load(Settings::default(), &[], Some(&path)).unwrap_err();
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
            assert_eq!(error.lines().count(), 1);
        }
    }

    #[test]
    fn a_size_may_be_a_number_of_bytes() {
        let (_folder, path) = file("pool-size = 67108864\nslab-size = \"2MiB\"");
        let settings = load(Settings::default(), &[], Some(&path)).unwrap();
        assert_eq!(settings.pool_size, Some(Size(64 << 20)));
        assert_eq!(settings.slab_size, Some(Size(2 << 20)));
    }

    #[test]
    fn a_file_is_read_up_to_a_mebibyte() {
        let comment = |len: usize| format!("#{}\n", "x".repeat(len - 2));
        let (_folder, path) = file(&comment(1 << 20));
        assert!(load(Settings::default(), &[], Some(&path)).is_ok());
        let (_folder, path) = file(&comment((1 << 20) + 1));
        let error = load(Settings::default(), &[], Some(&path)).unwrap_err();
        assert!(error.contains("longer than 1048576 bytes"), "{error}");
        let endless = Path::new("/dev/zero");
        let error = load(Settings::default(), &[], Some(endless)).unwrap_err();
        assert!(error.contains("/dev/zero are not read"), "{error}");
    }

    #[test]
    fn credentials_are_of_one_source() {
        let of = |anonymous, credentials, profile: Option<&str>| {
            let settings = Settings {
                anonymous,
                credentials,
                profile: profile.map(str::to_owned),
                ..Settings::default()
            };
            settings.credentials()
        };
        use CredentialsChoice::{Anonymous, Chain, Env};
        for (anonymous, credentials, profile) in [
            (Some(true), Some(Chain), None),
            (Some(true), None, Some("p")),
            (None, Some(Env), Some("p")),
            (None, Some(Anonymous), Some("p")),
        ] {
            let error = of(anonymous, credentials, profile).unwrap_err().to_string();
            assert!(error.contains("say different things"), "{error}");
        }
        assert!(of(Some(true), None, None).unwrap().is_anonymous());
        assert!(
            of(Some(false), Some(Anonymous), None)
                .unwrap()
                .is_anonymous()
        );
        assert!(of(None, Some(Chain), Some("p")).unwrap().is_fetched());
        assert!(of(None, Some(Chain), None).unwrap().is_fetched());
    }

    #[test]
    fn without_an_endpoint_the_line_says_how_to_set_one() {
        let error = Settings::default().endpoint().unwrap_err().to_string();
        assert!(error.contains("AWS_ENDPOINT_URL") && error.contains("--endpoint"));
    }
}
