//! Where one request goes: to the endpoint, in the region of its bucket, or where an answer sends it.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use http::{HeaderMap, HeaderName, StatusCode};
use url::Url;

use super::client::Request;
use super::dial::Place;
use super::error_body::ErrorBody;
use crate::endpoint::{EndpointError, Target};
use crate::rdma::TOKEN_HEADER;
use crate::redirect::{Baggage, Elsewhere, MOST_HOPS, baggage, elsewhere};
use crate::upstream::Upstream;

/// The regions of buckets that answers have named, where it is not the endpoint's.
#[derive(Debug, Default)]
pub(crate) struct Regions(ArcSwap<HashMap<String, Arc<str>>>);

impl Regions {
    /// More buckets than one job reads.
    const MOST: usize = 4096;

    pub(super) fn of(&self, bucket: &str) -> Option<Arc<str>> {
        self.0.load().get(bucket).cloned()
    }

    pub(super) fn learn(&self, bucket: &str, region: &str) {
        self.0.rcu(|known| {
            let mut known = HashMap::clone(known);
            if known.len() >= Self::MOST {
                known.clear();
            }
            known.insert(bucket.to_owned(), region.into());
            known
        });
    }
}

#[cfg(test)]
impl Regions {
    pub(super) fn len(&self) -> usize {
        self.0.load().len()
    }
}

/// Where a request goes.
pub(super) struct Route {
    /// In the order in which they are to be tried.
    pub(super) places: Vec<Place>,
    /// The region that it is signed for.
    pub(super) region: Arc<str>,
    /// What is asked for there, where an answer has said it.
    location: Option<(Target, Baggage)>,
    hops: usize,
}

impl Route {
    /// To the endpoint.
    pub(super) fn new(upstream: &Upstream, request: &Request<'_>) -> Route {
        let learnt = upstream.regions.of(request.bucket);
        let region = learnt.unwrap_or_else(|| Arc::clone(&upstream.region));
        Route::in_region(upstream, request, region, 0)
    }

    fn in_region(
        upstream: &Upstream,
        request: &Request<'_>,
        region: Arc<str>,
        hops: usize,
    ) -> Route {
        let bucket = request.bucket;
        let mut places = upstream.places(bucket);
        if region != upstream.region {
            for place in &mut places {
                if let Some(origin) = place.origin.in_aws_region(&region) {
                    *place = Place::of_bucket(upstream, &Arc::new(origin), bucket);
                }
            }
        }
        for place in &mut places {
            place.rail = request.rail;
        }
        Route {
            places,
            region,
            location: None,
            hops,
        }
    }

    /// What is asked for at one of its places.
    pub(super) fn target(
        &self,
        upstream: &Upstream,
        place: &Place,
        request: &Request<'_>,
    ) -> Result<Target, EndpointError> {
        match &self.location {
            Some((target, _)) => Ok(target.clone()),
            None => upstream.endpoint().target_at(
                &place.origin,
                request.bucket,
                request.key,
                request.query,
            ),
        }
    }

    /// Whether signatures and what is secret may be seen there.
    pub(super) fn is_trusted(&self) -> bool {
        let location = self.location.as_ref();
        location.is_none_or(|(_, baggage)| *baggage == Baggage::All)
    }

    /// Where an answer to the request sends it, if anywhere; or why it does not go there.
    pub(super) fn elsewhere(
        &self,
        upstream: &Upstream,
        request: &Request<'_>,
        (status, headers, body): (StatusCode, &HeaderMap, &ErrorBody),
        place: &Place,
    ) -> Result<Option<Route>, &'static str> {
        let Ok(asked) = self.target(upstream, place, request) else {
            return Ok(None);
        };
        let scheme = if place.origin.is_secure() {
            "https"
        } else {
            "http"
        };
        let asked = format!("{scheme}://{}{}", asked.host_header, asked.path_and_query);
        let Ok(asked) = asked.parse::<Url>() else {
            return Ok(None);
        };
        let Some(next) = elsewhere(status, headers, body, (&self.region, &asked)) else {
            return Ok(None);
        };
        if self.hops == MOST_HOPS {
            return Err("it was sent elsewhere too often");
        }
        let hops = self.hops + 1;
        match next {
            Elsewhere::Region(region) => {
                upstream.regions.learn(request.bucket, &region);
                let region = region.into();
                Ok(Some(Route::in_region(upstream, request, region, hops)))
            }
            Elsewhere::Location(to, path_and_query) => {
                let own = upstream.endpoint().origins().iter().map(|own| &**own);
                let (origin, baggage) = baggage(&place.origin, &to, own, &upstream.trusted)?;
                let target = Target {
                    host_header: origin.authority(),
                    path_and_query,
                };
                let mut place = Place::elsewhere(upstream, origin);
                place.rail = request.rail;
                Ok(Some(Route {
                    places: vec![place],
                    region: Arc::clone(&self.region),
                    location: Some((target, baggage)),
                    hops,
                }))
            }
        }
    }
}

/// Takes off what only the endpoint's own hosts may see.
pub(super) fn remove_secrets(headers: &mut HeaderMap) {
    const KEYS: &str = "x-amz-server-side-encryption-customer-";
    let secret = |name: &HeaderName| *name == TOKEN_HEADER || name.as_str().starts_with(KEYS);
    let names: Vec<_> = headers
        .keys()
        .filter(|name| secret(name))
        .cloned()
        .collect();
    for name in names {
        headers.remove(name);
    }
}
