//! Where keys come from: a process with an environment of its own asks servers on 127.0.0.1, and signs a HEAD with
//! what they give. Nothing here reaches any other host.
#![allow(missing_docs)]

mod servers;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use s3engine_s3::checksum::Mode;
use s3engine_s3::credentials::Credentials;
use s3engine_s3::endpoint::Endpoint;
use s3engine_s3::http::Client;
use s3engine_s3::network::Network;
use s3engine_s3::options::NO_OPTIONS;
use s3engine_s3::timeouts::Timeouts;
use s3engine_s3::upstream::Upstream;
use sha1::{Digest, Sha1};

use servers::{Asked, agent, instance, nowhere, role, serve};

const PATIENCE: Duration = Duration::from_secs(30);
const STARTED_FOR: &str = "CHAIN_TEST_ENDPOINT";
const PROFILE: &str = "CHAIN_TEST_PROFILE";

/// The other process: one HEAD, signed with what the chain gives.
#[test]
#[ignore = "started by the others, in an environment of its own"]
fn signs_a_head() {
    let Ok(url) = std::env::var(STARTED_FOR) else {
        return;
    };
    let profile = std::env::var(PROFILE).ok();
    let timeouts = Timeouts {
        connect: PATIENCE,
        ..Timeouts::default()
    };
    let upstream = Upstream::new(
        Endpoint::parse(&url).unwrap(),
        Credentials::chain(profile.as_deref()),
        timeouts,
        Network::default(),
    );
    let client = Client::new(upstream.unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let answer = runtime.block_on(async {
        tokio::time::timeout(
            PATIENCE * 2,
            client.head("train", "k", Mode::Off, &NO_OPTIONS),
        )
        .await
        .expect("bounded")
    });
    match answer {
        Ok(_) => println!("RESULT: ok"),
        Err(error) => println!("RESULT: {error}"),
    }
}

/// An environment, a home folder, and an S3 server that takes whatever is signed.
struct World {
    home: tempfile::TempDir,
    variables: Vec<(String, String)>,
    s3: String,
    asked: Receiver<Asked>,
}

impl World {
    fn new() -> World {
        let (s3, asked) = serve(|_, _| ("200 OK", String::new()));
        let world = World {
            home: tempfile::tempdir().unwrap(),
            variables: Vec::new(),
            s3,
            asked,
        };
        fs::create_dir(world.home.path().join(".aws")).unwrap();
        world.set("AWS_EC2_METADATA_SERVICE_ENDPOINT", &nowhere())
    }

    fn set(mut self, name: &str, value: &str) -> World {
        self.variables.retain(|(set, _)| set != name);
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.home.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    fn config(self, text: &str) -> World {
        self.file(".aws/config", text);
        self
    }

    /// What the other process says, all of its log included.
    fn run(&self) -> String {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "signs_a_head", "--ignored", "--nocapture"])
            .env_clear()
            .env("HOME", self.home.path())
            .env("PATH", "/usr/bin:/bin")
            .env(STARTED_FOR, &self.s3)
            .envs(self.variables.iter().cloned())
            .output()
            .unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        text(output.stdout) + &text(output.stderr)
    }

    /// Who signed, and the token that went with it.
    fn signer(&self) -> (String, Option<String>) {
        let said = self.run();
        assert!(said.contains("RESULT: ok"), "{said}");
        let asked = self.asked.recv_timeout(PATIENCE).unwrap();
        let signature = asked.header("authorization").unwrap();
        let (_, rest) = signature.split_once("Credential=").unwrap();
        let (id, _) = rest.split_once('/').unwrap();
        let token = asked.header("x-amz-security-token").map(str::to_owned);
        (id.to_owned(), token)
    }

    fn signed_by(&self, id: &str) {
        let token = format!("{id}-token");
        assert_eq!(self.signer(), (id.to_owned(), Some(token)));
    }

    /// Why there was nobody to sign; nothing was sent then.
    fn error(&self) -> String {
        let said = self.run();
        let (_, rest) = said.split_once("RESULT: ").expect(&said);
        assert!(self.asked.try_recv().is_err());
        assert!(!said.contains("hush"), "{said}");
        rest.lines().next().unwrap().to_owned()
    }
}

fn keys(profile: &str, id: &str) -> String {
    format!(
        "[{profile}]\naws_access_key_id = {id}\naws_secret_access_key = hush\naws_session_token = {id}-token\n"
    )
}

