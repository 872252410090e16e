//! The entries of a page in their order, and how each is shown.

use std::borrow::Cow;
use std::io::{self, Write};

use s3engine::{ListPage, ListedObject};
use serde_json::json;

use crate::object_url::on_one_line;
use crate::size::human;

/// `2026-08-14T11:02:00Z`
const DATE: usize = 20;
/// Room for just under 10 TB to the byte.
const SIZE: usize = 13;

/// One line.
pub(crate) enum Entry<'a> {
    Object(&'a ListedObject),
    /// All names that begin so.
    Prefix(&'a str),
}

/// How lines look.
pub(crate) enum Style {
    Columns {
        human: bool,
        /// Control characters in names are shown, not obeyed.
        escaped: bool,
    },
    Json,
}

/// Objects and prefixes together, sorted by name, as servers sort them across pages.
pub(crate) fn entries(page: &ListPage) -> Vec<Entry<'_>> {
    let objects = page.objects.iter().map(Entry::Object);
    let prefixes = page.prefixes.iter().map(|prefix| Entry::Prefix(prefix));
    let mut entries: Vec<_> = prefixes.chain(objects).collect();
    entries.sort_by(|a, b| a.name().cmp(b.name()));
    entries
}

impl Entry<'_> {
    fn name(&self) -> &str {
        match self {
            Entry::Object(object) => &object.key,
            Entry::Prefix(prefix) => prefix,
        }
    }

    fn date(&self) -> Cow<'_, str> {
        match self {
            Entry::Prefix(_) => "".into(),
            Entry::Object(object) => match &object.last_modified {
                Some(date) => shortened(date),
                None => "-".into(),
            },
        }
    }

    fn size(&self, readable: bool) -> String {
        match self {
            Entry::Prefix(_) => "PRE".into(),
            Entry::Object(object) if readable => human(object.size as f64),
            Entry::Object(object) => object.size.to_string(),
        }
    }
}

impl Style {
    /// Writes one line.
    pub(crate) fn write(
        &self,
        out: &mut impl Write,
        bucket: &str,
        entry: &Entry<'_>,
    ) -> io::Result<()> {
        match self {
            Style::Json => writeln!(out, "{}", as_json(bucket, entry)),
            Style::Columns { human, escaped } => {
                let (date, size) = (entry.date(), entry.size(*human));
                let name = match escaped {
                    true => on_one_line(entry.name()).into(),
                    false => Cow::from(entry.name()),
                };
                writeln!(out, "{date:DATE$}  {size:>SIZE$}  {name}")
            }
        }
    }
}

fn as_json(bucket: &str, entry: &Entry<'_>) -> serde_json::Value {
    match entry {
        Entry::Prefix(prefix) => json!({ "schema": 1, "bucket": bucket, "prefix": prefix }),
        Entry::Object(object) => json!({
            "schema": 1,
            "bucket": bucket,
            "key": object.key,
            "size": object.size,
            "etag": object.etag.as_ref().map(|etag| etag.as_str()),
            "last_modified": object.last_modified,
        }),
    }
}

/// A date without its fraction of a second, which would only widen the column; anything else as it is, on one line.
fn shortened(date: &str) -> Cow<'_, str> {
    match date.split_once('.') {
        Some((seconds, fraction)) if is_fraction_in_utc(fraction) && seconds.is_ascii() => {
            format!("{}Z", on_one_line(seconds)).into()
        }
        _ => on_one_line(date).into(),
    }
}

fn is_fraction_in_utc(text: &str) -> bool {
    let digits = text.strip_suffix('Z');
    digits.is_some_and(|digits| digits.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use s3engine::ETag;

    fn object(key: &str, size: u64) -> ListedObject {
        ListedObject {
            key: key.into(),
            size,
            etag: Some(ETag::new("\"e\"")),
            last_modified: Some("2026-08-14T11:02:00.123Z".into()),
        }
    }

    fn lines(page: &ListPage, style: &Style) -> String {
        let mut out = Vec::new();
        for entry in entries(page) {
            style.write(&mut out, "b", &entry).unwrap();
        }
        String::from_utf8(out).unwrap()
    }

    fn columns(human: bool, escaped: bool) -> Style {
        Style::Columns { human, escaped }
    }

    #[test]
    fn objects_and_prefixes_are_one_sorted_table() {
        let page = ListPage {
            objects: vec![object("a", 7), object("c", 3 << 30)],
            prefixes: vec!["b/".into()],
            next: None,
        };
        assert_eq!(
            lines(&page, &columns(false, true)),
            "2026-08-14T11:02:00Z              7  a\n\
             \x20                               PRE  b/\n\
             2026-08-14T11:02:00Z     3221225472  c\n"
        );
        assert!(lines(&page, &columns(true, true)).contains("  3.00 GiB  c\n"));
    }

    #[test]
    fn control_characters_are_shown_where_they_could_be_obeyed() {
        let page = ListPage {
            objects: vec![object("a\u{1b}[31m\nb", 1)],
            prefixes: vec!["p\r/".into()],
            next: None,
        };
        let text = lines(&page, &columns(false, true));
        assert!(
            text.contains("  a\\u{1b}[31m\\nb\n") && text.contains("  p\\r/\n"),
            "{text}"
        );
        let text = lines(&page, &columns(false, false));
        assert!(text.contains("  a\u{1b}[31m\nb\n"), "{text}");
        let text = lines(&page, &Style::Json);
        assert!(
            !text.contains('\u{1b}') && text.lines().count() == 2,
            "{text}"
        );
    }

    #[test]
    fn json_gives_every_fact_and_null_for_none() {
        let bare = ListedObject {
            etag: None,
            last_modified: None,
            ..object("k", 5)
        };
        let page = ListPage {
            objects: vec![bare, object("l", 6)],
            prefixes: vec!["p/".into()],
            next: None,
        };
        let text = lines(&page, &Style::Json);
        let values: Vec<serde_json::Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(
            values[0],
            json!({"schema": 1, "bucket": "b", "key": "k", "size": 5, "etag": null, "last_modified": null})
        );
        assert_eq!(values[1]["last_modified"], "2026-08-14T11:02:00.123Z");
        assert_eq!(
            values[2],
            json!({"schema": 1, "bucket": "b", "prefix": "p/"})
        );
    }

    #[test]
    fn dates_lose_their_fraction_and_what_is_no_date_stays() {
        for (date, seen) in [
            ("2026-08-14T11:02:00.000Z", "2026-08-14T11:02:00Z"),
            ("2026-08-14T11:02:00Z", "2026-08-14T11:02:00Z"),
            ("2026-08-14T11:02:00.5+02:00", "2026-08-14T11:02:00.5+02:00"),
            ("yester\nday.", "yester\\nday."),
        ] {
            assert_eq!(shortened(date), seen);
        }
    }
}
