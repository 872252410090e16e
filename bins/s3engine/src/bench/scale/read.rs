//! Files of figures, read back.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use serde_json::Value;

use crate::bench::scale::run::{Report, SCHEMA};
use crate::destination::shown;
use crate::exit::Failure;
use crate::object_url::on_one_line;

/// No report is longer.
const MOST_BYTES: u64 = 256 << 20;

impl Report {
    /// What these reports call themselves.
    pub(crate) const KIND: &'static str = "scale";

    /// Reads a file that `--json` wrote.
    pub(crate) fn read(path: &Path) -> Result<Self, Failure> {
        let fail = |why: String| Failure::Usage(format!("{}: {}", shown(path), on_one_line(&why)));
        let text = read(path).map_err(|error| fail(error.to_string()))?;
        Self::parse(&text).map_err(fail)
    }

    /// Reads the text of one. Whose text it is stands first, so that a file of another kind is not called broken.
    pub(crate) fn parse(text: &[u8]) -> Result<Self, String> {
        let json: Value =
            serde_json::from_slice(text).map_err(|error| format!("this is not JSON: {error}"))?;
        match &json["kind"] {
            Value::String(kind) if kind == Self::KIND => {}
            Value::String(kind) => {
                return Err(format!("figures of kind {kind:?}, not of `bench scale`"));
            }
            _ => return Err("these are not figures of `bench scale`: they have no kind".into()),
        }
        if json["schema"] != SCHEMA {
            return Err(format!(
                "schema {}: this s3engine reads schema {SCHEMA}",
                json["schema"]
            ));
        }
        serde_json::from_value(json)
            .map_err(|error| format!("not as `bench scale` writes it: {error}"))
    }
}

/// All of a file or of a pipe.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let too_long = || {
        let why = format!("it is longer than {MOST_BYTES} bytes");
        io::Error::new(ErrorKind::FileTooLarge, why)
    };
    let file = File::open(path)?;
    if file.metadata()?.len() > MOST_BYTES {
        return Err(too_long());
    }
    let mut text = Vec::new();
    // A pipe does not say how long it is.
    file.take(MOST_BYTES + 1).read_to_end(&mut text)?;
    match text.len() as u64 > MOST_BYTES {
        true => Err(too_long()),
        false => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::scale::sample::report;

    #[test]
    fn what_is_written_is_read_back() {
        let report = report();
        let text = serde_json::to_vec(&report).unwrap();
        assert_eq!(Report::parse(&text).unwrap(), report);
    }

    fn keys<'a>(json: &'a Value, names: &mut Vec<&'a str>) {
        match json {
            Value::Object(map) => {
                for (name, value) in map {
                    names.push(name);
                    keys(value, names);
                }
            }
            Value::Array(values) => values.iter().for_each(|value| keys(value, names)),
            _ => {}
        }
    }

    #[test]
    fn the_documentation_has_every_key_and_cause() {
        let page = include_str!("../../../../../docs/bench-scale.md");
        let mut json = serde_json::to_value(report()).unwrap();
        // Names that people give, not keys.
        json["settings"] = Value::Null;
        for run in json["runs"].as_array_mut().unwrap() {
            for of_names in ["completions", "reasons", "fell_back", "bytes", "rails"] {
                run[of_names] = Value::Null;
            }
        }
        let mut names = Vec::new();
        keys(&json, &mut names);
        let causes = [
            "line-rate",
            "registration",
            "control-latency",
            "per-client-cost",
            "timeout-fallback",
            "memory-distance",
            "client-cpu",
            "undetermined",
        ];
        for name in names.into_iter().chain(causes) {
            assert!(page.contains(&format!("`{name}`")), "{name}");
        }
    }

    #[test]
    fn other_files_are_refused_by_what_they_are() {
        let with = |key: &str, value: Value| {
            let mut json = serde_json::to_value(report()).unwrap();
            json[key] = value;
            json.to_string()
        };
        for (text, why) in [
            ("{".into(), "not JSON"),
            ("[1]".into(), "no kind"),
            (r#"{"schema":1,"runs":[]}"#.into(), "no kind"),
            (with("kind", "get".into()), "kind \"get\""),
            (
                with("schema", 2.into()),
                "schema 2: this s3engine reads schema 1",
            ),
            (with("schema", Value::Null), "schema null"),
            (with("runs", 3.into()), "not as `bench scale` writes it"),
        ] {
            let error = Report::parse(text.as_bytes()).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
        let error = Report::read(Path::new("/nowhere/a.json")).unwrap_err();
        assert!(error.to_string().starts_with("/nowhere/a.json: "));
        assert_eq!(error.code(), 2);
    }

    #[test]
    fn what_is_too_long_is_refused_by_its_name_and_the_bound() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        let file = File::create(&path).unwrap();
        file.set_len(MOST_BYTES + 1).unwrap();
        for path in [path.as_path(), Path::new("/dev/zero")] {
            let error = Report::read(path).unwrap_err();
            let expected = format!("{}: it is longer than 268435456 bytes", path.display());
            assert_eq!((error.code(), error.to_string()), (2, expected));
        }
    }

    #[test]
    fn text_of_a_file_is_on_one_line_in_errors() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        std::fs::write(&path, r#"{"kind":"scale","schema":"\u009b31m"}"#).unwrap();
        let error = Report::read(&path).unwrap_err().to_string();
        assert!(error.contains(r"\u{9b}31m"), "{error}");
    }
}
