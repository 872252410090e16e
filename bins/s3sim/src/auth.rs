//! Verification of AWS Signature Version 4, as the server's side of it is documented.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, RwLock};
use std::time::{Duration, SystemTime};

use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};

use crate::date;
use crate::request::Request;
use crate::s3_error::S3Error;
use crate::uri;

const ALGORITHM: &str = "AWS4-HMAC-SHA256";
const UNSIGNED: &str = "UNSIGNED-PAYLOAD";
const EMPTY_SHA256: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
/// How far the request's date may be from this host's.
const SKEW: Duration = Duration::from_secs(15 * 60);

/// Who may read, and how requests prove it.
pub(crate) struct Authority {
    access_key: String,
    secret_key: String,
    region: String,
    /// Whether a request without a signature is let in. A signed one is verified all the same.
    anonymous: bool,
    /// Secrets of other keys that have been admitted; `None` of those that have ended, the first key among them.
    others: RwLock<HashMap<String, Option<String>>>,
    /// The signing key of the last secret and date seen: deriving it costs four HMACs.
    derived: Mutex<Option<(String, String, [u8; 32])>>,
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority")
            .field("access_key", &self.access_key)
            .field("region", &self.region)
            .field("anonymous", &self.anonymous)
            .finish_non_exhaustive()
    }
}

/// The parts of an `Authorization` header.
struct Authorization<'a> {
    access_key: &'a str,
    date: &'a str,
    region: &'a str,
    signed_headers: Vec<&'a str>,
    signature: [u8; 32],
}

impl Authority {
    pub fn new(access_key: &str, secret_key: &str, region: &str, anonymous: bool) -> Authority {
        Authority {
            access_key: access_key.to_owned(),
            secret_key: secret_key.to_owned(),
            region: region.to_owned(),
            anonymous,
            others: RwLock::default(),
            derived: Mutex::new(None),
        }
    }

    /// Another key whose requests are let in.
    pub fn admit(&self, access_key: &str, secret_key: &str) {
        let mut others = self.others.write().unwrap_or_else(|e| e.into_inner());
        others.insert(access_key.to_owned(), Some(secret_key.to_owned()));
    }

    /// Lets nobody in with a key any more: it has expired.
    pub fn end(&self, access_key: &str) {
        let mut others = self.others.write().unwrap_or_else(|e| e.into_inner());
        others.insert(access_key.to_owned(), None);
    }

    fn secret_of(&self, access_key: &str) -> Result<String, S3Error> {
        let others = self.others.read().unwrap_or_else(|e| e.into_inner());
        match others.get(access_key) {
            Some(Some(secret)) => Ok(secret.clone()),
            Some(None) => {
                let text = "The provided token has expired.";
                Err(S3Error::new(400, "ExpiredToken", text))
            }
            None if access_key == self.access_key => Ok(self.secret_key.clone()),
            None => {
                let text = "The access key id does not exist in our records.";
                Err(S3Error::new(403, "InvalidAccessKeyId", text))
            }
        }
    }

    /// The region that signatures must be for.
    pub fn region(&self) -> &str {
        &self.region
    }

    /// Lets the request in, or says in S3's words why not.
    pub fn verify(&self, request: &Request, now: SystemTime) -> Result<(), S3Error> {
        let Some(header) = request.header("authorization") else {
            return if self.anonymous {
                Ok(())
            } else {
                Err(denied("the request is not signed"))
            };
        };
        let given = Authorization::parse(header)?;
        let secret = self.secret_of(given.access_key)?;
        if given.region != self.region {
            let text = format!(
                "the region '{}' is wrong; expecting '{}'",
                given.region, self.region
            );
            return Err(malformed(text)
                .with("x-amz-bucket-region", &self.region)
                .telling("Region", &self.region));
        }
        must_be_signed(request, &given.signed_headers)?;
        let amz_date = check_date(request, given.date, now)?;
        let canonical = canonical_request(request, &given.signed_headers)?;
        let to_sign = format!(
            "{ALGORITHM}\n{amz_date}\n{}/{}/s3/aws4_request\n{}",
            given.date,
            given.region,
            hex::encode(Sha256::digest(canonical)),
        );
        let key = self.signing_key(&secret, given.date);
        keyed(&key, &to_sign)
            .verify_slice(&given.signature)
            .map_err(|_| {
                let text = "The request signature we calculated does not match the signature you \
                        provided. Check your key and signing method.";
                S3Error::new(403, "SignatureDoesNotMatch", text)
            })
    }

    /// The key for requests of one secret and date; region and service never change.
    fn signing_key(&self, secret: &str, date: &str) -> [u8; 32] {
        let mut derived = self.derived.lock().unwrap_or_else(|e| e.into_inner());
        if let Some((of, on, key)) = &*derived
            && of == secret
            && on == date
        {
            return *key;
        }
        let mut key = hmac(format!("AWS4{secret}").as_bytes(), date);
        for part in [self.region.as_str(), "s3", "aws4_request"] {
            key = hmac(&key, part);
        }
        *derived = Some((secret.to_owned(), date.to_owned(), key));
        key
    }
}

