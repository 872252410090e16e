//! Real files of a server that shares no code with this project and checks every signature: s3s with s3s-fs.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path as FilePath, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use hyper_util::rt::TokioIo;
use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};
use s3engine::{
    Engine, ErrorKind, Flags, Get, ListQuery, Path, Policy, PoolOptions, Rdma, Reason, Timeouts,
};
use s3engine_tests::{
    assert_invariants, block_on, credentials, drain, keys_and_prefixes, loopback, quick_builder,
};
use s3s::access::{S3Access, S3AccessContext};
use s3s::auth::SimpleAuth;
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::{S3Result, s3_error};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

const BUCKET: &str = "files";
const ACCESS_KEY: &str = "reader";
const SECRET_KEY: &str = "the reader's secret";

/// What happens when a request for an object is let in: told the request's number and its key.
type OnRequest = Box<dyn FnMut(usize, &str) + Send>;

/// Lets signed requests in, and sees the keys as the server understood them.
struct Gate {
    keys: Arc<Mutex<Vec<String>>>,
    on_request: Mutex<OnRequest>,
}

#[async_trait::async_trait]
impl S3Access for Gate {
    async fn check(&self, context: &mut S3AccessContext<'_>) -> S3Result<()> {
        if context.credentials().is_none() {
            return Err(s3_error!(AccessDenied, "Signature is required"));
        }
        if let Some((_, key)) = context.s3_path().as_object() {
            let mut keys = self.keys.lock().unwrap();
            (self.on_request.lock().unwrap())(keys.len(), key);
            keys.push(key.to_owned());
        }
        Ok(())
    }
}

/// The server, on a thread of its own.
pub struct Files {
    url: String,
    keys: Arc<Mutex<Vec<String>>>,
    folder: TempDir,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Files {
    pub fn start() -> Self {
        Self::watched(|_| Box::new(|_, _| {}))
    }

    fn watched(on_request: impl FnOnce(&FilePath) -> OnRequest) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join(BUCKET)).unwrap();
        let keys = Arc::new(Mutex::new(Vec::new()));
        let gate = Gate {
            keys: Arc::clone(&keys),
            on_request: Mutex::new(on_request(&folder.path().join(BUCKET))),
        };
        let mut builder = S3ServiceBuilder::new(s3s_fs::FileSystem::new(folder.path()).unwrap());
        builder.set_auth(SimpleAuth::from_single(ACCESS_KEY, SECRET_KEY));
        builder.set_access(gate);
        let service = builder.build();
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (stop, stopped) = oneshot::channel();
        let thread = thread::spawn(move || serve(listener, service, stopped));
        Self {
            url,
            keys,
            folder,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    fn path(&self, key: &str) -> PathBuf {
        self.folder.path().join(BUCKET).join(key)
    }

    fn put(&self, key: &str, bytes: &[u8]) {
        let path = self.path(key);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    fn engine(&self) -> Engine {
        self.engine_with(SECRET_KEY, 1 << 20)
    }

    fn engine_with(&self, secret: &str, part_size: u64) -> Engine {
        let pool = PoolOptions {
            slab_bytes: 32 << 20,
            max_bytes: Some(96 << 20),
            ..PoolOptions::default()
        };
        quick_builder(&self.url)
            .credentials(credentials(ACCESS_KEY, secret))
            .pool(pool)
            .timeouts(Timeouts::default())
            .rdma(Rdma::Auto)
            .part_sizes(part_size, part_size)
            .policy(Policy::Http)
            .build()
            .unwrap()
    }
}

impl super::Server for Files {
    fn name(&self) -> &str {
        "s3s-fs"
    }

    fn url(&self) -> String {
        self.url.clone()
    }

    fn key_pair(&self) -> (&str, &str) {
        (ACCESS_KEY, SECRET_KEY)
    }

    fn bucket(&self) -> &str {
        BUCKET
    }

    fn keep(&self, key: &str, bytes: &[u8]) {
        self.put(key, bytes);
    }

    fn refuses(&self, key: &str) -> Option<&'static str> {
        if key.split('/').any(|part| matches!(part, "" | "." | "..")) {
            return Some("no file is called so");
        }
        // It says that it encodes names in lists, and does not.
        key.contains(['+', '%'])
            .then_some("it would be listed as another")
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

fn serve(listener: std::net::TcpListener, service: S3Service, stopped: oneshot::Receiver<()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let listener = TcpListener::from_std(listener).unwrap();
        let accept = async {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let connection = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service.clone());
                // A client that goes away is no failure of the server.
                tokio::spawn(async move { drop(connection.await) });
            }
        };
        tokio::select! {
            () = accept => {}
            _ = stopped => {}
        }
    });
    runtime.shutdown_background();
}

