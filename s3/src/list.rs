//! ListObjectsV2: what is asked for, and what a page of the answer says. Pure.
//!
//! ```text
//! ListQuery ── pairs ──> ?list-type=2&...      <ListBucketResult> ── parse ──> ListPage { objects, prefixes, next }
//! ```
//! A page is whole or an error: a list that is cut, that goes on without saying where, or that holds names
//! nobody asked for never passes as a shorter one.

mod walk;

use std::borrow::Cow;

use percent_encoding::percent_decode_str;
use serde::{Deserialize, Serialize};

use crate::object::ETag;

/// No file is larger, and no offset in one.
const LARGEST: u64 = i64::MAX as u64;
/// How much of a bad text an error repeats, in characters.
const LONGEST_SHOWN: usize = 100;

/// Which names are wanted, and from where on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListQuery {
    /// Only names that begin with this.
    pub prefix: String,
    /// Names that hold this after the prefix are given together, as one common prefix that ends with it.
    pub delimiter: Option<String>,
    /// Only names after this one. Not sent with `continuation`, which says where to go on.
    pub start_after: Option<String>,
    /// The most entries of one page; the server's own bound, mostly 1,000, where absent or lower.
    pub max_keys: Option<u32>,
    /// [`ListPage::next`] of the page before.
    pub continuation: Option<String>,
}

/// An object, as a list describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedObject {
    /// The key.
    pub key: String,
    /// Its size in bytes.
    pub size: u64,
    /// The entity tag, where the server says it.
    pub etag: Option<ETag>,
    /// When it was last written, as the server wrote it: in ISO 8601.
    pub last_modified: Option<String>,
}

/// One page of a list, in the server's order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListPage {
    /// The objects.
    pub objects: Vec<ListedObject>,
    /// The common prefixes, where a delimiter was given.
    pub prefixes: Vec<String>,
    /// Where the next page begins; `None`: this is the last one.
    pub next: Option<String>,
}

/// Why an answer is no page of the list that was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ListError {
    /// Another document.
    #[error("not a list but <{root}>")]
    NotAList {
        /// Its root element.
        root: String,
    },
    /// The document ends before its root element does.
    #[error("the list breaks off after {bytes} bytes")]
    Cut {
        /// How long it is.
        bytes: u64,
    },
    /// Not UTF-8, once decoded where it is encoded.
    #[error("{text:?} is not UTF-8")]
    NotUtf8 {
        /// The text.
        text: String,
    },
    /// Not well-formed.
    #[error("not XML at byte {at}: {problem}")]
    Xml {
        /// Where.
        at: u64,
        /// What is wrong.
        problem: String,
    },
    /// An element that every list has.
    #[error("<{element}> is missing")]
    Missing {
        /// Its name.
        element: &'static str,
    },
    /// An element that may be there once.
    #[error("<{element}> is there twice")]
    Repeated {
        /// Its name.
        element: &'static str,
    },
    /// A text that cannot be meant so.
    #[error("<{element}> is {text:?}")]
    Value {
        /// The element.
        element: &'static str,
        /// Its text.
        text: String,
    },
    /// A name that is not encoded in an answer that says that names are.
    #[error("{name:?} is not encoded, although <EncodingType> is url")]
    NotEncoded {
        /// The name.
        name: String,
    },
    /// A name that does not begin with the prefix.
    #[error("{name:?} does not begin with the prefix")]
    Unasked {
        /// The name.
        name: String,
    },
    /// More follows, but not where.
    #[error("the list goes on and does not say where")]
    NoToken,
    /// The next page would be this one again.
    #[error("the list goes on where this page began")]
    SameToken,
}

impl ListQuery {
    /// The query of the request, not yet encoded.
    pub fn pairs(&self) -> Vec<(&'static str, Cow<'_, str>)> {
        // Without the encoding, XML could not carry keys with control characters.
        let mut pairs = vec![("list-type", "2".into()), ("encoding-type", "url".into())];
        if !self.prefix.is_empty() {
            pairs.push(("prefix", Cow::from(&self.prefix)));
        }
        if let Some(delimiter) = &self.delimiter {
            pairs.push(("delimiter", delimiter.into()));
        }
        if let Some(most) = self.max_keys {
            pairs.push(("max-keys", most.to_string().into()));
        }
        match (&self.continuation, &self.start_after) {
            (Some(token), _) => pairs.push(("continuation-token", token.into())),
            (None, Some(name)) => pairs.push(("start-after", name.into())),
            (None, None) => {}
        }
        pairs
    }
}

