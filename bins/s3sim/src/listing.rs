//! ListObjectsV2: one page of a sorted list of names, and its XML.

use std::fmt::Write;
use std::ops::ControlFlow;

use crate::date::iso8601;
use crate::s3_error::{S3Error, escape};
use crate::store::Entry;
use crate::uri;

const PAGE: usize = 1000;

/// What a listing request asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ListQuery {
    pub prefix: String,
    pub delimiter: String,
    pub max_keys: usize,
    pub start_after: String,
    pub continuation: Option<Continuation>,
    pub encode: bool,
}

/// Where a page begins: after this name and, where it is a common prefix, all that begins with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Continuation {
    after: String,
    is_prefix: bool,
}

/// One page of a listing.
#[derive(Debug, Default)]
pub(crate) struct Page<'a> {
    pub entries: Vec<&'a Entry>,
    pub prefixes: Vec<String>,
    pub next: Option<Continuation>,
}

impl ListQuery {
    /// Reads the pairs of a query with `list-type=2`; others are ignored.
    pub fn from_pairs(pairs: &[(String, String)]) -> Result<ListQuery, S3Error> {
        let invalid = |what| S3Error::new(400, "InvalidArgument", format!("{what} is not valid"));
        let mut query = ListQuery {
            max_keys: PAGE,
            ..ListQuery::default()
        };
        for (name, value) in pairs {
            match name.as_str() {
                "prefix" => query.prefix = value.clone(),
                "delimiter" => query.delimiter = value.clone(),
                "start-after" => query.start_after = value.clone(),
                "encoding-type" if value == "url" => query.encode = true,
                "encoding-type" => return Err(invalid("encoding-type")),
                "max-keys" => {
                    let number: u32 = value.parse().map_err(|_| invalid("max-keys"))?;
                    query.max_keys = PAGE.min(number as usize);
                }
                "continuation-token" => {
                    let token = Continuation::decode(value);
                    query.continuation = Some(token.ok_or_else(|| invalid("continuation-token"))?);
                }
                _ => {}
            }
        }
        Ok(query)
    }
}

impl Continuation {
    fn encode(&self) -> String {
        format!(
            "{}{}",
            if self.is_prefix { 'p' } else { 'k' },
            hex::encode(&self.after)
        )
    }

    fn decode(text: &str) -> Option<Continuation> {
        let is_prefix = match text.as_bytes().first()? {
            b'p' => true,
            b'k' => false,
            _ => return None,
        };
        let after = String::from_utf8(hex::decode(&text[1..]).ok()?).ok()?;
        Some(Continuation { after, is_prefix })
    }

    fn covers(&self, key: &str) -> bool {
        key <= self.after.as_str() || (self.is_prefix && key.starts_with(&self.after))
    }
}

/// The page that `query` asks for of `entries`, which are sorted by key.
pub(crate) fn page<'a>(entries: &'a [Entry], query: &ListQuery) -> Page<'a> {
    let mut page = Page::default();
    let covered = |key: &str| match &query.continuation {
        Some(continuation) => continuation.covers(key),
        None => !query.start_after.is_empty() && key <= query.start_after.as_str(),
    };
    let start = entries.partition_point(|e| e.key < query.prefix || covered(&e.key));
    // The last thing given, which the next page begins after.
    let mut last: Option<Continuation> = None;
    let _ = entries[start..].iter().try_for_each(|entry| {
        if !entry.key.starts_with(&query.prefix) {
            return ControlFlow::Break(());
        }
        if last.as_ref().is_some_and(|last| last.covers(&entry.key)) {
            return ControlFlow::Continue(());
        }
        if page.entries.len() + page.prefixes.len() == query.max_keys {
            page.next = last.take();
            return ControlFlow::Break(());
        }
        let common = common_prefix(&entry.key, query);
        let (after, is_prefix) = (common.unwrap_or(&entry.key).to_owned(), common.is_some());
        match is_prefix {
            true => page.prefixes.push(after.clone()),
            false => page.entries.push(entry),
        }
        last = Some(Continuation { after, is_prefix });
        ControlFlow::Continue(())
    });
    page
}

/// The key up to and with the first delimiter after the prefix.
fn common_prefix<'a>(key: &'a str, query: &ListQuery) -> Option<&'a str> {
    if query.delimiter.is_empty() {
        return None;
    }
    let at = key[query.prefix.len()..].find(&query.delimiter)?;
    Some(&key[..query.prefix.len() + at + query.delimiter.len()])
}

