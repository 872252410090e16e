//! What was found, and how it is shown.

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::{Value, json};

use crate::object_url::on_one_line;

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Verdict {
    /// As it should be.
    Ok,
    /// Nothing to check, or it was not asked for.
    Skip,
    /// It works, or may; less well.
    Warn,
    /// RDMA, or more, does not work.
    Fail,
}

impl Verdict {
    fn name(self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::Skip => "-",
            Verdict::Warn => "warn",
            Verdict::Fail => "fail",
        }
    }
}

/// One line of the screen, with what it means and what helps beneath.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    pub(crate) name: &'static str,
    pub(crate) verdict: Verdict,
    pub(crate) what: String,
    pub(crate) means: Option<String>,
    pub(crate) help: Option<String>,
}

impl Finding {
    pub(crate) fn new(name: &'static str, verdict: Verdict, what: impl Into<String>) -> Self {
        Self {
            name,
            verdict,
            what: what.into(),
            means: None,
            help: None,
        }
    }

    pub(crate) fn ok(name: &'static str, what: impl Into<String>) -> Self {
        Self::new(name, Verdict::Ok, what)
    }

    pub(crate) fn skip(name: &'static str, what: impl Into<String>) -> Self {
        Self::new(name, Verdict::Skip, what)
    }

    pub(crate) fn warn(name: &'static str, what: impl Into<String>) -> Self {
        Self::new(name, Verdict::Warn, what)
    }

    pub(crate) fn fail(name: &'static str, what: impl Into<String>) -> Self {
        Self::new(name, Verdict::Fail, what)
    }

    /// What that means.
    pub(crate) fn means(mut self, text: impl Into<String>) -> Self {
        self.means = Some(text.into());
        self
    }

    /// What to do.
    pub(crate) fn help(mut self, text: impl Into<String>) -> Self {
        self.help = Some(text.into());
        self
    }
}

/// Whether GETs would go by RDMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Answer {
    Yes,
    No,
    Unknown,
}

/// All of it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Report {
    pub(crate) answer: Answer,
    /// Behind the answer, in a few words.
    pub(crate) because: String,
    pub(crate) endpoint: Option<String>,
    pub(crate) findings: Vec<Finding>,
    /// What a GET would do now.
    pub(crate) now: String,
    pub(crate) exit_code: u8,
}

impl Report {
    fn count(&self, verdict: Verdict) -> usize {
        let of = |finding: &&Finding| finding.verdict == verdict;
        self.findings.iter().filter(of).count()
    }

    /// For people.
    pub(crate) fn text(&self) -> String {
        let of = match &self.endpoint {
            Some(endpoint) => format!("RDMA for {}", on_one_line(endpoint)),
            None => "RDMA on this host".to_owned(),
        };
        let answer = match self.answer {
            Answer::Yes => "YES",
            Answer::No => "NO",
            Answer::Unknown => "NOT KNOWN",
        };
        let mut text = format!("{of}: {answer}, {}\n", on_one_line(&self.because));
        for finding in &self.findings {
            let (verdict, name) = (finding.verdict.name(), finding.name);
            let _ = writeln!(
                text,
                "  {verdict:<5} {name:<12} {}",
                on_one_line(&finding.what)
            );
            if let Some(means) = &finding.means {
                let _ = writeln!(text, "{:21}{}", "", on_one_line(means));
            }
            if let Some(help) = &finding.help {
                let _ = writeln!(text, "{:21}-> {}", "", on_one_line(help));
            }
        }
        let counted = |count: usize, one: &str| match count {
            1 => format!("1 {one}"),
            _ => format!("{count} {one}s"),
        };
        let failed = self.count(Verdict::Fail);
        let warnings = counted(self.count(Verdict::Warn), "warning");
        let _ = writeln!(
            text,
            "{failed} failed, {warnings}. {}",
            on_one_line(&self.now)
        );
        text
    }

    /// For programs.
    pub(crate) fn json(&self) -> Value {
        json!({
            "schema": 1,
            "answer": self.answer,
            "because": self.because,
            "endpoint": self.endpoint,
            "findings": self.findings,
            "failed": self.count(Verdict::Fail),
            "warnings": self.count(Verdict::Warn),
            "now": self.now,
            "exit_code": self.exit_code,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_begins_with_the_answer_and_ends_with_what_is_done() {
        let report = Report {
            answer: Answer::No,
            because: "there is no device".into(),
            endpoint: Some("http://a\x1b[2J".into()),
            findings: vec![
                Finding::ok("kernel", "ib_uverbs"),
                Finding::fail("device", "none")
                    .means("no card")
                    .help("plug one in"),
            ],
            now: "HTTP works".into(),
            exit_code: 5,
        };
        let text = report.text();
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[0].ends_with(": NO, there is no device"), "{text}");
        assert_eq!(lines[2], "  fail  device       none");
        assert_eq!(lines[4].trim(), "-> plug one in");
        assert_eq!(lines[5], "1 failed, 0 warnings. HTTP works");
        assert!(!text.contains('\x1b'));
        let json = report.json();
        assert_eq!(json["answer"], "no");
        assert_eq!(json["findings"][1]["verdict"], "fail");
        assert_eq!(json["findings"][0]["help"], Value::Null);
    }
}
