//! An endpoint's URL, or several: what is taken of it, and what is refused.

use url::Url;

use super::{EndpointError, Origin};

/// The servers of a list of URLs, and the path that all of them have, without a slash at its end.
pub(super) fn parse(text: &str) -> Result<(Vec<Origin>, String), EndpointError> {
    // Before the list is cut: a password may hold a comma.
    if text.contains('@') {
        return Err(invalid(text, "holds a user or password"));
    }
    let mut origins = Vec::new();
    let mut base = None;
    for one in text.split(',') {
        let url = parse_url(one)?;
        let origin = Origin::of(&url).ok_or_else(|| invalid(one, "has no host"))?;
        let path = base_of(one, &url)?;
        if base.get_or_insert_with(|| path.clone()) != &path {
            return Err(invalid(one, "has another path than the one before it"));
        }
        let first = origins.first().unwrap_or(&origin);
        if first.is_secure() != origin.is_secure() {
            return Err(invalid(one, "has another scheme than the one before it"));
        }
        if !origins.contains(&origin) {
            origins.push(origin);
        }
    }
    Ok((origins, base.unwrap_or_default()))
}

fn parse_url(text: &str) -> Result<Url, EndpointError> {
    // The URL parser would drop these silently.
    if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err(invalid(text, "holds a space or a control character"));
    }
    let Some((scheme, rest)) = text.split_once("://") else {
        return Err(EndpointError::MissingScheme {
            text: without_user(text),
        });
    };
    if !["http", "https"]
        .iter()
        .any(|known| scheme.eq_ignore_ascii_case(known))
    {
        return Err(invalid(text, "has a scheme other than http and https"));
    }
    // The URL parser reads `http:///host` as `http://host`, and `\` as `/`.
    if rest.is_empty() || rest.starts_with(['/', ':']) {
        return Err(invalid(text, "has no host"));
    }
    if rest.contains('\\') {
        return Err(invalid(text, "holds a backslash"));
    }
    let url = Url::parse(text).map_err(|e| invalid(text, &format!("is not a URL: {e}")))?;
    let extra = if url.query().is_some() {
        "holds a query"
    } else if url.fragment().is_some() {
        "holds a fragment"
    } else if url.port() == Some(0) {
        "has port 0"
    } else {
        return Ok(url);
    };
    Err(invalid(text, extra))
}

/// The path before the buckets, as it is sent and signed.
fn base_of(text: &str, url: &Url) -> Result<String, EndpointError> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~/".contains(&b);
    if !url.path().bytes().all(plain) {
        let problem = "has a path with other characters than letters, digits and -._~/";
        return Err(invalid(text, problem));
    }
    let names = url.path().split('/').filter(|name| !name.is_empty());
    Ok(names.flat_map(|name| ["/", name]).collect())
}

pub(super) fn invalid(text: &str, problem: &str) -> EndpointError {
    EndpointError::Invalid {
        text: without_user(text),
        problem: problem.to_owned(),
    }
}

/// The URL as it may be shown: what stands before an `@` may be a password.
pub(crate) fn without_user(text: &str) -> String {
    match text.rsplit_once('@') {
        Some((before, after)) => {
            let scheme = before.split_once("://").map_or("", |(scheme, _)| scheme);
            let separator = if scheme.is_empty() { "" } else { "://" };
            format!("{scheme}{separator}***@{after}")
        }
        None => text.to_owned(),
    }
}
