//! The body of an S3 error: XML from outside, read as far as it makes sense and no further.

use quick_xml::Reader;
use quick_xml::escape::resolve_predefined_entity;
use quick_xml::events::{BytesRef, Event};

/// The longest body that is read for an error.
pub(crate) const LONGEST_ERROR_BODY: usize = 64 << 10;
/// The longest text taken of one element, in bytes.
const LONGEST_TEXT: usize = 1024;

/// What an S3 error body says. A body that is no such XML says nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErrorBody {
    /// The S3 error code.
    pub code: Option<String>,
    /// The server's message.
    pub message: Option<String>,
    /// The server's id of the request.
    pub request_id: Option<String>,
    /// The id of the host that answered.
    pub host_id: Option<String>,
    /// The bucket's region.
    pub region: Option<String>,
    /// The host that serves the bucket.
    pub endpoint: Option<String>,
    /// The size of the object, where a range did not fit it.
    pub actual_object_size: Option<u64>,
}

impl ErrorBody {
    /// Reads the children of an `Error` element; what comes after a mistake in the XML is left out.
    pub fn parse(body: &[u8]) -> ErrorBody {
        let body = &body[..body.len().min(LONGEST_ERROR_BODY)];
        let text = String::from_utf8_lossy(body);
        let mut reader = Reader::from_str(&text);
        let mut found = ErrorBody::default();
        // The names of the elements that are open: `Error`, then the one whose text is read.
        let mut depth = 0_usize;
        let mut in_error = false;
        let mut name = String::new();
        let mut value = String::new();
        loop {
            match reader.read_event() {
                Ok(Event::Start(start)) => {
                    depth += 1;
                    let local = start.local_name();
                    match depth {
                        1 => in_error = local.as_ref() == "Error",
                        2 => name = local.as_ref().to_owned(),
                        _ => {}
                    }
                    value.clear();
                }
                Ok(Event::Text(text)) if depth == 2 => append(&mut value, &text.xml10_content()),
                Ok(Event::CData(text)) if depth == 2 => append(&mut value, &text),
                Ok(Event::GeneralRef(entity)) if depth == 2 => append_entity(&mut value, &entity),
                Ok(Event::End(_)) => {
                    if in_error && depth == 2 {
                        found.set(&name, value.trim());
                    }
                    value.clear();
                    depth = depth.saturating_sub(1);
                }
                Ok(Event::Eof) | Err(_) => return found,
                Ok(_) => {}
            }
        }
    }

    fn set(&mut self, name: &str, value: &str) {
        if value.is_empty() {
            return;
        }
        let field = match name {
            "Code" => &mut self.code,
            "Message" => &mut self.message,
            "RequestId" => &mut self.request_id,
            "HostId" => &mut self.host_id,
            "Region" => &mut self.region,
            "Endpoint" => &mut self.endpoint,
            "ActualObjectSize" => {
                self.actual_object_size = self.actual_object_size.or(value.parse().ok());
                return;
            }
            _ => return,
        };
        field.get_or_insert_with(|| value.to_owned());
    }
}

fn append(value: &mut String, text: &str) {
    let room = LONGEST_TEXT.saturating_sub(value.len());
    value.extend(
        text.char_indices()
            .take_while(|(at, c)| at + c.len_utf8() <= room)
            .map(|(_, c)| c),
    );
}

fn append_entity(value: &mut String, entity: &BytesRef<'_>) {
    match entity.resolve_char_ref() {
        Ok(Some(c)) => append(value, c.encode_utf8(&mut [0; 4])),
        Ok(None) => append(value, resolve_predefined_entity(entity).unwrap_or_default()),
        Err(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_s3_error_is_read_with_its_entities() {
        let body = ErrorBody::parse(
            b"<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error xmlns=\"x\"><Code>InvalidRange</Code>\
              <Message>a &lt;b&gt; &amp; &#99;</Message><RequestId>R1</RequestId><HostId><![CDATA[H<1]]></HostId>\
              <Region>eu-west-1</Region><Endpoint>h</Endpoint><ActualObjectSize>0</ActualObjectSize>\
              <Detail><Code>inner</Code></Detail></Error>",
        );
        assert_eq!(body.code.as_deref(), Some("InvalidRange"));
        assert_eq!(body.message.as_deref(), Some("a <b> & c"));
        assert_eq!(body.request_id.as_deref(), Some("R1"));
        assert_eq!(body.host_id.as_deref(), Some("H<1"));
        assert_eq!(body.region.as_deref(), Some("eu-west-1"));
        assert_eq!(body.endpoint.as_deref(), Some("h"));
        assert_eq!(body.actual_object_size, Some(0));
    }

    #[test]
    fn what_is_no_s3_error_says_nothing() {
        for body in [
            &b""[..],
            b"Bad Gateway",
            b"{\"Code\":1}",
            b"<html><Code>x</Code></html>",
            b"<Error",
            b"\xff\xfe<",
        ] {
            assert_eq!(ErrorBody::parse(body), ErrorBody::default(), "{body:?}");
        }
    }

    #[test]
    fn of_what_is_said_twice_the_first_counts() {
        let body = ErrorBody::parse(
            b"<Error><Code>a</Code><ActualObjectSize>5</ActualObjectSize><Code>b</Code>\
              <ActualObjectSize>6</ActualObjectSize><ActualObjectSize>x</ActualObjectSize></Error>",
        );
        assert_eq!(body.code.as_deref(), Some("a"));
        assert_eq!(body.actual_object_size, Some(5));
    }

    #[test]
    fn a_cut_body_gives_what_came_before_the_cut() {
        let body = ErrorBody::parse(b"<Error><Code>SlowDown</Code><Message>reduce y");
        assert_eq!(body.code.as_deref(), Some("SlowDown"));
        assert_eq!(body.message, None);
    }

    #[test]
    fn entities_of_the_body_itself_are_not_expanded() {
        let bomb = b"<!DOCTYPE e [<!ENTITY a \"xxxxxxxx\">]><Error><Code>&a;&a;</Code><Message>m</Message></Error>";
        let body = ErrorBody::parse(bomb);
        assert_eq!((body.code, body.message.as_deref()), (None, Some("m")));
    }

    #[test]
    fn long_texts_are_cut() {
        let long = format!("<Error><Message>{}</Message></Error>", "é".repeat(5000));
        assert_eq!(
            ErrorBody::parse(long.as_bytes()).message.unwrap().len(),
            LONGEST_TEXT
        );
    }

    proptest! {
        #[test]
        fn no_body_panics(body in prop::collection::vec(any::<u8>(), 0..300)) {
            ErrorBody::parse(&body);
        }

        #[test]
        fn no_xml_like_body_panics(body in "(<Error>|</Error>|<Code>|</Code>|<|>|&|;|&#|<!\\[CDATA\\[|\\]\\]>|<!--|[a-z0-9]|é){0,40}") {
            ErrorBody::parse(body.as_bytes());
        }
    }
}
