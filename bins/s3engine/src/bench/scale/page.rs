//! The report as a page for a browser: one file that asks nothing of the network. Its script draws what the JSON in it
//! says, so that both say the same.

use crate::bench::scale::run::Report;

const PAGE: &str = include_str!("page.html");
/// Where the JSON belongs.
const PLACE: &str = "@REPORT@";

/// The page of a report.
pub(crate) fn html(report: &Report) -> Result<String, serde_json::Error> {
    // In JSON, `<` stands in texts only, and may be written so there: no text can end the script that holds it.
    let json = serde_json::to_string(report)?.replace('<', "\\u003c");
    Ok(PAGE.replacen(PLACE, &json, 1))
}

#[cfg(test)]
#[path = "page_tests.rs"]
mod tests;
