//! The names in a bucket, page by page.

use std::fmt;
use std::sync::Arc;

use s3engine_s3::error::Error;
use s3engine_s3::list::{ListPage, ListQuery};
use s3engine_s3::options::{NO_OPTIONS, RequestOptions};

use crate::client::Connected;
use crate::engine::Inner;
use crate::request::{ask, retried};
use crate::tenant::Tenant;

/// Gives the pages of a list one after the other. Nothing is asked for before it is wanted.
pub struct Lister {
    of: Listed,
    bucket: Arc<str>,
    /// Of the next page; `None` after the last one.
    query: Option<ListQuery>,
    options: Option<Arc<RequestOptions>>,
}

/// Who asks the server.
pub(crate) enum Listed {
    Here(Arc<Inner>),
    There(Arc<Connected>),
}

impl Lister {
    pub(crate) fn new(
        of: Listed,
        bucket: &str,
        query: ListQuery,
        options: Option<Arc<RequestOptions>>,
    ) -> Self {
        Self {
            of,
            bucket: bucket.into(),
            query: Some(query),
            options,
        }
    }

    /// The next page; `None` after the last one. A page may be empty and others follow.
    ///
    /// Runs on the engine's threads, whatever executor polls the future, is tried again as GETs are, and takes no
    /// longer than the deadline of one. After an error, or where the future was dropped, the same page comes next.
    pub async fn next(&mut self) -> Result<Option<ListPage>, Error> {
        let Some(query) = &mut self.query else {
            return Ok(None);
        };
        let options = self.options.clone();
        let page = match &self.of {
            Listed::Here(engine) => {
                let tenant = &engine.core.tenant;
                page(engine, tenant, &self.bucket, query.clone(), options).await?
            }
            Listed::There(connected) => {
                connected.list(&self.bucket, query.clone(), options).await?
            }
        };
        match &page.next {
            Some(token) => query.continuation = Some(token.clone()),
            None => self.query = None,
        }
        Ok(Some(page))
    }
}

impl fmt::Debug for Lister {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lister")
            .field("bucket", &self.bucket)
            .field("query", &self.query)
            .finish_non_exhaustive()
    }
}

/// One page, asked for on behalf of `tenant`.
pub(crate) async fn page(
    engine: &Inner,
    tenant: &Tenant,
    bucket: &str,
    query: ListQuery,
    options: Option<Arc<RequestOptions>>,
) -> Result<ListPage, Error> {
    let (of, share) = (bucket.to_owned(), tenant.share.clone());
    let asked = (bucket, "");
    let page = ask(
        &engine.core,
        tenant,
        "LIST",
        asked,
        move |lane, progress| {
            Box::pin(async move {
                let client = lane.client.watched(Arc::clone(&progress));
                let list = retried(&lane.core, &share, &progress, async || {
                    let options = options.as_deref().unwrap_or(&NO_OPTIONS);
                    client.list(&of, &query, options).await
                });
                list.await
            })
        },
    );
    page.await
}
