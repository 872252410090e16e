//! What is said of a finished transfer: one line for people, one JSON object for programs.

use std::path::Path as FilePath;
use std::time::Duration;

use s3engine::{
    BytesByPath, Completion, Fallback, Flags, Path, Reason, Stages, Unverified, Verified,
};
use serde_json::{Value, json};

use crate::exit::Failure;
use crate::object_url::{ObjectUrl, on_one_line};
use crate::size::human;

/// What the chunks of a transfer reported.
#[derive(Default)]
pub(crate) struct Tally {
    by_path: BytesByPath,
    /// The reason of the first chunk that RDMA did not carry.
    other_than_rdma: Option<Reason>,
    fallback: Option<Fallback>,
    stages: Option<Stages>,
    status: Option<u16>,
    request_id: Option<String>,
    verified: u64,
    /// Whether any chunk came by RDMA and no processor and no checksum has seen its bytes.
    not_verified: bool,
}

impl Tally {
    /// A chunk has arrived.
    pub(crate) fn add(&mut self, completion: &Completion) {
        let bytes = completion.bytes_by_path();
        self.by_path.rdma += bytes.rdma;
        self.by_path.http += bytes.http;
        self.by_path.cache += bytes.cache;
        if completion.path() != Path::Rdma {
            self.other_than_rdma.get_or_insert(completion.reason());
        }
        if let Some(fallback) = completion.fallback() {
            self.fallback.get_or_insert_with(|| fallback.clone());
        }
        self.not_verified |= completion.flags().contains(Flags::NOT_VERIFIED);
        self.stages.get_or_insert(completion.stages());
        self.status = completion.status().or(self.status);
        if let Some(id) = completion.request_id() {
            self.request_id = Some(id.to_owned());
        }
    }

    /// So many bytes were read a second time and are the same.
    pub(crate) fn verified(&mut self, bytes: u64) {
        self.verified += bytes;
    }

    fn path(&self) -> Path {
        let BytesByPath { rdma, http, cache } = self.by_path;
        match (rdma, http, cache) {
            (0, 0, 0) => Path::None,
            (_, 0, 0) => Path::Rdma,
            (0, 0, _) => Path::Cache,
            _ => Path::Http,
        }
    }

    fn reason(&self) -> Reason {
        self.other_than_rdma.unwrap_or(Reason::Ok)
    }
}

/// A finished transfer.
pub(crate) struct Summary<'a> {
    pub(crate) url: &'a ObjectUrl,
    pub(crate) output: String,
    /// The socket of the host service that it came through.
    pub(crate) service: Option<&'a FilePath>,
    pub(crate) etag: Option<String>,
    pub(crate) object_size: u64,
    pub(crate) offset: u64,
    pub(crate) elapsed: Duration,
    pub(crate) verify: bool,
    /// What the object's checksum has shown.
    pub(crate) verified: Verified,
    pub(crate) tally: &'a Tally,
}

