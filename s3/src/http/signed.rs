//! A request until it is signed right and sent to the right place: keys that have ended and a clock that is wrong are put
//! right once, answers that send it elsewhere are followed, and the request is sent again at once.
//!
//! It was answered, so that the server is done with it: that holds for one that names a window to write to as well.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use http::header::DATE;
use http::{HeaderMap, Method, StatusCode};

use super::client::{Client, Request, SendError};
use super::response::Response;
use super::route::Route;
use crate::clock::shifted;
use crate::credentials::Held;
use crate::error::ErrorKind;
use crate::object::text;
use crate::redirect::is_redirect;

/// What a request is signed with.
pub(super) struct Signer {
    /// `None`: it is not signed.
    pub(super) held: Option<Arc<Held>>,
    /// How far the server's clock is thought to be ahead, in seconds.
    ahead: i64,
}

/// What an answer that refuses a request may have against its signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    /// Its time.
    Time,
    /// Its keys.
    Keys,
    /// It does not say: it may be neither.
    Unsaid,
}

/// Why a request was not sent again.
#[derive(Clone, Debug)]
pub(super) struct NotAgain(String);

impl fmt::Display for NotAgain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotAgain {}

impl Refusal {
    fn of(status: u16, code: Option<&str>, method: &Method) -> Option<Refusal> {
        match code {
            Some("RequestTimeTooSkewed" | "RequestInTheFuture" | "RequestExpired") => {
                Some(Refusal::Time)
            }
            Some(
                "ExpiredToken"
                | "ExpiredTokenException"
                | "InvalidToken"
                | "InvalidTokenId"
                | "TokenRefreshRequired"
                | "InvalidAccessKeyId",
            ) => Some(Refusal::Keys),
            Some("SignatureDoesNotMatch" | "AccessDenied") => Some(Refusal::Unsaid),
            Some(_) => None,
            // The answer to a HEAD has no body to say more in. Of keys that have ended S3 then says 400.
            None if status == 401 || (status == 400 && *method == Method::HEAD) => {
                Some(Refusal::Keys)
            }
            None if status == 403 => Some(Refusal::Unsaid),
            None => None,
        }
    }
}

impl Signer {
    /// The time that the signature names.
    pub(super) fn time(&self) -> SystemTime {
        shifted(SystemTime::now(), self.ahead)
    }
}

impl Client {
    /// Sends one signed request and waits for the head of its answer, whatever its status.
    ///
    /// It is not tried again, except at once: where an idle connection died before it took a byte of the request, and
    /// where `request.stale` allows it; where the server refused its signature, and it can be signed better; and where
    /// the answer sends it elsewhere.
    pub async fn send(&self, request: &Request<'_>) -> Result<Response, SendError> {
        let mut signer = self.signer(request).await?;
        let mut route = Route::new(self.upstream(), request);
        let (mut may_set_clock, mut may_renew) = (true, true);
        loop {
            let mut response = self.send_signed(request, &signer, &route).await?;
            let status = response.status();
            // Apart: most answers need no room for it.
            if (is_redirect(status) || status == StatusCode::BAD_REQUEST)
                && let Some(next) = Box::pin(self.elsewhere(request, &mut response, &route)).await
            {
                metrics::counter!("s3engine_redirects_total").increment(1);
                Box::pin(response.finish()).await;
                route = next;
                continue;
            }
            let refusal = match route.is_trusted() {
                true => self.refusal(&mut response, &signer).await,
                false => None,
            };
            let Some(refusal) = refusal else {
                return Ok(response);
            };
            let again = if may_set_clock && self.clock_was_wrong(refusal, &response, &signer) {
                may_set_clock = false;
                "clock"
            } else if may_renew && self.keys_were_old(refusal, &mut response, &signer).await {
                may_renew = false;
                "credentials"
            } else {
                return Ok(response);
            };
            metrics::counter!("s3engine_signed_anew_total", "cause" => again).increment(1);
            Box::pin(response.finish()).await;
            signer = self.signer(request).await?;
        }
    }

