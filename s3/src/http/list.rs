//! One page of a list.

use http::Method;

use super::client::Client;
use super::error_body::ErrorBody;
use crate::error::{Error, ErrorKind};
use crate::list::{ListError, ListPage, ListQuery};
use crate::options::RequestOptions;

/// A page of 1,000 of the longest keys, all of it encoded, is a fifth of this.
const LONGEST_LIST: u64 = 16 << 20;

impl Client {
    /// Asks for one page of the names in a bucket.
    ///
    /// A body that moves may take its time, which is the caller's to bound.
    pub async fn list(
        &self,
        bucket: &str,
        query: &ListQuery,
        options: &RequestOptions,
    ) -> Result<ListPage, Error> {
        let pairs = query.pairs();
        let pairs: Vec<_> = pairs
            .iter()
            .map(|(name, value)| (*name, &**value))
            .collect();
        let mut request = self.request(Method::GET, bucket, "");
        request.query = &pairs;
        let added = options.add_of_bucket(&mut request.headers);
        added.map_err(|why| self.error(&Method::GET, bucket, "", ErrorKind::Config(why)))?;
        let answer = match self.send(&request).await {
            Ok(response) => {
                let read = |body: &[u8]| ListPage::parse(body, query).map_err(|e| kind(e, body));
                response.read(LONGEST_LIST, read).await
            }
            Err(failed) => Err(failed.error),
        };
        answer.map_err(|error| error.with_operation("LIST"))
    }
}

/// An S3 error under a status of success is still what it says.
fn kind(error: ListError, body: &[u8]) -> ErrorKind {
    match error {
        ListError::NotAList { ref root } if root == "Error" => {
            let body = ErrorBody::parse(body);
            ErrorKind::Status {
                status: 200,
                code: body.code,
                message: body.message,
            }
        }
        other => ErrorKind::Protocol(other.to_string()),
    }
}
