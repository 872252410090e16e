//! What a server is to behave like: parameters with one cause of slowness each in the named models, and
//! any mix of them in a file.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use serde::de::{Deserializer, Error};

use crate::read_file::read_file;

/// The models that need no file.
const BUILT_IN: [(&str, &str); 6] = [
    ("none", include_str!("../models/none.toml")),
    (
        "registration-contention",
        include_str!("../models/registration-contention.toml"),
    ),
    ("op-latency", include_str!("../models/op-latency.toml")),
    (
        "per-client-cost",
        include_str!("../models/per-client-cost.toml"),
    ),
    (
        "slow-then-timeout",
        include_str!("../models/slow-then-timeout.toml"),
    ),
    ("far-gpu", include_str!("../models/far-gpu.toml")),
];
/// What lies between the slowest and the fastest rate that makes sense, in bytes per second.
const RATES: std::ops::RangeInclusive<f64> = 64e3..=1e12;
/// The longest time of one operation.
const LONGEST: Duration = Duration::from_secs(60);
/// The longest name.
const NAME: usize = 64;

/// A model of a server and its network. Times are zero and rates of slabs unlimited unless said.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Model {
    /// What results made on it are marked with; of a file the name without its end, unless it has one inside.
    #[serde(default)]
    pub name: String,
    /// Bytes per second of everything that is sent, by HTTP and by RDMA.
    #[serde(deserialize_with = "rate")]
    pub line_rate: u64,
    /// What each GET and HEAD of an object takes besides its bytes.
    #[serde(default, rename = "op_ms", deserialize_with = "millis")]
    pub operation: Duration,
    /// What each registration of RDMA clients of this server's loopback folder takes, one at a time.
    #[serde(default, rename = "register_ms", deserialize_with = "millis")]
    pub register: Duration,
    /// For how long each RDMA GET has the server for itself, for each client beyond the first.
    #[serde(default, rename = "client_ms", deserialize_with = "millis")]
    pub client: Duration,
    /// How late each RDMA GET is written and answered, times the square of clients less one.
    #[serde(default, rename = "slow_ms", deserialize_with = "millis")]
    pub slow: Duration,
    /// Bytes per second that RDMA writes into any one slab.
    #[serde(default, deserialize_with = "some_rate")]
    pub near_rate: Option<u64>,
    /// The same for every second slab.
    #[serde(default, deserialize_with = "some_rate")]
    pub far_rate: Option<u64>,
}

/// A model that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// It is neither built in nor a file that can be read.
    #[error(
        "no model {name:?}: it is none of {}, and as a file it cannot be read: {source}",
        Model::names().collect::<Vec<_>>().join(", ")
    )]
    Unknown {
        /// What was asked for.
        name: String,
        /// Why it could not be read.
        source: io::Error,
    },
    /// The file is not TOML, or says something unknown or impossible.
    #[error("{} is not a model: {why}", path.display())]
    Bad {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
}

impl Model {
    /// The names of the models that need no file.
    pub fn names() -> impl Iterator<Item = &'static str> {
        BUILT_IN.iter().map(|(name, _)| *name)
    }

    /// The model of that name, else the one that the file of that name describes.
    pub fn load(name: &str) -> Result<Model, ModelError> {
        let path = Path::new(name);
        let built_in = BUILT_IN.iter().find(|(built_in, _)| *built_in == name);
        let text = match built_in {
            Some((_, text)) => (*text).to_owned(),
            None => read_file(path).map_err(|source| ModelError::Unknown {
                name: name.to_owned(),
                source,
            })?,
        };
        let file_name = path.file_stem().map(|stem| stem.to_string_lossy());
        parse(&text, &file_name.unwrap_or_default()).map_err(|why| ModelError::Bad {
            path: path.to_owned(),
            why,
        })
    }
}

fn parse(text: &str, file_name: &str) -> Result<Model, String> {
    let mut model: Model = toml::from_str(text).map_err(|error| error.to_string())?;
    if model.name.is_empty() {
        file_name.clone_into(&mut model.name);
    }
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    if model.name.is_empty() || model.name.len() > NAME || !model.name.bytes().all(plain) {
        return Err(format!(
            "its name {:?} is not 1 to {NAME} letters, digits, '-', '_' and '.'; `name = \"...\"` gives it another",
            model.name
        ));
    }
    Ok(model)
}

fn millis<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let millis = f64::deserialize(deserializer)?;
    let time = Duration::try_from_secs_f64(millis / 1e3).ok();
    time.filter(|time| *time <= LONGEST)
        .ok_or_else(|| D::Error::custom(format!("{millis} ms is not within 0 to {LONGEST:?}")))
}