    /// Where an answer sends the request. Why it does not go there is added to the error of the answer.
    async fn elsewhere(
        &self,
        request: &Request<'_>,
        response: &mut Response,
        route: &Route,
    ) -> Option<Route> {
        let body = response.look().await.clone();
        let head = (response.status(), response.headers(), &body);
        match route.elsewhere(self.upstream(), request, head, response.place()) {
            Ok(next) => next,
            Err(why) => {
                response.not_again(NotAgain(format!("the redirect is not followed: {why}")));
                None
            }
        }
    }

    async fn signer(&self, request: &Request<'_>) -> Result<Signer, SendError> {
        let upstream = self.upstream();
        let keys = upstream.credentials().keys(upstream.timeouts().connect);
        let held = keys
            .await
            .map_err(|why| self.unsent(request, ErrorKind::Credentials(why)))?;
        Ok(Signer {
            held,
            ahead: upstream.clock.ahead(),
        })
    }

    /// What an answer may have against the signature; its body is read where it may have something.
    async fn refusal(&self, response: &mut Response, signer: &Signer) -> Option<Refusal> {
        let status = response.status().as_u16();
        if !matches!(status, 400 | 401 | 403) {
            let clock = &self.upstream().clock;
            if clock.ahead() != 0
                && let Some(date) = date(response.headers())
            {
                clock.learn(date, SystemTime::now());
            }
            return None;
        }
        signer.held.as_ref()?;
        let code = response.look().await.code.as_deref().map(str::to_owned);
        Refusal::of(status, code.as_deref(), response.method())
    }

    fn clock_was_wrong(&self, refusal: Refusal, response: &Response, signer: &Signer) -> bool {
        let said = match refusal {
            Refusal::Time => true,
            Refusal::Unsaid => false,
            Refusal::Keys => return false,
        };
        let (date, now) = (date(response.headers()), SystemTime::now());
        let clock = &self.upstream().clock;
        clock.learn_from_refusal(signer.ahead, said, date, now)
    }

    /// Whether there are other keys now. Why there are none is added to the error of the answer.
    async fn keys_were_old(
        &self,
        refusal: Refusal,
        response: &mut Response,
        signer: &Signer,
    ) -> bool {
        let (upstream, Some(held)) = (self.upstream(), &signer.held) else {
            return false;
        };
        let credentials = upstream.credentials();
        if !credentials.is_fetched() {
            return false;
        }
        let suspect = match refusal {
            Refusal::Keys => true,
            Refusal::Time => false,
            // Most often it is what it says: asking the source each time would be for nothing.
            Refusal::Unsaid => {
                let present = credentials.present();
                let are_others = present.is_some_and(|now| now.generation != held.generation);
                are_others || held.have_expired(SystemTime::now())
            }
        };
        if !suspect {
            return false;
        }
        let others = credentials.others_than(held, upstream.timeouts().connect);
        match others.await {
            Ok(()) => true,
            Err(why) => {
                response.not_again(NotAgain(format!("no other credentials: {why}")));
                false
            }
        }
    }
}

/// When the server says that it answered.
fn date(headers: &HeaderMap) -> Option<SystemTime> {
    httpdate::parse_http_date(text(headers, &DATE)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_refusal_may_be_of() {
        let of = |status, code| Refusal::of(status, code, &Method::GET);
        assert_eq!(of(403, Some("RequestTimeTooSkewed")), Some(Refusal::Time));
        assert_eq!(of(400, Some("ExpiredToken")), Some(Refusal::Keys));
        assert_eq!(of(403, Some("InvalidAccessKeyId")), Some(Refusal::Keys));
        assert_eq!(of(403, Some("AccessDenied")), Some(Refusal::Unsaid));
        assert_eq!(of(403, None), Some(Refusal::Unsaid));
        assert_eq!(of(401, None), Some(Refusal::Keys));
        for (status, code) in [
            (400, Some("InvalidArgument")),
            (400, Some("AuthorizationHeaderMalformed")),
            (400, None),
        ] {
            assert_eq!(of(status, code), None, "{code:?}");
        }
        assert_eq!(Refusal::of(400, None, &Method::HEAD), Some(Refusal::Keys));
    }
}
