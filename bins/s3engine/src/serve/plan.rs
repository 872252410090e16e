//! From flags, environment and file to what is served, to whom, and with how much. Nothing is started here.

use std::collections::HashMap;
use std::env::VarError;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use s3engine::service::{Caps, Rule, Who, default_socket};
use s3engine::{Credentials, Endpoint, ExtraHeaders, Limits, Network, PoolOptions};

use crate::config::{ConfigError, Settings, from_file};
use crate::connect;
use crate::exit::Failure;
use crate::serve::ServeArgs;
use crate::serve::account::Account;
use crate::serve::file::{EndpointTable, File, RuleTable};
use crate::server_metrics::Servers;
use crate::size::Size;

/// How long requests have to end.
const DRAIN: Duration = Duration::from_secs(30);

/// The name of the endpoint where there is only the one of the flags or the environment.
const ONLY: &str = "default";

/// All that is decided before anything starts.
pub(crate) struct Plan {
    pub(crate) socket: PathBuf,
    /// The default one first.
    pub(crate) endpoints: Vec<Served>,
    pub(crate) access: Access,
    /// Headers that clients may add to requests.
    pub(crate) client_headers: Vec<String>,
    pub(crate) caps: Caps,
    pub(crate) pool: PoolOptions,
    pub(crate) limits: Limits,
    pub(crate) settings: Settings,
    pub(crate) metrics: Option<SocketAddr>,
    /// Whose counters are compared with this service's, and how often.
    pub(crate) check_share: Option<(Servers, Duration)>,
    pub(crate) drain: Duration,
    /// Whether a flag or the environment says what is logged, so that the file does not.
    pub(crate) log_is_set: bool,
    /// As it was read.
    pub(crate) file: File,
}

/// An endpoint by its name.
pub(crate) struct Served {
    pub(crate) name: String,
    pub(crate) endpoint: Endpoint,
    pub(crate) credentials: Credentials,
    pub(crate) network: Network,
}

/// Who may attach besides the service's own user, and what they may read.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Access {
    pub(crate) allow: Vec<Who>,
    pub(crate) rules: Vec<Rule>,
}

impl Plan {
    pub(crate) fn new(args: &ServeArgs) -> Result<Self, Failure> {
        if args.settings.service.is_some() || args.settings.service_endpoint.is_some() {
            let text = "--service is for commands that use a host service, and this one is it";
            return Err(Failure::Usage(text.to_owned()));
        }
        let file = args
            .config
            .as_deref()
            .map_or(Ok(File::default()), from_file)?;
        let settings = Settings::load(args.settings.clone(), None)?;
        let endpoints = endpoints(args, &settings, &file)?;
        let names: Vec<_> = endpoints.iter().map(|served| &*served.name).collect();
        let access = Access::of(args, &file, &names)?;
        let log_is_set = settings.log_filter.is_some();
        let settings = settings.or(file.settings());
        let bytes = |size: Option<Size>| size.map(|size| size.0);
        let slab_bytes = bytes(settings.slab_size).unwrap_or(Caps::default().slab_bytes);
        let pool = connect::pool(&settings, slab_bytes, bytes(settings.pool_size))?;
        let limits = Limits {
            requests: settings.requests.unwrap_or(Limits::default().requests),
            bytes: file
                .limits
                .bytes
                .map_or(Limits::default().bytes, |size| size.0),
        };
        Ok(Self {
            socket: args
                .socket
                .clone()
                .or(file.socket.clone())
                .unwrap_or_else(default_socket),
            client_headers: client_headers(args, &file)?,
            caps: caps(&file, pool.slab_bytes),
            metrics: args.metrics.or(file.metrics),
            check_share: check_share(args, &file)?,
            drain: args.drain.or(file.drain).map_or(DRAIN, |drain| drain.0),
            endpoints,
            access,
            pool,
            limits,
            settings,
            log_is_set,
            file,
        })
    }
}

