use proptest::prelude::*;
use quick_xml::escape::escape;

use super::*;

const KEYS: [&str; 12] = [
    "a",
    " spaces at both ends ",
    "a+b",
    "100%",
    "%41",
    "<&>'\"]]>",
    "ü/日本語/🦀",
    "line\nfeed",
    "cr\r\nlf\r",
    "tab\t\u{1}\u{7f}",
    "a//b/",
    "&amp;",
];

fn listed(key: &str, size: u64) -> ListedObject {
    ListedObject {
        key: key.to_owned(),
        size,
        etag: Some(ETag::new("\"e<1>\"")),
        last_modified: Some("2026-08-14T11:02:00.000Z".to_owned()),
    }
}

/// How a server may write a name: encoded, or with the XML's own escapes.
fn written(name: &str, encoded: bool) -> String {
    if encoded {
        url::form_urlencoded::byte_serialize(name.as_bytes()).collect()
    } else {
        // Line ends as they are would all be read as `\n`.
        escape(name).replace('\r', "&#13;")
    }
}

fn rendered(page: &ListPage, encoded: bool) -> String {
    let mut xml = String::from(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<ListBucketResult xmlns=\"x\"><Name>b</Name><Prefix></Prefix>",
    );
    if encoded {
        xml += "<EncodingType>url</EncodingType>";
    }
    xml += &format!("<IsTruncated>{}</IsTruncated>", page.next.is_some());
    for object in &page.objects {
        xml += &format!(
            "<Contents>\n  <Key>{}</Key><Size>{}</Size><Owner><ID>o</ID><Key>not the key</Key></Owner>",
            written(&object.key, encoded),
            object.size
        );
        if let Some(etag) = &object.etag {
            xml += &format!("<ETag>{}</ETag>", escape(etag.as_str()));
        }
        if let Some(at) = &object.last_modified {
            xml += &format!("<LastModified>{}</LastModified>", escape(at.as_str()));
        }
        xml += "</Contents>";
    }
    for prefix in &page.prefixes {
        let prefix = written(prefix, encoded);
        xml += &format!("<CommonPrefixes><Prefix>{prefix}</Prefix></CommonPrefixes>");
    }
    if let Some(token) = &page.next {
        xml += &format!(
            "<NextContinuationToken>{}</NextContinuationToken>",
            escape(token.as_str())
        );
    }
    xml + "</ListBucketResult>\n"
}

fn parse(text: &str) -> Result<ListPage, ListError> {
    ListPage::parse(text.as_bytes(), &ListQuery::default())
}

/// A list whose elements are these.
fn list_of(elements: &str) -> Result<ListPage, ListError> {
    parse(&format!("<ListBucketResult>{elements}</ListBucketResult>"))
}

#[test]
fn odd_keys_are_read_as_they_are_encoded_or_not() {
    let page = ListPage {
        objects: KEYS.iter().map(|key| listed(key, 7)).collect(),
        prefixes: KEYS.iter().map(|key| format!("{key}/")).collect(),
        next: Some("t/+&=".into()),
    };
    for encoded in [true, false] {
        assert_eq!(parse(&rendered(&page, encoded)), Ok(page.clone()));
    }
}

#[test]
fn an_empty_list_is_an_empty_page() {
    let empty = Ok(ListPage::default());
    assert_eq!(list_of("<IsTruncated>false</IsTruncated>"), empty);
    let spaced = "\u{feff}<?xml version=\"1.0\"?>\n<!-- c -->\n<s3:ListBucketResult>\n <IsTruncated> false </IsTruncated>\n\
         <NextContinuationToken/><EncodingType/></s3:ListBucketResult>\n";
    assert_eq!(parse(spaced), empty);
}

#[test]
fn a_list_that_ends_anywhere_before_its_end_is_cut() {
    let page = ListPage {
        objects: KEYS.iter().map(|key| listed(key, 7)).collect(),
        prefixes: vec!["p/".into()],
        next: None,
    };
    for encoded in [true, false] {
        let whole = rendered(&page, encoded);
        let whole = whole.trim_end().as_bytes();
        for end in 0..whole.len() {
            let error = ListPage::parse(&whole[..end], &ListQuery::default()).unwrap_err();
            let cut = matches!(error, ListError::Cut { bytes } if bytes == end as u64);
            assert!(cut, "{end}: {error}");
        }
    }
}

