//! object_store: by its stream of pieces, or by `get_range`, which gathers them first.

use std::fs;

use futures_util::TryStreamExt;
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path;
use object_store::{Certificate, ClientOptions, GetOptions, GetRange, ObjectStore, ObjectStoreExt};

use super::{Client, put};
use crate::work::{BUCKET, Result, Work};

pub struct Store {
    store: AmazonS3,
    key: Path,
    gathers: bool,
}

impl Store {
    pub fn new(work: &Work, gathers: bool) -> Result<Store> {
        let mut options = ClientOptions::new().with_allow_http(true);
        if let Some(ca) = &work.ca {
            options = options.with_root_certificate(Certificate::from_pem(&fs::read(ca)?)?);
        }
        let store = AmazonS3Builder::new()
            .with_bucket_name(BUCKET)
            .with_endpoint(work.url())
            .with_region("us-east-1")
            .with_access_key_id("id")
            .with_secret_access_key("secret")
            .with_client_options(options)
            .build()?;
        let key = Path::from(work.key());
        Ok(Store {
            store,
            key,
            gathers,
        })
    }
}

impl Client for Store {
    async fn get(&self, range: Option<(usize, usize)>, place: &mut [u8]) -> Result<usize> {
        let mut at = 0;
        let range = range.map(|(start, end)| start as u64..end as u64);
        match range {
            Some(range) if self.gathers => {
                let bytes = self.store.get_range(&self.key, range).await?;
                put(place, &mut at, &bytes)?;
            }
            None if self.gathers => {
                let bytes = self.store.get(&self.key).await?.bytes().await?;
                put(place, &mut at, &bytes)?;
            }
            range => {
                let options = GetOptions {
                    range: range.map(GetRange::Bounded),
                    ..GetOptions::default()
                };
                let mut pieces = self.store.get_opts(&self.key, options).await?.into_stream();
                while let Some(piece) = pieces.try_next().await? {
                    put(place, &mut at, &piece)?;
                }
            }
        }
        Ok(at)
    }
}
