//! `cufile.json`: what libcufile goes by, read as it reads it, and what is wrong with it.

use std::env;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Where libcufile looks when no variable names a file.
const PLACE: &str = "/etc/cufile.json";
const VARIABLE: &str = "CUFILE_ENV_PATH_JSON";
/// No file of settings is as long.
const MOST: u64 = 1 << 20;

/// What was found of the settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Found {
    /// The file that counts. A file replaces the defaults as a whole.
    pub file: PathBuf,
    /// What holds.
    pub values: Values,
    /// What keeps RDMA from working, or will.
    pub problems: Vec<String>,
}

/// The settings that matter here, with libcufile's defaults.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Values {
    /// Addresses of the RDMA devices. Without one nothing can be registered.
    pub rdma_dev_addr_list: Vec<String>,
    /// How a card reaches device memory: `nvidia_peermem` or `dmabuf`.
    pub rdma_peer_type: String,
    /// Whether work goes on without nvidia-fs.
    pub allow_compat_mode: bool,
    /// The most device memory that may be registered.
    pub max_device_pinned_mem_size_kb: u64,
}

impl Default for Values {
    fn default() -> Self {
        Self {
            rdma_dev_addr_list: Vec::new(),
            rdma_peer_type: "nvidia_peermem".into(),
            allow_compat_mode: true,
            max_device_pinned_mem_size_kb: 32 << 20,
        }
    }
}