fn some_rate<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    rate(deserializer).map(Some)
}

fn rate<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse_rate(&text).map_err(D::Error::custom)
}

/// Bytes per second from text such as `800MB/s`.
fn parse_rate(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, f64); 6] = [
        ("kB/s", 1e3),
        ("MB/s", 1e6),
        ("GB/s", 1e9),
        ("MiB/s", (1 << 20) as f64),
        ("GiB/s", (1 << 30) as f64),
        ("B/s", 1.0),
    ];
    let number = UNITS.iter().find_map(|(unit, factor)| {
        let digits = text.strip_suffix(unit)?.trim_end();
        let plain = digits.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        let number: f64 = digits.parse().ok().filter(|_| plain)?;
        Some(number * factor)
    });
    match number.filter(|rate| RATES.contains(rate)) {
        Some(rate) => Ok(rate as u64),
        None => Err(format!(
            "{text:?} is not a rate such as \"800MB/s\" from 64kB/s to 1000GB/s"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: Duration = Duration::from_millis(1);

    #[test]
    fn every_model_that_is_built_in_plants_its_cause_and_no_other() {
        let none = Model::load("none").unwrap();
        assert_eq!((none.name.as_str(), none.operation < MILLI), ("none", true));
        for name in Model::names() {
            let model = Model::load(name).unwrap();
            assert_eq!(model.name, name);
            assert_eq!(model.line_rate, none.line_rate);
            let planted = [
                ("registration-contention", !model.register.is_zero()),
                ("op-latency", model.operation > 10 * MILLI),
                ("per-client-cost", !model.client.is_zero()),
                ("slow-then-timeout", !model.slow.is_zero()),
                ("far-gpu", model.far_rate.is_some()),
            ];
            for (cause, there) in planted {
                assert_eq!(there, cause == name, "{cause} in {name}");
            }
        }
    }

    #[test]
    fn a_file_may_mix_and_has_its_own_name_or_that_of_the_file() {
        let text = "line_rate = '1.5 GB/s'\nop_ms = 2\nclient_ms = 0.5\nfar_rate = '1MiB/s'";
        let model = parse(text, "mine").unwrap();
        assert_eq!(
            (model.name.as_str(), model.line_rate),
            ("mine", 1_500_000_000)
        );
        assert_eq!((model.operation, model.client), (2 * MILLI, MILLI / 2));
        assert_eq!((model.near_rate, model.far_rate), (None, Some(1 << 20)));
        let named = parse("name = 'x'\nline_rate = '1MB/s'", "mine").unwrap();
        assert_eq!(named.name, "x");
    }

    #[test]
    fn what_makes_no_sense_is_refused_and_named() {
        for (text, named) in [
            ("", "line_rate"),
            ("line_rate = 5", "line_rate"),
            ("line_rate = '5'", "\"5\" is not a rate"),
            ("line_rate = '-1MB/s'", "-1MB/s"),
            ("line_rate = '0MB/s'", "0MB/s"),
            ("line_rate = 'infMB/s'", "infMB/s"),
            ("line_rate = '1e9B/s'", "1e9B/s"),
            ("line_rate = '9000GB/s'", "9000GB/s"),
            ("line_rate = '1MB/s'\nlatency = 1", "latency"),
            ("line_rate = '1MB/s'\nop_ms = -1", "-1 ms"),
            ("line_rate = '1MB/s'\nop_ms = nan", "NaN ms"),
            ("line_rate = '1MB/s'\nslow_ms = 60001", "60001 ms"),
            ("line_rate = '1MB/s'\nclient_ms = 'x'", "client_ms"),
            ("line_rate = '1MB/s'\nfar_rate = '1'", "far_rate"),
            ("name = 'a b'\nline_rate = '1MB/s'", "a b"),
            ("not toml", "not toml"),
        ] {
            let why = parse(text, "mine").expect_err(text);
            assert!(why.contains(named), "{text:?}: {why}");
        }
        assert!(
            parse("line_rate = '1MB/s'", "")
                .unwrap_err()
                .contains("name")
        );
    }

    #[test]
    fn a_model_that_is_nowhere_is_told_with_those_that_are() {
        let error = Model::load("nome").unwrap_err().to_string();
        assert!(
            error.contains("\"nome\"") && error.contains("per-client-cost"),
            "{error}"
        );
    }

    #[test]
    fn a_file_without_end_is_refused_by_its_name_and_the_bound() {
        let error = Model::load("/dev/zero").unwrap_err().to_string();
        assert!(
            error.contains("/dev/zero") && error.ends_with("longer than 1048576 bytes"),
            "{error}"
        );
    }
}