impl<'a> Authorization<'a> {
    fn parse(header: &'a str) -> Result<Authorization<'a>, S3Error> {
        let fields = header
            .strip_prefix(ALGORITHM)
            .filter(|rest| rest.starts_with([' ', ',']));
        let fields = fields.ok_or_else(|| {
            S3Error::new(400, "InvalidRequest", "only AWS4-HMAC-SHA256 is supported")
        })?;
        let field = |name: &str| {
            let mut parts = fields
                .split(',')
                .filter_map(|part| part.trim().split_once('='));
            let found = parts.find(|(key, _)| *key == name);
            found
                .map(|(_, value)| value)
                .ok_or_else(|| malformed(format!("{name} is missing")))
        };
        let mut scope = field("Credential")?.rsplitn(5, '/');
        let mut next = || {
            scope
                .next()
                .ok_or_else(|| malformed("the credential has no scope"))
        };
        let (terminator, service) = (next()?, next()?);
        if (service, terminator) != ("s3", "aws4_request") {
            return Err(malformed(
                "the credential's scope must end in s3/aws4_request",
            ));
        }
        let (region, date, access_key) = (next()?, next()?, next()?);
        let mut signature = [0; 32];
        hex::decode_to_slice(field("Signature")?, &mut signature)
            .map_err(|_| malformed("the signature is not 64 hexadecimal digits"))?;
        let signed_headers = field("SignedHeaders")?.split(';').collect();
        Ok(Authorization {
            access_key,
            date,
            region,
            signed_headers,
            signature,
        })
    }
}

/// `host` and every `x-amz-*` header that is sent must be signed: a token that is not could be
/// replaced on its way.
fn must_be_signed(request: &Request, signed: &[&str]) -> Result<(), S3Error> {
    let names = request.headers.iter().map(|(name, _)| name.as_str());
    let required = names.filter(|name| *name == "host" || name.starts_with("x-amz-"));
    for name in required.chain(["host"]) {
        if !signed.contains(&name) {
            return Err(denied(format!("the header {name} is sent but not signed")));
        }
    }
    Ok(())
}

/// Checks the request's date against the scope and this host's clock; gives it as it was signed.
fn check_date<'a>(request: &'a Request, scope: &str, now: SystemTime) -> Result<&'a str, S3Error> {
    let text = request
        .header("x-amz-date")
        .ok_or_else(|| denied("x-amz-date is missing"))?;
    let time = date::parse_amz(text).ok_or_else(|| denied("x-amz-date is not a date"))?;
    if !text.starts_with(scope) || scope.len() != 8 {
        return Err(malformed(
            "the date of the credential's scope is not that of x-amz-date",
        ));
    }
    let skew = now
        .duration_since(time)
        .or_else(|_| time.duration_since(now));
    if skew.is_ok_and(|skew| skew > SKEW) {
        let why = "The difference between the request time and the current time is too large.";
        return Err(S3Error::new(403, "RequestTimeTooSkewed", why)
            .telling("RequestTime", text)
            .telling("ServerTime", date::iso8601(now)));
    }
    Ok(text)
}

fn canonical_request(request: &Request, signed: &[&str]) -> Result<String, S3Error> {
    let payload = request.header("x-amz-content-sha256").ok_or_else(|| {
        let text = "Missing required header for this request: x-amz-content-sha256";
        S3Error::new(400, "InvalidRequest", text)
    })?;
    if payload != UNSIGNED && payload != EMPTY_SHA256 {
        let text = "The provided x-amz-content-sha256 is not that of an empty body.";
        return Err(S3Error::new(400, "XAmzContentSHA256Mismatch", text));
    }
    let not_text = || S3Error::new(400, "InvalidURI", "the request target is not UTF-8");
    let path = uri::encode_path(&uri::decode(&request.path).ok_or_else(not_text)?);
    let mut pairs: Vec<(String, String)> = uri::query_pairs(&request.query)
        .ok_or_else(not_text)?
        .iter()
        .map(|(name, value)| (uri::encode(name), uri::encode(value)))
        .collect();
    pairs.sort();
    let query: Vec<String> = pairs
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();

    let mut text = format!("{}\n{path}\n{}\n", request.method, query.join("&"));
    for name in signed {
        text.push_str(name);
        text.push(':');
        let values = request.headers.iter().filter(|(n, _)| n == name);
        for (i, (_, value)) in values.enumerate() {
            text.push_str(if i > 0 { "," } else { "" });
            for (j, word) in value.split_ascii_whitespace().enumerate() {
                text.push_str(if j > 0 { " " } else { "" });
                text.push_str(word);
            }
        }
        text.push('\n');
    }
    Ok(format!("{text}\n{}\n{payload}", signed.join(";")))
}

fn denied(text: impl fmt::Display) -> S3Error {
    S3Error::new(403, "AccessDenied", format!("Access Denied: {text}"))
}

fn malformed(text: impl fmt::Display) -> S3Error {
    let text = format!("The authorization header is malformed: {text}");
    S3Error::new(400, "AuthorizationHeaderMalformed", text)
}

fn keyed(key: &[u8], text: &str) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    mac.update(text.as_bytes());
    mac
}

fn hmac(key: &[u8], text: &str) -> [u8; 32] {
    keyed(key, text).finalize().into_bytes().into()
}

/// Signs a GET or HEAD, for clients that are tests: the same rules seen from the other side.
#[cfg(test)]
pub(crate) mod signer {
    use super::*;

    pub fn authorization(
        authority: &Authority,
        request: &Request,
        signed: &[&str],
        date: &str,
    ) -> String {
        let (day, region) = (&date[..8], &authority.region);
        let canonical = canonical_request(request, signed).unwrap();
        let digest = hex::encode(Sha256::digest(canonical));
        let to_sign = format!("{ALGORITHM}\n{date}\n{day}/{region}/s3/aws4_request\n{digest}");
        let signature = hex::encode(hmac(
            &authority.signing_key(&authority.secret_key, day),
            &to_sign,
        ));
        format!(
            "{ALGORITHM} Credential={}/{day}/{region}/s3/aws4_request,SignedHeaders={},Signature={signature}",
            authority.access_key,
            signed.join(";"),
        )
    }
}

#[cfg(test)]
#[path = "auth_tests.rs"]
mod tests;