#[test]
fn another_document_is_named() {
    for (text, root) in [
        ("<Error><Code>SlowDown</Code></Error>", "Error"),
        ("<html></html>", "html"),
        ("<ListBucketResult2/>", "ListBucketResult2"),
    ] {
        let root = root.to_owned();
        assert_eq!(parse(text), Err(ListError::NotAList { root }));
    }
    for text in [
        "{\"Contents\":[]}",
        "<a></b>",
        "x<ListBucketResult/>",
        "<!x",
    ] {
        let error = parse(text).unwrap_err();
        assert!(!error.to_string().is_empty(), "{text}");
    }
    let twice =
        "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult><ListBucketResult/>";
    assert!(matches!(parse(twice), Err(ListError::Xml { .. })));
}

#[test]
fn a_list_that_goes_on_says_where_and_not_where_it_was() {
    let goes_on = "<IsTruncated>true</IsTruncated>";
    assert_eq!(list_of(goes_on), Err(ListError::NoToken));
    let empty = format!("{goes_on}<NextContinuationToken></NextContinuationToken>");
    assert_eq!(list_of(&empty), Err(ListError::NoToken));
    let text = format!(
        "<ListBucketResult>{goes_on}<NextContinuationToken>t</NextContinuationToken></ListBucketResult>"
    );
    let after = |token: &str| ListQuery {
        continuation: Some(token.into()),
        ..ListQuery::default()
    };
    let next = |token| ListPage::parse(text.as_bytes(), &after(token)).map(|page| page.next);
    assert_eq!(next("s"), Ok(Some("t".into())));
    assert_eq!(next("t"), Err(ListError::SameToken));
    // The last page may repeat a token: nobody follows it.
    let last = "<IsTruncated>false</IsTruncated><NextContinuationToken>t</NextContinuationToken>";
    assert_eq!(list_of(last).map(|page| page.next), Ok(None));
}

#[test]
fn sizes_are_digits_that_a_file_can_have() {
    let sized = |size: &str| {
        list_of(&format!(
            "<IsTruncated>false</IsTruncated><Contents><Key>k</Key><Size>{size}</Size></Contents>"
        ))
        .map(|page| page.objects[0].size)
    };
    assert_eq!(sized("0"), Ok(0));
    assert_eq!(sized(" 9223372036854775807\n"), Ok(i64::MAX as u64));
    for bad in [
        "-1",
        "+1",
        "",
        "1.5",
        "1e3",
        "0x1",
        "9223372036854775808",
        "18446744073709551616",
    ] {
        assert_eq!(sized(bad), Err(value("Size", bad)), "{bad}");
    }
}

#[test]
fn what_is_missing_twice_or_unknown_is_named() {
    let of = |elements: &str| list_of(elements).unwrap_err();
    assert_eq!(of(""), missing("IsTruncated"));
    assert_eq!(
        of("<IsTruncated>maybe</IsTruncated>"),
        value("IsTruncated", "maybe")
    );
    let whole = "<IsTruncated>false</IsTruncated>";
    let with = |more: &str| of(&format!("{whole}{more}"));
    assert_eq!(with("<Contents><Size>1</Size></Contents>"), missing("Key"));
    assert_eq!(
        with("<Contents><Key/><Size>1</Size></Contents>"),
        missing("Key")
    );
    assert_eq!(with("<Contents><Key>k</Key></Contents>"), missing("Size"));
    assert_eq!(
        with("<EncodingType>rot13</EncodingType>"),
        value("EncodingType", "rot13")
    );
    let element = "Key";
    assert_eq!(
        with("<Contents><Key>a</Key><Key>b</Key></Contents>"),
        ListError::Repeated { element }
    );
    let element = "IsTruncated";
    assert_eq!(with(whole), ListError::Repeated { element });
    assert!(matches!(
        with("<Contents><Key>&a;</Key></Contents>"),
        ListError::Xml { .. }
    ));
}