impl Summary<'_> {
    /// One line, and a note where RDMA was allowed and did not carry everything.
    pub(crate) fn text(&self) -> String {
        let tally = self.tally;
        let total = tally.by_path.total();
        let seconds = self.elapsed.as_secs_f64();
        let mut text = format!(
            "{} in {seconds:.2} s ({}/s)  path {}  reason {}",
            human(total as f64),
            human(total as f64 / seconds.max(1e-9)),
            tally.path(),
            tally.reason(),
        );
        let BytesByPath { rdma, http, cache } = tally.by_path;
        let paths = [(Path::Rdma, rdma), (Path::Http, http), (Path::Cache, cache)];
        let used = paths.iter().filter(|(_, bytes)| *bytes > 0);
        if used.clone().count() > 1 {
            for (path, bytes) in used {
                text += &format!("  {path} {}", human(*bytes as f64));
            }
        }
        if let Some(etag) = &self.etag {
            text += &format!("  etag {}", on_one_line(etag));
        }
        text += &self.verified_in_words();
        if self.service.is_some() {
            text += "  via the host service";
        }
        text += &format!("  -> {}\n", self.output);
        if let Some(fallback) = &tally.fallback {
            text += &note(fallback, tally.by_path);
        }
        text
    }

    /// `true`: all was read a second time and is the same, or has the object's checksum. `false`: some bytes came by
    /// RDMA on the server's word alone, and nothing has looked at them. `None`: all came in bodies of answers, and
    /// neither.
    fn verified(&self) -> Option<bool> {
        match (self.verify, self.verified, self.tally.not_verified) {
            (true, ..) | (_, Verified::Verified(_), _) => Some(true),
            (false, _, true) => Some(false),
            (false, _, false) => None,
        }
    }

    fn verified_in_words(&self) -> String {
        match (self.verify, self.verified) {
            (_, Verified::Verified(_)) => format!("  {}", self.verified),
            (true, _) => "  verified".to_owned(),
            // A checksum that is of no use; of one that is not there nobody needs to be told, where the bytes came in
            // bodies of answers.
            (
                false,
                Verified::NotVerified(
                    Unverified::Nothing
                    | Unverified::Off
                    | Unverified::NotOffered
                    | Unverified::Range,
                ),
            ) if !self.tally.not_verified => String::new(),
            (false, not) => format!("  {not}"),
        }
    }

    /// The algorithm of the checksum that the bytes have, and otherwise why none has shown anything.
    fn checksum(&self) -> (Option<&'static str>, Option<&'static str>) {
        match self.verified {
            Verified::Verified(algorithm) => (Some(algorithm.as_str()), None),
            Verified::NotVerified(why) => (None, Some(why.as_str())),
        }
    }

    /// The same for programs.
    pub(crate) fn json(&self) -> Value {
        let tally = self.tally;
        let BytesByPath { rdma, http, cache } = tally.by_path;
        let seconds = self.elapsed.as_secs_f64();
        let us = |time: Option<Duration>| time.map(|time| time.as_secs_f64() * 1e6);
        let stages = tally.stages.unwrap_or_default();
        let fallback = tally.fallback.as_ref();
        json!({
            "schema": 1,
            "object": { "bucket": self.url.bucket, "key": self.url.key, "size": self.object_size },
            "output": self.output,
            "service": self.service.map(|socket| socket.to_string_lossy()),
            "offset": self.offset,
            "length": tally.by_path.total(),
            "path": tally.path().as_str(),
            "reason": tally.reason().as_str(),
            "bytes": { "rdma": rdma, "http": http, "cache": cache },
            "fallback": fallback.map(|f| json!({ "reason": f.reason.as_str(), "detail": f.detail })),
            "seconds": seconds,
            "gb_per_s": tally.by_path.total() as f64 / 1e9 / seconds.max(1e-9),
            "etag": self.etag,
            "status": tally.status,
            "request_id": tally.request_id,
            "verified": self.verified(),
            "checksum": self.checksum().0,
            "checksum_not_verified": self.checksum().1,
            "bytes_verified": tally.verified,
            "stages_us": {
                "queued": us(stages.queued),
                "registered": us(stages.registered),
                "first_byte": us(stages.first_byte),
                "first_chunk": tally.stages.map(|stages| stages.done.as_secs_f64() * 1e6),
                "done": seconds * 1e6,
            },
        })
    }
}

/// How much RDMA carried of what it was allowed to.
fn note(fallback: &Fallback, by_path: BytesByPath) -> String {
    let (reason, detail) = (fallback.reason, on_one_line(&fallback.detail));
    if by_path.rdma == 0 {
        return format!("note: RDMA was allowed but not used: {reason}: {detail}\n");
    }
    // Rounded down: it was not all.
    let share = match u128::from(by_path.rdma) * 100 / u128::from(by_path.total()) {
        0 => "less than 1".to_owned(),
        share => share.to_string(),
    };
    format!(
        "note: RDMA carried {share} % of the bytes; the rest went by HTTP: {reason}: {detail}\n"
    )
}

/// A transfer that failed, for programs.
pub(crate) fn failed(url: &ObjectUrl, failure: &Failure) -> Value {
    let mut told = failure.to_json();
    told["object"] = json!({ "bucket": url.bucket, "key": url.key });
    told["path"] = Path::None.as_str().into();
    told["reason"] = json!(failure.request().map(|error| error.reason().as_str()));
    told
}

#[cfg(test)]
mod tests {
    use super::*;
    use s3engine::Algorithm;

    fn summary<'a>(url: &'a ObjectUrl, tally: &'a Tally) -> Summary<'a> {
        Summary {
            url,
            output: "out".into(),
            service: None,
            etag: Some("\"e\"".into()),
            object_size: 1 << 30,
            offset: 0,
            elapsed: Duration::from_millis(500),
            verify: false,
            verified: Verified::NotVerified(Unverified::NotOffered),
            tally,
        }
    }

