//! hyper with its pooling client: HTTP and nothing of S3, not even signed.

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper_util::client::legacy::Client as Pooling;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

use super::{Client, put};
use crate::work::{BUCKET, Result, Work};

pub struct Hyper {
    client: Pooling<HttpConnector, Empty<Bytes>>,
    url: String,
}

impl Hyper {
    pub fn new(work: &Work) -> Result<Hyper> {
        if work.ca.is_some() {
            return Err("hyper is measured over plain HTTP only".into());
        }
        let client = Pooling::builder(TokioExecutor::new())
            .pool_max_idle_per_host(1024)
            .build_http();
        let url = format!("{}/{BUCKET}/{}", work.url(), work.key());
        Ok(Hyper { client, url })
    }
}

impl Client for Hyper {
    async fn get(&self, range: Option<(usize, usize)>, place: &mut [u8]) -> Result<usize> {
        let mut request = Request::get(&self.url);
        if let Some((start, end)) = range {
            request = request.header("range", format!("bytes={start}-{}", end - 1));
        }
        let answer = self.client.request(request.body(Empty::new())?).await?;
        if !answer.status().is_success() {
            return Err(answer.status().to_string().into());
        }
        let (mut body, mut at) = (answer.into_body(), 0);
        while let Some(frame) = body.frame().await {
            if let Ok(piece) = frame?.into_data() {
                put(place, &mut at, &piece)?;
            }
        }
        Ok(at)
    }
}
