//! A list, read to its end.

use s3engine::{Engine, ListQuery};

use crate::block_on;

/// The keys and the common prefixes of all pages, in the order in which they came.
pub fn keys_and_prefixes(
    engine: &Engine,
    bucket: &str,
    query: ListQuery,
) -> (Vec<String>, Vec<String>) {
    let (mut keys, mut prefixes) = (Vec::new(), Vec::new());
    let mut lister = engine.list(bucket, query);
    while let Some(page) = block_on(lister.next()).expect("a page") {
        keys.extend(page.objects.into_iter().map(|object| object.key));
        prefixes.extend(page.prefixes);
    }
    (keys, prefixes)
}