/// The servers whose counters are compared, if that is wanted.
fn check_share(args: &ServeArgs, file: &File) -> Result<Option<(Servers, Duration)>, Failure> {
    let urls = match args.server_metrics.is_empty() {
        true => &file.server_metrics,
        false => &args.server_metrics,
    };
    let servers = Servers::of(urls).map_err(|problem| {
        let flag = "--server-metrics";
        ConfigError::Flag { flag, problem }
    })?;
    match args.check_share.or(file.check_share) {
        None => Ok(None),
        Some(_) if servers.is_empty() => {
            let text = "--check-share: which servers? --server-metrics names them";
            Err(Failure::Usage(text.to_owned()))
        }
        Some(every) => Ok(Some((servers, every.0.max(Duration::from_millis(100))))),
    }
}

/// Those of flags and file together.
fn client_headers(args: &ServeArgs, file: &File) -> Result<Vec<String>, ConfigError> {
    let in_file = InFile(args.config.as_deref());
    let refused = |name: &str| ExtraHeaders::of([(name, "")]).err();
    for name in &args.client_header {
        if let Some(error) = refused(name) {
            let (flag, problem) = ("--client-header", error.to_string());
            return Err(ConfigError::Flag { flag, problem });
        }
    }
    for name in &file.client_headers {
        if let Some(error) = refused(name) {
            return Err(in_file.error("client_headers", error.to_string()));
        }
    }
    Ok([&args.client_header[..], &file.client_headers].concat())
}

fn caps(file: &File, slab_bytes: u64) -> Caps {
    let (caps, default) = (&file.caps, Caps::default());
    let bytes = |of: Option<Size>| of.map(|size| size.0);
    Caps {
        sessions: caps.sessions.unwrap_or(default.sessions),
        sessions_per_uid: caps.sessions_per_uid.unwrap_or(default.sessions_per_uid),
        queues: caps.queues.unwrap_or(default.queues),
        entries: caps.entries.unwrap_or(default.entries),
        queue_bytes: caps.queue_bytes.map_or(default.queue_bytes, |size| size.0),
        queue_bytes_per_uid: bytes(caps.queue_bytes_per_uid).or(default.queue_bytes_per_uid),
        bytes: bytes(caps.bytes).or(default.bytes),
        bytes_per_uid: bytes(caps.bytes_per_uid).or(default.bytes_per_uid),
        requests: caps.requests.or(default.requests),
        requests_per_uid: caps.requests_per_uid.or(default.requests_per_uid),
        in_flight_bytes_per_uid: bytes(caps.in_flight_bytes_per_uid)
            .or(default.in_flight_bytes_per_uid),
        slab_bytes,
    }
}

/// Those of the file; where it has none, that of the flags or the environment.
fn endpoints(args: &ServeArgs, settings: &Settings, file: &File) -> Result<Vec<Served>, Failure> {
    if file.endpoint.is_empty() {
        let endpoint = settings.endpoint().map_err(|error| match error {
            ConfigError::NoEndpoint => ConfigError::NothingServed,
            other => other,
        })?;
        return Ok(vec![Served {
            name: ONLY.to_owned(),
            endpoint,
            credentials: settings.credentials()?,
            network: settings.network()?,
        }]);
    }
    if args.settings.endpoint.is_some() {
        let text = "--endpoint and the endpoints of --config are one too many: give one of them";
        return Err(Failure::Usage(text.to_owned()));
    }
    let in_file = InFile(args.config.as_deref());
    let default = match (&file.default_endpoint, file.endpoint.len()) {
        (Some(name), _) if file.endpoint.contains_key(name) => Some(name.clone()),
        (Some(name), _) => {
            let names: Vec<_> = file.endpoint.keys().map(String::as_str).collect();
            let problem = format!("there is no endpoint {name:?}, only {}", names.join(", "));
            return Err(in_file.error("default_endpoint", problem).into());
        }
        (None, 1) => None,
        (None, _) => {
            let problem =
                "several endpoints are given: which one does a client get that names none?";
            return Err(in_file.error("default_endpoint", problem.to_owned()).into());
        }
    };
    let mut endpoints = Vec::with_capacity(file.endpoint.len());
    let mut chains = HashMap::new();
    for (name, table) in &file.endpoint {
        let key = format!("endpoint.{name}");
        let told = |problem: String| in_file.error(&key, problem);
        endpoints.push(Served {
            name: name.clone(),
            endpoint: endpoint(table, settings).map_err(told)?,
            credentials: credentials(table, settings, &mut chains).map_err(told)?,
            network: network(table, settings).map_err(told)?,
        });
    }
    // Stable: the others stay in the order of their names.
    endpoints.sort_by_key(|served| Some(&served.name) != default.as_ref());
    Ok(endpoints)
}

