//! The XML of a list, element by element, into the texts that count: not yet decoded, not yet judged.

use quick_xml::errors::{Error as XmlError, IllFormedError, SyntaxError};
use quick_xml::escape::resolve_predefined_entity;
use quick_xml::events::{BytesRef, Event};
use quick_xml::reader::Reader;

use super::{ListError, shown};

/// What a list says, as text.
#[derive(Default)]
pub(super) struct Raw {
    pub(super) entries: Vec<Entry>,
    pub(super) prefixes: Vec<String>,
    pub(super) truncated: Option<String>,
    pub(super) token: Option<String>,
    pub(super) encoding: Option<String>,
}

/// What it says of one object.
#[derive(Default)]
pub(super) struct Entry {
    pub(super) key: Option<String>,
    pub(super) size: Option<String>,
    pub(super) etag: Option<String>,
    pub(super) last_modified: Option<String>,
}

/// An element whose content counts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Element {
    Contents,
    CommonPrefixes,
    IsTruncated,
    Token,
    EncodingType,
    Key,
    Size,
    ETag,
    LastModified,
    Prefix,
    Other,
}

impl Element {
    /// The element of this name inside `parent`; in the root where that is `None`.
    fn of(parent: Option<Element>, name: &str) -> Element {
        match (parent, name) {
            (None, "Contents") => Element::Contents,
            (None, "CommonPrefixes") => Element::CommonPrefixes,
            (None, "IsTruncated") => Element::IsTruncated,
            (None, "NextContinuationToken") => Element::Token,
            (None, "EncodingType") => Element::EncodingType,
            (Some(Element::Contents), "Key") => Element::Key,
            (Some(Element::Contents), "Size") => Element::Size,
            (Some(Element::Contents), "ETag") => Element::ETag,
            (Some(Element::Contents), "LastModified") => Element::LastModified,
            (Some(Element::CommonPrefixes), "Prefix") => Element::Prefix,
            _ => Element::Other,
        }
    }
}

/// Where in the document the walk is.
#[derive(Default)]
struct Walk {
    raw: Raw,
    entry: Entry,
    /// Elements that are open.
    depth: usize,
    /// The root element has ended.
    ended: bool,
    /// The open child of the root, and its open child.
    outer: Option<Element>,
    inner: Option<Element>,
    /// The text of the innermost of them so far.
    text: String,
}

/// Reads a whole list.
pub(super) fn read(text: &str) -> Result<Raw, ListError> {
    let mut reader = Reader::from_str(text);
    reader.config_mut().expand_empty_elements = true;
    let mut walk = Walk::default();
    loop {
        let event = match reader.read_event() {
            Ok(event) => event,
            Err(error) => return Err(broken(&error, reader.error_position(), text)),
        };
        let at = reader.buffer_position();
        match event {
            Event::Start(start) => walk.open(start.local_name().as_ref(), at)?,
            Event::End(_) => walk.close()?,
            Event::Text(found) => walk.text(&found.xml10_content(), at)?,
            Event::CData(found) => walk.text(&found.xml10_content(), at)?,
            Event::GeneralRef(entity) => match resolve(&entity) {
                Some(found) => walk.text(&found, at)?,
                None => return Err(ill_formed(at, "an unknown entity")),
            },
            Event::Eof if walk.ended => return Ok(walk.raw),
            Event::Eof => return Err(cut(text)),
            // Declarations, comments and instructions say nothing of the list.
            _ => {}
        }
    }
}

impl Walk {
    fn open(&mut self, name: &str, at: u64) -> Result<(), ListError> {
        self.text.clear();
        match self.depth {
            0 if self.ended => return Err(ill_formed(at, "a second root element")),
            0 if name != "ListBucketResult" => {
                return Err(ListError::NotAList { root: shown(name) });
            }
            1 => self.outer = Some(Element::of(None, name)),
            2 => self.inner = Some(Element::of(self.outer, name)),
            _ => {}
        }
        self.depth += 1;
        Ok(())
    }

    fn text(&mut self, found: &str, at: u64) -> Result<(), ListError> {
        if self.depth == 0 && !found.trim().is_empty() {
            return Err(ill_formed(at, "text outside the list"));
        }
        if matches!(self.depth, 2 | 3) {
            self.text.push_str(found);
        }
        Ok(())
    }

    fn close(&mut self) -> Result<(), ListError> {
        let text = std::mem::take(&mut self.text);
        match self.depth {
            1 => self.ended = true,
            2 => self.close_outer(text)?,
            3 => self.close_inner(text)?,
            _ => {}
        }
        // The reader refuses an end without a beginning.
        self.depth = self.depth.saturating_sub(1);
        Ok(())
    }

    fn close_outer(&mut self, text: String) -> Result<(), ListError> {
        let raw = &mut self.raw;
        match self.outer.take() {
            Some(Element::Contents) => raw.entries.push(std::mem::take(&mut self.entry)),
            Some(Element::IsTruncated) => once(&mut raw.truncated, "IsTruncated", trimmed(text))?,
            // Opaque, so kept as it is; an empty one is none.
            Some(Element::Token) if text.is_empty() => {}
            Some(Element::Token) => once(&mut raw.token, "NextContinuationToken", text)?,
            Some(Element::EncodingType) if text.trim().is_empty() => {}
            Some(Element::EncodingType) => {
                once(&mut raw.encoding, "EncodingType", trimmed(text))?;
            }
            _ => {}
        }
        Ok(())
    }

    fn close_inner(&mut self, text: String) -> Result<(), ListError> {
        let entry = &mut self.entry;
        match self.inner.take() {
            // Names may begin and end with spaces.
            Some(Element::Key) => once(&mut entry.key, "Key", text)?,
            Some(Element::Prefix) => self.raw.prefixes.push(text),
            Some(Element::Size) => once(&mut entry.size, "Size", trimmed(text))?,
            Some(Element::ETag | Element::LastModified) if text.trim().is_empty() => {}
            Some(Element::ETag) => once(&mut entry.etag, "ETag", trimmed(text))?,
            Some(Element::LastModified) => {
                once(&mut entry.last_modified, "LastModified", trimmed(text))?;
            }
            _ => {}
        }
        Ok(())
    }
}

fn once(slot: &mut Option<String>, element: &'static str, text: String) -> Result<(), ListError> {
    match slot.replace(text) {
        None => Ok(()),
        Some(_) => Err(ListError::Repeated { element }),
    }
}

fn trimmed(text: String) -> String {
    text.trim().to_owned()
}

fn ill_formed(at: u64, problem: &str) -> ListError {
    ListError::Xml {
        at,
        problem: shown(problem),
    }
}

fn resolve(entity: &BytesRef<'_>) -> Option<String> {
    match entity.resolve_char_ref() {
        Ok(Some(c)) => Some(c.to_string()),
        Ok(None) => resolve_predefined_entity(entity).map(str::to_owned),
        Err(_) => None,
    }
}

fn cut(text: &str) -> ListError {
    ListError::Cut {
        bytes: text.len() as u64,
    }
}

/// What cannot be read because it ends too early is cut; the rest is wrong.
fn broken(error: &XmlError, at: u64, text: &str) -> ListError {
    match error {
        XmlError::Syntax(SyntaxError::InvalidBangMarkup) => {}
        XmlError::Syntax(_) => return cut(text),
        XmlError::IllFormed(IllFormedError::UnclosedReference) => {
            let rest = usize::try_from(at).ok().and_then(|at| text.get(at..));
            if rest.is_none_or(|rest| !rest.contains(['<', ';'])) {
                return cut(text);
            }
        }
        _ => {}
    }
    ill_formed(at, &error.to_string())
}