fn script(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn the_environment_comes_before_a_profile_unless_one_is_named() {
    let world = World::new()
        .set("AWS_ACCESS_KEY_ID", "ENVIRONMENT")
        .set("AWS_SECRET_ACCESS_KEY", "hush")
        .set("AWS_SESSION_TOKEN", "ENVIRONMENT-token");
    world.file(
        ".aws/credentials",
        &(keys("default", "USUAL") + &keys("train", "TRAIN")),
    );
    world.signed_by("ENVIRONMENT");
    world.set(PROFILE, "train").signed_by("TRAIN");
}

#[test]
fn a_profile_is_found_by_its_variable_and_files_by_theirs() {
    let world = World::new();
    let elsewhere = world.file(
        "elsewhere",
        &(keys("default", "USUAL") + &keys("train", "TRAIN")),
    );
    let world = world.set("AWS_SHARED_CREDENTIALS_FILE", elsewhere.to_str().unwrap());
    world.signed_by("USUAL");
    world.set("AWS_PROFILE", "train").signed_by("TRAIN");
}

#[test]
fn a_profile_that_is_named_and_not_there_is_an_error_and_nobody_else_signs() {
    let world = World::new()
        .set("AWS_ACCESS_KEY_ID", "ENVIRONMENT")
        .set("AWS_SECRET_ACCESS_KEY", "hush")
        .set(PROFILE, "trian");
    world.file(".aws/credentials", &keys("train", "TRAIN"));
    let error = world.error();
    assert!(error.contains("no credentials: profile trian: "), "{error}");
}

#[test]
fn a_program_gives_keys_or_says_why_not() {
    let world = World::new();
    let program = world.home.path().join("keys");
    let json = "{\"Version\":1,\"AccessKeyId\":\"PROGRAM\",\"SecretAccessKey\":\"hush\",\"SessionToken\":\"PROGRAM-token\"}";
    script(&program, &format!("#!/bin/sh\necho '{json}'\n"));
    let config = format!("[default]\ncredential_process = {}\n", program.display());
    let world = world.config(&config);
    world.signed_by("PROGRAM");

    script(
        &program,
        "#!/bin/sh\necho the vault is sealed >&2\nexit 3\n",
    );
    let error = world.error();
    assert!(
        error.contains("profile default: ") && error.contains("the vault is sealed"),
        "{error}"
    );
    // What is no answer is not repeated.
    script(
        &program,
        "#!/bin/sh\necho '{\"Version\":1,\"SecretAccessKey\":\"hush\"}'\n",
    );
    assert!(world.error().contains("profile default: "));
}

#[test]
fn a_role_is_taken_with_the_keys_of_another_profile() {
    let (sts, asked) = serve(|_, _| role("AssumeRole", "ROLE"));
    let world = World::new().set("AWS_ENDPOINT_URL_STS", &sts).config(
        "[profile train]\nrole_arn = arn:aws:iam::123456789012:role/reader\nsource_profile = base\nregion = eu-west-1\n",
    );
    world.file(".aws/credentials", &keys("base", "BASE"));
    let world = world.set("AWS_PROFILE", "train");
    world.signed_by("ROLE");
    let asked = asked.recv_timeout(PATIENCE).unwrap();
    assert!(asked.body.contains("Action=AssumeRole"), "{}", asked.body);
    let signature = asked.header("authorization").unwrap();
    // The profile's region, and no other.
    assert!(signature.contains("Credential=BASE/"), "{signature}");
    assert!(signature.contains("/eu-west-1/sts/"), "{signature}");
}

#[test]
fn a_web_identity_is_exchanged_for_keys() {
    let (sts, asked) = serve(|_, _| role("AssumeRoleWithWebIdentity", "WEB"));
    let world = World::new();
    let token = world.file("token", "a.web.token");
    let world = world
        .set("AWS_ENDPOINT_URL_STS", &sts)
        .set("AWS_WEB_IDENTITY_TOKEN_FILE", token.to_str().unwrap())
        .set("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/reader");
    world.signed_by("WEB");
    let body = asked.recv_timeout(PATIENCE).unwrap().body;
    assert!(body.contains("WebIdentityToken=a.web.token"), "{body}");
    assert!(body.contains("RoleSessionName=s3engine-"), "{body}");
}

#[test]
fn a_login_of_single_sign_on_gives_keys() {
    let (portal, asked) = serve(|_, _| {
        let body = "{\"roleCredentials\":{\"accessKeyId\":\"LOGIN\",\"secretAccessKey\":\"hush\",\
                    \"sessionToken\":\"LOGIN-token\",\"expiration\":4070908800000}}";
        ("200 OK", body.to_owned())
    });
    let start = "https://d-1.example.com/start";
    let world = World::new().set("AWS_ENDPOINT_URL_SSO", &portal).config(&format!(
        "[default]\nsso_start_url = {start}\nsso_region = us-east-1\nsso_account_id = 123456789012\nsso_role_name = reader\n"
    ));
    let name = format!(".aws/sso/cache/{}.json", hex::encode(Sha1::digest(start)));
    world.file(
        &name,
        "{\"accessToken\":\"the-login\",\"expiresAt\":\"2099-01-01T00:00:00Z\"}",
    );
    world.signed_by("LOGIN");
    let asked = asked.recv_timeout(PATIENCE).unwrap();
    assert!(asked.line.contains("role_name=reader"), "{}", asked.line);
    assert_eq!(asked.header("x-amz-sso_bearer_token"), Some("the-login"));
}

#[test]
fn the_agent_of_a_container_gives_keys_to_those_it_knows() {
    let (url, asked) = serve(|_, asked| match asked.header("authorization") {
        Some("the-pod") => agent("CONTAINER"),
        _ => ("403 Forbidden", String::new()),
    });
    let world = World::new();
    let token = world.file("pod", "the-pod");
    let world = world
        .set(
            "AWS_CONTAINER_CREDENTIALS_FULL_URI",
            &format!("{url}/v1/credentials"),
        )
        .set(
            "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
            token.to_str().unwrap(),
        );
    world.signed_by("CONTAINER");
    let line = asked.recv_timeout(PATIENCE).unwrap().line;
    assert_eq!(line, "GET /v1/credentials HTTP/1.1");
}

#[test]
fn an_instance_gives_keys_by_the_second_version_of_its_metadata() {
    let (url, _) = serve(|_, asked| instance(asked));
    let world = World::new().set("AWS_EC2_METADATA_SERVICE_ENDPOINT", &url);
    world.signed_by("INSTANCE");
}

#[test]
fn r42_metadata_that_is_asked_by_too_many_is_asked_again() {
    let (url, _) = serve(|nth, asked| match nth {
        0..2 => ("429 Too Many Requests", String::new()),
        _ => instance(asked),
    });
    let world = World::new().set("AWS_EC2_METADATA_SERVICE_ENDPOINT", &url);
    world.signed_by("INSTANCE");
}

#[test]
fn without_keys_anywhere_the_error_says_who_was_asked() {
    let error = World::new().error();
    for who in [
        "no credentials: environment: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set; ",
        "; profile default: ",
        "; web identity: AWS_WEB_IDENTITY_TOKEN_FILE is not set; ",
        "; container: no AWS_CONTAINER_CREDENTIALS_ variable is set; ",
        "; instance metadata: ",
    ] {
        assert!(error.contains(who), "{who} in {error}");
    }
    let off = World::new()
        .set("AWS_EC2_METADATA_DISABLED", "true")
        .error();
    assert!(off.contains("AWS_EC2_METADATA_DISABLED"), "{off}");
}

#[test]
fn half_a_key_pair_is_an_error_and_nobody_else_signs() {
    let world = World::new().set("AWS_ACCESS_KEY_ID", "ENVIRONMENT");
    world.file(".aws/credentials", &keys("default", "USUAL"));
    let error = world.error();
    assert!(error.contains("AWS_SECRET_ACCESS_KEY is not"), "{error}");
}

#[test]
fn r54_variables_set_to_nothing_count_as_not_set() {
    let with_nothing = |names: &[&str]| {
        let world = World::new();
        names.iter().fold(world, |world, name| world.set(name, ""))
    };
    let all = [
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_PROFILE",
        "AWS_CONFIG_FILE",
        "AWS_SHARED_CREDENTIALS_FILE",
        "AWS_REGION",
        "AWS_DEFAULT_REGION",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_ROLE_ARN",
        "AWS_ROLE_SESSION_NAME",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
        "AWS_EC2_METADATA_DISABLED",
        "AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE",
    ];
    let world = with_nothing(&all);
    world.file(".aws/credentials", &keys("default", "USUAL"));
    world.signed_by("USUAL");

    // And those after it are asked.
    let (url, _) = serve(|_, asked| instance(asked));
    let world = with_nothing(&all).set("AWS_EC2_METADATA_SERVICE_ENDPOINT", &url);
    world.signed_by("INSTANCE");

    // Of a token, and of where to exchange it.
    let (sts, _) = serve(|_, _| role("AssumeRoleWithWebIdentity", "WEB"));
    let world = with_nothing(&["AWS_ENDPOINT_URL", "AWS_ROLE_SESSION_NAME", "AWS_PROFILE"]);
    let token = world.file("token", "a.web.token");
    let world = world
        .set("AWS_ENDPOINT_URL_STS", &sts)
        .set("AWS_WEB_IDENTITY_TOKEN_FILE", token.to_str().unwrap())
        .set("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/reader");
    world.signed_by("WEB");

    // The provider reads these itself, and they hide each other: that is said.
    let world = with_nothing(&["AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"])
        .set("AWS_CONTAINER_CREDENTIALS_FULL_URI", &nowhere());
    let error = world.error();
    assert!(error.contains("RELATIVE_URI is set to nothing"), "{error}");
}
