//! AWS Signature Version 4, over exactly what is sent.

mod plain;

use std::time::SystemTime;

use aws_credential_types::Credentials as Keys;
use aws_sigv4::http_request::{
    self as sigv4, PayloadChecksumKind, PercentEncodingMode, SignableBody, SignableRequest,
    SigningSettings, UriPathNormalizationMode,
};
use aws_sigv4::sign::v4;
use http::header::HOST;
use http::{HeaderMap, HeaderName, HeaderValue, Method};

pub(crate) use self::plain::Last;
use crate::credentials::Credentials;
use crate::endpoint::Target;

/// What the signature says about the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload<'a> {
    /// Nothing: `UNSIGNED-PAYLOAD`, as RDMA requires and an empty body allows.
    Unsigned,
    /// The lower-case hexadecimal SHA-256 of the body.
    Sha256(&'a str),
}

/// A request that cannot be signed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot sign the request: {problem}")]
pub struct SigningError {
    problem: String,
}

fn problem(error: impl std::fmt::Display) -> SigningError {
    SigningError {
        problem: error.to_string(),
    }
}

/// Adds `host` and, unless the credentials are anonymous, what signs the request:
/// `x-amz-date`, `x-amz-content-sha256`, `x-amz-security-token` and `authorization`.
///
/// Every header already there is signed; those that a proxy may change belong in afterwards. Of credentials that are
/// fetched the present ones sign.
pub fn sign_request(
    method: &Method,
    target: &Target,
    headers: &mut HeaderMap,
    payload: Payload<'_>,
    credentials: &Credentials,
    region: &str,
    time: SystemTime,
) -> Result<(), SigningError> {
    let held = credentials.present();
    if held.is_none() && !credentials.is_anonymous() {
        return Err(problem("no credentials have been fetched yet"));
    }
    let signing = Signing {
        keys: held.as_ref().map(|held| &held.keys),
        region,
        time,
        payload,
    };
    sign(method, target, headers, &signing, &Last::default())
}

/// What a request is signed with.
pub(crate) struct Signing<'a> {
    /// `None`: it is not signed.
    pub(crate) keys: Option<&'a Keys>,
    pub(crate) region: &'a str,
    pub(crate) time: SystemTime,
    pub(crate) payload: Payload<'a>,
}

/// The same with these keys, or with nobody's; quicker after others with the same.
pub(crate) fn sign(
    method: &Method,
    target: &Target,
    headers: &mut HeaderMap,
    signing: &Signing<'_>,
    last: &Last,
) -> Result<(), SigningError> {
    headers.insert(
        HOST,
        HeaderValue::from_str(&target.host_header).map_err(problem)?,
    );
    let Some(keys) = signing.keys else {
        return Ok(());
    };
    let is_unsigned = signing.payload == Payload::Unsigned;
    if is_unsigned && last.sign(method, target, headers, signing) {
        return Ok(());
    }
    let added = signature_headers(method, target, headers, keys, signing)?;
    for (name, value, sensitive) in added {
        let mut value = HeaderValue::try_from(value).map_err(problem)?;
        value.set_sensitive(sensitive);
        headers.insert(HeaderName::from_static(name), value);
    }
    last.learn(headers, signing);
    Ok(())
}

fn signature_headers(
    method: &Method,
    target: &Target,
    headers: &HeaderMap,
    keys: &Keys,
    signing: &Signing<'_>,
) -> Result<Vec<(&'static str, String, bool)>, SigningError> {
    let mut signed = Vec::with_capacity(headers.len());
    for (name, value) in headers {
        signed.push((name.as_str(), value.to_str().map_err(problem)?));
    }
    let body = match signing.payload {
        Payload::Unsigned => SignableBody::UnsignedPayload,
        Payload::Sha256(hash) => SignableBody::Precomputed(hash.to_owned()),
    };
    let url = format!("http://{}{}", target.host_header, target.path_and_query);
    let request =
        SignableRequest::new(method.as_str(), url, signed.into_iter(), body).map_err(problem)?;

    let identity = keys.clone().into();
    let params = v4::SigningParams::builder()
        .identity(&identity)
        .region(signing.region)
        .name("s3")
        .time(signing.time)
        .settings(settings())
        .build()
        .map_err(problem)?
        .into();
    let (instructions, _) = sigv4::sign(request, &params).map_err(problem)?.into_parts();
    let (added, _) = instructions.into_parts();
    Ok(added
        .into_iter()
        .map(|h| (h.name(), h.value().to_owned(), h.sensitive()))
        .collect())
}

