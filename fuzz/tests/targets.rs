//! Every target with its seeds, and with random changes of them: what libFuzzer does for longer and with aim.
//!
//! An input that fails here or there belongs into `fuzz/seeds/TARGET/`, as a seed whose name begins with
//! `refused` where it is not to be accepted.

use std::fmt;
use std::fs;
use std::path::PathBuf;

use proptest::prelude::*;
use proptest::sample::{Index, select};

/// What a target is called with; in a failure's message, a literal of Rust.
struct Input(Vec<u8>);

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b\"{}\"", self.0.escape_ascii())
    }
}

/// A change of a seed. Places are taken modulo its length.
#[derive(Clone, Debug)]
enum Edit {
    Set(Index, u8),
    Insert(Index, Vec<u8>),
    Remove(Index, usize),
    Repeat(Index, usize),
}

impl Edit {
    fn apply(&self, data: &mut Vec<u8>) {
        // The end is a place, too.
        let place = |at: &Index| at.index(data.len() + 1);
        let span = |at: &Index, len: usize| place(at)..data.len().min(place(at) + len);
        match self {
            Edit::Set(at, byte) => {
                let at = place(at);
                data.splice(at..data.len().min(at + 1), [*byte]);
            }
            Edit::Insert(at, bytes) => {
                let at = place(at);
                data.splice(at..at, bytes.iter().copied());
            }
            Edit::Remove(at, len) => {
                let span = span(at, *len);
                data.drain(span);
            }
            Edit::Repeat(at, len) => {
                let span = span(at, *len);
                let again = data[span.clone()].to_vec();
                data.splice(span.end..span.end, again);
            }
        }
    }
}

fn any_edit() -> impl Strategy<Value = Edit> {
    let at = any::<Index>;
    let words: [&[u8]; 12] = [
        b"0",
        b"1",
        b"-1",
        b"18446744073709551615",
        b" ",
        b"\r\n",
        b"\"",
        b"<",
        b"&#x0;",
        b"%00",
        b"\xff",
        "é".as_bytes(),
    ];
    prop_oneof![
        (at(), any::<u8>()).prop_map(|(at, byte)| Edit::Set(at, byte)),
        (at(), select(words.map(<[u8]>::to_vec).to_vec()))
            .prop_map(|(at, word)| Edit::Insert(at, word)),
        (at(), 1..40_usize).prop_map(|(at, len)| Edit::Remove(at, len)),
        (at(), 1..40_usize).prop_map(|(at, len)| Edit::Repeat(at, len)),
    ]
}

/// Names and contents of a target's seeds.
fn seeds(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("seeds")
        .join(target);
    let files = fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut seeds: Vec<_> = files
        .map(|file| file.unwrap().path())
        .map(|path| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            (name, fs::read(path).unwrap())
        })
        .collect();
    seeds.sort();
    seeds
}

/// Some seed after some edits.
fn any_input(target: &str) -> impl Strategy<Value = Input> {
    let seeds: Vec<_> = seeds(target).into_iter().map(|(_, data)| data).collect();
    (select(seeds), prop::collection::vec(any_edit(), 0..6)).prop_map(|(mut data, edits)| {
        edits.iter().for_each(|edit| edit.apply(&mut data));
        Input(data)
    })
}

/// More than other properties get: an input takes microseconds.
fn config() -> ProptestConfig {
    let default = ProptestConfig::default();
    ProptestConfig {
        cases: default.cases.max(3000),
        // What fails becomes a seed.
        failure_persistence: None,
        ..default
    }
}

macro_rules! targets {
    ($($target:ident)*) => {$(
        mod $target {
            use super::*;

            #[test]
            fn each_seed_is_accepted_unless_its_name_says_otherwise() {
                for (name, data) in seeds(stringify!($target)) {
                    let accepted = s3engine_fuzz::$target(&data);
                    assert_ne!(accepted, name.starts_with("refused"), "{name}");
                }
            }

            proptest! {
                #![proptest_config(config())]

                #[test]
                fn what_is_accepted_of_changed_seeds_is_sound(data in any_input(stringify!($target))) {
                    s3engine_fuzz::$target(&data.0);
                }
            }
        }
    )*};
}

targets! {
    checksums
    chunks
    completion
    content_range
    endpoint
    error_body
    etag
    faults
    http_answer
    http_request
    http_response
    key
    list
    loopback_message
    redirect
    reply
    service_requests
    sqe
    token
}