impl Values {
    /// Whether device memory is registered by its dma_buf.
    pub fn uses_dma_buf(&self) -> bool {
        self.rdma_peer_type == "dmabuf"
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct File {
    properties: Values,
}

/// Reads it where libcufile does.
pub fn read() -> Found {
    let file = env::var_os(VARIABLE).map_or_else(|| PathBuf::from(PLACE), PathBuf::from);
    let by_variable = env::var("CUFILE_DMABUF_ENABLE").is_ok_and(|value| value == "true");
    let mut found = read_file(&file);
    if by_variable {
        found.values.rdma_peer_type = "dmabuf".into();
    }
    found
}

fn read_file(file: &Path) -> Found {
    let mut text = String::new();
    // A pipe would be waited for.
    let opened = match fs::metadata(file) {
        Ok(found) if found.is_file() => fs::File::open(file),
        Ok(_) => Err(io::Error::other("not a regular file")),
        Err(error) => Err(error),
    };
    let read = opened.and_then(|file| file.take(MOST).read_to_string(&mut text));
    match read {
        Ok(_) => judge(file, &text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let mut found = judge(file, "{}");
            let why = format!(
                "{} is not there: libcufile goes by its defaults",
                file.display()
            );
            found.problems.insert(0, why);
            found
        }
        Err(error) => Found {
            file: file.to_owned(),
            values: Values::default(),
            problems: vec![format!("{} cannot be read: {error}", file.display())],
        },
    }
}

/// What a text says. Pure.
fn judge(file: &Path, text: &str) -> Found {
    let mut problems = Vec::new();
    let plain = without_comments(text);
    let values = match serde_json::from_str::<File>(&plain) {
        Ok(file) => file.properties,
        Err(error) => {
            let at = error.line();
            let comma = trailing_comma(&plain).map(|line| {
                format!("a comma before a closing bracket in line {line}, which libcufile refuses: it then starts no RDMA at all")
            });
            problems.push(comma.unwrap_or_else(|| format!("line {at} is not JSON: {error}")));
            // libcufile then goes by nothing of the file.
            Values::default()
        }
    };
    if values.rdma_dev_addr_list.is_empty() {
        problems.push("rdma_dev_addr_list is empty: every registration will fail; list the addresses of this host's RDMA devices in it".into());
    }
    let peer = values.rdma_peer_type.as_str();
    if !matches!(peer, "nvidia_peermem" | "dmabuf") {
        problems.push(format!(
            "rdma_peer_type is {peer:?}; libcufile knows nvidia_peermem and dmabuf"
        ));
    }
    Found {
        file: file.to_owned(),
        values,
        problems,
    }
}

/// The text with each `//` comment blanked, as NVIDIA's own file has them.
fn without_comments(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let (mut quoted, mut escaped, mut comment) = (false, false, false);
    let mut characters = text.chars().peekable();
    while let Some(c) = characters.next() {
        if c == '\n' {
            comment = false;
        } else if !quoted && c == '/' && characters.peek() == Some(&'/') {
            comment = true;
        }
        if !comment && c == '"' && !escaped {
            quoted = !quoted;
        }
        escaped = quoted && c == '\\' && !escaped;
        if !comment {
            plain.push(c);
        }
    }
    plain
}

/// The line of a comma that nothing follows.
fn trailing_comma(plain: &str) -> Option<usize> {
    let (mut quoted, mut escaped, mut line) = (false, false, 1);
    let mut comma = None;
    for c in plain.chars() {
        match c {
            '\n' => line += 1,
            '"' if !escaped => {
                quoted = !quoted;
                comma = None;
            }
            ',' if !quoted => comma = Some(line),
            '}' | ']' if !quoted && comma.is_some() => return comma,
            c if !c.is_whitespace() => comma = None,
            _ => {}
        }
        escaped = quoted && c == '\\' && !escaped;
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn judged(text: &str) -> Found {
        judge(Path::new("/etc/cufile.json"), text)
    }

    #[test]
    fn a_file_as_it_is_shipped_lacks_the_devices() {
        let found = judged(
            "{\n // logging\n \"logging\": { \"level\": \"ERROR\" }, // \"x\"\n \"properties\": {\n \"rdma_dev_addr_list\": [ ], \"allow_compat_mode\": true\n }\n}",
        );
        assert_eq!(found.problems.len(), 1, "{found:?}");
        assert!(found.problems[0].contains("every registration will fail"));
    }

    #[test]
    fn what_a_file_says_holds_and_the_rest_is_the_default() {
        let found = judged(
            r#"{"properties": {"rdma_dev_addr_list": ["10.0.0.1", "http://x//y"], "rdma_peer_type": "dmabuf"}}"#,
        );
        assert_eq!(found.problems, Vec::<String>::new());
        assert_eq!(found.values.rdma_dev_addr_list, ["10.0.0.1", "http://x//y"]);
        assert!(found.values.uses_dma_buf() && found.values.allow_compat_mode);
    }

    #[test]
    fn a_trailing_comma_is_named_with_its_line() {
        let found =
            judged("{\n \"logging\": {\n  \"level\": \"TRACE\",\n },\n \"properties\": {}\n}");
        assert!(found.problems[0].contains("in line 3"), "{found:?}");
        let other = judged("{ \"properties\": [ }");
        assert!(
            other.problems[0].contains("line 1 is not JSON"),
            "{other:?}"
        );
        for text in ["", "{", "\"", "//", "[1,]", "\u{0}", "{\"properties\": 7}"] {
            assert!(!judged(text).problems.is_empty(), "{text}");
        }
    }

    #[test]
    fn a_file_that_is_not_there_is_told_with_what_that_means() {
        let found = read_file(Path::new("/nowhere/cufile.json"));
        assert!(found.problems[0].contains("is not there"), "{found:?}");
        assert!(found.problems[1].contains("rdma_dev_addr_list is empty"));
        assert_eq!(found.values, Values::default());
    }

    #[test]
    fn a_pipe_or_a_folder_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("cufile.json");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, 0o600.into()).unwrap();
        for file in [&pipe, folder.path()] {
            let found = read_file(file);
            let told = &found.problems[0];
            assert!(
                told.contains("cannot be read: not a regular file"),
                "{told}"
            );
            assert_eq!(found.values, Values::default());
        }
    }

    proptest! {
        #[test]
        fn any_text_is_judged(text in r#"[{}\[\]",:/\\ a\n0-9]{0,60}|\{"properties":\{.{0,40}\}\}"#) {
            let found = judged(&text);
            prop_assert!(!found.problems.is_empty() || !found.values.rdma_dev_addr_list.is_empty());
        }
    }
}
