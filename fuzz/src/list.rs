//! The XML of a page of a list.
//!
//! ```text
//! train/                               the prefix asked for
//! token                                where the page before ended; empty for the first page
//! <ListBucketResult>...                the answer
//! ```

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use s3engine_s3::list::{ListPage, ListQuery};

/// Reads the bytes as a page.
pub fn list(data: &[u8]) -> bool {
    let mut lines = data.splitn(3, |byte| *byte == b'\n');
    let mut line = || std::str::from_utf8(lines.next()?).ok();
    let (Some(prefix), Some(token)) = (line(), line()) else {
        return false;
    };
    let asked = ListQuery {
        prefix: prefix.to_owned(),
        continuation: Some(token.to_owned()).filter(|token| !token.is_empty()),
        ..ListQuery::default()
    };
    let body = lines.next().unwrap_or_default();
    let Ok(page) = ListPage::parse(body, &asked) else {
        return false;
    };
    let keys = page.objects.iter().map(|object| &object.key);
    for name in keys.chain(&page.prefixes) {
        assert!(name.starts_with(&asked.prefix), "{name:?}");
    }
    for object in &page.objects {
        assert!(!object.key.is_empty() && object.size <= i64::MAX as u64);
    }
    assert!(page.next.as_ref().is_none_or(|next| !next.is_empty()));
    assert!(page.next.is_none() || page.next != asked.continuation);
    // What breaks off is no shorter list.
    for sixteenth in 0..16 {
        if let Ok(cut) = ListPage::parse(&body[..body.len() * sixteenth / 16], &asked) {
            assert_eq!(cut, page);
        }
    }
    let again = written(&page);
    assert_eq!(ListPage::parse(again.as_bytes(), &asked), Ok(page));
    true
}

/// The page as a server that encodes names writes it.
fn written(page: &ListPage) -> String {
    let name = |name: &str| utf8_percent_encode(name, NON_ALPHANUMERIC).to_string();
    let element = |name: &str, text: &str| format!("<{name}>{text}</{name}>");
    let mut xml = element("EncodingType", "url");
    for object in &page.objects {
        let mut content = element("Key", &name(&object.key));
        content += &element("Size", &object.size.to_string());
        if let Some(etag) = &object.etag {
            content += &element("ETag", &escaped(etag.as_str()));
        }
        if let Some(time) = &object.last_modified {
            content += &element("LastModified", &escaped(time));
        }
        xml += &element("Contents", &content);
    }
    for prefix in &page.prefixes {
        xml += &element("CommonPrefixes", &element("Prefix", &name(prefix)));
    }
    xml += &element("IsTruncated", &page.next.is_some().to_string());
    if let Some(next) = &page.next {
        xml += &element("NextContinuationToken", &escaped(next));
    }
    element("ListBucketResult", &xml)
}

/// Text as XML carries it: a bare carriage return would be read as a line feed.
fn escaped(text: &str) -> String {
    text.chars().fold(String::new(), |all, c| match c {
        '&' => all + "&amp;",
        '<' => all + "&lt;",
        '>' => all + "&gt;",
        '\r' => all + "&#13;",
        c => all + c.encode_utf8(&mut [0; 4]),
    })
}