impl ListPage {
    /// Reads the answer to `asked`.
    pub fn parse(body: &[u8], asked: &ListQuery) -> Result<ListPage, ListError> {
        let raw = walk::read(text_of(body)?)?;
        let decode = decoder(raw.encoding.as_deref())?;
        let mut objects = Vec::with_capacity(raw.entries.len());
        for entry in raw.entries {
            objects.push(object(entry, decode)?);
        }
        let prefixes = raw.prefixes.into_iter().map(decode);
        let prefixes = prefixes.collect::<Result<Vec<_>, _>>()?;
        let mut names = objects.iter().map(|o| &o.key).chain(&prefixes);
        if let Some(name) = names.find(|name| !name.starts_with(&asked.prefix)) {
            return Err(ListError::Unasked { name: shown(name) });
        }
        let next = match raw.truncated.as_deref() {
            Some("false") => None,
            Some("true") => Some(next(raw.token, asked)?),
            Some(other) => return Err(value("IsTruncated", other)),
            None => return Err(missing("IsTruncated")),
        };
        Ok(ListPage {
            objects,
            prefixes,
            next,
        })
    }
}

fn text_of(body: &[u8]) -> Result<&str, ListError> {
    let text = std::str::from_utf8(body).map_err(|error| match error.error_len() {
        None => ListError::Cut {
            bytes: body.len() as u64,
        },
        Some(_) => ListError::NotUtf8 {
            text: shown(&String::from_utf8_lossy(&body[error.valid_up_to()..])),
        },
    })?;
    Ok(text.trim_start_matches('\u{feff}'))
}

fn object(
    entry: walk::Entry,
    decode: impl Fn(String) -> Result<String, ListError>,
) -> Result<ListedObject, ListError> {
    let key = entry.key.filter(|key| !key.is_empty());
    Ok(ListedObject {
        key: decode(key.ok_or(missing("Key"))?)?,
        size: size(&entry.size.ok_or(missing("Size"))?)?,
        etag: entry.etag.map(ETag::new),
        last_modified: entry.last_modified,
    })
}

/// Digits and nothing else: no sign, no fraction.
fn size(text: &str) -> Result<u64, ListError> {
    let digits = text.bytes().all(|b| b.is_ascii_digit());
    let size = text.parse().ok().filter(|size| *size <= LARGEST);
    size.filter(|_| digits).ok_or_else(|| value("Size", text))
}

fn next(token: Option<String>, asked: &ListQuery) -> Result<String, ListError> {
    let token = token.ok_or(ListError::NoToken)?;
    if asked.continuation.as_ref() == Some(&token) {
        return Err(ListError::SameToken);
    }
    Ok(token)
}

type Decode = fn(String) -> Result<String, ListError>;

/// How names are to be read: as they are, unless the answer says that they are encoded.
fn decoder(encoding: Option<&str>) -> Result<Decode, ListError> {
    match encoding {
        None => Ok(Ok),
        Some("url") => Ok(url_decoded),
        Some(other) => Err(value("EncodingType", other)),
    }
}

/// Undoes the encoding of forms, in which `+` is a space.
fn url_decoded(text: String) -> Result<String, ListError> {
    let mut rest = text.split('%');
    rest.next();
    let is_escape = |rest: &str| rest.bytes().take(2).filter(u8::is_ascii_hexdigit).count() == 2;
    // A bare `%` shows that the name is not encoded at all, and a guess could name another object.
    if !rest.all(is_escape) {
        return Err(ListError::NotEncoded { name: shown(&text) });
    }
    let spaced = text.replace('+', " ");
    match percent_decode_str(&spaced).decode_utf8() {
        Ok(decoded) => Ok(decoded.into_owned()),
        Err(_) => Err(ListError::NotUtf8 { text: shown(&text) }),
    }
}

fn missing(element: &'static str) -> ListError {
    ListError::Missing { element }
}

fn value(element: &'static str, text: &str) -> ListError {
    ListError::Value {
        element,
        text: shown(text),
    }
}

fn shown(text: &str) -> String {
    text.chars().take(LONGEST_SHOWN).collect()
}

#[cfg(test)]
mod tests;
