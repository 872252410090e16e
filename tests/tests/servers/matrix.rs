//! Every verb, of every kind of key, to every server, in this process and through a host service.

use std::collections::BTreeSet;

use s3engine::service::{Caps, Service, ServiceOptions};
use s3engine::{ConnectOptions, Engine, ListQuery, Policy};
use s3engine_tests::{ODD_KEYS, Thing, Verb, block_on, keys_and_prefixes};

use super::{Server, all};

/// Those, and one that is as long as S3 has them.
pub fn keys() -> Vec<String> {
    let long = format!("{}64-x", "long/".repeat(204));
    let odd = ODD_KEYS.into_iter().map(str::to_owned);
    odd.chain([long]).collect()
}

/// Names of a list to page through.
pub fn numbered() -> Vec<String> {
    (0..25)
        .map(|nth| format!("pages/{}/64-{nth:03}", nth % 3))
        .collect()
}

/// Runs a test with an engine over the server, and with a client of a host service over another one.
fn on_both_hosts(server: &dyn Server, test: impl Fn(&Engine, &str)) {
    test(
        &server.engine_in_parts(),
        &format!("{}, embedded", server.name()),
    );
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s3engine").join("s3engine.sock");
    let service = Service::start(ServiceOptions {
        socket: socket.clone(),
        endpoints: vec![("main".to_owned(), server.engine_in_parts())],
        allow: Vec::new(),
        rules: Vec::new(),
        client_headers: Vec::new(),
        caps: Caps {
            slab_bytes: 4 << 20,
            ..Caps::default()
        },
    });
    let service = service.unwrap();
    let client = Engine::connect(&socket, ConnectOptions::default()).unwrap();
    test(&client, &format!("{}, served", server.name()));
    drop((client, service));
}

#[test]
fn r44_every_verb_finds_every_key_on_every_server() {
    for server in all() {
        let things: Vec<_> = keys()
            .into_iter()
            .filter(|key| match server.refuses(key) {
                Some(why) => {
                    println!("{}: {key:?} is left out: {why}", server.name());
                    false
                }
                None => true,
            })
            .map(|key| Thing {
                bucket: server.bucket().to_owned(),
                ..Thing::synthetic(&key, 0)
            })
            .collect();
        for thing in &things {
            server.keep(&thing.key, &thing.bytes);
        }
        on_both_hosts(&*server, |engine, host| {
            for thing in &things {
                for verb in Verb::ALL {
                    // Of a range of an object without bytes not every server says that there are none.
                    let is_range = matches!(verb, Verb::Range | Verb::Piece | Verb::Reaching);
                    if thing.bytes.is_empty() && is_range {
                        continue;
                    }
                    let answer = verb.ask(engine, Policy::Http, thing);
                    let key = &thing.key;
                    answer.unwrap_or_else(|error| panic!("{host}: {verb:?} of {key:?}: {error}"));
                }
            }
        });
    }
}

#[test]
fn lists_are_paged_and_grouped_by_every_server() {
    for server in all() {
        let names = numbered();
        for name in &names {
            server.keep(name, Thing::synthetic(name, 0).bytes.as_slice());
        }
        on_both_hosts(&*server, |engine, host| {
            let list = |query| keys_and_prefixes(engine, server.bucket(), query);
            for max_keys in [1, 7, 25, 1000] {
                let query = ListQuery {
                    prefix: "pages/".into(),
                    max_keys: Some(max_keys),
                    ..ListQuery::default()
                };
                let (found, prefixes) = list(query);
                let all: BTreeSet<_> = found.iter().collect();
                assert!(found.is_sorted() && all.len() == 25, "{host}: {found:?}");
                assert!(all.into_iter().eq(names.iter().collect::<BTreeSet<_>>()));
                assert!(prefixes.is_empty(), "{host}: {prefixes:?}");
            }
            let query = ListQuery {
                prefix: "pages/".into(),
                delimiter: Some("/".into()),
                ..ListQuery::default()
            };
            let groups = ["pages/0/", "pages/1/", "pages/2/"].map(str::to_owned);
            assert_eq!(list(query), (vec![], groups.to_vec()), "{host}");
            let query = ListQuery {
                start_after: Some("pages/2/64-020".into()),
                prefix: "pages/".into(),
                ..ListQuery::default()
            };
            assert_eq!(list(query).0, ["pages/2/64-023"], "{host}");
        });
    }
}

#[test]
fn what_is_not_there_is_not_found_on_every_server() {
    for server in all() {
        on_both_hosts(&*server, |engine, host| {
            let missing = Thing::new(server.bucket(), "nowhere/x", vec![0; 64]);
            for verb in Verb::GETS.into_iter().chain([Verb::Head]) {
                let error = verb.ask(engine, Policy::Http, &missing).expect_err(host);
                assert!(error.is_not_found(), "{host}: {verb:?}: {error}");
            }
            let nowhere = Thing::new("no-such-bucket", "64-x", vec![]);
            let error = Verb::Head
                .ask(engine, Policy::Http, &nowhere)
                .expect_err(host);
            assert!(error.is_not_found(), "{host}: {error}");
            let listed = block_on(engine.list("no-such-bucket", ListQuery::default()).next());
            assert_eq!(listed.unwrap_err().code(), Some("NoSuchBucket"), "{host}");
        });
    }
}