fn random_bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    StdRng::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}

/// One GET by HTTP; its bytes.
fn fetch(engine: &Engine, get: Get) -> Vec<u8> {
    let completion = block_on(engine.get(get));
    assert_invariants(&completion, Policy::Http);
    assert!(completion.is_ok(), "{}", completion.error().unwrap());
    assert_eq!(completion.flags() - Flags::PARTIAL, Flags::HTTP_INTENDED);
    completion.data().unwrap().to_vec()
}

fn fail(engine: &Engine, get: Get) -> s3engine::Error {
    let completion = block_on(engine.get(get));
    assert_invariants(&completion, Policy::Http);
    assert_eq!(completion.path(), Path::None);
    completion.error().expect("a failure").clone()
}

/// The Rust sources and manifests of this project, by their path.
fn sources(folder: &FilePath, prefix: &str, found: &mut Vec<(String, PathBuf)>) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        let key = format!("{prefix}{name}");
        if entry.file_type().unwrap().is_dir() {
            if name != "target" && !name.starts_with('.') {
                sources(&entry.path(), &format!("{key}/"), found);
            }
        } else if name.ends_with(".rs") || name.ends_with(".toml") {
            found.push((key, entry.path()));
        }
    }
}

#[test]
fn every_source_file_of_this_project_comes_through_a_queue_byte_for_byte() {
    let server = Files::start();
    let mut files = Vec::new();
    let root = FilePath::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    sources(root, "project/", &mut files);
    assert!(files.len() > 50, "only {} files", files.len());
    for (key, path) in &files {
        server.put(key, &fs::read(path).unwrap());
    }
    let engine = server.engine();
    let mut queue = engine.queue(Default::default());
    for (nth, (key, _)) in files.iter().enumerate() {
        let get = Get::new(BUCKET, &**key).user_data(nth as u64);
        queue.push(get).unwrap();
    }
    queue.submit();
    let completions = drain(&mut queue);
    assert_eq!(completions.len(), files.len());
    for completion in completions {
        assert_invariants(&completion, Policy::Http);
        let (key, _) = &files[completion.user_data() as usize];
        assert!(completion.is_ok(), "{}", completion.error().unwrap());
        let on_disk = fs::read(server.path(key)).unwrap();
        assert!(completion.data().unwrap_or_default() == on_disk, "{key}");
    }
}

#[test]
fn an_object_of_many_parts_is_whole() {
    let server = Files::start();
    let bytes = random_bytes((20 << 20) + 12_345, 1);
    server.put("large.bin", &bytes);
    let engine = server.engine();
    assert!(fetch(&engine, Get::new(BUCKET, "large.bin")) == bytes);
    let requests = server.keys.lock().unwrap().len();
    assert_eq!(requests, 1 + 21, "a HEAD, and a GET for each part");
    let part = fetch(
        &engine,
        Get::new(BUCKET, "large.bin").range(7_654_321, 5_000_000),
    );
    assert!(part == bytes[7_654_321..12_654_321]);
}

#[test]
fn ranges_are_exact_and_end_with_the_object() {
    let server = Files::start();
    let bytes = random_bytes(2_500_000, 2);
    server.put("ranged.bin", &bytes);
    let engine = server.engine();
    for (offset, len) in [
        (0, 1),
        (0, 2_500_000),
        (1, 2_499_999),
        (2_499_999, 1),
        (4095, 4098),
        (1_048_575, 2),
        (1_000_000, 1_048_577),
    ] {
        let get = Get::new(BUCKET, "ranged.bin").range(offset, len);
        let wanted = &bytes[offset as usize..(offset + len) as usize];
        assert!(fetch(&engine, get) == wanted, "{len} bytes at {offset}");
    }
    for offset in [2_499_000, 1_000_000] {
        let get = Get::new(BUCKET, "ranged.bin").range(offset, 10_000_000);
        let completion = block_on(engine.get(get));
        assert_invariants(&completion, Policy::Http);
        assert!(completion.flags().contains(Flags::PARTIAL));
        assert!(completion.data().unwrap() == &bytes[offset as usize..]);
    }
    let beyond = fail(&engine, Get::new(BUCKET, "ranged.bin").range(2_500_000, 10));
    assert_eq!(beyond.status(), Some(416));
    assert!(matches!(
        beyond.kind(),
        ErrorKind::RangeNotSatisfiable { .. }
    ));
}