    fn url() -> ObjectUrl {
        "s3://b/k".parse().unwrap()
    }

    #[test]
    fn the_line_says_bytes_rate_path_reason_etag_and_output() {
        let tally = Tally {
            by_path: BytesByPath {
                rdma: 1 << 30,
                ..BytesByPath::default()
            },
            ..Tally::default()
        };
        let url = url();
        assert_eq!(
            summary(&url, &tally).text(),
            "1.00 GiB in 0.50 s (2.00 GiB/s)  path rdma  reason ok  etag \"e\"  -> out\n"
        );
    }

    #[test]
    fn the_host_service_is_named_where_it_was_used() {
        let (tally, url) = (Tally::default(), url());
        let summary = Summary {
            service: Some(FilePath::new("/run/x.sock")),
            ..summary(&url, &tally)
        };
        assert!(summary.text().contains("  via the host service  -> out"));
        assert_eq!(summary.json()["service"], "/run/x.sock");
    }

    fn mixed(rdma: u64, http: u64) -> Tally {
        Tally {
            by_path: BytesByPath {
                rdma,
                http,
                cache: 0,
            },
            other_than_rdma: Some(Reason::ServerDeclined),
            fallback: Some(Fallback {
                reason: Reason::ServerDeclined,
                detail: "501".into(),
            }),
            not_verified: rdma > 0,
            ..Tally::default()
        }
    }

    #[test]
    fn mixed_paths_are_no_rdma_and_give_bytes_by_path_and_why() {
        let (tally, url) = (mixed(1 << 20, 3 << 20), url());
        let summary = summary(&url, &tally);
        let text = summary.text();
        assert!(
            text.contains("path http  reason server-declined  rdma 1.00 MiB  http 3.00 MiB  etag"),
            "{text}"
        );
        let json = summary.json();
        assert_eq!(json["bytes"]["http"], 3 << 20);
        assert_eq!(json["fallback"]["reason"], "server-declined");
    }

    #[test]
    fn the_note_says_how_much_rdma_carried() {
        for (rdma, http, said) in [
            (0, 7, "RDMA was allowed but not used"),
            (
                96,
                4,
                "RDMA carried 96 % of the bytes; the rest went by HTTP",
            ),
            (99_999, 1, "RDMA carried 99 % of"),
            (1, 99_999, "RDMA carried less than 1 % of"),
            (u64::MAX - 1, 1, "RDMA carried 99 % of"),
        ] {
            let (tally, url) = (mixed(rdma, http), url());
            let text = summary(&url, &tally).text();
            assert!(
                text.contains(&format!("note: {said}"))
                    && text.ends_with(": server-declined: 501\n"),
                "{text}"
            );
        }
    }

    #[test]
    fn bytes_that_nothing_has_seen_are_called_not_verified() {
        let url = url();
        for (rdma, verify, said, json) in [
            (
                1,
                false,
                "  not verified (not-offered)  -> out",
                json!(false),
            ),
            (1, true, "\"e\"  verified  -> out", json!(true)),
            (0, true, "\"e\"  verified  -> out", json!(true)),
            (0, false, "\"e\"  -> out", json!(null)),
        ] {
            let tally = mixed(rdma, 1);
            let summary = Summary {
                verify,
                ..summary(&url, &tally)
            };
            assert!(summary.text().contains(said), "{}", summary.text());
            assert_eq!(summary.json()["verified"], json);
        }
    }

    #[test]
    fn what_a_checksum_has_shown_is_told() {
        let (tally, url) = (mixed(1, 1), url());
        let with = |verified| Summary {
            verified,
            ..summary(&url, &tally)
        };
        let right = with(Verified::Verified(Algorithm::Crc64Nvme));
        assert!(right.text().contains("  verified crc64nvme  -> out"));
        assert_eq!(right.json()["verified"], json!(true));
        assert_eq!(right.json()["checksum"], "crc64nvme");
        let of_parts = with(Verified::NotVerified(Unverified::Composite));
        assert!(
            of_parts
                .text()
                .contains("  not verified (composite)  -> out")
        );
        assert_eq!(of_parts.json()["checksum"], json!(null));
        assert_eq!(of_parts.json()["checksum_not_verified"], "composite");
    }

    #[test]
    fn an_empty_object_has_no_path() {
        let tally = Tally::default();
        let url = url();
        let json = summary(&url, &tally).json();
        assert_eq!(
            (&json["path"], &json["reason"]),
            (&json!("none"), &json!("ok"))
        );
    }
}