fn endpoint(table: &EndpointTable, settings: &Settings) -> Result<Endpoint, String> {
    let own = Settings {
        endpoint: table.url.clone(),
        region: table.region.clone().or_else(|| settings.region.clone()),
        addressing: table.addressing.or(settings.addressing),
        ..Settings::default()
    };
    own.endpoint().map_err(|error| match error {
        ConfigError::NoEndpoint => {
            "it has no url; only that of AWS needs none, where region names it".to_owned()
        }
        other => other.to_string(),
    })
}

/// What the table says of it; else what flags and the environment say.
fn network(table: &EndpointTable, settings: &Settings) -> Result<Network, String> {
    let own = Settings {
        ca_bundle: table.ca_bundle.clone(),
        client_cert: table.client_cert.clone(),
        client_key: table.client_key.clone(),
        proxy: table.proxy.clone(),
        redirect_to: table.redirect_to.clone(),
        source: table.source,
        interface: table.interface.clone(),
        ..Settings::default()
    };
    let network = own.or(settings.clone()).network();
    network.map_err(|error| error.to_string())
}

/// Sources of keys by their profile: endpoints that have one in common fetch its keys once.
type Chains = HashMap<Option<String>, Credentials>;

/// From the variables that the table names, or from the source that it names; else from the usual one.
fn credentials(
    table: &EndpointTable,
    settings: &Settings,
    chains: &mut Chains,
) -> Result<Credentials, String> {
    let access = value_of("access_key_env", &table.access_key_env)?;
    let secret = value_of("secret_key_env", &table.secret_key_env)?;
    let token = value_of("session_token_env", &table.session_token_env)?;
    let named = access.is_some() || secret.is_some() || token.is_some();
    let own = Settings {
        anonymous: table.anonymous,
        credentials: table.credentials,
        profile: table.profile.clone(),
        ..Settings::default()
    };
    let says = own != Settings::default();
    if named && (own.credentials.is_some() || own.profile.is_some()) {
        return Err("keys are named, and so is another source of them".to_owned());
    }
    match (access, secret, table.anonymous) {
        (_, _, Some(true)) if named => Err("it is anonymous, and keys are named".to_owned()),
        (Some(access), Some(secret), _) => {
            let refused = |_| "a key holds a character that cannot be sent, such as a line end";
            Ok(Credentials::new(access, secret, token).map_err(refused)?)
        }
        _ if named => Err("access_key_env and secret_key_env go together".to_owned()),
        _ if says => of_source(&own, chains),
        _ => of_source(settings, chains),
    }
}

fn of_source(settings: &Settings, chains: &mut Chains) -> Result<Credentials, String> {
    let credentials = settings.credentials().map_err(|error| error.to_string())?;
    if !credentials.is_fetched() {
        return Ok(credentials);
    }
    let one = chains.entry(settings.profile.clone());
    Ok(one.or_insert(credentials).clone())
}

/// The value of the variable that a key names, if it names one. It is never shown.
fn value_of(key: &str, name: &Option<String>) -> Result<Option<String>, String> {
    let Some(name) = name else { return Ok(None) };
    let why = match std::env::var(name) {
        Ok(value) if !value.is_empty() => return Ok(Some(value)),
        Ok(_) | Err(VarError::NotPresent) => "is not set",
        Err(VarError::NotUnicode(_)) => "is no text",
    };
    Err(format!("{key}: the environment variable {name:?} {why}"))
}