#[test]
fn an_empty_object_is_empty_and_no_error() {
    let server = Files::start();
    server.put("empty", b"");
    let engine = server.engine();
    let completion = block_on(engine.get(Get::new(BUCKET, "empty")));
    assert_invariants(&completion, Policy::Http);
    assert!(completion.is_ok() && completion.bytes() == 0);
    for room in [1 << 10, 4 << 20] {
        let buffer = engine
            .pool()
            .try_alloc(room, s3engine::Memory::Host)
            .unwrap();
        let completion = block_on(engine.get(Get::new(BUCKET, "empty").into(buffer)));
        assert_invariants(&completion, Policy::Http);
        assert!(
            completion.is_ok() && completion.bytes() == 0,
            "{completion:?}"
        );
    }
}

#[test]
fn odd_keys_reach_the_server_as_they_are() {
    let server = Files::start();
    let engine = server.engine();
    let keys = [
        "a space",
        " space at both ends ",
        "plus+plus",
        "100%",
        "%41%2f%20",
        "grüße/ümlaut",
        "日本語/テスト.bin",
        "🦀/crab 🦀",
        "e\u{301} is not é",
        "query?a=b&c=d",
        "hash#fragment",
        "semi;colon,comma:colon=equals",
        "quotes'\"`<>&",
        "back\\slash|pipe^caret{brace}[bracket]",
        "star*(paren)!$@~-_.",
        "tab\tand newline\n",
        "deep/er/and/deeper/still",
        "..dots../...",
        ".hidden",
    ];
    for (nth, key) in keys.into_iter().enumerate() {
        let bytes = random_bytes(1000 + nth, nth as u64);
        server.put(key, &bytes);
        assert!(fetch(&engine, Get::new(BUCKET, key)) == bytes, "{key:?}");
        let info = block_on(engine.head(BUCKET, key)).unwrap();
        assert_eq!(info.size, Some(bytes.len() as u64), "{key:?}");
        let seen = server.keys.lock().unwrap();
        assert_eq!(seen.last().map(String::as_str), Some(key));
    }
}

#[test]
fn empty_components_of_a_key_are_kept() {
    let server = Files::start();
    let engine = server.engine();
    // A file system has no empty names: this server keeps `a//b` where it keeps `a/b`. That the key was
    // signed, sent and understood with both slashes is seen at its gate.
    server.put("a/b", b"some bytes");
    server.put("c/d/e", b"other bytes");
    for (key, bytes) in [
        ("a/b", &b"some bytes"[..]),
        ("a//b", b"some bytes"),
        ("c///d//e", b"other bytes"),
    ] {
        assert!(fetch(&engine, Get::new(BUCKET, key)) == bytes, "{key}");
        let seen = server.keys.lock().unwrap();
        assert_eq!(seen.last().map(String::as_str), Some(key));
    }
}

#[test]
fn names_are_listed_in_pages_by_prefix_and_delimiter() {
    let server = Files::start();
    let mut files = Vec::new();
    let root = FilePath::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    sources(root, "project/", &mut files);
    for (key, path) in &files {
        server.put(key, &fs::read(path).unwrap());
    }
    // This server says that it encodes names and does not: those with `+` or `%` would be others.
    server.put("odd/<&> 'ü' 日本 🦀.bin", b"odd");
    let engine = server.engine();
    let of = |prefix: &str, delimiter: Option<&str>, max_keys| {
        let query = ListQuery {
            prefix: prefix.into(),
            delimiter: delimiter.map(str::to_owned),
            max_keys,
            ..ListQuery::default()
        };
        keys_and_prefixes(&engine, BUCKET, query)
    };
    let mut expected: Vec<_> = files.into_iter().map(|(key, _)| key).collect();
    expected.sort();
    for max_keys in [None, Some(1000), Some(17)] {
        assert_eq!(of("project/", None, max_keys).0, expected);
    }
    let odd = "odd/<&> 'ü' 日本 🦀.bin".to_owned();
    assert_eq!(of("odd/", Some("/"), None), (vec![odd], vec![]));
    let top = vec!["odd/".to_owned(), "project/".to_owned()];
    assert_eq!(of("", Some("/"), Some(1)), (vec![], top));
    assert_eq!(of("nothing", None, None), (vec![], vec![]));
    let mut lister = engine.list(BUCKET, ListQuery::default());
    for object in block_on(lister.next()).unwrap().unwrap().objects {
        let size = fs::metadata(server.path(&object.key)).unwrap().len();
        assert_eq!(object.size, size, "{}", object.key);
    }
    let missing = block_on(engine.list("no-such-bucket", ListQuery::default()).next());
    assert_eq!(missing.unwrap_err().code(), Some("NoSuchBucket"));
    let wrong = server.engine_with("another secret", 1 << 20);
    let refused = block_on(wrong.list(BUCKET, ListQuery::default()).next()).unwrap_err();
    assert_eq!(refused.code(), Some("SignatureDoesNotMatch"));
}