/// The page as S3 tells it.
pub(crate) fn to_xml(bucket: &str, query: &ListQuery, page: &Page<'_>) -> String {
    let name = |text: &str| match query.encode {
        true => uri::encode_path(text),
        false => escape(text).into_owned(),
    };
    let mut xml = String::from(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">",
    );
    let mut element = |tag: &str, text: &str| {
        let _ = write!(xml, "<{tag}>{text}</{tag}>");
    };
    element("Name", &escape(bucket));
    element("Prefix", &name(&query.prefix));
    if !query.delimiter.is_empty() {
        element("Delimiter", &name(&query.delimiter));
    }
    if !query.start_after.is_empty() {
        element("StartAfter", &name(&query.start_after));
    }
    if let Some(continuation) = &query.continuation {
        element("ContinuationToken", &continuation.encode());
    }
    if let Some(next) = &page.next {
        element("NextContinuationToken", &next.encode());
    }
    if query.encode {
        element("EncodingType", "url");
    }
    element(
        "KeyCount",
        &(page.entries.len() + page.prefixes.len()).to_string(),
    );
    element("MaxKeys", &query.max_keys.to_string());
    element(
        "IsTruncated",
        if page.next.is_some() { "true" } else { "false" },
    );
    for entry in &page.entries {
        let _ = write!(
            xml,
            "<Contents><Key>{}</Key><LastModified>{}</LastModified><ETag>{}</ETag><Size>{}</Size>\
             <StorageClass>STANDARD</StorageClass></Contents>",
            name(&entry.key),
            iso8601(entry.modified),
            escape(&entry.etag),
            entry.size,
        );
    }
    for prefix in &page.prefixes {
        let _ = write!(
            xml,
            "<CommonPrefixes><Prefix>{}</Prefix></CommonPrefixes>",
            name(prefix)
        );
    }
    xml.push_str("</ListBucketResult>");
    xml
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::UNIX_EPOCH;

    fn entries(keys: &[String]) -> Vec<Entry> {
        let mut keys = keys.to_vec();
        keys.sort();
        keys.dedup();
        let entry = |key| Entry {
            key,
            size: 1,
            etag: "\"e\"".into(),
            modified: UNIX_EPOCH,
        };
        keys.into_iter().map(entry).collect()
    }

    /// All pages of a query, one after the other, and how many there were.
    fn all(entries: &[Entry], mut query: ListQuery) -> (Vec<String>, Vec<String>, usize) {
        let (mut keys, mut prefixes, mut pages) = (vec![], vec![], 0);
        loop {
            let page = page(entries, &query);
            assert!(page.entries.len() + page.prefixes.len() <= query.max_keys);
            keys.extend(page.entries.iter().map(|e| e.key.clone()));
            prefixes.extend(page.prefixes.iter().cloned());
            pages += 1;
            let Some(next) = page.next else {
                return (keys, prefixes, pages);
            };
            query.continuation = Continuation::decode(&next.encode());
            assert!(query.continuation.is_some());
        }
    }

    #[test]
    fn a_page_of_no_keys_is_empty_and_last() {
        let entries = entries(&["a".into()]);
        let page = page(&entries, &ListQuery::default());
        assert!(page.entries.is_empty() && page.next.is_none());
    }

    #[test]
    fn bad_arguments_are_refused_and_unknown_ones_ignored() {
        let query =
            |name: &str, value: &str| ListQuery::from_pairs(&[(name.to_owned(), value.to_owned())]);
        assert!(query("max-keys", "-1").is_err());
        assert!(query("encoding-type", "x").is_err());
        for token in ["", "x00", "k0", "kff", "é"] {
            assert!(query("continuation-token", token).is_err(), "{token}");
        }
        assert_eq!(query("max-keys", "5000").unwrap().max_keys, 1000);
        assert!(query("fetch-owner", "true").is_ok());
    }

    #[test]
    fn names_are_escaped_or_encoded_as_asked() {
        let entries = entries(&["a<b c".into()]);
        let mut query = ListQuery {
            max_keys: 10,
            ..ListQuery::default()
        };
        assert!(to_xml("b", &query, &page(&entries, &query)).contains("<Key>a&lt;b c</Key>"));
        query.encode = true;
        assert!(to_xml("b", &query, &page(&entries, &query)).contains("<Key>a%3Cb%20c</Key>"));
    }

    proptest! {
        #[test]
        fn pages_together_are_the_whole_listing_once(
            keys in proptest::collection::vec("[ab/]{1,6}", 0..40),
            prefix in "[ab/]{0,2}", start_after in "[ab/]{0,3}",
            delimiter in "/?", max_keys in 1..7_usize,
        ) {
            let entries = entries(&keys);
            let query = ListQuery {
                prefix: prefix.clone(), delimiter: delimiter.clone(), max_keys,
                start_after: start_after.clone(), ..ListQuery::default()
            };
            let (found, prefixes, _) = all(&entries, query);
            let mut expected = vec![];
            let mut expected_prefixes = vec![];
            let wanted = entries.iter().map(|e| &e.key)
                .filter(|k| k.starts_with(&prefix) && (start_after.is_empty() || **k > start_after));
            for key in wanted {
                match key[prefix.len()..].split_once('/') {
                    Some((head, _)) if !delimiter.is_empty() =>
                        expected_prefixes.push(format!("{prefix}{head}/")),
                    _ => expected.push(key.clone()),
                }
            }
            expected_prefixes.dedup();
            prop_assert_eq!(found, expected);
            prop_assert_eq!(prefixes, expected_prefixes);
        }
    }
}