impl Access {
    /// What flags and file say together, of the endpoints of these names.
    pub(crate) fn of(args: &ServeArgs, file: &File, names: &[&str]) -> Result<Self, ConfigError> {
        let in_file = InFile(args.config.as_deref());
        let mut allow = Vec::new();
        for (flag, key, accounts) in [
            (
                "--allow-uid",
                "allow_uid",
                (&args.allow_uid, &file.allow_uid),
            ),
            (
                "--allow-gid",
                "allow_gid",
                (&args.allow_gid, &file.allow_gid),
            ),
        ] {
            let who = |account: &Account| match key {
                "allow_uid" => account.uid().map(Who::Uid),
                _ => account.gid().map(Who::Gid),
            };
            for account in accounts.0 {
                let told = |problem| ConfigError::Flag { flag, problem };
                allow.push(who(account).map_err(told)?);
            }
            for account in accounts.1 {
                allow.push(who(account).map_err(|problem| in_file.error(key, problem))?);
            }
        }
        let mut rules = Vec::with_capacity(file.rule.len());
        for (nth, table) in file.rule.iter().enumerate() {
            let told = |problem| in_file.error(&format!("rule {}", nth + 1), problem);
            rules.push(rule(table, names).map_err(told)?);
        }
        Ok(Self { allow, rules })
    }
}

fn rule(table: &RuleTable, names: &[&str]) -> Result<Rule, String> {
    let who = match (&table.uid, &table.gid) {
        (Some(user), None) => Who::Uid(user.uid()?),
        (None, Some(group)) => Who::Gid(group.gid()?),
        _ => return Err("it is for a uid or for a gid: give one of the two".to_owned()),
    };
    if let Some(endpoint) = &table.endpoint
        && !names.contains(&&**endpoint)
    {
        let names = names.join(", ");
        return Err(format!("there is no endpoint {endpoint:?}, only {names}"));
    }
    if table.bucket.is_empty() {
        return Err("its bucket has no name".to_owned());
    }
    Ok(Rule {
        who,
        endpoint: table.endpoint.clone(),
        bucket: table.bucket.clone(),
        prefix: table.prefix.clone(),
    })
}

/// Where the keys of errors stand.
struct InFile<'a>(Option<&'a Path>);