#[test]
fn names_that_nobody_asked_for_are_refused() {
    let page = ListPage {
        objects: vec![listed("a/b", 1)],
        prefixes: vec!["a/c/".into()],
        next: None,
    };
    let under = |prefix: &str| {
        let asked = ListQuery {
            prefix: prefix.into(),
            ..ListQuery::default()
        };
        ListPage::parse(rendered(&page, true).as_bytes(), &asked)
    };
    assert_eq!(under("a/"), Ok(page.clone()));
    let name = "a/c/".to_owned();
    assert_eq!(under("a/b"), Err(ListError::Unasked { name }));
}

#[test]
fn names_that_do_not_decode_are_refused() {
    let named = |key: &str| {
        list_of(&format!(
            "<EncodingType>url</EncodingType><IsTruncated>false</IsTruncated>\
             <Contents><Key>{key}</Key><Size>1</Size></Contents>"
        ))
        .map(|page| page.objects[0].key.clone())
    };
    assert_eq!(named("a+b%2Bc%20d/"), Ok("a b+c d/".into()));
    for bare in ["100%", "%4", "%4g", "%%41"] {
        let name = bare.to_owned();
        assert_eq!(named(bare), Err(ListError::NotEncoded { name }));
    }
    let text = "%ff".to_owned();
    assert_eq!(named("%ff"), Err(ListError::NotUtf8 { text }));
    let raw = ListPage::parse(b"<ListBucketResult>\xff", &ListQuery::default());
    assert!(matches!(raw, Err(ListError::NotUtf8 { .. })));
}

#[test]
fn a_query_says_what_is_set_and_goes_on_where_it_stopped() {
    let pairs = |query: &ListQuery| {
        let pairs = query.pairs().into_iter();
        pairs
            .map(|(name, value)| format!("{name}={value}"))
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(
        pairs(&ListQuery::default()),
        "list-type=2 encoding-type=url"
    );
    let mut query = ListQuery {
        prefix: "a/ +".into(),
        delimiter: Some("/".into()),
        start_after: Some("a/ +b".into()),
        max_keys: Some(7),
        continuation: None,
    };
    let first = "list-type=2 encoding-type=url prefix=a/ + delimiter=/ max-keys=7";
    assert_eq!(pairs(&query), format!("{first} start-after=a/ +b"));
    query.continuation = Some("t".into());
    assert_eq!(pairs(&query), format!("{first} continuation-token=t"));
}

fn any_page() -> impl Strategy<Value = ListPage> {
    let key = prop_oneof![any::<String>(), "[ -~\r\n\t]{1,12}", "[%+&<;/ é]{1,8}"]
        .prop_filter("a key is not empty", |key| !key.is_empty());
    let at = proptest::option::of("[0-9TZ:.-]{1,24}");
    let etag = proptest::option::of("\"[ -~]{0,12}\"");
    let object =
        (key.clone(), 0..=LARGEST, etag, at).prop_map(|(key, size, etag, at)| ListedObject {
            key,
            size,
            etag: etag.map(ETag::new),
            last_modified: at,
        });
    let objects = prop::collection::vec(object, 0..8);
    let next = proptest::option::of("[!-~]{1,20}");
    (objects, prop::collection::vec(key, 0..4), next).prop_map(|(objects, prefixes, next)| {
        ListPage {
            objects,
            prefixes,
            next,
        }
    })
}

proptest! {
    #[test]
    fn a_rendered_list_parses_back_to_itself(page in any_page(), encoded: bool) {
        prop_assert_eq!(parse(&rendered(&page, encoded)), Ok(page));
    }

    #[test]
    fn no_bytes_panic(body in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = ListPage::parse(&body, &ListQuery::default());
    }

    #[test]
    fn no_xml_like_text_panics(
        body in "(<ListBucketResult>|</ListBucketResult>|<Contents>|</Contents>|<Key>|</Key>|<Key/>|<Size>|</Size>|<|>|&|;|&#|<!\\[CDATA\\[|\\]\\]>|<!--|<\\?|[a-z0-9%+]|é){0,40}"
    ) {
        let _ = parse(&format!("<ListBucketResult>{body}"));
        let _ = parse(&body);
    }

    #[test]
    fn a_list_with_a_byte_changed_is_read_or_refused(page in any_page(), at: prop::sample::Index, byte: u8) {
        let mut body = rendered(&page, true).into_bytes();
        let at = at.index(body.len());
        body[at] = byte;
        let _ = ListPage::parse(&body, &ListQuery::default());
    }
}