/// S3 signs the path as it is sent: encoded once, dots and double slashes kept.
fn settings() -> SigningSettings {
    let mut settings = SigningSettings::default();
    settings.percent_encoding_mode = PercentEncodingMode::Single;
    settings.uri_path_normalization_mode = UriPathNormalizationMode::Disabled;
    settings.payload_checksum_kind = PayloadChecksumKind::XAmzSha256;
    settings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::Endpoint;
    use hmac::{Hmac, Mac};
    use proptest::prelude::*;
    use sha2::{Digest, Sha256};
    use std::time::Duration;

    const ID: &str = "AKIAIOSFODNN7EXAMPLE";
    const SECRET: &str = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
    const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    /// 2013-05-24 00:00:00 UTC, the day of the published examples.
    fn day() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_369_353_600)
    }

    fn signed(
        target: &Target,
        given: &[(&'static str, &str)],
        payload: Payload<'_>,
        token: Option<&str>,
    ) -> HeaderMap {
        let mut headers: HeaderMap = given
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()))
            .collect();
        let credentials = Credentials::new(ID, SECRET, token.map(str::to_owned)).unwrap();
        sign_request(
            &Method::GET,
            target,
            &mut headers,
            payload,
            &credentials,
            "us-east-1",
            day(),
        )
        .unwrap();
        headers
    }

    fn text<'h>(headers: &'h HeaderMap, name: &str) -> &'h str {
        headers[name].to_str().unwrap()
    }

    /// The published examples of the S3 documentation, all on one bucket and day.
    #[test]
    fn the_published_examples_give_the_published_signatures() {
        let aws = Endpoint::parse("http://s3.amazonaws.com").unwrap();
        for (key, query, given, signature) in [
            (
                "test.txt",
                &[][..],
                &[("range", "bytes=0-9")][..],
                "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
            ),
            (
                "",
                &[("lifecycle", "")][..],
                &[][..],
                "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
            ),
            (
                "",
                &[("max-keys", "2"), ("prefix", "J")][..],
                &[][..],
                "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
            ),
        ] {
            let target = aws.target("examplebucket", key, query).unwrap();
            let headers = signed(&target, given, Payload::Sha256(EMPTY), None);
            let authorization = text(&headers, "authorization");
            assert!(
                authorization.ends_with(&format!("Signature={signature}")),
                "{authorization}"
            );
            assert_eq!(text(&headers, "x-amz-date"), "20130524T000000Z");
        }
    }

    fn mac(key: &[u8], data: &str) -> Vec<u8> {
        let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
        mac.update(data.as_bytes());
        mac.finalize().into_bytes().to_vec()
    }

    /// The signature worked out anew, from the headers as they would arrive.
    fn recomputed(target: &Target, query: &[(&str, &str)], headers: &HeaderMap) -> String {
        let mut names: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        names.retain(|name| *name != "authorization");
        names.sort_unstable();
        let lines: String = names
            .iter()
            .map(|name| format!("{name}:{}\n", text(headers, name)))
            .collect();
        let path = target.path_and_query.split('?').next().unwrap();
        let encode = |text: &str| {
            text.bytes()
                .map(|b| match b {
                    b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                        (b as char).to_string()
                    }
                    _ => format!("%{b:02X}"),
                })
                .collect::<String>()
        };
        let mut pairs: Vec<String> = query
            .iter()
            .map(|(n, v)| format!("{}={}", encode(n), encode(v)))
            .collect();
        pairs.sort();
        let names = names.join(";");
        let hash = text(headers, "x-amz-content-sha256");
        let canonical = format!("GET\n{path}\n{}\n{lines}\n{names}\n{hash}", pairs.join("&"));
        let scope = "20130524/us-east-1/s3/aws4_request";
        let digest = hex::encode(Sha256::digest(canonical.as_bytes()));
        let to_sign = format!("AWS4-HMAC-SHA256\n20130524T000000Z\n{scope}\n{digest}");
        let key = scope
            .split('/')
            .fold(format!("AWS4{SECRET}").into_bytes(), |key, part| {
                mac(&key, part)
            });
        let signature = hex::encode(mac(&key, &to_sign));
        format!(
            "AWS4-HMAC-SHA256 Credential={ID}/{scope}, SignedHeaders={names}, Signature={signature}"
        )
    }

    #[test]
    fn range_match_token_and_session_are_all_signed() {
        let endpoint = Endpoint::parse("http://10.0.0.5:9000").unwrap();
        let query = [("versionId", "a+b/c= ")];
        let target = endpoint.target("train", "a//b/../%2B é", &query).unwrap();
        let given = [
            ("range", "bytes=5-9"),
            ("if-match", "\"tag\""),
            ("x-amz-rdma-token", "00:11"),
        ];
        let headers = signed(&target, &given, Payload::Unsigned, Some("session"));
        assert_eq!(
            text(&headers, "authorization"),
            recomputed(&target, &query, &headers)
        );
        assert_eq!(text(&headers, "x-amz-content-sha256"), "UNSIGNED-PAYLOAD");
        assert!(text(&headers, "authorization").contains(
            "SignedHeaders=host;if-match;range;x-amz-content-sha256;x-amz-date;x-amz-rdma-token;x-amz-security-token,"
        ));
        assert!(headers["x-amz-security-token"].is_sensitive());
    }

    #[test]
    fn anonymous_requests_carry_no_signature() {
        let endpoint = Endpoint::parse("http://h").unwrap();
        let target = endpoint.target("b", "k", &[]).unwrap();
        let mut headers = HeaderMap::new();
        let anonymous = Credentials::anonymous();
        sign_request(
            &Method::GET,
            &target,
            &mut headers,
            Payload::Unsigned,
            &anonymous,
            "r",
            day(),
        )
        .unwrap();
        assert_eq!(headers.len(), 1);
        assert_eq!(text(&headers, "host"), "h");
    }

    proptest! {
        #[test]
        fn any_key_and_query_are_signed_as_sent(key in ".{1,40}", value in ".{0,20}") {
            let endpoint = Endpoint::parse("http://h:9000").unwrap();
            let query = [("prefix", value.as_str()), ("a", "b")];
            let target = endpoint.target("bucket", &key, &query).unwrap();
            let headers = signed(&target, &[], Payload::Unsigned, None);
            prop_assert_eq!(text(&headers, "authorization"), recomputed(&target, &query, &headers));
        }
    }
}