impl InFile<'_> {
    fn error(&self, key: &str, problem: String) -> ConfigError {
        ConfigError::Key {
            path: self.0.unwrap_or(Path::new("--config")).to_owned(),
            key: key.to_owned(),
            problem,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    fn args(flags: &[&str]) -> ServeArgs {
        let all = ["s3engine", "serve", "--config", "x.toml"];
        match Cli::try_parse_from(all.iter().chain(flags))
            .unwrap()
            .command
        {
            Command::Serve(args) => *args,
            other => panic!("{other:?}"),
        }
    }

    fn file(text: &str) -> File {
        toml::from_str(text).unwrap()
    }

    fn access(text: &str) -> Result<Access, String> {
        let args = args(&["--allow-uid", "7", "--allow-gid", "root"]);
        let access = Access::of(&args, &file(text), &["main", "other"]);
        access.map_err(|error| error.to_string())
    }

    #[test]
    fn flags_and_file_admit_together() {
        let access = access("allow_uid = [\"root\"]\nallow_gid = [8]").unwrap();
        let expected = [Who::Uid(7), Who::Uid(0), Who::Gid(0), Who::Gid(8)];
        assert_eq!(access.allow, expected);
        assert!(access.rules.is_empty());
    }

    #[test]
    fn a_rule_that_cannot_be_meant_is_named_with_its_place() {
        for (rule, word) in [
            ("bucket = \"b\"", "uid or for a gid"),
            ("uid = 1\ngid = 1\nbucket = \"b\"", "uid or for a gid"),
            ("uid = \"no-such\"\nbucket = \"b\"", "no-such"),
            ("uid = 1\nbucket = \"\"", "no name"),
            (
                "uid = 1\nbucket = \"b\"\nendpoint = \"x\"",
                "only main, other",
            ),
        ] {
            let good = "[[rule]]\nuid = 1\nbucket = \"b\"\nendpoint = \"main\"";
            let error = access(&format!("{good}\n[[rule]]\n{rule}")).unwrap_err();
            assert!(error.starts_with("x.toml: rule 2: "), "{error}");
            assert!(error.contains(word), "{error}");
        }
        let error = access("allow_gid = [\"no-such\"]").unwrap_err();
        assert!(error.starts_with("x.toml: allow_gid: "), "{error}");
    }

    fn names(text: &str) -> Result<Vec<String>, String> {
        let settings = Settings {
            anonymous: Some(true),
            ..Settings::default()
        };
        let endpoints = endpoints(&args(&[]), &settings, &file(text));
        let named = |served: Vec<Served>| served.into_iter().map(|one| one.name).collect();
        endpoints.map(named).map_err(|error| error.to_string())
    }

    const TWO: &str = "[endpoint.a]\nurl = \"http://a\"\n[endpoint.b]\nurl = \"http://b\"";

    #[test]
    fn the_default_endpoint_comes_first_and_must_be_told_where_there_are_several() {
        assert_eq!(names("[endpoint.a]\nurl = \"http://a\"").unwrap(), ["a"]);
        let chosen = names(&format!("default_endpoint = \"b\"\n{TWO}"));
        assert_eq!(chosen.unwrap(), ["b", "a"]);
        let error = names(TWO).unwrap_err();
        assert!(
            error.starts_with("x.toml: default_endpoint: several"),
            "{error}"
        );
        let error = names(&format!("default_endpoint = \"c\"\n{TWO}")).unwrap_err();
        assert!(error.contains("\"c\", only a, b"), "{error}");
        let error = names("").unwrap_err();
        assert!(error.contains("nothing to serve"), "{error}");
    }

    #[test]
    fn an_endpoint_that_cannot_be_is_named() {
        for (table, word) in [
            ("url = \"host\"", "host"),
            (
                "url = \"http://h\"\nanonymous = true\naccess_key_env = \"PATH\"",
                "anonymous",
            ),
            (
                "url = \"http://h\"\naccess_key_env = \"PATH\"",
                "go together",
            ),
            (
                "url = \"http://h\"\nanonymous = true\nprofile = \"p\"",
                "say different things",
            ),
            (
                "url = \"http://h\"\naccess_key_env = \"PATH\"\nsecret_key_env = \"PATH\"\nprofile = \"p\"",
                "another source",
            ),
            (
                "url = \"http://h\"\naccess_key_env = \"NO_SUCH_VARIABLE\"",
                "NO_SUCH_VARIABLE",
            ),
        ] {
            let error = names(&format!("[endpoint.a]\n{table}")).unwrap_err();
            assert!(error.starts_with("x.toml: endpoint.a: "), "{error}");
            assert!(error.contains(word), "{error}");
            let value = std::env::var("PATH").unwrap();
            assert!(!error.contains(&value), "{error}");
        }
    }

    #[test]
    fn r42_endpoints_of_one_profile_fetch_its_keys_once() {
        let table = |profile: &str| {
            let text = format!("url = \"http://h\"\nprofile = \"{profile}\"");
            toml::from_str::<EndpointTable>(&text).unwrap()
        };
        let mut chains = Chains::new();
        for (profile, sources) in [("a", 1), ("b", 2), ("a", 2)] {
            let settings = Settings::default();
            let credentials = credentials(&table(profile), &settings, &mut chains).unwrap();
            assert!(credentials.is_fetched());
            assert_eq!(chains.len(), sources);
        }
    }
}
