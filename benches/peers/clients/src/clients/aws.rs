//! The AWS SDK, and its transfer manager.

use aws_sdk_s3::Client as S3;
use aws_sdk_s3::config::{Config, Credentials, Region};
use aws_sdk_s3_transfer_manager::Client as Transfers;
use aws_sdk_s3_transfer_manager::types::{ConcurrencyMode, PartSize};
use tokio::runtime::Runtime;

use super::{Client, put};
use crate::work::{BUCKET, Result, Work};

fn s3(work: &Work) -> Result<S3> {
    if work.ca.is_some() {
        return Err("the SDK is measured over plain HTTP only".into());
    }
    let config = Config::builder()
        .behavior_version_latest()
        .region(Region::new("us-east-1"))
        .credentials_provider(Credentials::new("id", "secret", None, None, "static"))
        .endpoint_url(work.url())
        .force_path_style(true)
        .build();
    Ok(S3::from_conf(config))
}

fn header((start, end): (usize, usize)) -> String {
    format!("bytes={start}-{}", end - 1)
}

/// `GetObject` for each request.
pub struct Sdk {
    client: S3,
    key: String,
}

impl Sdk {
    pub fn new(work: &Work) -> Result<Sdk> {
        Ok(Sdk {
            client: s3(work)?,
            key: work.key(),
        })
    }
}

impl Client for Sdk {
    async fn get(&self, range: Option<(usize, usize)>, place: &mut [u8]) -> Result<usize> {
        let request = self.client.get_object().bucket(BUCKET).key(&self.key);
        let request = request.set_range(range.map(header));
        let (mut body, mut at) = (request.send().await?.body, 0);
        while let Some(piece) = body.try_next().await? {
            put(place, &mut at, &piece)?;
        }
        Ok(at)
    }
}

/// The transfer manager, which cuts downloads into parts itself.
pub struct Manager {
    client: Transfers,
    key: String,
}

impl Manager {
    pub fn new(work: &Work, runtime: &Runtime) -> Result<Manager> {
        let s3 = s3(work)?;
        let _inside = runtime.enter();
        let config = aws_sdk_s3_transfer_manager::Config::builder()
            .client(s3)
            .part_size(PartSize::Target(work.shape.each() as u64))
            .concurrency(ConcurrencyMode::Explicit(work.shape.in_flight))
            .build();
        Ok(Manager {
            client: Transfers::new(config),
            key: work.key(),
        })
    }
}

impl Client for Manager {
    async fn get(&self, range: Option<(usize, usize)>, place: &mut [u8]) -> Result<usize> {
        let request = self.client.download().bucket(BUCKET).key(&self.key);
        let mut download = request.set_range(range.map(header)).initiate()?;
        let mut at = 0;
        while let Some(part) = download.body_mut().next().await {
            let mut data = part?.data;
            while bytes::Buf::has_remaining(&data) {
                let piece = bytes::Buf::chunk(&data);
                let len = piece.len();
                put(place, &mut at, piece)?;
                bytes::Buf::advance(&mut data, len);
            }
        }
        Ok(at)
    }
}
