use proptest::prelude::*;

use super::*;
use crate::fuzz_key;

fn both(entries: u32) -> (ArenaWriter, ArenaReader, Region) {
    let layout = Layout::new(entries).unwrap();
    let region = Region::heap(layout.client_bytes());
    let reader = ArenaReader::new(&region, layout);
    (ArenaWriter::new(&region, layout), reader, region)
}

#[test]
fn the_longest_name_fits_its_stripe_and_touches_no_other() {
    let (mut writer, mut reader, _) = both(4);
    let names: Vec<NameRef> = (0..4)
        .map(|entry| {
            let fill = |n| char::from(b'a' + entry as u8).to_string().repeat(n);
            writer
                .write(entry, &fill(255), &fill(1024), &fill(128))
                .unwrap()
        })
        .collect();
    for (entry, name) in names.into_iter().enumerate() {
        let read = reader.read(name).unwrap();
        let fill = |n| char::from(b'a' + entry as u8).to_string().repeat(n);
        assert_eq!((&*read.bucket, &*read.key), (&*fill(255), &*fill(1024)));
        assert_eq!(read.etag.as_deref(), Some(&*fill(128)));
    }
}

#[test]
fn a_name_that_is_too_long_is_refused_by_the_writer() {
    let (mut writer, ..) = both(1);
    let key = "k".repeat(1025);
    let why = writer.write(0, "b", &key, "").unwrap_err();
    assert_eq!(
        why,
        Meaning::NameLength {
            bucket: 1,
            key: 1025,
            etag: 0
        }
    );
}

#[test]
fn bytes_that_are_no_text_are_an_error() {
    let (mut writer, mut reader, region) = both(1);
    let name = writer.write(0, "bucket00", "keykeyke", "\"tag\"").unwrap();
    let layout = Layout::new(1).unwrap();
    let words = region.own_words(layout.arena(), layout.arena_bytes());
    words.store(1, &[0xff]);
    let why = reader.read(name).unwrap_err();
    assert_eq!(
        why,
        Meaning::NameText {
            what: "key",
            wanted: "UTF-8"
        }
    );
    words.store(1, &[u64::from_le_bytes(*b"keykeyke")]);
    words.store(2, &[u64::from_le_bytes(*b"a\r\nb:c\0\0")]);
    let why = reader.read(name).unwrap_err();
    assert_eq!(
        why,
        Meaning::NameText {
            what: "ETag",
            wanted: "printable ASCII"
        }
    );
}

#[test]
fn debug_shows_where_a_name_leads() {
    let (mut writer, mut reader, _) = both(1);
    let name = writer.write(0, "b", "a\nb", "").unwrap();
    assert_eq!(format!("{:?}", reader.read(name).unwrap()), r#""b"/"a\nb""#);
}

proptest! {
    #[test]
    fn what_is_written_is_read(bucket in "[a-z]{1,63}", key in ".{1,200}", etag in "[ -~]{0,128}") {
        let (mut writer, mut reader, _) = both(2);
        let name = writer.write(1, &bucket, &key, &etag).unwrap();
        let read = reader.read(name).unwrap();
        prop_assert_eq!((&*read.bucket, &*read.key), (&*bucket, &*key));
        prop_assert_eq!(read.etag.as_deref().unwrap_or(""), &*etag);
    }

    #[test]
    fn any_bytes_are_read(data in prop::collection::vec(any::<u8>(), 0..1500)) {
        fuzz_key(&data);
    }
}
