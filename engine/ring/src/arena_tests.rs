use proptest::prelude::*;

use super::*;
use crate::fuzz_key;

fn both(entries: u32) -> (ArenaWriter, ArenaReader, Region) {
    let layout = Layout::new(entries).unwrap();
    let region = Region::heap(layout.client_bytes());
    let reader = ArenaReader::new(&region, layout);
    (ArenaWriter::new(&region, layout), reader, region)
}

fn named<'a>(bucket: &'a str, key: &'a str, etag: &'a str) -> Object<&'a str> {
    Object::Named {
        bucket,
        key,
        etag: Some(etag),
        version: None,
    }
}

/// What a reader makes of what a writer was given.
fn owned(object: &Object<&str>) -> Object<Arc<str>> {
    match *object {
        Object::Opened(id) => Object::Opened(id),
        Object::Named {
            bucket,
            key,
            etag,
            version,
        } => Object::Named {
            bucket: bucket.into(),
            key: key.into(),
            etag: etag.filter(|etag| !etag.is_empty()).map(Arc::from),
            version: version.map(|Version { size, id }| Version {
                size,
                id: id.filter(|id| !id.is_empty()).map(Arc::from),
            }),
        },
    }
}

fn with_header(value: usize) -> Options {
    Options {
        checksum: Some("crc32:y/Q5Jg==".to_owned()),
        headers: vec![("x-a".to_owned(), "v".repeat(value))],
        ..Options::default()
    }
}

#[test]
fn options_follow_the_name_and_get_what_that_leaves_of_the_stripe() {
    let (mut writer, mut reader, _) = both(2);
    let name = named("bucket", "a/key", "\"e\"");
    let options = with_header(300);
    let record = writer.write(1, &name, Some(&options)).unwrap();
    assert!(record.options_len > 300);
    let read = reader.read(&record).unwrap();
    assert_eq!(read.object, owned(&name));
    assert_eq!(read.options.as_deref(), Some(&options));
    // An object that was opened has options too.
    let opened = Object::Opened(5);
    let record = writer.write(0, &opened, Some(&options)).unwrap();
    let read = reader.read(&record).unwrap();
    assert_eq!(
        (read.object, read.options.as_deref()),
        (owned(&opened), Some(&options))
    );
    let none = writer.write(0, &opened, Some(&Options::default())).unwrap();
    assert_eq!(reader.read(&none).unwrap().options, None);

    let too_long = with_header(STRIPE);
    let why = writer.write(1, &name, Some(&too_long)).unwrap_err();
    assert!(matches!(why, Meaning::RecordTooLong { .. }), "{why}");
    let far_too_long = with_header(usize::from(u16::MAX) + 1);
    assert!(writer.write(1, &name, Some(&far_too_long)).is_err());
}

#[test]
fn the_longest_name_fits_its_stripe_and_touches_no_other() {
    let (mut writer, mut reader, _) = both(4);
    let texts: Vec<[String; 4]> = (0..4)
        .map(|entry| {
            let fill = |n| char::from(b'a' + entry).to_string().repeat(n);
            [fill(255), fill(1024), fill(128), fill(255)]
        })
        .collect();
    let object = |[bucket, key, etag, id]: &'static [String; 4]| Object::Named {
        bucket: &**bucket,
        key: &**key,
        etag: Some(&**etag),
        version: Some(Version {
            size: 7,
            id: Some(&**id),
        }),
    };
    let texts: &'static [[String; 4]] = texts.leak();
    let records: Vec<RecordRef> = texts
        .iter()
        .zip(0..)
        .map(|(texts, entry)| writer.write(entry, &object(texts), None).unwrap())
        .collect();
    for (entry, (record, texts)) in records.iter().zip(texts).enumerate() {
        writer.stamp(entry as u32, 100 + entry as u64);
        let read = reader.read(record).unwrap();
        assert_eq!(read.submitted_ns, 100 + entry as u64);
        assert_eq!(read.object, owned(&object(texts)));
    }
}

#[test]
fn a_name_that_is_too_long_is_refused_by_the_writer() {
    let (mut writer, ..) = both(1);
    let key = "k".repeat(1025);
    let why = writer.write(0, &named("b", &key, ""), None).unwrap_err();
    assert_eq!(
        why,
        Meaning::NameLength {
            bucket: 1,
            key: 1025,
            etag: 0,
            version: 0
        }
    );
}

#[test]
fn bytes_that_are_no_text_are_an_error() {
    let (mut writer, mut reader, region) = both(1);
    let name = named("bucket00", "keykeyke", "\"tag\"");
    let record = writer.write(0, &name, None).unwrap();
    let layout = Layout::new(1).unwrap();
    let words = region.own_words(layout.arena(), layout.arena_bytes());
    let what_of = |at: usize, word: [u8; 8], reader: &mut ArenaReader| {
        words.store(HEAD / 8 + at, &[u64::from_le_bytes(word)]);
        match reader.read(&record) {
            Err(Meaning::NameText { what, wanted }) => (what, wanted),
            other => panic!("{other:?}"),
        }
    };
    let mut bytes = *b"keykeyke";
    bytes[3] = 0xff;
    assert_eq!(what_of(1, bytes, &mut reader), ("key", "UTF-8"));
    words.store(HEAD / 8 + 1, &[u64::from_le_bytes(*b"keykeyke")]);
    let of_etag = what_of(2, *b"a\r\nb:c\0\0", &mut reader);
    assert_eq!(of_etag, ("ETag", "printable ASCII"));
}

#[test]
fn an_id_needs_no_name() {
    let (mut writer, mut reader, _) = both(1);
    let record = writer.write(0, &Object::Opened(u64::MAX), None).unwrap();
    let read = reader.read(&record).unwrap();
    assert_eq!(read.object, Object::Opened(u64::MAX));
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        bucket in "[a-z]{1,63}",
        key in ".{1,200}",
        etag in "[ -~]{0,128}",
        version in proptest::option::of((any::<u64>(), "[ -~]{0,255}")),
    ) {
        let (mut writer, mut reader, _) = both(2);
        let version = version.as_ref().map(|(size, id)| Version { size: *size, id: Some(&**id) });
        let object = Object::Named { bucket: &*bucket, key: &*key, etag: Some(&*etag), version };
        let record = writer.write(1, &object, None).unwrap();
        prop_assert_eq!(reader.read(&record).unwrap().object, owned(&object));
    }

    #[test]
    fn any_bytes_are_read(data in prop::collection::vec(any::<u8>(), 0..1500)) {
        fuzz_key(&data);
    }
}
