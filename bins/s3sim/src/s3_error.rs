//! The error answers of S3: a status, a code, and a message in XML.

use std::borrow::Cow;
use std::fmt::Write;

/// An error as S3 tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct S3Error {
    pub status: u16,
    pub code: Cow<'static, str>,
    pub message: Cow<'static, str>,
    /// Headers that go with it.
    pub headers: Vec<(Cow<'static, str>, String)>,
    /// Elements of the body that only this error has.
    pub elements: Vec<(&'static str, String)>,
}

impl S3Error {
    pub fn new(
        status: u16,
        code: impl Into<Cow<'static, str>>,
        message: impl Into<Cow<'static, str>>,
    ) -> S3Error {
        S3Error {
            status,
            code: code.into(),
            message: message.into(),
            headers: Vec::new(),
            elements: Vec::new(),
        }
    }

    /// Adds a header.
    pub fn with(mut self, name: impl Into<Cow<'static, str>>, value: impl ToString) -> S3Error {
        self.headers.push((name.into(), value.to_string()));
        self
    }

    /// Adds an element of the body.
    pub fn telling(mut self, element: &'static str, text: impl ToString) -> S3Error {
        self.elements.push((element, text.to_string()));
        self
    }

    /// The answer's body.
    pub fn to_xml(&self, resource: &str, request_id: &str) -> String {
        let mut xml = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error>".to_owned();
        let mut element = |name: &str, text: &str| {
            let _ = write!(xml, "<{name}>{}</{name}>", escape(text));
        };
        element("Code", &self.code);
        element("Message", &self.message);
        for (name, text) in &self.elements {
            element(name, text);
        }
        element("Resource", resource);
        element("RequestId", request_id);
        xml.push_str("</Error>");
        xml
    }
}

/// Makes a text safe inside an XML element; control characters that XML 1.0 cannot say become `?`.
pub(crate) fn escape(text: &str) -> Cow<'_, str> {
    let special =
        |c: char| matches!(c, '&' | '<' | '>' | '"' | '\'') || is_unsayable(c) || c == '\r';
    if !text.contains(special) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&apos;"),
            '\r' => escaped.push_str("&#13;"),
            c if is_unsayable(c) => escaped.push('?'),
            c => escaped.push(c),
        }
    }
    Cow::Owned(escaped)
}

fn is_unsayable(c: char) -> bool {
    (c.is_ascii_control() && !matches!(c, '\t' | '\n' | '\r'))
        || matches!(c, '\u{fffe}' | '\u{ffff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_of_an_error_is_escaped() {
        let error = S3Error::new(404, "NoSuchKey", "no <b> & \"c\"");
        let xml = error.to_xml("/b/<k>\u{1}", "ID");
        assert!(
            xml.contains("<Message>no &lt;b&gt; &amp; &quot;c&quot;</Message>"),
            "{xml}"
        );
        assert!(xml.contains("<Resource>/b/&lt;k&gt;?</Resource><RequestId>ID</RequestId>"));
    }
}
