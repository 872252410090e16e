use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::*;
use crate::bench::scale::sample::report;

/// What the page holds between its script tags.
fn embedded(page: &str) -> &str {
    let (_, rest) = page.split_once(r#"id="report">"#).unwrap();
    rest.split_once("</script>").unwrap().0
}

#[test]
fn the_report_is_in_it_whole_whatever_its_texts_are() {
    let mut report = report();
    report.runs[0].first_error = Some("</script><script>alert(1)</script> <!-- @REPORT@".into());
    let page = html(&report).unwrap();
    assert_eq!(Report::parse(embedded(&page).as_bytes()).unwrap(), report);
    assert_eq!(page.matches("</script>").count(), 2);
}

#[test]
fn it_asks_nothing_of_the_network() {
    let page = PAGE.replace("http://www.w3.org/2000/svg", "");
    for sign in ["http:", "https:", "src=", "@import", "url(", "fetch("] {
        assert!(!page.contains(sign), "{sign}");
    }
    assert_eq!(PAGE.matches(PLACE).count(), 1);
}

#[test]
fn a_browser_draws_every_row_with_the_numbers_of_the_json() {
    let Some(browser) = browser() else {
        println!("skipped: no Chromium in PATH or S3ENGINE_CHROMIUM");
        return;
    };
    let report = report();
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    fs::write(&page, html(&report).unwrap()).unwrap();
    let dom = drawn(&browser, &page, folder.path());
    assert!(dom.contains(r#"data-drawn="yes""#), "not drawn to the end");

    let marks = marks(&dom);
    let json = serde_json::to_value(&report).unwrap();
    for (at, run) in json["runs"].as_array().unwrap().iter().enumerate() {
        let of = |tag: &str, key: &str, name: &str| -> f64 {
            let mut found = marks.iter().filter(|mark| {
                mark.tag == tag && mark.run == at && mark.attribute(key) == Some(name)
            });
            let mark = found
                .next()
                .unwrap_or_else(|| panic!("no {tag} of {name} of row {at}"));
            assert!(found.next().is_none(), "two {tag}s of {name} of row {at}");
            mark.attribute("data-value").unwrap().parse().unwrap()
        };
        for field in ["gb_per_s", "rdma_share", "rdma_share_server"] {
            assert_eq!(of("circle", "data-field", field), run[field], "row {at}");
        }
        for path in ["gb_per_s", "scale", "latency_us.p99", "registrations.count"] {
            let pointer = format!("/{}", path.replace('.', "/"));
            let expected = run.pointer(&pointer).and_then(Value::as_f64).unwrap();
            assert_eq!(of("td", "data-field", path), expected, "row {at}: {path}");
        }
        let stages = ["queue", "registration", "control", "transfer"];
        let drawn: f64 = stages
            .map(|stage| of("rect", "data-stage", stage))
            .iter()
            .sum();
        let stages = &run["stages_us"];
        let parts = ["queue", "registration", "transfer"];
        let expected: f64 = parts
            .map(|part| stages[part]["mean"].as_f64().unwrap())
            .iter()
            .sum();
        assert!(
            (drawn - expected).abs() <= expected * 1e-9,
            "{drawn} {expected}"
        );
    }
    for verdict in &report.verdicts {
        assert!(
            verdict.evidence.iter().all(|line| dom.contains(line)),
            "{verdict:?}"
        );
    }
    assert!(dom.contains("Simulated (model per-client-cost)"));
}

/// An element that shows a number of a row.
struct Mark<'a> {
    tag: &'a str,
    run: usize,
    text: &'a str,
}

impl Mark<'_> {
    fn attribute(&self, name: &str) -> Option<&str> {
        let (_, rest) = self.text.split_once(&format!(" {name}=\""))?;
        rest.split('"').next()
    }
}

fn marks(dom: &str) -> Vec<Mark<'_>> {
    let elements = dom.split('<').skip(1).filter_map(|rest| {
        let text = rest.split('>').next()?;
        let mut mark = Mark {
            tag: text.split(' ').next()?,
            run: 0,
            text,
        };
        mark.run = mark.attribute("data-run")?.parse().ok()?;
        Some(mark)
    });
    elements.collect()
}

fn browser() -> Option<PathBuf> {
    if let Some(chosen) = env::var_os("S3ENGINE_CHROMIUM") {
        return Some(chosen.into());
    }
    let folders = env::var_os("PATH")?;
    let names = ["chromium", "chromium-browser", "google-chrome"];
    env::split_paths(&folders)
        .flat_map(|folder| names.map(|name| folder.join(name)))
        .find(|path| path.is_file())
}

/// The page as the browser has it when its script has run.
fn drawn(browser: &Path, page: &Path, folder: &Path) -> String {
    let dom = folder.join("dom.html");
    let flags = ["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"];
    let mut child = Command::new(browser)
        .args(flags)
        .arg(format!(
            "--user-data-dir={}",
            folder.join("profile").display()
        ))
        .arg(format!("file://{}", page.display()))
        .stdin(Stdio::null())
        .stdout(File::create(&dom).unwrap())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let limit = Instant::now() + Duration::from_secs(120);
    loop {
        match child.try_wait().unwrap() {
            Some(status) => {
                assert!(status.success(), "{}: {status}", browser.display());
                return fs::read_to_string(&dom).unwrap();
            }
            None if Instant::now() > limit => {
                child.kill().unwrap();
                child.wait().unwrap();
                panic!("{} did not end", browser.display());
            }
            None => sleep(Duration::from_millis(50)),
        }
    }
}