#[test]
fn a_missing_object_and_a_missing_bucket_are_not_found() {
    let server = Files::start();
    let engine = server.engine();
    let buffer = || {
        engine
            .pool()
            .try_alloc(4096, s3engine::Memory::Host)
            .unwrap()
    };
    let missing = fail(&engine, Get::new(BUCKET, "nothing").into(buffer()));
    assert_eq!(
        (missing.status(), missing.code()),
        (Some(404), Some("NoSuchKey"))
    );
    assert_eq!(missing.reason(), Reason::HttpError);
    let line = missing.to_string();
    assert!(
        line.contains("404 NoSuchKey") && line.contains("s3://files/nothing"),
        "{line}"
    );
    assert!(line.contains(&server.url) && !line.contains('\n'), "{line}");
    // By HEAD, whose answer has no body to name the code.
    assert!(fail(&engine, Get::new(BUCKET, "nothing")).is_not_found());
    assert!(
        block_on(engine.head("no-such-bucket", "x"))
            .unwrap_err()
            .is_not_found()
    );
    let missing = fail(&engine, Get::new("no-such-bucket", "x").into(buffer()));
    assert!(missing.is_not_found());
}

#[test]
fn a_wrong_secret_and_no_signature_are_refused() {
    let server = Files::start();
    server.put("object", b"secret");
    let engine = server.engine_with("another secret", 1 << 20);
    let refused = fail(&engine, Get::new(BUCKET, "object").range(0, 6));
    assert_eq!(
        (refused.status(), refused.code()),
        (Some(403), Some("SignatureDoesNotMatch"))
    );
    assert!(!format!("{refused} {refused:?}").contains("another secret"));
    let engine = quick_builder(&server.url)
        .policy(Policy::Http)
        .build()
        .unwrap();
    let refused = fail(&engine, Get::new(BUCKET, "object").range(0, 6));
    assert_eq!(
        (refused.status(), refused.code()),
        (Some(403), Some("AccessDenied"))
    );
    assert!(server.keys.lock().unwrap().is_empty());
}

#[test]
fn an_object_larger_than_the_buffer_is_refused_with_its_size() {
    let server = Files::start();
    server.put("object", &random_bytes(100_000, 3));
    server.put("parts", &random_bytes(3_000_000, 3));
    let engine = server.engine();
    for (key, needed, have) in [("object", 100_000, 99_999), ("parts", 3_000_000, 2_900_000)] {
        let buffer = engine
            .pool()
            .try_alloc(have, s3engine::Memory::Host)
            .unwrap();
        let refused = fail(&engine, Get::new(BUCKET, key).into(buffer));
        assert_eq!(*refused.kind(), ErrorKind::BufferTooSmall { needed, have });
    }
}

#[test]
fn an_object_that_changes_between_its_parts_is_never_mixed() {
    let after = random_bytes(3_000_000, 5);
    let server = Files::watched(|bucket| {
        let path = bucket.join("object");
        // HEAD is request 0.
        Box::new(move |nth, _| {
            if nth == 2 {
                fs::write(&path, random_bytes(3_000_000, 5)).unwrap();
            }
        })
    });
    server.put("object", &random_bytes(3_000_000, 4));
    let engine = server.engine();
    let changed = fail(&engine, Get::new(BUCKET, "object"));
    assert_eq!(changed.reason(), Reason::Modified, "{changed}");
    assert!(fetch(&engine, Get::new(BUCKET, "object")) == after);
}

#[test]
fn a_server_that_knows_no_rdma_is_a_fallback_that_says_so() {
    let server = Files::start();
    let bytes = random_bytes(3_000_000, 6);
    server.put("object", &bytes);
    let folder = tempfile::tempdir().unwrap();
    let engine = quick_builder(&server.url)
        .credentials(credentials(ACCESS_KEY, SECRET_KEY))
        .rdma(Rdma::Loopback(loopback(&folder.path().join("loopback"))))
        .part_sizes(1 << 20, 1 << 20)
        .build()
        .unwrap();
    let completion = block_on(engine.get(Get::new(BUCKET, "object")));
    assert_invariants(&completion, Policy::PreferRdma);
    assert_eq!(
        (completion.path(), completion.reason()),
        (Path::Http, Reason::ReplyMissing)
    );
    assert!(completion.data().unwrap() == bytes);
    assert_eq!(
        server.keys.lock().unwrap().len(),
        1 + 3,
        "the body is not fetched again"
    );
    let get = Get::new(BUCKET, "object").policy(Policy::RequireRdma);
    let refused = block_on(engine.get(get));
    assert_invariants(&refused, Policy::RequireRdma);
    assert_eq!(refused.reason(), Reason::ReplyMissing);
}
