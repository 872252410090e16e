use std::fs;

use super::environment::VARIABLES;
use super::*;

fn environment(pairs: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
    pairs.iter().map(|(k, v)| (k.into(), v.into())).collect()
}

fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("settings.toml");
    fs::write(&path, text).unwrap();
    (folder, path)
}

fn load(flags: Settings, pairs: &[(&str, &str)], path: Option<&Path>) -> Result<Settings, String> {
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
        ("S3ENGINE_DRIVER", "iocp", "uring, epoll"),
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
            "path", "true", "env", "off", "epoll", "7", "3MiB", "2s", "json", "10.0.0.1",
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
